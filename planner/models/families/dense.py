"""Dense decoder families: one row of ``Traits`` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.models.families.decoder import Traits, windows_by_type
from planner.models.fields import Fields

Windows = Callable[[Fields, int], list[int | None]]


def _windows_switch(fields: Fields, layers: int) -> list[int | None]:
    """Qwen: a window only when ``use_sliding_window``, and only from ``max_window_layers`` on."""
    if fields.has("layer_types"):
        return windows_by_type(fields, layers)
    if not fields.flag("use_sliding_window", default=False):
        return [None] * layers
    first = fields.integer("max_window_layers", default=layers, low=0)
    window = fields.integer("sliding_window")
    return [window if index >= first else None for index in range(layers)]


def _windows_all(fields: Fields, layers: int) -> list[int | None]:
    """One ``sliding_window`` for every layer, if there is one."""
    if fields.has("layer_types"):
        return windows_by_type(fields, layers)
    return [fields.optional_int("sliding_window")] * layers


def _windows_every(pattern: int, field: str = "sliding_window_pattern") -> Windows:
    """Sliding layers with one full layer at the end of each run of ``pattern`` (Gemma 2: 2, Gemma 3: 6)."""

    def windows(fields: Fields, layers: int) -> list[int | None]:
        if fields.has("layer_types"):
            return windows_by_type(fields, layers)
        window = fields.integer("sliding_window")
        run = fields.integer(field, default=pattern, high=1000)
        return [None if (index + 1) % run == 0 else window for index in range(layers)]

    return windows


DENSE: dict[str, Traits] = {
    "llama": Traits(kv_default="heads"),
    "baichuan": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, kv_default="heads"),
    "internlm2": Traits(mlp_bias=False, kv_default="heads"),
    "mistral": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, windows=_windows_all),
    "ministral3": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, windows=_windows_all),
    "qwen2": Traits(qkv_bias=True, o_bias=False, mlp_bias=False, windows=_windows_switch),
    "qwen2_5_vl": Traits(qkv_bias=True, o_bias=False, mlp_bias=False, windows=_windows_switch),
    "qwen3": Traits(mlp_bias=False, qk_norm="head", windows=_windows_switch),
    "qwen3_vl_text": Traits(mlp_bias=False, qk_norm="head"),
    "mimo": Traits(
        qkv_bias=True, o_bias=False, mlp_bias=False, windows=_windows_switch, mtp=("num_nextn_predict_layers",)
    ),
    "gemma": Traits(mlp_bias=False, tied=True, kv_default="heads"),
    "gemma2": Traits(mlp_bias=False, norms=4, tied=True, windows=_windows_every(2)),
    "gemma3_text": Traits(mlp_bias=False, norms=4, tied=True, qk_norm="head", windows=_windows_every(6)),
    "phi3": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, kv_default="heads", windows=_windows_all),
    "phi": Traits(
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        gated=False,
        norms=1,
        norm_bias=True,
        kv_default="heads",
        head_bias=True,
        intermediate_factor=4,
    ),
    "cohere": Traits(mlp_bias=False, norms=1, tied=True, kv_default="heads", qk_norm="all", qk_norm_switch=True),
    "cohere2": Traits(mlp_bias=False, norms=1, tied=True, kv_default="heads", windows=_windows_every(4)),
    "glm4": Traits(o_bias=False, mlp_bias=False, norms=4),
    "exaone4": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm="head", windows=windows_by_type),
    "olmo": Traits(mlp_bias=False, norms=0, final_norm=False, kv_default="heads"),
    "olmo3": Traits(mlp_bias=False, qk_norm="all", kv_default="heads", windows=_windows_every(4)),
    "olmo2": Traits(mlp_bias=False, qk_norm="all", kv_default="heads"),
    "starcoder2": Traits(gated=False, norm_bias=True, tied=True, windows=_windows_all),
    "orion": Traits(mlp_bias=False, norm_bias=True, kv_default="heads"),
    "granite": Traits(tied=True, kv_default="heads"),
    "smollm3": Traits(tied=True, mlp_bias=None),
    "seed_oss": Traits(o_bias=False),
}

_GPT = Traits(
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    gated=False,
    norm_bias=True,
    tied=True,
    kv_default="heads",
    intermediate_factor=4,
)
"""The layout of GPT-2: biases everywhere, one MLP up-projection of four times the width, tied embedding."""

DENSE |= {
    "phi-msft": DENSE["phi"],
    "gpt2": replace(_GPT, learned_positions=0),
    "opt": replace(_GPT, learned_positions=2),
    "bloom": replace(_GPT, embedding_norm=True),
    "gpt_neox": replace(_GPT, qkv_bias=None, o_bias=None, tied=False),
    "gptj": replace(_GPT, qkv_bias=False, o_bias=False, norms=1, tied=False, head_bias=True),
    "mpt": replace(_GPT, qkv_bias=False, o_bias=False, mlp_bias=False, norm_bias=False),
    "nemotron": Traits(gated=False, norm_bias=True, kv_default="heads"),
    "arcee": Traits(gated=False, kv_default="heads"),
    "apertus": Traits(gated=False, qk_norm="head", kv_default="heads"),
    "stablelm": Traits(o_bias=False, mlp_bias=False, norm_bias=True, kv_default="heads"),
    "ernie4_5": Traits(tied=True),
    "hunyuan_v1_dense": Traits(mlp_bias=False, qk_norm="head", kv_default="heads"),
    "internlm3": Traits(kv_default="heads"),
    "glm": Traits(o_bias=False, mlp_bias=False),
    "glm4v_text": DENSE["glm4"],
    "qwen2_vl": DENSE["qwen2"],
    "qwen2_vl_text": DENSE["qwen2"],
    "qwen2_5_vl_text": DENSE["qwen2"],
}

DENSE_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "mistral": {"num_key_value_heads": 8},
    "gpt_neox": {"attention_bias": True},
    "bloom": {"seq_length": 2048},
    "seed_oss": {"attention_bias": True},
    "starcoder2": {"use_bias": True},
}
"""What the family's configuration class fills in when config.json leaves a field out (Hugging Face transformers)."""

LEAVES_OUT_DEFAULTS = frozenset({"llava", "llava_next", "llava_next_video"})
"""Kinds of model whose published configurations leave out what equals the default of the language part's class."""

NESTED_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
}
"""The defaults of those classes (Hugging Face transformers 5.19), which engines fill in when they load such a model."""

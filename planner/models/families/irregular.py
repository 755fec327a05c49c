"""Families that need more than a row of traits: Nemotron NAS, Llama 3.2 Vision, Falcon."""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, attention_linears, dense_ffn, norm
from planner.models.families import decoder
from planner.models.families.decoder import HEADS, POSITIONS, Traits, head_dim, kv_heads, layer_count
from planner.models.families.dense import DENSE
from planner.models.fields import Fields
from planner.models.spec import Attention, Linear, Shard


def nemotron_nas(fields: Fields) -> Draft:
    """Nemotron NAS (DeciLM): each layer has its own number of KV heads and width, or no attention or no MLP at all."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    blocks = fields.array("block_configs")
    if len(blocks) != layers:
        raise InputError(f"must describe {layers} layers", field=fields.name("block_configs"), value=len(blocks))
    stack = []
    for index, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise InputError("must be an object", field=fields.name(f"block_configs[{index}]"), value=block)
        stack.append(_nas_layer(Fields(block, fields.name(f"block_configs[{index}]")), fields, hidden, heads))
    return Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=fields.integer(*POSITIONS),
        layers=stack,
        tied=fields.flag("tie_word_embeddings", default=False),
        extra=[norm(hidden, module="model.norm")],
    )


def _nas_layer(block: Fields, fields: Fields, hidden: int, heads: int) -> Layer:
    attention_config, ffn_config = block.child("attention"), block.child("ffn")
    if attention_config is None or ffn_config is None:
        raise InputError("must have attention and ffn", field=block.path)
    mixer, ffn = None, None
    linears: list[Linear] = []
    if attention_config.flag("replace_with_linear", default=False):
        linears += [norm(hidden), Linear("other", hidden, hidden, Shard.REPLICATED, module="self_attn.linear_attn")]
    elif not attention_config.flag("no_op", default=False):
        per_group = attention_config.integer("n_heads_in_group", high=heads)
        if heads % per_group:
            raise InputError(f"must divide {heads} heads", field=attention_config.name("n_heads_in_group"))
        dim = head_dim(fields, hidden, heads)
        mixer = Attention("full", heads, heads // per_group, dim, dim)
        bias = fields.flag("attention_bias", default=False)
        linears += [norm(hidden), *attention_linears(mixer, hidden, qkv_bias=bias, o_bias=bias)]
    if ffn_config.flag("replace_with_linear", default=False):
        linears += [norm(hidden), Linear("other", hidden, hidden, Shard.REPLICATED, module="mlp.linear_mlp")]
    elif not ffn_config.flag("no_op", default=False):
        ffn, parts = dense_ffn(hidden, _nas_width(ffn_config, hidden))
        linears += [norm(hidden), *parts]
    return Layer(mixer, ffn, tuple(linears))


def _nas_width(ffn: Fields, hidden: int) -> int:
    """Width of the MLP: 2/3 x multiplier x hidden, rounded up to a multiple of 256 (the model's own code)."""
    stated = ffn.optional_int("intermediate_size")
    if stated:
        return stated
    multiplier = ffn.raw("ffn_mult")
    if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier <= 1000:
        raise InputError("must be a positive number", field=ffn.name("ffn_mult"), value=multiplier)
    return -(-int(2 * multiplier * hidden / 3) // 256) * 256


def mllama(fields: Fields) -> Draft:
    """Llama 3.2 Vision: some layers attend to the image instead of the text; eight extra embedding rows."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    kv = kv_heads(fields, heads, "")
    dim = head_dim(fields, hidden, heads)
    cross = set(fields.ints("cross_attention_layers", high=layers - 1))
    ffn, mlp = dense_ffn(hidden, fields.integer("intermediate_size"))
    text = Attention("full", heads, kv, dim, dim)
    image = Attention("cross", heads, kv, dim, dim, qk_norm=True)
    own = Layer(text, ffn, (norm(hidden, 2), *attention_linears(text, hidden), *mlp))
    gates = norm(1, 2, module="cross_attn_gates")
    seen = attention_linears(image, hidden, qk_norm="head", prefix="cross_attn")
    other = Layer(image, ffn, (norm(hidden, 2), *seen, gates, *mlp))
    vocab = fields.integer("vocab_size")
    return Draft(
        hidden=hidden,
        vocab=vocab,
        max_position=fields.integer(*POSITIONS),
        layers=[other if index in cross else own for index in range(layers)],
        tied=fields.flag("tie_word_embeddings", default=False),
        embedding=Linear("embed", vocab + 8, hidden, Shard.VOCAB, module="model.embed_tokens"),
        extra=[norm(hidden, module="model.norm")],
    )


def falcon(fields: Fields) -> Draft:
    """Falcon: one KV head, or ``num_kv_heads`` in the newer layout, which also has two parallel norms."""
    newer = fields.flag("new_decoder_architecture", default=False)
    heads = fields.integer(*HEADS, high=10**5)
    if newer:
        kv = fields.integer("num_kv_heads", default=heads, high=10**5)
    else:
        kv = 1 if fields.flag("multi_query", default=True) else heads
    parallel = fields.flag("parallel_attn", default=True)
    norms = fields.integer("num_ln_in_parallel_attn", default=2 if newer else 1, high=2) if parallel else 2
    known = Fields({**fields.data, "num_key_value_heads": kv}, fields.path, fields.defaults)
    traits = Traits(gated=False, norms=norms, norm_bias=True, tied=True, intermediate_factor=4)
    draft = decoder.build(known, traits)
    fields.used_defaults += known.used_defaults
    draft.layer_path = "transformer.h.{}"
    return draft


def gpt_bigcode(fields: Fields) -> Draft:
    """StarCoder 1: GPT-2 with one KV head unless ``multi_query`` is off."""
    heads = fields.integer(*HEADS, high=10**5)
    kv = 1 if fields.flag("multi_query", default=True) else heads
    known = Fields({**fields.data, "num_key_value_heads": kv}, fields.path, fields.defaults)
    return decoder.build(known, DENSE["gpt2"])


IRREGULAR: dict[str, Callable[[Fields], Draft]] = {
    "nemotron-nas": nemotron_nas,
    "mllama_text_model": mllama,
    "falcon": falcon,
    "gpt_bigcode": gpt_bigcode,
}

IRREGULAR_DEFAULTS: dict[str, dict[str, object]] = {"falcon": {"max_position_embeddings": 2048}}

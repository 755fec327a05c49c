"""Configurations that an air-gapped team uploads: right weights and heads, or a reason that names field and remedy."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from planner.catalog import get_gpu, get_model
from planner.engines.support import support
from planner.engines.types import EngineName, EngineSettings
from planner.errors import UnsupportedError
from planner.estimate import estimate
from planner.models import parse
from planner.models.sharding import Parallel, weights_bytes

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
PLAIN = 128_256 * 4096  # parameters of the embedding, and of the head
LINEARS = 8_030_261_248 - 2 * PLAIN - 65 * 4096  # all linears of the layers
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}


def _compressed(weights: dict, inputs: dict | None, **more: Any) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    method = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    return {**method, **more}


QUARK = {
    "quant_method": "quark", "export": {"kv_cache_group": []}, "exclude": ["lm_head"], "layer_quant_config": {},
}  # fmt: skip
QUANTISED = {
    "fp8 static": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8", 8, 8),
    "fp8 blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "fp8_block", 8 + 32 / 128**2, 8,
    ),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", 8, 8),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 4 + 20 / 128, 16),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4", 4 + 20 / 128, 16),
    "gptq in 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, "int8", 8, 16),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"},
        "int4", 4 + 20 / 128, 16,
    ),
    "compressed w4a16": (
        _compressed({"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}, None),
        "int4", 4 + 16 / 128, 16,
    ),
    "compressed w8a8": (
        _compressed({"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, {"num_bits": 8}),
        "int8", 8, 8,
    ),
    "compressed fp8": (_compressed({**FLOAT8, "strategy": "channel"}, {"num_bits": 8}), "fp8", 8, 8),
    "compressed fp8 blocks": (
        _compressed({**FLOAT8, "strategy": "block", "block_structure": [128, 128]}, {"num_bits": 8}),
        "fp8_block", 8 + 32 / 128**2, 8,
    ),
    "compressed nvfp4": (
        _compressed({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, {"num_bits": 4}),
        "fp4", 4.5, 4,
    ),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "fp4", 4.5, 4),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.5, 16),
    "quark fp8": (
        {**QUARK, "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}}},
        "fp8", 8, 8,
    ),
    "quark mxfp4": (
        {
            **QUARK,
            "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}, "input_tensors": {"dtype": "fp4"}},
        },
        "mxfp4", 4.25, 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_checkpoints_weigh_what_their_method_stores(name: str) -> None:
    section, precision, bits, activation = QUANTISED[name]
    spec = parse({**LLAMA, "quantization_config": section}, model_id="team/own")
    assert (spec.quantization.precision, spec.quantization.activation_bits) == (precision, activation)
    stored = weights_bytes(spec, Parallel()) - 2 * 2 * PLAIN - 2 * 65 * 4096
    assert stored == pytest.approx(LINEARS * bits / 8, rel=0.002)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"group_size": 64, "bits": 4}, "Apple"),
        ({"quant_method": "exl2", "bits": 4.0}, "ExLlama"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "torchao"),
        ({"quant_method": "gguf"}, "llama.cpp"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "whole numbers"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "other bits"),
        ({**QUARK, "global_quant_config": {"weight": {"dtype": "int3"}}}, "weight format"),
    ],
)
def test_methods_that_are_not_planned_say_so(section: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refused:
        parse({**LLAMA, "quantization_config": section}, model_id="team/own")
    assert refused.value.field.startswith("quantization_config")


def test_modules_that_gptq_and_autoround_leave_alone_stay_in_16_bits() -> None:
    left = {"-:.*down_proj.*": {}}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": left}
    other = {f"model.layers.{index}.mlp.down_proj": {"bits": 16} for index in range(32)}
    auto = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": other}
    for section in (gptq, auto):
        spec = parse({**LLAMA, "quantization_config": section}, model_id="team/own")
        linears = {linear.role: linear.quantised for group in spec.groups for linear in group.linears}
        assert (linears["down"], linears["gate_up"]) == (False, True)


@pytest.mark.parametrize(
    ("name", "stored_bytes"),
    [
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 72_669_954_704),  # size_bytes of a deployment's registry
        ("NousResearch/Hermes-3-Llama-3.1-8B", 16.07e9),  # 4.98 + 5.00 + 4.92 + 1.17 GB, as its files are listed
        ("ibm-granite/granite-3.1-8b-instruct", 16.34e9),  # granite-3.0-8b-instruct: 4.97 + 4.99 + 4.97 + 1.41 GB
    ],
)
def test_weights_of_names_against_the_files_that_are_stored(name: str, stored_bytes: float) -> None:
    assert weights_bytes(get_model(name), Parallel()) == pytest.approx(stored_bytes, rel=0.001)


LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {
        "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
        "torch_dtype": "float16", "vocab_size": 32064,
    },
    "vision_config": {
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14,
    },
}  # fmt: skip


def test_a_nested_part_that_leaves_out_its_class_defaults() -> None:
    """llava-1.5-7b-hf as published: 7.06e9 parameters, most sizes of the language part left out."""
    spec = parse(LLAVA, model_id="llava-hf/llava-1.5-7b-hf")
    assert spec.total_params == pytest.approx(7.063e9, rel=0.001)
    assert (spec.hidden, spec.layers, spec.max_position) == (4096, 32, 4096)
    assert "library's defaults" in spec.notes[0]
    mistral = copy.deepcopy(LLAVA)
    mistral |= {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next"}
    mistral["text_config"] = {
        "architectures": ["MistralForCausalLM"], "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_key_value_heads": 8, "sliding_window": None, "vocab_size": 32064,
    }  # fmt: skip
    spec = parse(mistral, model_id="llava-hf/llava-v1.6-mistral-7b-hf")
    assert spec.total_params == pytest.approx(7.567e9, rel=0.001)
    assert spec.groups[0].mixer.window is None  # stated as null: no window, whatever the default is


def test_a_decoder_that_classifies_has_labels_instead_of_a_head() -> None:
    spec = parse({**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 3}, model_id="team/own")
    assert (spec.task, spec.lm_head) == ("classify", None)
    assert spec.total_params == 8_030_261_248 - PLAIN + 3 * 4096


def test_a_decoder_without_a_head_embeds() -> None:
    spec = parse({**LLAMA, "architectures": ["LlamaModel"]}, model_id="team/own")
    assert (spec.task, spec.total_params) == ("embed", 8_030_261_248 - PLAIN)


def test_a_draft_is_no_model() -> None:
    with pytest.raises(UnsupportedError, match="draft"):
        parse({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, model_id="team/own")


@pytest.mark.parametrize("name", ["bitsandbytes", "quark fp8", "auto-round"])
def test_tensorrt_llm_reads_only_methods_that_it_lists(name: str) -> None:
    spec = parse({**LLAMA, "quantization_config": QUANTISED[name][0]}, model_id="team/own")
    for engine, runs in ((EngineName.VLLM, True), (EngineName.TENSORRT_LLM, False)):
        answer = support(spec, get_gpu("H100"), EngineSettings(engine))
        assert answer.ok is runs, answer.reasons


@pytest.mark.parametrize("name", QUANTISED)
def test_every_method_gets_an_estimate_from_vllm(name: str) -> None:
    spec = parse({**LLAMA, "quantization_config": QUANTISED[name][0]}, model_id="team/own")
    asked = {
        "model": "team/own", "gpu": "H100", "engine": "vllm",
        "load": {"kind": "closed", "concurrency": 2, "requests": 4}, "input_tokens": 256, "output_tokens": 16,
    }  # fmt: skip
    answer = estimate(asked, find_model=lambda _: spec)
    assert answer["status"] == "ok", answer["reasons"]
    assert answer["memory"]["weights_gib"] == pytest.approx(weights_bytes(spec, Parallel()) / 2**30, rel=0.02)
    assert answer["perf"]["output_tok_per_s"] > 0


def test_internvl_counts_its_tower_and_projector() -> None:
    """InternVL2.5-2B as its tensors were counted by OpenExplorer/InternVL2_5-2B: 316.6 M, 2.206 B in all."""
    config = {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "torch_dtype": "bfloat16",
        "llm_config": {
            "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "hidden_size": 2048, "bias": False,
            "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8,
            "vocab_size": 92553, "max_position_embeddings": 32768, "tie_word_embeddings": False,
        },
        "vision_config": {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "image_size": 448,
            "patch_size": 14, "norm_type": "layer_norm", "qkv_bias": True, "qk_normalization": False,
        },
    }  # fmt: skip
    spec = parse(config, model_id="team/internvl")
    assert spec.vision is not None
    assert spec.vision.params == pytest.approx(316.6e6, abs=0.05e6)
    assert spec.total_params == pytest.approx(2.206e9, abs=0.0005e9)

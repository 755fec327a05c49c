"""Quantisation: what each checkpoint stores at which width."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog import get_model
from planner.errors import InputError, UnsupportedError
from planner.models import parse
from planner.models.marking import ModuleMatcher
from planner.models.sharding import linear_precision, total_weights_bytes
from planner.units import GIB

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "vocab_size": 256,
}


def _precisions(model_id: str) -> dict[str, set[str]]:
    spec = get_model(model_id)
    found: dict[str, set[str]] = {}
    for group in spec.groups:
        for linear in group.linears:
            found.setdefault(linear.role, set()).add(linear_precision(spec, linear))
    if spec.lm_head is not None:
        found["lm_head"] = {linear_precision(spec, spec.lm_head)}
    return found


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("deepseek-ai/DeepSeek-V3", {"expert_down": {"fp8_block"}, "mla_q_b": {"fp8_block"}, "lm_head": {"bf16"}}),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", {"latent": {"fp4"}, "lm_head": {"bf16"}}),
        ("Qwen/Qwen3-235B-A22B-FP8", {"q": {"fp8_block"}, "router": {"bf16"}, "lm_head": {"bf16"}}),
        ("openai/gpt-oss-20b", {"expert_gate_up": {"mxfp4"}, "q": {"bf16"}, "o": {"bf16"}, "lm_head": {"bf16"}}),
        ("moonshotai/Kimi-K2.5", {"expert_down": {"int4"}, "shared_down": {"bf16"}, "down": {"bf16"}}),
        ("nvidia/DeepSeek-V3.1-NVFP4", {"expert_down": {"fp4"}, "mla_q_a": {"bf16"}, "mla_kv_b": {"bf16"}}),
        ("nvidia/Gemma-4-31B-IT-NVFP4", {"down": {"fp4"}, "q": {"bf16"}}),
        ("nvidia/Qwen3.6-27B-NVFP4", {"down": {"fp4"}, "state_in": {"fp8"}, "q": {"fp8"}, "lm_head": {"fp4"}}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"expert_down": {"mxfp4"}, "mla_q_b": {"fp8_block"}}),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", {"expert_down": {"fp4"}, "mla_q_b": {"fp8_block"}}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", {"state_in": {"fp4", "bf16"}, "q": {"bf16"}}),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", {"expert_down": {"fp8"}, "q": {"bf16"}}),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", {"q": {"fp8"}, "lm_head": {"bf16"}}),
    ],
)
def test_precision_by_role(model_id: str, expected: dict[str, set[str]]) -> None:
    found = _precisions(model_id)
    assert {role: found[role] for role in expected} == expected


@pytest.mark.parametrize(
    ("model_id", "gib"),
    [
        ("nvidia/DeepSeek-V3.1-NVFP4", 361.8),
        ("nvidia/Qwen3.6-27B-NVFP4", 19.6),
        ("moonshotai/Kimi-K2.5", 555.0),
        ("deepseek-ai/DeepSeek-V3", 628.0),
    ],
)
def test_sizes_of_quantised_checkpoints(model_id: str, gib: float) -> None:
    assert total_weights_bytes(get_model(model_id)) / GIB == pytest.approx(gib, rel=0.01)


def test_kv_cache_request_of_the_checkpoint() -> None:
    assert get_model("nvidia/Llama-3.1-70B-Instruct-FP8").quantization.kv_cache_dtype == "fp8"
    assert get_model("Qwen/Qwen3-32B-FP8").quantization.kv_cache_dtype is None


@pytest.mark.parametrize(
    ("section", "precision", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, "int8", 8 + 24 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 8 + 32 / 128**2),
        ({"quant_method": "fp8"}, "fp8", 8.0),
        ({"quant_method": "mxfp4"}, "mxfp4", 4.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "fp4", 4.5),
    ],
)
def test_stored_bits(section: dict[str, Any], precision: str, bits: float) -> None:
    quantization = parse({**LLAMA, "quantization_config": section}, model_id="x").quantization
    assert quantization.precision == precision
    assert quantization.weight_bits + quantization.scale_bits_per_weight == pytest.approx(bits)


def test_alias_takes_the_quantisation_its_name_states() -> None:
    assert get_model("Qwen/Qwen3-14B-FP8").quantization.precision == "fp8_block"
    assert get_model("Qwen/Qwen3-14B-AWQ").quantization.precision == "int4"
    assert get_model("nvidia/DeepSeek-R1-NVFP4").quantization.precision == "fp4"
    assert get_model("meta-llama/Llama-3.1-8B").quantization.method == "none"


def test_name_that_promises_what_the_config_lacks_is_noted() -> None:
    notes = get_model("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4").notes
    assert any("promises fp4" in note for note in notes)


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": 5}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "modelopt"},
        {"quant_method": "fp8", "activation_scheme": "sometimes"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}},
            "ignore": ["re:("],
        },
    ],
)
def test_malformed_sections_are_input_errors(section: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="quantization_config"):
        parse({**LLAMA, "quantization_config": section}, model_id="x")


def test_unknown_widths_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="bits"):
        parse({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 3}}, model_id="x")


@pytest.mark.parametrize(
    ("pattern", "module", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("gate", "model.layers.3.mlp.gate", True),
        ("gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.1.mlp.gate", "model.layers.1.mlp.gate", True),
        ("model.layers.1.mlp.gate", "model.layers.11.mlp.gate", False),
        ("model.layers.1.*", "model.layers.1.self_attn.q_proj", True),
        ("model.layers.1.*", "model.layers.11.self_attn.q_proj", False),
        ("model.layers.0*", "model.layers.0.self_attn.q_proj", True),
        ("model.language_model.layers.3.linear_attn*", "model.layers.3.linear_attn.in_proj_qkv", True),
        ("re:.*self_attn.*", "model.layers.9.self_attn.o_proj", True),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("model.layers.*.mlp.router", "model.layers.7.mlp.experts.*.down_proj", False),
    ],
)
def test_module_patterns(pattern: str, module: str, expected: bool) -> None:
    assert ModuleMatcher((pattern,)).matches(module) is expected


@pytest.mark.parametrize("pattern", ["re:(a+)+b", "re:(.*)*x", "re:.*.*.*.*.*x", "re:" + "a" * 400, "re:(a|b){9}"])
def test_expressions_that_could_run_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"quantization_config\.ignore"):
        ModuleMatcher((pattern,))


def test_number_of_wildcards_is_bounded() -> None:
    with pytest.raises(InputError, match="wildcards"):
        ModuleMatcher(tuple(f"model.layers.{index}.*" for index in range(2001)))

"""Parameter counts of every catalogue model against published ones."""

from __future__ import annotations

import re

import pytest

from planner.catalog import get_model, list_models, published_params
from planner.models.sharding import active_params

EXACT = {
    "BAAI/bge-small-en-v1.5": 33_360_000,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "Qwen/Qwen2-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "bigcode/starcoder2-7b": 7_173_923_840,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "google/gemma-2-27b-it": 27_227_128_320,
    "google/gemma-2-9b-it": 9_241_705_984,
    "google/gemma-2b-it": 2_506_172_416,
    "google/gemma-7b-it": 8_537_680_896,
    "google/gemma-3-1b-it": 999_885_952,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Meta-Llama-3.1-8B": 8_030_261_248,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/phi-2": 2_779_683_840,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "mistralai/Mistral-Large-Instruct-2411": 122_610_069_504,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "sentence-transformers/all-MiniLM-L6-v1": 22_713_216,
}
"""Sums over the tensors of the published checkpoints."""

STATED_B = {
    "LGAI-EXAONE/EXAONE-4.0-32B": 32.0,
    "ai21labs/AI21-Jamba-1.5-Mini": 51.6,
    "deepseek-ai/DeepSeek-V2": 236.0,
    "google/gemma-3-27b-it": 27.4,
    "google/gemma-3-4b-it": 4.3,
    "ibm-granite/granite-4.0-h-small": 32.2,
    "meta-llama/Llama-3.2-90B-Vision-Instruct": 88.8,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 400.0,
    "moonshotai/Kimi-K2-Instruct": 1026.0,
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": 49.9,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 550.0,
    "nvidia/Nemotron-H-56B-Base-8K": 56.0,
    "openai/gpt-oss-120b": 116.8,
    "openai/gpt-oss-20b": 20.9,
    "tiiuae/falcon-40b": 41.3,
    "tiiuae/falcon-7b": 6.92,
    "tiiuae/falcon-180B": 179.0,
    "tiiuae/Falcon3-7B-Instruct": 7.46,
    "tiiuae/Falcon3-10B-Instruct": 10.31,
    "zai-org/GLM-4.5-Air": 106.0,
    "zai-org/GLM-4.6": 355.0,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 80.0,
    "CohereLabs/c4ai-command-r-v01": 35.0,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 24.0,
    "moonshotai/Kimi-K2-Thinking": 1026.0,
    "XiaomiMiMo/MiMo-V2-Flash": 309.0,
    "CohereLabs/c4ai-command-r-plus-08-2024": 104.0,
    "CohereLabs/c4ai-command-r-08-2024": 32.3,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73.0,
    "microsoft/Phi-3-medium-4k-instruct": 14.0,
    "microsoft/Phi-3.5-MoE-instruct": 41.9,
    "nvidia/Nemotron-4-340B-Instruct": 340.0,
    "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1": 253.0,
    "zai-org/GLM-4.7-Flash": 30.0,
}
"""Totals that publishers state with enough digits, in 10^9."""

PUBLISHED_OTHERWISE = {
    "Qwen/Qwen3-14B": "the sum is 14.77e9; the leaderboard cuts decimals",
    "Qwen/Qwen3-32B": "the sum is 32.76e9; the leaderboard cuts decimals",
    "Qwen/Qwen3-30B-A3B": "the sum is 30.53e9; the leaderboard cuts decimals",
    "Qwen/Qwen3-VL-8B-Instruct": "8 counts the language part (8.19e9) without decimals; the tower adds 0.58e9",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "30 counts the language part without decimals; the tower adds 0.54e9",
    "Qwen/Qwen3-VL-32B-Instruct": "32 counts the language part without decimals; the tower adds 0.60e9",
    "Qwen/Qwen3-VL-32B-Thinking": "the same",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "31.6 as its publisher counts; 30 is the name's",
    "deepseek-ai/DeepSeek-V3.2": "685 includes the 14e9 of the prediction module, which total_params leaves out",
    "deepseek-ai/DeepSeek-V4-Pro": "1600 is rounded to two digits; the sum is 1573e9",
    "moonshotai/Kimi-K2.5": "1000 is rounded to one digit; the sum is 1027e9",
    "zai-org/GLM-5.1": "754 includes the prediction layer, which total_params leaves out",
    "zai-org/GLM-5.2-FP8": "the same",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "the configuration here has no image tower (0.87e9)",
}


@pytest.mark.parametrize("model_id", list_models())
def test_every_catalogue_model_is_parsed(model_id: str) -> None:
    spec = get_model(model_id)
    assert spec.layers == sum(group.count for group in spec.groups) > 0
    assert set(spec.layer_order) == set(range(len(spec.groups)))
    assert 0 < active_params(spec) <= spec.total_params + spec.embedding.params
    assert all(linear.n > 0 and linear.k > 0 for group in spec.groups for linear in group.linears)


@pytest.mark.parametrize("model_id", sorted(EXACT))
def test_exact_parameter_counts(model_id: str) -> None:
    assert get_model(model_id).total_params == EXACT[model_id]


@pytest.mark.parametrize("model_id", sorted(STATED_B))
def test_stated_parameter_counts(model_id: str) -> None:
    assert get_model(model_id).total_params / 1e9 == pytest.approx(STATED_B[model_id], rel=0.01)


EFFECTIVE = ("google/gemma-4-E2B-it", "google/gemma-4-E4B-it")
"""The published figure leaves out the tables of embeddings, one of which every layer has of its own, and the tower."""


@pytest.mark.parametrize("model_id", EFFECTIVE)
def test_effective_counts_leave_out_the_tables_and_the_tower(model_id: str) -> None:
    spec, published = get_model(model_id), published_params(model_id)
    assert published is not None
    assert spec.vision is not None
    tables = [linear for linear in (spec.embedding, *spec.extra_linears) if linear.role == "embed"]
    assert len(tables) == 2
    effective = spec.total_params - spec.vision.params - sum(table.params for table in tables)
    assert abs(effective / 1e9 - published.total_b) <= 0.5


@pytest.mark.parametrize(
    "model_id", [name for name in list_models() if published_params(name) and name not in EFFECTIVE]
)
def test_published_counts_within_their_rounding(model_id: str) -> None:
    published = published_params(model_id)
    assert published is not None
    total = get_model(model_id).total_params / 1e9
    digits = 10.0 ** -len(f"{published.total_b:g}".partition(".")[2])
    tolerance = max(0.01 * published.total_b, digits / 2)
    if model_id in PUBLISHED_OTHERWISE:
        assert abs(total - published.total_b) > tolerance, "no longer an exception"
        assert total == pytest.approx(published.total_b, rel=0.1)
    else:
        assert abs(total - published.total_b) <= tolerance


NAMED_OTHERWISE = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "1.5 is its base's, whose head is tied: its own adds 0.23e9",
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "17 are active",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "31.6 as its publisher counts",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "the same",
    "mistralai/Mixtral-8x22B-v0.1": "the experts share the rest",
}


def _named(model_id: str) -> tuple[float, float] | None:
    """The largest size that a name states and the unit of its last digit, in 10^9; None when it states none."""
    found = re.findall(r"(?<![A-Za-z0-9.])(?:8x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", model_id.lower())
    sizes = [
        (float(text) * scale, 10.0 ** -len(text.partition(".")[2]) * scale)
        for text, unit in found
        for scale in ({"b": 1.0, "m": 1e-3}[unit],)
    ]
    return max(sizes, default=None)


@pytest.mark.parametrize("model_id", [name for name in list_models() if _named(name) and name not in EFFECTIVE])
def test_the_size_in_a_models_name(model_id: str) -> None:
    """A name rounds, or cuts decimals, or counts the language part alone; none is further off than one digit or 5 %."""
    spec, named = get_model(model_id), _named(model_id)
    assert named is not None
    size, unit = named
    whole = spec.total_params / 1e9
    language = whole - (spec.vision.params / 1e9 if spec.vision else 0.0)
    rounding = max(0.05 * size, unit / 2)
    near = any(abs(total - size) <= rounding or size <= total < size + unit for total in (whole, language))
    if model_id in NAMED_OTHERWISE:
        assert not near, "no longer an exception"
    else:
        assert near or model_id in EXACT or model_id in STATED_B or model_id in PUBLISHED_OTHERWISE


@pytest.mark.parametrize(
    ("model_id", "active_b"),
    [
        ("Qwen/Qwen3-235B-A22B", 22.0),
        ("deepseek-ai/DeepSeek-V3", 37.0),
        ("deepseek-ai/DeepSeek-V4-Flash", 13.0),
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),
        ("moonshotai/Kimi-K2.5", 32.0),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 55.0),
        ("openai/gpt-oss-120b", 5.1),
    ],
)
def test_active_parameters(model_id: str, active_b: float) -> None:
    assert active_params(get_model(model_id)) / 1e9 == pytest.approx(active_b, rel=0.03)

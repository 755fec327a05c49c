"""Weights per GPU against what vLLM logged ("Model loading took ... GiB")."""

from __future__ import annotations

import pytest

from planner.catalog import get_model
from planner.models.precision import with_precision
from planner.models.sharding import Parallel, rope_cache_bytes, weights_bytes
from planner.units import GIB

# vLLM 0.19.0 on H100 (llm-d-planner pull request 205, raw results), and logs quoted in public issues.
LOGGED = [
    ("meta-llama/Meta-Llama-3.1-8B", "as-config", 1, 14.99),
    ("meta-llama/Meta-Llama-3.1-8B", "as-config", 2, 7.51),
    ("meta-llama/Meta-Llama-3.1-8B", "as-config", 4, 3.77),
    ("meta-llama/Meta-Llama-3.1-8B", "fp8", 1, 8.49),
    ("meta-llama/Meta-Llama-3.1-8B", "fp32", 1, 29.98),
    ("meta-llama/Meta-Llama-3.1-8B", "int4", 1, 5.38),
    ("meta-llama/Meta-Llama-3.1-70B", "fp8", 1, 67.72),
    ("meta-llama/Meta-Llama-3.1-70B", "fp8", 2, 33.88),
    ("meta-llama/Meta-Llama-3.1-70B", "fp8", 4, 16.96),
    ("Qwen/Qwen2.5-7B-Instruct", "as-config", 1, 14.25),
    ("Qwen/Qwen2.5-7B-Instruct", "as-config", 2, 7.12),
    ("Qwen/Qwen2.5-7B-Instruct", "as-config", 4, 3.55),
    ("Qwen/Qwen2.5-7B-Instruct", "fp8", 1, 8.14),
    ("Qwen/Qwen2.5-72B-Instruct", "as-config", 2, 67.80),
    ("moonshotai/Kimi-Dev-72B", "as-config", 2, 67.82),
    ("moonshotai/Kimi-Dev-72B", "as-config", 4, 34.01),
    ("Qwen/Qwen3-8B", "as-config", 1, 15.27),
    ("Qwen/Qwen3-30B-A3B", "as-config", 1, 56.88),
    ("Qwen/Qwen3-32B", "as-config", 1, 61.03),
    ("Qwen/Qwen3-32B", "as-config", 2, 30.59),
    ("mistralai/Mixtral-8x7B-v0.1", "as-config", 2, 43.51),
    ("microsoft/phi-4", "as-config", 1, 27.39),
    ("google/gemma-2-2b-it", "as-config", 1, 4.90),
    ("google/gemma-2-9b-it", "as-config", 1, 17.22),
    ("google/gemma-2-27b-it", "as-config", 1, 50.72),
    ("google/gemma-3-4b-it", "as-config", 1, 8.58),
    ("google/gemma-3-27b-it", "as-config", 1, 51.45),
    ("deepseek-ai/DeepSeek-V2-Lite", "as-config", 1, 29.43),
    ("meta-llama/Llama-2-7b-hf", "as-config", 1, 12.56),
]


@pytest.mark.parametrize(("model_id", "precision", "tp", "logged_gib"), LOGGED)
def test_weights_with_rotary_tables_are_what_the_engine_logged(
    model_id: str, precision: str, tp: int, logged_gib: float
) -> None:
    spec = with_precision(get_model(model_id), precision)
    gib = (weights_bytes(spec, Parallel(tp=tp)) + rope_cache_bytes(spec)) / GIB
    assert gib == pytest.approx(logged_gib, rel=0.01)


def test_middle_pipeline_stage_has_no_embedding() -> None:
    spec = get_model("meta-llama/Meta-Llama-3.1-8B")
    stages = [weights_bytes(spec, Parallel(pp=4), stage=stage) for stage in range(4)]
    assert (stages[1] + rope_cache_bytes(spec)) / GIB == pytest.approx(3.28, abs=0.01)
    assert stages[0] > stages[1] == stages[2] < stages[3]


def test_tied_embedding_is_on_first_and_last_stage() -> None:
    spec = get_model("meta-llama/Llama-3.2-1B-Instruct")
    whole = weights_bytes(spec, Parallel())
    stages = [weights_bytes(spec, Parallel(pp=2), stage=stage) for stage in range(2)]
    assert sum(stages) - whole == pytest.approx(spec.embedding.params * 2)

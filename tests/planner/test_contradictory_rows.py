"""Which published serving rows the accuracy benchmark scores apart, because they contradict their own source."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.contradictions import (
    BEYOND_HARDWARE,
    OTHER_HARDWARE,
    OTHER_LOAD,
    OTHER_MODEL,
    contradictions,
)
from benchmarks.accuracy.rows import contradictory_rows, serving_rows

FIGURES = {"output_tok_per_s": "20.02", "ttft_ms_mean": "248013.29", "tpot_ms_mean": "305.47", "itl_ms_mean": "300.1"}


def row(row_id: str, model: str, page: str, gpu: str = "A100-SXM-80GB", **figures: str) -> dict[str, str]:
    return {
        "row_id": row_id,
        "model": model,
        "gpu": gpu,
        "source_path": page,
        **(figures or {**FIGURES, "e2e_ms": row_id}),
    }


@pytest.mark.parametrize(
    ("model", "page", "odd"),
    [
        ("Qwen/Qwen3-14B", "qwen3-32b/a100", True),
        ("openai/gpt-oss-120b", "gpt-oss-20b/h100", True),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b/a100", False),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1/h200", False),
        ("zai-org/GLM-4.6-FP8", "glm-4.x/a100", False),
    ],
)
def test_a_page_and_its_command_name_one_model(model: str, page: str, odd: bool) -> None:
    found = contradictions([row("a", model, f"gpustack/gpustack:docs/performance-lab/{page}.md")])
    assert found == ({"a": OTHER_MODEL} if odd else {})


def test_figures_equal_to_the_last_digit_under_two_gpus_are_in_doubt_under_both() -> None:
    page = "gpustack/gpustack:docs/performance-lab/glm-4.5-air/{}.md"
    rows = [
        row("a", "zai-org/GLM-4.5-Air", page.format("a100"), **FIGURES),
        row("b", "zai-org/GLM-4.5-Air", page.format("h100"), gpu="H100-SXM-80GB", **FIGURES),
        row("c", "zai-org/GLM-4.5-Air", page.format("a100"), **{**FIGURES, "itl_ms_mean": "300.2"}),
    ]
    assert contradictions(rows) == {"a": OTHER_HARDWARE, "b": OTHER_HARDWARE}
    assert contradictions([rows[0], {**rows[0], "row_id": "d"}]) == {}, "a run that is listed twice"


@pytest.mark.parametrize(
    ("changes", "odd"),
    [
        ({}, True),
        ({"date": "2025-12-09"}, False),
        ({"date": "2025-11-02"}, False),
        ({"concurrency": "64"}, False),
        ({"gpu": "H200-SXM-141GB"}, False),
    ],
)
def test_a_script_that_kept_512_clients_says_nothing_of_its_load(changes: dict[str, str], odd: bool) -> None:
    swept = {
        "row_id": "a",
        "source_id": "aic_silicon:inferencex",
        "source_path": "silicon_sample.csv",
        "engine": "vllm",
        "model": "openai/gpt-oss-120b",
        "gpu": "H100-SXM-80GB",
        "concurrency": "512",
        "date": "2025-12-05",
    }
    assert contradictions([{**swept, **changes}]) == ({"a": OTHER_LOAD} if odd else {})


def test_prompts_that_no_gpu_could_compute_did_not_run_on_it() -> None:
    """32B in FP4 on two B200: 416 clients of 15,000 tokens every 7.5 s are 27 PFLOPS a GPU, three times its peak."""
    told = {
        "load_type": "concurrency", "concurrency": "416", "isl": "15000", "osl": "500", "ttft_ms": "719",
        "tpot_ms": "13.66", "n_gpus": "2", "precision": "fp4",
    }  # fmt: skip
    base = {**row("a", "Qwen/Qwen3-32B", "silicon_sample.csv", gpu="B200-SXM-180GB"), **told}
    assert contradictions([base]) == {"a": BEYOND_HARDWARE}
    assert contradictions([{**base, "concurrency": "104"}]) == {}
    assert contradictions([{**base, "model": "of/nobody"}]) == {}
    assert contradictions([{**base, "n_gpus": ""}]) == {}


def test_rows_in_doubt_are_scored_apart_and_none_is_lost() -> None:
    apart = contradictory_rows()
    assert {r.kind for r in apart} == {"contradictory"}
    assert {r.notes for r in apart} == {OTHER_MODEL, OTHER_HARDWARE, OTHER_LOAD, BEYOND_HARDWARE}
    for settings in (True, False):
        assert not {r.row_id for r in apart} & {r.row_id for r in serving_rows(settings=settings)}

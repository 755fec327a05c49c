"""What the accuracy benchmark reads of launch scripts and commands published beside rows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.accuracy.published import GPUSTACK, INFERENCEX, published
from benchmarks.accuracy.rows import serving_rows
from planner.steptime.variants import accepted_drafts


def settings(clients: int = 64, **stated: str) -> dict[str, Any]:
    row = {
        "source_id": INFERENCEX, "engine": "tensorrt_llm", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp4",
        "gpu": "B200-SXM-180GB", "engine_version": "1.2.0rc6.post2", "date": "2026-02-03", "tp": "8", "ep": "8",
        "dp": "1", "isl": "1024", "osl": "1024", **stated,
    }  # fmt: skip
    return published(row, {"kind": "closed", "concurrency": clients})


@pytest.mark.parametrize(
    ("date", "version", "gpu", "dp", "clients", "drafts"),
    [
        ("2025-12-15", "1.1.0rc2.post2", "B200-SXM-180GB", 1, 32, 0),
        ("2026-01-14", "1.1.0rc2.post2", "B200-SXM-180GB", 1, 32, 3),
        ("2026-01-14", "1.1.0rc2.post2", "H200-SXM-141GB", 8, 128, 1),
        ("2026-01-28", "1.1.0rc2.post2", "H200-SXM-141GB", 8, 256, 1),
        ("2026-01-28", "1.1.0rc2.post2", "H200-SXM-141GB", 1, 64, 0),
        ("2026-02-03", "1.2.0rc6.post2", "B200-SXM-180GB", 8, 128, 0),
        ("2026-02-06", "1.2.0rc6.post3", "B200-SXM-180GB", 8, 128, 1),
        ("2026-02-06", "1.2.0rc6.post3", "B200-SXM-180GB", 1, 64, 3),
    ],
)
def test_drafts_are_read_off_the_run(date: str, version: str, gpu: str, dp: int, clients: int, drafts: int) -> None:
    tp = "1" if dp > 1 else "8"
    found = settings(clients, date=date, engine_version=version, gpu=gpu, dp=str(dp), tp=tp)
    assert found.get("speculative_tokens", 0) == drafts
    assert ("acceptance_rate" in found) == bool(drafts)


def test_acceptance_gives_what_was_published_of_the_model() -> None:
    """First drafts accepted at 0.81-0.823; 3.1-3.2 tokens a step with seven, from rates of 0.82, then 0.62."""
    first, later = 0.82, 0.62
    of_seven = 1.0 + first * (1.0 + accepted_drafts(later, 6))
    of_three = first * (1.0 + accepted_drafts(later, 2))
    assert 3.0 < of_seven < 3.2
    one = settings(128, engine_version="1.2.0rc6.post3", tp="1", dp="8")
    three = settings(64, engine_version="1.2.0rc6.post3")
    assert one["acceptance_rate"] == first
    assert accepted_drafts(three["acceptance_rate"], 3) == pytest.approx(of_three, rel=0.01)


def test_the_first_scripts_chose_the_shape_themselves() -> None:
    first = {"date": "2025-11-02", "engine_version": "", "ep": "1"}
    low, middle, high = (settings(clients, **first) for clients in (8, 64, 256))
    assert (low["tp"], low["ep"], low["dp"]) == (8, 1, 1)
    assert low["engine_version"] == "1.1.0rc2"
    assert (middle["tp"], middle["ep"], middle["dp"]) == (8, 8, 1)
    assert (high["tp"], high["ep"], high["dp"]) == (1, 8, 8)
    hopper = settings(64, **first, gpu="H200-SXM-141GB", precision="fp8", isl="8192")
    assert (hopper["tp"], hopper["ep"], hopper["dp"]) == (1, 8, 8)


def test_steps_hold_one_prompt_until_the_limit_was_raised() -> None:
    assert settings(64, date="2025-12-15", engine_version="1.1.0rc2.post2")["max_num_batched_tokens"] == 1152
    assert settings(64)["max_num_batched_tokens"] == 8192
    drafting = settings(64, engine_version="1.2.0rc6.post3")
    assert (drafting["max_num_seqs"], drafting["max_num_batched_tokens"]) == (64, 1344)
    ranks = settings(256, engine_version="1.2.0rc6.post3", tp="1", dp="8", precision="fp8")
    assert (ranks["max_num_seqs"], ranks["max_num_batched_tokens"]) == (32, 1152)
    assert ranks["free_gpu_memory_fraction"] == 0.7
    assert ranks["attention_dp_wait_iters"] == 60
    assert "attention_dp_wait_iters" not in drafting


def test_kernels_and_graphs_by_version() -> None:
    early = settings(64, date="2025-12-15", engine_version="1.1.0rc2.post2", precision="fp8")
    assert (early["moe_backend"], early["max_cudagraph_capture_size"]) == ("DEEPGEMM", 256)
    late = settings(64, precision="fp8", tp="8", ep="1")
    assert (late["moe_backend"], late["max_cudagraph_capture_size"]) == ("TRTLLM", 64)
    assert late["piecewise_cuda_graphs"]
    assert (late["batch_wait_iters"], late["batch_wait_tokens_ratio"]) == (40, 0.8)
    assert "batch_wait_iters" not in settings(64, precision="fp8", osl="8192")
    assert "piecewise_cuda_graphs" not in settings(32, precision="fp8", ep="1")
    assert settings(64)["piecewise_cuda_graphs"]  # TP 8, EP 8, 1024 in and out
    assert "piecewise_cuda_graphs" not in settings(64, osl="8192")
    assert "piecewise_cuda_graphs" not in settings(16, tp="4", ep="1")
    assert settings(64, engine_version="1.2.0rc6.post3", osl="8192")["piecewise_cuda_graphs"]


@pytest.mark.parametrize(
    ("gpu", "cache"), [("H100-SXM-80GB", None), ("H200-SXM-141GB", "fp8"), ("B200-SXM-180GB", "fp8")]
)
def test_llama_keeps_its_cache_as_the_script_says_where_the_run_did(gpu: str, cache: str | None) -> None:
    found = settings(64, engine="vllm", model="meta-llama/Llama-3.1-70B", gpu=gpu, engine_version="", precision="fp8")
    assert found.get("kv_cache_dtype") == cache
    assert found["max_num_seqs"] == (512 if gpu.startswith("B200") else 64)


@pytest.mark.parametrize(
    ("model", "date", "stated", "version"),
    [
        ("meta-llama/Llama-3.1-70B", "2025-10-29", "", "0.10.2"),
        ("openai/gpt-oss-120b", "2025-11-02", "", "0.10.2"),
        ("openai/gpt-oss-120b", "2025-12-05", "", "0.11.2"),
        ("openai/gpt-oss-120b", "2026-03-27", "0.18.0", None),
    ],
)
def test_vllm_of_a_row_without_version_is_the_image_of_its_day(
    model: str, date: str, stated: str, version: str | None
) -> None:
    found = settings(64, engine="vllm", model=model, gpu="H200-SXM-141GB", date=date, engine_version=stated)
    assert found.get("engine_version") == version
    assert found["async_scheduling"] is True


@pytest.mark.parametrize(
    ("flags", "pp", "asked"), [("--async-scheduling", "1", True), ("--async-scheduling", "2", None), ("", "", None)]
)
def test_asynchronous_scheduling_is_read_off_a_command_that_could_run(flags: str, pp: str, asked: bool | None) -> None:
    """vLLM 0.10.2 and 0.11.0 refuse it with pipeline stages (``engine/arg_utils.py``)."""
    row = {
        "source_id": GPUSTACK, "dataset": "random", "num_prompts": "500", "pp": pp, "tp": "1",
        "notes": f"section: x; cmd: vllm serve openai/gpt-oss-120b {flags} --max-model-len 32768",
    }  # fmt: skip
    found = published(row, {"kind": "closed", "concurrency": 500})
    assert found.get("async_scheduling") is asked
    assert found["max_model_len"] == 32768


def test_rows_of_runs_that_drafted_are_read_with_their_settings_only() -> None:
    with_settings = {row.row_id: row.request.get("speculative_tokens", 0) for row in serving_rows(settings=True)}
    stated = {row.row_id for row in serving_rows()}
    assert stated == {row_id for row_id, drafts in with_settings.items() if not drafts}
    assert sum(bool(drafts) for drafts in with_settings.values()) > 50


@pytest.mark.parametrize(("flag", "ranks"), [("--enable-expert-parallel", 8), ("", None)])
def test_whole_experts_on_ranks_are_read_off_the_command(flag: str, ranks: int | None) -> None:
    row = {
        "source_id": GPUSTACK, "dataset": "ShareGPT", "num_prompts": "1000", "pp": "", "tp": "8",
        "notes": f"section: x; cmd: vllm serve zai-org/GLM-4.6-FP8 -tp 8 {flag}",
    }  # fmt: skip
    assert published(row, {"kind": "closed", "concurrency": 1000}).get("ep") == ranks


def test_gpt_oss_spreads_its_experts_as_the_scripts_of_the_day_did() -> None:
    gpt = {"model": "openai/gpt-oss-120b", "tp": "4", "ep": "1", "engine_version": "1.2.0rc2"}
    early = settings(256, **gpt, date="2025-10-20")
    assert (early["tp"], early["ep"], early["dp"], early["attention_dp_wait_iters"]) == (1, 4, 4, 50)
    few = settings(64, **gpt, date="2025-10-20")
    assert (few["tp"], few["ep"], few["dp"], few["max_num_seqs"]) == (4, 1, 1, 512)
    hopper = settings(64, **gpt, date="2025-10-20", gpu="H200-SXM-141GB")
    assert (hopper["ep"], hopper["max_num_seqs"], hopper["kv_cache_dtype"]) == (4, 64, "bf16")
    late = settings(64, **{**gpt, "tp": "1", "dp": "4", "ep": "4"}, date="2026-01-20")
    assert "ep" not in late
    assert late["attention_dp_wait_iters"] == 50


def test_models_are_read_by_their_own_scripts() -> None:
    llama = settings(64, model="meta-llama/Llama-3.1-70B", precision="fp8", engine_version="", date="2025-10-29")
    assert (llama["engine_version"], llama["max_num_batched_tokens"]) == ("1.1.0rc2", 16384)
    assert "moe_backend" not in llama
    assert "batch_wait_iters" not in llama
    assert settings(64, model="Qwen/Qwen3-32B") == {}

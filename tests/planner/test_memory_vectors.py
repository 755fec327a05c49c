"""The ledger against start-ups that vLLM itself reported; all of them: ``python -m benchmarks accuracy memory``."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

import pytest
from memory_samples import account, gpu, vllm

from planner.catalog import get_model
from planner.engines import resolve
from planner.memory import kv_tokens_from_gib

VECTORS = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "vllm_memory_vectors.csv"


def rows() -> list[dict[str, str]]:
    with VECTORS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def settings_of(row: dict[str, str]):
    return vllm(
        row["engine_version"],
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        precision=row["precision"],
        kv_cache_dtype=row["kv_cache_dtype"],
        max_model_len=int(row["max_model_len"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
    )


def model_of(row: dict[str, str]):
    return get_model(row["model"])


def device_of(row: dict[str, str]):
    return gpu(row["gpu"], total_gib=float(row["total_gib"]))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['engine_version']}-tp{row['tp']}")
def test_terms_match_what_the_engine_logged(row: dict[str, str]) -> None:
    got = account(model_of(row), device_of(row), settings_of(row))
    if row["weights_gib"]:
        assert got.weights_gib == pytest.approx(float(row["weights_gib"]), rel=0.01)
    if row["activation_gib"]:
        # The V2 runner's peak (0.24) moves by 0.3 GiB with the state of the compile cache.
        tolerance = 0.3 if row["set"] == "A3" else 0.13
        assert got.activation_gib == pytest.approx(float(row["activation_gib"]), abs=tolerance)
    if row["kv_gib"]:
        assert got.kv_gib == pytest.approx(float(row["kv_gib"]), rel=0.03, abs=0.05)
    elif row["kv_tokens"]:
        assert got.kv_tokens == pytest.approx(int(row["kv_tokens"]), rel=0.002)


@pytest.mark.parametrize("row", [row for row in rows() if row["kv_tokens"] and row["kv_gib"]], ids=lambda r: r["model"])
def test_tokens_are_exact_when_the_gib_are_given(row: dict[str, str]) -> None:
    model = model_of(row)
    resolved = resolve(settings_of(row), model, device_of(row))
    # The log rounds GiB to two decimals: the logged tokens lie within what that rounding leaves open.
    low = kv_tokens_from_gib(model, resolved, float(row["kv_gib"]) - 0.005)
    high = kv_tokens_from_gib(model, resolved, float(row["kv_gib"]) + 0.005)
    assert low[1] <= int(row["kv_tokens"]) <= high[1]
    if row["max_concurrency"]:
        assert low[2] - 0.005 <= float(row["max_concurrency"]) <= high[2] + 0.005


def test_mean_error_over_all_vectors() -> None:
    errors = []
    for row in rows():
        if row["kv_gib"] and float(row["kv_gib"]) > 0:
            got = account(model_of(row), device_of(row), settings_of(row))
            errors.append(abs(got.kv_gib / float(row["kv_gib"]) - 1))
    assert mean(errors) < 0.005
    assert max(errors) < 0.02


def test_most_pools_lie_in_their_interval() -> None:
    inside, total = 0, 0
    for row in rows():
        if not row["kv_gib"]:
            continue
        band = account(model_of(row), device_of(row), settings_of(row)).kv_gib_80
        assert band is not None
        total += 1
        inside += band.low <= float(row["kv_gib"]) <= band.high
    assert total > 40
    assert inside / total >= 0.8


def test_an_assumed_sampler_widens_the_interval_downwards() -> None:
    card = gpu("H100-SXM5-80GB")
    assumed = account("Qwen/Qwen3-8B", card, vllm("0.10.1", max_model_len=8192))
    stated = account("Qwen/Qwen3-8B", card, vllm("0.10.1", max_model_len=8192, sampler="flashinfer"))
    sorting = account("Qwen/Qwen3-8B", card, vllm("0.10.1", max_model_len=8192, sampler="native"))
    assert assumed.kv_gib == stated.kv_gib
    assert assumed.kv_gib_80 is not None
    assert stated.kv_gib_80 is not None
    assert assumed.kv_gib_80.low < sorting.kv_gib < stated.kv_gib_80.low


def test_latent_attention_of_the_first_versions_kept_its_products() -> None:
    # Logged by a start-up of February 2025 (release 0.7.2) on eight A100-40GB: 3.97 GiB of weights on each.
    card = gpu("A100-SXM4-40GB", total_gib=39.39)
    then = account("deepseek-ai/DeepSeek-V2-Lite", card, vllm("0.7.2", tp=8, max_model_len=8192))
    now = account("deepseek-ai/DeepSeek-V2-Lite", card, vllm("0.19.0", tp=8, max_model_len=8192))
    assert then.weights_gib == pytest.approx(3.97, rel=0.01)
    assert now.weights_gib < then.weights_gib - 0.15

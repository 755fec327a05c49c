"""Experts of a model whose tokens are routed evenly, held against vLLM's kernel alone and a whole engine on an H200."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from benchmarks.accuracy.own_runs import SERIES4, series4_rows
from planner.estimate import estimate
from planner.steptime.database import open_database
from planner.steptime.graph import MoeOp, WeightFormat
from planner.steptime.silicon_moe import moe_rows

pytest.importorskip("aiconfigurator_core")


def times(even: bool, tokens: tuple[float, ...], *, kernel: str = "", dp: int = 1) -> np.ndarray:
    """Milliseconds of the experts of one layer of Qwen3-30B-A3B on an H200."""
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    weight = WeightFormat("bf16", 16.0, "bf16")
    op = MoeOp(2048, 768, 8, 128, gated=True, tp=1, ep=1, dp=dp, weight=weight, kernel=kernel, even=even)
    return np.asarray(moe_rows(database, op, tokens).ms)


def alone() -> dict[float, float]:
    """Milliseconds of vLLM's Triton experts with random routing by tokens; fewer than 4 are bound by launches."""
    text = SERIES4.with_name("experts_triton_bf16.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["routing"] == "uniform"]
    return {float(row["tokens"]): float(row["ms"]) for row in rows if 4 <= int(row["tokens"]) <= 1000}


@pytest.mark.parametrize("kernel", ["", "tritonexperts"])
def test_even_routing_takes_what_the_kernel_took_with_random_experts(kernel: str) -> None:
    measured = alone()
    assert len(measured) == 12
    found = times(True, tuple(measured), kernel=kernel) / np.array(list(measured.values()))
    assert found.min() > 0.97
    assert found.max() < 1.12
    skewed = times(False, (16.0,)) / measured[16.0]
    assert skewed < 0.85


def test_many_tokens_take_as_long_however_they_are_routed() -> None:
    many = (1024.0, 4096.0, 16384.0, 40000.0)
    assert times(True, many) == pytest.approx(times(False, many))


def test_ranks_that_share_experts_touch_them_together() -> None:
    assert times(True, (4.0,), dp=4) == pytest.approx(times(True, (16.0,)), rel=0.05)


def test_few_clients_of_a_mixture_with_dummy_weights() -> None:
    """16 clients: skewed routing made TPOT a fifth too low. In-sample for the rule, no constant was fitted."""
    row = next(row for row in series4_rows() if row.row_id == "q30b_moe_i512o256c16")
    measured = row.measured["tpot"][0]
    assert estimate(row.request)["perf"]["tpot_ms"]["mean"] == pytest.approx(measured, rel=0.05)
    trained = estimate({**row.request, "even_expert_routing": False})
    assert trained["perf"]["tpot_ms"]["mean"] < 0.85 * measured


def test_the_flag_must_be_one() -> None:
    row = series4_rows()[0]
    answer = estimate({**row.request, "even_expert_routing": "yes"})
    assert answer["status"] == "error"
    assert "even_expert_routing" in answer["reasons"][0]

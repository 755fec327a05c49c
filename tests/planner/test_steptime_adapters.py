"""What adapters add to a step, against real servers with and without them, and what must always hold."""

from __future__ import annotations

import csv
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.own_runs import SERIES6, series6_rows
from benchmarks.accuracy.rows import MeasuredRow
from planner.estimate import estimate
from planner.evidence import Evidence
from planner.steptime.adapters import AdapterOp, adapter_ms, distinct_adapters
from tests.planner.steptime_samples import H200, step

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MEASURED = {row["run"]: row for row in csv.DictReader(SERIES6.read_text(encoding="utf-8").splitlines())}
PAIRS = [
    ("l16_i1024o256c1", "plain_i1024o256c1", 1, 1, 16),
    ("l16_i1024o256c8_1ad", "plain_i1024o256c8", 8, 1, 16),
    ("l16_i1024o256c8_8ad", "plain_i1024o256c8", 8, 8, 16),
    ("l16_i1024o256c32_1ad", "plain_i1024o256c32", 32, 1, 16),
    ("l16_i1024o256c32_8ad", "plain_i1024o256c32", 32, 8, 16),
    ("l64_i1024o256c1", "plain_i1024o256c1", 1, 1, 64),
    ("l64_i1024o256c8_4ad", "plain_i1024o256c8", 8, 4, 64),
    ("l64_i1024o256c32_4ad", "plain_i1024o256c32", 32, 4, 64),
]
SEATED = [
    row
    for row in series6_rows(adapters=True)
    if int(MEASURED[row.row_id]["adapters"]) <= int(MEASURED[row.row_id]["max_loras"])
]
"""Of the others requests wait for a slot, which is not modelled."""


@pytest.mark.parametrize(("adapted", "plain", "sequences", "adapters", "rank"), PAIRS)
def test_decode_steps_lengthen_as_on_a_real_server(
    adapted: str, plain: str, sequences: int, adapters: int, rank: int
) -> None:
    """Median time between tokens with adapters less that without, of the same H200; what the constants rest on."""
    measured = float(MEASURED[adapted]["p50_itl_ms"]) - float(MEASURED[plain]["p50_itl_ms"])
    extra = step(LLAMA, H200, max_loras=adapters, max_lora_rank=rank).decode_ms(sequences, 1152.0)
    extra -= step(LLAMA, H200).decode_ms(sequences, 1152.0)
    assert extra == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("row", SEATED, ids=lambda row: row.row_id)
def test_runs_with_a_slot_for_every_adapter_are_met(row: MeasuredRow) -> None:
    perf = estimate(row.request)["perf"]
    for metric, (value, stat) in row.measured.items():
        found = perf["output_tok_per_s"] if metric == "output_tok_per_s" else perf[f"{metric}_ms"][stat]
        assert found == pytest.approx(value, rel=0.1), metric


def test_only_hopper_under_vllm_was_measured() -> None:
    assert step(LLAMA, H200, max_loras=4).evidence is Evidence.SILICON
    other = step(LLAMA, "B200-SXM-180GB", max_loras=4)
    assert other.evidence is Evidence.EXTRAPOLATED
    assert any("adapters are taken to cost" in note for note in other.notes)


@given(st.integers(1, 64), st.integers(1, 512))
def test_different_adapters_of_a_step_are_those_of_drawing_at_random(adapters: int, requests: int) -> None:
    draws = random.Random(7)
    found = [len({draws.randrange(adapters) for _ in range(requests)}) for _ in range(200)]
    mean = float(distinct_adapters(adapters, np.array([float(requests)]))[0])
    assert mean == pytest.approx(sum(found) / len(found), abs=1.0)
    assert 1.0 - 1e-9 <= mean <= min(adapters, requests) + 1e-9


@given(st.integers(1, 31), st.sampled_from((8, 16, 32, 64, 128)), st.integers(0, 13))
def test_more_adapters_or_rank_never_take_less(adapters: int, rank: int, power: int) -> None:
    rows = np.array([float(2**power)])
    few = adapter_ms(AdapterOp(4096, 6144, 3, rank, adapters), rows)[0]
    assert few > 0
    assert adapter_ms(AdapterOp(4096, 6144, 3, 2 * rank, adapters), rows)[0] >= few
    assert adapter_ms(AdapterOp(4096, 6144, 3, rank, 2 * adapters), rows)[0] >= few - 1e-9

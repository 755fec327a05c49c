"""The later series of own H200 runs, as rows and as an out-of-sample check of preemptions."""

from __future__ import annotations

import csv

import pytest

from benchmarks.accuracy.own_runs import SERIES4, SERIES5, series4_rows, series5_rows
from benchmarks.accuracy.rows import MeasuredRow
from planner.estimate import estimate

MEASURED = {row["run"]: row for row in csv.DictReader(SERIES4.read_text(encoding="utf-8").splitlines())}
SMALL_POOL = [row for row in series4_rows() if "pool40k" in row.row_id]


def test_every_run_is_a_row() -> None:
    rows = series4_rows()
    assert {row.row_id for row in rows} == set(MEASURED)
    assert {row.request["model"] for row in rows} >= {"Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b", "Qwen/Qwen3-0.6B"}


def test_prompts_alone_are_scored_by_their_median_ttft() -> None:
    alone = [row for row in series4_rows() if row.request["output_tokens"] == 1]
    assert len(alone) == 8
    for row in alone:
        assert row.measured == {"ttft": (float(MEASURED[row.row_id]["p50_ttft_ms"]), "p50")}


def test_the_small_pool_is_that_of_the_engine() -> None:
    for row in SMALL_POOL:
        assert estimate(row.request)["memory"]["kv_blocks"] == 2500


@pytest.mark.parametrize("row", SMALL_POOL, ids=lambda row: row.row_id)
def test_preemptions_of_a_small_pool_are_those_of_the_engine(row: MeasuredRow) -> None:
    """Measured after the rule was built: 12 and 133 preemptions with prefix caching, 12 and 132 without."""
    perf = estimate(row.request)["perf"]
    assert perf["preemptions"] == pytest.approx(int(MEASURED[row.row_id]["preemptions"]), rel=0.05)
    assert perf["ttft_ms"]["mean"] == pytest.approx(row.measured["ttft"][0], rel=0.05)
    assert perf["output_tok_per_s"] == pytest.approx(row.measured["output_tok_per_s"][0], rel=0.05)


def test_runs_held_back_are_not_those_the_front_end_was_looked_at_with() -> None:
    stages = {row["run"]: row["stage"] for row in csv.DictReader(SERIES5.read_text(encoding="utf-8").splitlines())}
    held, seen = series5_rows(), series5_rows(held=False)
    assert {row.row_id for row in held} | {row.row_id for row in seen} == set(stages)
    assert all(stages[row.row_id].endswith("_held") for row in held)
    assert not any(stages[row.row_id].endswith("_held") for row in seen)
    assert {row.kind for row in held} == {"h200_series5"}

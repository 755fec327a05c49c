"""Measured rows through the public estimate contract: what was predicted, and how far off it is."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.accuracy.rows import MeasuredRow
from planner.estimate import estimate


@dataclass(frozen=True)
class Scored:
    """One row's prediction. ``ratio`` predicted / measured and ``inside`` the 80 % interval, by metric."""

    row: MeasuredRow
    status: str
    reason: str
    evidence: str
    region: str
    residuals_of: str
    predicted: dict[str, float]
    ratio: dict[str, float]
    inside: dict[str, bool]


def score(row: MeasuredRow) -> Scored:
    """Predict one row through the estimate contract."""
    answer = estimate(row.request)
    reason = "; ".join(answer["reasons"])
    if answer["status"] != "ok":
        return Scored(row, answer["status"], reason, "", "", "", {}, {}, {})
    perf = answer["perf"]
    predicted, ratio, inside = {}, {}, {}
    for metric, (value, stat) in row.measured.items():
        if metric == "output_tok_per_s":
            guess = perf["output_tok_per_s"]
            low, high = perf["interval80"]["output_tok_per_s"]
        else:
            if perf[f"{metric}_ms"] is None:
                continue
            guess = perf[f"{metric}_ms"][stat]
            middle = perf[f"{metric}_ms"]["p50"]
            low, high = (bound * guess / middle for bound in perf["interval80"][f"{metric}_ms"])
        predicted[metric] = guess
        ratio[metric] = guess / value
        inside[metric] = low <= value <= high
    where, whose = perf["load_region"], perf["residuals_of"]
    return Scored(row, "ok", reason, answer["evidence"], where, whose, predicted, ratio, inside)


def score_group(rows: Sequence[MeasuredRow]) -> list[Scored]:
    """Rows of one deployment, so that step tables are built once."""
    return [score(row) for row in rows]


def score_all(rows: Iterable[MeasuredRow], jobs: int) -> list[Scored]:
    """Score rows in ``jobs`` processes, grouped by deployment."""
    groups: dict[str, list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        parts = [row.request.get(k) for k in ("engine", "model", "gpu", "precision", "tp", "pp", "ep", "dp")]
        groups[json.dumps(parts)].append(row)
    ordered = [groups[key] for key in sorted(groups)]
    if jobs <= 1:
        return [scored for group in ordered for scored in score_group(group)]
    with ProcessPoolExecutor(jobs) as pool:
        return [scored for group in pool.map(score_group, ordered, chunksize=1) for scored in group]

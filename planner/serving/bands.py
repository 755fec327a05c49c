"""80 % intervals of predictions, from the residuals of the accuracy benchmark.

``data/residuals.json`` holds, by engine, evidence, metric and load region, the 10 % and 90 % quantiles of measured /
predicted over the benchmark's rows; ``python -m benchmarks accuracy latency --write-residuals`` writes it. Rows of runs
of which nothing is left to guess and rows whose source publishes the settings stand apart from those that hide them
(``StepModel.engine``, by ``planner.steptime.build.residuals_of``).
Where a group has too few rows those of its engine stand, then those of all engines. A calibrated step model carries its
own spread instead. Regions: ``light`` (mean batch below 8), ``medium`` (below 64), ``heavy``, ``saturated``, and
``offline`` for batches without a front end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from planner.evidence import Z80, Evidence, Interval
from planner.serving.types import SimResult
from planner.steptime.types import StepModel

METRICS = ("output_tok_per_s", "ttft", "tpot")
MIN_ROWS = 20
"""Fewer rows than this tell too little of a tenth: the wider entry for any region or any engine is used."""
_ANY = "any"
_LEVELS = (Evidence.SILICON, Evidence.EXTRAPOLATED, Evidence.ROOFLINE)
"""From stronger to weaker."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured / predicted at the 10 % and the 90 % quantile."""

    low: float
    high: float


Table = Mapping[tuple[str, str, str, str], tuple[int, Factors]]
"""(engine, evidence, metric, region) -> rows and their factors."""


@cache
def _table() -> Table:
    text = resources.files("planner.serving").joinpath("data/residuals.json").read_text(encoding="utf-8")
    return as_table(json.loads(text)["entries"])


def as_table(entries: Iterable[Mapping[str, Any]]) -> Table:
    """Entries of ``residuals.json`` by their key."""
    return {
        (entry["engine"], entry["evidence"], entry["metric"], entry["region"]): (
            entry["rows"],
            Factors(entry["q10"], entry["q90"]),
        )
        for entry in entries
    }


def quantiles(residuals: Sequence[float]) -> Factors:
    """The 10 % and the 90 % quantile, moved outwards by half their standard error: a few rows tell less of a tenth."""
    level = max(0.0, 0.1 - 0.5 * math.sqrt(0.1 * 0.9 / len(residuals)))
    low, high = np.quantile(np.asarray(residuals, dtype=np.float64), (level, 1.0 - level))
    return Factors(float(low), float(high))


def region(result: SimResult) -> str:
    """The load region of a simulated run."""
    if result.saturated or result.preemptions > 0.05 * result.completed:
        return "saturated"
    if result.mean_batch < 8:
        return "light"
    return "medium" if result.mean_batch < 64 else "heavy"


def calibrated_log_sd(step: StepModel, metric: str) -> float | None:
    """Spread of the probes that corrected ``step``; None without any.

    Probes correct step times, so they tell of TPOT and throughput; TTFT keeps the residuals of the operator data.
    """
    return None if metric == "ttft" else step.factors.get("calibration_log_sd")


def factors(
    evidence: Evidence,
    metric: str,
    where: str,
    residual_log_sd: float | None = None,
    *,
    engine: str = "",
    table: Table | None = None,
) -> Factors:
    """The factors for one prediction. ``residual_log_sd`` of a calibration replaces the table for its evidence.

    In order of preference: this group of runs in this region, this group anywhere, its engine in this region, its
    engine anywhere, all engines in this region, all engines. Never narrower than for stronger evidence, and near
    saturation never narrower than elsewhere, whatever few rows say. ``table`` other residuals than the shipped ones.
    """
    if residual_log_sd is not None:
        spread = Z80 * max(residual_log_sd, 0.01)
        return Factors(math.exp(-spread), math.exp(spread))
    level = Evidence.SILICON if evidence in (Evidence.MEASURED, Evidence.CALIBRATED) else evidence
    if level is Evidence.EMULATED:
        level = Evidence.ROOFLINE
    known = _table() if table is None else table
    regions = (where, "heavy", _ANY) if where == "saturated" else (where,)
    stronger = _LEVELS[: _LEVELS.index(level) + 1]
    return _envelope([_of(known, engine, each, metric, region) for each in stronger for region in regions])


def _of(table: Table, engine: str, level: Evidence, metric: str, where: str) -> Factors:
    """The factors of one evidence, from the first group with rows enough."""
    saturated = where == "saturated"
    for who in dict.fromkeys((engine, engine.partition(",")[0], _ANY)):
        found = _enough(table, who, level, metric, where)
        if found is not None:
            return found
        if (anywhere := _enough(table, who, level, metric, _ANY)) is not None and who != _ANY:
            return _doubled(anywhere) if saturated else anywhere
    anywhere = table[(_ANY, level.value, metric, _ANY)][1]
    return _doubled(anywhere) if saturated else anywhere


def _envelope(found: Sequence[Factors]) -> Factors:
    return Factors(min(by.low for by in found), max(by.high for by in found))


def _enough(table: Table, engine: str, level: Evidence, metric: str, where: str) -> Factors | None:
    found = table.get((engine, level.value, metric, where))
    return found[1] if found is not None and found[0] >= MIN_ROWS else None


def _doubled(by: Factors) -> Factors:
    """Near saturation without measurements: twice the spread."""
    return Factors(by.low**2, by.high**2)


def interval(value: float, by: Factors) -> Interval:
    """``value`` with its band. The value itself is inside even where the residuals lean to one side."""
    return Interval(value, value * min(by.low, 1.0), value * max(by.high, 1.0))

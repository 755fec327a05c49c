"""80 % intervals of predictions, from the residuals of the accuracy benchmark.

``data/residuals.json`` holds, by evidence, metric and load region, the 10 % and 90 % quantiles of measured / predicted
over the benchmark's rows; ``python -m benchmarks accuracy latency --write-residuals`` writes it. A calibrated step
model carries its own spread instead. Regions: ``light`` (mean batch below 8), ``medium`` (below 64), ``heavy``,
``saturated``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.evidence import Evidence, Interval
from planner.serving.types import SimResult

METRICS = ("output_tok_per_s", "ttft", "tpot")
MIN_ROWS = 20
"""Fewer rows than this tell too little of a tenth: the wider entry for any region is used."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured / predicted at the 10 % and the 90 % quantile."""

    low: float
    high: float


@cache
def _table() -> dict[tuple[str, str, str], tuple[int, Factors]]:
    text = resources.files("planner.serving").joinpath("data/residuals.json").read_text(encoding="utf-8")
    return {
        (entry["evidence"], entry["metric"], entry["region"]): (entry["rows"], Factors(entry["q10"], entry["q90"]))
        for entry in json.loads(text)["entries"]
    }


def region(result: SimResult) -> str:
    """The load region of a simulated run."""
    if result.saturated or result.preemptions > 0.05 * result.completed:
        return "saturated"
    if result.mean_batch < 8:
        return "light"
    return "medium" if result.mean_batch < 64 else "heavy"


def factors(evidence: Evidence, metric: str, where: str, residual_log_sd: float | None = None) -> Factors:
    """The factors for one prediction. ``residual_log_sd`` of a calibration replaces the table for its evidence."""
    if residual_log_sd is not None:
        spread = 1.2816 * max(residual_log_sd, 0.01)  # the normal quantile of 90 %
        return Factors(math.exp(-spread), math.exp(spread))
    level = Evidence.SILICON if evidence in (Evidence.MEASURED, Evidence.CALIBRATED) else evidence
    if level is Evidence.EMULATED:
        level = Evidence.ROOFLINE
    table = _table()
    found = table.get((level.value, metric, where))
    if found is not None and found[0] >= MIN_ROWS:
        return found[1]
    anywhere = table[(level.value, metric, "any")][1]
    if where == "saturated":  # no measurements there: twice the spread
        return Factors(anywhere.low**2, anywhere.high**2)
    return anywhere


def interval(value: float, by: Factors) -> Interval:
    """``value`` with its band. The value itself is inside even where the residuals lean to one side."""
    return Interval(value, value * min(by.low, 1.0), value * max(by.high, 1.0))

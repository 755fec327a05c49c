"""From the kernel's records to percentiles, goodput and occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from planner.serving import state as k
from planner.serving.types import F64, Distribution, Percentiles, Samples, SloTarget

_QUANTILES = (50.0, 90.0, 95.0, 99.0)


def percentiles(values: F64) -> Percentiles | None:
    """Mean and percentiles (linear interpolation, as the engines' own benchmark does); None without values."""
    if values.size == 0:
        return None
    p50, p90, p95, p99 = np.percentile(values, _QUANTILES)
    return Percentiles(float(values.mean()), float(p50), float(p90), float(p95), float(p99))


def histogram_percentiles(hist: np.ndarray) -> Percentiles | None:
    """Percentiles of the token gaps from the kernel's logarithmic histogram (bins 0.6 % wide)."""
    total = int(hist.sum())
    if total == 0:
        return None
    centre = _gap_centres(hist.size)
    cumulated = np.cumsum(hist)
    found = [float(centre[np.searchsorted(cumulated, q / 100.0 * total)]) for q in _QUANTILES]
    return Percentiles(float((centre * hist).sum() / total), *found)


def samples_of(ttft: F64, e2e: F64, tpot: F64 | None = None, gaps: np.ndarray | None = None) -> Samples:
    """The latencies of a run (ms); ``gaps`` is the kernel's histogram of token gaps."""
    return Samples(
        Distribution(ttft.copy()),
        Distribution(e2e.copy()),
        None if tpot is None else Distribution(tpot),
        None if gaps is None else Distribution(_gap_centres(gaps.size), gaps),
    )


@cache
def _gap_centres(bins: int) -> F64:
    return k.ITL_LOW_MS * np.exp((np.arange(bins) - 0.5) * k.ITL_LOG_STEP)


def tpot_ms(records: F64) -> F64:
    """(E2E - TTFT) / (n - 1) of every request with at least two output tokens."""
    many = records[:, k.R_OUTPUT] > 1
    kept = records[many]
    return (kept[:, k.R_E2E] - kept[:, k.R_TTFT]) / (kept[:, k.R_OUTPUT] - 1)


def meets_slo(records: F64, slo: Sequence[SloTarget]) -> np.ndarray:
    """Per request: does it meet every target by itself? The gap between tokens is judged by its mean, the TPOT."""
    ok = np.ones(records.shape[0], dtype=bool)
    tokens = np.maximum(records[:, k.R_OUTPUT] - 1, 1)
    tpot = (records[:, k.R_E2E] - records[:, k.R_TTFT]) / tokens
    for target in slo:
        value = {"ttft": records[:, k.R_TTFT], "tpot": tpot, "itl": tpot, "e2e": records[:, k.R_E2E]}[target.metric]
        ok &= value <= target.limit_ms
    return ok


def slo_ratio(
    slo: Sequence[SloTarget],
    ttft: Percentiles | None,
    tpot: Percentiles | None,
    itl: Percentiles | None,
    e2e: Percentiles | None,
) -> float:
    """Largest value / limit over the targets; at most 1 when the SLO is met. 0 without targets or values."""
    by_metric = {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
    ratios = [0.0]
    for target in slo:
        found = by_metric[target.metric]
        if found is not None:
            ratios.append(getattr(found, target.stat) / target.limit_ms)
    return max(ratios)

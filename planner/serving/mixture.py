"""Several services as one: requests dealt out to parts by fixed shares, their answers merged into one distribution.

A router that sends each request to part i with probability w_i makes the latency of a request a draw from part i's
distribution with that probability. The distribution of the whole is therefore the mixture sum(w_i F_i), and its
percentiles are read from it; no mean of percentiles is. Every quantile of a mixture lies between the smallest and the
largest of its parts' at the same level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import InputError
from planner.evidence import Interval, weakest
from planner.serving.types import F64, I64, Distribution, Percentiles, Performance, Samples

_LEVELS = (0.50, 0.90, 0.95, 0.99)


@dataclass(frozen=True)
class ServedPart:
    """One part of a whole: ``share`` of the requests (all add up to 1), what all its ``replicas`` do, and the latencies
    of its requests.
    """

    share: float
    replicas: int
    performance: Performance
    samples: Samples


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of a whole in milliseconds; None without a value in any part."""

    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None


def mixed_percentiles(parts: Sequence[tuple[float, Distribution | None]]) -> Percentiles | None:
    """Mean and percentiles of the mixture of ``parts`` (weight, distribution); weights need not add up to 1.

    Each part's distribution function is the one that numpy's linear percentiles invert, so a mixture of one part has
    that part's percentiles. None without values.
    """
    held = [(weight, part) for weight, part in parts if weight > 0 and part is not None and part.count > 0]
    if not held:
        return None
    total = sum(weight for weight, _ in held)
    sides = [(weight / total, *part.ascending()) for weight, part in held]
    points = np.unique(np.concatenate([values for _, values, _ in sides]))
    below, upto = np.zeros(points.size), np.zeros(points.size)
    for share, values, counts in sides:
        left, right = _levels(values, counts, points)
        below += share * left
        upto += share * right
    mean = sum(weight / total * part.mean for weight, part in held)
    levels = np.maximum.accumulate(np.column_stack([below, upto]).ravel())
    found = np.interp(_LEVELS, levels, np.repeat(points, 2))
    return Percentiles(mean, *(float(value) for value in found))


def _levels(values: F64, counts: I64, points: F64) -> tuple[F64, F64]:
    """The distribution function of ``values`` (ascending, each ``counts`` times) just below and at each of ``points``:
    0 at the least value, 1 at the largest, linear between neighbours.
    """
    ends = np.cumsum(counts)
    gaps = max(float(ends[-1]) - 1.0, 1.0)
    first, last = (ends - counts) / gaps, (ends - 1) / gaps
    if ends[-1] == 1:
        last = np.ones(1)
    at = np.searchsorted(values, points, side="right") - 1
    inside = np.clip(at, 0, values.size - 1)
    after = np.minimum(inside + 1, values.size - 1)
    width = np.where(after > inside, values[after] - values[inside], 1.0)
    way = np.where(after > inside, (points - values[inside]) / width, 0.0)
    right = np.where(at < 0, 0.0, last[inside] + way * (first[after] - last[inside]))
    right = np.where((after == inside) & (at >= 0), 1.0, right)
    exact = (at >= 0) & (values[inside] == points)
    return np.where(exact, first[inside], right), right


def mixed_latencies(parts: Sequence[tuple[float, Samples]]) -> Latencies:
    """Percentiles of the whole from (share of the requests, latencies) of its parts.

    A part whose requests have fewer values of a kind (no TPOT where the answer is one token) weighs less in it.
    """

    def of(kind: Callable[[Samples], Distribution | None]) -> Percentiles | None:
        weighed = []
        for share, samples in parts:
            values = kind(samples)
            count = 0.0 if values is None else float(values.count)
            weighed.append((share * count / max(float(samples.ttft_ms.count), 1.0), values))
        return mixed_percentiles(weighed)

    return Latencies(of(lambda s: s.ttft_ms), of(lambda s: s.tpot_ms), of(lambda s: s.itl_ms), of(lambda s: s.e2e_ms))


def mixed_performance(parts: Sequence[ServedPart]) -> Performance:
    """What the whole delivers: throughputs and goodput add up, latencies are those of the mixture.

    Bands are those of all parts at their low, and all at their high end at once, so never narrower than 80 % whether
    the errors of two parts go together or not. Evidence is the weakest. Batch, KV and utilisation are means over the
    replicas. Raises InputError without parts, or when shares do not add up to 1.
    """
    if not parts or abs(sum(part.share for part in parts) - 1.0) > 1e-6:
        raise InputError("must add up to 1", field="share", value=[part.share for part in parts])
    each = [part.performance for part in parts]
    found = mixed_latencies([(part.share, part.samples) for part in parts])
    replicas = float(sum(part.replicas for part in parts))

    def mean(of: Callable[[Performance], float]) -> float:
        return sum(of(part.performance) * part.replicas for part in parts) / replicas

    bands = [p.output_tok_per_s_80 for p in each]
    goodputs = [p.goodput_per_s for p in each if p.goodput_per_s is not None]
    prompts = [p.total_tok_per_s - p.output_tok_per_s for p in each]
    hits = sum(p.prefix_hit * tokens for p, tokens in zip(each, prompts, strict=True))
    return Performance(
        output_tok_per_s=sum(p.output_tok_per_s for p in each),
        total_tok_per_s=sum(p.total_tok_per_s for p in each),
        req_per_s=sum(p.req_per_s for p in each),
        ttft_ms=found.ttft_ms,
        tpot_ms=found.tpot_ms,
        e2e_ms=found.e2e_ms,
        output_tok_per_s_80=Interval(*(sum(getattr(b, end) for b in bands) for end in ("value", "low", "high"))),
        ttft_ms_80=_band(parts, found.ttft_ms, lambda s: s.ttft_ms, lambda p: p.ttft_ms_80),
        tpot_ms_80=_band(parts, found.tpot_ms, lambda s: s.tpot_ms, lambda p: p.tpot_ms_80),
        preemptions=sum(p.preemptions for p in each),
        kv_waste=mean(lambda p: p.kv_waste),
        mean_kv_used=mean(lambda p: p.mean_kv_used),
        mean_batch=mean(lambda p: p.mean_batch),
        utilisation=mean(lambda p: p.utilisation),
        goodput_per_s=sum(goodputs) if len(goodputs) == len(each) else None,
        saturated=any(p.saturated for p in each),
        evidence=weakest(p.evidence for p in each),
        prefix_hit=hits / sum(prompts) if sum(prompts) > 0 else 0.0,
        load_region=" and ".join(dict.fromkeys(p.load_region for p in each if p.load_region)),
        residuals_of=" and ".join(dict.fromkeys(p.residuals_of for p in each if p.residuals_of)),
    )


def _band(
    parts: Sequence[ServedPart],
    whole: Percentiles | None,
    values: Callable[[Samples], Distribution | None],
    band: Callable[[Performance], Interval | None],
) -> Interval | None:
    """The median of the whole, with every part's latencies at the low, and at the high end of its own band."""
    if whole is None:
        return None
    ends = []
    for end in ("low", "high"):
        moved = []
        for part in parts:
            here, known = values(part.samples), band(part.performance)
            if here is not None and known is not None and known.value > 0:
                here = here.scaled(getattr(known, end) / known.value)
            count = 0.0 if here is None else float(here.count)
            moved.append((part.share * count / max(float(part.samples.ttft_ms.count), 1.0), here))
        found = mixed_percentiles(moved)
        ends.append(whole.p50 if found is None else found.p50)
    return Interval(whole.p50, min(ends[0], whole.p50), max(ends[1], whole.p50))

"""Long open-loop runs in constant memory: requests are drawn, simulated and folded into histograms in chunks.

Percentiles come from logarithmic histograms (bins 0.2 % wide); means, counts and throughput are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.serving import state as k
from planner.serving.arrivals import RequestSet
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.metrics import histogram_percentiles, meets_slo, tpot_ms
from planner.serving.types import F64, Distribution, Percentiles, Samples, SimResult, SloTarget
from planner.steptime.types import StepModel

CHUNK = 65_536
LONG_RUN = 200_000
"""Runs of more requests than this are streamed."""

_LOW_MS = 0.01
_STEP = 0.002
_BINS = 14_000


class Folded:
    """A distribution: exact count and sum, percentiles to 0.2 %."""

    def __init__(self) -> None:
        self.bins = np.zeros(_BINS, dtype=np.int64)
        self.total = 0.0
        self.count = 0

    def add(self, values: F64) -> None:
        """Fold values (ms) in."""
        index = np.log(np.maximum(values, _LOW_MS) / _LOW_MS) / _STEP
        self.bins += np.bincount(np.minimum(index.astype(np.int64), _BINS - 1), minlength=_BINS)
        self.total += float(values.sum())
        self.count += values.size

    def distribution(self) -> Distribution:
        """Every value at the centre of its bin."""
        return Distribution(_LOW_MS * np.exp((np.arange(_BINS) + 0.5) * _STEP), self.bins)

    def percentiles(self) -> Percentiles | None:
        """Mean and percentiles; None without values."""
        if self.count == 0:
            return None
        centre = _LOW_MS * np.exp((np.arange(_BINS) + 0.5) * _STEP)
        cumulated = np.cumsum(self.bins)
        found = [float(centre[np.searchsorted(cumulated, q * self.count)]) for q in (0.5, 0.9, 0.95, 0.99)]
        return Percentiles(self.total / self.count, *found)


def run_stream(
    step: StepModel,
    rules: InstanceRules,
    chunks: Iterator[RequestSet],
    *,
    slo: Sequence[SloTarget] = (),
    instances: int = 1,
) -> SimResult:
    """Simulate the requests of ``chunks`` (open loop, ascending) on ``instances`` instances served in turn."""
    engines = [InstanceRun(step, rules, record_rows=CHUNK) for _ in range(instances)]
    ttft, tpot, e2e = Folded(), Folded(), Folded()
    medians: list[float] = []
    totals = np.zeros(5)  # completed, good, input tokens, output tokens, input tokens found cached
    first_ms, last_ms, turn, drawn = np.inf, 0.0, 0, 0

    def fold(engine: InstanceRun) -> None:
        nonlocal first_ms, last_ms
        records = engine.drain()
        if records.shape[0] == 0:
            return
        ttft.add(records[:, k.R_TTFT])
        tpot.add(tpot_ms(records))
        e2e.add(records[:, k.R_E2E])
        medians.append(float(np.median(records[:, k.R_TTFT])))
        good = float(meets_slo(records, slo).sum()) if slo else 0.0
        sums = (float(records[:, column].sum()) for column in (k.R_INPUT, k.R_OUTPUT, k.R_HIT))
        totals[:] += (records.shape[0], good, *sums)
        first_ms = min(first_ms, float(records[:, k.R_SEND].min()))
        last_ms = max(last_ms, float((records[:, k.R_SEND] + records[:, k.R_E2E]).max()))

    def finish(engine: InstanceRun, until_ms: float) -> None:
        while engine.run(until_ms) == k.RECORDS_FULL:
            fold(engine)

    for chunk in chunks:
        drawn += chunk.sent_ms.size
        for index, engine in enumerate(engines):
            pick = slice((index - turn) % instances, None, instances)
            if chunk.sent_ms[pick].size:
                engine.append(chunk.sent_ms[pick], chunk.inputs[pick], chunk.outputs[pick], chunk.hits[pick])
                # no further than the chunk is known
                finish(engine, float(chunk.sent_ms[-1]))
                fold(engine)
        turn = (turn + chunk.sent_ms.size) % instances
    for engine in engines:
        finish(engine, np.inf)
        fold(engine)
    duration_s = max((last_ms - first_ms) / 1000.0, 1e-9)
    floats = np.array([engine.floats for engine in engines])
    busy_ms = float(floats[:, k.F_BUSY_MS].sum())
    alloc = float(floats[:, k.F_ALLOC_MS].sum())
    live = float(floats[:, k.F_LIVE_MS].sum()) / rules.policy.block_tokens
    fifth = len(medians) // 5
    early = float(np.median(medians[fifth : 2 * fifth])) if fifth else 0.0
    late = float(np.median(medians[-fifth:])) if fifth else 0.0
    return SimResult(
        requests=drawn,
        completed=int(totals[0]),
        duration_s=duration_s,
        output_tok_per_s=float(totals[3]) / duration_s,
        total_tok_per_s=float(totals[2] + totals[3]) / duration_s,
        req_per_s=float(totals[0]) / duration_s,
        ttft_ms=ttft.percentiles(),
        tpot_ms=tpot.percentiles(),
        itl_ms=histogram_percentiles(np.sum([engine.itl_hist for engine in engines], axis=0)),
        e2e_ms=e2e.percentiles(),
        goodput_per_s=float(totals[1]) / duration_s if slo else None,
        preemptions=int(sum(engine.ints[k.I_PREEMPTIONS] for engine in engines)),
        utilisation=min(1.0, busy_ms / (duration_s * 1000.0 * instances)),
        mean_batch=float(floats[:, k.F_BATCH_MS].sum()) / max(busy_ms, 1e-9),
        mean_kv_used=min(1.0, alloc / max(busy_ms, 1e-9) / max(rules.pool_blocks, 1)),
        kv_waste=min(1.0, max(0.0, 1.0 - live / alloc)) if alloc > 0 else 0.0,
        steps=int(sum(engine.ints[k.I_STEPS] for engine in engines)),
        saturated=bool(fifth and late > 2.0 * early and late - early > 50.0 * duration_s),
        prefix_hit=float(totals[4] / totals[2]) if totals[2] else 0.0,
        samples=Samples(ttft.distribution(), e2e.distribution(), tpot.distribution()),
    )

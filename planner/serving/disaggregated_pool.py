"""One pool of a disaggregated unit: its instances under requests that come at given times, its rules and its stalls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.serving import state as k
from planner.serving.arrivals import RequestSet
from planner.serving.disaggregated_timeline import rows_for
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.types import F64, I64
from planner.steptime.types import StepModel

TICK_MS = 1e-6


def run_pool(
    step: StepModel,
    rules: InstanceRules,
    sent: F64,
    inputs: I64,
    outputs: I64,
    hits: I64,
    owner: I64,
    *,
    timeline: bool = False,
) -> tuple[F64, F64, list[InstanceRun]]:
    """One pool: TTFT and E2E of every request in its order, and the engines that ran."""
    ttft, e2e = np.empty(sent.size), np.empty(sent.size)
    engines = []
    for instance in range(int(owner.max()) + 1):
        own = np.flatnonzero(owner == instance)
        if own.size == 0:
            continue
        own = own[np.argsort(sent[own], kind="stable")]
        # strictly ascending, so that a record is found again by the time its request was sent
        times = np.maximum.accumulate(sent[own]) + np.arange(own.size) * TICK_MS
        part = RequestSet(
            sent_ms=times,
            inputs=inputs[own],
            outputs=outputs[own],
            hits=hits[own],
            closed=False,
            first_issued=own.size,
            think_ms=np.zeros(own.size),
        )
        engine = InstanceRun(step, rules, record_rows=own.size, timeline_rows=rows_for(own.size) if timeline else 0)
        engine.give(part)
        engine.run()
        records = engine.drain()
        records = records[np.argsort(records[:, k.R_SEND], kind="stable")]
        ttft[own], e2e[own] = records[:, k.R_TTFT], records[:, k.R_E2E]
        engines.append(engine)
    return ttft, e2e, engines


def with_stalls(step: StepModel, post_ms: float, outputs: float) -> StepModel:
    """``step`` of a worker that stands still for ``post_ms`` for each request that joins.

    With b sequences of ``outputs`` tokens, b / ``outputs`` of them join in a step.
    """
    t = step.tables
    stall = t.decode_batch[:, None] * (post_ms / max(outputs, 1.0))
    return replace(step, tables=replace(t, decode_ms=t.decode_ms + stall))


def holding(rules: InstanceRules, inputs: I64, outputs: I64 | None = None) -> InstanceRules:
    """``rules`` with the blocks of one prompt under way taken out of the pool, as far as the longest request allows."""
    block = rules.policy.block_tokens
    longest = inputs + (1 if outputs is None else outputs)
    needed = -(-int(longest.max()) // block)
    left = rules.pool_blocks - -(-int(inputs.mean()) // block)
    return replace(rules, pool_blocks=max(left, min(needed, rules.pool_blocks)))

"""Leaping over equal decode steps: while nobody arrives, ends or runs out of blocks they differ only by growth."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.compiling import part
from planner.serving.aggregates import add_itl, collect_finishing, first_is_stale, growth, heap_pop
from planner.serving.front_loop import pass_over_steps, sending_ms
from planner.serving.prefixcache import evict_units, take_blocks
from planner.serving.state import (
    F_ALLOC_MS,
    F_BATCH_MS,
    F_BUSY_MS,
    F_CUR_KV,
    F_CUR_MS,
    F_FRONT_DONE,
    F_HELD,
    F_KV_SUM,
    F_LIVE_MS,
    F_NOW,
    F_PLAN_KV,
    F_PLAN_MS,
    H_KEY,
    I_COUNTER,
    I_CUR_DECODES,
    I_CUR_GHOSTS,
    I_CUR_PREEMPTED,
    I_CUR_PROMPTS,
    I_FIN0,
    I_FREE,
    I_HEAP,
    I_ISSUED,
    I_LEAPT,
    I_NEXT,
    I_PLAN_DECODES,
    I_PLAN_GHOSTS,
    I_PLAN_PREEMPTED,
    I_PLAN_PROMPTS,
    I_PLAN_SIDE,
    I_PREEMPTED,
    I_SIDE,
    I_STEPS,
    P_BUDGET,
    P_LOOP,
    P_POOL,
    P_PP,
    P_RESERVE,
    P_UNIT,
    Q_CHUNK,
    Q_MERGE_BELOW,
    Q_TOKENS_PER_STEP,
    KernelState,
)
from planner.serving.step import iteration_ms

DECODE_KV_AXIS = 8
"""Where ``kernel_args`` holds the axis of mean KV lengths."""


@part
def can_leap(s: KernelState) -> bool:
    """Whether the current and the planned step are the same decodes and nothing else."""
    ints = s.ints
    return (
        ints[I_PLAN_PROMPTS] == 0
        and ints[I_CUR_PROMPTS] == 0
        and ints[I_PLAN_GHOSTS] == 0
        and ints[I_PLAN_PREEMPTED] == 0
        and ints[I_CUR_PREEMPTED] == 0
        and ints[I_CUR_GHOSTS] == 0
        and ints[I_FIN0 + ints[I_SIDE]] == 0
        and ints[I_FIN0 + ints[I_PLAN_SIDE]] == 0
        and ints[I_HEAP] > 0
        and ints[I_CUR_DECODES] == ints[I_PLAN_DECODES]
    )


@part
def leap(s: KernelState, tables: Any, until_ms: float) -> None:
    """Run as many equal steps at once as come before the next arrival, end, block shortage or ``until_ms``."""
    steps = equal_steps(s, tables[DECODE_KV_AXIS], until_ms)
    if steps <= 1:
        return
    pass_over(s, steps)
    s.floats[F_CUR_MS], s.floats[F_PLAN_MS] = decodes_ms(s, tables)


@part
def decodes_ms(s: KernelState, tables: Any) -> tuple[float, float]:
    """Times of the current and the planned step of a rank or instance that only decodes."""
    pp, budget = s.policy[P_PP], s.policy[P_BUDGET]
    now, after = float(s.ints[I_CUR_DECODES]), float(s.ints[I_PLAN_DECODES])
    return (
        iteration_ms(tables, pp, budget, 0.0, 0.0, 0.0, now, s.floats[F_CUR_KV]),
        iteration_ms(tables, pp, budget, 0.0, 0.0, 0.0, after, s.floats[F_PLAN_KV]),
    )


@part
def pass_over(s: KernelState, steps: int) -> None:
    """Account for ``steps`` equal steps, of which the first two last as long as the current and the planned one."""
    ints, floats = s.ints, s.floats
    now, decodes, counter = floats[F_NOW], ints[I_PLAN_DECODES], ints[I_COUNTER]
    gain = s.delays[Q_TOKENS_PER_STEP]
    first = floats[F_CUR_MS]
    slope = floats[F_PLAN_MS] - first
    total_ms = steps * first + 0.5 * slope * steps * (steps - 1)
    sending = s.delays[Q_CHUNK] * decodes
    behind = 0.0
    if s.policy[P_LOOP] != 0:
        pass_over_steps(s, steps, first, total_ms, decodes)
        behind = sending_ms(s, decodes)
    elif decodes > s.delays[Q_MERGE_BELOW]:
        # the backlog is largest where the steps are shortest: at either end of the leap
        behind = max(floats[F_FRONT_DONE], now + first) + steps * sending
        behind = max(behind, now + total_ms + sending)
        floats[F_FRONT_DONE] = behind
        behind = sending
    parts = 4 if steps >= 8 and slope * steps > 0.004 * first else 1
    done_steps = 0
    for quarter in range(parts):
        upto = steps * (quarter + 1) // parts
        middle = 0.5 * (done_steps + upto - 1)
        add_itl(s.itl_hist, max(first + slope * middle, behind), decodes * (upto - done_steps))
        done_steps = upto
    used0 = s.policy[P_POOL] - ints[I_FREE]
    grown = growth(s, decodes, counter, steps) if s.policy[P_RESERVE] == 0 else 0
    floats[F_BUSY_MS] += total_ms
    floats[F_BATCH_MS] += total_ms * decodes
    floats[F_ALLOC_MS] += total_ms * (used0 + 0.5 * grown)
    floats[F_LIVE_MS] += total_ms * (floats[F_KV_SUM] + floats[F_HELD] + 0.5 * gain * decodes * steps)
    take_blocks(s, grown)
    ints[I_COUNTER] = counter + steps
    ints[I_STEPS] += steps
    ints[I_LEAPT] += steps
    floats[F_KV_SUM] += gain * decodes * steps
    floats[F_NOW] = now + total_ms
    floats[F_CUR_KV] += gain * decodes * steps
    floats[F_PLAN_KV] = floats[F_KV_SUM]
    collect_finishing(s, ints[I_PLAN_SIDE], ints[I_COUNTER])
    if s.policy[P_UNIT] > 0:
        evict_units(s)


@part
def equal_steps(s: KernelState, kv_axis: np.ndarray, until_ms: float) -> int:
    """Steps until something changes: an end, a segment of the decode table, the last block, an arrival."""
    ints, floats = s.ints, s.floats
    while ints[I_HEAP] > 1 and first_is_stale(s):
        ints[I_HEAP] = heap_pop(s.heap, ints[I_HEAP])
    now, decodes, counter = floats[F_NOW], ints[I_PLAN_DECODES], ints[I_COUNTER]
    gain = s.delays[Q_TOKENS_PER_STEP]
    steps = s.heap[0, H_KEY] - counter
    mean = floats[F_CUR_KV] / decodes
    edge = np.inf
    for i in range(kv_axis.size):
        if kv_axis[i] > mean:
            edge = kv_axis[i]
            break
    if edge < np.inf and mean + gain * (steps - 1) > edge:
        steps = int((edge - mean) / gain) + 1
    if steps > 1 and s.policy[P_RESERVE] == 0:
        while steps > 1 and growth(s, decodes, counter, steps) > ints[I_FREE]:
            steps = steps // 2
    if steps <= 1:
        return steps
    limit_ms = until_ms
    if ints[I_NEXT] < ints[I_ISSUED] and ints[I_PREEMPTED] == 0 and s.visible[ints[I_NEXT]] > now:
        limit_ms = min(limit_ms, s.visible[ints[I_NEXT]])
    if limit_ms < np.inf:
        first = floats[F_CUR_MS]
        slope = floats[F_PLAN_MS] - first
        room = limit_ms - now
        if steps * first + 0.5 * slope * steps * (steps - 1) >= room:
            half = first - 0.5 * slope
            if slope > 1e-12:
                guess = (-half + np.sqrt(half * half + 2.0 * slope * room)) / slope
            else:
                guess = room / max(first, 1e-9)
            steps = min(steps, int(guess) + 1)
            while steps > 0 and steps * first + 0.5 * slope * steps * (steps - 1) >= room:
                steps -= 1
    return steps

"""The discrete-event kernel: one engine instance, iteration by iteration, compiled by numba.

State lives in flat arrays (``state.KernelState``), so that a run can stop (``until_ms``) and go on: long traces are fed
in chunks and a router can look at replicas between arrivals. Decoding sequences are kept as aggregates, so that a step
costs the same at any batch size and equal decode steps are leapt over. Times in milliseconds.

A step is planned while the one before runs (async scheduling), or after it. ``admission`` plans it by the rules of vLLM
V1's scheduler or TensorRT-LLM's in-flight batcher, ``leap`` jumps over equal ones, ``finish`` hands out the tokens,
and ``front_loop`` is what passes between a closed loop's clients and the engine.
"""

from __future__ import annotations

from typing import Any

from planner.compiling import compiled, part
from planner.serving.admission import plan_step
from planner.serving.finish import finish_step
from planner.serving.front_loop import is_quiet, run_loop, run_until_seen
from planner.serving.leap import can_leap, leap
from planner.serving.state import (
    F_CUR_KV,
    F_CUR_MS,
    F_CUR_NEW,
    F_HELD,
    F_KV_SUM,
    F_NEXT_SAMPLE,
    F_NOW,
    F_PLAN_KV,
    F_PLAN_MS,
    F_PLAN_NEW,
    F_PLAN_PAIRS,
    F_SAMPLE_MS,
    I_CUR_DECODES,
    I_CUR_GHOSTS,
    I_CUR_PREEMPTED,
    I_CUR_PROMPTS,
    I_DONE,
    I_FIN0,
    I_FREE,
    I_GHOSTS,
    I_ISSUED,
    I_NEXT,
    I_NOW_VALID,
    I_PLAN_DECODES,
    I_PLAN_GHOSTS,
    I_PLAN_PREEMPTED,
    I_PLAN_PROMPTS,
    I_PLAN_SIDE,
    I_PREEMPTED,
    I_RUNNING,
    I_SAMPLES,
    I_SIDE,
    L_ADMITTED,
    L_COUNT,
    L_LIVE,
    L_RUNNING,
    L_TIME,
    L_USED,
    OK,
    P_ASYNC,
    P_BUDGET,
    P_LOOP,
    P_MAX_SEQS,
    P_POOL,
    P_PP,
    RECORDS_FULL,
    STUCK,
    KernelState,
)
from planner.serving.step import iteration_ms


@compiled
def advance(s: KernelState, tables: Any, until_ms: float) -> int:
    """Run until ``until_ms``, or until nothing is left to do. Returns OK, STUCK or RECORDS_FULL.

    ``tables`` are ``planner.steptime.types.kernel_args``.

    The requests from ``ints[I_NEXT]`` to ``ints[I_ISSUED]`` wait or will arrive. In a closed loop the rest is issued as
    requests end, and the request arrays are written. One row of ``records`` per finished request.
    """
    ints, floats = s.ints, s.floats
    ahead = s.policy[P_ASYNC] != 0
    loop = s.policy[P_LOOP] != 0
    while True:
        if floats[F_NOW] >= until_ms:
            return OK
        if loop:
            run_loop(s, floats[F_NOW])
        if ints[I_DONE] + s.policy[P_MAX_SEQS] + 8 > s.records.shape[0]:
            return RECORDS_FULL
        if ints[I_NOW_VALID] == 0 and ints[I_RUNNING] == 0 and ints[I_PREEMPTED] == 0:
            if loop:
                run_until_seen(s)
            if ints[I_NEXT] >= ints[I_ISSUED]:
                sample_rest(s)
                return OK
            if s.visible[ints[I_NEXT]] > floats[F_NOW]:
                sample_rest(s)
                if s.visible[ints[I_NEXT]] >= until_ms:
                    floats[F_NOW] = until_ms
                    return OK
                floats[F_NOW] = s.visible[ints[I_NEXT]]
        if not plan_step(s):
            return STUCK
        planned = time_plan(s, tables)
        if ints[I_NOW_VALID] == 0:
            if not planned:
                return STUCK
            start(s)
            if ahead:
                continue
            planned = False
        if planned and ahead and can_leap(s) and (not loop or is_quiet(s)):
            leap(s, tables, until_ms)
        finish_step(s)
        if planned:
            start(s)
        else:
            ints[I_NOW_VALID] = 0


@part
def time_plan(s: KernelState, tables: Any) -> bool:
    """Time the planned step; False when it holds nothing."""
    ints, floats = s.ints, s.floats
    decodes, ghosts = ints[I_PLAN_DECODES], ints[I_PLAN_GHOSTS]
    batch = decodes + ghosts
    floats[F_PLAN_MS] = 0.0
    if batch == 0 and ints[I_PLAN_PROMPTS] == 0:
        return False
    ghost_kv = ghosts * (floats[F_PLAN_KV] / decodes if decodes > 0 else 1.0)
    floats[F_PLAN_MS] = iteration_ms(
        tables, s.policy[P_PP], s.policy[P_BUDGET], floats[F_PLAN_NEW], float(ints[I_PLAN_PROMPTS]),
        floats[F_PLAN_PAIRS], float(batch), floats[F_PLAN_KV] + ghost_kv,
    )  # fmt: skip
    return True


@part
def start(s: KernelState) -> None:
    """The planned step becomes the current one; a timeline gets its row when one is due."""
    ints, floats = s.ints, s.floats
    side = ints[I_PLAN_SIDE]
    ints[I_NOW_VALID] = 1
    ints[I_SIDE] = side
    ints[I_CUR_DECODES] = ints[I_PLAN_DECODES]
    ints[I_CUR_PROMPTS] = ints[I_PLAN_PROMPTS]
    ints[I_CUR_PREEMPTED] = ints[I_PLAN_PREEMPTED]
    ints[I_CUR_GHOSTS] = ints[I_PLAN_GHOSTS]
    ints[I_GHOSTS] = ints[I_FIN0 + side]
    floats[F_CUR_MS] = floats[F_PLAN_MS]
    floats[F_CUR_NEW] = floats[F_PLAN_NEW]
    floats[F_CUR_KV] = floats[F_PLAN_KV]
    if s.timeline.shape[0] > 0 and floats[F_NOW] >= floats[F_NEXT_SAMPLE]:
        sample(s)


@part
def sample(s: KernelState) -> None:
    """Add a row to the timeline; when it is full every other row goes and the interval doubles."""
    ints, floats = s.ints, s.floats
    count = ints[I_SAMPLES]
    if count == s.timeline.shape[0]:
        count //= 2
        for i in range(count):
            for c in range(L_COUNT):
                s.timeline[i, c] = s.timeline[2 * i, c]
        floats[F_SAMPLE_MS] *= 2.0
    s.timeline[count, L_TIME] = floats[F_NOW]
    s.timeline[count, L_RUNNING] = ints[I_RUNNING]
    s.timeline[count, L_ADMITTED] = ints[I_NEXT] - ints[I_PREEMPTED]
    s.timeline[count, L_USED] = s.policy[P_POOL] - ints[I_FREE]
    s.timeline[count, L_LIVE] = floats[F_KV_SUM] + floats[F_HELD]
    ints[I_SAMPLES] = count + 1
    floats[F_NEXT_SAMPLE] = floats[F_NOW] + floats[F_SAMPLE_MS]


@part
def sample_rest(s: KernelState) -> None:
    """Sample an engine that has run out of work, when its last row shows some: that would last through the pause."""
    count = s.ints[I_SAMPLES]
    if count > 0 and s.timeline[count - 1, L_RUNNING] > 0:
        sample(s)

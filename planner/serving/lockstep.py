"""Data-parallel ranks that step together: attention of each rank's own requests, experts shared by all of them.

No rank starts a step before every other has ended its own, since they exchange tokens in every expert layer: a step
lasts as long as the busiest rank's, and a rank without requests runs an empty one (vLLM's dummy batch). The prompt of
one rank holds up the decodes of all; the experts' share of its time is that of all ranks' tokens, not of as many on
each.

TensorRT-LLM can hold prompts back until every rank has one (``attention_dp_config.enable_balance``): prompts start when
all ranks have a prompt and a free slot, else at the latest at every ``timeout_iters``-th step since prompts last
started, or when a rank has nothing to decode (``PyExecutor._balance_adp_requests``, 1.1 and 1.2). The count runs on
while nobody waits. Without attention DP it can hold them back until a step has enough tokens
(``batch_wait_max_tokens_ratio``), for ``batch_wait_timeout_iters`` steps at most and while something decodes
(``PyExecutor._waiting_requests``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.compiling import compiled, part
from planner.serving import state as k
from planner.serving.admission import plan_step
from planner.serving.arrivals import RequestSet
from planner.serving.engine import InstanceRules, InstanceRun, stacked, stuck
from planner.serving.finish import finish_step
from planner.serving.kernel import sample_rest, start, time_plan
from planner.serving.leap import DECODE_KV_AXIS, can_leap, decodes_ms, equal_steps, pass_over
from planner.serving.routing import replica
from planner.serving.state import (
    F_CUR_MS,
    F_NEXT_SAMPLE,
    F_NOW,
    F_PLAN_KV,
    F_PLAN_MS,
    F_PLAN_NEW,
    F_PLAN_PAIRS,
    I_DECODING,
    I_FREE,
    I_ISSUED,
    I_NEXT,
    I_NOW_VALID,
    I_PARTIAL,
    I_PLAN_DECODES,
    I_PLAN_GHOSTS,
    I_PLAN_PROMPTS,
    I_PREEMPTED,
    I_RUNNING,
    OK,
    P_ASYNC,
    P_BLOCK,
    P_BUDGET,
    P_CHUNKED,
    P_MAX_SEQS,
    P_PP,
    P_SPEC,
    STUCK,
    KernelState,
)
from planner.serving.types import F64
from planner.steptime.kernel import host_floor_ms, interp1, step_ms
from planner.steptime.types import StepModel, kernel_args

SHARED_TOKENS, HOST = 0, slice(11, 15)
"""Where ``kernel_args`` holds the axis of ``shared_ms``, and captured sizes with the host's times."""


@dataclass(frozen=True)
class PromptHold:
    """What holds prompts back: up to ``rank_steps`` steps for prompts on every rank, up to ``batch_steps`` steps until
    a step has ``batch_tokens`` tokens (one rank only). 0: nothing.
    """

    rank_steps: int = 0
    batch_steps: int = 0
    batch_tokens: float = 0.0


FREELY = PromptHold()


def run_ranks(
    step: StepModel,
    rules: InstanceRules,
    parts: Sequence[RequestSet],
    *,
    hold: PromptHold = FREELY,
    timeline_rows: int = 0,
) -> tuple[list[InstanceRun], F64]:
    """Run one instance whose rank i serves ``parts[i]``; the ranks and the records of all requests.

    ``timeline_rows`` of the first rank. Raises InfeasibleError when a request can never be served.
    """
    most = max(part.size for part in parts)
    engines = []
    for index, requests in enumerate(parts):
        engine = InstanceRun(step, rules, record_rows=most, timeline_rows=timeline_rows)
        engine.give(requests, alone=False)
        engine.widen(most)
        if index > 0:
            engine.floats[F_NEXT_SAMPLE] = np.inf
        engines.append(engine)
    stack = stacked(engines)
    bare = kernel_args(replace(step.tables, host_ms=0.0, host_ms_per_sequence=0.0, launch_ms=0.0))
    planned = np.zeros(len(engines), dtype=np.int64)
    batch_steps = hold.batch_steps if len(parts) == 1 else 0
    holds = (hold.rank_steps, batch_steps, hold.batch_tokens)
    if advance_ranks(stack, engines[0].tables, bare, step.tables.experts_ms, holds, planned) == STUCK:
        raise stuck(rules)
    for index, engine in enumerate(engines):
        engine.take_state(stack, index)
    done = stack.ints[:, k.I_DONE]
    return engines, np.concatenate([stack.records[index, : done[index]] for index in range(len(engines))])


@compiled
def advance_ranks(
    stack: KernelState,
    tables: Any,
    bare: Any,
    experts_ms: np.ndarray,
    holds: tuple[int, int, float],
    planned: np.ndarray,
) -> int:
    """Run all ranks to the end. Returns OK or STUCK.

    ``stack`` holds the arrays of the ranks, one behind the other, with room for all records; ``bare`` are ``tables``
    without the host's time, ``experts_ms`` those of ``StepTables``; ``holds`` the fields of a ``PromptHold``;
    ``planned`` room for one number a rank.
    ``kernel.advance`` is the same loop for one rank that steps alone.
    """
    ranks = stack.ints.shape[0]
    ahead = stack.policy[0, P_ASYNC] != 0
    budget = stack.policy[0, P_BUDGET]
    wait_steps, batch_steps, batch_tokens = holds
    clock, waited, held = 0.0, 0, 0
    while True:
        running, next_ms = _under_way(stack)
        if not running and next_ms > clock:
            for r in range(ranks):
                stack.floats[r, F_NOW] = clock
                sample_rest(replica(stack, r))
            if next_ms == np.inf:
                return OK
            clock = next_ms
        free = wait_steps <= 0 or _all_have_prompts(stack, clock)
        waited = 0 if free else waited + 1
        if not free and (waited >= wait_steps or not _all_decode(stack)):
            free, waited = True, 0
        if batch_steps > 0:
            tokens = _tokens_at_hand(replica(stack, 0), clock)
            if tokens > 0.0:
                free = held >= batch_steps or tokens >= batch_tokens
                held = 0 if free else held + 1
        idle_until = np.inf
        for r in range(ranks):
            s = replica(stack, r)
            s.floats[F_NOW] = clock
            planned[r] = 0
            if _idle(s, clock):
                sample_rest(s)
                if s.ints[I_NEXT] < s.ints[I_ISSUED]:
                    idle_until = min(idle_until, s.visible[s.ints[I_NEXT]])
                continue
            s.policy[P_BUDGET] = budget if free else 0
            fits = plan_step(s)
            s.policy[P_BUDGET] = budget
            if not fits:
                return STUCK
            planned[r] = time_plan(s, tables)
        longest = _longest(stack, tables, bare, experts_ms, planned)
        for r in range(ranks):
            stack.floats[r, F_PLAN_MS] = longest
        if not running:
            if longest <= 0.0:
                return STUCK
            _start_planned(stack, planned)
            if ahead:
                continue
            planned[:] = 0
        elif ahead and _can_leap(stack, planned):
            counts = wait_steps > 0 and _all_decode(stack)
            most = wait_steps - 1 - waited if counts and _any_waits(stack, clock) else 1 << 40
            if not free and batch_steps > 0:
                most = batch_steps - held
                idle_until = min(idle_until, _next_arrival(replica(stack, 0), clock))
            leapt = _leap(stack, tables, idle_until, most)
            held += leapt if batch_steps > 0 and not free else 0
            waited = (waited + leapt) % wait_steps if counts else 0
        for r in range(ranks):
            if stack.ints[r, I_NOW_VALID] != 0:
                s = replica(stack, r)
                finish_step(s)
                clock = s.floats[F_NOW]
        _start_planned(stack, planned)


@part
def _under_way(stack: KernelState) -> tuple[bool, float]:
    """Whether any rank runs a step, and when the next one can be planned: -inf with requests at hand."""
    running, next_ms = False, np.inf
    for r in range(stack.ints.shape[0]):
        ints = stack.ints[r]
        running = running or ints[I_NOW_VALID] != 0
        if ints[I_RUNNING] > 0 or ints[I_PREEMPTED] > 0:
            next_ms = -np.inf
        elif ints[I_NEXT] < ints[I_ISSUED]:
            next_ms = min(next_ms, stack.visible[r, ints[I_NEXT]])
    return running, next_ms


@part
def _idle(s: KernelState, clock: float) -> bool:
    """Whether a rank has nothing to run or to admit."""
    ints = s.ints
    if ints[I_NOW_VALID] != 0 or ints[I_RUNNING] > 0 or ints[I_PREEMPTED] > 0:
        return False
    return ints[I_NEXT] >= ints[I_ISSUED] or s.visible[ints[I_NEXT]] > clock


@part
def _all_have_prompts(stack: KernelState, clock: float) -> bool:
    """Whether every rank has a prompt that could start now, and a slot for it."""
    for r in range(stack.ints.shape[0]):
        ints = stack.ints[r]
        if ints[I_DECODING] >= stack.policy[r, P_MAX_SEQS]:
            return False
        if ints[I_PARTIAL] >= 0 or ints[I_PREEMPTED] > 0:
            continue
        head = ints[I_NEXT]
        if head >= ints[I_ISSUED] or stack.visible[r, head] > clock:
            return False
        prompt = stack.inputs[r, head]
        blocks = -(-(prompt + stack.outputs[r, head]) // stack.policy[r, P_BLOCK])
        if ints[I_RUNNING] >= stack.policy[r, P_MAX_SEQS] or blocks > ints[I_FREE]:
            return False
        left = stack.policy[r, P_BUDGET] - ints[I_DECODING] * (1 + stack.policy[r, P_SPEC])
        if left < (1 if stack.policy[r, P_CHUNKED] != 0 else prompt):
            return False
    return True


@part
def _tokens_at_hand(s: KernelState, clock: float) -> float:
    """Tokens that a step could hold now, decodes and waiting prompts; 0 where there are not both."""
    ints = s.ints
    decodes = ints[I_DECODING] * (1 + s.policy[P_SPEC])
    head, seats, blocks = ints[I_NEXT], s.policy[P_MAX_SEQS] - ints[I_RUNNING], ints[I_FREE]
    left = s.policy[P_BUDGET] - decodes
    prompts = 0
    while head < ints[I_ISSUED] and s.visible[head] <= clock and seats > 0:
        need = -(-(s.inputs[head] + s.outputs[head]) // s.policy[P_BLOCK])
        if need > blocks or s.inputs[head] > left:
            break
        prompts += s.inputs[head]
        head, seats, blocks, left = head + 1, seats - 1, blocks - need, left - s.inputs[head]
    return float(prompts + decodes) if prompts > 0 and decodes > 0 else 0.0


@part
def _next_arrival(s: KernelState, clock: float) -> float:
    """When the next request joins those that wait; infinity when none is on its way."""
    at = s.ints[I_NEXT]
    while at < s.ints[I_ISSUED] and s.visible[at] <= clock:
        at += 1
    return s.visible[at] if at < s.ints[I_ISSUED] else np.inf


@part
def _any_waits(stack: KernelState, clock: float) -> bool:
    """Whether a prompt waits on any rank."""
    waits = False
    for r in range(stack.ints.shape[0]):
        ints = stack.ints[r]
        seen = ints[I_NEXT] < ints[I_ISSUED] and stack.visible[r, ints[I_NEXT]] <= clock
        waits = waits or seen or ints[I_PARTIAL] >= 0 or ints[I_PREEMPTED] > 0
    return waits


@part
def _all_decode(stack: KernelState) -> bool:
    least = stack.ints[0, I_DECODING]
    for r in range(stack.ints.shape[0]):
        least = min(least, stack.ints[r, I_DECODING])
    return least > 0


@part
def _longest(stack: KernelState, tables: Any, bare: Any, experts_ms: np.ndarray, planned: np.ndarray) -> float:
    """Time of the step that the ranks planned together.

    Pure decode steps are padded to the largest batch on every rank. With prompts the experts run the tokens that there
    are; everything else is the busiest rank's.
    """
    longest, tokens, prompts = 0.0, 0.0, 0.0
    ranks = stack.ints.shape[0]
    for r in range(ranks):
        if planned[r] != 0:
            longest = max(longest, stack.floats[r, F_PLAN_MS])
            tokens += _tokens(stack, r) / ranks
            prompts += stack.floats[r, F_PLAN_NEW]
    if prompts <= 0.0 or experts_ms.size == 0 or stack.policy[0, P_PP] > 1:
        return longest
    own, host = 0.0, 0.0
    for r in range(ranks):
        if planned[r] == 0:
            continue
        ints, floats = stack.ints[r], stack.floats[r]
        batch = float(ints[I_PLAN_DECODES] + ints[I_PLAN_GHOSTS])
        new, count = floats[F_PLAN_NEW], float(ints[I_PLAN_PROMPTS])
        kv = floats[F_PLAN_KV] * batch / max(1.0, float(ints[I_PLAN_DECODES]))
        alone = step_ms(*bare, new, count, floats[F_PLAN_PAIRS], batch, kv)  # type: ignore[call-arg]
        own = max(own, alone - interp1(tables[SHARED_TOKENS], experts_ms, _tokens(stack, r)))
        host = max(host, host_floor_ms(*tables[HOST], new, count, batch))  # type: ignore[call-arg]
    return max(own + interp1(tables[SHARED_TOKENS], experts_ms, tokens), host)


@part
def _tokens(stack: KernelState, r: int) -> float:
    """Tokens of the planned step of rank ``r``."""
    ints = stack.ints[r]
    return stack.floats[r, F_PLAN_NEW] + float(ints[I_PLAN_DECODES] + ints[I_PLAN_GHOSTS])


@part
def _start_planned(stack: KernelState, planned: np.ndarray) -> None:
    """What was planned becomes the current step of its rank."""
    for r in range(stack.ints.shape[0]):
        if planned[r] != 0:
            start(replica(stack, r))
        else:
            stack.ints[r, I_NOW_VALID] = 0


@part
def _can_leap(stack: KernelState, planned: np.ndarray) -> bool:
    """Whether every rank that runs repeats its decodes, and none joins."""
    for r in range(stack.ints.shape[0]):
        if (stack.ints[r, I_NOW_VALID] != 0) != (planned[r] != 0):
            return False
        if planned[r] != 0 and not can_leap(replica(stack, r)):
            return False
    return True


@part
def _leap(stack: KernelState, tables: Any, until_ms: float, most: int) -> int:
    """Run as many equal steps of all ranks at once as each of them could, while one rank stays the busiest.

    ``most`` at most. Returns how many.
    """
    ranks = stack.ints.shape[0]
    steps = most
    first, slope = 0.0, 0.0
    for r in range(ranks):
        if stack.ints[r, I_NOW_VALID] == 0:
            continue
        s = replica(stack, r)
        steps = min(steps, equal_steps(s, tables[DECODE_KV_AXIS], until_ms))
        now, after = decodes_ms(s, tables)
        if now > first or (now == first and after - now > slope):
            first, slope = now, after - now
    for r in range(ranks):
        if stack.ints[r, I_NOW_VALID] != 0:
            now, after = decodes_ms(replica(stack, r), tables)
            if after - now > slope:
                steps = min(steps, int((first - now) / (after - now - slope)) + 1)
    if steps <= 1:
        return 0
    first, planned = 0.0, 0.0
    for r in range(ranks):
        if stack.ints[r, I_NOW_VALID] != 0:
            s = replica(stack, r)
            pass_over(s, steps)
            now, after = decodes_ms(s, tables)
            first, planned = max(first, now), max(planned, after)
    for r in range(ranks):
        stack.floats[r, F_CUR_MS] = first
        stack.floats[r, F_PLAN_MS] = planned
    return steps

"""Planning one step: room for the running sequences, the prompt under way, and who is admitted from the queue.

vLLM V1: running first in order of admission, a token budget, chunked prefill, head-of-line blocking of the waiting
queue, full-sequence admission since 0.19, preemption of the last admitted, who recomputes what the prefix cache lost.
TensorRT-LLM's in-flight batcher: whole prompts, reservation of the full output, an extra step of a finished request
under the overlap scheduler.
"""

from __future__ import annotations

from planner.compiling import part
from planner.serving.aggregates import collect_finishing, preempt, start_decode
from planner.serving.prefixcache import (
    cached_units,
    evict_units,
    fill_units,
    left_blocks,
    take_blocks,
    take_units,
    units_in_use,
)
from planner.serving.state import (
    DECODE,
    F_HELD,
    F_KV_SUM,
    F_NOW,
    F_PLAN_KV,
    F_PLAN_NEW,
    F_PLAN_PAIRS,
    FREE,
    I_COUNTER,
    I_DECODING,
    I_FIN0,
    I_FIRST0,
    I_FREE,
    I_FREE_SLOTS,
    I_GHOSTS,
    I_ISSUED,
    I_NEXT,
    I_NOW_VALID,
    I_ORDER,
    I_PARTIAL,
    I_PLAN_DECODES,
    I_PLAN_GHOSTS,
    I_PLAN_PREEMPTED,
    I_PLAN_PROMPTS,
    I_PLAN_SIDE,
    I_PREEMPTED,
    I_RUNNING,
    I_SEQ,
    I_SIDE,
    M_FREE,
    M_PREEMPTED,
    P_BLOCK,
    P_BUDGET,
    P_CACHED_IN_BUDGET,
    P_CHUNK_MULTIPLE,
    P_CHUNKED,
    P_FULL_SEQUENCE,
    P_GHOST,
    P_MAX_SEQS,
    P_PERIOD,
    P_PP,
    P_RESERVE,
    P_SPEC,
    P_UNIT,
    P_UNIT_BLOCKS,
    P_WATERMARK,
    PREFILL,
    Q_TOKENS_PER_STEP,
    S_BLOCKS,
    S_COMPUTED,
    S_GENERATED,
    S_HIT,
    S_ID,
    S_INPUT,
    S_OUTPUT,
    S_REQUEST,
    S_SEQ,
    S_STATE,
    T_FIRST,
    T_SEND,
    KernelState,
)


@part
def plan_step(s: KernelState) -> bool:
    """Plan one step at ``floats[F_NOW]``; what it holds is left in the plan's slots. False when STUCK."""
    ints, floats = s.ints, s.floats
    side = 1 - ints[I_SIDE] if ints[I_NOW_VALID] != 0 else ints[I_SIDE]
    ints[I_PLAN_SIDE] = side
    ints[I_FIN0 + side] = 0
    ints[I_FIRST0 + side] = 0
    ints[I_PLAN_GHOSTS] = ints[I_GHOSTS] if s.policy[P_GHOST] != 0 else 0
    ints[I_GHOSTS] = 0
    ints[I_PLAN_PREEMPTED] = 0
    ints[I_PLAN_PROMPTS] = 0
    floats[F_PLAN_NEW] = 0.0
    floats[F_PLAN_PAIRS] = 0.0
    if s.policy[P_RESERVE] == 0 and ints[I_DECODING] > 0 and not _make_room(s):
        return False
    decodes = ints[I_DECODING]
    ints[I_COUNTER] += 1
    if decodes > 0:
        if s.policy[P_RESERVE] == 0:
            take_blocks(s, s.residues[ints[I_COUNTER] % s.policy[P_PERIOD]])
        floats[F_KV_SUM] += s.delays[Q_TOKENS_PER_STEP] * decodes
    ints[I_PLAN_DECODES] = decodes
    floats[F_PLAN_KV] = floats[F_KV_SUM]
    budget = s.policy[P_PP] * s.policy[P_BUDGET] - decodes * (1 + s.policy[P_SPEC])
    if ints[I_PARTIAL] >= 0 and budget > 0:
        budget = _continue_prompt(s, side, budget)
    if ints[I_PLAN_PREEMPTED] == 0 and ints[I_PARTIAL] < 0:
        _admit(s, side, budget)
    collect_finishing(s, side, ints[I_COUNTER])
    if s.policy[P_UNIT] > 0:
        evict_units(s)
    return True


@part
def _make_room(s: KernelState) -> bool:
    """Preempt, the last admitted first, until the decoding sequences' next blocks fit. False when nobody is left."""
    ints = s.ints
    counter = ints[I_COUNTER] + 1
    while s.residues[counter % s.policy[P_PERIOD]] > ints[I_FREE]:
        top = ints[I_ORDER] - 1
        victim = -1
        while top >= 0:
            slot = s.order[top, 0]
            if s.slots[slot, S_SEQ] == s.order[top, 1] and (
                s.slots[slot, S_STATE] == DECODE or s.slots[slot, S_STATE] == PREFILL
            ):
                victim = slot
                break
            top -= 1
        if victim < 0:
            return False
        _drop_order(s, top)
        preempt(s, victim)
        ints[I_PLAN_PREEMPTED] += 1
    return True


@part
def _drop_order(s: KernelState, at: int) -> None:
    for i in range(at, s.ints[I_ORDER] - 1):
        s.order[i, 0] = s.order[i + 1, 0]
        s.order[i, 1] = s.order[i + 1, 1]
    s.ints[I_ORDER] -= 1


@part
def _compute(s: KernelState, done: int, chunk: int) -> None:
    """Count ``chunk`` prompt tokens behind ``done`` others of the same prompt."""
    end = done + chunk
    s.floats[F_PLAN_PAIRS] += 0.5 * (float(end) * (end + 1) - float(done) * (done + 1))
    s.floats[F_PLAN_NEW] += chunk
    s.ints[I_PLAN_PROMPTS] += 1


@part
def _continue_prompt(s: KernelState, side: int, budget: int) -> int:
    """Another chunk of the prompt under way, or its preemption for want of blocks. Returns the budget left."""
    ints, slots = s.ints, s.slots
    partial = ints[I_PARTIAL]
    length = slots[partial, S_INPUT] + slots[partial, S_GENERATED]
    done = slots[partial, S_COMPUTED]
    chunk = min(length - done, budget)
    if chunk < length - done:
        chunk -= chunk % s.policy[P_CHUNK_MULTIPLE]
    if chunk <= 0:
        return budget
    need = 0
    if s.policy[P_RESERVE] == 0:
        need = max(0, -(-(done + chunk) // s.policy[P_BLOCK]) - slots[partial, S_BLOCKS])
    if need > ints[I_FREE]:
        for i in range(ints[I_ORDER] - 1, -1, -1):
            if s.order[i, 0] == partial and s.order[i, 1] == slots[partial, S_SEQ]:
                _drop_order(s, i)
                break
        preempt(s, partial)
        ints[I_PLAN_PREEMPTED] += 1
        return budget
    slots[partial, S_BLOCKS] += need
    take_blocks(s, need)
    _compute(s, done, chunk)
    slots[partial, S_COMPUTED] = done + chunk
    if s.policy[P_UNIT] > 0:
        fill_units(s, partial, done + chunk)
    s.floats[F_HELD] += chunk
    if done + chunk == length:
        ints[I_PARTIAL] = -1
        s.floats[F_HELD] -= length
        start_decode(s, partial, side)
    return budget - chunk


@part
def _admit(s: KernelState, side: int, budget: int) -> None:
    """Admit preempted and then waiting requests in order, until the first that does not fit."""
    ints, slots = s.ints, s.slots
    block = s.policy[P_BLOCK]
    reserve = s.policy[P_RESERVE] != 0
    while budget > 0 and ints[I_RUNNING] < s.policy[P_MAX_SEQS]:
        resumed = ints[I_PREEMPTED] > 0
        slot, own = -1, 0
        head = ints[I_NEXT]
        if resumed:
            slot = s.lists[M_PREEMPTED, ints[I_PREEMPTED] - 1]
            length = slots[slot, S_INPUT] + slots[slot, S_GENERATED]
            total = slots[slot, S_INPUT] + slots[slot, S_OUTPUT]
            own = left_blocks(s, slot)
            hit = own * block
        elif head < ints[I_ISSUED] and s.visible[head] <= s.floats[F_NOW]:
            length = s.inputs[head]
            total = length + s.outputs[head]
            hit = s.hits[head]
        else:
            break
        units, shared = 0, 0
        if s.policy[P_UNIT] > 0:
            request = slots[slot, S_ID] if resumed else s.ids[head]
            units = cached_units(s, request, length - 1)
            hit = units * s.policy[P_UNIT]
            shared = units_in_use(s, request, units) * s.policy[P_UNIT_BLOCKS]
        left = length - hit
        counted = length if s.policy[P_CACHED_IN_BUDGET] != 0 else left
        if s.policy[P_CHUNKED] != 0:
            chunk = min(left, budget)
            if chunk < left:
                chunk -= chunk % s.policy[P_CHUNK_MULTIPLE]
                if chunk == 0:
                    break
            counted = chunk
        else:
            if counted > budget:
                break
            chunk = left
        need = -(-(hit + chunk) // block)
        if reserve:
            need = -(-total // block)
        asked = need
        if s.policy[P_FULL_SEQUENCE] != 0:
            asked = max(need, -(-length // block))
        if ints[I_RUNNING] > 0 and not reserve:
            asked += s.policy[P_WATERMARK]
        if asked - shared > ints[I_FREE]:
            break
        if resumed:
            ints[I_PREEMPTED] -= 1
        else:
            slot = _seat(s, head, hit)
        ints[I_SEQ] += 1
        slots[slot, S_SEQ] = ints[I_SEQ]
        slots[slot, S_BLOCKS] = need
        slots[slot, S_STATE] = PREFILL
        take_blocks(s, need - shared - own)
        ints[I_FREE] -= own
        ints[I_RUNNING] += 1
        if s.policy[P_UNIT] > 0:
            take_units(s, slot, units)
            fill_units(s, slot, hit + chunk)
            evict_units(s)
        _enter_order(s, slot)
        _compute(s, hit, chunk)
        budget -= counted
        slots[slot, S_COMPUTED] = hit + chunk
        if hit + chunk == length:
            start_decode(s, slot, side)
        else:
            ints[I_PARTIAL] = slot
            s.floats[F_HELD] += hit + chunk
            break


@part
def _seat(s: KernelState, head: int, hit: int) -> int:
    """Give the request at the head of the queue a free slot."""
    s.ints[I_FREE_SLOTS] -= 1
    slot = s.lists[M_FREE, s.ints[I_FREE_SLOTS]]
    s.slots[slot, S_INPUT] = s.inputs[head]
    s.slots[slot, S_OUTPUT] = s.outputs[head]
    s.slots[slot, S_GENERATED] = 0
    s.slots[slot, S_HIT] = hit
    s.slots[slot, S_ID] = s.ids[head] if s.ids.size > 0 else -1
    s.slots[slot, S_REQUEST] = head
    s.times[slot, T_SEND] = s.sent[head]
    s.times[slot, T_FIRST] = -1.0
    s.ints[I_NEXT] = head + 1
    return slot


@part
def _enter_order(s: KernelState, slot: int) -> None:
    """Put ``slot`` last in the order of admission; entries of those that ended are dropped when it is full."""
    ints = s.ints
    if ints[I_ORDER] == s.order.shape[0]:
        kept = 0
        for i in range(ints[I_ORDER]):
            if s.slots[s.order[i, 0], S_SEQ] == s.order[i, 1] and s.slots[s.order[i, 0], S_STATE] != FREE:
                s.order[kept, 0] = s.order[i, 0]
                s.order[kept, 1] = s.order[i, 1]
                kept += 1
        ints[I_ORDER] = kept
    s.order[ints[I_ORDER], 0] = slot
    s.order[ints[I_ORDER], 1] = ints[I_SEQ]
    ints[I_ORDER] += 1

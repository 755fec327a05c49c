"""Decoding sequences as aggregates, and how a sequence enters and leaves them.

Held are their number, the sum of their KV lengths, how many cross a block boundary at each residue of the step counter,
and a heap of the counters at which they end.
"""

from __future__ import annotations

import numpy as np

from planner.compiling import part
from planner.serving.prefixcache import give_blocks, leave_units
from planner.serving.state import (
    DECODE,
    F_CUR_MS,
    F_HELD,
    F_KV_SUM,
    F_NOW,
    FINISHING,
    H_COUNT,
    H_KEY,
    H_SEQ,
    H_SLOT,
    I_COUNTER,
    I_DECODING,
    I_FIN0,
    I_FIRST0,
    I_HEAP,
    I_NOW_VALID,
    I_PARTIAL,
    I_PREEMPTED,
    I_PREEMPTIONS,
    I_RUNNING,
    ITL_BINS,
    ITL_LOG_STEP,
    ITL_LOW_MS,
    M_FINISHING,
    M_FIRSTS,
    M_PREEMPTED,
    P_BLOCK,
    P_PERIOD,
    P_RESERVE,
    P_UNIT,
    PREEMPTED,
    Q_TOKENS_PER_STEP,
    S_BLOCKS,
    S_COMPUTED,
    S_GENERATED,
    S_INPUT,
    S_OUTPUT,
    S_PHASE,
    S_SEQ,
    S_START,
    S_STATE,
    T_HELD,
    T_LAST,
    KernelState,
)


@part
def add_itl(hist: np.ndarray, gap_ms: float, weight: int) -> None:
    """Count ``weight`` token gaps of ``gap_ms``."""
    index = 0
    if gap_ms > ITL_LOW_MS:
        index = min(ITL_BINS - 1, int(np.log(gap_ms / ITL_LOW_MS) / ITL_LOG_STEP) + 1)
    hist[index] += weight


@part
def heap_push(heap: np.ndarray, size: int, key: int, slot: int, seq: int) -> int:
    """Add a row to the binary heap; returns the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent, H_KEY] <= key:
            break
        _move(heap, parent, i)
        i = parent
    heap[i, H_KEY] = key
    heap[i, H_SLOT] = slot
    heap[i, H_SEQ] = seq
    return size + 1


@part
def heap_pop(heap: np.ndarray, size: int) -> int:
    """Drop the row of the smallest key; returns the new size."""
    size -= 1
    key = heap[size, H_KEY]
    last = size
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1, H_KEY] < heap[child, H_KEY]:
            child += 1
        if heap[child, H_KEY] >= key:
            break
        _move(heap, child, i)
        i = child
    _move(heap, last, i)
    return size


@part
def _move(heap: np.ndarray, source: int, target: int) -> None:
    for column in range(H_COUNT):
        heap[target, column] = heap[source, column]


@part
def heap_compact(s: KernelState) -> None:
    """Drop the rows of sequences that were preempted since."""
    kept = 0
    for i in range(s.ints[I_HEAP]):
        key, slot, seq = s.heap[i, H_KEY], s.heap[i, H_SLOT], s.heap[i, H_SEQ]
        if s.slots[slot, S_SEQ] == seq and s.slots[slot, S_STATE] == DECODE:
            kept = heap_push(s.heap, kept, key, slot, seq)
    s.ints[I_HEAP] = kept


@part
def first_is_stale(s: KernelState) -> bool:
    """Whether the head of the heap is of a sequence that was preempted since."""
    slot = s.heap[0, H_SLOT]
    return not (s.slots[slot, S_SEQ] == s.heap[0, H_SEQ] and s.slots[slot, S_STATE] == DECODE)


@part
def collect_finishing(s: KernelState, side: int, counter: int) -> None:
    """Put the decoding sequences whose last token comes from the step ``counter`` into the list of ``side``."""
    while s.ints[I_HEAP] > 0 and s.heap[0, H_KEY] <= counter:
        slot = s.heap[0, H_SLOT]
        stale = first_is_stale(s)
        s.ints[I_HEAP] = heap_pop(s.heap, s.ints[I_HEAP])
        if not stale:
            s.times[slot, T_HELD] = leave_decode(s, slot)
            s.floats[F_HELD] += s.times[slot, T_HELD]
            s.slots[slot, S_STATE] = FINISHING
            s.lists[M_FINISHING + side, s.ints[I_FIN0 + side]] = slot
            s.ints[I_FIN0 + side] += 1


@part
def growth(s: KernelState, decoding: int, counter: int, steps: int) -> int:
    """Blocks that ``decoding`` sequences take over the ``steps`` steps after ``counter``."""
    period = s.policy[P_PERIOD]
    total = (steps // period) * decoding
    for i in range(1, steps % period + 1):
        total += s.residues[(counter + i) % period]
    return total


@part
def preempt(s: KernelState, slot: int) -> None:
    """Free everything ``slot`` holds and put it in front of the waiting queue; its tokens so far become prompt.

    vLLM ``v1/core/sched/scheduler.py: _preempt_request``.
    """
    ints = s.ints
    if s.slots[slot, S_STATE] == DECODE:
        gain = s.delays[Q_TOKENS_PER_STEP]
        steps = ints[I_COUNTER] - s.slots[slot, S_START]
        computed = int(leave_decode(s, slot))
        s.slots[slot, S_GENERATED] = min(
            s.slots[slot, S_OUTPUT] - 1, s.slots[slot, S_GENERATED] + 1 + int(np.floor(gain * steps + 1e-9))
        )
    else:
        ints[I_PARTIAL] = -1
        computed = s.slots[slot, S_COMPUTED]
        s.floats[F_HELD] -= computed
    s.times[slot, T_LAST] = s.floats[F_NOW] + (s.floats[F_CUR_MS] if ints[I_NOW_VALID] != 0 else 0.0)
    give_blocks(s, slot, computed)
    if s.policy[P_UNIT] > 0:
        leave_units(s, slot, computed)
    ints[I_RUNNING] -= 1
    ints[I_PREEMPTIONS] += 1
    s.slots[slot, S_BLOCKS] = 0
    s.slots[slot, S_COMPUTED] = 0
    s.slots[slot, S_STATE] = PREEMPTED
    s.lists[M_PREEMPTED, ints[I_PREEMPTED]] = slot
    ints[I_PREEMPTED] += 1


@part
def leave_decode(s: KernelState, slot: int) -> float:
    """Take ``slot`` out of the decode aggregates, after the step ``ints[I_COUNTER]``, and set the blocks it owns.

    Returns the KV tokens that it holds.
    """
    gain = s.delays[Q_TOKENS_PER_STEP]
    period = s.policy[P_PERIOD]
    steps = s.ints[I_COUNTER] - s.slots[slot, S_START]
    length = s.slots[slot, S_INPUT] + s.slots[slot, S_GENERATED]
    s.floats[F_KV_SUM] -= length + gain * steps
    if s.ints[I_DECODING] == 1:
        s.floats[F_KV_SUM] = 0.0
    s.ints[I_DECODING] -= 1
    if s.slots[slot, S_PHASE] >= 0:
        s.residues[(s.slots[slot, S_START] - s.slots[slot, S_PHASE]) % period] -= 1
        s.slots[slot, S_BLOCKS] += (s.slots[slot, S_PHASE] + steps) // period
    return length + gain * steps


@part
def start_decode(s: KernelState, slot: int, side: int) -> None:
    """The step just planned computes the last prompt token of ``slot``: it decodes from the next step on."""
    ints = s.ints
    gain = s.delays[Q_TOKENS_PER_STEP]
    counter = ints[I_COUNTER]
    period = s.policy[P_PERIOD]
    s.lists[M_FIRSTS + side, ints[I_FIRST0 + side]] = slot
    ints[I_FIRST0 + side] += 1
    left = s.slots[slot, S_OUTPUT] - s.slots[slot, S_GENERATED] - 1
    length = s.slots[slot, S_INPUT] + s.slots[slot, S_GENERATED]
    if left <= 0:
        s.slots[slot, S_STATE] = FINISHING
        s.lists[M_FINISHING + side, ints[I_FIN0 + side]] = slot
        ints[I_FIN0 + side] += 1
        s.times[slot, T_HELD] = length
        s.floats[F_HELD] += length
        return
    s.slots[slot, S_STATE] = DECODE
    s.slots[slot, S_START] = counter
    if s.policy[P_RESERVE] != 0:
        s.slots[slot, S_PHASE] = -1
    else:
        phase = min(period - 1, int(((length - 1) % s.policy[P_BLOCK]) / gain))
        s.slots[slot, S_PHASE] = phase
        s.residues[(counter - phase) % period] += 1
    ints[I_DECODING] += 1
    s.floats[F_KV_SUM] += length
    key = counter + int(np.ceil(left / gain - 1e-9))
    if ints[I_HEAP] == s.heap.shape[0]:
        heap_compact(s)
    ints[I_HEAP] = heap_push(s.heap, ints[I_HEAP], key, slot, s.slots[slot, S_SEQ])

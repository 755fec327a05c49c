"""Parts of the kernel: the heap of finishing steps, block growth, and how a sequence enters and leaves the decode set.

Decoding sequences are held as aggregates: their number, the sum of their KV lengths, how many cross a block boundary at
each residue of the step counter, and a heap of the counters at which they end.
"""

from __future__ import annotations

import numba
import numpy as np

from planner.serving.state import (
    DECODE,
    F_CUR_MS,
    F_HELD,
    F_KV_SUM,
    F_NOW,
    FINISHING,
    I_COUNTER,
    I_DECODING,
    I_FIN0,
    I_FIRST0,
    I_FREE,
    I_HEAP,
    I_ISSUED,
    I_NEXT,
    I_NOW_VALID,
    I_PARTIAL,
    I_PREEMPTED,
    I_PREEMPTIONS,
    I_RUNNING,
    ITL_BINS,
    ITL_LOG_STEP,
    ITL_LOW_MS,
    PREEMPTED,
    Q_REQUEST,
    Q_REQUEST_PER_1K,
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
)


@numba.njit(cache=True)
def add_itl(hist: np.ndarray, gap_ms: float, weight: int) -> None:
    index = 0
    if gap_ms > ITL_LOW_MS:
        index = min(ITL_BINS - 1, int(np.log(gap_ms / ITL_LOW_MS) / ITL_LOG_STEP) + 1)
    hist[index] += weight


@numba.njit(cache=True)
def heap_push(keys: np.ndarray, slots: np.ndarray, seqs: np.ndarray, size: int, key: int, slot: int, seq: int) -> int:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        slots[i] = slots[parent]
        seqs[i] = seqs[parent]
        i = parent
    keys[i] = key
    slots[i] = slot
    seqs[i] = seq
    return size + 1


@numba.njit(cache=True)
def heap_pop(keys: np.ndarray, slots: np.ndarray, seqs: np.ndarray, size: int) -> int:
    size -= 1
    key = keys[size]
    slot = slots[size]
    seq = seqs[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i] = keys[child]
        slots[i] = slots[child]
        seqs[i] = seqs[child]
        i = child
    keys[i] = key
    slots[i] = slot
    seqs[i] = seq
    return size


@numba.njit(cache=True)
def heap_compact(keys: np.ndarray, entries: np.ndarray, seqs: np.ndarray, slots: np.ndarray, ints: np.ndarray) -> None:
    """Drop the entries of sequences that were preempted since."""
    size = ints[I_HEAP]
    kept = 0
    for i in range(size):
        key, slot, seq = keys[i], entries[i], seqs[i]
        if slots[slot, S_SEQ] == seq and slots[slot, S_STATE] == DECODE:
            kept = heap_push(keys, entries, seqs, kept, key, slot, seq)
    ints[I_HEAP] = kept


@numba.njit(cache=True)
def growth(residues: np.ndarray, period: int, decoding: int, counter: int, steps: int) -> int:
    """Blocks that ``decoding`` sequences take over the ``steps`` steps after ``counter``."""
    total = (steps // period) * decoding
    for i in range(1, steps % period + 1):
        total += residues[(counter + i) % period]
    return total


@numba.njit(cache=True)
def preempt(
    slot: int,
    slots: np.ndarray,
    times: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    residues: np.ndarray,
    preempted: np.ndarray,
    period: int,
    gain: float,
) -> int:
    """Free everything ``slot`` holds and put it in front of the waiting queue; its tokens so far become prompt."""
    if slots[slot, S_STATE] == DECODE:
        steps = ints[I_COUNTER] - slots[slot, S_START]
        leave_decode(slot, slots, ints, floats, residues, period, gain)
        slots[slot, S_GENERATED] = min(
            slots[slot, S_OUTPUT] - 1, slots[slot, S_GENERATED] + 1 + int(np.floor(gain * steps + 1e-9))
        )
    else:
        ints[I_PARTIAL] = -1
        floats[F_HELD] -= slots[slot, S_COMPUTED]
    times[slot, T_LAST] = floats[F_NOW] + (floats[F_CUR_MS] if ints[I_NOW_VALID] != 0 else 0.0)
    ints[I_FREE] += slots[slot, S_BLOCKS]
    ints[I_RUNNING] -= 1
    ints[I_PREEMPTIONS] += 1
    slots[slot, S_BLOCKS] = 0
    slots[slot, S_COMPUTED] = 0
    slots[slot, S_STATE] = PREEMPTED
    preempted[ints[I_PREEMPTED]] = slot
    ints[I_PREEMPTED] += 1
    return 1


@numba.njit(cache=True)
def leave_decode(
    slot: int, slots: np.ndarray, ints: np.ndarray, floats: np.ndarray, residues: np.ndarray, period: int, gain: float
) -> float:
    """Take ``slot`` out of the decode aggregates, after the step ``ints[I_COUNTER]``, and set the blocks it owns.

    Returns the KV tokens that it holds.
    """
    steps = ints[I_COUNTER] - slots[slot, S_START]
    length = slots[slot, S_INPUT] + slots[slot, S_GENERATED]
    floats[F_KV_SUM] -= length + gain * steps
    if ints[I_DECODING] == 1:
        floats[F_KV_SUM] = 0.0
    ints[I_DECODING] -= 1
    if slots[slot, S_PHASE] >= 0:
        residues[(slots[slot, S_START] - slots[slot, S_PHASE]) % period] -= 1
        slots[slot, S_BLOCKS] += (slots[slot, S_PHASE] + steps) // period
    return length + gain * steps


@numba.njit(cache=True)
def start_decode(
    slot: int,
    side: int,
    slots: np.ndarray,
    times: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    residues: np.ndarray,
    finishing: np.ndarray,
    firsts: np.ndarray,
    heap_key: np.ndarray,
    heap_slot: np.ndarray,
    heap_seq: np.ndarray,
    counter: int,
    period: int,
    block: int,
    gain: float,
    reserve: bool,
) -> None:
    """The step just planned computes the last prompt token of ``slot``: it decodes from the next step on."""
    firsts[side, ints[I_FIRST0 + side]] = slot
    ints[I_FIRST0 + side] += 1
    left = slots[slot, S_OUTPUT] - slots[slot, S_GENERATED] - 1
    length = slots[slot, S_INPUT] + slots[slot, S_GENERATED]
    if left <= 0:
        slots[slot, S_STATE] = FINISHING
        finishing[side, ints[I_FIN0 + side]] = slot
        ints[I_FIN0 + side] += 1
        times[slot, T_HELD] = length
        floats[F_HELD] += length
        return
    slots[slot, S_STATE] = DECODE
    slots[slot, S_START] = counter
    if reserve:
        slots[slot, S_PHASE] = -1
    else:
        phase = min(period - 1, int(((length - 1) % block) / gain))
        slots[slot, S_PHASE] = phase
        residues[(counter - phase) % period] += 1
    ints[I_DECODING] += 1
    floats[F_KV_SUM] += length
    key = counter + int(np.ceil(left / gain - 1e-9))
    if ints[I_HEAP] == heap_key.size:
        heap_compact(heap_key, heap_slot, heap_seq, slots, ints)
    ints[I_HEAP] = heap_push(heap_key, heap_slot, heap_seq, ints[I_HEAP], key, slot, slots[slot, S_SEQ])


@numba.njit(cache=True)
def issue(
    send_ms: float,
    received_ms: float,
    delays: np.ndarray,
    visible: np.ndarray,
    sent: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    hits: np.ndarray,
    think: np.ndarray,
    ints: np.ndarray,
) -> None:
    """A client of a closed loop sends the next request; the queue stays sorted by the time the scheduler sees it."""
    i = ints[I_ISSUED]
    send_ms += think[i]
    new_input = inputs[i]
    new_output = outputs[i]
    new_hit = hits[i]
    seen = received_ms + think[i] + delays[Q_REQUEST] + delays[Q_REQUEST_PER_1K] * new_input / 1000.0
    while i > ints[I_NEXT] and visible[i - 1] > seen:
        visible[i] = visible[i - 1]
        sent[i] = sent[i - 1]
        inputs[i] = inputs[i - 1]
        outputs[i] = outputs[i - 1]
        hits[i] = hits[i - 1]
        i -= 1
    visible[i] = seen
    sent[i] = send_ms
    inputs[i] = new_input
    outputs[i] = new_output
    hits[i] = new_hit
    ints[I_ISSUED] += 1

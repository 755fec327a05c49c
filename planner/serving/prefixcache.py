"""The prefix cache of the kernel: which KV blocks of earlier requests are still in the pool.

As vLLM's block pool and TensorRT-LLM's block reuse do it: what a request computed stays in its blocks when it ends; the
blocks are free all the same, and lose their content when they are handed out again, the longest unused first and of one
request the last block first. A request takes the longest run of leading blocks that is there; blocks that others run on
are shared. Counted in units of ``policy[P_UNIT]`` tokens (``policy[P_UNIT_BLOCKS]`` blocks); ``chain`` names the units
of a request in order, ``spans`` says where its part of the chain starts and how many whole units it can fill.

Where no units are named, requests share nothing but what the load says, and only a preempted one meets its own blocks
again. Those need no list (``give_blocks``): the free blocks are a queue, handed out at its head. Given back are blocks
at its tail, a request's last block first (vLLM ``v1/core/kv_cache_manager.py: free``, ``block_pool.py: free_blocks``;
TensorRT-LLM pauses and frees alike, ``kvCacheManager.cpp: releaseBlocks``); the last preempted resumes first and takes
its own out of the queue (``touch``), so what lies in front of the blocks of the others never changes but by handing
out. Counting what was handed out (``ints[I_TAKEN]``) thus tells exactly which blocks are left. Since vLLM 0.23 a block
that is not full goes to the head instead: such loose ones are handed out, and counted, before all others.
"""

from __future__ import annotations

from planner.compiling import part
from planner.serving.state import (
    C_NEXT,
    C_PREVIOUS,
    C_USERS,
    I_CACHED,
    I_FREE,
    I_LOOSE,
    I_TAKEN,
    NOT_THERE,
    P_BLOCK,
    P_PARTIAL_FIRST,
    P_REUSE,
    P_UNIT,
    P_UNIT_BLOCKS,
    S_BLOCKS,
    S_ID,
    S_LEFT,
    S_LEFT_AT,
    S_UNITS,
    KernelState,
)


@part
def take_blocks(s: KernelState, blocks: int) -> None:
    """Hand out ``blocks`` free blocks: loose ones, then those that lie free the longest."""
    loose = min(blocks, s.ints[I_LOOSE])
    s.ints[I_LOOSE] -= loose
    s.ints[I_TAKEN] += blocks - loose
    s.ints[I_FREE] -= blocks


@part
def give_blocks(s: KernelState, slot: int, tokens: int) -> None:
    """``slot`` gives its blocks back after ``tokens``: what is in the full ones stays there for the time being."""
    blocks = s.slots[slot, S_BLOCKS]
    full = min(tokens // s.policy[P_BLOCK], blocks)
    if s.policy[P_PARTIAL_FIRST] != 0:
        s.slots[slot, S_LEFT_AT] = s.ints[I_TAKEN] + s.ints[I_FREE] - s.ints[I_LOOSE]
        s.ints[I_LOOSE] += blocks - full
    else:
        s.slots[slot, S_LEFT_AT] = s.ints[I_TAKEN] + s.ints[I_FREE] + blocks - full
    s.slots[slot, S_LEFT] = full
    s.ints[I_FREE] += blocks


@part
def left_blocks(s: KernelState, slot: int) -> int:
    """Leading blocks of the last preempted ``slot`` that nobody was given since."""
    if s.policy[P_REUSE] == 0:
        return 0
    gone = max(0, s.ints[I_TAKEN] - s.slots[slot, S_LEFT_AT])
    return max(0, s.slots[slot, S_LEFT] - gone)


@part
def cached_units(s: KernelState, request: int, tokens: int) -> int:
    """Leading units of ``request`` that are in the pool, among its first ``tokens``."""
    limit = min(s.spans[request, 1], tokens // s.policy[P_UNIT])
    start = s.spans[request, 0]
    found = 0
    while found < limit and s.cache[s.chain[start + found], C_USERS] != NOT_THERE:
        found += 1
    return found


@part
def units_in_use(s: KernelState, request: int, units: int) -> int:
    """How many of the first ``units`` of ``request`` others run on: they take no block more."""
    start = s.spans[request, 0]
    used = 0
    for i in range(units):
        if s.cache[s.chain[start + i], C_USERS] > 0:
            used += 1
    return used


@part
def take_units(s: KernelState, slot: int, units: int) -> None:
    """``slot`` runs on the first ``units`` of its request from now on."""
    start = s.spans[s.slots[slot, S_ID], 0]
    for i in range(units):
        unit = s.chain[start + i]
        if s.cache[unit, C_USERS] == 0:
            _unlink(s, unit)
        s.cache[unit, C_USERS] += 1
    s.slots[slot, S_UNITS] = units


@part
def fill_units(s: KernelState, slot: int, tokens: int) -> None:
    """The first ``tokens`` of ``slot`` are computed: others may use its whole units, up to one that another holds."""
    start, limit = s.spans[s.slots[slot, S_ID], 0], s.spans[s.slots[slot, S_ID], 1]
    held = s.slots[slot, S_UNITS]
    full = min(limit, tokens // s.policy[P_UNIT])
    while held < full and s.cache[s.chain[start + held], C_USERS] == NOT_THERE:
        s.cache[s.chain[start + held], C_USERS] = 1
        held += 1
    s.slots[slot, S_UNITS] = held


@part
def leave_units(s: KernelState, slot: int, tokens: int) -> None:
    """``slot`` gave all its blocks back after ``tokens``: what it computed stays, what others run on is not free."""
    start, limit = s.spans[s.slots[slot, S_ID], 0], s.spans[s.slots[slot, S_ID], 1]
    held = s.slots[slot, S_UNITS]
    full = max(held, min(limit, tokens // s.policy[P_UNIT]))
    for i in range(full - 1, -1, -1):
        unit = s.chain[start + i]
        if i < held:
            s.cache[unit, C_USERS] -= 1
            if s.cache[unit, C_USERS] == 0:
                _append(s, unit)
            else:
                s.ints[I_FREE] -= s.policy[P_UNIT_BLOCKS]
        elif s.cache[unit, C_USERS] == NOT_THERE:
            s.cache[unit, C_USERS] = 0
            _append(s, unit)
    s.slots[slot, S_UNITS] = 0


@part
def evict_units(s: KernelState) -> None:
    """Forget the longest unused units until those kept fit the free blocks."""
    oldest = s.cache.shape[0] - 1
    while s.ints[I_CACHED] * s.policy[P_UNIT_BLOCKS] > s.ints[I_FREE]:
        unit = s.cache[oldest, C_NEXT]
        _unlink(s, unit)
        s.cache[unit, C_USERS] = NOT_THERE


@part
def _append(s: KernelState, unit: int) -> None:
    """Put ``unit`` last into the ring of unused units; its head is the last row."""
    head = s.cache.shape[0] - 1
    last = s.cache[head, C_PREVIOUS]
    s.cache[last, C_NEXT] = unit
    s.cache[unit, C_PREVIOUS] = last
    s.cache[unit, C_NEXT] = head
    s.cache[head, C_PREVIOUS] = unit
    s.ints[I_CACHED] += 1


@part
def _unlink(s: KernelState, unit: int) -> None:
    before, after = s.cache[unit, C_PREVIOUS], s.cache[unit, C_NEXT]
    s.cache[before, C_NEXT] = after
    s.cache[after, C_PREVIOUS] = before
    s.ints[I_CACHED] -= 1

"""The compiled loop of a router in front of replicas: who gets which request, and what clients ask next.

All replicas run up to the next arrival before it is given away, so the router sees them as they are then. A request
that follows another (the next turn of a session) exists only when that one has ended: while anything runs, replicas
are advanced by no more than the shortest pause of the clients who are being answered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.compiling import compiled, part
from planner.serving.kernel import advance
from planner.serving.prefixcache import cached_units
from planner.serving.state import (
    F_RECEIVED,
    I_DONE,
    I_ISSUED,
    I_NEXT,
    I_PREEMPTED,
    I_RUNNING,
    P_UNIT,
    Q_REQUEST,
    Q_REQUEST_PER_1K,
    Q_REQUEST_SERIAL,
    Q_TURNAROUND,
    R_COUNT,
    R_E2E,
    R_ID,
    R_SEND,
    RECORDS_FULL,
    STUCK,
    KernelState,
)

ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE = range(3)
PAUSES = 40
"""Classes of pauses: below 1 ms, then by powers of two."""

BETA = 1.0
"""Weight of the load against the cached share of a prompt: the default of vLLM production-stack's ``loadaware``."""


class Routed(NamedTuple):
    """The requests of a run by number; ``sent`` is written when one follows another. ``order`` those sent by
    themselves, ascending; ``following`` the request after, -1 for none; ``think`` the pause before a request, ms.
    """

    sent: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    hits: np.ndarray
    think: np.ndarray
    following: np.ndarray
    order: np.ndarray


@compiled
def route(
    stack: KernelState,
    tables: Any,
    requests: Routed,
    router: int,
    window_ms: float,
    due_ms: np.ndarray,
    due_id: np.ndarray,
    last_given: np.ndarray,
    pausing: np.ndarray,
    out: np.ndarray,
) -> int:
    """Run to the end. Returns the number of records in ``out``, or -1 when a replica is stuck.

    ``stack`` holds the arrays of all replicas, one behind the other; ``chain`` and ``spans`` are shared. ``due_ms`` and
    ``due_id`` are room for the heap of following requests, ``last_given`` one number a replica, ``pausing`` ``PAUSES``
    zeros: how many of the requests at hand are followed after a pause of each class. ``window_ms`` what a client needs
    to come back without a pause, 0 where none follows another.
    """
    replicas = stack.ints.shape[0]
    done, turn, arrived, later = 0, 0, 0, 0
    clock = 0.0
    while True:
        event = _next_ms(requests, arrived, due_ms, later)
        busy = False
        for r in range(replicas):
            busy = busy or _at_hand(stack, r) > 0
        if not busy and event == np.inf:
            return done
        horizon = max(clock, event)
        if busy:
            horizon = min(horizon, clock + window_ms + _shortest_ms(pausing)) if window_ms > 0.0 else horizon
            for r in range(replicas):
                if _at_hand(stack, r) == 0:
                    continue
                s = replica(stack, r)
                code = RECORDS_FULL
                while code == RECORDS_FULL:
                    code = advance(s, tables, horizon)
                    if code == STUCK:
                        return -1
                    for row in range(s.ints[I_DONE]):
                        for c in range(R_COUNT):
                            out[done, c] = s.records[row, c]
                        done += 1
                        after = requests.following[int(s.records[row, R_ID])]
                        if after >= 0:
                            pausing[_pause_class(requests.think[after])] -= 1
                            ended = s.records[row, R_SEND] + s.records[row, R_E2E]
                            requests.sent[after] = ended + s.delays[Q_TURNAROUND] + requests.think[after]
                            later = _push(due_ms, due_id, later, requests.sent[after], after)
                    s.ints[I_DONE] = 0
        clock = horizon
        event = _next_ms(requests, arrived, due_ms, later)  # what ended may have been followed by something earlier
        if event < np.inf and event <= clock:
            if later > 0 and due_ms[0] == event:
                request = due_id[0]
                later = _pop(due_ms, due_id, later)
            else:
                request = requests.order[arrived]
                arrived += 1
            best = _choose(stack, requests, request, router, turn, last_given)
            last_given[best] = turn
            turn += 1
            _give(replica(stack, best), requests, request)
            if requests.following[request] >= 0:
                pausing[_pause_class(requests.think[requests.following[request]])] += 1


@part
def replica(stack: KernelState, r: int) -> KernelState:
    """The arrays of one replica."""
    return KernelState(
        stack.policy[r],
        stack.delays[r],
        stack.visible[r],
        stack.sent[r],
        stack.inputs[r],
        stack.outputs[r],
        stack.hits[r],
        stack.think[r],
        stack.ids[r],
        stack.ints[r],
        stack.floats[r],
        stack.slots[r],
        stack.times[r],
        stack.lists[r],
        stack.heap[r],
        stack.order[r],
        stack.residues[r],
        stack.records[r],
        stack.itl_hist[r],
        stack.timeline[r],
        stack.chain,
        stack.spans,
        stack.cache[r],
        stack.arrivals[r],
        stack.box[r],
        stack.firsts[r],
        stack.lasts[r],
    )


@part
def _next_ms(requests: Routed, arrived: int, due_ms: np.ndarray, later: int) -> float:
    """When the next request is sent; infinity when none is left."""
    event = np.inf
    if arrived < requests.order.size:
        event = requests.sent[requests.order[arrived]]
    if later > 0:
        event = min(event, due_ms[0])
    return event


@part
def _pause_class(pause_ms: float) -> int:
    """0 below 1 ms, c from 2^(c - 1) ms on."""
    found = 0
    while pause_ms >= 1.0 and found < PAUSES - 1:
        pause_ms *= 0.5
        found += 1
    return found


@part
def _shortest_ms(pausing: np.ndarray) -> float:
    """A lower bound, at most half too low, of the pauses of those who are being answered; infinity without any."""
    if pausing[0] > 0:
        return 0.0
    bound = 1.0
    for c in range(1, PAUSES):
        if pausing[c] > 0:
            return bound
        bound *= 2.0
    return np.inf


@part
def _at_hand(stack: KernelState, r: int) -> int:
    """Requests that replica ``r`` runs or holds in its queues."""
    ints = stack.ints
    return ints[r, I_RUNNING] + ints[r, I_ISSUED] - ints[r, I_NEXT] + ints[r, I_PREEMPTED]


@part
def _choose(stack: KernelState, requests: Routed, request: int, router: int, turn: int, last_given: np.ndarray) -> int:
    """The replica that gets ``request``; ties go to the one served longest ago.

    PREFIX_AWARE takes the highest cached share of the prompt - BETA x (requests at hand - mean) / max(1, mean), as vLLM
    production-stack's ``loadaware`` (src/vllm_router/routers/routing_logic.py) scores its endpoints.
    """
    replicas = stack.ints.shape[0]
    if router == ROUND_ROBIN or replicas == 1:
        return turn % replicas
    mean = 0.0
    for r in range(replicas):
        mean += _at_hand(stack, r) / replicas
    best = 0
    best_score = -np.inf
    for r in range(replicas):
        score = -BETA * (_at_hand(stack, r) - mean) / max(1.0, mean)
        unit = stack.policy[r, P_UNIT]
        if router == PREFIX_AWARE and unit > 0:
            prompt = requests.inputs[request]
            score += cached_units(replica(stack, r), request, prompt) * unit / prompt
        if score > best_score or (score == best_score and last_given[r] < last_given[best]):
            best, best_score = r, score
    return best


@part
def _give(s: KernelState, requests: Routed, request: int) -> None:
    """Put a request into the queue of a replica, behind its front end; the queue stays sorted."""
    sent = requests.sent[request]
    s.floats[F_RECEIVED] = max(s.floats[F_RECEIVED], sent) + s.delays[Q_REQUEST_SERIAL]
    before = s.delays[Q_REQUEST] + s.delays[Q_REQUEST_PER_1K] * requests.inputs[request] / 1000.0
    seen = s.floats[F_RECEIVED] + before
    if s.ints[I_ISSUED] == s.visible.size:
        _compact(s)
    i = s.ints[I_ISSUED]
    while i > s.ints[I_NEXT] and s.visible[i - 1] > seen:
        _copy(s, i - 1, i)
        i -= 1
    s.visible[i] = seen
    s.sent[i] = sent
    s.inputs[i] = requests.inputs[request]
    s.outputs[i] = requests.outputs[request]
    s.hits[i] = requests.hits[request]
    s.ids[i] = request
    s.ints[I_ISSUED] += 1


@part
def _compact(s: KernelState) -> None:
    """Drop the admitted requests from the front of the queue."""
    first = s.ints[I_NEXT]
    for i in range(first, s.ints[I_ISSUED]):
        _copy(s, i, i - first)
    s.ints[I_ISSUED] -= first
    s.ints[I_NEXT] = 0


@part
def _copy(s: KernelState, source: int, target: int) -> None:
    s.visible[target] = s.visible[source]
    s.sent[target] = s.sent[source]
    s.inputs[target] = s.inputs[source]
    s.outputs[target] = s.outputs[source]
    s.hits[target] = s.hits[source]
    s.ids[target] = s.ids[source]


@part
def _push(keys: np.ndarray, ids: np.ndarray, size: int, key: float, request: int) -> int:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        ids[i] = ids[parent]
        i = parent
    keys[i] = key
    ids[i] = request
    return size + 1


@part
def _pop(keys: np.ndarray, ids: np.ndarray, size: int) -> int:
    size -= 1
    key = keys[size]
    request = ids[size]
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
        ids[i] = ids[child]
        i = child
    keys[i] = key
    ids[i] = request
    return size

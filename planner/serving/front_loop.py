"""The API server of a closed loop: one event loop takes requests in and hands tokens out, pass by pass.

vLLM's API server runs in one asyncio loop (``v1/engine/async_llm.py``: ``output_handler``). A pass takes what was ready
when it began: tokens of the steps that ended since, then requests. A request needs the loop twice, to be parsed and,
when the one thread of the tokeniser has done with it, to be handed to the engine; those that come together are all
parsed first, so they come out together. Steps of at most ``merge_below`` tokens that wait are handled in one pass and
merged: a stream gets one message. Of a larger step a pass handles that many tokens and yields, so that no token is
merged: a loop slower than the engine falls behind, requests get their turns meanwhile, and clients that end together
stay together.
"""

from __future__ import annotations

import numpy as np

from planner.compiling import part
from planner.serving.aggregates import add_itl
from planner.serving.state import (
    A_FIRST,
    A_PASSES,
    A_READY,
    F_LAST_MS,
    F_LOOP_FREE,
    F_LOOP_SENT,
    F_NOW,
    F_TOKENISED,
    I_BOX,
    I_BOX_HEAD,
    I_FIRSTS,
    I_FIRSTS_HEAD,
    I_ISSUED,
    I_LASTS,
    I_LASTS_HEAD,
    I_NEXT,
    I_TAKEN_IN,
    O_DECODES,
    O_FIRSTS,
    O_LASTS,
    O_LEFT,
    O_READY,
    O_TOKENS,
    P_REQUESTS,
    Q_LOOP_CHUNK,
    Q_LOOP_END,
    Q_LOOP_LARGE_CHUNK,
    Q_LOOP_LATENCY,
    Q_LOOP_PARSING,
    Q_LOOP_REQUEST,
    Q_LOOP_REQUEST_PER_1K,
    Q_LOOP_STEP,
    Q_LOOP_TURNS,
    Q_MERGE_BELOW,
    Q_RESPONSE,
    Q_TOKENISE_PER_1K,
    Q_TURNAROUND,
    R_E2E,
    R_SEND,
    R_TTFT,
    KernelState,
)


@part
def is_quiet(s: KernelState) -> bool:
    """Whether only tokens are under way, and none of them a first or last one."""
    ints = s.ints
    return ints[I_FIRSTS] == 0 and ints[I_LASTS] == 0 and ints[I_TAKEN_IN] >= ints[I_ISSUED]


@part
def sending_ms(s: KernelState, tokens: float) -> float:
    """Time of the loop for a step of ``tokens`` tokens."""
    each = s.delays[Q_LOOP_LARGE_CHUNK] if tokens > s.delays[Q_MERGE_BELOW] else s.delays[Q_LOOP_CHUNK]
    return s.delays[Q_LOOP_STEP] + each * tokens


@part
def put_first(s: KernelState, request: int) -> None:
    """The step that just ended holds the first token of ``request``."""
    ints = s.ints
    s.firsts[(ints[I_FIRSTS_HEAD] + ints[I_FIRSTS]) % s.firsts.shape[0]] = request
    ints[I_FIRSTS] += 1


@part
def put_last(s: KernelState, request: int, row: int) -> None:
    """The step that just ended holds the last token of ``request``, whose record is ``row``."""
    ints = s.ints
    at = (ints[I_LASTS_HEAD] + ints[I_LASTS]) % s.lasts.shape[0]
    s.lasts[at, 0] = request
    s.lasts[at, 1] = row
    ints[I_LASTS] += 1


@part
def put_step(s: KernelState, end_ms: float, tokens: int, decodes: int, firsts: int, lasts: int) -> None:
    """Hand the tokens of the step that ended at ``end_ms`` to the loop, its first and last ones put before.

    A step without such joins the one in front of it that waits, was not begun and has none either.
    """
    ints, box = s.ints, s.box
    rows = box.shape[0]
    if ints[I_BOX] > 0 and firsts == 0 and lasts == 0:
        tail = (ints[I_BOX_HEAD] + ints[I_BOX] - 1) % rows
        large = tokens > s.delays[Q_MERGE_BELOW]
        plain = box[tail, O_FIRSTS] == 0.0 and box[tail, O_LASTS] == 0.0
        if plain and large == (box[tail, O_TOKENS] > s.delays[Q_MERGE_BELOW]):
            if large:
                box[tail, O_LEFT] += tokens
                add_itl(s.itl_hist, sending_ms(s, tokens), decodes)
            else:
                box[tail, O_LEFT] = max(box[tail, O_LEFT], float(tokens))
            return
    at = (ints[I_BOX_HEAD] + ints[I_BOX]) % rows
    box[at, O_READY] = end_ms
    box[at, O_LEFT] = tokens
    box[at, O_TOKENS] = tokens
    box[at, O_DECODES] = decodes
    box[at, O_FIRSTS] = firsts
    box[at, O_LASTS] = lasts
    ints[I_BOX] += 1


@part
def pass_over_steps(s: KernelState, steps: int, first_ms: float, total_ms: float, decodes: int) -> None:
    """Account for ``steps`` equal steps of ``decodes`` tokens from now on, the first of ``first_ms``, while the loop is
    quiet.
    """
    floats = s.floats
    now = floats[F_NOW]
    while s.ints[I_BOX] > 0:
        head = s.ints[I_BOX_HEAD]
        floats[F_LOOP_FREE] = max(floats[F_LOOP_FREE], s.box[head, O_READY]) + sending_ms(s, s.box[head, O_LEFT])
        _count_gap(s, floats[F_LOOP_FREE], int(s.box[head, O_DECODES]))
        _drop_step(s)
    sending = sending_ms(s, decodes)
    if decodes > s.delays[Q_MERGE_BELOW]:
        # the backlog is largest where the steps are shortest: at either end of the leap
        behind = max(floats[F_LOOP_FREE], now + first_ms) + steps * sending
        floats[F_LOOP_FREE] = max(behind, now + total_ms + sending)
    else:
        # merged, the last step waits for the pass under way: half of one
        floats[F_LOOP_FREE] = now + total_ms + min(sending, 0.5 * sending + total_ms / steps)
    floats[F_LOOP_SENT] = floats[F_LOOP_FREE]


@part
def run_loop(s: KernelState, until_ms: float) -> None:
    """Run the passes that begin before ``until_ms``."""
    start = _next_pass(s)
    while start < until_ms:
        _run_pass(s, start)
        start = _next_pass(s)


@part
def run_until_seen(s: KernelState) -> None:
    """Run passes until the scheduler is to see another request, or nothing is under way."""
    ints = s.ints
    while ints[I_NEXT] >= ints[I_TAKEN_IN] and (ints[I_BOX] > 0 or ints[I_TAKEN_IN] < ints[I_ISSUED]):
        _run_pass(s, _next_pass(s))


@part
def _next_pass(s: KernelState) -> float:
    """When the next pass begins; infinite when nothing is under way."""
    ints = s.ints
    free = s.floats[F_LOOP_FREE]
    start = s.box[ints[I_BOX_HEAD], O_READY] if ints[I_BOX] > 0 else np.inf
    i = ints[I_TAKEN_IN]
    while i < ints[I_ISSUED] and start > free:
        start = min(start, s.arrivals[i, A_READY])
        i += 1
    return max(start, free)


@part
def _run_pass(s: KernelState, start: float) -> None:
    ints, arrivals = s.ints, s.arrivals
    waiting = ints[I_ISSUED]
    now = start
    if ints[I_BOX] > 0 and s.box[ints[I_BOX_HEAD], O_READY] <= start:
        now = _send_tokens(s, start)
    parsing = False
    for i in range(ints[I_TAKEN_IN], waiting):
        if arrivals[i, A_PASSES] > 0.0:
            arrivals[i, A_PASSES] += 1.0
        elif arrivals[i, A_READY] <= start:
            parsing = True
            now += s.delays[Q_LOOP_PARSING] * _request_ms(s, i)
            tokenise = s.delays[Q_TOKENISE_PER_1K] * s.inputs[i] / 1000.0
            s.floats[F_TOKENISED] = max(s.floats[F_TOKENISED], now) + tokenise
            arrivals[i, A_READY] = s.floats[F_TOKENISED]
            arrivals[i, A_PASSES] = 1.0
    i = ints[I_TAKEN_IN]
    while i < waiting and arrivals[i, A_PASSES] > 0.0 and arrivals[i, A_READY] <= start:
        if parsing and arrivals[i, A_PASSES] < s.delays[Q_LOOP_TURNS]:
            break
        now += (1.0 - s.delays[Q_LOOP_PARSING]) * _request_ms(s, i)
        s.visible[i] = now + s.delays[Q_LOOP_LATENCY]
        i += 1
    ints[I_TAKEN_IN] = i
    s.floats[F_LOOP_FREE] = now


@part
def _request_ms(s: KernelState, i: int) -> float:
    return s.delays[Q_LOOP_REQUEST] + s.delays[Q_LOOP_REQUEST_PER_1K] * s.inputs[i] / 1000.0


@part
def _send_tokens(s: KernelState, start: float) -> float:
    """Send what is ready at ``start``, of a large step a slice; returns when that is done."""
    ints, box = s.ints, s.box
    head = ints[I_BOX_HEAD]
    slice_tokens = s.delays[Q_MERGE_BELOW]
    if box[head, O_TOKENS] > slice_tokens:
        return _send_slice(s, start, head)
    steps, widest, lasts = 0, 0.0, 0.0
    while steps < ints[I_BOX]:
        at = (head + steps) % box.shape[0]
        if box[at, O_READY] > start or box[at, O_TOKENS] > slice_tokens:
            break
        widest = max(widest, box[at, O_LEFT])
        lasts += box[at, O_LASTS]
        steps += 1
    end = start + s.delays[Q_LOOP_STEP] * steps + s.delays[Q_LOOP_CHUNK] * widest + s.delays[Q_LOOP_END] * lasts
    decodes = 0
    for _ in range(steps):
        head = ints[I_BOX_HEAD]
        decodes = max(decodes, int(box[head, O_DECODES]))
        _hand_out(s, start, end, int(box[head, O_FIRSTS]), int(box[head, O_LASTS]))
        _drop_step(s)
    _count_gap(s, end, decodes)
    return end


@part
def _send_slice(s: KernelState, start: float, head: int) -> float:
    """Send a slice of a large step, or all of it while nobody else waits for a turn of the loop."""
    box = s.box
    left = box[head, O_LEFT]
    tokens = left if is_quiet(s) else min(left, s.delays[Q_MERGE_BELOW])
    firsts = np.ceil(box[head, O_FIRSTS] * tokens / left)
    lasts = np.ceil(box[head, O_LASTS] * tokens / left)
    end = start + s.delays[Q_LOOP_LARGE_CHUNK] * tokens + s.delays[Q_LOOP_END] * lasts
    if tokens == left:
        end += s.delays[Q_LOOP_STEP]
    box[head, O_LEFT] -= tokens
    box[head, O_FIRSTS] -= firsts
    box[head, O_LASTS] -= lasts
    _hand_out(s, start, end, int(firsts), int(lasts))
    if tokens == left:
        _count_gap(s, end, int(box[head, O_DECODES]))
        _drop_step(s)
    return end


@part
def _drop_step(s: KernelState) -> None:
    s.ints[I_BOX_HEAD] = (s.ints[I_BOX_HEAD] + 1) % s.box.shape[0]
    s.ints[I_BOX] -= 1


@part
def _count_gap(s: KernelState, end: float, decodes: int) -> None:
    if decodes > 0:
        add_itl(s.itl_hist, end - s.floats[F_LOOP_SENT], decodes)
    s.floats[F_LOOP_SENT] = end


@part
def _hand_out(s: KernelState, start: float, end: float, firsts: int, lasts: int) -> None:
    """First and last tokens go out evenly between ``start`` and ``end``; who has the last sends the next request."""
    ints = s.ints
    for i in range(firsts):
        request = s.firsts[ints[I_FIRSTS_HEAD]]
        ints[I_FIRSTS_HEAD] = (ints[I_FIRSTS_HEAD] + 1) % s.firsts.shape[0]
        ints[I_FIRSTS] -= 1
        s.arrivals[request, A_FIRST] = start + (end - start) * (i + 0.5) / firsts
    for i in range(lasts):
        request, row = s.lasts[ints[I_LASTS_HEAD], 0], s.lasts[ints[I_LASTS_HEAD], 1]
        ints[I_LASTS_HEAD] = (ints[I_LASTS_HEAD] + 1) % s.lasts.shape[0]
        ints[I_LASTS] -= 1
        token_ms = start + (end - start) * (i + 0.5) / lasts
        client_ms = token_ms + s.delays[Q_RESPONSE]
        first_ms = min(s.arrivals[request, A_FIRST], token_ms) + s.delays[Q_RESPONSE]
        s.records[row, R_TTFT] = first_ms - s.records[row, R_SEND]
        s.records[row, R_E2E] = client_ms - s.records[row, R_SEND]
        s.floats[F_LAST_MS] = max(s.floats[F_LAST_MS], client_ms)
        if ints[I_ISSUED] < s.policy[P_REQUESTS]:
            _send_next(s, client_ms + s.delays[Q_TURNAROUND])


@part
def _send_next(s: KernelState, sent_ms: float) -> None:
    """A client sends its next request; those that the loop has not begun stay sorted by when they come."""
    arrivals = s.arrivals
    i = s.ints[I_ISSUED]
    sent_ms += s.think[i]
    new_input, new_output, new_hit = s.inputs[i], s.outputs[i], s.hits[i]
    while i > s.ints[I_TAKEN_IN] and arrivals[i - 1, A_PASSES] == 0.0 and arrivals[i - 1, A_READY] > sent_ms:
        arrivals[i, A_READY] = arrivals[i - 1, A_READY]
        s.sent[i] = s.sent[i - 1]
        s.inputs[i] = s.inputs[i - 1]
        s.outputs[i] = s.outputs[i - 1]
        s.hits[i] = s.hits[i - 1]
        i -= 1
    arrivals[i, A_READY] = sent_ms
    s.sent[i] = sent_ms
    s.inputs[i] = new_input
    s.outputs[i] = new_output
    s.hits[i] = new_hit
    s.ints[I_ISSUED] += 1

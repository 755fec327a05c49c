"""The end of a step: its tokens go through the front end to the clients, finished requests free what they held."""

from __future__ import annotations

from planner.compiling import part
from planner.serving.aggregates import add_itl
from planner.serving.front_loop import put_first, put_last, put_step
from planner.serving.prefixcache import give_blocks, leave_units
from planner.serving.state import (
    F_ALLOC_MS,
    F_BATCH_MS,
    F_BUSY_MS,
    F_CUR_MS,
    F_CUR_NEW,
    F_FRONT_DONE,
    F_HELD,
    F_KV_SUM,
    F_LAST_MS,
    F_LIVE_MS,
    F_NOW,
    F_PREFILLED,
    F_RECEIVED,
    FREE,
    I_CUR_DECODES,
    I_CUR_PROMPTS,
    I_DONE,
    I_FIN0,
    I_FIRST0,
    I_FREE,
    I_FREE_SLOTS,
    I_ISSUED,
    I_NEXT,
    I_RUNNING,
    I_SIDE,
    I_STEPS,
    M_FINISHING,
    M_FIRSTS,
    M_FREE,
    P_CLOSED,
    P_LOOP,
    P_POOL,
    P_REQUESTS,
    P_UNIT,
    Q_CHUNK,
    Q_MERGE_BELOW,
    Q_REQUEST,
    Q_REQUEST_PER_1K,
    Q_REQUEST_SERIAL,
    Q_RESPONSE,
    Q_TURNAROUND,
    R_E2E,
    R_HIT,
    R_ID,
    R_INPUT,
    R_OUTPUT,
    R_SEND,
    R_TTFT,
    S_HIT,
    S_ID,
    S_INPUT,
    S_OUTPUT,
    S_REQUEST,
    S_SEQ,
    S_STATE,
    T_FIRST,
    T_HELD,
    T_LAST,
    T_SEND,
    KernelState,
)


@part
def finish_step(s: KernelState) -> None:
    """Run the current step to its end and hand out its tokens; clients of a closed loop send their next request."""
    ints, floats = s.ints, s.floats
    cur = ints[I_SIDE]
    dur = floats[F_CUR_MS]
    end_ms = floats[F_NOW] + dur
    floats[F_BUSY_MS] += dur
    floats[F_BATCH_MS] += dur * (ints[I_CUR_DECODES] + ints[I_CUR_PROMPTS])
    floats[F_ALLOC_MS] += dur * (s.policy[P_POOL] - ints[I_FREE])
    floats[F_LIVE_MS] += dur * (floats[F_KV_SUM] + floats[F_HELD])
    floats[F_PREFILLED] += floats[F_CUR_NEW]
    ints[I_STEPS] += 1
    if s.policy[P_LOOP] != 0:
        _hand_over(s, end_ms)
        floats[F_NOW] = end_ms
        return
    lag = _send_tokens(s, dur, end_ms)
    token_ms = end_ms + lag
    for i in range(ints[I_FIRST0 + cur]):
        slot = s.lists[M_FIRSTS + cur, i]
        if s.times[slot, T_FIRST] < 0.0:
            s.times[slot, T_FIRST] = token_ms
        else:
            add_itl(s.itl_hist, token_ms - s.times[slot, T_LAST], 1)
        s.times[slot, T_LAST] = token_ms
    for i in range(ints[I_FIN0 + cur]):
        _record(s, s.lists[M_FINISHING + cur, i], token_ms)
    if s.policy[P_CLOSED] != 0 and ints[I_FIN0 + cur] > 0:
        sent_ms = end_ms + lag + s.delays[Q_RESPONSE] + s.delays[Q_TURNAROUND]
        count = min(ints[I_FIN0 + cur], s.policy[P_REQUESTS] - ints[I_ISSUED])
        # requests that arrive together are worked on together and come out together
        floats[F_RECEIVED] = max(floats[F_RECEIVED], sent_ms) + count * s.delays[Q_REQUEST_SERIAL]
        for _ in range(count):
            issue(s, sent_ms, floats[F_RECEIVED])
    floats[F_NOW] = end_ms


@part
def _hand_over(s: KernelState, end_ms: float) -> None:
    """Hand the step's tokens to the API server's loop, which fills in the records when it has sent them."""
    ints = s.ints
    cur = ints[I_SIDE]
    tokens = ints[I_CUR_DECODES] + ints[I_FIRST0 + cur]
    firsts, lasts = 0, ints[I_FIN0 + cur]
    for i in range(ints[I_FIRST0 + cur]):
        slot = s.lists[M_FIRSTS + cur, i]
        if s.times[slot, T_FIRST] < 0.0:
            s.times[slot, T_FIRST] = end_ms
            put_first(s, s.slots[slot, S_REQUEST])
            firsts += 1
    for i in range(lasts):
        slot = s.lists[M_FINISHING + cur, i]
        put_last(s, s.slots[slot, S_REQUEST], ints[I_DONE])
        _record(s, slot, end_ms)
    put_step(s, end_ms, tokens, ints[I_CUR_DECODES], firsts, lasts)


@part
def _send_tokens(s: KernelState, dur: float, end_ms: float) -> float:
    """The front end sends one token after the other; above ``merge_below`` a step its backlog carries over.

    Returns how much later than ``end_ms`` a client sees its token, on average.
    """
    ints, floats = s.ints, s.floats
    tokens = ints[I_CUR_DECODES] + ints[I_FIRST0 + ints[I_SIDE]]
    sending = s.delays[Q_CHUNK] * tokens
    front_start = end_ms
    if tokens > s.delays[Q_MERGE_BELOW]:
        front_start = max(end_ms, floats[F_FRONT_DONE])
    if ints[I_CUR_DECODES] > 0:
        gap = max(dur, sending) if tokens > s.delays[Q_MERGE_BELOW] else dur
        add_itl(s.itl_hist, gap, ints[I_CUR_DECODES])
    floats[F_FRONT_DONE] = front_start + sending
    return front_start - end_ms + 0.5 * sending


@part
def _record(s: KernelState, slot: int, token_ms: float) -> None:
    """Write the record of a finished request, and free its blocks and its slot."""
    ints = s.ints
    client_ms = token_ms + s.delays[Q_RESPONSE]
    row = ints[I_DONE]
    s.records[row, R_SEND] = s.times[slot, T_SEND]
    s.records[row, R_TTFT] = s.times[slot, T_FIRST] + s.delays[Q_RESPONSE] - s.times[slot, T_SEND]
    s.records[row, R_E2E] = client_ms - s.times[slot, T_SEND]
    s.records[row, R_INPUT] = s.slots[slot, S_INPUT]
    s.records[row, R_OUTPUT] = s.slots[slot, S_OUTPUT]
    s.records[row, R_HIT] = s.slots[slot, S_HIT]
    s.records[row, R_ID] = s.slots[slot, S_ID]
    ints[I_DONE] = row + 1
    computed = s.slots[slot, S_INPUT] + s.slots[slot, S_OUTPUT] - 1
    give_blocks(s, slot, computed)
    if s.policy[P_UNIT] > 0:
        leave_units(s, slot, computed)
    s.floats[F_HELD] -= s.times[slot, T_HELD]
    ints[I_RUNNING] -= 1
    s.slots[slot, S_STATE] = FREE
    s.slots[slot, S_SEQ] = -1
    s.lists[M_FREE, ints[I_FREE_SLOTS]] = slot
    ints[I_FREE_SLOTS] += 1
    s.floats[F_LAST_MS] = max(s.floats[F_LAST_MS], client_ms)


@part
def issue(s: KernelState, send_ms: float, received_ms: float) -> None:
    """A client of a closed loop sends the next request; the queue stays sorted by the time the scheduler sees it."""
    i = s.ints[I_ISSUED]
    send_ms += s.think[i]
    new_input = s.inputs[i]
    new_output = s.outputs[i]
    new_hit = s.hits[i]
    seen = received_ms + s.think[i] + s.delays[Q_REQUEST] + s.delays[Q_REQUEST_PER_1K] * new_input / 1000.0
    while i > s.ints[I_NEXT] and s.visible[i - 1] > seen:
        s.visible[i] = s.visible[i - 1]
        s.sent[i] = s.sent[i - 1]
        s.inputs[i] = s.inputs[i - 1]
        s.outputs[i] = s.outputs[i - 1]
        s.hits[i] = s.hits[i - 1]
        i -= 1
    s.visible[i] = seen
    s.sent[i] = send_ms
    s.inputs[i] = new_input
    s.outputs[i] = new_output
    s.hits[i] = new_hit
    s.ints[I_ISSUED] += 1

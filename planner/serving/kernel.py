"""The discrete-event kernel: one engine instance, iteration by iteration, compiled by numba.

State lives in flat arrays, so that a run can stop (``until_ms``) and go on: long traces are fed in chunks and a router
can look at replicas between arrivals. Decoding sequences are kept as aggregates (count, sum of KV lengths, block
boundaries by residue, a heap of finishing steps), so that a step costs the same at any batch size and equal decode
steps are leapt over. Times in milliseconds.

Rules followed: vLLM V1 scheduler (running first in admission order, token budget, chunked prefill, head-of-line
blocking of the waiting queue, full-sequence admission since 0.19, preemption of the last admitted by recompute, a step
planned ahead) and TensorRT-LLM's in-flight batcher (whole prompts, reservation of the full output, an extra step of a
finished request under the overlap scheduler).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from planner.serving.aggregates import (
    add_itl,
    growth,
    heap_pop,
    issue,
    leave_decode,
    preempt,
    start_decode,
)
from planner.serving.state import (
    DECODE,
    F_ALLOC_MS,
    F_BATCH_MS,
    F_BUSY_MS,
    F_CUR_KV,
    F_CUR_MS,
    F_CUR_NEW,
    F_FRONT_DONE,
    F_HELD,
    F_KV_SUM,
    F_LAST_MS,
    F_LIVE_MS,
    F_NEXT_SAMPLE,
    F_NOW,
    F_PREFILLED,
    F_RECEIVED,
    F_SAMPLE_MS,
    FINISHING,
    FREE,
    I_COUNTER,
    I_CUR_DECODES,
    I_CUR_GHOSTS,
    I_CUR_PREEMPTED,
    I_CUR_PROMPTS,
    I_DECODING,
    I_DONE,
    I_FIN0,
    I_FIRST0,
    I_FREE,
    I_FREE_SLOTS,
    I_GHOSTS,
    I_HEAP,
    I_ISSUED,
    I_LEAPT,
    I_NEXT,
    I_NOW_VALID,
    I_ORDER,
    I_PARTIAL,
    I_PREEMPTED,
    I_RUNNING,
    I_SAMPLES,
    I_SEQ,
    I_SIDE,
    I_STEPS,
    L_ADMITTED,
    L_COUNT,
    L_LIVE,
    L_RUNNING,
    L_TIME,
    L_USED,
    OK,
    P_ASYNC,
    P_BLOCK,
    P_BUDGET,
    P_CACHED_IN_BUDGET,
    P_CHUNK_MULTIPLE,
    P_CHUNKED,
    P_CLOSED,
    P_FULL_SEQUENCE,
    P_GHOST,
    P_MAX_SEQS,
    P_PERIOD,
    P_POOL,
    P_PP,
    P_REQUESTS,
    P_RESERVE,
    P_SPEC,
    P_WATERMARK,
    PREFILL,
    Q_CHUNK,
    Q_MERGE_BELOW,
    Q_REQUEST_SERIAL,
    Q_RESPONSE,
    Q_TOKENS_PER_STEP,
    Q_TURNAROUND,
    R_E2E,
    R_INPUT,
    R_OUTPUT,
    R_SEND,
    R_TTFT,
    RECORDS_FULL,
    S_BLOCKS,
    S_COMPUTED,
    S_GENERATED,
    S_HIT,
    S_INPUT,
    S_OUTPUT,
    S_SEQ,
    S_STATE,
    STUCK,
    T_FIRST,
    T_HELD,
    T_LAST,
    T_SEND,
)
from planner.steptime.kernel import step_ms


@numba.njit(cache=True)
def iteration_ms(
    tables: Any, pp: int, budget: int, new: float, prompts: float, pairs: float, batch: float, kv: float
) -> float:
    """Time of one iteration.

    With pipeline stages as many micro-batches are under way as there are stages, one after the other. One that carries
    a prompt chunk comes out of the last stage only after its whole passage, and the first stage waits for it: a turn
    of all micro-batches lasts as long as its slowest passage.
    """
    if pp <= 1:
        return step_ms(*tables, new, prompts, pairs, batch, kv)  # type: ignore[call-arg]
    parts = max(1.0, min(float(pp), batch))
    if new <= 0.0:
        return step_ms(*tables, 0.0, 0.0, 0.0, batch / parts, kv / parts)  # type: ignore[call-arg]
    chunks = max(1.0, min(float(pp), np.ceil(new / budget)))
    per_chunk = max(1.0, prompts / chunks)
    part, share = new / chunks, pairs / chunks
    return step_ms(*tables, part, per_chunk, share, batch / parts, kv / parts)  # type: ignore[call-arg]


@numba.njit(cache=True)
def advance(
    tables: Any,
    policy: np.ndarray,
    delays: np.ndarray,
    visible: np.ndarray,
    sent: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    hits: np.ndarray,
    think: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    slots: np.ndarray,
    times: np.ndarray,
    free_slots: np.ndarray,
    heap_key: np.ndarray,
    heap_slot: np.ndarray,
    heap_seq: np.ndarray,
    order: np.ndarray,
    preempted: np.ndarray,
    residues: np.ndarray,
    finishing: np.ndarray,
    firsts: np.ndarray,
    records: np.ndarray,
    itl_hist: np.ndarray,
    timeline: np.ndarray,
    until_ms: float,
) -> int:
    """Run until ``until_ms``, or until nothing is left to do. Returns OK, STUCK or RECORDS_FULL.

    ``visible`` (sorted), ``sent``, ``inputs``, ``outputs``, ``hits`` hold the requests; those from ``ints[I_NEXT]`` to
    ``ints[I_ISSUED]`` wait or will arrive. In a closed loop the rest is issued as requests end, and the arrays are
    written. One row of ``records`` per finished request.
    """
    max_seqs = policy[P_MAX_SEQS]
    block = policy[P_BLOCK]
    period = policy[P_PERIOD]
    pp = policy[P_PP]
    budget_per_step = policy[P_BUDGET]
    reserve = policy[P_RESERVE] != 0
    ghosts_on = policy[P_GHOST] != 0
    ahead = policy[P_ASYNC] != 0
    gain = delays[Q_TOKENS_PER_STEP]
    decode_kv_axis = tables[8]
    tokens_per_decode = 1 + policy[P_SPEC]
    pool = policy[P_POOL]
    cached_in_budget = policy[P_CACHED_IN_BUDGET] != 0

    while True:
        now = floats[F_NOW]
        if now >= until_ms:
            return OK
        if ints[I_DONE] + max_seqs + 8 > records.shape[0]:
            return RECORDS_FULL
        if ints[I_NOW_VALID] == 0 and ints[I_RUNNING] == 0 and ints[I_PREEMPTED] == 0:
            if ints[I_NEXT] >= ints[I_ISSUED]:
                return OK
            if visible[ints[I_NEXT]] > now:
                if visible[ints[I_NEXT]] >= until_ms:
                    floats[F_NOW] = until_ms
                    return OK
                now = visible[ints[I_NEXT]]
                floats[F_NOW] = now
        if timeline.shape[0] > 0 and now >= floats[F_NEXT_SAMPLE]:
            count = ints[I_SAMPLES]
            if count == timeline.shape[0]:
                count //= 2
                for i in range(count):
                    for c in range(L_COUNT):
                        timeline[i, c] = timeline[2 * i, c]
                floats[F_SAMPLE_MS] *= 2.0
            timeline[count, L_TIME] = now
            timeline[count, L_RUNNING] = ints[I_RUNNING]
            timeline[count, L_ADMITTED] = ints[I_NEXT]
            timeline[count, L_USED] = pool - ints[I_FREE]
            timeline[count, L_LIVE] = floats[F_KV_SUM] + floats[F_HELD]
            ints[I_SAMPLES] = count + 1
            floats[F_NEXT_SAMPLE] = now + floats[F_SAMPLE_MS]

        # ---- plan one step at ``now`` -------------------------------------------------------------------------
        side = 1 - ints[I_SIDE] if ints[I_NOW_VALID] != 0 else ints[I_SIDE]
        ints[I_FIN0 + side] = 0
        ints[I_FIRST0 + side] = 0
        ghosts = ints[I_GHOSTS] if ghosts_on else 0
        ints[I_GHOSTS] = 0
        preempted_now = 0
        decodes = ints[I_DECODING]
        counter = ints[I_COUNTER] + 1
        if not reserve and decodes > 0:
            while True:
                need = residues[counter % period]
                if need <= ints[I_FREE]:
                    break
                top = ints[I_ORDER] - 1
                victim = -1
                while top >= 0:
                    slot = order[top, 0]
                    if slots[slot, S_SEQ] == order[top, 1] and (
                        slots[slot, S_STATE] == DECODE or slots[slot, S_STATE] == PREFILL
                    ):
                        victim = slot
                        break
                    top -= 1
                if victim < 0:
                    return STUCK
                for i in range(top, ints[I_ORDER] - 1):
                    order[i, 0] = order[i + 1, 0]
                    order[i, 1] = order[i + 1, 1]
                ints[I_ORDER] -= 1
                preempted_now += preempt(victim, slots, times, ints, floats, residues, preempted, period, gain)
            decodes = ints[I_DECODING]
        ints[I_COUNTER] = counter
        if decodes > 0:
            if not reserve:
                ints[I_FREE] -= residues[counter % period]
            floats[F_KV_SUM] += gain * decodes
        step_kv = floats[F_KV_SUM]
        budget = pp * budget_per_step - decodes * tokens_per_decode
        new = 0.0
        pairs = 0.0
        prompts = 0
        partial = ints[I_PARTIAL]
        if partial >= 0 and budget > 0:
            length = slots[partial, S_INPUT] + slots[partial, S_GENERATED]
            done = slots[partial, S_COMPUTED]
            chunk = min(length - done, budget)
            if chunk < length - done:
                chunk -= chunk % policy[P_CHUNK_MULTIPLE]
            owned = slots[partial, S_BLOCKS]
            need = max(0, -(-(done + chunk) // block) - owned) if not reserve else 0
            if chunk > 0 and need > ints[I_FREE]:
                for i in range(ints[I_ORDER] - 1, -1, -1):
                    if order[i, 0] == partial and order[i, 1] == slots[partial, S_SEQ]:
                        for j in range(i, ints[I_ORDER] - 1):
                            order[j, 0] = order[j + 1, 0]
                            order[j, 1] = order[j + 1, 1]
                        ints[I_ORDER] -= 1
                        break
                preempted_now += preempt(partial, slots, times, ints, floats, residues, preempted, period, gain)
            elif chunk > 0:
                slots[partial, S_BLOCKS] += need
                ints[I_FREE] -= need
                end = done + chunk
                pairs += 0.5 * (float(end) * (end + 1) - float(done) * (done + 1))
                new += chunk
                prompts += 1
                budget -= chunk
                slots[partial, S_COMPUTED] = end
                floats[F_HELD] += chunk
                if end == length:
                    ints[I_PARTIAL] = -1
                    floats[F_HELD] -= length
                    start_decode(
                        partial, side, slots, times, ints, floats, residues, finishing, firsts, heap_key, heap_slot,
                        heap_seq, counter, period, block, gain, reserve,
                    )  # fmt: skip
        if preempted_now == 0 and ints[I_PARTIAL] < 0:
            while budget > 0 and ints[I_RUNNING] < max_seqs:
                resumed = ints[I_PREEMPTED] > 0
                slot = -1
                head = ints[I_NEXT]
                if resumed:
                    slot = preempted[ints[I_PREEMPTED] - 1]
                    length = slots[slot, S_INPUT] + slots[slot, S_GENERATED]
                    total = slots[slot, S_INPUT] + slots[slot, S_OUTPUT]
                    hit = 0
                elif head < ints[I_ISSUED] and visible[head] <= now:
                    length = inputs[head]
                    total = length + outputs[head]
                    hit = hits[head]
                else:
                    break
                left = length - hit
                counted = length if cached_in_budget else left
                if policy[P_CHUNKED] != 0:
                    chunk = min(left, budget)
                    if chunk < left:
                        chunk -= chunk % policy[P_CHUNK_MULTIPLE]
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
                if policy[P_FULL_SEQUENCE] != 0:
                    asked = max(need, -(-length // block))
                if ints[I_RUNNING] > 0 and not reserve:
                    asked += policy[P_WATERMARK]
                if asked > ints[I_FREE]:
                    break
                if resumed:
                    ints[I_PREEMPTED] -= 1
                else:
                    ints[I_FREE_SLOTS] -= 1
                    slot = free_slots[ints[I_FREE_SLOTS]]
                    slots[slot, S_INPUT] = length
                    slots[slot, S_OUTPUT] = outputs[head]
                    slots[slot, S_GENERATED] = 0
                    times[slot, T_SEND] = sent[head]
                    times[slot, T_FIRST] = -1.0
                    ints[I_NEXT] = head + 1
                ints[I_SEQ] += 1
                slots[slot, S_SEQ] = ints[I_SEQ]
                slots[slot, S_HIT] = hit
                slots[slot, S_BLOCKS] = need
                slots[slot, S_STATE] = PREFILL
                ints[I_FREE] -= need
                ints[I_RUNNING] += 1
                if ints[I_ORDER] == order.shape[0]:
                    kept = 0
                    for i in range(ints[I_ORDER]):
                        if slots[order[i, 0], S_SEQ] == order[i, 1] and slots[order[i, 0], S_STATE] != FREE:
                            order[kept, 0] = order[i, 0]
                            order[kept, 1] = order[i, 1]
                            kept += 1
                    ints[I_ORDER] = kept
                order[ints[I_ORDER], 0] = slot
                order[ints[I_ORDER], 1] = ints[I_SEQ]
                ints[I_ORDER] += 1
                end = hit + chunk
                pairs += 0.5 * (float(end) * (end + 1) - float(hit) * (hit + 1))
                new += chunk
                prompts += 1
                budget -= counted
                slots[slot, S_COMPUTED] = end
                if end == length:
                    start_decode(
                        slot, side, slots, times, ints, floats, residues, finishing, firsts, heap_key, heap_slot,
                        heap_seq, counter, period, block, gain, reserve,
                    )  # fmt: skip
                else:
                    ints[I_PARTIAL] = slot
                    floats[F_HELD] += end
                    break
        # decoding sequences whose last token comes from this step
        while ints[I_HEAP] > 0 and heap_key[0] <= counter:
            slot = heap_slot[0]
            valid = slots[slot, S_SEQ] == heap_seq[0] and slots[slot, S_STATE] == DECODE
            ints[I_HEAP] = heap_pop(heap_key, heap_slot, heap_seq, ints[I_HEAP])
            if valid:
                times[slot, T_HELD] = leave_decode(slot, slots, ints, floats, residues, period, gain)
                floats[F_HELD] += times[slot, T_HELD]
                slots[slot, S_STATE] = FINISHING
                finishing[side, ints[I_FIN0 + side]] = slot
                ints[I_FIN0 + side] += 1
        batch = decodes + ghosts
        planned = batch > 0 or prompts > 0
        plan_ms = 0.0
        if planned:
            ghost_kv = ghosts * (step_kv / decodes if decodes > 0 else 1.0)
            plan_ms = iteration_ms(
                tables, pp, budget_per_step, new, float(prompts), pairs, float(batch), step_kv + ghost_kv
            )

        if ints[I_NOW_VALID] == 0:
            if not planned:
                return STUCK
            ints[I_NOW_VALID] = 1
            ints[I_SIDE] = side
            floats[F_CUR_MS] = plan_ms
            ints[I_CUR_DECODES] = decodes
            ints[I_CUR_PROMPTS] = prompts
            ints[I_CUR_PREEMPTED] = preempted_now
            ints[I_CUR_GHOSTS] = ghosts
            floats[F_CUR_NEW] = new
            floats[F_CUR_KV] = step_kv
            ints[I_GHOSTS] = ints[I_FIN0 + side]
            if ahead:
                continue
            planned = False

        # ---- leap over equal decode steps ---------------------------------------------------------------------
        cur = ints[I_SIDE]
        if (
            planned
            and ahead
            and prompts == 0
            and ints[I_CUR_PROMPTS] == 0
            and ghosts == 0
            and preempted_now == 0
            and ints[I_CUR_PREEMPTED] == 0
            and ints[I_CUR_GHOSTS] == 0
            and ints[I_FIN0 + cur] == 0
            and ints[I_FIN0 + side] == 0
            and ints[I_HEAP] > 0
            and ints[I_CUR_DECODES] == decodes
        ):
            limit_ms = until_ms
            if ints[I_NEXT] < ints[I_ISSUED] and ints[I_PREEMPTED] == 0 and visible[ints[I_NEXT]] > now:
                limit_ms = min(limit_ms, visible[ints[I_NEXT]])
            while ints[I_HEAP] > 1 and not (
                slots[heap_slot[0], S_SEQ] == heap_seq[0] and slots[heap_slot[0], S_STATE] == DECODE
            ):
                ints[I_HEAP] = heap_pop(heap_key, heap_slot, heap_seq, ints[I_HEAP])
            steps = heap_key[0] - counter
            mean = floats[F_CUR_KV] / decodes
            edge = np.inf
            for i in range(decode_kv_axis.size):
                if decode_kv_axis[i] > mean:
                    edge = decode_kv_axis[i]
                    break
            if edge < np.inf and mean + gain * (steps - 1) > edge:
                steps = int((edge - mean) / gain) + 1
            if steps > 1 and not reserve:
                while steps > 1 and growth(residues, period, decodes, counter, steps) > ints[I_FREE]:
                    steps = steps // 2
            if steps > 1:
                first = floats[F_CUR_MS]
                slope = plan_ms - first
                if limit_ms < np.inf:
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
            if steps > 1:
                total_ms = steps * first + 0.5 * slope * steps * (steps - 1)
                sending = delays[Q_CHUNK] * decodes
                behind = 0.0
                if decodes > delays[Q_MERGE_BELOW]:
                    # the backlog is largest where the steps are shortest: at either end of the leap
                    behind = max(floats[F_FRONT_DONE], now + first) + steps * sending
                    behind = max(behind, now + total_ms + sending)
                    floats[F_FRONT_DONE] = behind
                    behind = sending
                parts = 1
                if steps >= 8 and slope * steps > 0.004 * first:
                    parts = 4
                done_steps = 0
                for part in range(parts):
                    upto = steps * (part + 1) // parts
                    middle = 0.5 * (done_steps + upto - 1)
                    add_itl(itl_hist, max(first + slope * middle, behind), decodes * (upto - done_steps))
                    done_steps = upto
                used0 = pool - ints[I_FREE]
                grown = growth(residues, period, decodes, counter, steps) if not reserve else 0
                floats[F_BUSY_MS] += total_ms
                floats[F_BATCH_MS] += total_ms * decodes
                floats[F_ALLOC_MS] += total_ms * (used0 + 0.5 * grown)
                floats[F_LIVE_MS] += total_ms * (floats[F_KV_SUM] + floats[F_HELD] + 0.5 * gain * decodes * steps)
                ints[I_FREE] -= grown
                ints[I_COUNTER] = counter + steps
                ints[I_STEPS] += steps
                ints[I_LEAPT] += steps
                floats[F_KV_SUM] += gain * decodes * steps
                floats[F_NOW] = now + total_ms
                floats[F_CUR_KV] += gain * decodes * steps
                floats[F_CUR_MS] = iteration_ms(
                    tables, pp, budget_per_step, 0.0, 0.0, 0.0, float(decodes), floats[F_CUR_KV]
                )
                plan_ms = iteration_ms(tables, pp, budget_per_step, 0.0, 0.0, 0.0, float(decodes), floats[F_KV_SUM])
                step_kv = floats[F_KV_SUM]
                now = floats[F_NOW]
                while ints[I_HEAP] > 0 and heap_key[0] <= ints[I_COUNTER]:
                    slot = heap_slot[0]
                    valid = slots[slot, S_SEQ] == heap_seq[0] and slots[slot, S_STATE] == DECODE
                    ints[I_HEAP] = heap_pop(heap_key, heap_slot, heap_seq, ints[I_HEAP])
                    if valid:
                        times[slot, T_HELD] = leave_decode(slot, slots, ints, floats, residues, period, gain)
                        floats[F_HELD] += times[slot, T_HELD]
                        slots[slot, S_STATE] = FINISHING
                        finishing[side, ints[I_FIN0 + side]] = slot
                        ints[I_FIN0 + side] += 1

        # ---- run the current step and hand out its tokens -----------------------------------------------------
        dur = floats[F_CUR_MS]
        end_ms = now + dur
        floats[F_BUSY_MS] += dur
        floats[F_BATCH_MS] += dur * (ints[I_CUR_DECODES] + ints[I_CUR_PROMPTS])
        floats[F_ALLOC_MS] += dur * (pool - ints[I_FREE])
        floats[F_LIVE_MS] += dur * (floats[F_KV_SUM] + floats[F_HELD])
        floats[F_PREFILLED] += floats[F_CUR_NEW]
        ints[I_STEPS] += 1
        # the front end sends one token after the other; above ``merge_below`` a step its backlog carries over
        tokens = ints[I_CUR_DECODES] + ints[I_FIRST0 + cur]
        sending = delays[Q_CHUNK] * tokens
        front_start = end_ms
        if tokens > delays[Q_MERGE_BELOW]:
            front_start = max(end_ms, floats[F_FRONT_DONE])
        if ints[I_CUR_DECODES] > 0:
            gap = max(dur, sending) if tokens > delays[Q_MERGE_BELOW] else dur
            add_itl(itl_hist, gap, ints[I_CUR_DECODES])
        floats[F_FRONT_DONE] = front_start + sending
        lag = front_start - end_ms + 0.5 * sending
        token_ms = end_ms + lag
        for i in range(ints[I_FIRST0 + cur]):
            slot = firsts[cur, i]
            if times[slot, T_FIRST] < 0.0:
                times[slot, T_FIRST] = token_ms
            else:
                add_itl(itl_hist, token_ms - times[slot, T_LAST], 1)
            times[slot, T_LAST] = token_ms
        for i in range(ints[I_FIN0 + cur]):
            slot = finishing[cur, i]
            client_ms = token_ms + delays[Q_RESPONSE]
            row = ints[I_DONE]
            records[row, R_SEND] = times[slot, T_SEND]
            records[row, R_TTFT] = times[slot, T_FIRST] + delays[Q_RESPONSE] - times[slot, T_SEND]
            records[row, R_E2E] = client_ms - times[slot, T_SEND]
            records[row, R_INPUT] = slots[slot, S_INPUT]
            records[row, R_OUTPUT] = slots[slot, S_OUTPUT]
            ints[I_DONE] = row + 1
            ints[I_FREE] += slots[slot, S_BLOCKS]
            floats[F_HELD] -= times[slot, T_HELD]
            ints[I_RUNNING] -= 1
            slots[slot, S_STATE] = FREE
            slots[slot, S_SEQ] = -1
            free_slots[ints[I_FREE_SLOTS]] = slot
            ints[I_FREE_SLOTS] += 1
            floats[F_LAST_MS] = max(floats[F_LAST_MS], client_ms)
        if policy[P_CLOSED] != 0 and ints[I_FIN0 + cur] > 0:
            sent_ms = end_ms + lag + delays[Q_RESPONSE] + delays[Q_TURNAROUND]
            count = min(ints[I_FIN0 + cur], policy[P_REQUESTS] - ints[I_ISSUED])
            # requests that arrive together are worked on together and come out together
            floats[F_RECEIVED] = max(floats[F_RECEIVED], sent_ms) + count * delays[Q_REQUEST_SERIAL]
            for _ in range(count):
                issue(sent_ms, floats[F_RECEIVED], delays, visible, sent, inputs, outputs, hits, think, ints)
        floats[F_NOW] = end_ms
        if planned:
            ints[I_SIDE] = side
            floats[F_CUR_MS] = plan_ms
            ints[I_CUR_DECODES] = decodes
            ints[I_CUR_PROMPTS] = prompts
            ints[I_CUR_PREEMPTED] = preempted_now
            ints[I_CUR_GHOSTS] = ghosts
            floats[F_CUR_NEW] = new
            floats[F_CUR_KV] = step_kv
            ints[I_GHOSTS] = ints[I_FIN0 + side]
        else:
            ints[I_NOW_VALID] = 0

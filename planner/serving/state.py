"""Where the kernel keeps what: its arrays, their columns, policy and delay slots, codes.

What is called ``plan`` is the step just planned, ``cur`` the step that runs while it is planned. ``I_TAKEN``,
``I_LOOSE``, ``S_LEFT``, ``S_LEFT_AT``, ``P_REUSE`` and ``P_PARTIAL_FIRST`` are of what preempted requests find again:
``prefixcache.give_blocks``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# integer state
(
    I_NOW_VALID,
    I_COUNTER,
    I_DECODING,
    I_RUNNING,
    I_FREE,
    I_NEXT,
    I_ISSUED,
    I_DONE,
    I_HEAP,
    I_ORDER,
    I_PREEMPTED,
    I_PARTIAL,
    I_SEQ,
    I_PREEMPTIONS,
    I_STEPS,
    I_FREE_SLOTS,
    I_SIDE,
    I_CUR_PROMPTS,
    I_CUR_DECODES,
    I_FIN0,
    I_FIN1,
    I_FIRST0,
    I_FIRST1,
    I_GHOSTS,
    I_LEAPT,
    I_SAMPLES,
    I_CUR_PREEMPTED,
    I_CUR_GHOSTS,
    I_PLAN_SIDE,
    I_PLAN_PROMPTS,
    I_PLAN_DECODES,
    I_PLAN_PREEMPTED,
    I_PLAN_GHOSTS,
    I_CACHED,
    I_TAKEN,
    I_LOOSE,
    I_TAKEN_IN,
    I_BOX,
    I_BOX_HEAD,
    I_FIRSTS,
    I_FIRSTS_HEAD,
    I_LASTS,
    I_LASTS_HEAD,
    I_COUNT,
) = range(44)

# float state
(
    F_NOW,
    F_CUR_MS,
    F_CUR_NEW,
    F_CUR_KV,
    F_KV_SUM,
    F_BUSY_MS,
    F_BATCH_MS,
    F_ALLOC_MS,
    F_LIVE_MS,
    F_NEXT_SAMPLE,
    F_SAMPLE_MS,
    F_LAST_MS,
    F_PREFILLED,
    F_HELD,
    F_FRONT_DONE,
    F_RECEIVED,
    F_PLAN_MS,
    F_PLAN_NEW,
    F_PLAN_KV,
    F_PLAN_PAIRS,
    F_LOOP_FREE,
    F_LOOP_SENT,
    F_TOKENISED,
    F_COUNT,
) = range(24)

# per-slot integers
(
    S_INPUT,
    S_OUTPUT,
    S_HIT,
    S_GENERATED,
    S_COMPUTED,
    S_START,
    S_PHASE,
    S_BLOCKS,
    S_SEQ,
    S_STATE,
    S_ID,
    S_UNITS,
    S_LEFT,
    S_LEFT_AT,
    S_REQUEST,
    S_COUNT,
) = range(16)
# per-slot times, and the KV tokens that a sequence out of the aggregates holds
T_SEND, T_FIRST, T_LAST, T_HELD, T_COUNT = range(5)
# slot states
FREE, PREFILL, DECODE, FINISHING, PREEMPTED = range(5)

# policy integers
(
    P_MAX_SEQS,
    P_BUDGET,
    P_BLOCK,
    P_POOL,
    P_CHUNKED,
    P_RESERVE,
    P_FULL_SEQUENCE,
    P_WATERMARK,
    P_ASYNC,
    P_GHOST,
    P_PP,
    P_CLOSED,
    P_SPEC,
    P_PERIOD,
    P_REQUESTS,
    P_CHUNK_MULTIPLE,
    P_CACHED_IN_BUDGET,
    P_UNIT,
    P_UNIT_BLOCKS,
    P_REUSE,
    P_PARTIAL_FIRST,
    P_LOOP,
    P_COUNT,
) = range(23)
# policy floats
(
    Q_TOKENS_PER_STEP,
    Q_TURNAROUND,
    Q_RESPONSE,
    Q_REQUEST,
    Q_REQUEST_PER_1K,
    Q_REQUEST_SERIAL,
    Q_CHUNK,
    Q_MERGE_BELOW,
    Q_LOOP_REQUEST,
    Q_LOOP_REQUEST_PER_1K,
    Q_LOOP_LATENCY,
    Q_LOOP_PARSING,
    Q_LOOP_TURNS,
    Q_LOOP_END,
    Q_LOOP_CHUNK,
    Q_LOOP_LARGE_CHUNK,
    Q_LOOP_STEP,
    Q_TOKENISE_PER_1K,
    Q_COUNT,
) = range(19)

# record columns
R_SEND, R_TTFT, R_E2E, R_INPUT, R_OUTPUT, R_HIT, R_ID, R_COUNT = range(8)
# timeline columns
L_TIME, L_RUNNING, L_ADMITTED, L_USED, L_LIVE, L_COUNT = range(6)

ITL_BINS = 4096
ITL_LOW_MS = 0.01
ITL_LOG_STEP = 0.006

OK, STUCK, RECORDS_FULL = range(3)


# rows of the lists of slots: free, preempted (last first), and by side those whose last or first token a step computes
M_FREE, M_PREEMPTED, M_FINISHING, M_FIRSTS, M_COUNT = 0, 1, 2, 4, 6
# columns of the heap of finishing steps: step counter, slot, its admission
H_KEY, H_SLOT, H_SEQ, H_COUNT = range(4)
# columns of the prefix cache: how many run on a unit, and its neighbours among the unused, the longest unused first
C_USERS, C_PREVIOUS, C_NEXT, C_COUNT = range(4)
NOT_THERE = -1
# a request in the API server's loop: when it may go on, when its first token went out, passes since it was parsed
A_READY, A_FIRST, A_PASSES, A_COUNT = range(4)
# a step's tokens on their way to the clients: since when, how many are left, were there, decode, are first, last ones
O_READY, O_LEFT, O_TOKENS, O_DECODES, O_FIRSTS, O_LASTS, O_COUNT = range(7)


class KernelState(NamedTuple):
    """The arrays of one instance; what numba passes from part to part.

    ``visible`` (sorted), ``sent``, ``inputs``, ``outputs``, ``hits``, ``think`` and ``ids`` hold the requests; without
    ``ids`` requests have no number. ``chain``, ``spans``, ``cache``: see ``prefixcache``.
    """

    policy: np.ndarray
    delays: np.ndarray
    visible: np.ndarray
    sent: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    hits: np.ndarray
    think: np.ndarray
    ids: np.ndarray
    ints: np.ndarray
    floats: np.ndarray
    slots: np.ndarray
    times: np.ndarray
    lists: np.ndarray
    heap: np.ndarray
    order: np.ndarray  # slot and admission of the running sequences, in order of admission
    residues: np.ndarray  # decoding sequences that take a block, by the step counter modulo the period
    records: np.ndarray
    itl_hist: np.ndarray
    timeline: np.ndarray
    chain: np.ndarray
    spans: np.ndarray
    cache: np.ndarray
    arrivals: np.ndarray
    box: np.ndarray  # rings of the API server's loop: steps, and the requests of the first and last tokens in them
    firsts: np.ndarray
    lasts: np.ndarray

"""Sessions: requests that follow each other, each with all that was said before in its prompt.

A turn's prompt is the shared beginning, the earlier turns with their answers, and its own new tokens. So the prompts of
a session are the beginnings of one text, and what one turn left in the KV pool the next can use.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.errors import InfeasibleError, InputError
from planner.serving.arrivals import Prefixes, RequestSet, arrival_times_ms, check_load, draw_tokens
from planner.serving.types import I64, Lengths, Load

MOST_REQUESTS = 40_000
WARM_PAUSES = 2.0
"""An open load of sessions is measured after so many pauses: what is touched less often is evicted or not alike."""

MEASURED_PAUSES, MEASURED_REQUESTS = 2.0, 1_500
FIRST_TOKEN_S, TOKEN_S, STREAMS = 0.1, 0.02, 16
"""What the first token of an answer is taken to wait, each token to last where no step times are known, and the batch
for which step times are asked, when the time between two turns is estimated.
"""

_MOST_UNITS = 1_000_000


def turn_s(load: Load, outputs: Lengths, token_s: float = TOKEN_S) -> float:
    """Roughly the time from one turn of a session to the next, with ``token_s`` seconds a token."""
    return load.think_s + FIRST_TOKEN_S + token_s * outputs.expected


def session_requests(load: Load, outputs: Lengths, token_s: float = TOKEN_S) -> int:
    """How many requests show a steady state: some turns of every session that lives, and enough to measure."""
    if load.requests is not None:
        return load.requests
    if load.kind == "closed":
        turns = load.turns.expected if load.turns is not None else 1.0
        return int(min(MOST_REQUESTS, max(load.concurrency * (6 + turns), 200)))
    if load.kind == "offline":
        raise InputError("an offline load needs the number of requests", field="load.requests", value=None)
    a_turn = load.rate_per_s * turn_s(load, outputs, token_s)
    return int(min(MOST_REQUESTS, WARM_PAUSES * a_turn + max(MEASURED_PAUSES * a_turn, MEASURED_REQUESTS)))


def longest_prompt(load: Load, inputs: Lengths, outputs: Lengths) -> int:
    """Tokens of the longest prompt: of the last turn of the longest session, its earlier turns together four standard
    deviations above their mean, or the longest possible.
    """
    if load.turns is None:
        return inputs.longest
    earlier = load.turns.longest - 1
    spread = 4.0 * math.sqrt(earlier * (_variance(inputs) + _variance(outputs)))
    before = earlier * (inputs.expected + outputs.expected) + spread
    return load.shared_tokens + min(math.ceil(before), earlier * (inputs.longest + outputs.longest)) + inputs.longest


def mean_prompt(load: Load, inputs: Lengths, outputs: Lengths) -> float:
    """Mean prompt tokens of a request, sessions cut nowhere: a request's mean number of turns before it is
    (E[n^2] / E[n] - 1) / 2.
    """
    if load.turns is None:
        return inputs.expected
    turns = load.turns.expected
    before = (_second_moment(load.turns) / turns - 1.0) / 2.0
    return load.shared_tokens + inputs.expected + before * (inputs.expected + outputs.expected)


def _variance(lengths: Lengths) -> float:
    return max(0.0, _second_moment(lengths) - lengths.expected**2)


def _second_moment(lengths: Lengths) -> float:
    if lengths.kind == "fixed":
        return float(lengths.value) ** 2
    if lengths.kind == "normal":
        return lengths.mean**2 + lengths.sd**2
    if lengths.kind == "uniform":
        count = lengths.high - lengths.low + 1
        return ((lengths.low + lengths.high) / 2) ** 2 + (count**2 - 1) / 12
    return sum(n * n for n in lengths.samples) / len(lengths.samples)


def session_set(
    load: Load,
    inputs: Lengths,
    outputs: Lengths,
    *,
    seed: int,
    block_tokens: int,
    max_len: int,
    token_s: float = TOKEN_S,
) -> RequestSet:
    """Draw sessions of about as many requests as the load asks for.

    A session ends early when its context would pass ``max_len``. Open: sessions arrive at the rate that gives
    ``rate_per_s`` requests, beside those that already live at the start; the first turns of these, and what is sent
    after the last session came, are not measured. Closed: a benchmark of a stated number of requests begins with first
    turns; a service that runs on is met in the middle, each client's first session at a turn drawn at random. Raises
    InputError naming the field that makes no sense and InfeasibleError when a first turn is longer than ``max_len``.
    """
    check_sessions(load)
    rng = np.random.default_rng(seed)
    turns, living = _turns(load, turn_s(load, outputs, token_s), session_requests(load, outputs, token_s), rng)
    new = draw_tokens(inputs, int(turns.sum()), rng, None, "input_tokens")
    answer = draw_tokens(outputs, new.size, rng, None, "output_tokens")
    session = np.repeat(np.arange(turns.size), turns)
    first = np.cumsum(turns) - turns
    before = np.cumsum(new + answer) - (new + answer)
    prompt = load.shared_tokens + before - before[first][session] + new
    fits = prompt + answer <= max_len
    if not fits[first].all():
        longest = int((prompt + answer)[first].max())
        raise InfeasibleError(
            f"the first turn of a session takes {longest} tokens and max_model_len is {max_len}",
            field="max_model_len",
            value=max_len,
            remedy="Raise max_model_len or shorten the turns.",
        )
    turn = np.arange(new.size) - first[session]
    met = np.zeros(turns.size, dtype=np.int64)
    met[:living] = rng.random(living) * np.bincount(session[fits], minlength=turns.size)[:living]
    keep = fits & (turn >= met[session])
    think = rng.exponential(load.think_s * 1000.0, new.size) if load.think_s > 0 else np.zeros(new.size)
    session, prompt, answer, think = session[keep], prompt[keep], answer[keep], think[keep]
    starts = np.flatnonzero(np.diff(session, prepend=-1))
    requests = RequestSet(
        sent_ms=np.zeros(session.size),
        inputs=prompt,
        outputs=answer,
        hits=np.zeros(session.size, dtype=np.int64),
        closed=load.kind == "closed",
        first_issued=starts.size,
        think_ms=think,
        following=np.where(np.append(session[1:] == session[:-1], False), np.arange(session.size) + 1, -1),
        prefixes=session_prefixes(session, prompt, answer, load.shared_tokens, block_tokens),
    )
    if load.kind == "offline":
        return requests
    if load.kind == "closed":
        return _dealt_to_clients(requests, load, starts)
    return _arriving(requests, load, turn_s(load, outputs, token_s), starts, living, rng)


def check_sessions(load: Load) -> None:
    """Raise InputError naming the field of a load of sessions that makes no sense."""
    check_load(load)
    if load.prefix_hit:
        raise InputError(
            "must be 0 for sessions: what they find cached comes out of the simulation",
            field="load.prefix_hit",
            value=load.prefix_hit,
        )
    if load.arrival == "trace" and load.kind == "open":
        raise InputError(
            "a trace holds single requests",
            field="load.arrival",
            value="trace",
            remedy="Let sessions arrive by poisson, constant, gamma or onoff.",
        )


def session_prefixes(session: I64, prompt: I64, answer: I64, shared_tokens: int, block_tokens: int) -> Prefixes:
    """The units of requests whose prompts are beginnings of their session's text; all begin with ``shared_tokens``.

    ``session`` numbers ascending; a unit is one block, or several where there would be too many.
    """
    owner, last = np.unique(session[::-1], return_index=True)
    ends = (prompt + answer)[session.size - 1 - last]
    unit = block_tokens * max(1, math.ceil(int(ends.sum()) / block_tokens / _MOST_UNITS))
    units = ends // unit
    shared = shared_tokens // unit
    own = np.maximum(units - shared, 0)
    offset = np.cumsum(units) - units
    own_offset = np.cumsum(own) - own
    place = np.arange(int(units.sum())) - np.repeat(offset, units)
    chain = np.where(place < shared, place, place + np.repeat(own_offset, units))
    row = np.searchsorted(owner, session)
    spans = np.column_stack([offset[row], (prompt + answer - 1) // unit]).astype(np.int64)
    return Prefixes(unit, shared + int(own.sum()), chain.astype(np.int32), spans)


def _turns(load: Load, a_turn_s: float, count: int, rng: np.random.Generator) -> tuple[I64, int]:
    """Turns of each session, and how many of them, the first, live already when the simulation starts.

    A session that is met somewhere in its life is a long one more often: drawn by its turns.
    """
    if load.turns is None:
        raise InputError("is missing", field="load.turns")
    sessions = max(1, math.ceil(count / max(load.turns.expected, 1.0)))
    if load.kind == "closed":
        sessions = max(sessions, load.concurrency)
    turns = draw_tokens(load.turns, sessions, rng, None, "load.turns")
    if load.kind == "offline":
        return turns, 0
    if load.kind == "closed":
        return turns, 0 if load.requests is not None else min(load.concurrency, sessions)
    mean = float(turns.mean())
    life_s = mean * a_turn_s - load.think_s
    living = min(MOST_REQUESTS, round(load.rate_per_s / mean * life_s))
    return np.concatenate([rng.choice(turns, living, p=turns / turns.sum()), turns]), living


def _arriving(
    requests: RequestSet, load: Load, a_turn_s: float, starts: I64, living: int, rng: np.random.Generator
) -> RequestSet:
    """The first ``living`` sessions send a turn within the time of one, the others arrive by the load's law."""
    arriving = starts[living:]
    per_session = (requests.size - arriving[0]) / arriving.size
    sessions = replace(load, rate_per_s=load.rate_per_s / per_session, requests=None, turns=None, shared_tokens=0)
    sent = requests.sent_ms.copy()
    sent[arriving] = arrival_times_ms(sessions, arriving.size, rng)
    a_turn_ms = a_turn_s * 1000.0
    sent[starts[:living]] = rng.random(living) * a_turn_ms
    last_ms = float(sent.max())
    measured = (min(WARM_PAUSES * a_turn_ms, 0.5 * last_ms), last_ms) if arriving.size >= 20 else None
    found = replace(requests, sent_ms=sent, measured_ms=measured, offered_per_s=load.rate_per_s)
    return found if measured is None else _until(found, starts, last_ms + (a_turn_s - load.think_s) * 1000.0)


def _until(requests: RequestSet, starts: I64, end_ms: float) -> RequestSet:
    """Without the turns that their sessions' pauses alone put behind ``end_ms``: nothing of them is measured.

    What is sent in the time of an answer after the last that counts stays, so that those are answered among others.
    """
    if requests.following is None or requests.prefixes is None:
        raise InputError("is missing", field="following")
    session = np.searchsorted(starts, np.arange(requests.size), side="right") - 1
    pauses = np.cumsum(requests.think_ms)
    keep = requests.sent_ms[starts][session] + pauses - pauses[starts][session] <= end_ms
    number = np.cumsum(keep) - 1
    following = requests.following[keep]
    follows = (following >= 0) & keep[following]
    return replace(
        requests,
        sent_ms=requests.sent_ms[keep],
        inputs=requests.inputs[keep],
        outputs=requests.outputs[keep],
        hits=requests.hits[keep],
        think_ms=requests.think_ms[keep],
        first_issued=int(starts.size),
        following=np.where(follows, number[following], -1),
        prefixes=replace(requests.prefixes, spans=requests.prefixes.spans[keep]),
    )


def _dealt_to_clients(requests: RequestSet, load: Load, starts: I64) -> RequestSet:
    """Client c takes the sessions c, c + concurrency, ... one after the other, with a pause between them.

    Clients that are met in the middle are in a pause, each in its own.
    """
    if requests.following is None:
        raise InputError("is missing", field="following")
    following = requests.following.copy()
    ends = np.append(starts[1:], requests.size) - 1
    clients = min(load.concurrency, starts.size)
    following[ends[:-clients]] = starts[clients:]
    dealt = replace(requests, following=following, first_issued=clients)
    if load.requests is not None:
        return dealt
    sent = requests.sent_ms.copy()
    sent[starts[:clients]] = requests.think_ms[starts[:clients]]
    return replace(dealt, sent_ms=sent, at_work=clients)

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
from planner.serving.types import F64, I64, Lengths, Load

LIVES = 5
"""An open load of sessions is simulated for so many mean sessions, the first of which is not measured."""

MOST_REQUESTS = 40_000
ANSWER_S, TOKEN_S = 1.0, 0.02
"""What an answer is taken to last, and each of its tokens, when the length of a session is estimated."""

_MOST_UNITS = 1_000_000


def session_life_s(load: Load, outputs: Lengths) -> float:
    """Roughly how long a session lasts."""
    turns = load.turns.expected if load.turns is not None else 1.0
    return turns * (ANSWER_S + TOKEN_S * outputs.expected) + max(0.0, turns - 1.0) * load.think_s


def session_requests(load: Load, outputs: Lengths) -> int:
    """How many requests give a steady state: several lives of sessions; ten turns of each client in a closed loop."""
    if load.requests is not None:
        return load.requests
    turns = load.turns.expected if load.turns is not None else 1.0
    if load.kind == "closed":
        return int(min(MOST_REQUESTS, max(load.concurrency * (10 + turns), 200)))
    if load.kind == "offline":
        raise InputError("an offline load needs the number of requests", field="load.requests", value=None)
    return int(min(MOST_REQUESTS, max(2_000, LIVES * load.rate_per_s * session_life_s(load, outputs))))


def longest_prompt(load: Load, inputs: Lengths, outputs: Lengths) -> int:
    """Tokens of the longest prompt: of the last turn of the longest session, its earlier turns of mean length."""
    if load.turns is None:
        return inputs.longest
    before = (load.turns.longest - 1) * (inputs.expected + outputs.expected)
    return load.shared_tokens + math.ceil(before) + inputs.longest


def mean_prompt(load: Load, inputs: Lengths, outputs: Lengths) -> float:
    """Mean prompt tokens of a request, sessions cut nowhere: a request's mean number of turns before it is
    (E[n^2] / E[n] - 1) / 2.
    """
    if load.turns is None:
        return inputs.expected
    turns = load.turns.expected
    before = (_second_moment(load.turns) / turns - 1.0) / 2.0
    return load.shared_tokens + inputs.expected + before * (inputs.expected + outputs.expected)


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
    load: Load, inputs: Lengths, outputs: Lengths, *, seed: int, block_tokens: int, max_len: int
) -> RequestSet:
    """Draw sessions of about as many requests as the load asks for.

    A session ends early when its context would pass ``max_len``. Open: sessions arrive at the rate that gives
    ``rate_per_s`` requests; what is sent in the first life of a session, and after the last session came, is not
    measured. Closed: a benchmark of a stated number of requests begins with first turns; a service that runs on is met
    in the middle, each client's first session at a turn drawn at random. Raises InputError naming the field that makes
    no sense and InfeasibleError when a first turn is longer than ``max_len``.
    """
    check_sessions(load)
    rng = np.random.default_rng(seed)
    count = session_requests(load, outputs)
    turns = _turns(load, count, rng)
    new = draw_tokens(inputs, int(turns.sum()), rng, None, "input_tokens")
    answer = draw_tokens(outputs, new.size, rng, None, "output_tokens")
    session = np.repeat(np.arange(turns.size), turns)
    first = np.concatenate([[0], np.cumsum(turns)[:-1]])
    said = np.cumsum(new + answer)
    before = said - (new + answer)
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
    keep = fits.copy()
    if load.kind == "closed" and load.requests is None:
        lengths = np.bincount(session[fits], minlength=turns.size)
        met = np.zeros(turns.size, dtype=np.int64)
        met[: load.concurrency] = (rng.random(min(load.concurrency, turns.size)) * lengths[: load.concurrency]).astype(
            np.int64
        )
        keep &= turn >= met[session]
    think = np.where(turn > 0, rng.exponential(load.think_s * 1000.0, new.size), 0.0) if load.think_s else _zeros(new)
    session, prompt, answer, think = session[keep], prompt[keep], answer[keep], think[keep]
    starts = np.flatnonzero(np.diff(session, prepend=-1))
    following = np.where(np.append(session[1:] == session[:-1], False), np.arange(session.size) + 1, -1)
    requests = RequestSet(
        sent_ms=np.zeros(session.size),
        inputs=prompt,
        outputs=answer,
        hits=np.zeros(session.size, dtype=np.int64),
        closed=load.kind == "closed",
        first_issued=starts.size,
        think_ms=think,
        following=following,
        prefixes=session_prefixes(session, prompt, answer, load.shared_tokens, block_tokens),
    )
    if load.kind == "offline":
        return requests
    if load.kind == "closed":
        return _dealt_to_clients(requests, load, starts, session, rng)
    return _arriving(requests, load, outputs, starts, rng)


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


def trace_prefixes(blocks: list[list[int]], unit_tokens: int, inputs: I64) -> Prefixes:
    """The units of a trace's prompts, as the numbers of its prefix blocks; answers are taken to be used by nobody."""
    numbers: dict[int, int] = {}
    whole = [row[: int(length) // unit_tokens] for row, length in zip(blocks, inputs, strict=True)]
    chain = np.array([numbers.setdefault(block, len(numbers)) for row in whole for block in row], dtype=np.int32)
    counts = np.array([len(row) for row in whole], dtype=np.int64)
    return Prefixes(unit_tokens, len(numbers), chain, np.column_stack([np.cumsum(counts) - counts, counts]))


def _turns(load: Load, count: int, rng: np.random.Generator) -> I64:
    """Turns of sessions that add up to about ``count`` requests, at least one session a client."""
    if load.turns is None:
        raise InputError("is missing", field="load.turns")
    sessions = max(
        1, math.ceil(count / max(load.turns.expected, 1.0)), load.concurrency if load.kind == "closed" else 1
    )
    return draw_tokens(load.turns, sessions, rng, None, "load.turns")


def _zeros(like: I64) -> F64:
    return np.zeros(like.size)


def _arriving(requests: RequestSet, load: Load, outputs: Lengths, starts: I64, rng: np.random.Generator) -> RequestSet:
    per_session = requests.size / starts.size
    sessions = replace(load, rate_per_s=load.rate_per_s / per_session, requests=None, turns=None, shared_tokens=0)
    sent = requests.sent_ms.copy()
    sent[starts] = arrival_times_ms(sessions, starts.size, rng)
    last_ms = float(sent.max())
    life_ms = min(session_life_s(load, outputs) * 1000.0, 0.5 * last_ms)
    measured = (life_ms, last_ms) if starts.size >= 20 else None
    return replace(requests, sent_ms=sent, measured_ms=measured)


def _dealt_to_clients(
    requests: RequestSet, load: Load, starts: I64, session: I64, rng: np.random.Generator
) -> RequestSet:
    """Client c takes the sessions c, c + concurrency, ... one after the other, with a pause between them."""
    following, think = requests.following, requests.think_ms.copy()
    if following is None:
        raise InputError("is missing", field="following")
    following = following.copy()
    ends = np.append(starts[1:], requests.size) - 1
    clients = min(load.concurrency, starts.size)
    following[ends[:-clients] if clients else ends] = starts[clients:]
    if load.think_s:
        think[starts] = rng.exponential(load.think_s * 1000.0, starts.size)
    return replace(requests, following=following, think_ms=think, first_issued=clients)

"""Request sets: when each request is sent and how many tokens it brings, drawn from a Load and its Lengths.

Everything is drawn from one ``numpy.random.Generator(seed)`` in a fixed order, so that the same seed gives the same
bits and two rates differ only by the scale of time (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.serving.types import F64, I64, Lengths, Load


@dataclass(frozen=True, eq=False)
class Prefixes:
    """What prompts have in common, in units of ``unit_tokens``: request i, prompt and answer, is made of the units
    ``chain[a : a + n]``, with (a, n) = ``spans[i]``; equal numbers (below ``units``) are equal tokens after an equal
    beginning.
    """

    unit_tokens: int
    units: int
    chain: NDArray[np.int32]
    spans: I64


@dataclass(frozen=True, eq=False)
class RequestSet:
    """Requests in the order they are sent. ``sent_ms`` is 0 for requests that follow others, in a closed loop or in a
    session; ``following`` the request that a client sends after one (-1: none), where that is fixed. With ``prefixes``
    cache hits come from what is in the pool. Results are taken from ``measured_ms`` alone when it is given: from and
    to when requests are sent. With ``at_work`` they are of a service that so many clients keep using.
    """

    sent_ms: F64
    inputs: I64
    outputs: I64
    hits: I64  # prompt tokens found in the prefix cache, whole blocks
    closed: bool
    first_issued: int  # how many are sent at once; all of them unless closed
    think_ms: F64  # pause of the client before the i-th request; else empty
    following: I64 | None = None
    prefixes: Prefixes | None = None
    measured_ms: tuple[float, float] | None = None
    offered_per_s: float = 0.0  # of open sessions, which send less when their answers come late
    at_work: int = 0  # clients of closed sessions that are met in the middle; else 0

    @property
    def size(self) -> int:
        """Number of requests."""
        return int(self.inputs.size)


def default_requests(load: Load) -> int:
    """How many requests give stable percentiles: ten rounds of a closed loop, at least 2,000 of an open one."""
    if load.requests is not None:
        return load.requests
    if load.kind == "closed":
        return max(10 * load.concurrency, 24)
    if load.arrival == "trace":
        return len(load.times_s)
    if load.kind == "offline":
        raise InputError("an offline load needs the number of requests", field="load.requests", value=None)
    return int(min(20_000, max(2_000, load.rate_per_s * 120)))


def mean_rate(times_s: tuple[float, ...]) -> float:
    """Mean arrivals per second of a trace; raises InputError when it spans no time."""
    span = times_s[-1] - times_s[0] if len(times_s) > 1 else 0.0
    if span <= 0:
        raise InputError("needs at least two different times", field="load.times_s")
    return (len(times_s) - 1) / span


def trace_at_rate(times_s: tuple[float, ...], rate_per_s: float) -> tuple[float, ...]:
    """Arrivals of a trace at another mean rate.

    Below its own rate the trace is thinned as a round-robin router thins it among instances, which spreads the bursts;
    above, it is compressed in time. Raises InputError when the trace spans no time.
    """
    factor = mean_rate(times_s) / rate_per_s
    if factor > 1.0:
        last = len(times_s) - 1  # i * factor may round up past it
        return tuple(times_s[min(int(i * factor), last)] for i in range(max(1, math.ceil(len(times_s) / factor))))
    start = times_s[0]
    return tuple(start + (t - start) * factor for t in times_s)


def check_load(load: Load) -> None:
    """Raise InputError naming the field of ``load`` that makes no sense."""
    if load.kind == "closed" and load.concurrency < 1:
        raise InputError("must be at least 1", field="load.concurrency", value=load.concurrency)
    if load.kind == "open" and load.arrival != "trace" and not 0 < load.rate_per_s < 1e7:
        raise InputError("must be above 0", field="load.rate_per_s", value=load.rate_per_s)
    if load.arrival == "trace" and load.kind == "open":
        times = np.asarray(load.times_s, dtype=np.float64)
        if times.size == 0 or not np.isfinite(times).all() or bool((np.diff(times) < 0).any()):
            raise InputError("must be finite and ascending, at least one", field="load.times_s")
    if load.requests is not None and load.requests < 1:
        raise InputError("must be at least 1", field="load.requests", value=load.requests)
    if not 0 <= load.think_s < 1e6:
        raise InputError("must be at least 0", field="load.think_s", value=load.think_s)
    if load.stream_interval < 1:
        raise InputError("must be at least 1", field="load.stream_interval", value=load.stream_interval)
    if load.shared_tokens < 0 or (load.shared_tokens and load.turns is None):
        raise InputError("belongs to sessions (turns), and is at least 0", field="load.shared_tokens")
    if not 0 <= load.prefix_hit <= 1:
        raise InputError("must be between 0 and 1", field="load.prefix_hit", value=load.prefix_hit)
    if load.arrival == "gamma" and load.cv <= 0:
        raise InputError("must be above 0", field="load.cv", value=load.cv)
    if load.arrival == "onoff" and not (0 < load.on_share <= 1 and load.period_s > 0):
        raise InputError("must be above 0 and at most 1", field="load.on_share", value=load.on_share)


def draw_tokens(lengths: Lengths, count: int, rng: np.random.Generator, index: I64 | None, field: str) -> I64:
    """``count`` token counts of at least 1. ``index`` picks the samples when two sides are drawn together."""
    if lengths.kind == "fixed":
        drawn = np.full(count, lengths.value, dtype=np.int64)
    elif lengths.kind == "normal":
        drawn = np.maximum(np.rint(_with_spread(lengths.mean, lengths.sd, count, rng)).astype(np.int64), 1)
    elif lengths.kind == "uniform":
        if lengths.high < lengths.low:
            raise InputError("high is below low", field=field, value=(lengths.low, lengths.high))
        drawn = rng.integers(lengths.low, lengths.high + 1, count)
    else:
        samples = np.asarray(lengths.samples, dtype=np.int64)
        if samples.size == 0:
            raise InputError("needs at least one sample", field=field)
        drawn = samples[index if index is not None else rng.integers(0, samples.size, count)]
    if drawn.size and int(drawn.min()) < 1:
        raise InputError("must be at least 1 token", field=field, value=int(drawn.min()))
    return np.ascontiguousarray(drawn, dtype=np.int64)


def _with_spread(mean: float, sd: float, count: int, rng: np.random.Generator) -> F64:
    """Positive draws with this mean and standard deviation: gamma, which is near normal for a small spread and
    exponential at ``sd`` = ``mean``. A normal cut at zero would raise the mean of a wide spread by a fifth and lose its
    tail.
    """
    if sd <= 1e-4 * mean:
        return np.full(count, mean)
    shape = (mean / sd) ** 2
    return rng.gamma(shape, mean / shape, count)


def request_set(load: Load, inputs: Lengths, outputs: Lengths, *, seed: int, block_tokens: int) -> RequestSet:
    """Draw the requests of ``load``. Raises InputError naming the field that makes no sense."""
    check_load(load)
    count = default_requests(load)
    rng = np.random.default_rng(seed)
    if load.turns is not None:
        raise InputError("sessions are not simulated here", field="load.turns", remedy="Give single requests.")
    together = inputs.kind == "samples" and outputs.kind == "samples" and len(inputs.samples) == len(outputs.samples)
    index = None
    if together:
        replay = load.kind == "open" and load.arrival == "trace" and len(inputs.samples) == count
        index = np.arange(count) if replay else rng.integers(0, len(inputs.samples), count)
    prompt = draw_tokens(inputs, count, rng, index, "input_tokens")
    output = draw_tokens(outputs, count, rng, index, "output_tokens")
    steady = load.kind == "closed" and load.requests is None and inputs.kind == outputs.kind == "fixed"
    if steady:
        output = _out_of_step(output, rng)
    think = rng.exponential(load.think_s * 1000.0, count) if load.think_s > 0 else np.zeros(count)
    hits = _hits(load, prompt, block_tokens)
    if load.kind == "open":
        return RequestSet(
            arrival_times_ms(load, count, rng), prompt, output, hits, closed=False, first_issued=count, think_ms=think
        )
    closed = load.kind == "closed"
    return RequestSet(
        np.zeros(count),
        prompt,
        output,
        hits,
        closed=closed,
        first_issued=min(load.concurrency, count) if closed else count,
        think_ms=think,
    )


def _out_of_step(output: I64, rng: np.random.Generator) -> I64:
    """Outputs of equal length, varied by up to a tenth: clients of a service that runs on do not stay in step.

    A tenth is what published closed loops of equal lengths show (vLLM and TensorRT-LLM on H100, 8-128 clients, 128-1024
    outputs: TPOT within 2-3 %, where 3 % of variation keeps short outputs in step and doubles their TTFT).

    A benchmark of a stated number of equal requests does (its prompts arrive together, round after round), and is
    simulated as stated.
    """
    varied = np.rint(output * rng.uniform(0.9, 1.1, output.size)).astype(np.int64)
    return np.maximum(varied, 1)


def request_chunks(
    load: Load, inputs: Lengths, outputs: Lengths, *, seed: int, block_tokens: int, chunk: int
) -> Iterator[RequestSet]:
    """The requests of a long open load, ``chunk`` at a time; the same seed and chunk give the same requests.

    A trace's lengths follow its times when both sides have one sample per time.
    """
    check_load(load)
    count = default_requests(load)
    rng = np.random.default_rng(seed)
    samples = len(inputs.samples)
    together = inputs.kind == "samples" and outputs.kind == "samples" and samples == len(outputs.samples)
    replay = together and load.arrival == "trace" and samples == count
    elapsed = 0.0  # mean gaps since the start
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        index = None
        if together:
            index = np.arange(start, start + size) if replay else rng.integers(0, samples, size)
        prompt = draw_tokens(inputs, size, rng, index, "input_tokens")
        output = draw_tokens(outputs, size, rng, index, "output_tokens")
        if load.arrival == "trace":
            times = np.asarray(load.times_s[start : start + size], dtype=np.float64)
            sent = (times - load.times_s[0]) * 1000.0
        else:
            gaps = elapsed + np.cumsum(_unit_gaps(load, size, rng))
            elapsed = float(gaps[-1])
            sent = _spread(load, gaps)
        yield RequestSet(
            sent,
            prompt,
            output,
            _hits(load, prompt, block_tokens),
            closed=False,
            first_issued=size,
            think_ms=np.zeros(size),
        )


def _hits(load: Load, prompt: I64, block_tokens: int) -> I64:
    """Prompt tokens found in the prefix cache: whole blocks, at least one token left to compute."""
    hits = (np.floor(prompt * load.prefix_hit).astype(np.int64) // block_tokens) * block_tokens
    return np.minimum(hits, (prompt - 1) // block_tokens * block_tokens)


def _unit_gaps(load: Load, count: int, rng: np.random.Generator) -> F64:
    """Gaps between arrivals in units of their mean."""
    if load.arrival == "constant":
        return np.ones(count)
    if load.arrival == "gamma":
        shape = 1.0 / load.cv**2
        return rng.gamma(shape, 1.0 / shape, count)
    return rng.exponential(1.0, count)


def _spread(load: Load, gaps: F64) -> F64:
    """Cumulated unit gaps to times in ms. On-off: Poisson at rate / on_share in a period's on part, else silent."""
    times = gaps * (1000.0 / load.rate_per_s)
    if load.arrival != "onoff":
        return times
    on_ms = load.period_s * 1000.0 * load.on_share
    active = times * load.on_share
    return np.floor(active / on_ms) * load.period_s * 1000.0 + active % on_ms


def arrival_times_ms(load: Load, count: int, rng: np.random.Generator) -> F64:
    """When ``count`` requests of an open load are sent, ms from the start, ascending."""
    if load.arrival == "trace":
        times = np.asarray(load.times_s[:count], dtype=np.float64)
        if times.size < count:
            raise InputError("asks for more requests than the trace holds", field="load.requests", value=count)
        return (times - times[0]) * 1000.0
    gaps = _unit_gaps(load, count, rng)
    if load.requests is not None:  # as vLLM's load generator: the last of N requests falls at N / rate
        gaps *= count / gaps.sum()
    return _spread(load, np.cumsum(gaps) - (gaps[0] if load.arrival == "constant" else 0.0))

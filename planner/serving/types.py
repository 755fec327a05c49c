"""Loads, service-level objectives and what the simulator answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.evidence import Evidence, Interval

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of one side of a request.

    ``kind`` fixed (``value``), normal (``mean``, ``sd``: drawn from the gamma distribution with both, at least 1),
    uniform (``low``..``high``, both included) or samples (``samples``, drawn with replacement; input and output samples
    of one trace are drawn together).
    """

    kind: Literal["fixed", "normal", "uniform", "samples"]
    value: int = 0
    mean: float = 0.0
    sd: float = 0.0
    low: int = 0
    high: int = 0
    samples: tuple[int, ...] = ()

    @property
    def expected(self) -> float:
        """Mean number of tokens."""
        if self.kind == "fixed":
            return float(self.value)
        if self.kind == "normal":
            return self.mean
        if self.kind == "uniform":
            return (self.low + self.high) / 2
        return sum(self.samples) / len(self.samples)

    @property
    def longest(self) -> int:
        """Longest length that occurs: for a normal distribution its mean plus four standard deviations."""
        if self.kind == "fixed":
            return self.value
        if self.kind == "uniform":
            return self.high
        if self.kind == "normal":
            return max(1, math.ceil(self.mean + 4 * self.sd))
        return max(self.samples)


@dataclass(frozen=True, slots=True)
class Load:
    """Who asks, how often.

    closed: ``concurrency`` clients, each sends its next request when the last ended. open: ``rate_per_s`` arrivals, by
    ``arrival`` (poisson, constant, gamma with ``cv``; onoff: all arrivals in the first ``on_share`` of each
    ``period_s``; trace with ``times_s``). offline: all ``requests`` at once, no SLO. ``requests`` is how many to
    simulate; None lets the simulator choose enough for stable percentiles. ``prefix_hit`` share of prompt tokens
    already cached. ``think_s`` mean pause (exponential) of a client before its next request.
    ``stream_interval`` tokens that the server collects before it sends them: fewer messages to send. The first
    token goes out at once (vLLM ``v1/engine/output_processor.py``, TensorRT-LLM ``pyexecutor/py_executor.py``).

    With ``turns`` requests come in sessions of so many: each turn sends all that was said before, the lengths given for
    input being its new tokens, and follows ``think_s`` after the answer to the one before. All sessions begin with the
    same ``shared_tokens``. ``rate_per_s`` still counts requests, ``concurrency`` clients, who start a new session when
    one ends. The share of prompts found cached then comes out of the simulation, and ``prefix_hit`` must be 0.
    """

    kind: Literal["closed", "open", "offline"]
    concurrency: int = 0
    rate_per_s: float = 0.0
    arrival: Literal["poisson", "constant", "gamma", "onoff", "trace"] = "poisson"
    cv: float = 1.0
    times_s: tuple[float, ...] = ()
    requests: int | None = None
    prefix_hit: float = 0.0
    on_share: float = 0.25
    period_s: float = 60.0
    think_s: float = 0.0
    stream_interval: int = 1
    turns: Lengths | None = None
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SloTarget:
    """One limit: ``metric`` ttft | tpot | itl | e2e (ms), ``stat`` mean | p50 | p90 | p95 | p99, at most
    ``limit_ms``.
    """

    metric: Literal["ttft", "tpot", "itl", "e2e"]
    stat: Literal["mean", "p50", "p90", "p95", "p99"]
    limit_ms: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds. NaN never appears: without data the whole field is None."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """Sampled state of a simulation, equal-length arrays: time, running, waiting, share of KV blocks in use."""

    t_s: F64
    running: I64
    waiting: I64
    kv_used: F64
    live_kv: F64  # share of the pool that holds live tokens


@dataclass(frozen=True, eq=False)
class UnitTimeline:
    """Sampled state of a unit of prefill and decode pools, all instances of a pool together.

    Both pools have the same times. ``transferring`` requests whose cache is on its way from one pool to the other. A
    request under way is in exactly one of the five numbers: it waits in a pool, runs there, or is transferred.
    """

    prefill: Timeline
    transferring: I64
    decode: Timeline


@dataclass(frozen=True, eq=False)
class Distribution:
    """Values in ms, in any order, with how often each occurred; without ``counts`` each once."""

    values: F64
    counts: I64 | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.values.size if self.counts is None else int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Their mean."""
        if self.counts is None:
            return float(self.values.mean())
        return float((self.values * self.counts).sum() / self.counts.sum())

    def ascending(self) -> tuple[F64, I64]:
        """Each value once, ascending, and how often it occurred."""
        values, where = np.unique(self.values, return_inverse=True)
        counts = np.bincount(where, self.counts, values.size).astype(np.int64)
        return values[counts > 0], counts[counts > 0]

    def scaled(self, factor: float) -> Distribution:
        """Every value times ``factor``."""
        return Distribution(self.values * factor, self.counts)


@dataclass(frozen=True, eq=False)
class Samples:
    """Latencies of the requests of a run, each kind for itself; None where no request has one.

    Gaps between tokens come from a histogram with bins 0.6 % wide, those of a long run from bins of 0.2 %.
    """

    ttft_ms: Distribution
    e2e_ms: Distribution
    tpot_ms: Distribution | None = None
    itl_ms: Distribution | None = None


@dataclass(frozen=True, eq=False)
class SimResult:
    """What one simulated instance (or R replicas) delivered. Throughput of the whole deployment.

    TTFT and E2E as the client sees them; TPOT = (E2E - TTFT) / (n - 1), ITL the gaps between tokens.
    ``goodput_per_s`` requests meeting every SLO target individually; None without an SLO.
    ``utilisation`` share of time with a step running; ``kv_waste`` mean share of allocated KV that holds no live token.
    """

    requests: int
    completed: int
    duration_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    req_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None
    goodput_per_s: float | None
    preemptions: int
    utilisation: float
    mean_batch: float
    mean_kv_used: float
    kv_waste: float
    steps: int
    saturated: bool  # open loop: the queue grew without bound
    timeline: Timeline | None = None
    prefix_hit: float = 0.0  # share of prompt tokens that were not computed, as simulated
    samples: Samples | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Performance:
    """A prediction with its 80 % intervals, made from a SimResult and the residuals of the evidence."""

    output_tok_per_s: float
    total_tok_per_s: float
    req_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    output_tok_per_s_80: Interval
    ttft_ms_80: Interval | None
    tpot_ms_80: Interval | None
    preemptions: int
    kv_waste: float
    mean_kv_used: float
    mean_batch: float
    utilisation: float
    goodput_per_s: float | None
    saturated: bool
    evidence: Evidence
    prefix_hit: float = 0.0  # share of prompt tokens found in the prefix cache
    load_region: str = ""  # light, medium, heavy, saturated or offline: which residuals the bands are made of
    residuals_of: str = ""  # and whose (``StepModel.engine``)
    queue_grows: bool = False  # steps as slow as their band allows would change the wait by more than themselves

    @property
    def computed_tok_per_s(self) -> float:
        """Tokens a second that were computed: prompts without what the prefix cache gave, and answers."""
        return self.total_tok_per_s - (self.total_tok_per_s - self.output_tok_per_s) * self.prefix_hit


@dataclass(frozen=True, slots=True)
class LargestLoad:
    """The largest load within the SLO, found by bisection.

    ``rate_per_s`` requests per second of all replicas, ``concurrency`` clients when the load is a closed loop.
    ``result`` is the simulation at that load, None when even the smallest load breaks the SLO (then ``rate_per_s`` is
    0). ``binding`` names the SLO target that limits ("ttft p99"), or "throughput". ``near_saturation``: at 3 % more
    load the limit is passed by more than a tenth, so that small errors in capacity are large ones in latency.
    """

    rate_per_s: float
    band: Interval
    result: SimResult | None
    near_saturation: bool
    concurrency: int = 0
    binding: str = ""
    simulations: int = 0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a load curve: the load offered and what is predicted there."""

    rate_per_s: float
    concurrency: int
    meets_slo: bool
    performance: Performance

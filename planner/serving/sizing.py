"""The largest load within the SLO, replicas for a demand, and curves of performance against load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.serving import bands, bracket
from planner.serving.arrivals import mean_rate, trace_at_rate
from planner.serving.instance import Instance
from planner.serving.littles_law import Expected, expected_load
from planner.serving.metrics import slo_ratio
from planner.serving.predict import performance
from planner.serving.simulator import instance_rules, simulate
from planner.serving.types import CurvePoint, LargestLoad, Lengths, Load, SimResult, SloTarget

OPEN_REQUESTS = 1200
CLOSED_ROUNDS = 6
TOLERANCE = 0.01
PROBE = 1.03
STEEP = 1.10
BEYOND = 1.1
"""By how much a rate above the offline throughput is raised at a time."""

LEAST = 0.01
"""Share of what was expected of sessions below which nothing is tried any more."""

KEPT_UP = 0.98
"""Share of the offered rate at which requests must leave for it to count as carried."""

TRIES = 16
CLIENTS_TOLERANCE, SESSIONS_TOLERANCE = 0.02, 0.03
"""Shares of the number of clients that a search leaves open. Runs of sessions scatter more, where the cache becomes too
small for them.
"""

SEEN = 1.1
"""How many times as many sessions show whether they bring throughput, beyond what runs scatter."""

MOST_CLIENTS = 8192
WAITING = 0.1
"""More clients that raise throughput by less than this part of their share (a tenth more by a hundredth) only wait."""


@dataclass
class Search:
    """Simulates one instance at a load and remembers how often it did.

    ``simulated`` runs something else that serves (pools for prefill and decode); bands and seats are then those of
    ``instance`` and ``seats``. ``near`` where a search for sessions (requests/s) or clients begins, 0 where nothing is
    known: it saves simulations, and the answer is the same within ``TOLERANCE``.
    """

    instance: Instance
    load: Load
    inputs: Lengths
    outputs: Lengths
    slo: Sequence[SloTarget]
    seed: int
    simulated: Callable[[Load], SimResult] | None = None
    seats: int = 0
    near: float = 0.0
    runs: int = 0

    def at_rate(self, rate: float) -> SimResult:
        load = self.load
        if load.arrival == "trace":
            load = replace(load, times_s=trace_at_rate(load.times_s, rate))
        else:
            load = replace(load, rate_per_s=rate, requests=load.requests or (None if load.turns else OPEN_REQUESTS))
        return self._run(load)

    def at_concurrency(self, clients: int) -> SimResult:
        rounds = self.load.requests
        if rounds is None and self.load.turns is None:
            rounds = max(CLOSED_ROUNDS * clients, 60)
        return self._run(replace(self.load, kind="closed", concurrency=clients, requests=rounds))

    def offline(self) -> SimResult:
        return self._run(replace(self.load, kind="offline", requests=self.load.requests or OPEN_REQUESTS))

    def step_up(self) -> float:
        """By how much a load that is carried is raised at most."""
        return bracket.NEAR**self.runs if self.near > 0 else bracket.UP[1]

    def expected(self) -> Expected:
        """What Little's law expects."""
        return expected_load(self.instance, self.load, self.inputs, self.outputs, self.slo)

    def _run(self, load: Load) -> SimResult:
        self.runs += 1
        if self.simulated is not None:
            return self.simulated(load)
        return simulate(self.instance, load, self.inputs, self.outputs, slo=self.slo, seed=self.seed)

    def ratio(self, result: SimResult) -> float:
        """Worst value / limit; above 1 breaks the SLO. A queue that grows without bound always does."""
        worst = slo_ratio(self.slo, result.ttft_ms, result.tpot_ms, result.itl_ms, result.e2e_ms)
        return max(worst, 2.0) if result.saturated else worst

    def carried(self, result: SimResult, rate: float, offline: float) -> bool:
        """Whether ``result`` shows ``rate`` requests/s within the SLO.

        A rate above ``offline``, what is served with everything queued, must also be seen to leave: the last request
        ends when the last one came and was answered, were it alone. Sessions have a measure of that of their own.
        """
        if self.ratio(result) > 1.0:
            return False
        if rate <= offline or self.load.turns is not None:
            return True
        return result.requests >= KEPT_UP * rate * (result.duration_s - self._alone_s())

    def _alone_s(self) -> float:
        """What the tokens of a mean answer take when nobody else is served: the least that the end of a run lasts."""
        rules = instance_rules(self.instance.resolved, self.instance.memory)
        kv_tokens = self.inputs.expected + 0.5 * self.outputs.expected
        steps = (self.outputs.expected - 1.0) / rules.tokens_per_step
        return steps * self.instance.step.decode_ms(1, kv_tokens) / 1000.0


def largest_load(
    instance: Instance,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
    replicas: int = 1,
    near: float = 0.0,
) -> LargestLoad:
    """The largest load of the kind of ``load`` within ``slo``, for ``replicas`` equal instances.

    Open: bisection on the rate of one instance, the arrivals scaled in time (same seed, so that rates compare).
    Sessions: from ``near`` requests/s on. Closed: the number of clients, from ``near`` on. Offline: the throughput
    with everything queued. Raises what ``simulate`` raises.
    """
    return largest_of(Search(instance, load, input_tokens, output_tokens, slo, seed, near=near), replicas)


def largest_of(search: Search, replicas: int = 1) -> LargestLoad:
    """``largest_load`` for whatever ``search`` simulates.

    What is served with everything queued is where the search for a rate begins, and no bound: requests that all come at
    once crowd each other out of the pool and its cache, and may be served faster when they come one by one.
    """
    if search.load.kind == "closed":
        return _largest_concurrency(search, replicas)
    if search.load.kind == "open" and search.load.turns is not None:
        return _largest_session_rate(search, replicas)
    top = search.offline()
    if search.load.kind == "offline":
        return _answer(search, replicas, top.req_per_s, top, steep=False)
    return _largest_rate(search, 0.9 * top.req_per_s, top.req_per_s, replicas)


def _higher(search: Search, rate: float, offline: float) -> float:
    """The rate to try after ``rate`` was carried and nothing is known to be too much."""
    if search.load.turns is not None:
        return bracket.higher(rate, None)
    return offline if rate < offline else rate * BEYOND


def _largest_rate(search: Search, first: float, offline: float, replicas: int) -> LargestLoad:
    low, low_result, high = 0.0, None, math.inf
    rate = first
    for _ in range(TRIES):
        result = search.at_rate(rate)
        ratio = search.ratio(result)
        if search.carried(result, rate, offline):
            low, low_result = rate, result
        else:
            high = rate
        if high < math.inf and (high - low <= TOLERANCE * high or high < 1e-4 * offline):
            break
        if high == math.inf:
            rate = _higher(search, rate, offline)
        else:
            rate = 0.5 * (low + high) if low > 0 else high * (0.5 if ratio < 1.5 else 0.4)
    if low_result is None:
        return _answer(search, replicas, 0.0, None, steep=False)
    here = search.ratio(low_result)
    beyond = search.ratio(search.at_rate(PROBE * low))
    steep = low >= 0.97 * offline or (beyond > STEEP * max(here, 1e-9) and beyond > 1.0)
    return _answer(search, replicas, low, low_result, steep=steep)


def _largest_session_rate(search: Search, replicas: int) -> LargestLoad:
    """As for clients of a closed loop, from the rate that Little's law expects."""
    rate = search.near or search.expected().rate_per_s
    low, low_result, high, above = 0.0, None, math.inf, 0.0
    least = LEAST * rate
    for _ in range(TRIES):
        result = search.at_rate(rate)
        ratio = search.ratio(result)
        if ratio <= 1.0:
            low, low_result = rate, result
        else:
            high, above = rate, ratio
        if low_result is None:
            if high < least:
                break
            rate = bracket.lower(high, above)
        elif high == math.inf:
            rate = bracket.higher(low, search.ratio(low_result) if search.slo else None, search.step_up())
        elif bracket.settled(low, search.ratio(low_result), high, above, TOLERANCE):
            break
        else:
            rate = bracket.between(low, search.ratio(low_result), high, above)
    if low_result is None:
        return _answer(search, replicas, 0.0, None, steep=False)
    here = search.ratio(low_result)
    if above <= max(STEEP * here, 1.0) or high > PROBE * low:  # the rate that was too much often tells all
        above = search.ratio(search.at_rate(PROBE * low))
    return _answer(search, replicas, low, low_result, steep=above > STEEP * max(here, 1e-9) and above > 1.0)


def _largest_concurrency(search: Search, replicas: int) -> LargestLoad:
    """Outwards from what Little's law expects until one number is too much, then between what is carried and that.

    Too much is also a number that only waits. Where none breaks the SLO, the lowest number carried must itself be seen
    to gain on fewer.
    """
    expected = search.expected()
    most = _most_clients(search, expected)
    trials: dict[int, SimResult] = {}
    seen = SEEN if search.load.turns is not None else 1.0
    low, high, only_waits, gains = 0, most + 1, False, False
    clients: int | None = min(most, max(1, round(search.near or expected.users)))
    for _ in range(TRIES):
        if clients is None:
            break
        result = trials[clients] = search.at_concurrency(clients)
        within = search.ratio(result) <= 1.0
        if 0 < clients < low:
            gains = not within or _gained(trials[low], low, result, clients)
            if not gains:
                low, high = clients, low
        elif within and low == 0:
            low = clients
        elif within and (clients < seen * low or _gained(result, clients, trials[low], low)):
            low, gains = clients, gains or clients >= seen * low
        else:
            high, only_waits = clients, within
        if only_waits and not gains and low > 1:
            clients = max(1, round(low / bracket.WITHOUT_LIMIT))
        else:
            clients = _next_clients(search, trials, low, high, most, only_waits)
    if low == 0:
        return _answer(search, replicas, 0.0, None, steep=False)
    found = _answer(search, replicas, trials[low].req_per_s, trials[low], steep=False)
    return replace(found, concurrency=low * replicas, binding="throughput" if only_waits else found.binding)


def _most_clients(search: Search, expected: Expected) -> int:
    """Twice as many as can be served at once, with those who pause meanwhile."""
    seats = search.seats or search.instance.resolved.max_num_seqs * search.instance.resolved.dp
    pausing = search.load.think_s / max(expected.answer_s, 1e-3)
    return max(1, min(round(2 * seats * (1.0 + pausing)), MOST_CLIENTS))


def _next_clients(
    search: Search, trials: dict[int, SimResult], low: int, high: int, most: int, only_waits: bool
) -> int | None:
    """The number to try next; None when the answer is known well enough."""
    if high - low <= 1:
        return None
    if high > most:
        ratio = search.ratio(trials[low]) if search.slo else None
        return min(most, max(low + 1, round(bracket.higher(low, ratio, search.step_up()))))
    above = search.ratio(trials[high])
    if low == 0:
        return max(1, min(high - 1, round(bracket.lower(high, above))))
    tolerance = CLIENTS_TOLERANCE if search.load.turns is None else SESSIONS_TOLERANCE
    if only_waits:
        return None if high - low <= tolerance * high else max(low + 1, round(math.sqrt(low * high)))
    below = search.ratio(trials[low])
    if bracket.settled(low, below, high, above, tolerance):
        return None
    return min(high - 1, max(low + 1, round(bracket.between(low, below, high, above))))


def _gained(result: SimResult, clients: int, before: SimResult, fewer: int) -> bool:
    """Whether ``clients`` bring more throughput than ``fewer``, rather than wait; of twice as many any are enough."""
    if clients >= 2 * fewer:
        return result.req_per_s > (1.0 + WAITING**2) * before.req_per_s
    return result.req_per_s >= before.req_per_s * (1.0 + WAITING * (clients / fewer - 1.0))


def _answer(search: Search, replicas: int, rate: float, result: SimResult | None, *, steep: bool) -> LargestLoad:
    where = "saturated" if steep else (bands.region(result) if result else "any")
    sd = bands.calibrated_log_sd(search.instance.step, "output_tok_per_s")
    by = bands.factors(search.instance.step.evidence, "output_tok_per_s", where, sd, engine=search.instance.step.engine)
    total = rate * replicas
    return LargestLoad(
        rate_per_s=total,
        band=bands.interval(total, by),
        result=result,
        near_saturation=steep,
        binding=_binding(search, result),
        simulations=search.runs,
    )


def _binding(search: Search, result: SimResult | None) -> str:
    if not search.slo or result is None:
        return "throughput" if result is not None else "slo"
    by_metric = {"ttft": result.ttft_ms, "tpot": result.tpot_ms, "itl": result.itl_ms, "e2e": result.e2e_ms}

    def share(target: SloTarget) -> float:
        found = by_metric[target.metric]
        return getattr(found, target.stat) / target.limit_ms if found is not None else 0.0

    worst = max(search.slo, key=share)
    return f"{worst.metric} {worst.stat}" if share(worst) > 0.7 else "throughput"


def replicas_for(demand_per_s: float, largest: LargestLoad, *, n_plus_1: bool = False) -> int | None:
    """Replicas that carry ``demand_per_s`` when one carries ``largest.rate_per_s``; None when one carries nothing.

    ``n_plus_1`` adds a spare, so that the demand is still carried when one replica is lost.
    """
    if demand_per_s < 0 or not math.isfinite(demand_per_s):
        raise InputError("must be at least 0", field="demand_per_s", value=demand_per_s)
    if largest.rate_per_s <= 0:
        return None
    return max(1, math.ceil(demand_per_s / largest.rate_per_s - 1e-9)) + (1 if n_plus_1 else 0)


def load_sensitivity(
    instance: Instance,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    seed: int = 0,
) -> float:
    """Percent by which TTFT p99 grows with one more percent of load (open loop, over a step of 3 %)."""
    search = Search(instance, load, input_tokens, output_tokens, (), seed)
    rate = mean_rate(load.times_s) if load.arrival == "trace" else load.rate_per_s
    here, beyond = search.at_rate(rate), search.at_rate(rate * PROBE)
    if here.ttft_ms is None or beyond.ttft_ms is None:
        raise InputError("needs at least one request", field="load.requests", value=load.requests)
    return math.log(beyond.ttft_ms.p99 / here.ttft_ms.p99) / math.log(PROBE)


def _ceiling(search: Search) -> float:
    """Requests/s that no open load exceeds; ``search`` without an SLO."""
    offline = search.offline().req_per_s
    rate = offline
    for _ in range(TRIES):
        if not search.carried(search.at_rate(rate), rate, offline):
            break
        rate = _higher(search, rate, offline)
    return rate


def load_curve(
    instance: Instance,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
    points: int = 12,
) -> tuple[CurvePoint, ...]:
    """Performance of one instance from light load past its knee: rates up to 1.1 x capacity, or doubling clients."""
    search = Search(instance, load, input_tokens, output_tokens, slo, seed)
    found = []
    if load.kind == "closed":
        top = max(1, min(search.instance.resolved.max_num_seqs * search.instance.resolved.dp, 2048))
        marks = sorted({max(1, round(top ** (i / max(points - 1, 1)))) for i in range(points)})
        for clients in marks:
            result = search.at_concurrency(clients)
            ok = search.ratio(result) <= 1.0
            found.append(CurvePoint(result.req_per_s, clients, ok, performance(result, instance.step)))
        return tuple(found)
    top_rate = _ceiling(replace(search, slo=()))
    for i in range(points):
        rate = top_rate * 1.1 * (i + 1) / points
        result = search.at_rate(rate)
        found.append(CurvePoint(rate, 0, search.ratio(result) <= 1.0, performance(result, instance.step)))
    return tuple(found)

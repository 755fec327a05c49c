"""Flip points: the value of each parameter at which the better engine changes, found by search.

Load, prices and revisions only change how many replicas are needed and what they cost: those are recomputed exactly.
Lengths and adapters change what a replica carries: the best candidates of both engines are simulated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from planner.catalog import get_model
from planner.demand import scaled_lengths
from planner.placement.sizing import demand_per_s
from planner.plan_types import Candidate, PlanRequest, PlanWorkload
from planner.recommend.costing import Change, best_of, gpu_price
from planner.recommend.preference import engine_of
from planner.recommend.resizing import (
    Times,
    adapted,
    cheapest_of_each,
    lengthened,
    redeployed,
    resized,
    times_expected,
)
from planner.verdict_types import CurveAt, FlipPoint
from planner.words import ENGINE_LABEL, article, figure

GRID = 81
FINE_STEPS = 24
CURVE_POINTS = 16
LENGTH_FACTORS = (0.125, 0.35, 0.7, 1.0, 1.41, 2.83, 8.0)
ADAPTERS = (0.0, 4.0, 16.0, 32.0)
WAITING, OF_LARGEST = "waiting users", "of their largest load"
"""Units of the parameters that suppose another way of asking or running; they come after the others that flip."""
EQUAL = 1e-9  # costs closer than this share are equal


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One parameter: where it stands, where to look, and what its value does."""

    parameter: str
    unit: str
    current: float
    low: float
    high: float
    change: Callable[[float], Change]


def flip_points(
    workload: PlanWorkload, candidates: Sequence[Candidate], request: PlanRequest, *, placed: str | None = None
) -> tuple[FlipPoint, ...]:
    """Flip points of the verdict on ``workload``; empty when only one engine can serve it.

    The first entries are the parameters that do flip, nearest (by ratio) first.
    """
    usable = [c for c in candidates if c.workload == workload.name and c.status == "ok"]
    if len({engine_of(c) for c in usable}) < 2:
        return ()
    winner = _winner(usable, workload, request, Change())
    chosen = next((c for c in usable if c.id == placed), None)
    if winner is None and chosen is not None:
        winner = engine_of(chosen)
    found = [_search(sweep, usable, workload, request, winner) for sweep in _sweeps(workload, usable, request)]
    found += _concurrency(workload, usable, request, winner)
    found += _simulated(workload, usable, request, winner)
    return tuple(sorted(found, key=_distance))


def _sweeps(workload: PlanWorkload, usable: Sequence[Candidate], request: PlanRequest) -> list[_Sweep]:
    sweeps = []
    rate = demand_per_s(workload)
    if rate is None:
        users = float(workload.load.concurrency)
        name, unit, value = "concurrency", "users", users
    else:
        name, unit, value = "request rate", "req/s", rate
    sweeps.append(_Sweep(name, unit, value, value / 30, value * 30, partial(load_change, value)))
    sweeps.append(_Sweep("utilisation of replicas", OF_LARGEST, 1.0, 0.4, 1.0, lambda v: Change(rate_factor=v)))
    revisions = workload.revisions_per_month
    sweeps.append(
        _Sweep("number of revisions", "per month", revisions, 0.0, 1000.0, lambda v: Change(revisions_per_month=v))
    )
    if request.energy is not None and any(c.watts_per_gpu is not None for c in usable):
        usd = float(request.energy.usd_per_kwh)
        unit = f"{request.currency}/kWh"
        sweeps.append(_Sweep("electricity price", unit, usd, 0.0, 1.0, lambda v: Change(usd_per_kwh=v)))
    for gpu in sorted({c.gpu for c in usable}):
        price = gpu_price(request, gpu)
        if price > 0:
            sweeps.append(
                _Sweep(
                    f"{gpu} price",
                    f"{request.currency}/GPU-hour",
                    price,
                    price / 5,
                    price * 5,
                    partial(price_change, price, gpu),
                )
            )
    return sweeps


def load_change(today: float, value: float) -> Change:
    """The demand at ``value`` where it is ``today``."""
    return Change(load_factor=value / today)


def price_change(today: float, gpu: str, value: float) -> Change:
    """The price of ``gpu`` at ``value`` where it is ``today``."""
    return Change(gpu_price_factor=value / today, gpu=gpu)


def _search(
    sweep: _Sweep, usable: Sequence[Candidate], workload: PlanWorkload, request: PlanRequest, winner: str | None
) -> FlipPoint:
    """Nearest value, on either side of today's, from which on the other engine wins."""

    def wins(value: float) -> str | None:
        return _winner(usable, workload, request, sweep.change(value))

    nearest: float | None = None
    for side in (grid(sweep.current, sweep.low), grid(sweep.current, sweep.high)):
        value = first_flip(side, wins, winner)
        if value is not None and (nearest is None or _ratio(value, sweep) < _ratio(nearest, sweep)):
            nearest = value
    marks = grid(sweep.low, sweep.high)[:: GRID // CURVE_POINTS]
    curve = tuple(_curve_at(v, usable, workload, request, sweep.change(v)) for v in sorted({*marks, sweep.current}))
    found = _point(sweep.parameter, sweep.unit, sweep.current, nearest, (sweep.low, sweep.high), winner)
    return replace(found, curve=curve)


def _curve_at(
    value: float, candidates: Sequence[Candidate], workload: PlanWorkload, request: PlanRequest, change: Change
) -> CurveAt:
    costs = engine_costs(candidates, workload, request, change)
    return CurveAt(value, costs.get("vllm"), costs.get("tensorrt_llm"))


def first_flip(side: list[float], wins: Callable[[float], str | None], winner: str | None) -> float | None:
    """The first value along ``side`` at which another than ``winner`` wins, refined by bisection; None where none."""
    if winner is None:
        return None
    before = side[0]
    for value in side[1:]:
        now = wins(value)
        if now is not None and now != winner:
            good, bad = before, value
            for _ in range(FINE_STEPS):
                middle = (good + bad) / 2
                if wins(middle) in (winner, None):
                    good = middle
                else:
                    bad = middle
            return bad
        before = value
    return None


def grid(start: float, end: float) -> list[float]:
    """From ``start`` to ``end``, even on a logarithmic scale where both are above zero."""
    if start > 0 and end > 0:
        return [start * (end / start) ** (i / (GRID - 1)) for i in range(GRID)]
    return [start + (end - start) * i / (GRID - 1) for i in range(GRID)]


def _winner(usable: Sequence[Candidate], workload: PlanWorkload, request: PlanRequest, change: Change) -> str | None:
    """The cheaper engine; None when both cost the same."""
    costs = engine_costs(usable, workload, request, change)
    if len(costs) < 2:
        return None
    (first, a), (second, b) = costs.items()
    if abs(a - b) <= EQUAL * max(a, b):
        return None
    return first if a < b else second


def engine_costs(
    candidates: Sequence[Candidate], workload: PlanWorkload, request: PlanRequest, change: Change
) -> dict[str, float]:
    """USD an hour of the cheapest candidate of each engine that has one."""
    costs = {}
    for engine in ENGINE_LABEL:
        best = best_of([c for c in candidates if engine_of(c) == engine], workload, request, change)
        if best is not None:
            costs[engine] = best[0]
    return costs


def _concurrency(
    workload: PlanWorkload, usable: Sequence[Candidate], request: PlanRequest, winner: str | None
) -> list[FlipPoint]:
    """As if the requests of an open load came from users who wait for each answer: how many of them flip it.

    Today's number is that of Little's law, rate x mean E2E. What one replica carries of such users is simulated once;
    their number only changes how many replicas are needed.
    """
    rate = demand_per_s(workload)
    if workload.load.kind != "open" or rate is None or get_model(workload.model).task != "generate":
        return []
    top = [candidate for candidate in cheapest_of_each(usable, workload, request) if candidate.disagg is None]
    waits = [c.performance.e2e_ms.mean / 1000 for c in top if c.performance and c.performance.e2e_ms]
    if not waits:
        return []
    users = max(1.0, float(round(rate * (waits[0] + workload.load.think_s))))
    kept = replace(workload.load, arrival="poisson", rate_per_s=0.0, times_s=(), requests=None)
    asked = replace(workload, load=replace(kept, kind="closed", concurrency=int(users)))
    instances = {candidate.id: redeployed(asked, candidate, request) for candidate in top}
    sized = resized(top, instances, asked, request)
    if len({engine_of(candidate) for candidate in sized}) < 2:
        return []
    sweep = _Sweep("concurrency", WAITING, users, max(1.0, users / 30), users * 30, partial(load_change, users))
    return [_search(sweep, sized, asked, request, winner)]


def _simulated(
    workload: PlanWorkload, usable: Sequence[Candidate], request: PlanRequest, winner: str | None
) -> list[FlipPoint]:
    top = cheapest_of_each(usable, workload, request)
    instances = {candidate.id: redeployed(workload, candidate, request) for candidate in top}
    as_known = times_expected(top, instances, workload)
    found = []
    generates = get_model(workload.model).task == "generate"
    for name, field in (("input length", "input_tokens"), ("output length", "output_tokens")):
        if field == "output_tokens" and not generates:
            continue
        today = getattr(workload, field).expected

        def at_length(value: float, times: Times, field: str = field, today: float = today) -> Sized:
            lengths = scaled_lengths(getattr(workload, field), value / today)
            changes: dict[str, Any] = {field: lengths}
            asked = replace(workload, **changes)
            fitting = {c.id: lengthened(instances[c.id], c, asked, request) for c in top}
            sized = resized(top, fitting, asked, request, times)
            return sized, times_expected(sized, fitting, asked)

        values = [today * factor for factor in LENGTH_FACTORS]
        steps = _Steps(name, "tokens", today, values, at_length, (top, as_known))
        found.append(_stepwise(steps, workload, request, winner))
    if generates:

        def with_adapters(value: float, times: Times) -> Sized:
            changed = {
                candidate.id: adapted(instances[candidate.id], round(value), candidate, workload, request)
                for candidate in top
            }
            sized = resized(top, changed, workload, request, times)
            return sized, times_expected(sized, changed, workload)

        start = float(min(workload.adapters, ADAPTERS[-1]))
        as_is = (top, as_known) if start == workload.adapters else None
        steps = _Steps("number of adapters in a batch", "", start, list(ADAPTERS), with_adapters, as_is)
        found.append(_stepwise(steps, workload, request, winner))
    return found


Sized = tuple[Sequence[Candidate], Times]
"""Candidates with what they carry, and how many times what was expected of them that is."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """A parameter whose values must be simulated: ``at`` gives the candidates at a value, and takes how many times what
    is expected of it each may carry there; ``as_is`` those of today's value, None where they must be simulated too.
    """

    parameter: str
    unit: str
    current: float
    values: list[float]
    at: Callable[[float, Times], Sized]
    as_is: Sized | None


def _stepwise(steps: _Steps, workload: PlanWorkload, request: PlanRequest, winner: str | None) -> FlipPoint:
    """Search on a few simulated points, refined between the two that differ."""
    name, unit, current, values = steps.parameter, steps.unit, steps.current, steps.values
    seen: dict[float, CurveAt] = {}
    times: dict[float, Times] = {} if steps.as_is is None else {current: steps.as_is[1]}

    def nearest_known(value: float) -> Times:
        if not times:
            return {}
        return times[min(times, key=lambda each: abs(math.log((1.0 + value) / (1.0 + each))))]

    def wins(value: float) -> str | None:
        given = steps.as_is if steps.as_is is not None and value == current else None
        found, times[value] = given or steps.at(value, nearest_known(value))
        seen[value] = _curve_at(value, found, workload, request, Change())
        return _winner(found, workload, request, Change())

    nearest: float | None = None
    if winner is not None:
        for side in (
            sorted((v for v in values if v < current), reverse=True),
            sorted(v for v in values if v > current),
        ):
            before = current
            for value in side:
                now = wins(value)
                if now is not None and now != winner:
                    good, bad = before, value
                    for _ in range(3):
                        middle = math.sqrt(good * bad) if good > 0 and bad > 0 else (good + bad) / 2
                        if wins(middle) in (winner, None):
                            good = middle
                        else:
                            bad = middle
                    if nearest is None or abs(bad - current) < abs(nearest - current):
                        nearest = bad
                    break
                before = value
    for value in values:
        if value not in seen:
            wins(value)
    found = _point(name, unit, current, nearest, (min(values), max(values)), winner)
    return replace(found, curve=tuple(seen[value] for value in sorted(seen)))


def _point(
    parameter: str, unit: str, current: float, value: float | None, searched: tuple[float, float], winner: str | None
) -> FlipPoint:
    suffix = f" {unit}" if unit else ""
    if value is None:
        sentence = (
            f"No {parameter} between {figure(searched[0])} and {figure(searched[1])}{suffix} changes the answer."
            if winner is not None
            else f"Both engines cost the same; no {parameter} was searched."
        )
    else:
        other = next(label for name, label in ENGINE_LABEL.items() if name != winner)
        side = "below" if value < current else "at"
        if 0 <= value - current < 1e-3 * (searched[1] - searched[0]):
            sentence = f"The answer flips to {other} with any {parameter} above {figure(current)}{suffix}."
        else:
            sentence = f"The answer flips to {other} {side} {article(parameter)} of {figure(value)}{suffix}."
    return FlipPoint(parameter, unit, current, value, searched, sentence)


def _ratio(value: float, sweep: _Sweep) -> float:
    if value > 0 and sweep.current > 0:
        return abs(math.log(value / sweep.current))
    return abs(value - sweep.current) / max(sweep.high - sweep.low, 1e-9)


def _distance(point: FlipPoint) -> tuple[bool, bool, float, str]:
    supposed = point.unit in (WAITING, OF_LARGEST)
    if point.value is None:
        return True, supposed, math.inf, point.parameter
    if point.value > 0 and point.current > 0:
        return False, supposed, abs(math.log(point.value / point.current)), point.parameter
    away = abs(point.value - point.current) / max(point.searched[1] - point.searched[0], 1e-9)
    return False, supposed, away, point.parameter

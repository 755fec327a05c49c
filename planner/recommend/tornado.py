"""What moves the cost of the chosen candidate most: one input at a time, low and high, the others as they are."""

from __future__ import annotations

from planner.placement.sizing import demand_per_s
from planner.plan_types import Candidate, PlanRequest, PlanWorkload
from planner.recommend.costing import Change, gpu_price, usd_per_hour
from planner.verdict_types import Sensitivity

SWING = 0.2  # low and high of an input that has no band of its own


def tornado(candidate: Candidate, workload: PlanWorkload, request: PlanRequest) -> tuple[Sensitivity, ...]:
    """Sensitivities of USD an hour, widest first.

    What one replica carries moves through its 80 % band; load, GPU price and electricity by a fifth; revisions from
    none to twice as many.
    """

    def at(change: Change) -> float:
        return usd_per_hour(candidate, workload, request, change)

    base = at(Change())
    found = []

    def add(parameter: str, unit: str, low: float, high: float, first: Change, second: Change) -> None:
        found.append(Sensitivity(parameter, unit, low, high, at(first), at(second), base))

    rate = demand_per_s(workload)
    load, unit = (float(workload.load.concurrency), "users") if rate is None else (rate, "req/s")
    low, high = 1 - SWING, 1 + SWING
    add("load", unit, load * low, load * high, Change(load_factor=low), Change(load_factor=high))
    band = candidate.replica_rate_80
    if band is not None and band.value > 0:
        changes = (Change(rate_factor=band.low / band.value), Change(rate_factor=band.high / band.value))
        add("what one replica carries", "req/s", band.low, band.high, *changes)
    price = gpu_price(request, candidate.gpu)
    changes = (Change(gpu_price_factor=low), Change(gpu_price_factor=high))
    add("GPU price", f"{request.currency}/GPU-hour", price * low, price * high, *changes)
    if request.energy is not None and candidate.watts_per_gpu is not None:
        usd = float(request.energy.usd_per_kwh)
        changes = (Change(usd_per_kwh=usd * low), Change(usd_per_kwh=usd * high))
        add("electricity price", f"{request.currency}/kWh", usd * low, usd * high, *changes)
    if workload.revisions_per_month > 0:
        twice = 2 * workload.revisions_per_month
        changes = (Change(revisions_per_month=0.0), Change(revisions_per_month=twice))
        add("revisions", "per month", 0.0, twice, *changes)
    return tuple(sorted(found, key=lambda s: (-abs(s.usd_per_hour_high - s.usd_per_hour_low), s.parameter)))

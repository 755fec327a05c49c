"""Demand over the week and over the months: what to plan for, and what is paid for.

A service is planned at its peak hour, after the growth until the month asked for, and paid for at its mean. A profile
gives the shape of a week: 168 hours from Monday 0:00, in any unit; its largest hour is the peak that a load states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.catalog.traces import RateProfile
from planner.errors import InputError
from planner.plan_types import PlanRequest, PlanWorkload
from planner.serving.arrivals import mean_rate, trace_at_rate
from planner.serving.types import Lengths, Load

WEEK_HOURS = 168
MOST_OF_AN_HOUR = 1e12
_HOUR_S, _DAY_HOURS = 3600.0, 24


def check_profile(profile: tuple[float, ...], field: str) -> None:
    """Raise InputError unless ``profile`` is empty or 168 values from 0 to ``MOST_OF_AN_HOUR``, one above 0."""
    if not profile:
        return
    if len(profile) != WEEK_HOURS:
        raise InputError(
            f"needs {WEEK_HOURS} values, one for each hour from Monday 0:00", field=field, value=len(profile)
        )
    wrong = next((value for value in profile if not 0 <= value <= MOST_OF_AN_HOUR), None)
    if wrong is not None:
        remedy = "Give the hours in another unit: only their ratios count."
        raise InputError(f"must be from 0 to {MOST_OF_AN_HOUR:g}", field=field, value=wrong, remedy=remedy)
    if max(profile) == 0:
        raise InputError("is 0 in every hour", field=field, value=0)


def mean_share(profile: tuple[float, ...]) -> float:
    """Mean of the week / its largest hour; 1 without a profile."""
    return sum(profile) / len(profile) / max(profile) if profile else 1.0


def hour_of_week(rates: RateProfile) -> tuple[float, ...]:
    """Mean requests/s in each hour of the week; a profile of a day stands for every day, its start for Monday 0:00.

    Raises InputError when it spans less than a day.
    """
    hours = (rates.start_s // _HOUR_S).astype(np.int64)
    span = int(hours.max()) + 1
    if span < _DAY_HOURS:
        raise InputError("spans less than a day", field="hour_profile", value=rates.name)
    period = WEEK_HOURS if span >= WEEK_HOURS else _DAY_HOURS
    sums = np.bincount(hours % period, weights=rates.rate_per_s, minlength=period)
    counts = np.bincount(hours % period, minlength=period)
    return tuple(float(value) for value in np.tile(sums / counts, WEEK_HOURS // period))


def growth_until(workload: PlanWorkload, month: int) -> float:
    """Demand in ``month`` months / demand today."""
    return float((1.0 + workload.growth_per_month) ** month)


def planned(request: PlanRequest) -> PlanRequest:
    """``request`` with the demand that is planned for: peak hours in the month each workload asks for."""
    return replace(request, workloads=tuple(_planned(workload) for workload in request.workloads))


def _planned(workload: PlanWorkload) -> PlanWorkload:
    growth = growth_until(workload, workload.plan_for_month)
    load = workload.load if growth == 1.0 else scaled_load(workload.load, growth)
    share = mean_share(workload.hour_profile) if workload.hour_profile else workload.mean_load_share
    return replace(workload, load=load, mean_load_share=share)


def scaled_lengths(lengths: Lengths, factor: float) -> Lengths:
    """Lengths times ``factor``, at least one token."""
    return replace(
        lengths,
        value=max(1, round(lengths.value * factor)) if lengths.kind == "fixed" else lengths.value,
        mean=lengths.mean * factor,
        sd=lengths.sd * factor,
        low=max(1, round(lengths.low * factor)) if lengths.kind == "uniform" else lengths.low,
        high=max(1, round(lengths.high * factor)) if lengths.kind == "uniform" else lengths.high,
        samples=tuple(max(1, round(n * factor)) for n in lengths.samples),
    )


def scaled_load(load: Load, factor: float) -> Load:
    """``load`` with ``factor`` times the demand: of growth, and of a what-if.

    Users and offline requests are rounded up, so that no plan is for less than was asked. A trace is thinned below its
    own rate and compressed above, as ``trace_at_rate`` does wherever a load is sized.
    """
    if load.kind == "closed":
        return replace(load, concurrency=max(1, math.ceil(load.concurrency * factor - 1e-9)))
    if load.kind == "offline":
        return replace(load, requests=max(1, math.ceil((load.requests or 1) * factor - 1e-9)))
    if load.arrival == "trace":
        return replace(load, times_s=trace_at_rate(load.times_s, mean_rate(load.times_s) * factor))
    return replace(load, rate_per_s=load.rate_per_s * factor)


def demand_notes(workloads: Sequence[PlanWorkload]) -> list[str]:
    """What was planned for where that is not simply the load stated; of workloads that ``planned`` gave."""
    notes = []
    for workload in workloads:
        if workload.plan_for_month and workload.growth_per_month:
            month, growth = workload.plan_for_month, growth_until(workload, workload.plan_for_month)
            notes.append(
                f"{workload.name}: planned for {_size(workload.load)}, the peak in {month} month{'s' * (month > 1)}: "
                f"{growth:.3g} times today's at {100 * workload.growth_per_month:.3g} % a month."
            )
        if workload.hour_profile:
            share = 100 * mean_share(workload.hour_profile)
            notes.append(f"{workload.name}: paid for at the mean of its week, {share:.3g} % of the peak hour.")
        if workload.load.turns is not None:
            notes.append(
                f"{workload.name}: sized for sessions that stay on their replica; the router must send the turns of a"
                " session to the same one, or fewer prompts are found in the cache."
            )
        metrics = {target.metric for target in workload.slo}
        if "ttft" in metrics and metrics & {"tpot", "itl"} and (workload.load.turns or workload.load.kind == "closed"):
            who = "sessions" if workload.load.turns else "users who wait for each answer"
            notes.append(
                f"{workload.name}: prefill and decode pools were not searched. For {who} no bound short of a simulation"
                " tells whether they could gain; an estimate with disagg simulates a unit."
            )
    return notes


def _size(load: Load) -> str:
    if load.kind == "closed":
        return f"{load.concurrency:,} users"
    if load.kind == "offline":
        return f"{load.requests:,} requests"
    rate = mean_rate(load.times_s) if load.arrival == "trace" else load.rate_per_s
    return f"{rate:.3g} requests/s"

"""Months ahead: GPUs and money that growing demand takes, when each kind of GPU runs out, and when to order.

The candidates chosen today stay; only their replicas grow. Nothing is simulated or placed again, so a month in which a
pool is nearly full may need a plan of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from planner.demand import growth_until
from planner.economics.money import money
from planner.placement.problem import replicas_needed
from planner.plan_types import Candidate, Placement, PlanNode, PlanRequest, PlanWorkload
from planner.recommend.costing import electricity_per_replica, gpu_basis, gpu_price
from planner.units import HOURS_PER_MONTH
from planner.verdict_types import MonthView, Runway


def outlook(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    placements: Sequence[Placement],
    purchased: Sequence[PlanNode] = (),
    months: int | None = None,
) -> tuple[tuple[MonthView, ...], tuple[Runway, ...]]:
    """Views of month 0 to ``months`` (the request's horizon) and a runway for each GPU in use; empty without growth.

    GPUs beyond those at hand are bought in the month that needs them and keep the price of that month; rented ones
    follow the market down.
    """
    if not any(workload.growth_per_month for workload in request.workloads):
        return (), ()
    chosen = _chosen(request, candidates, placements)
    at_hand = _at_hand(request, purchased)
    ends = request.horizon_months if months is None else months
    bought: dict[str, list[tuple[int, float]]] = {}
    views = tuple(_view(request, chosen, at_hand, month, bought) for month in range(ends + 1))
    gpus = sorted({candidate.gpu for _, candidate in chosen})
    return views, tuple(_runway(request, gpu, views) for gpu in gpus)


def _chosen(
    request: PlanRequest, candidates: Sequence[Candidate], placements: Sequence[Placement]
) -> list[tuple[PlanWorkload, Candidate]]:
    """The candidate that holds most replicas of each workload placed."""
    by_id = {candidate.id: candidate for candidate in candidates}
    found = []
    for workload in request.workloads:
        used = Counter(p.candidate_id for p in placements if p.workload == workload.name)
        if used:
            found.append((workload, by_id[used.most_common(1)[0][0]]))
    return found


def _at_hand(request: PlanRequest, purchased: Sequence[PlanNode]) -> dict[str, int]:
    owned = () if request.mode == "purchase" else tuple(n for n in request.nodes if n.state == "active")
    found: Counter[str] = Counter()
    for node in (*owned, *purchased):
        found[node.gpu] += node.gpus - len(node.busy_gpus)
    return dict(found)


def _view(
    request: PlanRequest,
    chosen: list[tuple[PlanWorkload, Candidate]],
    at_hand: dict[str, int],
    month: int,
    bought: dict[str, list[tuple[int, float]]],
) -> MonthView:
    """``bought`` holds by GPU what earlier months added, with their price factor; this month's additions go in."""
    needed: Counter[str] = Counter()
    electricity = 0.0
    for workload, candidate in chosen:
        growth = growth_until(workload, month - workload.plan_for_month)
        replicas = replicas_needed(candidate.replica_share / growth, workload.n_plus_1)
        needed[candidate.gpu] += replicas * candidate.gpus_per_replica
        electricity += replicas * electricity_per_replica(candidate, request)
    eroded = (1 - request.price_erosion_per_year) ** (month / 12)
    usd, added = 0.0, {}
    for gpu, count in needed.items():
        owned = min(count, at_hand.get(gpu, 0))
        steps = bought.setdefault(gpu, [])
        more = count - owned - sum(number for number, _ in steps)
        if more > 0:
            steps.append((more, eroded))
            added[gpu] = more
        beyond = sum(number * factor for number, factor in steps)
        if gpu_basis(request, gpu) != "tco":
            beyond = (count - owned) * eroded
        usd += gpu_price(request, gpu) * (owned + beyond)
    hours = float(HOURS_PER_MONTH)
    return MonthView(
        month,
        dict(sorted(needed.items())),
        dict(sorted(at_hand.items())),
        money(usd * hours),
        dict(sorted(added.items())),
        money(electricity * hours),
    )


def _runway(request: PlanRequest, gpu: str, views: Sequence[MonthView]) -> Runway:
    at_hand = views[0].gpus_at_hand.get(gpu, 0)
    full = next((view.month for view in views if view.gpus_needed.get(gpu, 0) > at_hand), None)
    last = views[-1].gpus_needed.get(gpu, 0)
    short = max(0, last - at_hand)
    if full is None:
        sentence = f"{gpu}: {last} of {at_hand} GPUs in {views[-1].month} months; it lasts."
        return Runway(gpu, None, None, 0, sentence)
    order = max(0.0, full - request.lead_time_months)
    whole = math.floor(order)
    when = "now" if order <= 0 else f"in {whole} month{'' if whole == 1 else 's'}"
    sentence = (
        f"{gpu}: the {at_hand} GPUs at hand are not enough from month {full} on. Order {when} (lead time "
        f"{request.lead_time_months:g} months); {short} more are needed by month {views[-1].month}."
    )
    return Runway(gpu, full, order, short, sentence)

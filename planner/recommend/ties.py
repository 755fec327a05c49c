"""Placements where two engines cost the same: taken by reasons, not by the last digit of the cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from decimal import Decimal

from planner.economics.currency import symbol
from planner.placement.devices import restored
from planner.placement.solver import PlacementResult, solve
from planner.plan_types import Candidate, PlanRequest
from planner.recommend.bill import bill_rows
from planner.recommend.costing import Change, best_of
from planner.recommend.engineplans import LEAST_S, TIME_SHARE
from planner.recommend.preference import SAME, engine_of, preferred
from planner.recommend.verdict import tied
from planner.units import HOURS_PER_MONTH

ROUNDING = Decimal("0.0001")  # of money an hour
_SERVED = 1e-6


def settle_ties(
    asked: PlanRequest,
    request: PlanRequest,
    candidates: Sequence[Candidate],
    placement: PlacementResult,
    at_hand: Container[str],
) -> PlacementResult:
    """``placement``, with the engine to prefer wherever a workload's two engines are a tie and the fleet lets it.

    Placed again with the preferred engine alone for those workloads, the rest on what it has. Taken when that serves as
    much, moves and buys no more, and costs no more than ``SAME`` of what the workloads concerned cost; first all at
    once, then one by one. The bound stays that of the search over everything. ``request`` as it was solved, ``asked``
    before its slices became devices; ``at_hand`` the GPUs that its mode lets a plan use.
    """
    wished = _wished(request, candidates, placement, at_hand)
    if not wished:
        return placement
    together = _placed_with(wished, asked, request, candidates, placement)
    if together is not None or len(wished) == 1:
        return together or placement
    taken: dict[str, str] = {}
    best = placement
    for name, engine in wished.items():
        found = _placed_with({**taken, name: engine}, asked, request, candidates, placement)
        if found is not None:
            taken[name], best = engine, found
    return best


def tie_note(before: PlacementResult, after: PlacementResult, currency: str) -> tuple[str, ...]:
    """What settling the ties by reasons costs beyond the cheapest placement; empty where it costs nothing."""
    more = after.objective_usd_per_hour - before.objective_usd_per_hour
    if more <= 0:
        return ()
    return (
        f"Engines that cost the same were taken by their reasons, not by the last digit: {symbol(currency)}{more} an "
        "hour above the cheapest placement, less than the figures can tell.",
    )


def _wished(
    request: PlanRequest, candidates: Sequence[Candidate], placement: PlacementResult, at_hand: Container[str]
) -> dict[str, str]:
    """By workload placed in full on one engine, where the costs are a tie: the other engine, if that is preferred."""
    counts: dict[str, Counter[str]] = {}
    for item in placement.placements:
        counts.setdefault(item.workload, Counter())[item.candidate_id] += 1
    short = _short(placement)
    found = {}
    for workload in request.workloads:
        own = [c for c in candidates if c.workload == workload.name and c.status == "ok"]
        placed = [c for c in own if c.id in counts.get(workload.name, ())]
        engines = {engine_of(candidate) for candidate in placed}
        if len(engines) != 1 or workload.name in short:
            continue
        chosen = max(placed, key=lambda c: (counts[workload.name][c.id], c.id))
        rivals = [c for c in own if engine_of(c) not in engines and c.sharers == 1 and c.gpu in at_hand]
        other = best_of(rivals, workload, request, Change())
        if other is not None and tied(chosen, other[1], workload, request):
            choice = preferred(chosen, other[1], workload, request).candidate
            if choice is not chosen:
                found[workload.name] = engine_of(choice)
    return found


def _placed_with(
    engines: dict[str, str],
    asked: PlanRequest,
    request: PlanRequest,
    candidates: Sequence[Candidate],
    placement: PlacementResult,
) -> PlacementResult | None:
    """Placed again with those engines for those workloads; None where that is worse than a tie."""
    held = {item.candidate_id for item in placement.placements}
    few = tuple(
        candidate
        for candidate in candidates
        if (
            engine_of(candidate) == engines[candidate.workload]
            if candidate.workload in engines
            else candidate.id in held
        )
    )
    left_s = max(request.time_limit_s - placement.solve_s, 0.0) * TIME_SHARE
    limit_s = min(max(left_s, LEAST_S), request.time_limit_s)
    found = solve(replace(request, time_limit_s=limit_s), few, with_baselines=False)
    if (
        found.served_share < placement.served_share - _SERVED
        or _short(found) != _short(placement)
        or found.moves > placement.moves
        or _bought(found) > _bought(placement)
    ):
        return None
    before, after = (_months(asked, candidates, each) for each in (placement, found))
    share = Decimal(str(SAME))
    concerned = sum((usd for name, usd in before.items() if name in engines), Decimal(0))
    more = found.objective_usd_per_hour - placement.objective_usd_per_hour
    if more > share * concerned / HOURS_PER_MONTH + ROUNDING:
        return None
    if sum(after.values()) - sum(before.values()) > share * concerned + ROUNDING * HOURS_PER_MONTH:
        return None
    bound = min(placement.bound_usd_per_hour, found.objective_usd_per_hour)
    objective = found.objective_usd_per_hour
    return replace(
        found,
        status=placement.status,
        unplaced=placement.unplaced,
        bound_usd_per_hour=bound,
        gap=float((objective - bound) / objective) if objective > 0 else 0.0,
        solve_s=placement.solve_s + found.solve_s,
        baselines=placement.baselines,
    )


def _short(found: PlacementResult) -> dict[str, int]:
    """Replicas without a place, by workload."""
    return {entry.workload: entry.replicas for entry in found.unplaced}


def _months(asked: PlanRequest, candidates: Sequence[Candidate], found: PlacementResult) -> dict[str, Decimal]:
    """Each workload's bill of a month, people of the engines once."""
    months: dict[str, Decimal] = {}
    for row in bill_rows(asked, candidates, restored(found.placements, asked), found.purchased_nodes):
        months[row.workload.name] = months.get(row.workload.name, Decimal(0)) + row.usd_per_month
    return months


def _bought(found: PlacementResult) -> Decimal:
    """Money an hour of nodes bought."""
    return sum((node.gpus * node.price.usd_per_gpu_hour for node in found.purchased_nodes), Decimal(0))

"""Placements solved and held against the independent checker."""

from __future__ import annotations

from decimal import Decimal

from fleet_samples import request

from planner.placement.check import check
from planner.placement.solver import PlacementResult, solve
from planner.plan_types import PlanRequest, PlanResult, StrandedReport


def as_plan(asked: PlanRequest, result: PlacementResult, candidates) -> PlanResult:
    """Wrap a placement for the checker."""
    nodes = {n.name: n for n in (*asked.nodes, *result.purchased_nodes)}
    usd = sum((len(p.gpu_indexes) * nodes[p.node].price.usd_per_gpu_hour for p in result.placements), Decimal(0))
    empty = StrandedReport(0, 0.0)
    return PlanResult(
        asked.name, "test", result.status, result.objective_usd_per_hour, result.bound_usd_per_hour, result.gap,
        result.solve_s, tuple(candidates), (), result.placements, result.unplaced, usd, Decimal(0), empty, empty,
        purchased_nodes=result.purchased_nodes,
    )  # fmt: skip


def solved(nodes, workloads, candidates, **other) -> PlacementResult:
    asked = request(nodes, workloads, **other)
    result = solve(asked, tuple(candidates))
    assert check(asked, as_plan(asked, result, candidates)) == []
    return result


def used_gpus(result: PlacementResult) -> int:
    return sum(len(p.gpu_indexes) for p in result.placements)

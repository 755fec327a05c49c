"""What the plan would cost with one engine alone: the same solver on the same candidates, the other engine barred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product

from planner.economics.money import money
from planner.evidence import Interval
from planner.placement.devices import restored, usd_per_hour
from planner.placement.solver import PlacementResult, solve
from planner.plan_types import Candidate, EnginePlan, Placement, PlanRequest
from planner.recommend.bill import bill_rows
from planner.recommend.costing import Change
from planner.recommend.mixcost import mix_usd, unit_of
from planner.recommend.preference import SAME, engine_of
from planner.recommend.verdict import capacity_factors, slices
from planner.units import HOURS_PER_MONTH
from planner.words import ENGINE_LABEL

TIME_SHARE = 0.25
"""Of what the plan's time limit left, for each engine; what the search has found by then counts, with its gap."""

LEAST_S = 1.0
_SERVED = 1e-6


def plans_alone(
    request: PlanRequest, candidates: Sequence[Candidate], chosen: PlacementResult
) -> dict[str, PlacementResult]:
    """The best placement of each engine alone, on the candidates as sized for ``chosen``.

    A plan that uses one engine only is that engine's best plan already.
    """
    left_s = max(request.time_limit_s - chosen.solve_s, 0.0) * TIME_SHARE
    limit_s = min(max(left_s, LEAST_S), request.time_limit_s)
    engine_by_id = {candidate.id: engine_of(candidate) for candidate in candidates}
    used = {engine_by_id.get(item.candidate_id, "") for item in chosen.placements}
    found = {}
    for engine in ENGINE_LABEL:
        own = tuple(candidate for candidate in candidates if engine_by_id[candidate.id] == engine)
        limited = replace(request, time_limit_s=limit_s)
        found[engine] = chosen if used == {engine} else solve(limited, own, with_baselines=False)
    return found


def engine_plans(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    chosen: PlacementResult,
    alone: Mapping[str, PlacementResult],
) -> tuple[EnginePlan, ...]:
    """The chosen plan, then those of ``plans_alone``, each with its bill of a month. ``request`` as it was asked,
    before its slices became devices.

    ``saving`` is given where an engine alone serves as much as the chosen plan; 0 where it is that plan.
    """
    rows = [_row("", chosen, request, candidates)]
    for engine, found in alone.items():
        row = _row(engine, found, request, candidates)
        if found is chosen:
            row = replace(row, saving=Interval(0.0, 0.0, 0.0))
        elif found.placements and abs(found.served_share - chosen.served_share) <= _SERVED:
            months = float(rows[0].usd_per_month), float(row.usd_per_month)
            saving = _saving(request, candidates, (chosen, found), months)
            row = replace(row, saving=saving, too_close=saving.low < SAME and saving.high > -SAME)
        rows.append(row)
    return tuple(rows)


def cheaper_alone(rows: Sequence[EnginePlan], sign: str) -> tuple[str, ...]:
    """What to say where one engine alone serves the same for less: no placement weighs a second engine's people."""
    both = rows[0]
    return tuple(
        f"{ENGINE_LABEL[row.engine]} alone would cost {sign}{both.usd_per_month - row.usd_per_month:,.0f} less a "
        "month: the placement does not weigh the people that a second engine takes."
        for row in rows[1:]
        if row.saving is not None and row.usd_per_month < both.usd_per_month
    )


def _row(engine: str, found: PlacementResult, request: PlanRequest, candidates: Sequence[Candidate]) -> EnginePlan:
    return EnginePlan(
        engine=engine,
        status=found.status,
        objective_usd_per_hour=found.objective_usd_per_hour,
        usd_per_month=_month(found, request, candidates),
        gap=found.gap,
        gpus=len({(item.node, index) for item in found.placements for index in item.gpu_indexes}),
        purchased_nodes=len(found.purchased_nodes),
        served_share=found.served_share,
        unplaced=found.unplaced,
    )


def _month(found: PlacementResult, request: PlanRequest, candidates: Sequence[Candidate]) -> Decimal:
    """The bill of a month, and what is left over of the nodes bought for it."""
    placements = restored(found.placements, request)
    rows = bill_rows(request, candidates, placements, found.purchased_nodes)
    bought = {node.name: node for node in found.purchased_nodes}
    used = (usd_per_hour(item, bought[item.node]) for item in placements if item.node in bought)
    paid = (node.gpus * node.price.usd_per_gpu_hour for node in bought.values())
    left = sum(paid, Decimal(0)) - sum(used, Decimal(0))
    return sum((row.usd_per_month for row in rows), money(left * HOURS_PER_MONTH))


def _saving(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    plans: tuple[PlacementResult, PlacementResult],
    months: tuple[float, float],
) -> Interval:
    """(one engine alone - chosen) / one engine alone, with the 80 % interval over what replicas carry; ``plans`` and
    ``months`` are those of the chosen plan and of the engine alone.

    All candidates of one engine err alike, the two engines independently; each plan is then priced with the replicas
    that it would need, in proportion to its month.
    """
    ours, theirs = months
    if theirs <= 0:
        return Interval(0.0, 0.0, 0.0)
    deviations = slices(20)
    grids = [_relative_cost(request, candidates, plan.placements, deviations) for plan in plans]
    points = sorted(1 - ours * a / (theirs * b) for a, b in zip(*grids, strict=True))
    value, tenth = 1 - ours / theirs, len(points) // 10
    return Interval(value, min(value, points[tenth]), max(value, points[-1 - tenth]))


def _relative_cost(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    placements: Sequence[Placement],
    deviations: Sequence[float],
) -> list[float]:
    """Cost over today's for each pair of deviations of vLLM and TensorRT-LLM."""
    by_id = {candidate.id: candidate for candidate in candidates}
    replicas: dict[str, dict[str, set[int]]] = {}
    for item in placements:
        replicas.setdefault(item.workload, {}).setdefault(item.candidate_id, set()).add(item.replica)
    pairs = list(product(range(len(deviations)), repeat=2))
    totals, base = [0.0] * len(pairs), 0.0
    for workload in request.workloads:
        placed = {key: len(found) for key, found in replicas.get(workload.name, {}).items() if by_id[key].cost}
        if not placed:
            continue
        units = [unit_of(by_id[key]) for key in placed]
        counts = list(placed.values())
        factors = [capacity_factors(unit.candidate, deviations) for unit in units]
        axis = [list(ENGINE_LABEL).index(unit.engine) for unit in units]
        known: dict[tuple[int, ...], float] = {}
        for i, pair in enumerate(pairs):
            at = tuple(pair[a] for a in axis)
            if at not in known:
                drawn = [factor[k] for factor, k in zip(factors, at, strict=True)]
                known[at] = mix_usd(units, counts, workload.n_plus_1, Change(), drawn)
            totals[i] += known[at]
        base += mix_usd(units, counts, workload.n_plus_1, Change())
    return [total / base for total in totals] if base > 0 else [1.0] * len(pairs)

"""Solve a placement: greedy start, the integer programme, concrete GPUs, and what was left out and why."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from planner.placement.assign import Assigned, assign
from planner.placement.explain import explain
from planner.placement.greedy import GreedyPlan, greedy, hourly
from planner.placement.model import Counts, Programme
from planner.placement.problem import Problem, build
from planner.plan_types import Baseline, Candidate, Placement, PlanNode, PlanRequest, Unplaced

SMALL_GAP = 1e-6  # proven to the cent for plans of ordinary size
LARGE_GAP = 3e-3
LARGE_CHOICES = 400
Status = Literal["optimal", "feasible", "greedy", "infeasible"]
PRIORITY_FACTOR = 20.0  # a step up in priority outweighs this many shares of the next lower one
SERVE_TIME_SHARE = 0.25  # of the time limit, when something must be left out


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Concrete placements with the proof: objective and bound in USD an hour, gap between them."""

    status: Status
    placements: tuple[Placement, ...]
    purchased_nodes: tuple[PlanNode, ...]
    unplaced: tuple[Unplaced, ...]
    objective_usd_per_hour: Decimal
    bound_usd_per_hour: Decimal
    gap: float
    solve_s: float
    moves: int
    baselines: tuple[Baseline, ...]
    served_share: float = 0.0  # mean over the workloads, as in the baselines


def solve(request: PlanRequest, candidates: tuple[Candidate, ...], *, with_baselines: bool = True) -> PlacementResult:
    """Cheapest placement that serves as much as can be served, more important workloads first.

    Where both owned and bought nodes may be used, ``request.objective`` decides: least spent on new nodes, then least
    in all ("new_spend"), or least in all at once, owned GPUs in use at their hourly price ("total_cost").

    First the greedy plan. When it serves everything, the programme starts from it; else the least unserved demand by
    priority is found first and then held. The cheaper of greedy and programme is taken, so the answer is never worse.
    """
    began = time.perf_counter()
    problem = build(request, candidates)
    start = min(
        (greedy(problem, order) for order in ("best_fit", "first_fit_decreasing")),
        key=lambda plan: (_penalty(problem, plan.counts), plan.usd_per_hour),
    )
    if not problem.choices:
        unplaced = explain(problem, Counts({}, {}, dict.fromkeys(range(len(problem.workloads)), 1.0)), candidates)
        zero = Decimal("0.0000")
        seconds = time.perf_counter() - began
        return PlacementResult("infeasible", (), (), unplaced, zero, zero, 0.0, seconds, len(request.current), ())
    status: Status
    status, counts, objective, bound = _optimise(problem, start, request.time_limit_s)
    assigned = assign(problem, counts)
    counts = _without_missed(problem, counts, assigned)
    if assigned.missed:
        status, objective = ("feasible" if status == "optimal" else status), hourly(problem, counts)
    bound = min(bound, objective)
    gap = (objective - bound) / objective if objective > 0 else 0.0
    unplaced = explain(problem, counts, candidates)
    if not assigned.placements:
        status = "infeasible"
    seconds = time.perf_counter() - began
    return PlacementResult(
        status,
        assigned.placements,
        assigned.purchased,
        unplaced,
        _usd(objective),
        _usd(bound),
        gap,
        seconds,
        assigned.moves,
        _baselines(problem) if with_baselines else (),
        1 - sum(counts.unserved.values()) / max(len(problem.workloads), 1),
    )


def _optimise(problem: Problem, start: GreedyPlan, time_limit_s: float) -> tuple[Status, Counts, float, float]:
    gap = LARGE_GAP if len(problem.choices) > LARGE_CHOICES else SMALL_GAP
    programme = Programme(problem, problem.request.seed)
    unserved = dict.fromkeys(range(len(problem.workloads)), 0.0)
    warm: Counts | None = start.counts
    left_s, proven = time_limit_s, True
    if start.short:
        served = programme.minimise_unserved(_weights(problem), time_limit_s * SERVE_TIME_SHARE)
        if served.counts is not None:
            unserved, warm, proven = dict(served.unserved), served.counts, served.proven
        else:
            unserved, proven = dict(start.counts.unserved), False
        left_s *= 1 - SERVE_TIME_SHARE
    spend: float | None = None
    new_spend_first = problem.request.objective == "new_spend"
    if new_spend_first and programme.may_buy and any(not group.purchase for group in problem.classes):
        bought = programme.minimise_spend(unserved, left_s / 2, gap, warm)
        if bought.counts is not None:
            warm, spend, proven = bought.counts, bought.objective, proven and bought.proven
        left_s /= 2
    solved = programme.minimise_cost(unserved, left_s, gap, warm, spend)
    bound = max(0.0, solved.bound) if math.isfinite(solved.bound) else 0.0
    if solved.counts is None:
        return "greedy", start.counts, start.usd_per_hour, min(bound, start.usd_per_hour)
    objective = hourly(problem, solved.counts)
    as_served = _penalty(problem, start.counts) <= _penalty(problem, solved.counts) + 1e-9
    simple = spend is None and not problem.request.current  # else greedy may be cheaper by buying, or by moving more
    if as_served and simple and start.usd_per_hour < objective - 1e-9:
        return "greedy", start.counts, start.usd_per_hour, min(bound, start.usd_per_hour)
    closed = objective - bound <= max(gap, 1e-6) * objective
    return ("optimal" if solved.proven and proven and closed else "feasible"), solved.counts, objective, bound


def _weights(problem: Problem) -> dict[int, float]:
    """Weight of a workload's unserved share: each distinct priority outweighs all of the one below it."""
    levels = {p: i for i, p in enumerate(sorted({w.priority for w in problem.workloads}))}
    top = len(levels) - 1
    exponents = {
        w: min(levels[workload.priority], levels[workload.priority] - max(0, top - 4))
        for w, workload in enumerate(problem.workloads)
    }
    return {w: PRIORITY_FACTOR ** max(exponent, 0) for w, exponent in exponents.items()}


def _penalty(problem: Problem, counts: Counts) -> float:
    weights = _weights(problem)
    return sum(weights[w] * share for w, share in counts.unserved.items())


def _without_missed(problem: Problem, counts: Counts, assigned: Assigned) -> Counts:
    """Counts less the replicas that found no bin; their share becomes unserved."""
    if not assigned.missed:
        return counts
    replicas, unserved = dict(counts.replicas), dict(counts.unserved)
    missed = Counter(assigned.missed)
    for index, k in sorted(replicas):
        cut = min(missed[index], replicas[index, k])
        replicas[index, k] -= cut
        missed[index] -= cut
        workload = problem.choices[index].workload
        unserved[workload] = min(1.0, unserved.get(workload, 0.0) + cut / problem.choices[index].needed)
    return Counts({key: count for key, count in replicas.items() if count}, counts.bought, unserved)


def _baselines(problem: Problem) -> tuple[Baseline, ...]:
    """What simpler rules would have cost on the same candidates."""
    plans = [("Best fit", greedy(problem)), ("First fit decreasing", greedy(problem, "first_fit_decreasing"))]
    count = max(len(problem.workloads), 1)
    return tuple(
        Baseline(
            name, _usd(plan.usd_per_hour), sum(plan.short.values()), 1 - sum(plan.counts.unserved.values()) / count
        )
        for name, plan in plans
    )


def _usd(value: float) -> Decimal:
    return Decimal(str(round(value, 4))).quantize(Decimal("0.0001"))

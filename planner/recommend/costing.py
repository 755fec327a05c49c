"""What a candidate costs an hour when one thing changes: the arithmetic behind margins and flip points.

Only the integer number of replicas, prices and operations are recomputed; nothing is simulated again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from planner.economics.energy import energy_usd_per_hour
from planner.economics.operations import operations_use
from planner.placement.problem import replicas_needed
from planner.plan_types import Candidate, PlanRequest, PlanWorkload
from planner.units import HOURS_PER_MONTH, HOURS_PER_YEAR


@dataclass(frozen=True, slots=True)
class Change:
    """What is varied. Factors are relative to today; None leaves the request's own value."""

    load_factor: float = 1.0
    rate_factor: float = 1.0  # of what one replica carries: an error of prediction
    gpu_price_factor: float = 1.0
    gpu: str = ""  # the price factor holds for this GPU alone; empty: for all
    revisions_per_month: float | None = None
    usd_per_kwh: float | None = None


def gpu_price(request: PlanRequest, gpu: str) -> float:
    """Lowest USD per GPU-hour of ``gpu`` among the nodes at hand."""
    nodes = [*request.nodes, *(option.node for option in request.purchase_options)]
    return min(float(node.price.usd_per_gpu_hour) for node in nodes if node.gpu == gpu)


def usd_per_hour(candidate: Candidate, workload: PlanWorkload, request: PlanRequest, change: Change) -> float:
    """USD an hour of all replicas that the changed demand needs, operations and electricity included."""
    share = candidate.replica_share * change.rate_factor / change.load_factor
    replicas = replicas_needed(share, workload.n_plus_1)
    gpus = replicas * candidate.gpus_per_replica
    price = gpu_price(request, candidate.gpu)
    if change.gpu in ("", candidate.gpu):
        price *= change.gpu_price_factor
    return (
        gpus * price
        + _operations(candidate, workload, request, change, replicas, price)
        + _energy(candidate, request, change, gpus)
    )


def best_of(
    candidates: Iterable[Candidate], workload: PlanWorkload, request: PlanRequest, change: Change
) -> tuple[float, Candidate] | None:
    """Cheapest candidate under ``change``; the stronger replica decides between equals. None without candidates."""
    priced = [(usd_per_hour(c, workload, request, change), -c.replica_share, c.id, c) for c in candidates]
    if not priced:
        return None
    cheapest = min(priced, key=lambda item: item[:3])
    return cheapest[0], cheapest[3]


def _operations(
    candidate: Candidate, workload: PlanWorkload, request: PlanRequest, change: Change, replicas: int, price: float
) -> float:
    if candidate.settings is None:
        return 0.0
    revisions = workload.revisions_per_month if change.revisions_per_month is None else change.revisions_per_month
    costs = request.operations
    use = operations_use(
        candidate.settings.engine,
        candidate.settings.trt_backend,
        replicas=replicas,
        gpus_per_replica=candidate.gpus_per_replica,
        revisions_per_month=revisions,
        costs=costs,
    )
    monthly = float(use.gpu_hours) * price + float(use.people_hours * costs.people_usd_per_hour)
    licence = dict(costs.licence_usd_per_gpu_year).get(candidate.settings.engine.value, Decimal(0))
    yearly = float(licence) * replicas * candidate.gpus_per_replica
    return monthly / float(HOURS_PER_MONTH) + yearly / HOURS_PER_YEAR


def _energy(candidate: Candidate, request: PlanRequest, change: Change, gpus: int) -> float:
    if candidate.watts_per_gpu is None or request.energy is None:
        return 0.0
    usd = float(energy_usd_per_hour(candidate.watts_per_gpu, gpus, request.energy))
    if change.usd_per_kwh is None:
        return usd
    return usd * change.usd_per_kwh / float(request.energy.usd_per_kwh) if request.energy.usd_per_kwh else 0.0

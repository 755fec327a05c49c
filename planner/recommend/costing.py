"""What a candidate costs an hour when one thing changes: the arithmetic behind margins and flip points.

Only the integer number of replicas, prices and operations are recomputed; nothing is simulated again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache

from planner.economics.operations import OperationsCosts, operations_use
from planner.economics.types import ELECTRICITY
from planner.engines.types import EngineName
from planner.placement.problem import replicas_needed
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload, PurchaseOption
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


@lru_cache(maxsize=64)
def _prices(nodes: tuple[PlanNode, ...], options: tuple[PurchaseOption, ...]) -> dict[str, tuple[float, bool]]:
    """By GPU: its lowest price, and whether that price holds electricity."""
    found: dict[str, tuple[float, bool]] = {}
    for node in (*nodes, *(option.node for option in options)):
        entry = float(node.price.usd_per_gpu_hour), node.price.holds_electricity
        found[node.gpu] = min(entry, found.get(node.gpu, entry))
    return found


def gpu_price(request: PlanRequest, gpu: str) -> float:
    """Lowest USD per GPU-hour of ``gpu`` among the nodes at hand."""
    return _prices(request.nodes, request.purchase_options)[gpu][0]


def gpu_basis(request: PlanRequest, gpu: str) -> str:
    """Whether the lowest price of ``gpu`` is of ownership (tco), rental or the catalogue's."""
    nodes = (*request.nodes, *(option.node for option in request.purchase_options))
    return min((n for n in nodes if n.gpu == gpu), key=lambda n: n.price.usd_per_gpu_hour).price.basis


def electricity_per_replica(candidate: Candidate, request: PlanRequest) -> float:
    """Electricity of one replica an hour; 0 where power is unknown or the GPU price holds it."""
    return _energy(candidate, request, Change())


def usd_per_hour(candidate: Candidate, workload: PlanWorkload, request: PlanRequest, change: Change) -> float:
    """USD an hour of all replicas that the changed demand needs, operations and electricity included."""
    share = candidate.replica_share * change.rate_factor / change.load_factor
    replicas = replicas_needed(share, workload.n_plus_1)
    price = gpu_price(request, candidate.gpu)
    if change.gpu in ("", candidate.gpu):
        price *= change.gpu_price_factor
    gpu_hours, other = _operations(candidate, workload, request, change)
    each = float(candidate.gpus_charged) * price + gpu_hours * price + other + _energy(candidate, request, change)
    return replicas * each


def best_of(
    candidates: Iterable[Candidate], workload: PlanWorkload, request: PlanRequest, change: Change
) -> tuple[float, Candidate] | None:
    """Cheapest candidate under ``change``, of equals the one that carries most per GPU; None without candidates."""
    priced = [
        (usd_per_hour(c, workload, request, change), -c.replica_share / c.gpus_per_replica, c.id, c) for c in candidates
    ]
    if not priced:
        return None
    cheapest = min(priced, key=lambda item: item[:3])
    return cheapest[0], cheapest[3]


def _operations(
    candidate: Candidate, workload: PlanWorkload, request: PlanRequest, change: Change
) -> tuple[float, float]:
    """(GPU-hours, USD) an hour that operating one replica takes; people once per engine and revision are left out."""
    if candidate.settings is None:
        return 0.0, 0.0
    revisions = workload.revisions_per_month if change.revisions_per_month is None else change.revisions_per_month
    engine, gpus = candidate.settings.engine, candidate.gpus_per_replica
    hours = _gpu_hours_per_revision(engine, candidate.settings.trt_backend, gpus, request.operations) * revisions
    licence = dict(request.operations.licence_usd_per_gpu_year).get(engine.value, Decimal(0))
    return hours / float(HOURS_PER_MONTH), float(licence) * float(candidate.gpus_charged) / HOURS_PER_YEAR


@cache
def _gpu_hours_per_revision(engine: EngineName, backend: str, gpus: int, costs: OperationsCosts) -> float:
    use = operations_use(engine, backend, replicas=1, gpus_per_replica=gpus, revisions_per_month=1, costs=costs)
    return float(use.gpu_hours)


def _energy(candidate: Candidate, request: PlanRequest, change: Change) -> float:
    """Electricity of one replica an hour: as its bill holds it (the mean over the sites), or at one flat price."""
    if candidate.watts_per_gpu is None or request.energy is None:
        return 0.0
    if _prices(request.nodes, request.purchase_options)[candidate.gpu][1]:
        return 0.0
    if change.usd_per_kwh is None and candidate.cost is not None:
        month = dict(candidate.cost.parts).get(ELECTRICITY, Decimal(0))
        gpu_hours = float(candidate.cost.gpu_hours_per_month)
        return float(month) / gpu_hours * float(candidate.gpus_charged) if gpu_hours else 0.0
    price = float(request.energy.usd_per_kwh) if change.usd_per_kwh is None else change.usd_per_kwh
    return candidate.watts_per_gpu * candidate.gpus_per_replica / 1000 * float(request.energy.pue) * price

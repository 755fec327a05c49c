"""Consolidation: moves among what runs today that leave fewer GPUs stranded, and what they disturb.

Node by node, those with fewest GPUs in use first, all replicas of a node are offered to the tightest domains elsewhere.
A node is emptied only when the stranded GPUs of the fleet fall; a replica never moves twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from planner.economics.operations import OperationsCosts, start_up_minutes
from planner.fragmentation.fleet import WorkloadShape, stranded
from planner.placement.fleet import bins_of, fits_shape
from planner.plan_types import Candidate, Consolidation, Move, Placement, PlanNode, PlanWorkload

LEAST_GAIN = 1e-6


def consolidate(
    nodes: Sequence[PlanNode],
    placements: Sequence[Placement],
    candidates: Sequence[Candidate],
    workloads: Sequence[PlanWorkload],
    shapes: Sequence[WorkloadShape],
    *,
    operations: OperationsCosts | None = None,
    max_moves: int = 20,
) -> Consolidation:
    """Propose at most ``max_moves`` moves. Replicas over several nodes, on shared GPUs or of unknown
    candidates stay in place; none leaves its cluster."""
    by_id = {candidate.id: candidate for candidate in candidates}
    by_name = {workload.name: workload for workload in workloads}
    state = list(placements)
    before = stranded(nodes, state, shapes)
    best = before
    moves: list[Move] = []
    moved: set[tuple[str, int]] = set()
    spanning = _spanning(state)
    for node in sorted(nodes, key=lambda n: (_used(state, n.name), n.name)):
        here = [p for p in state if p.node == node.name]
        movable = all(p.candidate_id in by_id and p.sharers == 1 and _key(p) not in spanning | moved for p in here)
        if not here or not movable or len(moves) + len(here) > max_moves:
            continue
        trial = [p for p in state if p.node != node.name]
        steps = []
        for placement in sorted(here, key=lambda p: (-len(p.gpu_indexes), _key(p))):
            candidate = by_id[placement.candidate_id]
            target = _target(nodes, trial, node, placement, candidate, by_name.get(placement.workload))
            if target is None:
                break
            trial.append(target)
            minutes = (
                start_up_minutes(candidate.settings.engine, operations or OperationsCosts())
                if candidate.settings
                else Decimal(0)
            )
            steps.append(_move(placement, target, float(minutes)))
        if len(steps) < len(here):
            continue
        found = stranded(nodes, trial, shapes)
        if found.stranded_gpus < best.stranded_gpus - LEAST_GAIN:
            state, best = trial, found
            moves += steps
            moved |= {_key(p) for p in here}
    return Consolidation(tuple(moves), before, best)


def _target(
    nodes: Sequence[PlanNode],
    state: Sequence[Placement],
    source: PlanNode,
    placement: Placement,
    candidate: Candidate,
    workload: PlanWorkload | None,
) -> Placement | None:
    """The tightest free domain elsewhere that may hold the replica, on a node that is in use already."""
    gpus = len(placement.gpu_indexes)
    engine = candidate.settings.engine.value if candidate.settings else ""
    used: dict[str, set[int]] = {}
    for item in state:
        used.setdefault(item.node, set()).update(item.gpu_indexes)
    found: list[tuple[int, str, tuple[int, ...]]] = []
    for index, node in enumerate(nodes):
        if node.name == source.name or node.state != "active" or node.gpu != candidate.gpu or node.name not in used:
            continue
        site, tenant = (workload.site, workload.tenant) if workload else ("", "")
        if engine not in node.allowed_engines or site not in ("", node.site) or node.tenant not in ("", tenant):
            continue
        if gpus < node.min_replica_gpus or (node.orchestrator, node.cluster) != (source.orchestrator, source.cluster):
            continue
        if not fits_shape(node, gpus, candidate.max_nvlink_domain_needed):
            continue
        for domain in bins_of(node, index):
            free = [i for i in domain.free if i not in used[node.name]]
            if len(free) >= gpus:
                found.append((len(free), node.name, tuple(free[:gpus])))
    if not found:
        return None
    _, name, indexes = min(found)
    return Placement(placement.workload, placement.candidate_id, placement.replica, name, indexes)


def _move(old: Placement, new: Placement, minutes: float) -> Move:
    return Move(old.workload, old.candidate_id, old.replica, old.node, new.node, new.gpu_indexes, minutes)


def _key(placement: Placement) -> tuple[str, int]:
    return placement.candidate_id, placement.replica


def _spanning(state: Sequence[Placement]) -> set[tuple[str, int]]:
    seen: dict[tuple[str, int], int] = {}
    for placement in state:
        seen[_key(placement)] = seen.get(_key(placement), 0) + 1
    return {key for key, count in seen.items() if count > 1}


def _used(state: Sequence[Placement], node: str) -> int:
    return sum(len(placement.gpu_indexes) for placement in state if placement.node == node)

"""Stranded GPUs: free GPUs that the mix of workloads cannot take.

The measure is the expectation of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC 2023): F(n) = sum over shapes m of p(m) x F(n, m), where F(n, m) is every
free GPU of n when m cannot run there, else what m could not be allotted. Here n is an NVLink domain of a node, because
a replica does not cross it, and GPUs are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.catalog import get_gpu, mig_profile
from planner.catalog.mig import split_name
from planner.placement.fleet import bins_of
from planner.plan_types import Placement, PlanNode, StrandedReport


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What the replicas of one workload ask for: GPUs of one replica by GPU type, and how many replicas there are."""

    workload: str
    gpus_by_type: dict[str, int]
    replicas: float
    site: str = ""
    tenant: str = ""


def stranded(
    nodes: Sequence[PlanNode], placements: Iterable[Placement], shapes: Sequence[WorkloadShape]
) -> StrandedReport:
    """Free and expected stranded GPUs of active ``nodes`` once ``placements`` stand.

    ``free_by_shape``: free GPUs by the largest shape of the mix that their domain can still take ("0": none). Nodes
    that stand for MIG slices (see ``planner.placement.devices``) count by their part of a GPU, under the node they
    belong to. Memory: what the expected stranded GPUs hold, and what is left over on GPUs that are in use.
    """
    used: dict[str, set[int]] = {}
    left_over: dict[tuple[str, int], Fraction] = {}
    for placement in placements:
        used.setdefault(placement.node, set()).update(placement.gpu_indexes)
        if placement.sharers > 1:
            at = placement.node, placement.gpu_indexes[0]
            left_over[at] = left_over.get(at, Fraction(1)) - Fraction(1, placement.sharers)
    total = sum(shape.replicas for shape in shapes)
    by_node: dict[str, float] = {}
    by_shape: dict[str, int] = {}
    slices: dict[str, int] = {}
    free_gpus, largest, memory_gib = 0, 0, 0.0
    for index, node in enumerate(nodes):
        if node.state != "active":
            continue
        expected = 0.0
        sizes = [_size(shape, node) for shape in shapes]
        parts = split_name(node.gpu) if node.slice_of else None
        for item in bins_of(node, index):
            free = len(set(item.free) - used.get(node.name, set()))
            if not free:
                continue
            if parts is not None:
                slices[parts[1]] = slices.get(parts[1], 0) + free
            else:
                free_gpus += free
                largest = max(largest, free)
                fitting = [size for size in sizes if size is not None and size <= free]
                label = str(max(fitting, default=0))
                by_shape[label] = by_shape.get(label, 0) + free
            for shape, size in zip(shapes, sizes, strict=True):
                if size is None or size > free:
                    expected += free * shape.replicas / total
        if expected:
            memory_gib += expected * _memory_gib(node)
            name = node.slice_of or node.name
            worth = float(mig_profile(*parts).fraction) if parts is not None else 1.0
            by_node[name] = round(by_node.get(name, 0.0) + expected * worth, 6)
    by_name = {node.name: node for node in nodes}
    unused = sum(float(part) * _memory_gib(by_name[name]) for (name, _), part in left_over.items() if name in by_name)
    return StrandedReport(
        free_gpus=free_gpus,
        stranded_gpus=round(sum(by_node.values()), 6),
        by_node=by_node,
        largest_free_block=largest,
        free_by_shape=dict(sorted(by_shape.items(), key=lambda pair: int(pair[0]))),
        free_slices=dict(sorted(slices.items())),
        memory_stranded_gib=round(memory_gib, 3),
        memory_unused_gib=round(unused, 3),
    )


def _memory_gib(node: PlanNode) -> float:
    """Memory of one GPU of ``node``, in GiB."""
    return node.gpu_memory_gib if node.gpu_memory_gib is not None else get_gpu(node.gpu).total_gib


def _size(shape: WorkloadShape, node: PlanNode) -> int | None:
    """GPUs that a replica takes in one domain of ``node``; None when it may not run there at all."""
    if shape.site not in ("", node.site) or node.tenant not in ("", shape.tenant):
        return None
    size = shape.gpus_by_type.get(node.gpu)
    return None if size is None or size < node.min_replica_gpus else size

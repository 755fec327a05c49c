"""Whether a candidate that was not taken would have found room beside the other workloads of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.placement.greedy import greedy
from planner.placement.problem import build
from planner.plan_types import Candidate, Placement, PlanRequest, PlanWorkload


def finds_room(
    candidate: Candidate, workload: PlanWorkload, request: PlanRequest, placements: Sequence[Placement]
) -> bool:
    """Whether all replicas of ``candidate`` fit on the owned nodes that the other workloads' ``placements`` leave.

    Placed by best fit under all rules of the fleet (site, tenant, engine, NVLink, spread, N+1). Nodes to buy are not
    looked at: where the request may buy, nothing is full.
    """
    if request.mode != "owned":
        return True
    taken: dict[str, set[int]] = {}
    for placement in placements:
        if placement.workload != workload.name:
            taken.setdefault(placement.node, set()).update(placement.gpu_indexes)
    nodes = tuple(
        replace(node, busy_gpus=tuple(sorted({*node.busy_gpus, *taken.get(node.name, ())}))) for node in request.nodes
    )
    alone = replace(request, nodes=nodes, workloads=(workload,), current=())
    return not any(share > 1e-6 for share in greedy(build(alone, (candidate,))).counts.unserved.values())

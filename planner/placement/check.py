"""The independent checker: recomputes every constraint of a plan from the request and the plan alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from decimal import Decimal

from planner.plan_types import Candidate, Placement, PlanNode, PlanRequest, PlanResult, PlanWorkload

_SLACK = 1e-6


def check(request: PlanRequest, result: PlanResult) -> list[str]:
    """Violations in words; an empty list means that the plan keeps every constraint and adds up."""
    nodes = {node.name: node for node in (*request.nodes, *result.purchased_nodes)}
    candidates = {candidate.id: candidate for candidate in result.candidates}
    workloads = {workload.name: workload for workload in request.workloads}
    found = _check_gpus(request, result.placements, nodes)
    groups: dict[tuple[str, str, int], list[Placement]] = defaultdict(list)
    for placement in result.placements:
        groups[placement.workload, placement.candidate_id, placement.replica].append(placement)
    for (name, candidate_id, replica), parts in groups.items():
        label = f"{candidate_id} replica {replica}"
        candidate, workload = candidates.get(candidate_id), workloads.get(name)
        if candidate is None or workload is None:
            found.append(f"{label}: no such candidate or workload")
        elif all(part.node in nodes for part in parts):
            found += [f"{label}: {text}" for text in _check_replica(workload, candidate, parts, nodes)]
    for workload in request.workloads:
        own = {key: parts for key, parts in groups.items() if key[0] == workload.name and key[1] in candidates}
        found += _check_demand(workload, own, candidates, result)
        if workload.spread:
            left_out = sum(item.replicas for item in result.unplaced if item.workload == workload.name)
            found += _check_spread(workload, own, nodes, left_out)
    found += _check_purchases(request, result)
    found += _check_money(request, result, nodes)
    return found


def _check_gpus(request: PlanRequest, placements: tuple[Placement, ...], nodes: dict[str, PlanNode]) -> list[str]:
    found = []
    used: Counter[tuple[str, int]] = Counter()
    for placement in placements:
        node = nodes.get(placement.node)
        if node is None:
            found.append(f"{placement.candidate_id}: node {placement.node} does not exist")
            continue
        for index in placement.gpu_indexes:
            used[placement.node, index] += 1
            if not 0 <= index < node.gpus:
                found.append(f"{placement.candidate_id}: {placement.node} has no GPU {index}")
            elif index in node.busy_gpus:
                found.append(f"{placement.candidate_id}: GPU {index} of {placement.node} belongs to others")
    found += [f"GPU {index} of {name} is used {count} times" for (name, index), count in used.items() if count > 1]
    return found


def _check_replica(
    workload: PlanWorkload, candidate: Candidate, parts: list[Placement], nodes: dict[str, PlanNode]
) -> list[str]:
    found = []
    used = [nodes[part.node] for part in parts]
    engine = candidate.settings.engine.value if candidate.settings else ""
    if candidate.status != "ok":
        found.append(f"its candidate is {candidate.status}")
    if engine not in workload.allowed_engines:
        found.append(f"the workload does not allow {engine}")
    for node in used:
        if node.gpu != candidate.gpu:
            found.append(f"{node.name} has {node.gpu}, not {candidate.gpu}")
        if engine not in node.allowed_engines:
            found.append(f"{node.name} does not allow {engine}")
        if node.state == "maintenance":
            found.append(f"{node.name} is in maintenance")
        if workload.site and node.site != workload.site:
            found.append(f"{node.name} is at {node.site}, not {workload.site}")
        if node.tenant and node.tenant != workload.tenant:
            found.append(f"{node.name} belongs to tenant {node.tenant}")
    count = sum(len(part.gpu_indexes) for part in parts)
    if count != candidate.gpus_per_replica:
        found.append(f"has {count} GPUs, needs {candidate.gpus_per_replica}")
    return found + _check_shape(candidate, parts, used)


def _check_shape(candidate: Candidate, parts: list[Placement], used: list[PlanNode]) -> list[str]:
    if len(parts) > 1:
        if any(len(part.gpu_indexes) != node.gpus for part, node in zip(parts, used, strict=True)):
            return ["spans nodes without taking them whole"]
        if len({(node.site, node.pool) for node in used}) > 1:
            return ["spans nodes of different sites or pools"]
        if any(candidate.max_nvlink_domain_needed > max(node.nvlink_domain, node.gpus) for node in used):
            return ["its tensor-parallel group spans NVLink domains"]
        return []
    node, indexes = used[0], parts[0].gpu_indexes
    if not 1 < node.nvlink_domain < node.gpus:
        return []
    domains = Counter(index // node.nvlink_domain for index in indexes)
    if len(domains) == 1:
        return []
    if any(count != node.nvlink_domain for count in domains.values()):
        return ["spans NVLink domains without taking them whole"]
    if candidate.max_nvlink_domain_needed > node.nvlink_domain:
        return ["its tensor-parallel group spans NVLink domains"]
    return []


def _check_demand(
    workload: PlanWorkload,
    groups: dict[tuple[str, str, int], list[Placement]],
    candidates: dict[str, Candidate],
    result: PlanResult,
) -> list[str]:
    shares = [candidates[candidate_id].replica_share for _, candidate_id, _ in groups]
    reserve = max(shares, default=0.0) if workload.n_plus_1 else 0.0
    carried = sum(shares) - reserve
    left_out = any(item.workload == workload.name for item in result.unplaced)
    if carried < 1 - _SLACK and not left_out:
        spare = ", one replica spare" if workload.n_plus_1 else ""
        return [f"{workload.name}: carries {carried:.1%} of its demand{spare}, and the plan does not say so"]
    return []


def _check_spread(
    workload: PlanWorkload,
    groups: dict[tuple[str, str, int], list[Placement]],
    nodes: dict[str, PlanNode],
    left_out: int,
) -> list[str]:
    """At most half of the replicas wanted, rounded up, in one failure domain; those left out count as wanted."""
    domains: Counter[str] = Counter()
    for parts in groups.values():
        names = {nodes[part.node].failure_domain or part.node for part in parts if part.node in nodes}
        domains.update(names)
    wanted = len(groups) + left_out
    allowed = math.ceil(wanted / 2)
    return [
        f"{workload.name}: {count} of {wanted} replicas in failure domain {domain}, at most {allowed} may be"
        for domain, count in domains.items()
        if count > allowed
    ]


def _check_purchases(request: PlanRequest, result: PlanResult) -> list[str]:
    found = []
    if request.mode == "owned" and result.purchased_nodes:
        found.append("buys nodes although only owned ones may be used")
    planned = {node.name for node in request.nodes if node.state == "planned"}
    bought = {node.name for node in result.purchased_nodes}
    owned = {node.name for node in request.nodes if node.state == "active"}
    for placement in result.placements:
        if placement.node in planned and placement.node not in bought:
            found.append(f"{placement.node} is used but not bought")
        if request.mode == "purchase" and placement.node in owned:
            found.append(f"{placement.node} is owned, and the plan is for purchases only")
    if request.limits and request.limits.usd_per_hour is not None:
        cost = sum((node.gpus * node.price.usd_per_gpu_hour for node in result.purchased_nodes), Decimal(0))
        if cost > request.limits.usd_per_hour + Decimal("0.0001"):
            found.append(f"purchases cost {cost} USD an hour, the limit is {request.limits.usd_per_hour}")
    return found


def _check_money(request: PlanRequest, result: PlanResult, nodes: dict[str, PlanNode]) -> list[str]:
    found = []
    usd = sum(
        (
            len(part.gpu_indexes) * nodes[part.node].price.usd_per_gpu_hour
            for part in result.placements
            if part.node in nodes
        ),
        Decimal(0),
    )
    if abs(usd - result.usd_per_hour) > Decimal("0.01"):
        found.append(f"GPUs placed cost {usd} USD an hour, the plan says {result.usd_per_hour}")
    if result.bound_usd_per_hour > result.objective_usd_per_hour + Decimal("0.02"):
        found.append("the bound is above the objective")
    for candidate in result.candidates:
        if candidate.cost is None:
            continue
        total = sum((amount for _, amount in candidate.cost.parts), Decimal(0))
        if total != candidate.cost.usd_per_month:
            found.append(f"{candidate.id}: parts add up to {total}, not {candidate.cost.usd_per_month}")
    return found

"""The independent checker: recomputes every constraint of a plan from the request and the plan alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from decimal import Decimal

from planner.catalog.mig import mig_profile, slice_name
from planner.errors import InputError
from planner.placement.check_pools import check_pools
from planner.plan_types import Candidate, Placement, PlanNode, PlanRequest, PlanResult, PlanWorkload

_SLACK = 1e-6


def check(request: PlanRequest, result: PlanResult) -> list[str]:
    """Violations in words; an empty list means that the plan keeps every constraint and adds up."""
    nodes = {node.name: node for node in (*request.nodes, *result.purchased_nodes)}
    candidates = {candidate.id: candidate for candidate in result.candidates}
    workloads = {workload.name: workload for workload in request.workloads}
    found = _check_gpus(result.placements, nodes) + _check_shared(result.placements, candidates, workloads)
    groups: dict[tuple[str, str, int], list[Placement]] = defaultdict(list)
    for placement in result.placements:
        groups[placement.workload, placement.candidate_id, placement.replica].append(placement)
    for (name, candidate_id, replica), parts in groups.items():
        label = f"{candidate_id} replica {replica}"
        candidate, workload = candidates.get(candidate_id), workloads.get(name)
        if candidate is None or workload is None:
            found.append(f"{label}: no such candidate or workload")
        elif all(part.node in nodes for part in parts):
            found += [f"{label}: {text}" for text in _check_replica(request, workload, candidate, parts, nodes)]
    for workload in request.workloads:
        own = {key: parts for key, parts in groups.items() if key[0] == workload.name and key[1] in candidates}
        found += _check_demand(workload, own, candidates, result)
        if workload.spread:
            left_out = sum(item.replicas for item in result.unplaced if item.workload == workload.name)
            found += _check_spread(workload, own, nodes, left_out)
    found += _check_purchases(request, result)
    found += _check_money(request, result, nodes)
    return found


def _check_gpus(placements: tuple[Placement, ...], nodes: dict[str, PlanNode]) -> list[str]:
    """GPUs and slices exist, are free, and nothing is given away twice."""
    found = []
    used: Counter[tuple[str, int]] = Counter()
    slices: Counter[tuple[str, int]] = Counter()
    for placement in placements:
        node = nodes.get(placement.node)
        if node is None:
            found.append(f"{placement.candidate_id}: node {placement.node} does not exist")
            continue
        if placement.slice_profile:
            slices[placement.node, placement.slice_index] += 1
            found += [f"{placement.candidate_id}: {text}" for text in _check_slice(placement, node)]
            continue
        partitioned = {item.gpu for item in node.slices}
        for index in placement.gpu_indexes:
            if placement.sharers == 1:
                used[placement.node, index] += 1
            if not 0 <= index < node.gpus:
                found.append(f"{placement.candidate_id}: {placement.node} has no GPU {index}")
            elif index in node.busy_gpus:
                found.append(f"{placement.candidate_id}: GPU {index} of {placement.node} belongs to others")
            elif index in partitioned:
                found.append(f"{placement.candidate_id}: GPU {index} of {placement.node} is cut into slices")
    for placement in placements:
        if placement.sharers > 1 and any(used[placement.node, i] for i in placement.gpu_indexes):
            found.append(f"{placement.candidate_id}: shares a GPU of {placement.node} that another has whole")
    found += [f"GPU {index} of {name} is used {count} times" for (name, index), count in used.items() if count > 1]
    found += [f"slice {index} of {name} is used {count} times" for (name, index), count in slices.items() if count > 1]
    return found


def _check_slice(placement: Placement, node: PlanNode) -> list[str]:
    if not 0 <= placement.slice_index < len(node.slices):
        return [f"{node.name} has no slice {placement.slice_index}"]
    chosen = node.slices[placement.slice_index]
    if (chosen.profile, (chosen.gpu,)) != (placement.slice_profile, placement.gpu_indexes):
        return [f"slice {placement.slice_index} of {node.name} is {chosen.profile} of GPU {chosen.gpu}"]
    if chosen.busy or chosen.gpu in node.busy_gpus:
        return [f"slice {placement.slice_index} of {node.name} belongs to others"]
    return []


def _check_shared(
    placements: tuple[Placement, ...], candidates: dict[str, Candidate], workloads: dict[str, PlanWorkload]
) -> list[str]:
    """On a shared GPU: as many engines as it has shares at most, of one tenant, of different workloads, and no more
    memory asked for than there is: vLLM's utilisation is a share of the whole GPU, whoever else is on it."""
    guests: dict[tuple[str, int], list[Placement]] = defaultdict(list)
    for placement in placements:
        if placement.sharers > 1:
            guests[placement.node, placement.gpu_indexes[0]].append(placement)
    found = []
    for (name, index), here in guests.items():
        where = f"GPU {index} of {name}"
        if {placement.sharers for placement in here} != {max(len(here), here[0].sharers)}:
            found.append(f"{where}: {len(here)} engines on shares of {sorted({p.sharers for p in here})}")
        if len({placement.workload for placement in here}) < len(here):
            found.append(f"{where}: two replicas of one workload share it")
        if len({workloads[p.workload].tenant for p in here if p.workload in workloads}) > 1:
            found.append(f"{where}: engines of different tenants share it")
        settings = [candidates[p.candidate_id].settings for p in here if p.candidate_id in candidates]
        memory = sum(item.gpu_memory_utilization or 1.0 for item in settings if item is not None)
        if memory > 1 + _SLACK:
            found.append(f"{where}: its engines ask for {memory:.0%} of its memory")
    return found


def _check_replica(
    request: PlanRequest,
    workload: PlanWorkload,
    candidate: Candidate,
    parts: list[Placement],
    nodes: dict[str, PlanNode],
) -> list[str]:
    found = []
    used = [nodes[part.node] for part in parts]
    engine = candidate.settings.engine.value if candidate.settings else ""
    if candidate.status != "ok":
        found.append(f"its candidate is {candidate.status}")
    if engine not in workload.allowed_engines:
        found.append(f"the workload does not allow {engine}")
    for part, node in zip(parts, used, strict=True):
        device = slice_name(node.gpu, part.slice_profile) if part.slice_profile else node.gpu
        if device != candidate.gpu:
            found.append(f"{node.name} has {device}, not {candidate.gpu}")
        if part.sharers != candidate.sharers:
            found.append(f"is placed on 1/{part.sharers} of a GPU and sized for 1/{candidate.sharers}")
        if candidate.sharers > 1 and node.orchestrator != "none":
            found.append(f"shares a GPU on {node.name}, and {node.orchestrator} hands out whole GPUs")
        if node.orchestrator not in request.orchestrators:
            found.append(f"{node.name} belongs to {node.orchestrator}, which the plan may not use")
        if candidate.gpus_per_replica < node.min_replica_gpus and not part.slice_profile:
            found.append(f"{node.name} is fenced for replicas of {node.min_replica_gpus} or more GPUs")
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
    if candidate.disagg is not None:
        found += check_pools(candidate, candidate.disagg, parts, used)
    return found + _check_shape(candidate, parts, used)


def _check_shape(candidate: Candidate, parts: list[Placement], used: list[PlanNode]) -> list[str]:
    if len(parts) > 1:
        if any(len(part.gpu_indexes) != node.gpus for part, node in zip(parts, used, strict=True)):
            return ["spans nodes without taking them whole"]
        if len({(node.site, node.pool, node.orchestrator, node.cluster) for node in used}) > 1:
            return ["spans nodes of different sites, pools or clusters"]
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
    found += _check_limits(request, result)
    if request.limits and request.limits.usd_per_hour is not None:
        cost = sum((node.gpus * node.price.usd_per_gpu_hour for node in result.purchased_nodes), Decimal(0))
        if cost > request.limits.usd_per_hour + Decimal("0.0001"):
            found.append(f"purchases cost {cost} USD an hour, the limit is {request.limits.usd_per_hour}")
    return found


def _check_limits(request: PlanRequest, result: PlanResult) -> list[str]:
    """Power and rack units of what is bought, by the purchase option of its kind of node."""
    if request.limits is None:
        return []
    kw, units = 0.0, 0
    for node in result.purchased_nodes:
        kind = next((o for o in request.purchase_options if (o.node.gpu, o.node.gpus) == (node.gpu, node.gpus)), None)
        kw += (kind.power_kw or 0.0) if kind else 0.0
        units += (kind.rack_units or 0) if kind else 0
    found = []
    if request.limits.power_kw is not None and kw > request.limits.power_kw + _SLACK:
        found.append(f"purchases take {kw:g} kW, the limit is {request.limits.power_kw:g}")
    if request.limits.rack_units is not None and units > request.limits.rack_units:
        found.append(f"purchases take {units} rack units, the limit is {request.limits.rack_units}")
    return found


def _check_money(request: PlanRequest, result: PlanResult, nodes: dict[str, PlanNode]) -> list[str]:
    found = []
    usd = Decimal(0)
    for part in result.placements:
        node = nodes.get(part.node)
        if node is None:
            continue
        price = node.price.usd_per_gpu_hour
        if part.slice_profile:
            usd += price * _slice_share(node.gpu, part.slice_profile)
        else:
            usd += price * len(part.gpu_indexes) / max(part.sharers, 1)
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


def _slice_share(gpu: str, profile: str) -> Decimal:
    """Compute slices of a profile over those of the GPU; 0 for a profile that does not exist, reported elsewhere."""
    try:
        found = mig_profile(gpu, profile)
    except InputError:
        return Decimal(0)
    return Decimal(found.compute_slices) / found.of_slices

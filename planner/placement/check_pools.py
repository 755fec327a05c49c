"""The independent checker's part for units of prefill and decode pools, from the plan alone."""

from __future__ import annotations

from decimal import Decimal

from planner.plan_types import Candidate, Placement, PlanNode, Pools

_SAME = ("engine", "version", "kv_cache_dtype")


def check_pools(candidate: Candidate, pools: Pools, parts: list[Placement], used: list[PlanNode]) -> list[str]:
    """Violations of one placed unit: every role starts, both can exchange caches, instances stay inside nodes, the
    link is the one it was sized for, and the bill is split without rest."""
    found = []
    roles = {"prefill": pools.prefill, "decode": pools.decode}
    for name, role in roles.items():
        if role.instances < 1:
            found.append(f"has no {name} instance")
        if not role.memory.fits:
            found.append(f"its {name} instances do not fit their GPUs")
    if sum(role.gpus for role in roles.values()) != candidate.gpus_per_replica:
        found.append("its pools do not add up to its GPUs")
    first, second = pools.prefill.settings, pools.decode.settings
    found += [f"its pools differ in {field}" for field in _SAME if getattr(first, field) != getattr(second, field)]
    room = [len(part.gpu_indexes) for part in parts]
    for gpus in sorted((role.settings.gpus for role in roles.values() for _ in range(role.instances)), reverse=True):
        place = next((i for i, free in enumerate(room) if free >= gpus), None)
        if place is None:
            found.append(f"an instance of {gpus} GPUs would lie across nodes")
            break
        room[place] -= gpus
    found += _check_link(pools, parts, used)
    if candidate.cost is not None:
        split = sum((role.usd_per_month for role in roles.values()), Decimal(0))
        if split != candidate.cost.usd_per_month:
            found.append(f"its pools' bills add up to {split}, not {candidate.cost.usd_per_month}")
    return found


def _check_link(pools: Pools, parts: list[Placement], used: list[PlanNode]) -> list[str]:
    if pools.link == "network":
        slowest = min(node.network_gb_s for node in used)
        return [] if slowest >= pools.link_gb_s else [f"was sized for {pools.link_gb_s} GB/s, the nodes have {slowest}"]
    if len(parts) > 1:
        return [f"was sized for {pools.link} and is placed over {len(parts)} nodes"]
    domain = used[0].nvlink_domain
    if pools.link == "nvlink" and len({index // domain for index in parts[0].gpu_indexes}) > 1:
        return ["was sized for NVLink and lies across NVLink domains"]
    return []

"""The GPUs of a node: their rows, kept in step with its type, and what its driver reports of them."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from controlplane.core.access import Actor
from controlplane.core.services import delete_record, save_record
from controlplane.inventory.models import Gpu, Node
from planner.catalog.mig import canonical_profile
from runners.contracts import DiscoveredGpu, Observation


def sync_gpus(*, actor: Actor, node: Node, fresh: bool = False) -> int:
    """Give a node one Gpu row for each GPU of its type; returns how many were added. Surplus rows go, unless used.

    ``fresh``: the node was made a moment ago and has none.
    """
    count = node.node_type.gpus
    held = set() if fresh else set(node.gpus.values_list("index", flat=True))
    missing = [index for index in range(count) if index not in held]
    Gpu.objects.bulk_create(Gpu(node=node, index=index) for index in missing)
    if any(index >= count for index in held):
        for gpu in node.gpus.filter(index__gte=count):
            delete_record(gpu, actor=actor)
    return len(missing)


def apply_discovery(node: Node, observation: Observation) -> dict[str, Any]:
    """Write what the driver reported beside the record; returns the differences in words."""
    now = timezone.now()
    differences: list[str] = []
    found = {gpu.index: gpu for gpu in observation.gpus}
    for gpu in node.gpus.all():
        seen = found.pop(gpu.index, None)
        if seen is None:
            if gpu.state == Gpu.State.OK and node.node_type.gpu_model.vendor != "cpu":
                gpu.state = Gpu.State.MISSING
                differences.append(f"GPU {gpu.index} is recorded but was not found")
        else:
            if gpu.uuid and gpu.uuid != seen.uuid:
                differences.append(f"GPU {gpu.index} was replaced: {gpu.uuid} is now {seen.uuid}")
            if gpu.state == Gpu.State.MISSING:
                gpu.state = Gpu.State.OK
            gpu.uuid, gpu.discovered_name = seen.uuid, seen.name
            gpu.discovered_memory_mib, gpu.driver_version = seen.memory_total_mib, seen.driver_version
            gpu.discovered_at = now
            differences += _take_slices(gpu, seen) + _take_orphans(gpu, seen)
        save_record(gpu, actor=None)
    differences += [f"GPU {index} ({gpu.name}) was found but is not recorded" for index, gpu in sorted(found.items())]
    host = observation.host
    return {
        "gpus": len(observation.gpus),
        "differences": differences,
        "host": host.hostname if host else "",
        "cpu": host.cpu_model if host else "",
        "engines": dict(host.engines) if host else {},
        "notes": list(host.notes) if host else [],
    }


def _take_slices(gpu: Gpu, seen: DiscoveredGpu) -> list[str]:
    """Write the MIG instances that the driver reports; those reserved stay so. Differences in words."""
    name = gpu.node.node_type.gpu_model.name
    reserved = {item.split()[1] for item in gpu.mig_slices if item.endswith(" reserved")}
    found, unknown = [], []
    for item in seen.slices:
        profile = canonical_profile(name, item.profile)
        if profile is None:
            unknown.append(item.profile)
            continue
        found.append(f"{profile} {item.uuid}" + (" reserved" if item.uuid in reserved else ""))
    words = [f"GPU {gpu.index} has a slice {profile}, which is no profile of {name}" for profile in unknown]
    if seen.mig_enabled and not found:
        words.append(f"GPU {gpu.index} is in MIG mode without a slice that can be used: nothing can run on it")
    if found != gpu.mig_slices:
        before, after = (" ".join(item.split()[0] for item in each) or "no slices" for each in (gpu.mig_slices, found))
        words.append(f"GPU {gpu.index} was recorded with {before} and has {after}")
    gpu.mig_enabled, gpu.mig_slices = seen.mig_enabled, found
    return words


def _take_orphans(gpu: Gpu, seen: DiscoveredGpu) -> list[str]:
    """Memory that no live process holds: it must be freed before an engine finds room."""
    gpu.orphaned_mib = seen.orphaned_mib
    if not seen.orphaned_mib:
        return []
    return [f"GPU {gpu.index} holds {seen.orphaned_mib:,} MiB without a live process; reset it or restart the host"]

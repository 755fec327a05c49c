"""What still fits on the fleet: instances of each size by kind of GPU, and more replicas of what the plan serves.

An instance takes GPUs of one NVLink domain, or of one node whose GPUs share PCIe only, as the placement does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, make
from controlplane.dashboard.fleetview import FleetNode
from controlplane.dashboard.planrow import WorkloadRow
from controlplane.inventory.models import Node
from planner.placement.fleet import domain_size

SIZES = (1, 2, 4, 8)
"""GPUs of the instances that are counted."""


@dataclass(frozen=True)
class Room:
    """Free GPUs of one kind: ``blocks`` are those of each NVLink domain that has any, largest first."""

    gpu: str
    blocks: tuple[int, ...]

    @property
    def free(self) -> int:
        """All free GPUs."""
        return sum(self.blocks)

    @property
    def largest(self) -> int:
        """The largest free block."""
        return max(self.blocks, default=0)

    def instances(self, size: int) -> int:
        """Instances of ``size`` GPUs that fit."""
        return sum(block // size for block in self.blocks)


@dataclass(frozen=True)
class MoreReplicas:
    """Replicas of one workload, of the shape that the plan chose, for which there is still room."""

    workload: str
    shape: str
    fits: int


def blocks_of(row: FleetNode) -> list[int]:
    """Free GPUs of each NVLink domain of a node, those without any left out."""
    if row.node.state != Node.State.ACTIVE:
        return []
    size = domain_size(row.gpus, row.node.node_type.nvlink_domain)
    taken = row.holders.keys() | row.gpu_states.keys()
    counts = [
        sum(index not in taken for index in range(start, min(start + size, row.gpus)))
        for start in range(0, row.gpus, size)
    ]
    return [count for count in counts if count]


def rooms(rows: Iterable[FleetNode]) -> list[Room]:
    """Every kind of GPU in service, most free GPUs first; processors that stand in for a GPU not at all."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.node.node_type.gpu_model.vendor != "cpu" and row.node.state == Node.State.ACTIVE:
            found[row.node.node_type.gpu_model.name] += blocks_of(row)
    made = [Room(gpu, tuple(sorted(blocks, reverse=True))) for gpu, blocks in found.items()]
    return sorted(made, key=lambda room: (-room.free, room.gpu))


def chart(found: Sequence[Room]) -> Chart:
    """GPUs that instances of each size can still use; what a larger size loses against a smaller one is fragmented."""
    names = [room.gpu for room in found]
    traces = [
        bar(
            y=names, x=[size * room.instances(size) for room in found], orientation="h",
            name=f"{size} GPU{'s' if size > 1 else ''}", marker={"color": palette.CATEGORIES[at]},
            customdata=[room.instances(size) for room in found],
            hovertemplate=f"%{{y}}<br>%{{customdata:,}} instances of {size}: %{{x:,}} GPUs<extra></extra>",
        )
        for at, size in enumerate(SIZES)
    ]  # fmt: skip
    figure_layout = {
        "barmode": "group", "bargap": 0.28, "bargroupgap": 0.08, "showlegend": True,
        "legend": {"traceorder": "normal"},
        "xaxis": axis("GPUs that instances of this size can use", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    columns = (
        Column("GPU", numeric=False), Column("Free", "GPUs"), Column("Largest free block", "GPUs"),
        *(Column(f"Instances of {size}") for size in SIZES),
    )  # fmt: skip
    table = [(room.gpu, room.free, room.largest, *(room.instances(size) for size in SIZES)) for room in found]
    return make(
        "fleet-room", "What still fits", traces, figure_layout, columns, table,
        note="Whole instances inside an NVLink domain, or a node on PCIe. A shorter bar: room is too scattered.",
        size="tall" if len(found) > 3 else "",
    )  # fmt: skip


def more_replicas(rows: Sequence[FleetNode], served: Iterable[WorkloadRow]) -> list[MoreReplicas]:
    """For each workload that a plan serves: how many more replicas of its shape fit on what is free."""
    found = []
    for row in served:
        if row.chosen is None:
            continue
        gpus = int(row.chosen["gpus_per_replica"])
        fits = sum(_replicas(node, gpus) for node in rows if _may_run(node, row, str(row.chosen["gpu"])))
        sharers = int(row.chosen.get("sharers", 1))
        shape = f"{gpus} × {row.chosen['gpu']}, {fmt.shape(row.chosen)}"
        found.append(MoreReplicas(row.name, shape, fits * sharers))
    return found


def _replicas(node: FleetNode, gpus: int) -> int:
    """Replicas of ``gpus`` GPUs on one node; those larger than a domain take whole free domains of it."""
    whole = domain_size(node.gpus, node.node.node_type.nvlink_domain)
    blocks = blocks_of(node)
    if gpus <= whole:
        return sum(block // gpus for block in blocks)
    return sum(block for block in blocks if block == whole) // gpus


def _may_run(node: FleetNode, row: WorkloadRow, gpu: str) -> bool:
    """Whether GPU, site, tenant and engine of a node suit a workload."""
    record, asked = node.node, row.workload
    return (
        record.node_type.gpu_model.name == gpu
        and asked.get("site", "") in ("", record.site.name)
        and record.tenant in ("", asked.get("tenant", ""))
        and (not record.allowed_engines or row.engine in record.allowed_engines)
    )

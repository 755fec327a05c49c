"""What still fits on the fleet: blocks, instances by size, more replicas of what a plan serves."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.dashboard import fleetview, roomview, selectors
from controlplane.dashboard.fleetview import FleetNode, Holding
from controlplane.inventory.models import Gpu, GpuModel, Node, NodeType, Site
from tests.controlplane import fleet_fixture

HELD = Holding(1, (0,), "Chat", "vllm", "ready", "/")


def row(
    gpus: int, domain: int, taken: tuple[int, ...] = (), *, state: str = "active", vendor: str = "nvidia"
) -> FleetNode:
    """A node that is not stored."""
    kind = NodeType(gpu_model=GpuModel(name="H100", vendor=vendor), gpus=gpus, nvlink_domain=domain)
    node = Node(name="n", site=Site(name="here"), node_type=kind, state=state, allowed_engines=["vllm"])
    return FleetNode(node, dict.fromkeys(taken, HELD), {}, 0.0, None)


@pytest.mark.parametrize(
    ("node", "blocks"),
    [
        (row(8, 8), [8]),
        (row(8, 8, (0, 5)), [6]),
        (row(8, 4, (0, 5, 6, 7)), [3, 1]),
        (row(8, 4, (0, 1, 2, 3)), [4]),
        (row(4, 1, (3,)), [3]),
        (row(8, 8, state="planned"), []),
        (row(8, 8, state="maintenance"), []),
    ],
)
def test_blocks_are_what_one_replica_can_take_together(node: FleetNode, blocks: list[int]) -> None:
    assert roomview.blocks_of(node) == blocks


def test_a_gpu_out_of_service_is_not_free() -> None:
    node = row(8, 8)
    faulty = FleetNode(node.node, {}, {2: Gpu.State.FAULTY}, 0.0, None)
    assert roomview.blocks_of(faulty) == [7]


def test_instances_are_counted_block_by_block() -> None:
    (room,) = roomview.rooms([row(8, 8, (0,)), row(8, 8, (0, 1, 2, 3, 4)), row(1, 1, vendor="cpu")])
    assert (room.free, room.largest) == (10, 7)
    assert [room.instances(size) for size in roomview.SIZES] == [10, 4, 1, 0]
    chart = roomview.chart([room])
    assert chart.rows == (("H100", 10, 7, 10, 4, 1, 0),)
    assert [trace.x[0] for trace in chart.figure.data] == [10, 8, 4, 0], "in GPUs, so that lengths compare"


@pytest.mark.django_db
def test_more_replicas_of_a_plan_fit_where_they_may_run() -> None:
    everything = fleet_fixture.make_everything()
    rows = fleetview.fleet()
    served = list(selectors.verdicts_of(everything["plan"]).values())
    found = {item.workload: item for item in roomview.more_replicas(rows, served)}
    assert set(found) == {item.name for item in served if item.chosen}
    for item in served:
        if item.chosen is None:
            continue
        gpus, gpu = int(item.chosen["gpus_per_replica"]), item.chosen["gpu"]
        free = sum(sum(roomview.blocks_of(node)) for node in rows if node.node.node_type.gpu_model.name == gpu)
        assert 0 <= found[item.name].fits <= free // gpus
    Node.objects.update(allowed_engines=[])
    open_to_all = {item.workload: item.fits for item in roomview.more_replicas(fleetview.fleet(), served)}
    assert all(fits >= found[name].fits for name, fits in open_to_all.items())


@pytest.mark.django_db
def test_the_fleet_page_shows_it(client: Client) -> None:
    everything: dict[str, Any] = fleet_fixture.make_everything()
    client.force_login(everything["user"])
    page = client.get("/fleet/").content.decode()
    assert "figure-fleet-room" in page
    assert "Largest free block" in page
    assert "More fit" in page

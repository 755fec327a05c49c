"""Inventory: rules, prices, roles at sites, discovery, what is logged."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.test import Client

from controlplane.core.models import ChangeLog, SiteRole, User
from controlplane.core.services import StaleVersionError, save_record
from controlplane.inventory import pricing, services
from controlplane.inventory.gpus import apply_discovery
from controlplane.inventory.models import Gpu, GpuModel, Node, NodeType, Price, Site
from planner.errors import UnsupportedError
from runners.contracts import DiscoveredGpu, DiscoveredHost, DiscoveredSlice, Observation

pytestmark = pytest.mark.django_db


def new_node(site: Site, node_type: NodeType, name: str = "n9") -> Node:
    return Node(site=site, node_type=node_type, name=name, slug=name)


def test_node_gets_its_gpus_and_keeps_step_with_its_type(
    operator: User, site: Site, node_type: NodeType, h100: GpuModel
) -> None:
    node = services.save_item(actor=operator, record=new_node(site, node_type))
    assert list(node.gpus.values_list("index", flat=True)) == list(range(8))
    half = NodeType.objects.create(name="4xH100", slug="4xh100", gpu_model=h100, gpus=4, nvlink_domain=4)
    node.node_type = half
    services.save_item(actor=operator, record=node)
    assert node.gpus.count() == 4


def test_changes_are_logged_with_before_and_after(operator: User, site: Site) -> None:
    site.usd_per_kwh = Decimal("0.20")
    services.save_item(actor=operator, record=site)
    entry = ChangeLog.objects.get(model="inventory.Site", action="update")
    assert (entry.actor, entry.before, entry.after) == (operator, {"usd_per_kwh": "0.1"}, {"usd_per_kwh": "0.2"})
    services.save_item(actor=operator, record=site)
    assert ChangeLog.objects.filter(model="inventory.Site", action="update").count() == 1, "nothing changed"


def test_version_rises_and_a_stale_one_is_refused(operator: User, site: Site) -> None:
    mine, theirs = Site.objects.get(pk=site.pk), Site.objects.get(pk=site.pk)
    theirs.notes = "theirs"
    services.save_item(actor=operator, record=theirs, expected_version=1)
    assert theirs.version == 2
    mine.notes = "mine"
    with pytest.raises(StaleVersionError, match="version 2"):
        services.save_item(actor=operator, record=mine, expected_version=1)
    assert Site.objects.get(pk=site.pk).notes == "theirs"


def test_roles(viewer: User, planner: User, operator: User, site: Site, node_type: NodeType) -> None:
    for actor in (viewer, planner):
        with pytest.raises(PermissionDenied, match="operator"):
            services.save_item(actor=actor, record=new_node(site, node_type))
    SiteRole.objects.create(user=viewer, site=site, role="operator")
    assert services.save_item(actor=viewer, record=new_node(site, node_type)).pk
    other = Site.objects.create(name="Other", slug="other")
    with pytest.raises(PermissionDenied, match="at Other"):
        services.save_item(actor=viewer, record=new_node(other, node_type, "n10"))
    operator.is_active = False
    with pytest.raises(PermissionDenied):
        services.save_item(actor=operator, record=new_node(site, node_type, "n11"))


def test_a_site_in_use_is_not_deleted(operator: User, node: Node) -> None:
    with pytest.raises(ValidationError, match="in use by node n1"):
        services.delete_item(actor=operator, record=node.site)
    services.delete_item(actor=operator, record=node)
    assert not Node.objects.exists()
    assert ChangeLog.objects.filter(model="inventory.Node", action="delete").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [({"nvlink_domain": 3}, "nvlink_domain"), ({"network_gb_s": float("nan")}, "network_gb_s"), ({"gpus": 0}, "gpus")],
)
def test_rules_name_the_field(operator: User, node_type: NodeType, change: dict[str, Any], field: str) -> None:
    for name, value in change.items():
        setattr(node_type, name, value)
    with pytest.raises(ValidationError) as error:
        services.save_item(actor=operator, record=node_type)
    assert field in error.value.message_dict


def test_a_gpu_beyond_the_node_type_is_refused(operator: User, node: Node) -> None:
    with pytest.raises(ValidationError, match="beyond the 8 GPUs"):
        services.save_item(actor=operator, record=Gpu(node=node, index=8))


@pytest.mark.parametrize(
    "make",
    [
        lambda site, kind: Site.objects.create(name="x", slug="x", pue=Decimal("0.9")),
        lambda site, kind: NodeType.objects.create(
            name="x", slug="x", gpu_model=kind.gpu_model, gpus=2, nvlink_domain=4
        ),
        lambda site, kind: Node.objects.create(site=site, node_type=kind, name="x", slug="x", state="lost"),
        lambda site, kind: Price.objects.create(
            gpu_model=kind.gpu_model, basis="rental", usd_per_gpu_hour=-1, source="s", valid_from=dt.date(2026, 3, 1)
        ),
        lambda site, kind: Price.objects.create(
            gpu_model=kind.gpu_model, basis="rental", usd_per_gpu_hour=1, source="s", valid_from=dt.date(2026, 1, 1)
        ),
    ],
)
def test_constraints_hold_below_the_services(make: Callable[..., Any], site: Site, node_type: NodeType) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        make(site, node_type)


def test_only_one_node_is_local(local_node: Node, node_type: NodeType, site: Site) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Node.objects.create(site=site, node_type=node_type, name="x", slug="x", is_local=True)


def test_price_by_day_and_site(h100: GpuModel, site: Site) -> None:
    def price(usd: str, day: dt.date, where: Site | None = None) -> None:
        Price.objects.create(
            gpu_model=h100, site=where, basis="rental", usd_per_gpu_hour=Decimal(usd), source="t", valid_from=day
        )

    price("2.00", dt.date(2026, 6, 1))
    price("9.00", dt.date(2027, 6, 1))
    day = dt.date(2026, 7, 1)
    assert pricing.price_at(h100, None, dt.date(2026, 2, 1)).usd_per_gpu_hour == Decimal("2.50")
    assert pricing.price_at(h100, site, day).usd_per_gpu_hour == Decimal("2.00")
    price("3.00", dt.date(2026, 2, 1), site)
    h100 = GpuModel.objects.get(pk=h100.pk)
    assert pricing.price_at(h100, site, day).usd_per_gpu_hour == Decimal("3.00"), "the site's own goes first"


def test_price_falls_back_to_the_catalogue_and_says_when_there_is_none(db: None) -> None:
    known = GpuModel.objects.create(name="H200-SXM-141GB")
    assert pricing.price_at(known).basis == "catalogue"
    with pytest.raises(UnsupportedError, match="no rental price"):
        pricing.price_at(GpuModel.objects.create(name="A10"))


def test_tco_price_follows_from_its_inputs(operator: User, h100: GpuModel, site: Site) -> None:
    inputs = {"purchase_usd": "240000", "gpus": 8, "life_years": "4", "power_kw": "8"}
    price = Price(
        gpu_model=h100,
        site=site,
        basis="tco",
        tco_inputs=inputs,
        usd_per_gpu_hour=Decimal(0),
        source="books",
        valid_from=dt.date(2026, 1, 1),
    )
    services.save_item(actor=operator, record=price)
    found = pricing.hour_price(price)
    # 240,000 / 4 / 8,760 / 8 = 0.8562; 8 kW x 1.30 x 0.10 USD / 8 GPUs = 0.13
    assert found.usd_per_gpu_hour == Decimal("0.9862")
    assert sum(usd for _, usd in found.parts) == found.usd_per_gpu_hour
    price.tco_inputs = {**inputs, "life_years": "-1"}
    with pytest.raises(ValidationError, match="life_years"):
        services.save_item(actor=operator, record=price)
    price.tco_inputs = {**inputs, "price": 3}
    with pytest.raises(ValidationError, match="unknown field"):
        services.save_item(actor=operator, record=price)


def seen_gpu(index: int, uuid: str) -> DiscoveredGpu:
    return DiscoveredGpu(index, uuid, "NVIDIA H100", 81559, 4, "00:1", "570.1", 700.0, False, 0)


def test_discovery_is_kept_beside_the_record(node: Node) -> None:
    gpus = tuple(seen_gpu(i, f"GPU-{i}") for i in range(7))
    observation = Observation(
        job_id="x", attempt=1, sequence=1, state="discovered", node="n1", at=0.0, gpus=(*gpus, seen_gpu(9, "GPU-9")),
        host=DiscoveredHost("h", "cpu", 8, 1, 1, {"vllm": "0.24.0"}),
    )  # fmt: skip
    result = apply_discovery(node, observation)
    assert result["differences"] == [
        "GPU 7 is recorded but was not found",
        "GPU 9 (NVIDIA H100) was found but is not recorded",
    ]
    assert result["engines"] == {"vllm": "0.24.0"}
    assert node.gpus.get(index=7).state == Gpu.State.MISSING
    assert node.gpus.get(index=3).discovered_memory_mib == 81559
    again = apply_discovery(node, observation)
    assert again["differences"] == ["GPU 9 (NVIDIA H100) was found but is not recorded"]


def test_discovery_takes_slices_and_names_memory_of_dead_processes(node: Node) -> None:
    """Cases O16 and O18, and MIG: what the driver says is kept, reservations stay, differences are put into words."""
    uuids = [f"MIG-{i}" for i in range(3)]
    slices = tuple(DiscoveredSlice("1g.10gb", uuid, 9_984) for uuid in uuids)
    gpus = [replace(seen_gpu(i, f"GPU-{i}"), mig_enabled=i < 2, slices=slices if i == 0 else ()) for i in range(8)]
    gpus[5] = replace(gpus[5], orphaned_mib=20_000)

    def discover() -> dict[str, Any]:
        seen = Observation(
            job_id="x", attempt=1, sequence=1, state="discovered", node="n1", at=0.0, gpus=tuple(gpus)
        )  # fmt: skip
        return apply_discovery(node, seen)

    words = " | ".join(discover()["differences"])
    assert "GPU 0 was recorded with no slices and has 1g.10gb 1g.10gb 1g.10gb" in words
    assert "GPU 1 is in MIG mode without a slice that can be used" in words
    assert "GPU 5 holds 20,000 MiB without a live process" in words
    first = node.gpus.get(index=0)
    first.mig_slices = [f"1g.10gb {uuids[0]} reserved", *(f"1g.10gb {uuid}" for uuid in uuids[1:])]
    first.save()
    again = " | ".join(discover()["differences"])
    assert "GPU 0" not in again
    assert node.gpus.get(index=0).mig_slices[0].endswith("reserved")
    assert node.gpus.get(index=5).orphaned_mib == 20_000


@pytest.mark.parametrize(
    ("slices", "says"),
    [
        (["5g.10gb"], "no such MIG profile"),
        (["4g.40gb", "4g.40gb"], "more compute slices"),
        (["1g.10gb MIG-1 taken"], "is no slice"),
        (["1g.10gb MIG-1", "1g.10gb MIG-1 reserved"], "stated twice"),
        ("1g.10gb", "is no slice"),
    ],
)
def test_slices_that_cannot_be_are_refused(operator: User, node: Node, slices: Any, says: str) -> None:
    gpu = node.gpus.get(index=0)
    gpu.mig_slices = slices
    with pytest.raises(ValidationError) as caught:
        services.save_item(actor=operator, record=gpu)
    assert says in str(caught.value.message_dict["mig_slices"])


def test_a_cluster_needs_an_owner(operator: User, node: Node) -> None:
    node.cluster = "prod"
    with pytest.raises(ValidationError) as caught:
        services.save_item(actor=operator, record=node)
    assert "orchestrator" in caught.value.message_dict


@pytest.mark.parametrize("partition", ["gpu\nrm -rf /", "p;rm", "a b"])
def test_a_partition_is_a_word_for_it_comes_to_stand_in_scripts(operator: User, node: Node, partition: str) -> None:
    node.orchestrator, node.partition = "slurm", partition
    with pytest.raises(ValidationError) as caught:
        services.save_item(actor=operator, record=node)
    assert "partition" in caught.value.message_dict
    node.partition = "gpu-long,gpu_short"
    services.save_item(actor=operator, record=node)


def test_saving_an_unknown_actor_is_named_system(site: Site) -> None:
    site.notes = "changed"
    save_record(site, actor=None)
    assert ChangeLog.objects.latest("id").actor_name == "system"


def test_o17_what_a_server_has_and_draws_is_listed(client: Client, administrator: User, h100: GpuModel) -> None:
    """O17: processors, memory, GPUs and watts of a server have fields of their own, shown in lists."""
    NodeType.objects.create(
        name="Server", slug="server", gpu_model=h100, gpus=8, nvlink_domain=8, cpu_cores=112, memory_gib=2015.5,
        max_power_w=10_200, rack_units=8,
    )  # fmt: skip
    client.force_login(administrator)
    body = client.get("/admin/inventory/nodetype/").content.decode()
    for figure in ("112", "2015.5", "10200"):
        assert figure in body

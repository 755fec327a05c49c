"""The sample fleet: catalogue, two sites, 20 nodes, prices with their sources, and this host."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.utils.text import slugify

from controlplane.core.launcher import LOCAL_SLUG
from controlplane.core.services import save_record
from controlplane.inventory.gpus import sync_gpus
from controlplane.inventory.models import GpuModel, Node, NodeType, Price, Site
from planner import catalog
from planner.economics.published import default_price
from planner.errors import UnsupportedError

VALID_FROM = dt.date(2026, 1, 1)
STATED = "sample figure of this demonstration; replace it with your own"

SITES = (
    ("Frankfurt", "0.2100", "1.25"),
    ("Ashburn", "0.0850", "1.30"),
)

NODES = (
    ("Frankfurt", "8xH100-SXM", "fra-h100", 4, Node.State.ACTIVE),
    ("Frankfurt", "8xH200-SXM", "fra-h200", 3, Node.State.ACTIVE),
    ("Frankfurt", "4xL40S", "fra-l40s", 3, Node.State.ACTIVE),
    ("Frankfurt", "8xB200-SXM", "fra-b200", 1, Node.State.PLANNED),
    ("Ashburn", "8xH100-SXM", "iad-h100", 2, Node.State.ACTIVE),
    ("Ashburn", "8xH200-SXM", "iad-h200", 1, Node.State.ACTIVE),
    ("Ashburn", "8xMI300X", "iad-mi300x", 2, Node.State.ACTIVE),
    ("Ashburn", "4xL40S", "iad-l40s", 1, Node.State.ACTIVE),
    ("Ashburn", "2xA10", "iad-a10", 3, Node.State.ACTIVE),
)
"""Site, node type, name, count, state: 20 nodes, 126 GPUs."""

STATED_PRICES = {"A10": Decimal("0.75"), "CPU-host": Decimal("0.05")}
"""USD per GPU-hour where nobody has published a price."""


def load_catalogue() -> tuple[int, int, int]:
    """A row for each GPU and node type of the catalogue, and its published price; returns how many there are."""
    for spec in catalog.list_gpus():
        if not GpuModel.objects.filter(name=spec.name).exists():
            row = GpuModel(
                name=spec.name, vendor=spec.vendor, architecture=spec.architecture[:60], source=spec.source[:300]
            )
            save_record(row, actor=None)
    models = {row.name: row for row in GpuModel.objects.all()}
    for kind in catalog.list_node_types():
        if not NodeType.objects.filter(name=kind.name).exists():
            save_record(
                NodeType(
                    name=kind.name,
                    slug=slugify(kind.name),
                    gpu_model=models[kind.gpu],
                    gpus=kind.gpus,
                    nvlink_domain=kind.nvlink_domain,
                    cpu_cores=kind.cpu_cores,
                    memory_gib=kind.memory_gib,
                    max_power_w=kind.max_power_w,
                    rack_units=kind.rack_units,
                    network_gb_s=kind.network_gb_s,
                    source=kind.source[:300],
                ),
                actor=None,
            )
    for row in models.values():
        _price(row)
    return GpuModel.objects.count(), NodeType.objects.count(), Price.objects.count()


def load_nodes() -> int:
    """Two sites and their nodes, each with a price and a failure domain; returns the number of nodes."""
    sites = {}
    for name, usd_per_kwh, pue in SITES:
        sites[name] = Site.objects.filter(slug=slugify(name)).first() or save_record(
            Site(
                name=name,
                slug=slugify(name),
                usd_per_kwh=Decimal(usd_per_kwh),
                pue=Decimal(pue),
                notes=f"Electricity and PUE: {STATED}.",
            ),
            actor=None,
        )
    count = 0
    for site, kind, prefix, number, state in NODES:
        node_type = NodeType.objects.get(name=kind)
        for index in range(1, number + 1):
            name = f"{prefix}-{index:02d}"
            count += 1
            if not Node.objects.filter(slug=name).exists():
                rack = f"{slugify(site)}-rack-{1 + index % 2}"
                node = Node(
                    site=sites[site], node_type=node_type, name=name, slug=name, state=state, failure_domain=rack
                )
                save_record(node, actor=None)
                sync_gpus(actor=None, node=node)
    return count


def load_local_node() -> Node:
    """This host, with its processor as the device."""
    held = Node.objects.filter(is_local=True).first()
    if held is not None:
        return held
    site = Site.objects.filter(slug="this-host").first() or save_record(
        Site(name="This host", slug="this-host", notes="The machine that Tonnage runs on."), actor=None
    )
    node = Node(
        site=site,
        node_type=NodeType.objects.get(name="local-cpu"),
        name="this-host",
        slug=LOCAL_SLUG,
        is_local=True,
        allowed_engines=["vllm"],
        notes="Runs vLLM for CPUs, and the emulated engines.",
    )
    save_record(node, actor=None)
    sync_gpus(actor=None, node=node)
    return node


def _price(model: GpuModel) -> None:
    """The catalogue's price; a GPU that nobody has priced gets none, and says so when a plan needs it."""
    if model.prices.exists():
        return
    try:
        found = default_price(model.name)
        usd, source, basis = found.usd_per_gpu_hour, found.source, Price.Basis.CATALOGUE
    except UnsupportedError:
        if model.name not in STATED_PRICES:
            return
        usd, source, basis = STATED_PRICES[model.name], STATED, Price.Basis.RENTAL
    row = Price(gpu_model=model, basis=basis, usd_per_gpu_hour=usd, source=source[:300], valid_from=VALID_FROM)
    save_record(row, actor=None)

"""The inventory in the admin console."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import models
from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.core.admin import EditableInline, ReadOnlyInline, TableAdmin, guarded
from controlplane.core.models import User
from controlplane.deployments.models import Deployment
from controlplane.inventory import pricing, resources, services
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site
from controlplane.planning.models import PlacementRow, Plan
from planner.errors import PlannerError


class InventoryAdmin(TableAdmin):
    """An inventory record: stored by the inventory's service."""

    def store(self, request: HttpRequest, obj: Any) -> None:
        """Save in the name of the user."""
        services.save_item(actor=request.user if isinstance(request.user, User) else None, record=obj)


class NodeInline(ReadOnlyInline):
    """Nodes of a site or a type."""

    model = Node
    fields = ("name", "node_type", "state", "failure_domain", "worker_last_seen_at")
    readonly_fields = fields


class PriceInline(EditableInline):
    """Prices of a GPU model."""

    model = Price
    fields = ("site", "valid_from", "basis", "usd_per_gpu_hour", "currency", "source")


@admin.register(Site)
class SiteAdmin(InventoryAdmin):
    """Sites."""

    resource_classes = (resources.SiteResource,)
    list_display = ("name", "slug", "usd_per_kwh", "pue", "node_count", "gpu_count")
    search_fields = ("name", "slug")
    prepopulated_fields = {"slug": ("name",)}
    inlines = (NodeInline,)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Site]:
        """With the number of nodes and GPUs."""
        return (
            super()
            .get_queryset(request)
            .annotate(nodes_n=Count("nodes", distinct=True), gpus_n=Count("nodes__gpus", distinct=True))
        )

    @admin.display(description="nodes", ordering="nodes_n")
    def node_count(self, obj: Any) -> int:
        """Nodes at the site."""
        return obj.nodes_n

    @admin.display(description="GPUs", ordering="gpus_n")
    def gpu_count(self, obj: Any) -> int:
        """GPUs at the site."""
        return obj.gpus_n


@admin.register(GpuModel)
class GpuModelAdmin(InventoryAdmin):
    """GPU models."""

    resource_classes = (resources.GpuModelResource,)
    list_display = ("name", "vendor", "architecture", "memory_gib", "price_now")
    list_filter = ("vendor", "architecture")
    search_fields = ("name", "architecture")
    inlines = (PriceInline,)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[GpuModel]:
        """With the prices."""
        return super().get_queryset(request).prefetch_related("prices")

    @admin.display(description="per GPU-hour today")
    def price_now(self, obj: GpuModel) -> str:
        """The price that applies without a site."""
        return _price(obj, None)


@admin.register(NodeType)
class NodeTypeAdmin(InventoryAdmin):
    """Server models."""

    resource_classes = (resources.NodeTypeResource,)
    list_display = (
        "name", "gpu_model", "gpus", "nvlink_domain", "cpu_cores", "memory_gib", "network_gb_s", "max_power_w",
        "rack_units",
    )  # fmt: skip
    list_filter = ("gpu_model__vendor",)
    search_fields = ("name", "gpu_model__name")
    list_select_related = ("gpu_model",)
    autocomplete_fields = ("gpu_model",)
    prepopulated_fields = {"slug": ("name",)}
    inlines = (NodeInline,)


class GpuInline(EditableInline):
    """GPUs of a node: recorded, and as discovered."""

    model = Gpu
    fields = (
        "index", "state", "reserved_for", "uuid", "serial", "mig_enabled", "mig_slices", "orphaned_mib",
        "discovered_name", "discovered_memory_mib", "driver_version",
    )  # fmt: skip
    readonly_fields = ("orphaned_mib", "discovered_name", "discovered_memory_mib", "driver_version")


@admin.register(Node)
class NodeAdmin(InventoryAdmin):
    """Nodes, with their GPUs, their price and what is placed on them."""

    resource_classes = (resources.NodeResource,)
    list_display = (
        "name",
        "site",
        "node_type",
        "gpu_count",
        "state",
        "price_now",
        "placed_short",
        "worker_last_seen_at",
    )
    list_filter = ("site", "state", "orchestrator", "node_type", "is_local")
    search_fields = ("name", "slug", "failure_domain", "tenant", "cluster")
    list_select_related = ("site", "node_type__gpu_model")
    autocomplete_fields = ("site", "node_type")
    prepopulated_fields = {"slug": ("name",)}
    readonly_fields = ("price_now", "placed", "worker_last_seen_at")
    inlines = (GpuInline,)
    actions = ("discover",)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Node]:
        """With prices and what is placed, in a fixed number of queries."""
        return (
            super()
            .get_queryset(request)
            .prefetch_related(
                "node_type__gpu_model__prices",
                models.Prefetch(
                    "placements",
                    PlacementRow.objects.filter(plan__state=Plan.State.APPROVED).select_related("plan"),
                    to_attr="approved",
                ),
                models.Prefetch("deployments", Deployment.objects.filter(state__in=Deployment.LIVE), to_attr="live"),
            )
        )

    @admin.display(description="GPUs")
    def gpu_count(self, obj: Node) -> str:
        """Count and kind."""
        return f"{obj.node_type.gpus} × {obj.node_type.gpu_model.name}"

    @admin.display(description="per GPU-hour today")
    def price_now(self, obj: Node) -> str:
        """The price that applies at its site."""
        return _price(obj.node_type.gpu_model, obj.site) if obj.pk else "–"

    @admin.display(description="placed")
    def placed_short(self, obj: Any) -> str:
        """GPUs that the approved plan uses here."""
        used = {index for row in obj.approved for index in row.gpu_indexes}
        return f"{len(used)} of {obj.node_type.gpus} GPUs" if used else "–"

    @admin.display(description="What is placed on it")
    def placed(self, obj: Any) -> SafeString | str:
        """The approved plan's replicas and the engines that run."""
        if not obj.pk:
            return "–"
        rows = [
            (f"{row.workload_name}, replica {row.replica + 1}", _indexes(row.gpu_indexes), f"planned ({row.plan})")
            for row in obj.approved
        ]
        rows += [(str(item), _indexes(item.gpu_indexes), item.get_state_display().lower()) for item in obj.live]
        if not rows:
            return "Nothing"
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: GPU {} – {}</li>", rows))

    @admin.action(description="Discover: ask the node's worker what is in it")
    def discover(self, request: HttpRequest, queryset: models.QuerySet[Node]) -> None:
        """One job for each node."""
        for node in queryset:
            guarded(services.discover_node, request, self, node=node)


@admin.register(Gpu)
class GpuAdmin(InventoryAdmin):
    """Single GPUs."""

    resource_classes = (resources.GpuResource,)
    list_display = ("node", "index", "state", "uuid", "serial", "discovered_name", "discovered_memory_mib")
    list_filter = ("state", "node__site", "node__node_type__gpu_model")
    search_fields = ("uuid", "serial", "node__name")
    list_select_related = ("node",)
    autocomplete_fields = ("node",)
    readonly_fields = ("discovered_name", "discovered_memory_mib", "driver_version", "discovered_at")


@admin.register(Price)
class PriceAdmin(InventoryAdmin):
    """Prices."""

    resource_classes = (resources.PriceResource,)
    list_display = ("gpu_model", "site", "valid_from", "basis", "usd_per_gpu_hour", "currency", "source")
    list_filter = ("basis", "site")
    search_fields = ("gpu_model__name", "source")
    list_select_related = ("gpu_model", "site")
    autocomplete_fields = ("gpu_model", "site")


@admin.register(ExchangeRate)
class ExchangeRateAdmin(InventoryAdmin):
    """Exchange rates."""

    resource_classes = (resources.ExchangeRateResource,)
    list_display = ("currency", "date", "usd_per_unit", "source")
    list_filter = ("currency",)
    search_fields = ("currency", "source")
    date_hierarchy = "date"


def _price(model: GpuModel, site: Site | None) -> str:
    try:
        found = pricing.price_at(model, site, timezone.now().date())
    except PlannerError:
        return "no price"
    return f"{found.usd_per_gpu_hour:.2f} {pricing.price_currency(model, site)} ({found.basis})"


def _indexes(indexes: list[int]) -> str:
    return ", ".join(map(str, indexes))

"""Columns of the inventory's import and export files."""

from __future__ import annotations

from typing import Any

from django.utils.text import slugify
from import_export.fields import Field

from controlplane.core import access
from controlplane.core.models import Role
from controlplane.core.resources import NamedForeignKey, RecordResource, TextList
from controlplane.inventory.gpus import sync_gpus
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site


class _Slugged(RecordResource):
    """A record known by its slug, which defaults to its name's."""

    def before_import(self, dataset: Any, **kwargs: Any) -> None:
        """Add the slug column when only names are given."""
        if "slug" not in dataset.headers and "name" in dataset.headers:
            dataset.append_col([slugify(str(name)) for name in dataset["name"]], header="slug")
        super().before_import(dataset, **kwargs)


class SiteResource(_Slugged):
    """Sites."""

    class Meta(RecordResource.Meta):
        model = Site
        import_id_fields = ("slug",)
        fields = ("slug", "name", "currency", "usd_per_kwh", "pue", "demand_usd_per_kw_month", "tariff_bands", "notes")


class GpuModelResource(RecordResource):
    """GPU models."""

    class Meta(RecordResource.Meta):
        model = GpuModel
        import_id_fields = ("name",)
        fields = ("name", "vendor", "architecture", "memory_gib", "source", "notes")


class NodeTypeResource(_Slugged):
    """Server models; ``gpu_model`` by name."""

    gpu_model = Field("gpu_model", "gpu_model", NamedForeignKey(GpuModel, "name"))

    class Meta(RecordResource.Meta):
        model = NodeType
        import_id_fields = ("slug",)
        fields = (
            "slug", "name", "gpu_model", "gpus", "nvlink_domain", "cpu_cores", "memory_gib", "max_power_w",
            "rack_units", "network_gb_s", "source",
        )  # fmt: skip


class NodeResource(_Slugged):
    """Nodes; ``site`` and ``node_type`` by slug. A new node gets its GPUs."""

    site = Field("site", "site", NamedForeignKey(Site, "slug"))
    node_type = Field("node_type", "node_type", NamedForeignKey(NodeType, "slug"))
    allowed_engines = Field("allowed_engines", "allowed_engines", TextList(), saves_null_values=False)

    class Meta(RecordResource.Meta):
        model = Node
        import_id_fields = ("slug",)
        fields = (
            "slug", "name", "site", "node_type", "state", "failure_domain", "tenant", "allowed_engines", "orchestrator",
            "cluster", "partition", "min_replica_gpus", "notes",
        )  # fmt: skip

    def after_save_instance(self, instance: Node, row: Any, **kwargs: Any) -> None:
        """Record its GPUs."""
        sync_gpus(actor=kwargs.get("user"), node=instance, fresh=kwargs.get("is_create", False))


class GpuResource(RecordResource):
    """Single GPUs; ``node`` by slug."""

    node = Field("node", "node", NamedForeignKey(Node, "slug"))
    mig_slices = Field("mig_slices", "mig_slices", TextList(), saves_null_values=False)

    class Meta(RecordResource.Meta):
        model = Gpu
        import_id_fields = ("node", "index")
        fields = ("node", "index", "uuid", "serial", "state", "reserved_for", "mig_slices")

    def check_access(self, actor: Any, instance: Any) -> None:
        """An operator of the node's site."""
        access.require(actor, Role.OPERATOR, instance.node.site)


class PriceResource(RecordResource):
    """Prices; ``gpu_model`` by name, ``site`` by slug or empty for everywhere."""

    gpu_model = Field("gpu_model", "gpu_model", NamedForeignKey(GpuModel, "name"))
    site = Field("site", "site", NamedForeignKey(Site, "slug"))

    class Meta(RecordResource.Meta):
        model = Price
        import_id_fields = ("gpu_model", "site", "valid_from")
        fields = (
            "gpu_model", "site", "valid_from", "basis", "usd_per_gpu_hour", "currency", "tco_inputs", "source", "notes",
        )  # fmt: skip

    def before_import(self, dataset: Any, **kwargs: Any) -> None:
        """Without a site column the prices hold everywhere."""
        if "site" not in dataset.headers:
            dataset.append_col([""] * len(dataset), header="site")
        super().before_import(dataset, **kwargs)

    def get_instance(self, instance_loader: Any, row: Any) -> Price | None:
        """The price of the same GPU model, site and day."""
        try:
            gpu_model = self.fields["gpu_model"].clean(row)
            site = self.fields["site"].clean(row)
            valid_from = self.fields["valid_from"].clean(row)
        except (ValueError, KeyError):
            return None
        return Price.objects.filter(gpu_model=gpu_model, site=site, valid_from=valid_from).first()


class ExchangeRateResource(RecordResource):
    """Exchange rates: a currency, a day, USD per unit, a source."""

    class Meta(RecordResource.Meta):
        model = ExchangeRate
        import_id_fields = ("currency", "date")
        fields = ("currency", "date", "usd_per_unit", "source")


RESOURCES: dict[str, type[RecordResource]] = {
    "sites": SiteResource,
    "gpu-models": GpuModelResource,
    "node-types": NodeTypeResource,
    "nodes": NodeResource,
    "gpus": GpuResource,
    "prices": PriceResource,
    "exchange-rates": ExchangeRateResource,
}

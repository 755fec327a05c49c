"""Sites, GPU models, node types, nodes, GPUs, prices."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.api.serializers.base import ObjectField, RecordField, RecordSerializer, Strict, record_meta
from controlplane.inventory.models import ENGINES, ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site
from planner.economics.tariff import DAYS

SLUG = {"slug": {"required": False, "help_text": "Made from the name when left out."}}


class EngineListField(serializers.ListField):
    """Engines by name."""

    child = serializers.ChoiceField(choices=ENGINES)


class BandSerializer(Strict):
    """Hours of the week with a price of their own."""

    days = serializers.ListField(
        child=serializers.ChoiceField(choices=DAYS), required=False, help_text="None: every day."
    )
    from_hour = serializers.IntegerField(min_value=0, max_value=23)
    to_hour = serializers.IntegerField(min_value=1, max_value=24)
    usd_per_kwh = serializers.DecimalField(max_digits=8, decimal_places=4, min_value=0)

    def to_internal_value(self, data: Any) -> Any:
        """As it is stored: an exact number as text."""
        value = super().to_internal_value(data)
        return {**value, "usd_per_kwh": str(value["usd_per_kwh"])}


class SiteSerializer(RecordSerializer):
    """A place with its electricity, in its currency: a flat price, bands over the week, a demand charge."""

    tariff_bands = BandSerializer(many=True, required=False)

    Meta = record_meta(
        Site,
        "name slug currency usd_per_kwh tariff_bands demand_usd_per_kw_month pue notes",
        brief="name slug",
        extra_kwargs=SLUG,
    )


class GpuModelSerializer(RecordSerializer):
    """A kind of GPU; facts are in /catalogue/gpus/, ``memory_gib`` overrides the catalogue's."""

    Meta = record_meta(GpuModel, "name vendor architecture memory_gib source notes", brief="name vendor")


class NodeTypeSerializer(RecordSerializer):
    """A server model."""

    gpu_model = RecordField("name", queryset=GpuModel.objects.all())

    Meta = record_meta(
        NodeType,
        "name slug gpu_model gpus nvlink_domain cpu_cores memory_gib max_power_w rack_units network_gb_s source",
        brief="name slug gpu_model gpus",
        extra_kwargs=SLUG,
    )


class NodeSerializer(RecordSerializer):
    """One server. A new one gets a GPU record for each GPU of its type."""

    site = RecordField(queryset=Site.objects.all())
    node_type = RecordField(queryset=NodeType.objects.select_related("gpu_model"))
    gpu_model = serializers.CharField(source="node_type.gpu_model.name", read_only=True)
    gpu_count = serializers.IntegerField(source="node_type.gpus", read_only=True)
    allowed_engines = EngineListField(required=False)

    Meta = record_meta(
        Node,
        "name slug site node_type gpu_model gpu_count state failure_domain tenant allowed_engines orchestrator cluster "
        "partition min_replica_gpus worker_last_seen_at is_local notes",
        brief="name slug site state",
        read_only="worker_last_seen_at",
        extra_kwargs=SLUG,
    )


class GpuSerializer(RecordSerializer):
    """One accelerator: as recorded, and as its driver reported it."""

    node = RecordField(queryset=Node.objects.select_related("site", "node_type"))
    mig_slices = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        max_length=7,
        help_text='Each "PROFILE", "PROFILE UUID" or "PROFILE UUID reserved", for instance "1g.10gb MIG-5c1f...".',
    )

    Meta = record_meta(
        Gpu,
        "node index uuid serial state reserved_for mig_enabled mig_slices orphaned_mib discovered_name "
        "discovered_memory_mib driver_version discovered_at",
        brief="node index state",
        read_only="orphaned_mib discovered_name discovered_memory_mib driver_version discovered_at",
    )


class PriceSerializer(RecordSerializer):
    """What one GPU costs an hour. With ``tco_inputs`` and basis tco the figure is computed from them."""

    gpu_model = RecordField("name", queryset=GpuModel.objects.all())
    site = RecordField(queryset=Site.objects.all(), allow_null=True, required=False)
    tco_inputs = ObjectField(required=False)

    Meta = record_meta(
        Price,
        "gpu_model site basis usd_per_gpu_hour currency tco_inputs source valid_from notes",
        brief="gpu_model site basis usd_per_gpu_hour currency",
    )


class ExchangeRateSerializer(RecordSerializer):
    """What one unit of a currency was worth in US dollars on a day."""

    Meta = record_meta(ExchangeRate, "currency date usd_per_unit source", brief="currency date usd_per_unit")


class ImportReportSerializer(serializers.Serializer):
    """What a file did."""

    created = serializers.IntegerField()
    updated = serializers.IntegerField()
    unchanged = serializers.IntegerField()
    dry_run = serializers.BooleanField()


class FileSerializer(serializers.Serializer):
    """A CSV or XLSX file."""

    file = serializers.FileField()

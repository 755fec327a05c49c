"""Sites, GPU models, node types, nodes, GPUs, prices."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.api.serializers.base import ObjectField, RecordField, RecordSerializer, record_meta
from controlplane.inventory.models import ENGINES, Gpu, GpuModel, Node, NodeType, Price, Site

SLUG = {"slug": {"required": False, "help_text": "Made from the name when left out."}}


class EngineListField(serializers.ListField):
    """Engines by name."""

    child = serializers.ChoiceField(choices=ENGINES)


class SiteSerializer(RecordSerializer):
    """A place with its electricity price."""

    Meta = record_meta(Site, "name slug currency usd_per_kwh pue notes", brief="name slug", extra_kwargs=SLUG)


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
        "gpu_model site basis usd_per_gpu_hour tco_inputs source valid_from notes",
        brief="gpu_model site basis usd_per_gpu_hour",
    )


class ImportReportSerializer(serializers.Serializer):
    """What a file did."""

    created = serializers.IntegerField()
    updated = serializers.IntegerField()
    unchanged = serializers.IntegerField()
    dry_run = serializers.BooleanField()


class FileSerializer(serializers.Serializer):
    """A CSV or XLSX file."""

    file = serializers.FileField()

"""Sites, GPU models, node types, nodes, GPUs, prices."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import parsing
from controlplane.api.filters import by, choices, filters_of
from controlplane.api.serializers import inventory as shapes
from controlplane.api.serializers.jobs import JobSerializer
from controlplane.api.views.base import BRIEF, FIELDS, RecordViewSet, accepted, actor_of, flag
from controlplane.core.models import Role
from controlplane.inventory import services
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site

FORMS = {"csv": "text/csv; charset=utf-8", "xlsx": parsing.XLSX}
FORMAT = OpenApiParameter(
    "format", OpenApiTypes.STR, enum=["json", *FORMS], description="csv and xlsx: all filtered records, as a file."
)
DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Only check the file.")


class TableViewSet(RecordViewSet):
    """A kind of record of the inventory, with files in and out."""

    table: ClassVar[str]
    changing_role = Role.OPERATOR
    search_fields: ClassVar[tuple[str, ...]] = ("name",)
    ordering_fields: ClassVar[tuple[str, ...]] = ("id", "name", "created_at", "updated_at")

    @property
    def max_body_bytes(self) -> int:  # type: ignore[override]
        """Files may be larger than JSON."""
        return settings.IMPORT_MAX_BYTES if self.action == "import_file" else settings.DATA_UPLOAD_MAX_MEMORY_SIZE

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the inventory's service."""
        return services.save_item(actor=actor_of(self.request), record=record, expected_version=expected)

    def remove(self, record: Any) -> None:
        """By the inventory's service."""
        services.delete_item(actor=actor_of(self.request), record=record)

    @extend_schema(parameters=[BRIEF, FIELDS, FORMAT])
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Records, filtered, searched, ordered, in pages; or all of them as a CSV or XLSX file."""
        return super().list(request, *args, **kwargs)

    def export(self, request: Request, form: str) -> HttpResponse:
        """The filtered records as a file that can be imported again."""
        if form not in FORMS:
            raise ValidationError({"format": f"{form[:20]!r} is not offered; use json, csv or xlsx."})
        rows = self.filter_queryset(self.get_queryset())
        content = services.export_table(table=self.table, form=form, rows=rows)
        disposition = {"Content-Disposition": f'attachment; filename="{self.table}.{form}"'}
        return HttpResponse(content, content_type=FORMS[form], headers=disposition)

    @extend_schema(
        parameters=[DRY_RUN],
        request={
            "multipart/form-data": shapes.FileSerializer,
            "text/csv": OpenApiTypes.BINARY,
            parsing.XLSX: OpenApiTypes.BINARY,
        },
        responses=shapes.ImportReportSerializer,
    )
    @action(
        detail=False,
        methods=["post"],
        url_path="import",
        parser_classes=parsing.FILE_PARSERS,
        query_names=("dry_run",),
    )
    def import_file(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Import a CSV or XLSX file, wholly or not at all; every faulty row is named."""
        file = request.data.get("file") if hasattr(request.data, "get") else None
        if not isinstance(file, UploadedFile):
            raise ValidationError({"file": "Send the file as the body (text/csv, or XLSX's type) or as a form's file."})
        report = services.import_table(
            actor=actor_of(request),
            table=self.table,
            name=file.name or "",
            content=file.read(),
            dry_run=flag(request, "dry_run"),
        )
        return Response(dataclasses.asdict(report), status=status.HTTP_200_OK)


class SiteViewSet(TableViewSet):
    """Sites with their electricity price."""

    table = "sites"
    queryset = Site.objects.all()
    serializer_class = shapes.SiteSerializer
    filterset_class = filters_of(
        Site, {"name": ["exact", "icontains"], "slug": ["exact"], "currency": ["exact"], "usd_per_kwh": ["gte", "lte"]}
    )
    search_fields = ("name", "slug", "notes")
    ordering_fields = ("id", "name", "usd_per_kwh", "pue", "created_at", "updated_at")


class GpuModelViewSet(TableViewSet):
    """Kinds of GPU."""

    table = "gpu-models"
    queryset = GpuModel.objects.all()
    serializer_class = shapes.GpuModelSerializer
    filterset_class = filters_of(
        GpuModel, {"name": ["exact", "icontains"], "vendor": ["exact"], "architecture": ["exact", "icontains"]}
    )
    search_fields = ("name", "vendor", "architecture", "notes")
    ordering_fields = ("id", "name", "vendor", "created_at", "updated_at")


class NodeTypeViewSet(TableViewSet):
    """Server models."""

    table = "node-types"
    queryset = NodeType.objects.select_related("gpu_model")
    serializer_class = shapes.NodeTypeSerializer
    filterset_class = filters_of(
        NodeType,
        {
            "name": ["exact", "icontains"],
            "slug": ["exact"],
            "gpus": ["exact", "gte", "lte"],
            "nvlink_domain": ["exact", "gte"],
        },
        gpu_model=by("name", GpuModel.objects.all()),
    )
    search_fields = ("name", "slug", "gpu_model__name")
    ordering_fields = ("id", "name", "gpus", "created_at", "updated_at")


class NodeViewSet(TableViewSet):
    """Servers."""

    table = "nodes"
    queryset = Node.objects.select_related("site", "node_type__gpu_model")
    serializer_class = shapes.NodeSerializer
    filterset_class = filters_of(
        Node,
        {
            "name": ["exact", "icontains"],
            "slug": ["exact"],
            "tenant": ["exact"],
            "cluster": ["exact"],
            "failure_domain": ["exact"],
            "is_local": ["exact"],
            "worker_last_seen_at": ["gte", "lt"],
        },
        site=by("slug", Site.objects.all()),
        node_type=by("slug", NodeType.objects.all()),
        gpu_model=by("name", GpuModel.objects.all(), "node_type__gpu_model"),
        state=choices(Node.State),
        orchestrator=choices(Node.Orchestrator),
    )
    search_fields = ("name", "slug", "tenant", "notes", "node_type__gpu_model__name")
    ordering_fields = ("id", "name", "state", "site__name", "created_at", "updated_at")

    @extend_schema(request=None, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def discover(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Ask the node's worker what is in the host."""
        node = self.get_object()
        job = services.discover_node(actor=actor_of(request), node=node)
        return accepted(job, JobSerializer(job, context=self.get_serializer_context()).data, node)


class GpuViewSet(TableViewSet):
    """Single accelerators."""

    table = "gpus"
    queryset = Gpu.objects.select_related("node__site", "node__node_type")
    serializer_class = shapes.GpuSerializer
    filterset_class = filters_of(
        Gpu,
        {
            "index": ["exact"],
            "mig_enabled": ["exact"],
            "uuid": ["exact"],
            "serial": ["exact"],
            "driver_version": ["exact"],
        },
        node=by("slug", Node.objects.all()),
        site=by("slug", Site.objects.all(), "node__site"),
        gpu_model=by("name", GpuModel.objects.all(), "node__node_type__gpu_model"),
        state=choices(Gpu.State),
    )
    search_fields = ("uuid", "serial", "node__name", "discovered_name")
    ordering_fields = ("id", "node__name", "index", "state", "updated_at")


class PriceViewSet(TableViewSet):
    """What one GPU costs an hour."""

    table = "prices"
    queryset = Price.objects.select_related("gpu_model", "site")
    serializer_class = shapes.PriceSerializer
    filterset_class = filters_of(
        Price,
        {"usd_per_gpu_hour": ["gte", "lte"], "valid_from": ["exact", "gte", "lte"]},
        gpu_model=by("name", GpuModel.objects.all()),
        site=by("slug", Site.objects.all()),
        basis=choices(Price.Basis),
    )
    search_fields = ("gpu_model__name", "source", "notes")
    ordering_fields = ("id", "gpu_model__name", "usd_per_gpu_hour", "valid_from", "updated_at")


class ExchangeRateViewSet(TableViewSet):
    """What currencies and service units are worth in US dollars, by day."""

    table = "exchange-rates"
    queryset = ExchangeRate.objects.all()
    serializer_class = shapes.ExchangeRateSerializer
    filterset_class = filters_of(
        ExchangeRate, {"currency": ["exact"], "date": ["exact", "gte", "lte"], "usd_per_unit": ["gte", "lte"]}
    )
    search_fields = ("currency", "source")
    ordering_fields = ("id", "currency", "date", "updated_at")

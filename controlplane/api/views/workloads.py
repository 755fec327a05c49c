"""Traces, uploaded models, workloads."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import parsing
from controlplane.api.filters import by, choices, filters_of
from controlplane.api.preconditions import check_version, with_etag
from controlplane.api.serializers import workloads as shapes
from controlplane.api.views.base import ChangeMixin, ReadViewSet, RecordViewSet, actor_of
from controlplane.core.models import Role
from controlplane.inventory.models import Site
from controlplane.workloads import services
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload
from planner.errors import PlannerError
from planner.models.loading import LARGEST_FILE_BYTES
from planner.models.weight_index import LARGEST_INDEX_BYTES

PARSERS = (parsing.JsonParser, MultiPartParser)


class TraceViewSet(ChangeMixin, ReadViewSet):
    """Request traces."""

    queryset = Trace.objects.defer("packed")
    changing_role = Role.PLANNER
    serializer_class = shapes.TraceSerializer
    parser_classes = PARSERS
    max_body_bytes = settings.TRACE_MAX_BYTES
    filterset_class = filters_of(
        Trace, {"name": ["exact", "icontains"], "slug": ["exact"], "catalogue_name": ["exact"], "rows": ["gte", "lte"]}
    )
    search_fields = ("name", "slug", "source")
    ordering_fields = ("id", "name", "rows", "duration_s", "created_at", "updated_at")

    @extend_schema(
        request={
            "multipart/form-data": shapes.TraceUploadSerializer,
            "application/json": shapes.TraceUploadSerializer,
        },
        responses={201: shapes.TraceSerializer},
    )
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Store a trace from a file, or install one of the catalogue."""
        form = shapes.TraceUploadSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        actor = actor_of(request)
        if "catalogue_name" in values:
            trace = services.install_trace(actor=actor, catalogue_name=values["catalogue_name"])
        else:
            trace = services.upload_trace(
                actor=actor,
                name=values["name"],
                filename=values["file"].name or "",
                content=values["file"].read(),
                source=values.get("source", ""),
                licence=values.get("licence", ""),
            )
        response = Response(self.shown(trace), status=status.HTTP_201_CREATED)
        response["Location"] = self.path_of(trace)
        return with_etag(response, trace)

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service; with the requests, which the check of the model needs."""
        full = Trace.objects.get(pk=record.pk)
        for name in ("name", "source", "licence", "prefix_hit"):
            setattr(full, name, getattr(record, name))
        return services.save_trace(actor=actor_of(self.request), trace=full, expected_version=expected)

    def remove(self, record: Any) -> None:
        """By the service."""
        services.delete_trace(actor=actor_of(self.request), trace=record)

    @extend_schema(responses={(200, "text/csv"): OpenApiTypes.STR}, filters=False)
    @action(detail=True, methods=["get"], pagination_class=None)
    def requests(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """Every request of the trace as CSV: timestamp_s (when it has times), input_tokens, output_tokens and
        prefix_block_ids (when it names prefix blocks).
        """
        trace = self.get_object()
        times_s, tokens_in, tokens_out = trace.arrays()
        columns = {"input_tokens": tokens_in.tolist(), "output_tokens": tokens_out.tolist()}
        if len(times_s):
            columns = {"timestamp_s": times_s.tolist(), **columns}
        if (prefixes := trace.prefix_blocks()) is not None:
            columns["prefix_block_ids"] = [" ".join(map(str, own.tolist())) for own in prefixes[0]]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        disposition = {"Content-Disposition": f'attachment; filename="{trace.slug}.csv"'}
        return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=disposition)


@extend_schema_view(
    **{
        name: extend_schema(
            request={
                "application/json": shapes.LlmModelSerializer,
                "multipart/form-data": shapes.LlmModelSerializer,
            }
        )
        for name in ("create", "update", "partial_update")
    }
)
class LlmModelViewSet(ChangeMixin, ReadViewSet):
    """Models uploaded as config.json; those of the catalogue are in /catalogue/models/."""

    queryset = LlmModel.objects.all()
    changing_role = Role.PLANNER
    serializer_class = shapes.LlmModelSerializer
    parser_classes = PARSERS
    max_body_bytes = LARGEST_INDEX_BYTES + 2 * LARGEST_FILE_BYTES
    related = ("config", "quant_config", "weight_index")
    filterset_class = filters_of(
        LlmModel, {"model_id": ["exact", "icontains"], "architecture": ["exact"], "parameters": ["gte", "lte"]}
    )
    search_fields = ("model_id", "architecture", "notes")
    ordering_fields = ("id", "model_id", "parameters", "created_at", "updated_at")

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service, which takes the whole configuration."""
        held = LlmModel.objects.select_for_update().filter(pk=record.pk).first() if record.pk else None
        if held is not None:
            check_version(expected, held.version)
            if record.model_id != held.model_id:
                raise ValidationError({"model_id": "An uploaded model keeps its id; upload it anew under another."})
        config = related.get("config") or json.dumps(record.config).encode()
        side = related.get("quant_config", json.dumps(record.quant_config).encode() if record.quant_config else None)
        return services.upload_model(
            actor=actor_of(self.request),
            model_id=record.model_id,
            config=config,
            quant_config=side,
            weight_index=related.get("weight_index"),
            source=record.source,
            notes=record.notes,
        )

    def remove(self, record: Any) -> None:
        """By the service."""
        services.delete_model(actor=actor_of(self.request), model=record)


class WorkloadViewSet(RecordViewSet):
    """What has to be served."""

    queryset = Workload.objects.select_related("trace", "site").defer("trace__packed").prefetch_related("slo_targets")
    changing_role = Role.PLANNER
    serializer_class = shapes.WorkloadSerializer
    related = ("slo_targets",)
    filterset_class = filters_of(
        Workload,
        {
            "name": ["exact", "icontains"],
            "slug": ["exact"],
            "model_ref": ["exact", "icontains"],
            "tenant": ["exact"],
            "priority": ["gte", "lte"],
            "adapters": ["gte"],
        },
        kind=choices(Workload.Kind),
        load_kind=choices(Workload.LoadKind),
        site=by("slug", Site.objects.all()),
        trace=by("slug", Trace.objects.defer("packed")),
    )
    search_fields = ("name", "slug", "model_ref", "tenant", "notes")
    ordering_fields = ("id", "name", "priority", "created_at", "updated_at")

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service, with the objectives when they are given."""
        given = related.get("slo_targets")
        slo = None if given is None else [SloTarget(**item) for item in given]
        return services.save_workload(actor=actor_of(self.request), workload=record, slo=slo, expected_version=expected)

    def remove(self, record: Any) -> None:
        """By the service."""
        services.delete_workload(actor=actor_of(self.request), workload=record)

    @extend_schema(responses=OpenApiTypes.OBJECT, filters=False)
    @action(detail=True, methods=["get"], pagination_class=None)
    def facts(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """What the planner makes of it: model, load in words, lengths and their percentiles."""
        workload = Workload.objects.select_related("trace", "site").get(pk=self.get_object().pk)
        try:
            return Response(services.describe_workload(workload))
        except PlannerError as error:
            return Response({"model": None, "model_error": str(error)})


class SloTargetViewSet(ReadViewSet):
    """Objectives of all workloads; they are changed with their workload."""

    queryset: QuerySet[SloTarget] = SloTarget.objects.select_related("workload")
    serializer_class = shapes.OwnedSloTargetSerializer
    filterset_class = filters_of(
        SloTarget,
        {"limit_ms": ["gte", "lte"]},
        workload=by("slug", Workload.objects.all()),
        metric=choices(SloTarget.Metric),
        stat=choices(SloTarget.Stat),
    )
    search_fields = ("workload__name",)
    ordering_fields = ("id", "metric", "limit_ms")

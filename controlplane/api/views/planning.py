"""Scenarios, plans and what is in them."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.filters import by, choices, filters_of
from controlplane.api.problems import conflict_of
from controlplane.api.serializers import planning as shapes
from controlplane.api.serializers.jobs import JobSerializer
from controlplane.api.views.base import ReadViewSet, RecordViewSet, accepted, acting, actor_of
from controlplane.api.views.whatif import WhatIfActions
from controlplane.core.models import Role
from controlplane.dashboard import fmt, workings
from controlplane.inventory.models import Node, Site
from controlplane.planning import discarding, exporting, services
from controlplane.planning.models import PlacementRow, Plan, Scenario, VerdictRow
from controlplane.workloads.models import Workload

EXPORT_MEDIA = ("application/zip", *(media.partition(";")[0] for media, _ in exporting.REPORTS.values()))
OBJECTS = {200: {"type": "array", "items": {"type": "object", "additionalProperties": {}}}}


def _one_of(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, description=description)


class ScenarioViewSet(RecordViewSet):
    """Questions that plans answer."""

    queryset = Scenario.objects.prefetch_related("sites", "workloads")
    changing_role = Role.PLANNER
    serializer_class = shapes.ScenarioSerializer
    related = ("sites", "workloads")
    filterset_class = filters_of(
        Scenario,
        {"name": ["exact", "icontains"], "slug": ["exact"]},
        mode=choices(Scenario.Mode),
        site=by("slug", Site.objects.all(), "sites"),
        workload=by("slug", Workload.objects.all(), "workloads"),
    )
    search_fields = ("name", "slug", "notes")
    ordering_fields = ("id", "name", "created_at", "updated_at")

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service, with sites and workloads when they are given."""
        return services.save_scenario(
            actor=actor_of(self.request), scenario=record, expected_version=expected, **related
        )

    def remove(self, record: Any) -> None:
        """By the service."""
        discarding.delete_scenario(actor=actor_of(self.request), scenario=record)

    @extend_schema(request=None, responses=shapes.ScenarioSerializer)
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Take back the deletion of a scenario and its plans, for a day."""
        with acting():
            record = discarding.restore_scenario(actor=actor_of(request), pk=int(self.kwargs["pk"]))
        return Response(self.shown(record))

    @extend_schema(request=None, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def compute(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Compute a new plan of this scenario."""
        plan = services.compute_plan(actor=actor_of(request), scenario=self.get_object())
        return accepted(plan.job, JobSerializer(plan.job, context=self.get_serializer_context()).data, plan)


class PlanViewSet(WhatIfActions, ReadViewSet):
    """Computed plans. Every figure of a candidate is a prediction with its evidence and 80 % interval."""

    queryset = Plan.objects.select_related("scenario", "created_by", "approved_by")
    changing_role = Role.PLANNER
    serializer_class = shapes.PlanSerializer
    filterset_class = filters_of(
        Plan,
        {
            "number": ["exact"],
            "usd_per_hour": ["gte", "lte"],
            "status": ["exact"],
            "job": ["exact"],
            "base": ["exact", "isnull"],
        },
        scenario=by("slug", Scenario.objects.all()),
        state=choices(Plan.State),
    )
    search_fields = ("scenario__name", "title")
    ordering_fields = ("id", "number", "state", "usd_per_hour", "computed_at", "created_at")

    def get_queryset(self) -> Any:
        """The rows; the request, and in lists the result, are long and stay where they are."""
        rows = super().get_queryset().defer("request")
        return rows.defer("request", "result") if self.action == "list" and not self._wants_summary() else rows

    def _wants_summary(self) -> bool:
        return "summary" in (self._chosen_fields() or ())

    @extend_schema(request=shapes.PlanRequestSerializer, responses={202: JobSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Compute a new plan of a scenario."""
        form = shapes.PlanRequestSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        plan = services.compute_plan(actor=actor_of(request), scenario=form.validated_data["scenario"])
        return accepted(plan.job, JobSerializer(plan.job, context=self.get_serializer_context()).data, plan)

    @extend_schema(request=None, responses=shapes.PlanSerializer)
    @action(detail=True, methods=["post"], changing_role=Role.OPERATOR)
    def approve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Accept the plan: its placements become deployments. Twice changes nothing."""
        with acting():
            plan = services.approve_plan(actor=actor_of(request), plan=self.get_object())
        return Response(self.get_serializer(self.get_queryset().get(pk=plan.pk)).data)

    @extend_schema(request=None, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Stop computing it."""
        plan = self.get_object()
        job = services.cancel_plan(actor=actor_of(request), plan=plan)
        if job is None:
            raise conflict_of(DjangoValidationError(f"Plan {plan} has no job to cancel."))
        return accepted(job, JobSerializer(job, context=self.get_serializer_context()).data, plan)

    @extend_schema(
        responses=OBJECTS,
        filters=False,
        parameters=[
            _one_of("workload", "Only of this workload (name)."),
            _one_of("status", "Only of this status: ok, infeasible, unsupported, no_data."),
            _one_of("gpu", "Only on this GPU (catalogue name)."),
        ],
    )
    @action(detail=True, methods=["get"], pagination_class=None, query_names=("workload", "status", "gpu"))
    def candidates(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Every way that was weighed to serve each workload, with evidence, intervals and cost."""
        wanted = {key: request.query_params[key] for key in self.query_names if key in request.query_params}
        return Response([item for item in self._part("candidates") if _matches(item, wanted)])

    @extend_schema(responses=OBJECTS, filters=False, parameters=[_one_of("workload", "Only of this workload (name).")])
    @action(detail=True, methods=["get"], pagination_class=None, query_names=("workload",))
    def verdicts(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The engine for each workload: margin with its interval, reasons, flip points, the probe that settles it."""
        wanted = {key: request.query_params[key] for key in self.query_names if key in request.query_params}
        return Response([item for item in self._part("verdicts") if _matches(item, wanted)])

    @extend_schema(
        responses=shapes.WorkingSerializer(many=True),
        filters=False,
        parameters=[
            _one_of("candidate", "Of the figures of this candidate (id)."),
            _one_of("workload", "Of the verdict on this workload (name)."),
            _one_of("figure", "Only of the figure of this key."),
        ],
    )
    @action(detail=True, methods=["get"], pagination_class=None, query_names=("candidate", "workload", "figure"))
    def workings(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The arithmetic behind figures: of a candidate, of a verdict, or without either of the plan's totals."""
        plan = get_object_or_404(Plan, pk=self.kwargs["pk"])
        wanted = {name: request.query_params.get(name, "") for name in self.query_names}
        if wanted["candidate"] and wanted["workload"]:
            raise ValidationError("Give either candidate or workload; without either come the totals of the plan.")
        result, asked = self._result(plan), plan.request or {}
        with fmt.in_currency(asked.get("currency")):
            try:
                found = workings.of(asked, result, **wanted)
            except workings.UnknownPartError as error:
                raise NotFound(f"{error} See /plans/{plan.pk}/candidates/ and /plans/{plan.pk}/verdicts/.") from error
            if wanted["figure"] and not found:
                raise NotFound(f"There is no figure {wanted['figure'][:60]!r}; leave figure out to see all.")
            return Response(shapes.WorkingSerializer(found, many=True).data)

    @extend_schema(responses=shapes.PlacementSerializer(many=True), filters=False)
    @action(detail=True, methods=["get"], pagination_class=None)
    def placements(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Each replica on its GPUs."""
        rows = self.get_object().placements.select_related("workload", "node").order_by("pk")
        return Response(shapes.PlacementSerializer(rows, many=True, context=self.get_serializer_context()).data)

    @extend_schema(responses=OpenApiTypes.OBJECT, filters=False)
    @action(detail=True, methods=["get"], url_path="request", pagination_class=None)
    def asked(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The fleet and workloads as they were when it was asked."""
        return Response(get_object_or_404(Plan, pk=self.kwargs["pk"]).request)

    @extend_schema(responses={(200, "application/yaml"): OpenApiTypes.STR}, filters=False)
    @action(detail=True, methods=["get"], url_path="router-config", pagination_class=None)
    def router_config(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """A LiteLLM proxy configuration that spreads the workloads over the planned endpoints."""
        plan = self.get_object()
        text = self._result(plan).get("router_config") or ""
        disposition = {"Content-Disposition": f'attachment; filename="router-{plan.pk}.yaml"'}
        return HttpResponse(text, content_type="application/yaml; charset=utf-8", headers=disposition)

    @extend_schema(
        responses={(200, media): OpenApiTypes.BINARY for media in EXPORT_MEDIA},
        filters=False,
        parameters=[
            OpenApiParameter("target", enum=exporting.TARGETS, description="Files that start the plan there, zipped."),
            OpenApiParameter("format", enum=tuple(exporting.REPORTS), description="Without target: the monthly bill."),
            _one_of("namespace", "Of Kubernetes, with target; left out: default."),
            _one_of("model_root", "Directory of the checkpoints, as <root>/<model id>, with target."),
        ],
    )
    @action(
        detail=True,
        methods=["get"],
        url_path="export",
        pagination_class=None,
        query_names=("target", "format", "namespace", "model_root"),
    )
    def files(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """The plan as a file: what starts it on a target (ZIP), or its bill as CSV or XLSX."""
        plan = get_object_or_404(Plan.objects.select_related("scenario"), pk=self.kwargs["pk"])
        asked = request.query_params
        if ("target" in asked) == ("format" in asked):
            raise ValidationError("Give either target (files that start the plan) or format (its bill).")
        with acting():
            if "target" in asked:
                options = {name: asked[name] for name in ("namespace", "model_root") if asked.get(name)}
                made = exporting.export_deployment(plan, asked["target"], **options)
            else:
                made = exporting.export_report(plan, asked["format"])
        disposition = {"Content-Disposition": f'attachment; filename="{made.name}"'}
        return HttpResponse(made.content, content_type=made.media_type, headers=disposition)

    def _part(self, name: str) -> list[dict[str, Any]]:
        return self._result(self.get_object()).get(name, [])

    def _result(self, plan: Plan) -> dict[str, Any]:
        if plan.result is None:
            state = plan.get_state_display().lower()
            raise conflict_of(DjangoValidationError(f"Plan {plan} is {state} and has no result yet; see its job."))
        return plan.result


class PlacementViewSet(ReadViewSet):
    """Placements of all plans."""

    queryset = PlacementRow.objects.filter(plan__discarded_at__isnull=True).select_related("workload", "node")
    serializer_class = shapes.PlacementSerializer
    filterset_class = filters_of(
        PlacementRow,
        {"plan": ["exact"], "workload_name": ["exact"], "node_name": ["exact"], "candidate_id": ["exact"]},
        workload=by("slug", Workload.objects.all()),
        node=by("slug", Node.objects.all()),
    )
    search_fields = ("workload_name", "node_name", "candidate_id")
    ordering_fields = ("id", "plan", "workload_name", "node_name")


class VerdictViewSet(ReadViewSet):
    """Verdicts of all plans; margins are predictions with their 80 % interval."""

    queryset = VerdictRow.objects.filter(plan__discarded_at__isnull=True).select_related("workload")
    serializer_class = shapes.VerdictSerializer
    filterset_class = filters_of(
        VerdictRow,
        {"plan": ["exact"], "workload_name": ["exact"], "engine": ["exact"], "too_close": ["exact"]},
        workload=by("slug", Workload.objects.all()),
    )
    search_fields = ("workload_name", "sentence")
    ordering_fields = ("id", "plan", "workload_name", "margin")


def _matches(item: dict[str, Any], wanted: dict[str, str]) -> bool:
    return all(str(item.get(key)) == value for key, value in wanted.items())

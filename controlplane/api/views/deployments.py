"""Deployments, endpoints, probes, validations, calibrations."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.filters import by, choices, filters_of
from controlplane.api.paths import path_to
from controlplane.api.preconditions import expected_version, with_etag
from controlplane.api.serializers import deployments as shapes
from controlplane.api.serializers.jobs import JobSerializer
from controlplane.api.views.base import DeleteMixin, ReadViewSet, accepted, acting, actor_of
from controlplane.core.models import Role
from controlplane.deployments import calibrating, probing, services
from controlplane.deployments.models import Calibration, Deployment, Endpoint, Engine, ProbeRun, Validation
from controlplane.inventory.models import Node, Site
from controlplane.planning.models import Plan
from controlplane.workloads.models import Workload

UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


class DeploymentViewSet(DeleteMixin, ReadViewSet):
    """Engine instances on nodes."""

    queryset = Deployment.objects.select_related("workload", "node", "host")
    changing_role = Role.OPERATOR
    serializer_class = shapes.DeploymentSerializer
    lookup_value_regex = UUID
    filterset_class = filters_of(
        Deployment,
        {"name": ["exact", "icontains"], "model_ref": ["exact", "icontains"], "emulated": ["exact"], "port": ["exact"]},
        plan=by("id", Plan.objects.all()),
        workload=by("slug", Workload.objects.all()),
        node=by("slug", Node.objects.all()),
        host=by("slug", Node.objects.all()),
        site=by("slug", Site.objects.all(), "node__site"),
        state=choices(Deployment.State),
        engine=choices(Engine),
    )
    search_fields = ("name", "model_ref", "reason", "node__name")
    ordering_fields = ("name", "state", "engine", "ready_at", "created_at", "updated_at")

    @extend_schema(request=shapes.DeploymentRequestSerializer, responses={201: shapes.DeploymentSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Make a deployment by hand; it starts when it is launched."""
        form = shapes.DeploymentRequestSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        values = dict(form.validated_data)
        options = values.pop("settings", None)
        row = services.create_deployment(actor=actor_of(request), options=options, **values)
        response = Response(self._shown(row), status=status.HTTP_201_CREATED)
        response["Location"] = path_to(f"{self.basename}-detail", row.pk)
        return with_etag(response, row)

    def remove(self, record: Any) -> None:
        """By the service."""
        services.delete_deployment(actor=actor_of(self.request), deployment=record)

    @extend_schema(request=shapes.LaunchSerializer, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def launch(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Start the engine on its node; or, emulated, on the host of this server."""
        form = shapes.LaunchSerializer(data=request.data or {})
        form.is_valid(raise_exception=True)
        row = self.get_object()
        with acting():
            job = services.launch_deployment(actor=actor_of(request), deployment=row, **form.validated_data)
        return accepted(job, self._job(job), row)

    @extend_schema(request=None, responses={200: shapes.DeploymentSerializer, 202: JobSerializer})
    @action(detail=True, methods=["post"])
    def stop(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Stop the engine and everything it started; 200 at once when nothing had been started."""
        row = self.get_object()
        with acting():
            job = services.stop_deployment(actor=actor_of(request), deployment=row)
        return Response(self._shown(row)) if job is None else accepted(job, self._job(job), row)

    def _shown(self, row: Deployment) -> Any:
        return self.get_serializer(self.get_queryset().get(pk=row.pk)).data

    def _job(self, job: Any) -> Any:
        return JobSerializer(job, context=self.get_serializer_context()).data


class EndpointViewSet(ReadViewSet):
    """Where ready deployments answer."""

    queryset = Endpoint.objects.select_related("deployment")
    serializer_class = shapes.EndpointSerializer
    filterset_class = filters_of(
        Endpoint,
        {
            "deployment": ["exact"],
            "served_name": ["exact"],
            "deployment__emulated": ["exact"],
            "deployment__state": ["exact"],
        },
    )
    search_fields = ("url", "served_name")
    ordering_fields = ("id", "url", "served_name")


class ProbeViewSet(ReadViewSet):
    """Measurements of deployments."""

    queryset = ProbeRun.objects.all()
    changing_role = Role.OPERATOR
    serializer_class = shapes.ProbeSerializer
    lookup_value_regex = UUID
    filterset_class = filters_of(
        ProbeRun,
        {"deployment": ["exact"], "emulated": ["exact"], "job": ["exact"]},
        node=by("slug", Node.objects.all(), "deployment__node"),
        workload=by("slug", Workload.objects.all(), "deployment__workload"),
        state=choices(ProbeRun.State),
    )
    search_fields = ("deployment__name", "reason")
    ordering_fields = ("state", "started_at", "finished_at", "created_at")

    @extend_schema(request=shapes.ProbeRequestSerializer, responses={202: JobSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Measure a ready deployment; what is predicted for exactly this load is stored before."""
        form = shapes.ProbeRequestSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        found = Deployment.objects.select_related("workload__trace", "node__site", "node__node_type__gpu_model", "host")
        deployment = found.filter(pk=form.validated_data["deployment"]).first()
        if deployment is None:
            raise ValidationError({"deployment": "There is no such deployment; GET /api/v1/deployments/ lists them."})
        with acting():
            probe = probing.probe_deployment(
                actor=actor_of(request), deployment=deployment, load=form.validated_data.get("load")
            )
        if probe.job is None:
            raise DjangoValidationError("The probe has no job.")
        return accepted(probe.job, JobSerializer(probe.job, context=self.get_serializer_context()).data, probe)


class ValidationViewSet(ReadViewSet):
    """Predictions held against measurements."""

    queryset = Validation.objects.select_related("probe")
    serializer_class = shapes.ValidationSerializer
    filterset_class = filters_of(
        Validation,
        {"probe": ["exact"], "metric": ["exact"], "evidence": ["exact"], "emulated": ["exact"]},
        deployment=by("id", Deployment.objects.all(), "deployment"),
        node=by("slug", Node.objects.all(), "deployment__node"),
        verdict=choices(Validation.Verdict),
    )
    search_fields = ("metric",)
    ordering_fields = ("id", "metric", "error_ratio", "created_at")


class CalibrationViewSet(ReadViewSet):
    """Corrections fitted from real probes; the next plan uses the active ones."""

    queryset = Calibration.objects.all()
    changing_role = Role.PLANNER
    serializer_class = shapes.CalibrationSerializer
    filterset_class = filters_of(
        Calibration,
        {
            "engine": ["exact"],
            "engine_version": ["exact"],
            "gpu": ["exact"],
            "model": ["exact", "icontains"],
            "precision": ["exact"],
            "tp": ["exact"],
            "active": ["exact"],
        },
    )
    search_fields = ("engine", "gpu", "model", "source")
    ordering_fields = ("id", "engine", "gpu", "step_factor", "created_at")

    @extend_schema(request=shapes.CalibrationSerializer, responses=shapes.CalibrationSerializer)
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Use it, or no longer; another active one of the same kind gives way."""
        row = self.get_object()
        given = request.data.get("version") if isinstance(request.data, dict) else None
        expected = expected_version(request, row.version, given)
        form = self.get_serializer(row, data=request.data, partial=True)
        form.is_valid(raise_exception=True)
        if "active" in form.validated_data:
            row = calibrating.set_active(
                actor=actor_of(request),
                calibration=row,
                active=form.validated_data["active"],
                expected_version=expected,
            )
        return with_etag(Response(self.get_serializer(row).data), row)

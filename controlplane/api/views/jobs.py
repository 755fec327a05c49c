"""Jobs: how far, why not, and their log."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.filters import by, choices, filters_of
from controlplane.api.problems import Conflict
from controlplane.api.serializers.jobs import JobLogSerializer, JobSerializer
from controlplane.api.views.base import ReadViewSet, accepted, acting, actor_of
from controlplane.api.views.deployments import UUID
from controlplane.core.models import User
from controlplane.jobs import services
from controlplane.jobs.models import Job

AFTER = OpenApiParameter(
    "after", OpenApiTypes.INT, description="Only lines with a higher sequence; -1: from the start."
)


class JobViewSet(ReadViewSet):
    """Long acts. Follow one until its ``state`` is succeeded, failed or cancelled."""

    queryset = Job.objects.select_related("created_by")
    serializer_class = JobSerializer
    lookup_value_regex = UUID
    filterset_class = filters_of(
        Job,
        {"kind": ["exact"], "queue": ["exact"], "finished_at": ["gte", "lt"]},
        state=choices(Job.State),
        created_by=by("username", User.objects.all()),
    )
    search_fields = ("kind", "step", "error")
    ordering_fields = ("kind", "state", "created_at", "started_at", "finished_at")

    @extend_schema(responses=JobLogSerializer(many=True), filters=False, parameters=[AFTER])
    @action(detail=True, methods=["get"], query_names=("after", "limit", "offset"))
    def log(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The log, in pages; ``after`` gives what is new."""
        text = request.query_params.get("after", "-1")
        if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 12:
            raise ValidationError({"after": "Must be a whole number: the sequence of the last line that you have."})
        lines = self.get_object().log.filter(sequence__gt=int(text)).order_by("sequence")
        page = self.paginate_queryset(lines)
        return self.get_paginated_response(JobLogSerializer(page, many=True).data)

    @extend_schema(request=None, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Ask it to stop."""
        job = self.get_object()
        if job.is_final:
            raise Conflict(f"The job is {job.state} already, so there is nothing to cancel.")
        job = services.request_cancel(actor=actor_of(request), job=job)
        return accepted(job, self.get_serializer(job).data)

    @extend_schema(request=None, responses={202: JobSerializer})
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Do what a failed or cancelled job should have done, as a new job: a plan anew, a probe of the same load."""
        with acting():
            fresh = services.retry_job(actor=actor_of(request), job=self.get_object())
        return accepted(fresh, self.get_serializer(fresh).data)

"""What-if plans, plans side by side, deleting and restoring: the part of the plans' API that is about alternatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.serializers import planning as shapes
from controlplane.api.serializers.jobs import JobSerializer
from controlplane.api.views.base import DeleteMixin, accepted, acting, actor_of
from controlplane.inventory.pricing import exchange_rates
from controlplane.planning import comparing, discarding, services
from controlplane.planning import curves as drawing
from controlplane.planning.models import Plan
from controlplane.workloads.services import planner_model
from planner.errors import InputError
from planner.jsonio import to_json
from planner.whatif import Change, ModelChange, parse_change

FILE = {"Content-Disposition": 'attachment; filename="plans-compared.csv"'}


class WhatIfActions(DeleteMixin):
    """Mixed into the view set of plans."""

    def remove(self, record: Any) -> None:
        """By the service: hidden for a day, then gone."""
        discarding.delete_plan(actor=actor_of(self.request), plan=record)  # type: ignore[attr-defined]

    @extend_schema(request=shapes.WhatIfSerializer, responses={202: JobSerializer})
    @action(detail=True, methods=["post"], url_path="what-if")
    def what_if(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Compute a new plan of what this one was asked, with something changed. The fleet stays as it was then."""
        form = shapes.WhatIfSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        changes = [_change(item, f"changes[{at}]") for at, item in enumerate(form.validated_data["changes"])]
        base = Plan.objects.select_related("scenario").get(pk=self.get_object().pk)  # type: ignore[attr-defined]
        with acting():
            plan = services.create_what_if(
                actor=actor_of(request), base=base, changes=changes, title=form.validated_data["title"]
            )
        context = self.get_serializer_context()  # type: ignore[attr-defined]
        return accepted(plan.job, JobSerializer(plan.job, context=context).data, plan)

    @extend_schema(request=None, responses=shapes.PlanSerializer)
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Take back the deletion of a plan, for a day."""
        with acting():
            plan = discarding.restore_plan(actor=actor_of(request), pk=int(self.kwargs["pk"]))  # type: ignore[attr-defined]
        return Response(self.get_serializer(self.get_queryset().get(pk=plan.pk)).data)  # type: ignore[attr-defined]

    @extend_schema(
        responses=shapes.CurvesSerializer,
        filters=False,
        parameters=[OpenApiParameter("candidate", OpenApiTypes.STR, required=True, description="Id of a candidate.")],
    )
    @action(detail=True, methods=["get"], pagination_class=None, query_names=("candidate",))
    def curves(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Load curves of a candidate: TTFT, TPOT, throughput and their bands against load, and a burst's timeline.

        ``timeline`` is of one engine, ``unit_timeline`` of both pools of a unit of prefill and decode pools, which
        curves of older versions lack. Those of the candidates that verdicts name are there with the plan; POST has
        others drawn.
        """
        plan = self.get_object()  # type: ignore[attr-defined]
        row = plan.curves.filter(candidate_id=_candidate_id(request.query_params)).first()
        if row is None:
            raise NotFound("They are not drawn yet; POST the id of the candidate to this path.")
        return Response(shapes.CurvesSerializer(row).data)

    @extend_schema(request=shapes.CandidateIdSerializer, responses={202: JobSerializer, 200: shapes.CurvesSerializer})
    @curves.mapping.post
    def draw_curves(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Have a candidate's load curves drawn; 200 with them when they are there already."""
        form = shapes.CandidateIdSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        plan = Plan.objects.get(pk=self.get_object().pk)  # type: ignore[attr-defined]
        with acting():
            row = drawing.request_curves(
                actor=actor_of(request), plan=plan, candidate_id=form.validated_data["candidate"]
            )
        if row.job is None or row.points is not None:
            return Response(shapes.CurvesSerializer(row).data)
        context = self.get_serializer_context()  # type: ignore[attr-defined]
        return accepted(row.job, JobSerializer(row.job, context=context).data, plan)

    @extend_schema(
        responses={(200, "application/json"): OpenApiTypes.OBJECT, (200, "text/csv"): OpenApiTypes.BINARY},
        filters=False,
        parameters=[
            OpenApiParameter(
                "ids",
                OpenApiTypes.STR,
                required=True,
                description="Ids of two to four plans, separated by commas; the others are held against the first.",
            ),
            OpenApiParameter("format", enum=("json", "csv"), description="csv: everything as one table."),
        ],
    )
    @action(detail=False, methods=["get"], pagination_class=None, query_names=("ids", "format"))
    def compare(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """Plans side by side: totals, each workload, and line by line what was asked and what came of it."""
        plans = plans_of(request.query_params.get("ids", ""), "ids")
        with acting():
            found = comparing.compare(plans, exchange_rates())
        if request.query_params.get("format") == "csv":
            return HttpResponse(comparing.as_csv(found), content_type="text/csv; charset=utf-8", headers=FILE)
        return Response(
            {
                "plans": [{"id": p.pk, "name": str(p), "title": p.title, "base": p.base_id} for p in found.plans],
                "currency": found.currency,
                "rates": to_json(found.rates),
                "totals": [{**to_json(line), "differs": line.differs} for line in found.totals],
                "workloads": [{**to_json(line), "differs": line.differs} for line in found.workloads],
                "differences": to_json(found.differences),
                "differences_left_out": found.more,
            }
        )


def _change(item: Any, path: str) -> Change:
    """A change from JSON. A model is one of the catalogue or an uploaded one, never a file of the server."""
    change = parse_change(item, path)
    if not isinstance(change, ModelChange):
        return change
    try:
        return replace(change, model=planner_model(change.model), label=change.model)
    except InputError as error:
        raise type(error)(error.message, field=f"{path}.model", value=change.model, remedy=error.remedy) from error


def _candidate_id(params: Any) -> str:
    found = params.get("candidate", "")
    if not found:
        raise ValidationError({"candidate": "Give the id of a candidate; see /plans/ID/candidates/."})
    return str(found)[:300]


def plans_of(text: str, field: str) -> list[Plan]:
    """Plans by ids separated by commas, in that order; raises ValidationError naming one that is not there."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) < 18):
            raise ValidationError({field: f"{part[:20]!r} is no id of a plan."})
    if not comparing.FEWEST <= len(parts) <= comparing.MOST:
        raise ValidationError({field: f"Give the ids of {comparing.FEWEST} to {comparing.MOST} plans."})
    found = Plan.objects.select_related("scenario").in_bulk([int(part) for part in parts])
    missing = next((part for part in parts if int(part) not in found), None)
    if missing is not None:
        raise ValidationError({field: f"There is no plan {missing!r}; give the id of one."})
    return [found[int(part)] for part in parts]

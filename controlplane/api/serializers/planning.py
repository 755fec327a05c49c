"""Scenarios, plans, placements, verdicts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.serializers.base import ObjectField, RecordField, RecordSerializer, Strict, record_meta, username
from controlplane.inventory.models import Site
from controlplane.planning.models import ORCHESTRATORS, PlacementRow, Plan, Scenario, VerdictRow
from controlplane.workloads.models import Workload
from planner.whatif import KINDS

SUMMARY = (
    "objective_usd_per_hour", "bound_usd_per_hour", "gap", "solve_s", "idle_usd_per_hour", "moves", "notes",
    "unplaced", "baselines", "rules", "stranded_before", "stranded_after", "purchased_nodes", "months", "runways",
    "consolidation", "engine_plans", "mixes", "usd_per_month", "usd_per_mtok_output", "bills",
)  # fmt: skip
"""What of a result stands in a plan's detail; candidates, verdicts and placements have paths of their own."""


def rows_field(name: str) -> serializers.ListField:
    """A list of objects of a scenario, as a fleet file has them."""
    words = Scenario._meta.get_field(name).help_text  # type: ignore[union-attr]
    return serializers.ListField(child=ObjectField(), required=False, help_text=words)


class ScenarioSerializer(RecordSerializer):
    """A question: which workloads on the nodes of which sites. No sites or workloads: all of them."""

    sites = RecordField(many=True, queryset=Site.objects.all(), required=False)
    workloads = RecordField(many=True, queryset=Workload.objects.all(), required=False)
    orchestrators = serializers.ListField(
        child=serializers.ChoiceField(choices=ORCHESTRATORS), required=False, help_text="Whose nodes may be used."
    )
    operations = ObjectField(required=False, help_text=Scenario._meta.get_field("operations").help_text)
    api_prices = rows_field("api_prices")
    cloud_prices = rows_field("cloud_prices")
    price_classes = rows_field("price_classes")

    Meta = record_meta(
        Scenario,
        "name slug mode objective budget_usd_per_hour max_power_kw max_rack_units share_gpus orchestrators sites "
        "workloads time_limit_s seed growth_per_month lead_time_months currency rates_as_of price_erosion_per_year "
        "horizon_months operations api_prices cloud_prices price_classes notes",
        brief="name slug mode",
        extra_kwargs={"slug": {"required": False, "help_text": "Made from the name when left out."}},
    )


class PlanSerializer(RecordSerializer):
    """One answer to a scenario. Its figures are predictions: each has its evidence and interval beside it."""

    scenario = RecordField(read_only=True)
    created_by = username()
    approved_by = username()
    summary = serializers.SerializerMethodField(help_text="Of the result; null until it is computed.")

    Meta = record_meta(
        Plan,
        "scenario number state status job model_version usd_per_hour base title changes summary created_by computed_at "
        "approved_by approved_at",
        brief="scenario number state title",
        read_only="scenario number state status job model_version usd_per_hour base title changes computed_at "
        "approved_at",
    )
    Meta.detail_only = ("summary",)

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_summary(self, plan: Plan) -> dict[str, Any] | None:
        """Totals."""
        result = plan.result
        return None if result is None else {name: result.get(name) for name in SUMMARY}


class PlanRequestSerializer(Strict):
    """The scenario to compute a plan of."""

    scenario = RecordField(queryset=Scenario.objects.all())


class WhatIfSerializer(Strict):
    """What to change of the question that a plan answered; the changes are made in order."""

    changes = serializers.ListField(
        child=serializers.DictField(),
        min_length=1,
        max_length=20,
        help_text=f"Objects with a kind, one of {', '.join(KINDS)}, and the fields of that kind; see docs/planner.md.",
    )
    title = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class CandidateIdSerializer(Strict):
    """A candidate of the plan."""

    candidate = serializers.CharField(max_length=300)


class CurvesSerializer(serializers.Serializer):
    """Load curves of one replica of a candidate; ``points`` null with the ``reason``, or while the job draws them."""

    workload = serializers.CharField(source="workload_name")
    candidate = serializers.CharField(source="candidate_id")
    job = serializers.UUIDField(source="job_id", allow_null=True)
    points = serializers.JSONField(allow_null=True, help_text="CandidateCurve of the planner; see docs/planner.md.")
    reason = serializers.CharField(allow_blank=True)


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string"}], "nullable": True})
class FigureField(serializers.Field):
    """A figure as it was computed: a number, an amount of money as text, a word, or null."""

    def to_representation(self, value: Any) -> Any:
        """Money keeps its digits."""
        return str(value) if isinstance(value, Decimal) else value


class TermSerializer(serializers.Serializer):
    """One line of an arithmetic."""

    word = serializers.CharField(help_text="What it is.")
    value = FigureField()
    unit = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True, help_text="Where it comes from.")  # type: ignore[assignment]


class WorkingSerializer(serializers.Serializer):
    """How one figure came about: what was put in, by which formula, and what comes out when it is computed again."""

    key = serializers.CharField(help_text="Name of the figure, for ?figure=.")
    title = serializers.CharField()
    value = FigureField()
    unit = serializers.CharField(allow_blank=True, help_text="Amounts are in the currency of the plan.")
    formula = serializers.CharField()
    terms = TermSerializer(many=True)
    evidence = serializers.CharField(
        allow_blank=True, help_text="measured, calibrated, silicon, extrapolated or roofline; empty of mere sums."
    )
    band = serializers.ListField(
        child=serializers.FloatField(allow_null=True), min_length=2, max_length=2, help_text="80 % interval; or nulls."
    )
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    again = serializers.FloatField(
        allow_null=True, help_text="What the lines give; null where that takes a simulation."
    )
    holds = serializers.BooleanField(allow_null=True, help_text="Whether the lines give the figure; null as before.")


class PlacementSerializer(RecordSerializer):
    """One replica, or its part on one node."""

    workload = RecordField(read_only=True, allow_null=True)
    node = RecordField(read_only=True, allow_null=True)

    Meta = record_meta(
        PlacementRow,
        "plan workload workload_name candidate_id replica node node_name gpu_indexes device",
        brief="workload_name node_name gpu_indexes",
        read_only="plan workload_name candidate_id replica node_name gpu_indexes device",
    )


class VerdictSerializer(RecordSerializer):
    """The engine chosen for one workload, by how much (80 % interval), and why."""

    workload = RecordField(read_only=True, allow_null=True)

    Meta = record_meta(
        VerdictRow,
        "plan workload workload_name engine chosen runner_up sentence margin margin_low margin_high too_close",
        brief="workload_name engine sentence",
        read_only="plan workload_name engine chosen runner_up sentence margin margin_low margin_high too_close",
    )

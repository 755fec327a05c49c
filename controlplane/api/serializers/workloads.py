"""Traces, uploaded models, workloads and their objectives."""

from __future__ import annotations

import json
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.serializers.base import RecordField, RecordSerializer, Strict, record_meta
from controlplane.api.serializers.inventory import EngineListField
from controlplane.inventory.models import Site
from controlplane.workloads import services
from controlplane.workloads.models import PRECISIONS, LlmModel, SloTarget, Trace, Workload

LENGTHS = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"type": "string", "enum": ["fixed"]}, "value": {"type": "integer"}}},
        {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["normal"]},
                "mean": {"type": "number"},
                "sd": {"type": "number"},
            },
        },
        {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["uniform"]},
                "low": {"type": "integer"},
                "high": {"type": "integer"},
            },
        },
        {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["samples"]},
                "samples": {"type": "array", "items": {"type": "integer"}},
            },
        },
        {"type": "object", "properties": {"kind": {"type": "string", "enum": ["trace"]}}},
    ],
    "description": "Tokens of one side of a request; kind trace takes those of the workload's trace.",
}


@extend_schema_field(LENGTHS)
class LengthsField(serializers.JSONField):
    """Request lengths; the model checks them."""


class TraceSerializer(RecordSerializer):
    """Requests as they really came, in figures; the requests themselves come as CSV from ``requests``."""

    Meta = record_meta(
        Trace,
        "name slug catalogue_name source licence rows duration_s mean_rate_per_s mean_input_tokens "
        "mean_output_tokens prefix_hit",
        brief="name slug rows",
        read_only="slug catalogue_name rows duration_s mean_rate_per_s mean_input_tokens mean_output_tokens",
    )


class TraceUploadSerializer(Strict):
    """A trace to store: a file (CSV or JSON lines, .gz allowed), or one of the catalogue by name."""

    name = serializers.CharField(max_length=100, required=False)
    file = serializers.FileField(required=False, allow_empty_file=True)
    source = serializers.CharField(max_length=300, required=False, allow_blank=True)  # type: ignore[assignment]
    licence = serializers.CharField(max_length=100, required=False, allow_blank=True)
    catalogue_name = serializers.CharField(max_length=100, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Either a name and a file, or a name of the catalogue."""
        if "catalogue_name" not in attrs:
            missing = {key: ["This field is required."] for key in ("name", "file") if key not in attrs}
            if missing:
                raise serializers.ValidationError(missing, code="required")
        return attrs


@extend_schema_field(OpenApiTypes.OBJECT)
class ConfigField(serializers.Field):
    """A configuration file: as a JSON object, or as a form's file."""

    def to_internal_value(self, data: Any) -> bytes:
        """The text of the file; the planner's parser checks it."""
        if isinstance(data, UploadedFile):
            return data.read()
        if isinstance(data, dict):
            return json.dumps(data).encode()
        raise serializers.ValidationError("Must be the file, or its content as a JSON object.", code="invalid")

    def to_representation(self, value: Any) -> Any:
        """The object."""
        return value


class LlmModelSerializer(RecordSerializer):
    """A model uploaded as its config.json; the same ``model_id`` again replaces it."""

    config = ConfigField()
    quant_config = ConfigField(required=False, allow_null=True)
    weight_index = ConfigField(
        required=False,
        write_only=True,
        help_text="model.safetensors.index.json: the bytes in the files are compared with those counted.",
    )
    weight_check = serializers.SerializerMethodField(
        help_text="Whether the files hold the bytes that the configuration means; empty without an index."
    )
    model_id = serializers.CharField(max_length=200)

    Meta = record_meta(
        LlmModel,
        "model_id architecture parameters source notes config quant_config weight_index weight_bytes weight_check",
        brief="model_id architecture parameters",
        read_only="architecture parameters weight_bytes",
    )
    Meta.detail_only = ("config", "quant_config", "weight_check")

    def get_weight_check(self, row: LlmModel) -> str:
        """The comparison in a sentence."""
        check = services.weight_check(row)
        return check.sentence if check else ""


class SloTargetSerializer(RecordSerializer):
    """One limit of a workload."""

    Meta = record_meta(SloTarget, "metric stat limit_ms", brief="metric stat limit_ms")


class OwnedSloTargetSerializer(RecordSerializer):
    """One limit, and whose it is."""

    workload = RecordField(read_only=True)

    Meta = record_meta(SloTarget, "workload metric stat limit_ms", brief="workload metric stat limit_ms")


class WorkloadSerializer(RecordSerializer):
    """What has to be served: a model, a load, lengths, objectives, limits. ``slo_targets`` replace the stored ones."""

    slo_targets = SloTargetSerializer(many=True, required=False)
    trace = RecordField(queryset=Trace.objects.defer("packed"), allow_null=True, required=False)
    site = RecordField(queryset=Site.objects.all(), allow_null=True, required=False)
    input_tokens = LengthsField(required=False)
    output_tokens = LengthsField(required=False)
    hour_profile = serializers.ListField(
        child=serializers.FloatField(min_value=0),
        required=False,
        help_text="168 values from Monday 0:00 in any unit; the largest hour is the peak load. Empty: not known.",
    )
    allowed_engines = EngineListField(required=False)
    allowed_precisions = serializers.ListField(child=serializers.ChoiceField(choices=PRECISIONS), required=False)

    Meta = record_meta(
        Workload,
        "name slug kind model_ref slo_targets load_kind rate_per_s concurrency requests arrival arrival_cv prefix_hit "
        "turns_low turns_high think_s shared_tokens input_tokens output_tokens trace "
        "priority tenant site adapters adapter_rank revisions_per_month "
        "allowed_engines allowed_precisions max_model_len n_plus_1 spread hours_per_month mean_load_share "
        "hour_profile growth_per_month plan_for_month notes",
        brief="name slug kind model_ref",
        extra_kwargs={"slug": {"required": False, "help_text": "Made from the name when left out."}},
    )

    def validate_slo_targets(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Each metric and statistic once."""
        seen = set()
        for at, item in enumerate(value):
            key = (item["metric"], item.get("stat", SloTarget.Stat.P90))
            if key in seen:
                raise serializers.ValidationError(
                    [{}] * at + [{"stat": [f"The limit of {key[0]} {key[1]} stands twice; keep one."]}], code="unique"
                )
            seen.add(key)
        return value

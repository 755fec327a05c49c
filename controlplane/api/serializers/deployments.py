"""Deployments, endpoints, probes, validations, calibrations. ``emulated`` marks all that no real engine yielded."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.api.serializers.base import ObjectField, RecordField, RecordSerializer, Strict, record_meta
from controlplane.deployments.models import Calibration, Deployment, Endpoint, ProbeRun, Validation
from controlplane.inventory.models import ENGINES, Node
from controlplane.workloads.models import PRECISIONS, Workload


class DeploymentSerializer(RecordSerializer):
    """One engine instance. ``prediction`` holds memory and performance with evidence and 80 % intervals."""

    workload = RecordField(read_only=True, allow_null=True)
    node = RecordField(read_only=True)
    host = RecordField(read_only=True, allow_null=True)

    Meta = record_meta(
        Deployment,
        "name plan workload candidate_id replica node host model_ref planned_engine engine engine_version state "
        "emulated reason remedy phase gpu_indexes device parts port base_url pid job ready_at stopped_at settings "
        "launch command_line startup prediction",
        brief="name node engine state emulated",
        detail_only="settings launch command_line startup prediction",
        read_only="name plan candidate_id replica model_ref planned_engine engine engine_version state emulated "
        "reason remedy phase gpu_indexes device parts port base_url pid job ready_at stopped_at",
    )


class SettingsSerializer(Strict):
    """What is asked of an engine; what is left out is the engine's own default for that version, GPU and model."""

    version = serializers.CharField(max_length=40, required=False, allow_null=True)
    tp = serializers.IntegerField(min_value=1, max_value=64, required=False)
    pp = serializers.IntegerField(min_value=1, max_value=64, required=False)
    ep = serializers.IntegerField(min_value=1, max_value=512, required=False)
    dp = serializers.IntegerField(min_value=1, max_value=64, required=False)
    precision = serializers.ChoiceField(choices=[*PRECISIONS, "fp32"], required=False)
    kv_cache_dtype = serializers.ChoiceField(choices=["auto", "bf16", "fp16", "fp8"], required=False)
    max_model_len = serializers.IntegerField(min_value=1, max_value=100_000_000, required=False, allow_null=True)
    gpu_memory_utilization = serializers.FloatField(min_value=0.01, max_value=1, required=False, allow_null=True)
    free_gpu_memory_fraction = serializers.FloatField(min_value=0.01, max_value=1, required=False, allow_null=True)
    kv_cache_max_tokens = serializers.IntegerField(min_value=1, max_value=10**9, required=False, allow_null=True)
    max_num_seqs = serializers.IntegerField(min_value=1, max_value=65_536, required=False, allow_null=True)
    max_num_batched_tokens = serializers.IntegerField(min_value=1, max_value=4_194_304, required=False, allow_null=True)
    enable_chunked_prefill = serializers.BooleanField(required=False, allow_null=True)
    enable_prefix_caching = serializers.BooleanField(required=False, allow_null=True)
    block_tokens = serializers.IntegerField(min_value=1, max_value=1024, required=False, allow_null=True)
    enforce_eager = serializers.BooleanField(required=False)
    max_loras = serializers.IntegerField(min_value=0, max_value=512, required=False)
    max_lora_rank = serializers.IntegerField(min_value=1, max_value=512, required=False)
    capacity_policy = serializers.ChoiceField(
        choices=["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"], required=False, allow_null=True
    )
    trt_backend = serializers.ChoiceField(choices=["pytorch", "tensorrt"], required=False)


class DeploymentRequestSerializer(Strict):
    """A deployment by hand, outside any plan."""

    node = RecordField(queryset=Node.objects.select_related("site", "node_type__gpu_model"))
    model_ref = serializers.CharField(max_length=200)
    engine = serializers.ChoiceField(choices=ENGINES)
    gpu_indexes = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=575), max_length=576, required=False
    )
    settings = SettingsSerializer(required=False)
    workload = RecordField(queryset=Workload.objects.all(), required=False, allow_null=True)
    name = serializers.CharField(max_length=150, required=False, allow_blank=True)


class LaunchSerializer(Strict):
    """How to start it. ``emulated``: an engine timed by the predictions, on the host of this server."""

    emulated = serializers.BooleanField(required=False, default=False)


class EndpointSerializer(RecordSerializer):
    """Where a ready deployment answers."""

    emulated = serializers.BooleanField(source="deployment.emulated", read_only=True)
    state = serializers.CharField(source="deployment.state", read_only=True)

    Meta = record_meta(
        Endpoint,
        "deployment url served_name state emulated",
        brief="url served_name emulated",
        read_only="deployment url served_name",
    )


class ProbeSerializer(RecordSerializer):
    """One measurement. ``prediction`` was stored before it ran; ``metrics`` are what was measured."""

    Meta = record_meta(
        ProbeRun,
        "deployment job load state emulated reason remedy metrics prediction no_prediction_reason "
        "started_at finished_at",
        brief="deployment state emulated",
        detail_only="metrics prediction",
        read_only="deployment job load state emulated reason remedy no_prediction_reason started_at finished_at",
    )


class ProbeRequestSerializer(Strict):
    """Which deployment, under which load (see the ``load`` of a probe); without a load: the planned one."""

    deployment = serializers.UUIDField()
    load = ObjectField(required=False, allow_null=True)


class ValidationSerializer(RecordSerializer):
    """One predicted number with its 80 % band and evidence, held against what was measured."""

    deployment = serializers.UUIDField(source="deployment_id", read_only=True)

    Meta = record_meta(
        Validation,
        "probe deployment metric unit predicted low high measured error_ratio verdict evidence emulated",
        brief="metric predicted measured verdict emulated",
        read_only="probe metric unit predicted low high measured error_ratio verdict evidence emulated",
    )


class CalibrationSerializer(RecordSerializer):
    """Measured / predicted for one kind of deployment, from real probes only; only ``active`` can be changed."""

    Meta = record_meta(
        Calibration,
        "engine engine_version gpu model precision tp step_factor ttft_extra_ms samples residual_log_sd active source",
        brief="engine gpu model step_factor active",
        read_only="engine engine_version gpu model precision tp step_factor ttft_extra_ms samples residual_log_sd "
        "source",
    )

"""Deployments, endpoints, probes, validations and calibrations."""

from __future__ import annotations

import uuid
from typing import Any, Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.core.models import BaseModel
from controlplane.inventory.models import Node
from controlplane.jobs.models import Job
from controlplane.planning.models import Plan
from controlplane.workloads.models import Workload
from planner.evidence import Interval


class Engine(models.TextChoices):
    """What can be started. ``vllm_cpu`` is real vLLM on CPUs; ``emulated`` is timed by predictions."""

    VLLM = "vllm", "vLLM"
    VLLM_CPU = "vllm_cpu", "vLLM (CPU)"
    TENSORRT_LLM = "tensorrt_llm", "TensorRT-LLM"
    EMULATED = "emulated", "Emulated"


class Deployment(BaseModel):
    """One engine instance on one node. ``node`` is where it is planned; ``host`` the node whose worker runs it.

    They differ only when ``emulated``: an emulated engine stands in for hardware that is not there. ``planned_engine``
    is the engine the plan chose, ``engine`` what is really started. ``settings`` is a planner ``ResolvedSettings``,
    ``launch`` a runners ``EngineLaunch``, ``startup`` its ``StartupFacts``; ``prediction`` holds planner ``memory``
    (MemoryLedger) and ``performance`` (Performance at the planned load). ``parts`` lists (node, GPUs) of a replica that
    spans nodes. ``device`` is what an engine without a whole GPU holds: sharers and slot, or slice_profile, slice_index
    and slice_uuid.
    """

    class State(models.TextChoices):
        """Where it stands."""

        PENDING = "pending", "Pending"
        LAUNCHING = "launching", "Launching"
        LOADING = "loading", "Loading"
        READY = "ready", "Ready"
        STOPPING = "stopping", "Stopping"
        STOPPED = "stopped", "Stopped"
        FAILED = "failed", "Failed"

    LIVE = (State.LAUNCHING, State.LOADING, State.READY, State.STOPPING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=150)
    plan = models.ForeignKey(Plan, null=True, blank=True, on_delete=models.SET_NULL, related_name="deployments")
    workload = models.ForeignKey(Workload, null=True, blank=True, on_delete=models.SET_NULL, related_name="deployments")
    candidate_id = models.CharField(max_length=300, blank=True)
    replica = models.PositiveIntegerField(default=0)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="deployments")
    host = models.ForeignKey(Node, null=True, blank=True, on_delete=models.PROTECT, related_name="hosted_deployments")
    model_ref = models.CharField(max_length=200)
    planned_engine = models.CharField(max_length=20)
    engine = models.CharField(max_length=20, choices=Engine)
    engine_version = models.CharField(max_length=40, blank=True)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    reason = models.TextField(blank=True)
    remedy = models.TextField(blank=True)
    phase = models.CharField(max_length=200, blank=True)
    gpu_indexes = models.JSONField(default=list)
    device = models.JSONField(default=dict, blank=True)
    parts = models.JSONField(default=list, blank=True)
    port = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(65535)]
    )
    settings = models.JSONField(default=dict, blank=True)
    launch = models.JSONField(default=dict, blank=True)
    base_url = models.CharField(max_length=200, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    command_line = models.JSONField(default=list, blank=True)
    startup = models.JSONField(null=True, blank=True)
    prediction = models.JSONField(null=True, blank=True)
    emulated = models.BooleanField(default=False)
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="deployments")
    ready_at = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "name"]
        indexes = [models.Index(fields=["state"], name="deployments_state")]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["pending", "launching", "loading", "ready", "stopping", "stopped", "failed"]),
                name="deployments_deployment_state_known",
            ),
            models.CheckConstraint(
                condition=Q(engine__in=["vllm", "vllm_cpu", "tensorrt_llm", "emulated"]),
                name="deployments_deployment_engine_known",
            ),
            models.CheckConstraint(
                condition=~Q(state="failed") | ~Q(reason=""), name="deployments_deployment_failed_says_why"
            ),
            models.CheckConstraint(
                condition=~Q(engine="emulated") | Q(emulated=True), name="deployments_deployment_emulated_marked"
            ),
            models.UniqueConstraint(
                fields=["host", "port"],
                condition=Q(state__in=["launching", "loading", "ready", "stopping"], port__isnull=False),
                name="deployments_deployment_port_once",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Endpoint(BaseModel):
    """Where a ready deployment answers."""

    deployment = models.OneToOneField(Deployment, on_delete=models.CASCADE, related_name="endpoint")
    url = models.CharField(max_length=200)
    served_name = models.CharField(max_length=200)

    class Meta:
        ordering = ["url"]

    def __str__(self) -> str:
        return self.url


class ProbeRun(BaseModel):
    """One measurement of a deployment. ``load`` is a runners ``ProbeLoad``, ``metrics`` its ``ProbeMetrics``.

    ``prediction`` is what was predicted for exactly this load before it ran.
    """

    class State(models.TextChoices):
        """Where it stands."""

        PENDING = "pending", "Pending"
        RUNNING = "running", "Running"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="probes")
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="probes")
    load = models.JSONField()
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    reason = models.TextField(blank=True)
    remedy = models.TextField(blank=True)
    metrics = models.JSONField(null=True, blank=True)
    prediction = models.JSONField(null=True, blank=True)
    no_prediction_reason = models.TextField(blank=True)
    emulated = models.BooleanField(default=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["pending", "running", "done", "failed", "cancelled"]),
                name="deployments_proberun_state_known",
            ),
            models.CheckConstraint(
                condition=~Q(state="done") | Q(metrics__isnull=False), name="deployments_proberun_done_has_metrics"
            ),
        ]

    def __str__(self) -> str:
        return f"probe of {self.deployment}"


class Validation(models.Model):
    """One predicted number held against what was measured. ``error_ratio`` = predicted / measured - 1.

    From a probe, or from what the engine said of itself when it became ready: then ``probe`` is empty.
    """

    class Verdict(models.TextChoices):
        """Whether the measurement lies within the predicted 80 % interval."""

        WITHIN = "within", "Within the band"
        OUTSIDE = "outside", "Outside the band"
        NO_PREDICTION = "no_prediction", "No prediction"

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="validations")
    probe = models.ForeignKey(ProbeRun, null=True, blank=True, on_delete=models.CASCADE, related_name="validations")
    metric = models.CharField(max_length=30)
    unit = models.CharField(max_length=10)
    predicted = models.FloatField(null=True, blank=True)
    low = models.FloatField(null=True, blank=True)
    high = models.FloatField(null=True, blank=True)
    measured = models.FloatField()
    error_ratio = models.FloatField(null=True, blank=True)
    verdict = models.CharField(max_length=14, choices=Verdict)
    evidence = models.CharField(max_length=14, blank=True)
    emulated = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "metric"]
        constraints = [
            models.UniqueConstraint(fields=["probe", "metric"], name="deployments_validation_once"),
            models.UniqueConstraint(
                fields=["deployment", "metric"],
                condition=Q(probe__isnull=True),
                name="deployments_validation_startup_once",
            ),
            models.CheckConstraint(
                condition=Q(verdict="no_prediction", predicted__isnull=True)
                | Q(verdict__in=["within", "outside"], predicted__isnull=False),
                name="deployments_validation_verdict_fits",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.metric}: {self.get_verdict_display()}"

    @classmethod
    def of(cls, metric: str, unit: str, measured: float, band: Interval | None, evidence: str, **whose: Any) -> Self:
        """``measured`` held against the predicted ``band`` (None: nothing was predicted), not stored yet; ``whose`` are
        the fields that say of what.
        """
        verdict = cls.Verdict.NO_PREDICTION
        if band is not None:
            verdict = cls.Verdict.WITHIN if band.low <= measured <= band.high else cls.Verdict.OUTSIDE
        return cls(
            metric=metric,
            unit=unit,
            predicted=band.value if band else None,
            low=band.low if band else None,
            high=band.high if band else None,
            measured=measured,
            error_ratio=band.value / measured - 1 if band and measured > 0 else None,
            verdict=verdict,
            evidence=evidence,
            **whose,
        )

    def save(self, *args: Any, **kwargs: Any) -> None:
        """A probe's validation is its deployment's."""
        if self.deployment_id is None and self.probe is not None:
            self.deployment_id = self.probe.deployment_id
        super().save(*args, **kwargs)


class Calibration(BaseModel):
    """Measured / predicted for one kind of deployment, fitted from real probes; the next plan uses the active ones."""

    engine = models.CharField(max_length=20)
    engine_version = models.CharField(max_length=40, blank=True)
    gpu = models.CharField(max_length=80)
    model = models.CharField(max_length=400)
    precision = models.CharField(max_length=20, blank=True)
    tp = models.PositiveSmallIntegerField(default=1)
    step_factor = models.FloatField()
    ttft_extra_ms = models.FloatField(default=0.0)
    samples = models.PositiveIntegerField()
    residual_log_sd = models.FloatField()
    active = models.BooleanField(default=True)
    source = models.TextField(help_text="The probe runs it was fitted from.")

    class Meta:
        ordering = ["-active", "-created_at"]
        constraints = [
            models.CheckConstraint(condition=Q(step_factor__gt=0), name="deployments_calibration_factor_positive"),
            models.CheckConstraint(condition=Q(samples__gte=1), name="deployments_calibration_has_samples"),
            models.CheckConstraint(
                condition=Q(residual_log_sd__gte=0), name="deployments_calibration_residual_not_negative"
            ),
            models.UniqueConstraint(
                fields=["engine", "engine_version", "gpu", "model", "precision", "tp"],
                condition=Q(active=True),
                name="deployments_calibration_one_active",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.engine} on {self.gpu}, {self.model}: × {self.step_factor:.3g}"

"""Traces, uploaded models, workloads and their objectives."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from controlplane.core.models import BaseModel
from controlplane.inventory.models import Site, default_engines, validate_engines
from planner.catalog.prefixes import prefix_share

PRECISIONS = ("as-config", "bf16", "fp16", "fp8", "int8", "int4", "fp4", "mxfp4")


def default_precisions() -> list[str]:
    """As the model's own configuration says."""
    return ["as-config"]


def validate_precisions(value: object) -> None:
    """A non-empty list of known precisions."""
    if not isinstance(value, list) or not value or any(item not in PRECISIONS for item in value):
        raise ValidationError(f"Must be a list of one or more of: {', '.join(PRECISIONS)}.")


def fixed_length() -> dict:
    """A length of 512 tokens."""
    return {"kind": "fixed", "value": 512}


class Trace(BaseModel):
    """Requests as they really came: arrival times (s from the first) and token counts, packed as NumPy arrays.

    ``catalogue_name`` set: shipped with the product; empty: uploaded.
    """

    typed_by_people = True
    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    catalogue_name = models.CharField(max_length=100, blank=True)
    source = models.CharField(max_length=300, blank=True)
    licence = models.CharField(max_length=100, blank=True)
    rows = models.PositiveIntegerField(default=0, editable=False)
    packed = models.BinaryField(editable=False)
    duration_s = models.FloatField(default=0.0, editable=False)
    mean_rate_per_s = models.FloatField(
        null=True, editable=False, help_text="Requests per second; null for a trace that spans no time."
    )
    mean_input_tokens = models.FloatField(default=0.0, editable=False)
    mean_output_tokens = models.FloatField(default=0.0, editable=False)
    prefix_hit = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text="Share of prompt tokens already cached, where the trace tells.",
    )

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(condition=Q(rows__gte=1), name="workloads_trace_has_rows")]

    def __str__(self) -> str:
        return self.name

    def pack(
        self,
        times_s: np.ndarray | None,
        input_tokens: np.ndarray,
        output_tokens: np.ndarray,
        *,
        blocks: list[np.ndarray] | None = None,
        block_tokens: int = 0,
    ) -> None:
        """Store equal-length arrays (times ascending, or None for lengths alone) and refresh the summary fields.

        ``blocks`` the ids of each prompt's prefix blocks, of ``block_tokens`` tokens: kept, and ``prefix_hit`` is what
        they tell.
        """
        times_s = np.zeros(0) if times_s is None else times_s
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            times_s=np.asarray(times_s, dtype=np.float64),
            input_tokens=np.asarray(input_tokens, dtype=np.int64),
            output_tokens=np.asarray(output_tokens, dtype=np.int64),
            **_packed_blocks(blocks, block_tokens),
        )
        if blocks is not None:
            self.prefix_hit = prefix_share(input_tokens.tolist(), (own.tolist() for own in blocks), block_tokens)
        self.packed = buffer.getvalue()
        self.rows = len(input_tokens)
        self.duration_s = float(times_s[-1] - times_s[0]) if len(times_s) else 0.0
        self.mean_rate_per_s = (self.rows - 1) / self.duration_s if self.duration_s > 0 else None
        self.mean_input_tokens = float(np.mean(input_tokens)) if len(input_tokens) else 0.0
        self.mean_output_tokens = float(np.mean(output_tokens)) if len(output_tokens) else 0.0

    @property
    def has_arrivals(self) -> bool:
        """Whether the requests have different arrival times, or are a set of lengths alone."""
        return self.mean_rate_per_s is not None

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrival times (s; empty for lengths alone), input tokens, output tokens."""
        with np.load(io.BytesIO(bytes(self.packed)), allow_pickle=False) as stored:
            return stored["times_s"], stored["input_tokens"], stored["output_tokens"]

    def prefix_blocks(self) -> tuple[list[np.ndarray], int] | None:
        """Ids of the prefix blocks of each prompt and the tokens of a block; None where the trace names none."""
        with np.load(io.BytesIO(bytes(self.packed)), allow_pickle=False) as stored:
            if "block_ids" not in stored:
                return None
            return np.split(stored["block_ids"], np.cumsum(stored["block_counts"])[:-1]), int(stored["block_tokens"])


def _packed_blocks(blocks: list[np.ndarray] | None, block_tokens: int) -> dict[str, Any]:
    if blocks is None:
        return {}
    return {
        "block_ids": np.concatenate(blocks),
        "block_counts": np.array([own.size for own in blocks], dtype=np.int64),
        "block_tokens": np.array(block_tokens, dtype=np.int64),
    }


class LlmModel(BaseModel):
    """A model uploaded as its config.json; models of the catalogue are referenced by id and need no row."""

    typed_by_people = True
    model_id = models.CharField(max_length=200, unique=True)
    config = models.JSONField()
    quant_config = models.JSONField(null=True, blank=True)
    architecture = models.CharField(max_length=100, blank=True, editable=False)
    parameters = models.BigIntegerField(null=True, blank=True, editable=False)
    weight_bytes = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="Of all weights in its files, by model.safetensors.index.json."
    )
    source = models.CharField(max_length=300, blank=True)
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["model_id"]
        verbose_name = "uploaded model"

    def __str__(self) -> str:
        return self.model_id


class Workload(BaseModel):
    """What has to be served: a model, a load at the peak to plan for, request lengths, objectives and limits.

    ``input_tokens``/``output_tokens`` are planner ``Lengths`` as JSON, or {"kind": "trace"} for those of ``trace``.
    """

    typed_by_people = True

    class Kind(models.TextChoices):
        """What it is for."""

        CODE = "code", "Code completion"
        CHAT = "chat", "Chat"
        AGENT = "agent", "Agents and tools"
        SUMMARISE = "summarise", "Summarisation"
        BATCH = "batch", "Batch"
        EMBED = "embed", "Embeddings"

    class LoadKind(models.TextChoices):
        """Who asks."""

        OPEN = "open", "Arrivals at a rate"
        CLOSED = "closed", "A fixed number of users"
        OFFLINE = "offline", "All at once"

    class Arrival(models.TextChoices):
        """How arrivals are spread."""

        POISSON = "poisson", "Poisson"
        CONSTANT = "constant", "Constant"
        GAMMA = "gamma", "Gamma"
        ONOFF = "onoff", "On and off"
        TRACE = "trace", "As in the trace"

    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.CHAT)
    model_ref = models.CharField("model", max_length=200, help_text="Catalogue id, or id of an uploaded model.")
    trace = models.ForeignKey(Trace, null=True, blank=True, on_delete=models.PROTECT, related_name="workloads")
    load_kind = models.CharField(max_length=8, choices=LoadKind, default=LoadKind.OPEN)
    rate_per_s = models.FloatField(default=0.0, validators=[MinValueValidator(0)])
    concurrency = models.PositiveIntegerField(default=0)
    requests = models.PositiveIntegerField(null=True, blank=True, help_text="Of an offline load.")
    arrival = models.CharField(max_length=10, choices=Arrival, default=Arrival.POISSON)
    arrival_cv = models.FloatField("arrival variation", default=1.0, validators=[MinValueValidator(0)])
    prefix_hit = models.FloatField(
        default=0.0,
        validators=[MinValueValidator(0), MaxValueValidator(0.999)],
        help_text="Share of prompt tokens already in the prefix cache.",
    )
    turns_low = models.PositiveIntegerField(
        "turns, at least", default=1, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    turns_high = models.PositiveIntegerField(
        "turns, at most",
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Above 1 requests come in sessions: each turn sends all that was said before.",
    )
    think_s = models.FloatField(
        "pause before the next turn",
        default=0.0,
        validators=[MinValueValidator(0), MaxValueValidator(100_000)],
        help_text="Mean, of a client of a session or a closed loop.",
    )
    shared_tokens = models.PositiveIntegerField(
        "shared beginning",
        default=0,
        validators=[MaxValueValidator(10_000_000)],
        help_text="Tokens that all sessions begin with: system prompt, tools.",
    )
    input_tokens = models.JSONField(default=fixed_length)
    output_tokens = models.JSONField(default=fixed_length)
    priority = models.IntegerField(default=100, help_text="Larger is more important.")
    tenant = models.CharField(max_length=60, blank=True)
    site = models.ForeignKey(Site, null=True, blank=True, on_delete=models.PROTECT, related_name="workloads")
    adapters = models.PositiveIntegerField("LoRA adapters", default=0)
    adapter_rank = models.PositiveIntegerField(default=16, validators=[MinValueValidator(1), MaxValueValidator(512)])
    revisions_per_month = models.FloatField(default=0.0, validators=[MinValueValidator(0)])
    allowed_engines = models.JSONField(default=default_engines, validators=[validate_engines])
    allowed_precisions = models.JSONField(default=default_precisions, validators=[validate_precisions])
    max_model_len = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    n_plus_1 = models.BooleanField("one replica to spare", default=False)
    spread = models.BooleanField("spread over failure domains", default=False)
    hours_per_month = models.FloatField(default=730.0, validators=[MinValueValidator(1), MaxValueValidator(744)])
    mean_load_share = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.001), MaxValueValidator(1)],
        help_text="Mean demand over the month / the peak planned for.",
    )
    hour_profile = models.JSONField(
        "hours of the week",
        default=list,
        blank=True,
        help_text="168 values from Monday 0:00 in any unit; the largest hour is the peak load.",
    )
    growth_per_month = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(-0.5), MaxValueValidator(1)],
        help_text="Share a month, compound; empty: as the scenario says.",
    )
    plan_for_month = models.PositiveSmallIntegerField(
        "months of growth to plan for", default=0, validators=[MaxValueValidator(120)]
    )
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["-priority", "name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["code", "chat", "agent", "summarise", "batch", "embed"]),
                name="workloads_workload_kind_known",
            ),
            models.CheckConstraint(
                condition=Q(load_kind="open", rate_per_s__gt=0)
                | Q(load_kind="closed", concurrency__gt=0)
                | Q(load_kind="offline", requests__gt=0),
                name="workloads_workload_load_complete",
            ),
            models.CheckConstraint(
                condition=Q(prefix_hit__gte=0) & Q(prefix_hit__lt=1), name="workloads_workload_prefix_hit_share"
            ),
            models.CheckConstraint(
                condition=Q(mean_load_share__gt=0) & Q(mean_load_share__lte=1),
                name="workloads_workload_mean_load_share",
            ),
            models.CheckConstraint(
                condition=Q(turns_low__gte=1) & Q(turns_high__gte=F("turns_low")), name="workloads_workload_turns_order"
            ),
            models.CheckConstraint(
                condition=Q(turns_high=1, shared_tokens=0) | Q(turns_high__gt=1, prefix_hit=0),
                name="workloads_workload_hit_or_sessions",
            ),
            models.CheckConstraint(
                condition=~Q(arrival="trace") | Q(trace__isnull=False), name="workloads_workload_arrival_has_trace"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_sessions(self) -> bool:
        """Whether requests follow each other in sessions."""
        return self.turns_high > 1

    def clean(self) -> None:
        """Load, lengths and trace belong together."""
        from controlplane.workloads.rules import check_workload

        check_workload(self)


class SloTarget(BaseModel):
    """One limit that a workload must keep."""

    class Metric(models.TextChoices):
        """What is limited."""

        TTFT = "ttft", "TTFT"
        TPOT = "tpot", "TPOT"
        ITL = "itl", "ITL"
        E2E = "e2e", "E2E"

    class Stat(models.TextChoices):
        """Which statistic of it."""

        MEAN = "mean", "mean"
        P50 = "p50", "p50"
        P90 = "p90", "p90"
        P95 = "p95", "p95"
        P99 = "p99", "p99"

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="slo_targets")
    metric = models.CharField(max_length=4, choices=Metric)
    stat = models.CharField(max_length=4, choices=Stat, default=Stat.P90)
    limit_ms = models.FloatField(validators=[MinValueValidator(0.01)])

    class Meta:
        ordering = ["workload", "metric", "stat"]
        verbose_name = "service-level objective"
        constraints = [
            models.UniqueConstraint(fields=["workload", "metric", "stat"], name="workloads_slotarget_once"),
            models.CheckConstraint(condition=Q(limit_ms__gt=0), name="workloads_slotarget_limit_positive"),
            models.CheckConstraint(
                condition=Q(metric__in=["ttft", "tpot", "itl", "e2e"]), name="workloads_slotarget_metric_known"
            ),
            models.CheckConstraint(
                condition=Q(stat__in=["mean", "p50", "p90", "p95", "p99"]), name="workloads_slotarget_stat_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_metric_display()} {self.stat} ≤ {self.limit_ms:g} ms"

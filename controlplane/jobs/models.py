"""Jobs and their log."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from runners.contracts import CONTROL_QUEUE


class Job(models.Model):
    """One long act. This row is the truth; a message on ``queue`` only says that there is something to do.

    ``attempt`` rises with each claim. ``heartbeat_at`` is refreshed while it runs; ``deadline_at`` ends it whatever
    happens. ``cancel_requested_at`` is stored before anybody is told. ``error`` says what happened, ``remedy`` what to
    do about it.
    """

    class State(models.TextChoices):
        """Where a job stands."""

        QUEUED = "queued", "Queued"
        RUNNING = "running", "Running"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    FINAL = (State.SUCCEEDED, State.FAILED, State.CANCELLED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=40)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    progress = models.FloatField(default=0.0)
    step = models.CharField(max_length=300, blank=True)
    payload = models.JSONField(default=dict, blank=True)
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True)
    remedy = models.TextField(blank=True)
    attempt = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField(default=3)
    queue = models.CharField(max_length=80, default=CONTROL_QUEUE)
    claimed_by = models.CharField(max_length=120, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    observed_sequence = models.IntegerField(default=-1)  # highest observation applied in this attempt
    log_lines = models.PositiveIntegerField(default=0, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="jobs"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["state", "heartbeat_at"], name="jobs_job_sweep"),
            models.Index(fields=["kind", "-created_at"], name="jobs_job_kind"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["queued", "running", "succeeded", "failed", "cancelled"]),
                name="jobs_job_state_known",
            ),
            models.CheckConstraint(condition=Q(progress__gte=0) & Q(progress__lte=1), name="jobs_job_progress_share"),
            models.CheckConstraint(
                condition=Q(state__in=["queued", "running"], finished_at__isnull=True)
                | Q(state__in=["succeeded", "failed", "cancelled"], finished_at__isnull=False),
                name="jobs_job_finished_when_final",
            ),
            models.CheckConstraint(condition=~Q(state="failed") | ~Q(error=""), name="jobs_job_failed_says_why"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id.hex[:8]}"

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in self.FINAL


class JobLog(models.Model):
    """One line of a job's log; only ever added to."""

    class Level(models.TextChoices):
        """How much it matters."""

        INFO = "info", "Info"
        WARNING = "warning", "Warning"
        ERROR = "error", "Error"
        OUTPUT = "output", "Output"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="log")
    sequence = models.PositiveIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    level = models.CharField(max_length=8, choices=Level, default=Level.INFO)
    text = models.TextField()

    class Meta:
        ordering = ["job", "sequence"]
        constraints = [models.UniqueConstraint(fields=["job", "sequence"], name="jobs_joblog_sequence_once")]

    def __str__(self) -> str:
        return self.text[:80]


class JobMessage(models.Model):
    """A worker's message that has been applied; the constraint makes a repeated one harmless."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="messages")
    attempt = models.PositiveIntegerField()
    sequence = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "sequence"], name="jobs_jobmessage_once"),
        ]

    def __str__(self) -> str:
        return f"{self.job} attempt {self.attempt} message {self.sequence}"

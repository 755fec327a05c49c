"""Jobs and their log."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.api.paths import path_to
from controlplane.api.serializers.base import RecordSerializer, record_meta, username
from controlplane.jobs.models import Job, JobLog

RELATED = {"plan": "plan", "deployment": "deployment", "probe": "proberun"}
"""Keys of a job's payload that name a record, and the routes of those."""


class JobSerializer(RecordSerializer):
    """One long act: how far it is, what came of it, and why it failed with what to do about it."""

    created_by = username()
    related = serializers.SerializerMethodField(help_text="Paths of the records that it is about.")

    Meta = record_meta(
        Job,
        "kind state progress step payload result error remedy related attempt max_attempts queue claimed_by "
        "heartbeat_at deadline_at cancel_requested_at created_by created_at started_at finished_at",
        brief="kind state progress step",
        detail_only="result",
        read_only="kind state progress step payload error remedy attempt max_attempts queue claimed_by heartbeat_at "
        "deadline_at cancel_requested_at started_at finished_at",
    )

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_related(self, job: Job) -> list[str]:
        """Paths."""
        payload: dict[str, Any] = job.payload if isinstance(job.payload, dict) else {}
        return [path_to(f"{route}-detail", payload[key]) for key, route in RELATED.items() if key in payload]


class JobLogSerializer(serializers.ModelSerializer):
    """One line."""

    class Meta:
        model = JobLog
        fields = ("sequence", "at", "level", "text")
        read_only_fields = fields

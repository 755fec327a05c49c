"""Jobs in the admin console."""

from __future__ import annotations

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from controlplane.core.admin import ReadOnlyAdmin, guarded
from controlplane.jobs import services
from controlplane.jobs.models import Job


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, to look at, cancel and repeat. The log is on the job's page of the dashboard."""

    list_display = (
        "id",
        "kind",
        "state",
        "progress",
        "step",
        "attempt",
        "queue",
        "claimed_by",
        "created_at",
        "finished_at",
    )
    list_filter = ("state", "kind", "queue")
    search_fields = ("id", "step", "error")
    date_hierarchy = "created_at"
    actions = ("cancel", "again")

    @admin.action(description="Cancel the chosen jobs")
    def cancel(self, request: HttpRequest, queryset: models.QuerySet[Job]) -> None:
        """Ask them to stop."""
        for job in queryset:
            guarded(services.request_cancel, request, self, job=job)

    @admin.action(description="Submit the chosen jobs again")
    def again(self, request: HttpRequest, queryset: models.QuerySet[Job]) -> None:
        """As new jobs."""
        for job in queryset:
            guarded(services.retry_job, request, self, job=job)

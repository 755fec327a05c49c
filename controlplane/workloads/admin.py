"""Workloads in the admin console."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from controlplane.core.admin import EditableInline, ReadOnlyAdmin, RecordAdmin
from controlplane.core.models import Role, User
from controlplane.workloads import services
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload


class SloInline(EditableInline):
    """Objectives of a workload."""

    model = SloTarget
    fields = ("metric", "stat", "limit_ms")


@admin.register(Workload)
class WorkloadAdmin(RecordAdmin):
    """Workloads."""

    minimum_role = Role.PLANNER
    list_display = ("name", "kind", "model_ref", "load", "priority", "site", "adapters")
    list_filter = ("kind", "load_kind", "site")
    search_fields = ("name", "model_ref", "tenant")
    list_select_related = ("site",)
    prepopulated_fields = {"slug": ("name",)}
    inlines = (SloInline,)

    def store(self, request: HttpRequest, obj: Any) -> None:
        """Save in the name of the user."""
        services.save_workload(actor=request.user if isinstance(request.user, User) else None, workload=obj)

    @admin.display(description="load")
    def load(self, obj: Workload) -> str:
        """In words."""
        return services.load_in_words(obj)


@admin.register(Trace)
class TraceAdmin(ReadOnlyAdmin):
    """Traces; they are uploaded on their own page."""

    empty_value_display = "unknown"
    list_display = (
        "name",
        "rows",
        "mean_rate_per_s",
        "mean_input_tokens",
        "mean_output_tokens",
        "prefix_hit",
        "licence",
    )
    search_fields = ("name", "source")


@admin.register(LlmModel)
class LlmModelAdmin(ReadOnlyAdmin):
    """Uploaded models; they are uploaded on their own page."""

    list_display = ("model_id", "architecture", "parameters", "source", "updated_at")
    search_fields = ("model_id", "architecture")

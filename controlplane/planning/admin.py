"""Planning in the admin console."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from controlplane.core.admin import ReadOnlyAdmin, ReadOnlyInline, RecordAdmin
from controlplane.core.models import Role, User
from controlplane.planning import services
from controlplane.planning.models import PlacementRow, Plan, Scenario, VerdictRow


@admin.register(Scenario)
class ScenarioAdmin(RecordAdmin):
    """Scenarios."""

    minimum_role = Role.PLANNER
    list_display = ("name", "mode", "time_limit_s", "seed", "updated_at")
    list_filter = ("mode",)
    search_fields = ("name",)
    prepopulated_fields = {"slug": ("name",)}
    filter_horizontal = ("sites", "workloads")

    def store(self, request: HttpRequest, obj: Any) -> None:
        """Save in the name of the user."""
        services.save_scenario(actor=request.user if isinstance(request.user, User) else None, scenario=obj)


class VerdictInline(ReadOnlyInline):
    """Verdicts of a plan."""

    model = VerdictRow
    fields = ("workload_name", "engine", "margin", "too_close", "sentence")
    readonly_fields = fields


class PlacementInline(ReadOnlyInline):
    """Placements of a plan."""

    model = PlacementRow
    fields = ("workload_name", "candidate_id", "replica", "node_name", "gpu_indexes")
    readonly_fields = fields


@admin.register(Plan)
class PlanAdmin(ReadOnlyAdmin):
    """Plans are immutable."""

    list_display = ("__str__", "state", "status", "usd_per_hour", "created_by", "created_at", "approved_by")
    list_filter = ("state", "scenario")
    list_select_related = ("scenario", "created_by", "approved_by")
    inlines = (VerdictInline, PlacementInline)

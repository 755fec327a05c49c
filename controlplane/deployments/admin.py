"""Deployments in the admin console."""

from __future__ import annotations

from django.contrib import admin

from controlplane.core.admin import ReadOnlyAdmin, ReadOnlyInline
from controlplane.deployments.models import Calibration, Deployment, Endpoint, ProbeRun, Validation


class ProbeInline(ReadOnlyInline):
    """Probes of a deployment."""

    model = ProbeRun
    fields = ("state", "load", "emulated", "started_at", "finished_at")
    readonly_fields = fields


@admin.register(Deployment)
class DeploymentAdmin(ReadOnlyAdmin):
    """Deployments; they are started and stopped on their own page."""

    list_display = ("name", "engine", "engine_version", "node", "state", "emulated", "base_url", "created_at")
    list_filter = ("state", "engine", "emulated", "node__site")
    search_fields = ("name", "model_ref", "node__name")
    list_select_related = ("node",)
    inlines = (ProbeInline,)


@admin.register(Endpoint)
class EndpointAdmin(ReadOnlyAdmin):
    """Where deployments answer."""

    list_display = ("url", "served_name", "deployment")
    list_select_related = ("deployment",)


class ValidationInline(ReadOnlyInline):
    """Validations of a probe."""

    model = Validation
    fields = (
        "metric",
        "unit",
        "predicted",
        "low",
        "high",
        "measured",
        "error_ratio",
        "verdict",
        "evidence",
        "emulated",
    )
    readonly_fields = fields


@admin.register(ProbeRun)
class ProbeRunAdmin(ReadOnlyAdmin):
    """Probes."""

    list_display = ("deployment", "state", "emulated", "started_at", "finished_at")
    list_filter = ("state", "emulated")
    list_select_related = ("deployment",)
    inlines = (ValidationInline,)


@admin.register(Calibration)
class CalibrationAdmin(ReadOnlyAdmin):
    """Calibrations; they are fitted from probes, and switched on their own page."""

    list_display = ("engine", "engine_version", "gpu", "model", "precision", "tp", "step_factor", "samples", "active")
    list_filter = ("active", "engine", "gpu")
    search_fields = ("model", "gpu")

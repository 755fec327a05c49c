"""Deployments: list, detail with start-up phases, log and probes; launch, probe, stop. Validation ledger."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from controlplane.dashboard import figures, phases, selectors
from controlplane.dashboard.forms import ProbeForm
from controlplane.dashboard.pages import act, page, paginate, show
from controlplane.dashboard.views.jobs import progress_context
from controlplane.deployments import services
from controlplane.deployments.models import Deployment, Validation
from controlplane.workloads.models import Workload
from runners.contracts import ProbeLoad

LOG_LINES = 300


@page()
def deployments(request: HttpRequest) -> HttpResponse:
    """All deployments, filtered by the URL."""
    rows = selectors.deployment_list(request.GET)
    listed = paginate(request, rows)
    context = {
        "page": listed,
        "states": Deployment.State.choices,
        "workloads": Workload.objects.order_by("name").values_list("slug", "name"),
        "emulated": any(row.emulated for row in listed),
    }
    return show(request, "dashboard/deployments.html", context)


@page()
def deployment(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One deployment."""
    rows = selectors.deployment_list({}).select_related("job")
    record = get_object_or_404(rows, pk=pk)
    context: dict[str, Any] = {
        "deployment": record,
        "phases": phases.phases_of(record),
        "probes": list(selectors.probes_of(record)[:20]),
        "facts": phases.startup_facts(record),
        "probe_form": ProbeForm(initial=services.suggested_load(record)),
        "lines": list(record.job.log.order_by("-sequence")[:LOG_LINES])[::-1] if record.job else [],
        "emulated": record.emulated,
    }
    busy = next((probe.job for probe in context["probes"] if probe.job and not probe.job.is_final), None)
    if busy is None and record.job and not record.job.is_final:
        busy = record.job
    if busy is not None:
        context |= progress_context(request, busy)
    return show(request, "dashboard/deployment.html", context)


@act
def launch(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Start the engine of a deployment."""
    record = get_object_or_404(Deployment, pk=pk)
    services.launch_deployment(actor=request.user, deployment=record)  # type: ignore[arg-type]
    return redirect("dashboard:deployment", record.pk)


@act
def stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stop the engine of a deployment."""
    record = get_object_or_404(Deployment, pk=pk)
    services.stop_deployment(actor=request.user, deployment=record)  # type: ignore[arg-type]
    return redirect("dashboard:deployment", record.pk)


@act
def probe(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Measure a running deployment at the load stated."""
    record = get_object_or_404(Deployment, pk=pk)
    form = ProbeForm(request.POST)
    if not form.is_valid():
        raise ValidationError([f"{form.fields[name].label or name}: {text}" for name, errors in form.errors.items() for text in errors])
    services.probe_deployment(actor=request.user, deployment=record, load=ProbeLoad(**form.cleaned_data))  # type: ignore[arg-type]
    messages.info(request, "The probe is queued.")
    return redirect("dashboard:deployment", record.pk)


@page()
def validation(request: HttpRequest) -> HttpResponse:
    """Predicted against measured: the ledger, the scatter and the calibrations."""
    rows = selectors.validation_list(request.GET)
    listed = paginate(request, rows)
    context = {
        "page": listed,
        "accuracy": selectors.accuracy(),
        "charts": _scatters(rows),
        "calibrations": selectors.calibration_list(),
        "metrics": list(Validation.objects.order_by("metric").values_list("metric", flat=True).distinct()),
        "verdicts": Validation.Verdict.choices,
        "emulated": any(row.emulated for row in listed),
    }
    return show(request, "dashboard/validation.html", context)


def _scatters(rows: Any) -> list[Any]:
    by_metric: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows[:2000]:
        deployment = row.probe.deployment
        by_metric.setdefault((row.metric, row.unit), []).append(
            {
                "label": f"{deployment.name}, {deployment.node.node_type.gpu_model.name}",
                "engine": deployment.planned_engine or deployment.engine,
                "predicted": row.predicted, "low": row.low, "high": row.high, "measured": row.measured,
                "emulated": row.emulated,
            }
        )  # fmt: skip
    return [
        figures.predicted_measured(items, metric=metric.replace("_", " ").upper() if len(metric) < 6 else metric.replace("_", " "), unit=unit)
        for (metric, unit), items in sorted(by_metric.items())
        if any(item["predicted"] for item in items)
    ]

"""Deployments: list, detail with start-up phases, log and probes; launch, probe, stop. Validation ledger."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse

from controlplane.core.access import require
from controlplane.core.models import Role
from controlplane.dashboard import figures, fmt, phases, selectors, undo
from controlplane.dashboard.forms import DeploymentForm
from controlplane.dashboard.pages import act, actor, back, may_do, page, paginate, sentence, show
from controlplane.dashboard.probeform import ProbeForm
from controlplane.dashboard.views.jobs import progress_context
from controlplane.deployments import calibrating, probing, services
from controlplane.deployments.models import Calibration, Deployment, Validation
from controlplane.inventory.models import Node
from controlplane.workloads.models import Workload
from controlplane.workloads.services import model_choices
from planner.errors import PlannerError

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
        "plans": [(str(row.pk), str(row)) for row in selectors.plans_deployed()],
        "emulated": any(row.emulated for row in listed),
    }
    context["may"] = may_do(request, anywhere=True)
    return show(request, "dashboard/deployments.html", context)


@page()
def deployment(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One deployment."""
    return _deployment_page(request, pk)


def _deployment_page(request: HttpRequest, pk: uuid.UUID, refused: ProbeForm | None = None) -> HttpResponse:
    """The page of a deployment; with a ``refused`` form what was typed stands in it, and the status is 422."""
    rows = selectors.deployment_list({}).select_related("job")
    record = get_object_or_404(rows, pk=pk)
    checks = list(record.validations.filter(probe=None).order_by("metric"))
    context: dict[str, Any] = {
        "deployment": record,
        "phases": phases.phases_of(record),
        "probes": list(selectors.probes_of(record)[:20]),
        "facts": phases.memory_facts(record, checks),
        "startup_checks": checks,
        "probe_form": refused or (ProbeForm(initial=_planned_load(record)) if record.state == "ready" else None),
        "lines": list(record.job.log.order_by("-sequence")[:LOG_LINES])[::-1] if record.job else [],
        "emulated": record.emulated,
    }
    ledger = (record.prediction or {}).get("memory")
    if ledger:
        context["memory_parts"] = figures.memory_segments(ledger)
        context["memory_segments"] = [(key, size, hover) for key, _, size, hover in context["memory_parts"]]
    busy = next((probe.job for probe in context["probes"] if probe.job and not probe.job.is_final), None)
    if busy is None and record.job and not record.job.is_final:
        busy = record.job
    if busy is not None:
        context |= progress_context(request, busy)
    if refused is not None:  # a reload or sign-in from here goes to the page, not to the POST
        context["here"] = reverse("dashboard:deployment", args=[record.pk])
    return show(request, "dashboard/deployment.html", context, 422 if refused else 200, site=record.node.site)


@page(Role.OPERATOR, anywhere=True)
def create(request: HttpRequest) -> HttpResponse:
    """A deployment by hand: one engine on GPUs of one node, outside any plan."""
    form = DeploymentForm(request.POST or None, initial=_asked_for(request))
    if request.method == "POST" and form.is_valid():
        try:
            record = services.create_deployment(actor=actor(request), **form.arguments())
        except (ValidationError, PlannerError, PermissionDenied) as error:
            form.add_error(None, sentence(error))
        else:
            return redirect("dashboard:deployment", record.pk)
    context = {"form": form, "models": model_choices()}
    return show(request, "dashboard/deployment_new.html", context, status=422 if form.errors else 200)


def _asked_for(request: HttpRequest) -> dict[str, Any]:
    """Form values named in the URL; a GPU picks the first active node that has it, a workload goes by its name."""
    wanted: dict[str, Any] = {key: value for key, value in request.GET.items() if key in DeploymentForm.base_fields}
    gpu, workload = request.GET.get("gpu", ""), wanted.pop("workload", "")
    if gpu:
        wanted["node"] = Node.objects.filter(state=Node.State.ACTIVE, node_type__gpu_model__name=gpu).first()
    if workload:
        wanted["workload"] = Workload.objects.filter(name=workload).first()
    return wanted


@act
def launch(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Start the engine of a deployment."""
    record = get_object_or_404(Deployment, pk=pk)
    emulated = request.POST.get("emulated") == "1"
    services.launch_deployment(actor=actor(request), deployment=record, emulated=emulated)
    return redirect("dashboard:deployment", record.pk)


@act
def stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stop the engine of a deployment."""
    record = get_object_or_404(Deployment, pk=pk)
    services.stop_deployment(actor=actor(request), deployment=record)
    return redirect("dashboard:deployment", record.pk)


@act
def probe(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Measure a running deployment at the load stated."""
    record = get_object_or_404(Deployment, pk=pk)
    require(actor(request), Role.OPERATOR, record.node.site)  # before faults of a form that they are not shown
    form = ProbeForm(request.POST)
    if not form.is_valid():
        return _deployment_page(request, pk, refused=form)
    try:
        probing.probe_deployment(actor=actor(request), deployment=record, load=form.load())
    except ValidationError as error:
        form.add_error(None, sentence(error))
        return _deployment_page(request, pk, refused=form)
    messages.info(request, "The probe is queued.")
    return redirect("dashboard:deployment", record.pk)


@act
def set_calibration(request: HttpRequest, pk: int) -> HttpResponse:
    """Use a calibration in the next plan, or set it aside."""
    record = get_object_or_404(Calibration, pk=pk)
    active = request.POST.get("active") == "1"
    before = calibrating.actives_like(record)
    calibrating.set_active(actor=actor(request), calibration=record, active=active)
    text = "The next plan uses this calibration." if active else "The next plan leaves this calibration out."
    undo.offer(request, text, "calibration", [(record.pk, False), *((pk, True) for pk in before)])
    return redirect(back(request))


@page()
def validation(request: HttpRequest) -> HttpResponse:
    """Predicted against measured: the ledger, the scatter and the calibrations."""
    rows = selectors.validation_list(request.GET)
    listed = paginate(request, rows)
    plan = selectors.plan_shown()
    context = {
        "page": listed,
        "accuracy": selectors.accuracy(),
        "charts": _scatters(rows),
        "calibrations": selectors.calibration_list(),
        "plan": plan,
        "unsettled": [row for row in selectors.verdicts_of(plan).values() if row.probe_query],
        "metrics": list(Validation.objects.order_by("metric").values_list("metric", flat=True).distinct()),
        "verdicts": Validation.Verdict.choices,
        "emulated": any(row.emulated for row in listed),
    }
    return show(request, "dashboard/validation.html", context)


def _planned_load(record: Deployment) -> dict[str, Any]:
    load = dataclasses.asdict(probing.planned_load(record))
    return {**load, "rate_per_s": float(f"{load['rate_per_s']:.3g}")}


CHARTS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "output_tok_per_s": "Output",
    "e2e_ms": "E2E",
    "weights_gib": "Memory",
    "kv_gib": "Memory",
}
"""Metrics that are drawn, and the chart on which each stands."""


def _scatters(rows: Any) -> list[Any]:
    by_chart: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows[:2000]:
        deployment = row.deployment
        gpu = deployment.node.node_type.gpu_model.name
        if row.metric not in CHARTS:
            continue
        by_chart.setdefault((CHARTS[row.metric], row.unit), []).append(
            {
                "label": f"{fmt.METRIC_WORDS[row.metric]} of {deployment.name}, {gpu}",
                "engine": deployment.planned_engine or deployment.engine,
                "predicted": row.predicted, "low": row.low, "high": row.high, "measured": row.measured,
                "emulated": row.emulated,
            }
        )  # fmt: skip
    return [
        figures.predicted_measured(items, metric=word, unit=unit)
        for (word, unit), items in sorted(by_chart.items(), key=lambda chart: list(CHARTS.values()).index(chart[0][0]))
        if any(item["predicted"] for item in items)
    ]

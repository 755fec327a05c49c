"""Workloads and models: list, detail, describe, draw while typing, model card, upload."""

from __future__ import annotations

from typing import Any

import numpy as np
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from controlplane.core.access import require
from controlplane.core.models import Role
from controlplane.core.services import StaleVersionError
from controlplane.core.undo import keep
from controlplane.dashboard import figures_load, fmt, memoryview, palette, selectors, undo
from controlplane.dashboard.chart import Chart
from controlplane.dashboard.forms import ModelUploadForm, SloFormSet, WorkloadForm
from controlplane.dashboard.memoryform import MemoryForm
from controlplane.dashboard.pages import act, actor, page, paginate, show
from controlplane.inventory.models import GpuModel
from controlplane.workloads import services
from controlplane.workloads.models import LlmModel, SloTarget, Workload
from planner.errors import PlannerError
from planner.serving.types import Lengths

DRAWN = 2000
"""Requests drawn to show a distribution."""
CHANGED_MEANWHILE = (
    "Somebody changed this workload since you opened it, so nothing is stored yet. What you typed stands below. Open "
    "the workload in another tab to see the other change; save again to put yours in its place."
)


@page()
def workloads(request: HttpRequest) -> HttpResponse:
    """All workloads with what the plan in force gives them."""
    plan = selectors.plan_shown()
    fmt.use_currency(selectors.currency_of(plan))
    context = {
        "page": paginate(request, selectors.workload_list(request.GET)),
        "planned": selectors.verdicts_of(plan),
        "plan": plan,
        "kinds": Workload.Kind.choices,
        "sites": selectors.sites(),
    }
    return show(request, "dashboard/workloads.html", context)


@page()
def workload(request: HttpRequest, slug: str) -> HttpResponse:
    """One workload: what is asked, how it arrives, what it needs, where it runs."""
    record = get_object_or_404(selectors.workload_list({}), slug=slug)
    plan = selectors.plan_shown()
    fmt.use_currency(selectors.currency_of(plan))
    row = selectors.verdicts_of(plan).get(record.name)
    try:
        facts: dict[str, Any] = services.describe_workload(record)
    except PlannerError as error:
        facts = {"model_error": str(error), "mean_share": record.mean_load_share}
    if facts.get("model"):
        facts["model"]["parameters_b"] = facts["model"]["parameters"] / 1e9
    context = {
        "workload": record,
        "facts": facts,
        "plan": plan,
        "row": row,
        "charts": demand_charts(record),
        "deployments": selectors.deployment_list({"workload": slug})[:20],
    }
    return show(request, "dashboard/workload.html", context, site=record.site)


def demand_charts(record: Workload) -> list[Chart]:
    """Input and output lengths and arrivals of a workload, as far as they can be drawn."""
    charts = []
    for side, colour in (("input", palette.CATEGORIES[0]), ("output", palette.CATEGORIES[1])):
        try:
            lengths = services.lengths_of(record, side)
        except PlannerError:
            continue
        charts.append(
            figures_load.length_distribution(
                drawn(lengths), ident=f"{side}-lengths", title=f"{side.capitalize()} length", colour=colour
            )
        )
    if record.trace is not None:
        times = record.trace.arrays()[0]
        if len(times):
            charts.append(figures_load.arrivals(times.tolist(), title=f"Arrivals of {record.trace.name}"))
    if record.hour_profile:
        charts.append(figures_load.week(record.hour_profile, record.rate_per_s if record.load_kind == "open" else None))
    return charts


def drawn(lengths: Lengths) -> list[int]:
    """Samples of ``lengths`` with a fixed seed; stored samples as they are."""
    rng = np.random.default_rng(0)
    if lengths.kind == "samples":
        return list(lengths.samples)
    if lengths.kind == "normal":
        return np.maximum(1, np.rint(rng.normal(lengths.mean, lengths.sd, DRAWN))).astype(int).tolist()
    if lengths.kind == "uniform":
        return rng.integers(lengths.low, max(lengths.low, lengths.high) + 1, DRAWN).tolist()
    return [lengths.value] * DRAWN


@page(Role.PLANNER, anywhere=True)
def edit(request: HttpRequest, slug: str | None = None) -> HttpResponse:
    """Describe a new workload or change one."""
    record = get_object_or_404(Workload, slug=slug) if slug else Workload()
    if slug:
        require(actor(request), Role.PLANNER, record.site)
    version = _version_read(request, record) if slug else None
    form = WorkloadForm(request.POST or None, instance=record)
    slo = SloFormSet(request.POST or None, instance=record, prefix="slo")
    if request.method == "POST" and form.is_valid() and slo.is_valid():
        targets = [
            SloTarget(metric=row["metric"], stat=row["stat"], limit_ms=row["limit_ms"])
            for row in slo.cleaned_data
            if row and row.get("limit_ms") and not row.get("DELETE")
        ]
        try:
            saved = services.save_workload(
                actor=actor(request),
                workload=form.instance,
                slo=targets,
                expected_version=version,
            )
        except ValidationError as error:
            form.add_error(None, error)
        except PermissionDenied as error:
            form.add_error("site", str(error))
        except StaleVersionError as error:
            version = error.current
            form.add_error(None, CHANGED_MEANWHILE)
        else:
            messages.info(request, f"{saved.name} is stored.")
            return redirect("dashboard:workload", saved.slug)
    context = {
        "form": form,
        "slo": slo,
        "workload": record if slug else None,
        "version": version,
        "models": services.model_choices(),
        "charts": _drawn_charts(form) if request.method == "POST" else demand_charts(record),
    }
    return show(request, "dashboard/workload_edit.html", context, status=422 if form.errors else 200)


def _version_read(request: HttpRequest, record: Workload) -> int:
    """The version that the form was filled from; a form without it changes what is there now."""
    text = request.POST.get("version", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else record.version


@page(Role.PLANNER, anywhere=True)
def draw(request: HttpRequest) -> HttpResponse:
    """The lengths drawn from a half-filled form, while typing."""
    return show(request, "dashboard/_drawn.html", {"charts": _drawn_charts(WorkloadForm(request.POST))})


def _drawn_charts(form: WorkloadForm) -> list[Chart]:
    form.is_valid()
    record = form.instance
    record.trace = form.cleaned_data.get("trace") if hasattr(form, "cleaned_data") else None
    return demand_charts(record)


@act
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    """Delete a workload."""
    record = get_object_or_404(Workload, slug=slug)
    kept = keep(record)
    services.delete_workload(actor=actor(request), workload=record)
    undo.offer(request, f"{record.name} is deleted.", "workload", kept)
    return redirect("dashboard:workloads")


@page()
def model(request: HttpRequest, model_id: str) -> HttpResponse:
    """A model card: facts, which engine runs it on which of our GPUs, its memory."""
    try:
        spec = services.model_spec(model_id)
    except PlannerError as error:
        return show(request, "dashboard/model.html", {"model_id": model_id, "error": str(error)}, status=404)
    gpus = list(GpuModel.objects.filter(node_types__nodes__isnull=False).distinct().values_list("name", flat=True))
    uploaded = LlmModel.objects.filter(model_id=model_id).first()
    context = {
        "model_id": model_id,
        "spec": spec,
        "params_b": spec.total_params / 1e9,
        "groups": memoryview.layer_groups(spec),
        "engines": memoryview.engines_for(spec, gpus),
        "weights": services.weight_check(uploaded) if uploaded else None,
        "workloads": Workload.objects.filter(model_ref=model_id),
    }
    return show(request, "dashboard/model.html", context)


@page(Role.PLANNER)
def upload_model(request: HttpRequest) -> HttpResponse:
    """Add a model by its config.json."""
    form = ModelUploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            row = services.upload_model(
                actor=actor(request), model_id=data["model_id"], config=data["config"].read(),
                quant_config=data["quant_config"].read() if data["quant_config"] else None,
                weight_index=data["weight_index"].read() if data["weight_index"] else None, source=data["source"],
            )  # fmt: skip
        except ValidationError as error:
            form.add_error(None, error)
        else:
            return redirect("dashboard:model", row.model_id)
    return show(request, "dashboard/model_upload.html", {"form": form}, status=422 if form.errors else 200)


@page()
def memory(request: HttpRequest) -> HttpResponse:
    """Any model, GPU and settings: the stacked bar, the KV figures, the flags."""
    data = {key: request.GET.get(key, "") for key in MemoryForm.base_fields}
    defaults = MemoryForm()
    filled = {
        name: data[name] or defaults.get_initial_for_field(field, name) for name, field in defaults.fields.items()
    }
    filled = {name: value if value is not None else "" for name, value in filled.items()}
    filled = {
        "engine": "vllm",
        "precision": "as-config",
        "kv_cache_dtype": "auto",
        **{k: v for k, v in filled.items() if v},
    }
    form = MemoryForm(filled)
    context: dict[str, Any] = {"form": form, "models": services.model_choices()}
    if form.is_valid():
        try:
            spec = services.model_spec(form.cleaned_data["model"])
            context["answer"] = memoryview.answer(spec, form)
        except PlannerError as error:
            context["error"] = error
            form.blame(error)
    template = "dashboard/_memory_answer.html" if request.headers.get("HX-Request") else "dashboard/memory.html"
    return show(request, template, context)

"""Plans: list, new scenario, live progress, result, compare, approve, exports."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse

from controlplane.core.models import Role
from controlplane.dashboard import (
    arithmetic,
    curves,
    figures,
    figures_verdict,
    fmt,
    fragmentview,
    mixview,
    plancompare,
    planrow,
    planview,
    selectors,
    workings,
)
from controlplane.dashboard.forms import ScenarioForm
from controlplane.dashboard.pages import act, actor, back, page, paginate, sentence, show
from controlplane.dashboard.views.jobs import progress_context
from controlplane.deployments import settling
from controlplane.jobs.models import Job
from controlplane.planning import curves as drawing
from controlplane.planning import exporting, services
from controlplane.planning.models import Plan, Scenario
from planner.errors import PlannerError

CANDIDATES = 14
"""Candidates that a workload's page lists unless all are asked for."""
EXPORT_TARGETS = (
    ("owners", "As the nodes' owners start it"),
    ("commands", "Shell commands"),
    ("compose", "Docker Compose"),
    ("kubernetes", "Kubernetes"),
    ("slurm", "Slurm"),
    ("systemd", "systemd units"),
    ("router", "Router (LiteLLM)"),
)
"""Targets of ``planner.export`` and what the menu calls them."""


@page()
def plans(request: HttpRequest) -> HttpResponse:
    """All plans, newest first, and the scenarios they answer."""
    context = {
        "page": paginate(request, selectors.plan_list(request.GET), 30),
        "scenarios": selectors.scenario_list(),
        "states": Plan.State.choices,
    }
    return show(request, "dashboard/plans.html", context)


@page(Role.PLANNER)
def scenario(request: HttpRequest, slug: str | None = None) -> HttpResponse:
    """Describe a scenario and compute a plan for it."""
    record = get_object_or_404(Scenario, slug=slug) if slug else Scenario()
    form = ScenarioForm(request.POST or None, instance=record)
    if request.method == "POST" and form.is_valid():
        try:
            saved = services.save_scenario(
                actor=actor(request),
                scenario=form.instance,
                sites=list(form.cleaned_data["sites"]),
                workloads=list(form.cleaned_data["workloads"]),
            )
            plan = services.compute_plan(actor=actor(request), scenario=saved)
        except ValidationError as error:
            form.add_error(None, sentence(error))
        else:
            return redirect("dashboard:plan", plan.pk)
    context = {"form": form, "scenario": record if slug else None}
    return show(request, "dashboard/scenario.html", context, status=422 if form.errors else 200)


@act
def compute(request: HttpRequest, slug: str) -> HttpResponse:
    """Compute one more plan of a scenario."""
    record = get_object_or_404(Scenario, slug=slug)
    plan = services.compute_plan(actor=actor(request), scenario=record)
    return redirect("dashboard:plan", plan.pk)


def _plan(pk: int) -> Plan:
    related = ("scenario", "job", "approved_by", "created_by", "base__scenario")
    found = get_object_or_404(Plan.objects.select_related(*related).defer("base__request", "base__result"), pk=pk)
    fmt.use_currency((found.request or {}).get("currency"))
    return found


@page()
def plan(request: HttpRequest, pk: int) -> HttpResponse:
    """A plan: progress while it is computed, then the answer."""
    record = _plan(pk)
    context: dict[str, Any] = {"plan": record, "others": _others(record), "variants": selectors.variants_of(record)}
    if record.job is not None and record.result is None:
        context |= progress_context(request, record.job)
    if record.result is not None and record.request is not None:
        context |= _result_context(record)
        context["deployments"] = selectors.deployment_list({}).filter(plan=record)
    return show(request, "dashboard/plan.html", context)


def _others(record: Plan) -> models.QuerySet[Plan]:
    rows = Plan.objects.filter(result__isnull=False).exclude(pk=record.pk).select_related("scenario")
    return rows.defer("request", "result")[:20]


def _result_context(record: Plan) -> dict[str, Any]:
    request, result = record.request or {}, exporting.answer_billed(record)
    rows = planview.workload_rows(request, result)
    url = reverse("dashboard:plan_node", args=[record.pk, "x"]).removesuffix("x/")
    engine_lines = mixview.engine_lines(result)
    return {
        "rows": rows,
        "engine_lines": engine_lines,
        "most_usd": mixview.most_usd(engine_lines),
        "result": result,
        "map": planview.placement_map(request, result, url),
        "usd_per_mtok": exporting.output_price(result),
        "month": result.get("usd_per_month"),
        "close": sum(bool(row.verdict.get("too_close")) for row in rows),
        "placed": sum(row.chosen is not None and not row.unplaced for row in rows),
        "gpus": sum(len(p["gpu_indexes"]) for p in result.get("placements", ())),
        "unplaced_total": sum(entry["replicas"] for entry in result.get("unplaced", ())),
        "cost_chart": planview.cost_chart(rows),
        "memory_chart": planview.memory_chart(rows),
        "split_chart": figures.cost_split(planview.monthly_parts(result), ident="plan-cost"),
        "fragmentation": fragmentview.fragmentation(result),
        "targets": EXPORT_TARGETS,
        "sites": len({node["site"] for node in request.get("nodes", ())}),
    }


def _workload_row(record: Plan, name: str) -> tuple[planrow.WorkloadRow, list[planrow.WorkloadRow]]:
    rows = planview.workload_rows(record.request or {}, exporting.answer_billed(record))
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise Http404(f"{record} has no workload {name}.")
    return row, rows


@page()
def plan_workload(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """One workload of a plan: verdict, flips, curves, all candidates, Pareto, memory, cost, what was left out."""
    record = _plan(pk)
    row, rows = _workload_row(record, name)
    everything = request.GET.get("candidates") == "all"
    ranked = planview.ranked(row, None if everything else CANDIDATES)
    pair = [(title, c) for title, c in (("Chosen", row.chosen), ("Runner-up", row.other)) if c]
    bars = [bar for title, c in pair for bar in figures.ledgers(title, c)]
    charts = planview.flip_charts(row)
    candidate_page = reverse("dashboard:plan_candidate", args=[pk])
    flips = sum(point.get("value") is not None for point in row.verdict.get("flip_points") or () if point.get("curve"))
    context = {
        "plan": record,
        "row": row,
        "rows": rows,
        "ranked": ranked,
        "engine_states": planview.engine_states(row),
        "feasible": sum(c.get("status") == "ok" for c in row.candidates),
        "usd_axis": planview.usd_axis(ranked),
        "left_out": planview.left_out(row),
        "side_by_side": plancompare.side_by_side(row),
        "card": mixview.mix_card(row),
        "flip_charts": charts[:flips],
        "steady_charts": charts[flips:],
        "tornado_chart": planview.tornado_chart(row),
        "pareto": figures.pareto(row.candidates, row.verdict.get("chosen"), f"{candidate_page}?id="),
        "memory_chart": figures.memory_stack(bars, ident=f"memory-{name}") if bars else None,
        "split_chart": figures.cost_split(row.bill_parts, ident=f"cost-{name}") if row.bill_parts else None,
        "placements": [p for p in (record.result or {}).get("placements", ()) if p["workload"] == name],
        **_curves(request, record, row, pair),
    }
    return show(request, "dashboard/plan_workload.html", context)


def _curves(
    request: HttpRequest, record: Plan, row: planrow.WorkloadRow, wanted: list[tuple[str, planrow.Json]]
) -> dict[str, Any]:
    """Charts of the candidates whose curves are kept; the job that draws, when one does; why one has none."""
    kept = {item.candidate_id: item for item in record.curves.filter(workload_name=row.name).select_related("job")}
    drawn = []
    for title, candidate in wanted:
        item = kept.get(candidate["id"])
        if item is not None and item.points:
            label = f"{title}: {fmt.engine_label(planrow.engine_of(candidate))}"
            drawn.append(curves.Curve(label, candidate, item.points))
    same_axis = [curve for curve in drawn if curve.points["axis"] == drawn[0].points["axis"]]
    first = kept.get(wanted[0][1]["id"]) if wanted else None
    found: dict[str, Any] = {
        "curve_charts": curves.charts(same_axis, row.workload) if same_axis else [],
        "timelines": curves.timelines(drawn[0], drawn[0].label if len(drawn) > 1 else "") if drawn else [],
        "timeline_reason": curves.no_timeline(drawn[0]) if drawn else "",
        "curve_reason": first.reason if first is not None and not first.points else "",
        "curve_candidate": wanted[0][1] if wanted else None,
    }
    job = first.job if first is not None else drawing.failed_job(record, wanted[0][1]["id"]) if wanted else None
    if job is not None and job.state != Job.State.SUCCEEDED:
        found |= progress_context(request, job)
    return found


def _drawable(candidate: planrow.Json) -> bool:
    """Whether its engine would start, so that its load can be drawn."""
    fits = bool((candidate.get("memory") or {}).get("fits"))
    return bool(candidate.get("settings")) and fits and candidate.get("status") in ("ok", "infeasible")


@page()
def plan_candidate(request: HttpRequest, pk: int) -> HttpResponse:
    """One candidate of a plan, ``?id=``: how its figures came about, its load curves, memory and cost."""
    record = _plan(pk)
    key = request.GET.get("id", "")
    found = next((c for c in (record.result or {}).get("candidates", ()) if c["id"] == key), None)
    if found is None:
        raise Http404(f"{record} has no candidate {key[:120]}.")
    row, _ = _workload_row(record, found["workload"])
    cost = found.get("cost") or {}
    bars = figures.ledgers("" if found.get("disagg") else fmt.engine_label(planrow.engine_of(found)), found)
    context = {
        "plan": record,
        "row": row,
        "candidate": found,
        "engine": planrow.engine_of(found),
        "usd": planrow.usd_per_mtok(found),
        "parallelism": fmt.shape(found) if found.get("settings") else found["id"].rsplit("/", 2)[-2],
        "drawable": _drawable(found),
        "workings": arithmetic.of_candidate(record.request or {}, found),
        "memory_chart": figures.memory_stack(bars, ident="memory") if bars else None,
        "split_chart": figures.cost_split(cost.get("parts", ()), ident="cost") if cost else None,
        **_curves(request, record, row, [("This", found)]),
    }
    return show(request, "dashboard/plan_candidate.html", context)


@page()
def how(request: HttpRequest, pk: int) -> HttpResponse:
    """The arithmetic behind ``?figure=``: of the plan, of ``candidate=``, or of the verdict on ``workload=``."""
    record = _plan(pk)
    asked = {name: request.GET.get(name, "") for name in ("candidate", "workload", "figure")}
    try:
        found = workings.of(record.request or {}, record.result or {}, **asked)
    except workings.UnknownPartError as error:
        raise Http404(str(error)) from error
    working = found[0] if asked["figure"] and found else None
    if working is None:
        raise Http404(f"{record} has no such figure.")
    candidate = asked["candidate"]
    context = {"plan": record, "working": working, "candidate": candidate}
    template = "dashboard/_how.html" if request.headers.get("HX-Request") else "dashboard/how.html"
    return show(request, template, context)


@act
def settle(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """Deploy and probe what would settle a verdict that is too close to call."""
    probe = settling.settle_verdict(actor=actor(request), plan=_plan(pk), workload=name)
    waits = "is measured as soon as it is ready" if probe.deployment.job_id else "waits to be launched, then measured"
    messages.info(request, f"The probe is made: {probe.deployment.name} {waits}.")
    return redirect("dashboard:deployment", probe.deployment_id)


@act
def draw_curves(request: HttpRequest, pk: int) -> HttpResponse:
    """Have a candidate's load curves drawn; the page it came from shows how far that is."""
    drawing.request_curves(actor=actor(request), plan=_plan(pk), candidate_id=request.POST.get("candidate", ""))
    return redirect(back(request))


@page()
def runway(request: HttpRequest, pk: int) -> HttpResponse:
    """Month by month: what grown demand needs, when each pool is full, what to order when, and what it costs."""
    record = _plan(pk)
    result = record.result or {}
    months = result.get("months", ())
    found = sorted(
        result.get("runways", ()), key=lambda r: (r["full_in_months"] is None, r["full_in_months"] or 0, r["gpu"])
    )
    context = {
        "plan": record,
        "runways": found,
        "charts": [figures_verdict.runway(months, item) for item in found],
        "cost_chart": figures_verdict.months_cost(months) if months else None,
        "growths": planview.growths(record.request or {}),
        "lead_time_months": (record.request or {}).get("lead_time_months"),
        "last": months[-1] if months else None,
        "first": months[0] if months else None,
    }
    return show(request, "dashboard/runway.html", context)


@page()
def plan_node(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """What a plan puts on one node, as the side panel of its map."""
    record = _plan(pk)
    node = next((n for n in planview.all_nodes(record.request or {}, record.result or {}) if n["name"] == name), None)
    if node is None:
        raise Http404(f"{record} has no node {name}.")
    placed = [p for p in (record.result or {}).get("placements", ()) if p["node"] == name]
    context = {"plan": record, "node": node, "placed": placed, "slug": planview.node_slug(name)}
    template = "dashboard/_plan_node.html" if request.headers.get("HX-Request") else "dashboard/plan_node.html"
    return show(request, template, context)


@act
def approve(request: HttpRequest, pk: int) -> HttpResponse:
    """Put a plan in force; its placements become deployments that wait to be launched."""
    record = services.approve_plan(actor=actor(request), plan=_plan(pk))
    messages.info(request, f"{record} is in force. Its deployments wait to be launched.")
    return redirect(f"{reverse('dashboard:deployments')}?plan={record.pk}")


@page()
def export(request: HttpRequest, pk: int) -> HttpResponse:
    """A plan as a file: ``?target=`` what starts it there (ZIP), else ``?format=`` its bill."""
    record = _plan(pk)
    try:
        if "target" in request.GET:
            made = exporting.export_deployment(record, request.GET["target"])
        else:
            made = exporting.export_report(record, request.GET.get("format", "xlsx"))
    except (ValidationError, PlannerError) as error:
        messages.error(request, sentence(error))
        return redirect("dashboard:plan", pk)
    disposition = {"Content-Disposition": f'attachment; filename="{made.name}"'}
    return HttpResponse(made.content, content_type=made.media_type, headers=disposition)


@page()
def router(request: HttpRequest, pk: int) -> HttpResponse:
    """The router configuration of a plan, as a file."""
    text = (_plan(pk).result or {}).get("router_config") or ""
    if not text:
        raise Http404("This plan has no router configuration.")
    answer = HttpResponse(text, content_type="application/yaml")
    answer["Content-Disposition"] = f'attachment; filename="router-{pk}.yaml"'
    return answer

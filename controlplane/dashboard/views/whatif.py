"""What-ifs of a plan, plans side by side, and deleting what is no longer wanted."""

from __future__ import annotations

import re
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse

from controlplane.core.models import Role
from controlplane.dashboard import compareview, fmt, selectors, undo
from controlplane.dashboard.pages import act, actor, page, sentence, show
from controlplane.dashboard.views.jobs import progress_context
from controlplane.dashboard.whatifform import WhatIfForm
from controlplane.inventory.pricing import exchange_rates
from controlplane.planning import comparing, discarding, services
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.services import model_choices
from planner.errors import PlannerError

_IS_ID = re.compile(r"[0-9]{1,17}")  # what a column of ids can hold


@page(Role.PLANNER)
def what_if(request: HttpRequest, pk: int) -> HttpResponse:
    """The form: what is changed of a plan's question; the answer stands beside the plan."""
    base = get_object_or_404(Plan.objects.select_related("scenario"), pk=pk)
    fmt.use_currency(selectors.currency_of(base))
    form = WhatIfForm(base, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            made = [
                services.create_what_if(actor=actor(request), base=base, changes=changes, title=title)
                for changes, title in form.questions()
            ]
        except (ValidationError, PlannerError) as error:
            form.add_error(None, sentence(error))
        else:
            ids = ",".join(str(plan.pk) for plan in (base, *made))
            return redirect(f"{reverse('dashboard:compare')}?ids={ids}")
    units = {"per_kwh": fmt.per("kWh"), "per_gpu_hour": fmt.per("GPU-h")}
    context = {"plan": base, "form": form, "models": model_choices(), **units}
    return show(request, "dashboard/what_if.html", context, status=422 if form.errors else 200)


@page()
def compare(request: HttpRequest) -> HttpResponse:
    """Two to four plans side by side; those still computing show how far they are. ``?format=csv`` is a file."""
    texts = [key.strip() for text in request.GET.getlist("ids") for key in text.split(",")]
    keys = dict.fromkeys(int(key) for key in texts if _IS_ID.fullmatch(key))
    found = Plan.objects.select_related("scenario", "job").in_bulk(list(keys))
    picked = [found[key] for key in keys if key in found][: comparing.MOST]
    ready = [plan for plan in picked if plan.result is not None]
    context: dict[str, Any] = {
        "picked": picked,
        "slots": [*picked, *[None] * (comparing.MOST - len(picked))],
        "plans": _choices(),
        "waiting": [
            {"plan": plan, **progress_context(request, plan.job)} for plan in picked if plan.result is None and plan.job
        ],
        "ids": ",".join(str(plan.pk) for plan in picked),
    }
    if len(ready) >= comparing.FEWEST:
        side_by_side = comparing.compare(ready, exchange_rates())
        fmt.use_currency(side_by_side.currency)
        if request.GET.get("format") == "csv":
            headers = {"Content-Disposition": 'attachment; filename="plans-compared.csv"'}
            return HttpResponse(comparing.as_csv(side_by_side), content_type="text/csv; charset=utf-8", headers=headers)
        context |= {
            "found": side_by_side,
            "totals": compareview.total_rows(side_by_side),
            "charts": compareview.charts(side_by_side),
            "sections": compareview.sections(side_by_side),
        }
    return show(request, "dashboard/plan_compare.html", context)


def _choices() -> models.QuerySet[Plan]:
    rows = Plan.objects.filter(result__isnull=False).select_related("scenario")
    return rows.defer("request", "result", "changes").order_by("scenario__name", "-number")[:200]


@act
def delete_plan(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a plan; the toast offers to undo it."""
    record = get_object_or_404(Plan.objects.select_related("scenario", "job").defer("request", "result"), pk=pk)
    discarding.delete_plan(actor=actor(request), plan=record)
    undo.offer(request, f"{record} is deleted.", "plan", record.pk)
    if record.base_id and Plan.objects.filter(pk=record.base_id).exists():
        return redirect("dashboard:plan", record.base_id)
    return redirect("dashboard:plans")


@act
def delete_scenario(request: HttpRequest, slug: str) -> HttpResponse:
    """Delete a scenario with its plans; the toast offers to undo it."""
    record = get_object_or_404(Scenario, slug=slug)
    discarding.delete_scenario(actor=actor(request), scenario=record)
    undo.offer(request, f"{record} and its plans are deleted.", "scenario", record.pk)
    return redirect("dashboard:plans")

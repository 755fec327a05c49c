"""What a plan costs: prices part by part, the bill, break-even and the years ahead."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from controlplane.dashboard import costview
from controlplane.dashboard.pages import page, show
from controlplane.planning.exporting import answer_of
from controlplane.planning.models import Plan


@page()
def plan_cost(request: HttpRequest, pk: int) -> HttpResponse:
    """The cost of a plan, each figure with its arithmetic. A plan without answer leads back to its page."""
    record = get_object_or_404(Plan.objects.select_related("scenario"), pk=pk)
    try:
        asked, result = answer_of(record, placed_only=True)
    except ValidationError:
        return redirect("dashboard:plan", pk)
    return show(request, "dashboard/plan_cost.html", {"plan": record, **costview.context(asked, result)})

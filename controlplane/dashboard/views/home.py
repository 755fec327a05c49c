"""Home, help, rules of thumb, sign-in and the error pages."""

from __future__ import annotations

from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from controlplane.dashboard import fleetview, fmt, homeview, planview, selectors, undo
from controlplane.dashboard.pages import act, page, show
from controlplane.jobs.models import Job
from controlplane.planning import exporting


@page()
def home(request: HttpRequest) -> HttpResponse:
    """What is used, free and stranded, what it costs, whether objectives are met, and what waits for a person."""
    situation = fleetview.Situation.now()
    rows, jobs = fleetview.fleet(situation=situation), homeview.jobs_now()
    plan = situation.shown
    answer = exporting.answer_billed(plan) if plan else {}
    plan_rows = planview.workload_rows(plan.request or {}, answer) if plan and answer else []
    slo = selectors.slo_tally()
    context = {
        "totals": fleetview.totals(rows),
        "plan": plan,
        "rows": plan_rows,
        "usd_per_mtok": exporting.output_price(answer),
        "month": answer.get("usd_per_month"),
        "slo": slo,
        "accuracy": selectors.accuracy(),
        "needs": homeview.needs(rows, situation, jobs),
        "map": fleetview.fleet_map(rows, "workload", dense=True),
        "kinds": fleetview.by_gpu(rows),
        "emulated": slo.emulated,
        "has_nodes": bool(rows),
        "running": [job for job in jobs if job.state == Job.State.RUNNING][:5],
    }
    return show(request, "dashboard/home.html", context)


@page()
def help_page(request: HttpRequest) -> HttpResponse:
    """The words, the evidence legend, the keys."""
    evidence = [(key, word, fmt.EVIDENCE_MEANING[key]) for key, word in fmt.EVIDENCE_LABELS.items()]
    return show(request, "dashboard/help.html", {"evidence_legend": evidence})


@page()
def rules(request: HttpRequest) -> HttpResponse:
    """The rules of thumb of the field, checked on this fleet by the newest computed plan."""
    plan = selectors.plan_shown()
    found = (plan.result or {}).get("rules", []) if plan else []
    return show(request, "dashboard/rules.html", {"plan": plan, "rules": found})


@act
def take_back(request: HttpRequest, token: str) -> HttpResponse:
    """Undo one act of this session, as its toast offered."""
    return redirect(undo.take_back(request, token))


class SignIn(LoginView):
    """The sign-in page."""

    template_name = "registration/login.html"
    redirect_authenticated_user = True

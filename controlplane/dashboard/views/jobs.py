"""Jobs: list, detail with log, live progress, cancel, retry."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

from controlplane.core.access import has_role
from controlplane.core.models import Role
from controlplane.dashboard import fmt, selectors
from controlplane.dashboard.pages import act, actor, back, page, paginate, show
from controlplane.jobs import services
from controlplane.jobs.models import Job

LOG_LINES = 400


def progress_context(request: HttpRequest, job: Job) -> dict:
    """What components/progress.html needs."""
    elapsed_s = int(((job.finished_at or timezone.now()) - job.started_at).total_seconds()) if job.started_at else None
    usual = None if job.is_final else selectors.usual_duration_s(job.kind)
    if usual and elapsed_s and elapsed_s > 1.5 * usual:  # this one is of another size
        usual = None
    return {
        "job": job,
        "job_title": fmt.job_words(job.kind),
        "elapsed": "" if elapsed_s is None else fmt.duration(elapsed_s) if elapsed_s else "under 1 s",
        "expected": fmt.duration(int(usual)) if usual and usual >= 1 else "",
        "may_cancel": job.created_by_id == request.user.pk or has_role(request.user, Role.OPERATOR),
        "may_retry": job.is_final and job.state != Job.State.SUCCEEDED and has_role(request.user, _retry_role(job)),
    }


def _retry_role(job: Job) -> Role:
    """Who may do again what a job did: whoever may plan, for plans; else an operator."""
    return Role.PLANNER if job.kind.startswith("plan.") else Role.OPERATOR


@page()
def jobs(request: HttpRequest) -> HttpResponse:
    """All jobs, filtered by the URL."""
    rows = selectors.job_list(request.GET)
    context = {
        "page": paginate(request, rows),
        "states": Job.State.choices,
        "kinds": list(Job.objects.order_by("kind").values_list("kind", flat=True).distinct()),
    }
    return show(request, "dashboard/jobs.html", context)


@page()
def job(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One job with its log."""
    record = get_object_or_404(Job.objects.select_related("created_by"), pk=pk)
    lines = list(record.log.order_by("-sequence")[:LOG_LINES])[::-1]
    context = {**progress_context(request, record), "lines": lines}
    if request.headers.get("HX-Request"):
        return show(request, "dashboard/_job_log.html", context)
    return show(request, "dashboard/job.html", context)


@page()
def progress(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The live progress of a job; when it is over, the page around it is loaded again."""
    record = get_object_or_404(Job, pk=pk)
    response = show(request, "components/progress.html", progress_context(request, record))
    if record.is_final:
        response["HX-Refresh"] = "true"
    return response


@act
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Ask a job to stop."""
    record = services.request_cancel(actor=actor(request), job=get_object_or_404(Job, pk=pk))
    messages.info(request, f"{fmt.job_words(record.kind)}: cancel requested.")
    return redirect(back(request))


@act
def retry(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Do again what a job that ended badly should have done; a plan's own page then follows it."""
    fresh = services.retry_job(actor=actor(request), job=get_object_or_404(Job, pk=pk))
    messages.info(request, f"{fmt.job_words(fresh.kind)}: submitted again.")
    plan = fresh.plans.first()
    return redirect("dashboard:job", fresh.pk) if plan is None else redirect("dashboard:plan", plan.pk)

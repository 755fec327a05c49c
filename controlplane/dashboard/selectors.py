"""What the pages read from the database, in few queries. Nothing here changes anything."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Case, Count, Max, OuterRef, Prefetch, Q, QuerySet, Subquery, When
from django.db.models.fields.json import KeyTextTransform

from controlplane.dashboard import fmt, planrow, planview
from controlplane.deployments.models import Calibration, Deployment, ProbeRun, Validation
from controlplane.inventory.models import Site
from controlplane.jobs.models import Job
from controlplane.planning import exporting
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import SloTarget, Workload
from planner.economics.currency import BASE


def plan_shown() -> Plan | None:
    """The plan in force, else the newest that waits for approval (a what-if does not): what pages start from."""
    asked = Plan.objects.filter(Q(state=Plan.State.APPROVED) | Q(state=Plan.State.READY, title=""))
    in_force_first = Case(When(state=Plan.State.APPROVED, then=0), default=1)
    return (
        asked.select_related("scenario", "approved_by").order_by(in_force_first, "-approved_at", "-created_at").first()
    )


def currency_of(plan: Plan | None) -> str:
    """In what a plan's amounts are; the installation's currency without a plan."""
    return (plan.request or {}).get("currency", BASE) if plan is not None else str(settings.CURRENCY)


# Workloads


def workload_list(params: Mapping[str, str]) -> QuerySet[Workload]:
    """Workloads by the filters of the URL: ``q``, ``kind``, ``site``."""
    rows = Workload.objects.select_related("trace", "site").prefetch_related("slo_targets")
    if text := params.get("q"):
        rows = rows.filter(Q(name__icontains=text) | Q(model_ref__icontains=text))
    if kind := params.get("kind"):
        rows = rows.filter(kind=kind)
    if site := params.get("site"):
        rows = rows.filter(site__slug=site)
    return rows


def verdicts_of(plan: Plan | None) -> dict[str, planrow.WorkloadRow]:
    """Rows of a plan by workload name."""
    if plan is None or not plan.result or not plan.request:
        return {}
    return {row.name: row for row in planview.workload_rows(plan.request, exporting.answer_billed(plan))}


# Plans


def plan_list(params: Mapping[str, str]) -> QuerySet[Plan]:
    """Plans without their large JSON, newest first, by ``state`` and ``scenario``."""
    rows = Plan.objects.select_related("scenario", "job", "approved_by", "created_by").defer("request", "result")
    rows = rows.order_by("-created_at", "-number")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if scenario := params.get("scenario"):
        rows = rows.filter(scenario__slug=scenario)
    return rows.annotate(
        currency=KeyTextTransform("currency", "request"),
        workload_count=Count("verdicts", distinct=True),
        close_count=Count("verdicts", filter=Q(verdicts__too_close=True), distinct=True),
    )


def variants_of(plan: Plan) -> list[dict[str, Any]]:
    """What-ifs made from a plan, newest first, with what they cost against it."""
    rows = plan.variants.defer("request", "result", "changes").select_related("scenario").order_by("-number")
    found = []
    for row in rows:
        change = ""
        if row.usd_per_hour is not None and plan.usd_per_hour:
            change = fmt.signed_percent(row.usd_per_hour / plan.usd_per_hour - 1)
        found.append({"plan": row, "change": change})
    return found


def scenario_list() -> QuerySet[Scenario]:
    """Scenarios with how many plans each has and the newest."""
    return Scenario.objects.annotate(plan_count=Count("plans"), latest=Max("plans__number")).order_by("name")


def usual_duration_s(kind: str) -> float | None:
    """Median running time of the last ten jobs of a kind that ended well."""
    rows = Job.objects.filter(kind=kind, state=Job.State.SUCCEEDED, started_at__isnull=False, finished_at__isnull=False)
    pairs = rows.values_list("started_at", "finished_at")[:10]
    spans = [(end - start).total_seconds() for start, end in pairs if start and end]
    return statistics.median(spans) if spans else None


# Deployments and validation


def deployment_list(params: Mapping[str, str]) -> QuerySet[Deployment]:
    """Deployments by ``state``, ``workload``, ``engine`` and ``plan``; those that live first."""
    rows = Deployment.objects.select_related("workload", "node__node_type__gpu_model", "host", "plan__scenario")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if workload := params.get("workload"):
        rows = rows.filter(workload__slug=workload)
    if engine := params.get("engine"):
        rows = rows.filter(planned_engine=engine)
    if plan := params.get("plan"):
        rows = rows.filter(plan=int(plan)) if plan.isascii() and plan.isdecimal() and len(plan) < 18 else rows.none()
    return rows


def plans_deployed() -> QuerySet[Plan]:
    """Plans that have deployments, newest first."""
    return Plan.objects.filter(deployments__isnull=False).select_related("scenario").distinct().order_by("-pk")


def probes_of(deployment: Deployment) -> QuerySet[ProbeRun]:
    """Probes of one deployment, newest first, with what they validated."""
    return deployment.probes.select_related("job").prefetch_related(Prefetch("validations"))


def validation_list(params: Mapping[str, str]) -> QuerySet[Validation]:
    """The ledger: predicted against measured, by ``metric``, ``verdict`` and ``emulated``."""
    rows = Validation.objects.select_related("probe", "deployment__workload", "deployment__node__node_type__gpu_model")
    if metric := params.get("metric"):
        rows = rows.filter(metric=metric)
    if verdict := params.get("verdict"):
        rows = rows.filter(verdict=verdict)
    if (emulated := params.get("emulated")) in {"yes", "no"}:
        rows = rows.filter(emulated=emulated == "yes")
    return rows


@dataclass(frozen=True)
class Accuracy:
    """How predictions held against real measurements; emulated ones are only counted."""

    real: int
    within: int
    median_error: float | None
    emulated: int


def accuracy() -> Accuracy:
    """Over all validations of probes that had a prediction; memory facts have their own column in the ledger."""
    rows = list(
        Validation.objects.filter(probe__isnull=False)
        .exclude(verdict=Validation.Verdict.NO_PREDICTION)
        .values_list("verdict", "error_ratio", "emulated")
    )
    real = [(verdict, error) for verdict, error, emulated in rows if not emulated]
    errors = [abs(error) for _, error in real if error is not None]
    within = sum(verdict == Validation.Verdict.WITHIN for verdict, _ in real)
    return Accuracy(len(real), within, statistics.median(errors) if errors else None, len(rows) - len(real))


def calibration_list() -> QuerySet[Calibration]:
    """Calibrations, active ones first."""
    return Calibration.objects.all()


@dataclass(frozen=True)
class SloTally:
    """Objectives held against the newest finished probe of each workload."""

    met: int
    measured: int
    emulated: bool


def slo_tally() -> SloTally:
    """Each SLO of each probed workload, by the newest finished probe; the mark says if any was emulated."""
    newest = ProbeRun.objects.filter(state=ProbeRun.State.DONE, deployment__workload=OuterRef("workload")).order_by(
        "-finished_at"
    )
    targets = SloTarget.objects.annotate(
        probed=Subquery(newest.values("metrics")[:1]), emulated=Subquery(newest.values("emulated")[:1])
    ).exclude(emulated=None)
    met = measured = 0
    emulated = False
    for metric, stat, limit_ms, metrics, was_emulated in targets.order_by().values_list(
        "metric", "stat", "limit_ms", "probed", "emulated"
    ):
        emulated |= was_emulated
        value = ((metrics or {}).get(f"{metric}_ms") or {}).get(stat)
        if value is not None:
            measured += 1
            met += value <= limit_ms
    return SloTally(met, measured, emulated)


# Jobs


def job_list(params: Mapping[str, str]) -> QuerySet[Job]:
    """Jobs by ``state`` and ``kind``, newest first."""
    rows = Job.objects.select_related("created_by").defer("payload", "result")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if kind := params.get("kind"):
        rows = rows.filter(kind=kind)
    return rows


def sites() -> QuerySet[Site]:
    """All sites by name."""
    return Site.objects.order_by("name")

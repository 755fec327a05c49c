"""Load curves of a plan's candidates: drawn with the plan for what its verdicts name, for any other on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.celery import PLAN_QUEUE
from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.planning.models import CandidateCurves, Plan
from planner.errors import PlannerError
from planner.jsonio import to_json
from planner.plan_types import PlanRequest, PlanResult
from planner.recommend.curves import candidate_curve


@dataclass(frozen=True, slots=True)
class Drawn:
    """The curves of one candidate as JSON of ``planner.recommend.curves.CandidateCurve``, or why there are none."""

    workload: str
    candidate: str
    points: dict[str, Any] | None
    reason: str = ""


def of_verdicts(result: PlanResult) -> list[str]:
    """Ids of the chosen candidates and the runners-up."""
    return list(dict.fromkeys(key for verdict in result.verdicts for key in (verdict.chosen, verdict.runner_up) if key))


def draw(
    request: PlanRequest, result: PlanResult, ids: Iterable[str], progress: Callable[[float, str], None]
) -> list[Drawn]:
    """Simulate the candidates; one that cannot be drawn says why and stops no other."""
    candidates = {item.id: item for item in result.candidates}
    workloads = {item.name: item for item in request.workloads}
    wanted = [candidates[key] for key in ids if key in candidates and candidates[key].workload in workloads]
    found = []
    for at, candidate in enumerate(wanted):

        def report(share: float, done: int = at, name: str = candidate.workload) -> None:
            progress((done + share) / len(wanted), f"Drawing load curves of {name}")

        report(0.0)
        try:
            points = to_json(candidate_curve(candidate, workloads[candidate.workload], request, report))
        except PlannerError as error:
            found.append(Drawn(candidate.workload, candidate.id, None, str(error)))
        else:
            found.append(Drawn(candidate.workload, candidate.id, points))
    return found


def store(plan: Plan, drawn: Iterable[Drawn]) -> None:
    """Keep curves with the plan. Repeatable."""
    for item in drawn:
        values = {"workload_name": item.workload, "points": item.points, "reason": item.reason, "job": None}
        CandidateCurves.objects.update_or_create(plan=plan, candidate_id=item.candidate, defaults=values)


def request_curves(*, actor: Actor, plan: Plan, candidate_id: str) -> CandidateCurves:
    """The curves of a candidate: as they are kept, else a job draws them. Takes a planner.

    Raises ValidationError for a plan without result or a candidate that it does not have.
    """
    access.require(actor, Role.PLANNER)
    if plan.result is None:
        raise ValidationError(f"Plan {plan} has no result yet.")
    candidate = next((item for item in plan.result["candidates"] if item["id"] == candidate_id), None)
    if candidate is None:
        raise ValidationError(f"Plan {plan} has no candidate {candidate_id[:120]!r}.")
    with transaction.atomic():
        Plan.everything.select_for_update().only("pk").get(pk=plan.pk)
        row = CandidateCurves.objects.filter(plan=plan, candidate_id=candidate_id).select_related("job").first()
        if row is not None and (row.points is not None or row.reason or (row.job and not row.job.is_final)):
            return row
        job = submit_job(
            actor=actor, kind="plan.curves", payload={"plan": plan.pk, "candidates": [candidate_id]}, queue=PLAN_QUEUE
        )
        row, _ = CandidateCurves.objects.update_or_create(
            plan=plan, candidate_id=candidate_id, defaults={"workload_name": candidate["workload"], "job": job}
        )
    return row


def failed_job(plan: Plan, candidate_id: str) -> Job | None:
    """The newest job that was to draw a candidate's curves, when it failed; None when none did."""
    rows = Job.objects.filter(kind="plan.curves", payload__plan=plan.pk, payload__candidates=[candidate_id])
    newest = rows.order_by("-created_at").first()
    return newest if newest is not None and newest.state == Job.State.FAILED else None


def forget(job: Job) -> None:
    """Drop the empty rows of a job that drew nothing."""
    CandidateCurves.objects.filter(job=job, points__isnull=True, reason="").delete()

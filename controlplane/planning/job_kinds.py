"""Jobs of planning."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError

from controlplane.core.access import Actor
from controlplane.jobs.kinds import JobKind, Work, register
from controlplane.jobs.models import Job
from controlplane.jobs.running import JobFailed
from controlplane.planning import curves, mapping, services
from controlplane.planning.curves import Drawn
from controlplane.planning.models import Plan
from planner.jsonio import from_json
from planner.plan_types import PlanRequest, PlanResult

PLANNING_SHARE = 0.95
"""Of a plan's progress bar; the rest draws the load curves of what the verdicts name."""


@register
class ComputePlan(JobKind):
    """Compute a plan."""

    kind = "plan.compute"
    label = "Compute a plan"
    queue = "plan"
    deadline = dt.timedelta(hours=2)

    def run(self, job: Work) -> tuple[PlanResult, list[Drawn]]:
        """Map, ask the planner, watch for the wish to stop."""
        from planner.plan import make_plan

        plan = Plan.objects.select_related("scenario").filter(pk=job.payload["plan"]).first()
        if plan is None:
            raise JobFailed("The plan was deleted.", "Compute a new one.")
        job.progress(0.0, "Reading fleet and workloads")
        if plan.is_what_if:
            request = from_json(PlanRequest, plan.request)
        else:
            request = mapping.plan_request(plan.scenario)
            services.store_request(plan, request)
        gpus = sum(node.gpus for node in request.nodes)
        job.log(f"{len(request.workloads)} workloads on {len(request.nodes)} nodes with {gpus} GPUs.")
        result = make_plan(request, lambda share, step: job.progress(PLANNING_SHARE * share, step), job.should_cancel)
        ids = curves.of_verdicts(result)
        return result, curves.draw(
            request, result, ids, lambda s, step: job.progress(PLANNING_SHARE + (1 - PLANNING_SHARE) * s, step)
        )

    def store(self, job: Job, outcome: Any) -> dict | None:
        """Freeze the answer."""
        plan = Plan.objects.filter(pk=job.payload["plan"]).first()
        if plan is None:
            return None
        result, drawn = outcome
        stored = services.store_result(plan, result)
        curves.store(plan, drawn)
        return stored

    def on_failed(self, job: Job) -> None:
        """The plan has failed too."""
        services.fail_plan(job.payload["plan"])

    def on_cancelled(self, job: Job) -> None:
        """A cancelled plan will not come."""
        services.fail_plan(job.payload["plan"])

    def again(self, job: Job, actor: Actor) -> Job:
        """The same plan, of fleet and workloads as they are now; a what-if of what it asked."""
        return services.compute_again(actor=actor, plan=_plan_of(job))


@register
class DrawCurves(JobKind):
    """Simulate one candidate of a plan along its load."""

    kind = "plan.curves"
    label = "Draw load curves"
    queue = "plan"
    deadline = dt.timedelta(minutes=15)

    def run(self, job: Work) -> list[Drawn]:
        """From the snapshot of the plan alone."""
        plan = Plan.objects.filter(pk=job.payload["plan"]).first()
        if plan is None or plan.request is None or plan.result is None:
            raise JobFailed("The plan was deleted.", "Compute a new one.")
        job.progress(0.0, "Reading the plan")
        request, result = from_json(PlanRequest, plan.request), from_json(PlanResult, plan.result)
        return curves.draw(request, result, job.payload["candidates"], job.progress)

    def store(self, job: Job, outcome: Any) -> dict | None:
        """Keep them with the plan."""
        plan = Plan.objects.filter(pk=job.payload["plan"]).first()
        if plan is not None:
            curves.store(plan, outcome)
        return {"plan": job.payload["plan"], "curves": len(outcome)}

    def on_failed(self, job: Job) -> None:
        """What is not drawn may be asked for again."""
        curves.forget(job)

    def on_cancelled(self, job: Job) -> None:
        """What is not drawn may be asked for again."""
        curves.forget(job)

    def again(self, job: Job, actor: Actor) -> Job:
        """Ask for the curves anew."""
        (candidate,) = job.payload["candidates"]
        row = curves.request_curves(actor=actor, plan=_plan_of(job), candidate_id=candidate)
        if row.job is None:
            raise ValidationError("These curves are drawn already; open the candidate to see them.")
        return row.job


def _plan_of(job: Job) -> Plan:
    plan = Plan.objects.select_related("scenario").filter(pk=job.payload["plan"]).first()
    if plan is None:
        raise ValidationError("The plan of this job was deleted; compute a new one.")
    return plan

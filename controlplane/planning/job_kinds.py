"""Jobs of planning."""

from __future__ import annotations

import datetime as dt
from typing import Any

from controlplane.jobs.kinds import JobKind, register
from controlplane.jobs.models import Job
from controlplane.jobs.running import JobFailed, RunningJob
from controlplane.planning import mapping, services
from controlplane.planning.models import Plan
from planner.jsonio import from_json
from planner.plan_types import PlanRequest, PlanResult


@register
class ComputePlan(JobKind):
    """Compute a plan."""

    kind = "plan.compute"
    label = "Compute a plan"
    queue = "plan"
    deadline = dt.timedelta(hours=2)

    def run(self, job: RunningJob) -> PlanResult:
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
        return make_plan(request, job.progress, job.should_cancel)

    def store(self, job: Job, outcome: Any) -> dict | None:
        """Freeze the answer."""
        plan = Plan.objects.filter(pk=job.payload["plan"]).first()
        return None if plan is None else services.store_result(plan, outcome)

    def on_failed(self, job: Job) -> None:
        """The plan has failed too."""
        services.fail_plan(job.payload["plan"])

    def on_cancelled(self, job: Job) -> None:
        """A cancelled plan will not come."""
        services.fail_plan(job.payload["plan"])

"""What waits for a person."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from controlplane.dashboard import fmt
from controlplane.dashboard.fleetview import FleetNode, Situation
from controlplane.deployments.models import Deployment
from controlplane.inventory.models import Gpu
from controlplane.jobs.models import Job
from controlplane.planning.models import Plan


@dataclass(frozen=True)
class Need:
    """Something that waits for a person."""

    look: str
    text: str
    action: str
    url: str


def jobs_now() -> list[Job]:
    """Jobs that run, and those of no deployment that failed in the last day; newest first, in one query."""
    since = timezone.now() - dt.timedelta(days=1)
    failed = Q(state=Job.State.FAILED, finished_at__gte=since, deployments__isnull=True)
    return list(Job.objects.filter(failed | Q(state=Job.State.RUNNING)).defer("payload", "result").distinct()[:50])


def needs(rows: list[FleetNode], situation: Situation, jobs: list[Job]) -> list[Need]:
    """What waits for a person, most pressing first."""
    found = []
    for item in situation.in_state(Deployment.State.FAILED)[:5]:
        url = reverse("dashboard:deployment", args=[item.pk])
        found.append(Need("failed", f"{item.name} failed: {item.reason}", "See why", url))
    found += [
        Need(
            "failed",
            f"{fmt.job_words(job.kind)} failed: {job.error}",
            "Log",
            reverse("dashboard:job", args=[job.pk]),
        )
        for job in [job for job in jobs if job.state == Job.State.FAILED][:5]
    ]
    for row in rows:
        missing = sum(state == Gpu.State.MISSING for state in row.gpu_states.values())
        if missing:
            url = reverse("dashboard:node", args=[row.node.slug])
            found.append(Need("attention", f"{row.node.name}: {missing} of {row.gpus} GPUs not found.", "Node", url))
    unpriced: dict[str, set[str]] = {}
    for row in rows:
        if row.usd_per_gpu_hour is None:
            unpriced.setdefault(row.unpriced, set()).add(row.node.node_type.gpu_model.name)
    for why, names in sorted(unpriced.items()):
        text = f"{', '.join(sorted(names))}: {why}; costs leave these GPUs out."
        found.append(Need("attention", text, "Prices", reverse("dashboard:prices")))
    ready = Plan.objects.filter(state=Plan.State.READY, title="").select_related("scenario")
    for plan in ready.defer("request", "result")[:3]:
        url = reverse("dashboard:plan", args=[plan.pk])
        found.append(Need("info", f"{plan} is computed and waits for approval.", "Review", url))
    waiting = len(situation.in_state(Deployment.State.PENDING))
    if waiting:
        noun = "deployment waits" if waiting == 1 else "deployments wait"
        url = f"{reverse('dashboard:deployments')}?state=pending"
        found.append(Need("info", f"{waiting} {noun} to be launched.", "Launch", url))
    return found

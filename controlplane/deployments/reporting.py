"""What nodes report of deployments, applied to the rows. Called once for each message, inside its transaction."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from controlplane.deployments.models import Deployment, Endpoint, ProbeRun
from controlplane.deployments.startup_check import check_startup
from controlplane.jobs.models import Job
from planner.jsonio import to_json
from runners.contracts import Observation

State = Deployment.State


def apply_observation(deployment: Deployment, observation: Observation) -> bool:
    """Bring a deployment up to what its worker says; returns whether anything changed."""
    handler = _HANDLERS.get(observation.state)
    if handler is None:
        return False
    values = handler(deployment, observation)
    if not values:
        return False
    for name, value in values.items():
        setattr(deployment, name, value)
    deployment.save(update_fields=set(values))
    if deployment.state == State.READY:
        Endpoint.objects.update_or_create(
            deployment=deployment, defaults={"url": deployment.base_url, "served_name": deployment.model_ref}
        )
        check_startup(deployment)
    elif deployment.state in (State.STOPPED, State.FAILED):
        Endpoint.objects.filter(deployment=deployment).delete()
    return True


def fail_deployment(deployment: Deployment, reason: str, remedy: str) -> None:
    """Say that a deployment has failed, and why; one that was stopped meanwhile stays stopped."""
    Deployment.objects.filter(pk=deployment.pk).exclude(state=State.STOPPED).update(
        state=State.FAILED,
        reason=reason or "It failed without saying why.",
        remedy=remedy,
        stopped_at=timezone.now(),
        updated_at=timezone.now(),
    )
    Endpoint.objects.filter(deployment=deployment).delete()
    running = ProbeRun.objects.filter(deployment=deployment, state__in=["pending", "running"])
    running.update(state=ProbeRun.State.FAILED, reason=f"The engine failed: {reason}", finished_at=timezone.now())


def local_engines() -> list[Deployment]:
    """Deployments whose engine runs on this host."""
    return list(Deployment.objects.filter(host__is_local=True, state__in=Deployment.LIVE))


def mark_stopped(deployments: list[Deployment], phase: str) -> None:
    """Say that engines were stopped from outside."""
    keys = [item.pk for item in deployments]
    Deployment.objects.filter(pk__in=keys).update(
        state=State.STOPPED, phase=phase, pid=None, stopped_at=timezone.now(), updated_at=timezone.now()
    )
    Endpoint.objects.filter(deployment__in=keys).delete()


def end_probe(job: Job, state: str, reason: str, remedy: str = "") -> None:
    """End the probe of a job that brought no measurement."""
    ProbeRun.objects.filter(job=job, state__in=["pending", "running"]).update(
        state=state, reason=reason, remedy=remedy, finished_at=timezone.now()
    )


def _progress(deployment: Deployment, seen: Observation) -> dict[str, Any]:
    if deployment.state not in (State.LAUNCHING, State.LOADING):
        return {}
    values: dict[str, Any] = {"state": State.LOADING, "phase": (seen.phase or deployment.phase)[:200]}
    if seen.pid:
        values["pid"] = seen.pid
    if seen.command_line:
        values["command_line"] = list(seen.command_line)
    return values


def _ready(deployment: Deployment, seen: Observation) -> dict[str, Any]:
    if deployment.state in (State.STOPPING, State.STOPPED):
        return {}
    return {
        "state": State.READY,
        "phase": "Ready",
        "reason": "",
        "remedy": "",
        "base_url": seen.base_url[:200] or deployment.base_url,
        "pid": seen.pid or deployment.pid,
        "command_line": list(seen.command_line) or deployment.command_line,
        "startup": to_json(seen.startup) if seen.startup else deployment.startup,
        "emulated": deployment.emulated or seen.emulated,
        "ready_at": deployment.ready_at or timezone.now(),
        "stopped_at": None,
    }


def _stopped(deployment: Deployment, seen: Observation) -> dict[str, Any]:
    del seen
    return {"state": State.STOPPED, "phase": "", "pid": None, "stopped_at": timezone.now()}


def _failed(deployment: Deployment, seen: Observation) -> dict[str, Any]:
    if deployment.state in (State.STOPPED, State.FAILED):
        return {}
    return {
        "state": State.FAILED,
        "phase": "",
        "pid": None,
        "reason": seen.reason or "The engine ended without saying why.",
        "remedy": seen.remedy,
        "stopped_at": timezone.now(),
    }


_HANDLERS = {
    "started": _progress,
    "progress": _progress,
    "ready": _ready,
    "stopped": _stopped,
    "failed": _failed,
}

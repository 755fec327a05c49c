"""Jobs of deployments: commands to nodes, and fitting."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError

from controlplane.core.access import Actor
from controlplane.deployments import calibrating, probing, reporting, settling
from controlplane.deployments.models import Calibration, Deployment, ProbeRun
from controlplane.jobs.kinds import JobKind, NodeJobKind, Work, register
from controlplane.jobs.models import Job
from controlplane.jobs.running import JobFailed
from controlplane.jobs.services import submit_job
from planner.jsonio import from_json
from runners.contracts import (
    CANCEL_TASK,
    LAUNCH_TASK,
    PROBE_TASK,
    STOP_TASK,
    CancelCommand,
    EngineLaunch,
    LaunchCommand,
    Observation,
    ProbeCommand,
    ProbeLoad,
    StopCommand,
)


class _OfDeployment(NodeJobKind):
    """A command about one deployment."""

    def deployment(self, job: Job) -> Deployment | None:
        """The deployment the job is about."""
        return Deployment.objects.filter(pk=job.payload["deployment"]).first()

    def deployment_or_refuse(self, job: Job) -> Deployment:
        """The deployment, to do the act once more; raises ValidationError when it was deleted."""
        deployment = self.deployment(job)
        if deployment is None:
            raise ValidationError("The deployment of this job was deleted; make a new one.")
        return deployment

    def late(self, job: Job, observation: Observation) -> None:
        """An engine that dies, or is adopted again, after its job has ended."""
        deployment = self.deployment(job)
        if deployment is None or deployment.job_id not in (job.pk, None):
            return
        if observation.state == "failed":
            reporting.fail_deployment(deployment, observation.reason, observation.remedy)
        else:
            reporting.apply_observation(deployment, observation)


@register
class Launch(_OfDeployment):
    """Start an engine and wait until it serves."""

    kind = "deployment.launch"
    label = "Start an engine"
    task = LAUNCH_TASK
    deadline = dt.timedelta(hours=1)

    def command(self, job: Job, attempt: int) -> LaunchCommand:
        """What to start."""
        deployment = Deployment.objects.get(pk=job.payload["deployment"])
        return LaunchCommand(
            job_id=str(job.pk),
            attempt=attempt,
            deployment_id=str(deployment.pk),
            launch=from_json(EngineLaunch, deployment.launch, "launch"),
        )

    def observed(self, job: Job, observation: Observation) -> dict[str, Any] | None:
        """Follow it until it is ready."""
        deployment = self.deployment(job)
        if deployment is None:
            return {"state": "deleted"}
        reporting.apply_observation(deployment, observation)
        if observation.state == "ready":
            settling.start_waiting_probes(deployment)
            return {"state": deployment.state, "base_url": deployment.base_url}
        return {"state": "stopped"} if observation.state == "stopped" else None

    def on_failed(self, job: Job) -> None:
        """The deployment has failed too."""
        deployment = self.deployment(job)
        if deployment is not None and deployment.job_id == job.pk:
            reporting.fail_deployment(deployment, job.error, job.remedy)

    def on_cancelled(self, job: Job) -> None:
        """Stop what may have been started."""
        from controlplane.deployments.services import stop_deployment

        deployment = self.deployment(job)
        if deployment is not None and deployment.job_id == job.pk and deployment.state in Deployment.LIVE:
            stop_deployment(actor=None, deployment=deployment)

    def again(self, job: Job, actor: Actor) -> Job:
        """Launch it as it was launched, on GPUs that are still free."""
        from controlplane.deployments.services import launch_deployment

        deployment = self.deployment_or_refuse(job)
        return launch_deployment(actor=actor, deployment=deployment, emulated=deployment.emulated)


@register
class Probe(_OfDeployment):
    """Measure a running deployment."""

    kind = "deployment.probe"
    label = "Probe a deployment"
    task = PROBE_TASK
    max_attempts = 2
    deadline = dt.timedelta(hours=1)

    def command(self, job: Job, attempt: int) -> ProbeCommand:
        """What to measure."""
        probe = ProbeRun.objects.select_related("deployment").get(pk=job.payload["probe"])
        deployment = probe.deployment
        launch = from_json(EngineLaunch, deployment.launch, "launch")
        return ProbeCommand(
            job_id=str(job.pk),
            attempt=attempt,
            deployment_id=str(deployment.pk),
            probe_id=str(probe.pk),
            base_url=deployment.base_url,
            served_name=launch.served_name,
            tokenizer="builtin",
            engine=launch.engine,
            load=from_json(ProbeLoad, probe.load, "load"),
        )

    def observed(self, job: Job, observation: Observation) -> dict[str, Any] | None:
        """Keep the measurement."""
        if observation.state in ("started", "progress"):
            probing.start_probe(job)
        return probing.store_probe(job, observation) if observation.state == "probed" else None

    def on_failed(self, job: Job) -> None:
        """The probe has failed too."""
        reporting.end_probe(job, ProbeRun.State.FAILED, job.error, job.remedy)

    def on_cancelled(self, job: Job) -> None:
        """The probe was cancelled: its load must end too, on whatever node it was sent to."""
        reporting.end_probe(job, ProbeRun.State.CANCELLED, "Somebody cancelled it.")
        if job.sent_at is not None or job.attempt > 0:
            submit_job(actor=None, kind=CancelProbe.kind, payload={**job.payload, "job": str(job.pk)}, queue=job.queue)

    def again(self, job: Job, actor: Actor) -> Job:
        """A new probe of the same load: what ended keeps its record."""
        probe = ProbeRun.objects.filter(pk=job.payload["probe"]).first()
        if probe is None:
            raise ValidationError("The probe of this job was deleted; start a new one at its deployment.")
        fresh = probing.probe_deployment(actor=actor, deployment=self.deployment_or_refuse(job), load=probe.load)
        if fresh.job is None:
            raise ValidationError(f"{fresh.deployment} takes no probe now.")
        return fresh.job

    def late(self, job: Job, observation: Observation) -> None:
        """What a probe says after its end changes nothing."""


@register
class CancelProbe(_OfDeployment):
    """End the load of a cancelled probe."""

    kind = "deployment.cancel_probe"
    label = "End a probe's load"
    task = CANCEL_TASK
    max_attempts = 5
    deadline = dt.timedelta(minutes=30)

    def command(self, job: Job, attempt: int) -> CancelCommand:
        """Which load to end."""
        return CancelCommand(
            job_id=str(job.pk),
            attempt=attempt,
            deployment_id=job.payload["deployment"],
            probe_id=job.payload["probe"],
            cancelled_job=job.payload["job"],
        )

    def observed(self, job: Job, observation: Observation) -> dict[str, Any] | None:
        """It is over when no process of the load is left."""
        return {"state": "stopped"} if observation.state == "stopped" else None

    def late(self, job: Job, observation: Observation) -> None:
        """It says nothing of the engine."""


@register
class Stop(_OfDeployment):
    """Stop an engine."""

    kind = "deployment.stop"
    label = "Stop an engine"
    task = STOP_TASK
    max_attempts = 5
    deadline = dt.timedelta(minutes=30)

    def command(self, job: Job, attempt: int) -> StopCommand:
        """What to stop."""
        return StopCommand(job_id=str(job.pk), attempt=attempt, deployment_id=job.payload["deployment"])

    def observed(self, job: Job, observation: Observation) -> dict[str, Any] | None:
        """It is over when its memory is free."""
        if observation.state != "stopped":
            return None
        deployment = self.deployment(job)
        if deployment is not None:
            reporting.apply_observation(deployment, observation)
        return {"state": "stopped"}

    def on_failed(self, job: Job) -> None:
        """It could not be stopped: say so, it may still run."""
        deployment = self.deployment(job)
        if deployment is not None and deployment.job_id == job.pk:
            reporting.fail_deployment(deployment, job.error, job.remedy)

    def again(self, job: Job, actor: Actor) -> Job:
        """Stop what may still run."""
        from controlplane.deployments.services import stop_deployment

        deployment = self.deployment_or_refuse(job)
        fresh = stop_deployment(actor=actor, deployment=deployment)
        if fresh is None:
            raise ValidationError(f"{deployment} does not run, so there is nothing to stop.")
        return fresh

    def on_cancelled(self, job: Job) -> None:
        """Nobody knows whether it runs."""
        deployment = self.deployment(job)
        if deployment is not None and deployment.job_id == job.pk:
            reporting.fail_deployment(deployment, "Its stop was cancelled; it may still run.", "Stop it again.")


@register
class FitCalibration(JobKind):
    """Fit a calibration from real probes."""

    kind = "calibration.fit"
    label = "Fit a calibration"
    queue = "plan"

    def run(self, job: Work) -> Calibration:
        """Fit; the row is written by the service."""
        probe = ProbeRun.objects.select_related("deployment__node__node_type__gpu_model").filter(
            pk=job.payload["probe"]
        )
        row = probe.first()
        if row is None:
            raise JobFailed("The probe was deleted.", "Probe again.")
        return calibrating.fit_calibration(actor=None, probe=row, report=job.progress)

    def store(self, job: Job, outcome: Any) -> dict | None:
        """Which calibration came of it."""
        return {"calibration": outcome.pk, "step_factor": outcome.step_factor, "samples": outcome.samples}

"""Messages in: what node workers report, applied once each, in whatever order they come."""

from __future__ import annotations

import datetime as dt
import uuid

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.jobs import services
from controlplane.jobs.kinds import NodeJobKind, get_kind
from controlplane.jobs.models import Job, JobLog, JobMessage
from planner.errors import InputError
from planner.jsonio import from_json
from runners.contracts import Observation

log = structlog.get_logger(__name__)
State = Job.State


def apply_observation(message: dict) -> str:
    """Apply one Observation given as JSON; returns what became of it.

    "applied", "repeated", "late" (another attempt, or the job has ended), "unknown job", "node" (no job), "malformed".
    """
    try:
        observation = from_json(Observation, message, "observation")
    except InputError as error:
        log.warning("malformed observation", error=str(error))
        return "malformed"
    _node_seen(observation)
    if not observation.job_id:
        return "node"
    try:
        job_id = uuid.UUID(observation.job_id)
    except ValueError:
        return "unknown job"
    with transaction.atomic():
        job = Job.objects.select_for_update().filter(pk=job_id).first()
        if job is None:
            return "unknown job"
        kind = get_kind(job.kind)
        if not isinstance(kind, NodeJobKind):
            return "malformed"
        if job.state == State.QUEUED:
            job = services.claim(job.pk, worker=observation.node, attempt=observation.attempt) or job
        if job.attempt != observation.attempt:
            return "late"
        if not _first_time(job, observation):
            return "repeated"
        if observation.lines:
            services.add_log(job, observation.lines, JobLog.Level.OUTPUT)
        if job.state != State.RUNNING:
            kind.late(job, observation)
            return "late"
        _alive(job, observation)
        _apply(kind, job, observation)
    return "applied"


def _apply(kind: NodeJobKind, job: Job, observation: Observation) -> None:
    if observation.state == "failed":
        services.fail(job, observation.reason or "The worker did not say why.", observation.remedy)
        return
    result = kind.observed(job, observation)
    if result is not None:
        services.finish(job, result)


def _first_time(job: Job, observation: Observation) -> bool:
    try:
        with transaction.atomic():
            JobMessage.objects.create(job=job, attempt=observation.attempt, sequence=observation.sequence)
    except IntegrityError:
        return False
    return True


def _alive(job: Job, observation: Observation) -> None:
    values: dict = {"heartbeat_at": timezone.now()}
    if observation.sequence > job.observed_sequence:
        values["observed_sequence"] = observation.sequence
        if observation.phase and observation.state != "heartbeat":
            values["step"] = observation.phase[:300]
            if observation.phase[:300] != job.step:
                services.add_log(job, [observation.phase])
        if observation.progress is not None:
            values["progress"] = min(max(observation.progress, 0.0), 1.0)
    Job.objects.filter(pk=job.pk).update(**values)
    for name, value in values.items():
        setattr(job, name, value)


def _node_seen(observation: Observation) -> None:
    """Note that the node's worker lives; at most every few seconds, and never later than now."""
    from controlplane.inventory.models import Node

    now = timezone.now()
    Node.objects.filter(slug=observation.node).exclude(worker_last_seen_at__gt=now - dt.timedelta(seconds=5)).update(
        worker_last_seen_at=now
    )

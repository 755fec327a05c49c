"""The life of a job. Every step is one conditional UPDATE: whoever changes the row has the right to go on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role, User
from controlplane.core.services import log_change
from controlplane.jobs import sending
from controlplane.jobs.kinds import NodeJobKind, get_kind
from controlplane.jobs.models import Job, JobLog

State = Job.State
LINE_CHARS = 4000
LOG_LINES = 20_000


class JobLost(Exception):  # noqa: N818 - an event, not a fault
    """The job is no longer this worker's: it was reaped, ended or claimed again."""


class JobCancelled(Exception):  # noqa: N818 - an event, not a fault
    """Somebody asked for the job to stop."""


def submit_job(
    *,
    actor: Actor,
    kind: str,
    payload: dict[str, Any],
    queue: str | None = None,
    deadline: dt.timedelta | None = None,
) -> Job:
    """Write a queued job; its message goes out when the surrounding transaction is committed.

    The caller has checked the role. Raises KeyError for an unknown kind.
    """
    spec = get_kind(kind)
    with transaction.atomic():
        job = Job.objects.create(
            kind=kind,
            payload=payload,
            queue=queue or spec.queue,
            max_attempts=spec.max_attempts,
            deadline_at=timezone.now() + (deadline or spec.deadline),
            created_by=actor if isinstance(actor, User) else None,
        )
        transaction.on_commit(lambda: sending.send(job))
    return job


def claim(job_id: Any, *, worker: str, attempt: int | None = None) -> Job | None:
    """Take a queued job for ``worker``; None when it is not there to be taken.

    ``attempt`` given: only when this would be that attempt (a node worker reports on one attempt).
    """
    now = timezone.now()
    rows = Job.objects.filter(pk=job_id, state=State.QUEUED, cancel_requested_at__isnull=True)
    if attempt is not None:
        rows = rows.filter(attempt=attempt - 1)
    taken = rows.update(
        state=State.RUNNING,
        attempt=F("attempt") + 1,
        claimed_by=worker[:120],
        heartbeat_at=now,
        started_at=now,
        observed_sequence=-1,
        error="",
        remedy="",
    )
    return Job.objects.get(pk=job_id) if taken == 1 else None


def heartbeat(job: Job) -> bool:
    """Say that the job lives; returns whether somebody asked for it to stop. Raises JobLost."""
    _own(job).update(heartbeat_at=timezone.now())
    row = Job.objects.filter(pk=job.pk).values_list("state", "attempt", "cancel_requested_at").first()
    if row is None or row[0] != State.RUNNING or row[1] != job.attempt:
        raise JobLost(str(job.pk))
    return row[2] is not None


def set_progress(job: Job, progress: float, step: str) -> bool:
    """Store how far a running job is (0..1) and what it does; returns whether to stop. Raises JobLost."""
    _own(job).update(progress=min(max(progress, 0.0), 1.0), step=step[:300])
    return heartbeat(job)


def add_log(job: Job, lines: Iterable[str], level: str = JobLog.Level.INFO) -> None:
    """Append lines to the log; past 20,000 lines it says once that the rest is left out."""
    texts = [line.replace("\x00", "�")[:LINE_CHARS] for line in lines]
    if not texts:
        return
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, log_lines__lte=LOG_LINES).update(log_lines=F("log_lines") + len(texts)):
            return
        end = Job.objects.values_list("log_lines", flat=True).get(pk=job.pk)
        if end > LOG_LINES:
            keep = max(0, len(texts) - (end - LOG_LINES))
            texts = [*texts[:keep], "The log is full; further lines are left out."]
            Job.objects.filter(pk=job.pk).update(log_lines=LOG_LINES + 1)
            start = LOG_LINES - keep
        else:
            start = end - len(texts)
        JobLog.objects.bulk_create(
            JobLog(job_id=job.pk, sequence=start + i, level=level, text=text) for i, text in enumerate(texts)
        )


def finish(job: Job, outcome: Any) -> bool:
    """End a running job well and store what it found, both or neither; False when the job was lost meanwhile."""
    with transaction.atomic():
        if not _end(job, State.SUCCEEDED, from_states=(State.RUNNING,), progress=1.0):
            return False
        job.result = get_kind(job.kind).store(job, outcome)
        Job.objects.filter(pk=job.pk).update(result=job.result)
    return True


def fail(job: Job, error: str, remedy: str = "", *, from_states: tuple[str, ...] = (State.RUNNING,)) -> bool:
    """End a job with the reason and what to do about it; False when it was lost meanwhile."""
    with transaction.atomic():
        said = error.strip() or "It failed without saying why."
        if not _end(job, State.FAILED, from_states=from_states, error=said, remedy=remedy.strip()):
            return False
        add_log(job, [f"{said} {remedy}".strip()], JobLog.Level.ERROR)
        get_kind(job.kind).on_failed(job)
    return True


def cancel(job: Job, *, from_states: tuple[str, ...] = (State.RUNNING,)) -> bool:
    """End a job because somebody asked for it; False when it was lost meanwhile."""
    with transaction.atomic():
        if not _end(job, State.CANCELLED, from_states=from_states, step="Cancelled"):
            return False
        add_log(job, ["Cancelled."], JobLog.Level.WARNING)
        get_kind(job.kind).on_cancelled(job)
    return True


def requeue(job: Job, reason: str) -> bool:
    """Put a running job back for another attempt; False when it was lost meanwhile."""
    with transaction.atomic():
        moved = _own(job).update(
            state=State.QUEUED, claimed_by="", heartbeat_at=None, sent_at=None, step=reason[:300], progress=0.0
        )
        if not moved:
            return False
        add_log(job, [reason], JobLog.Level.WARNING)
        job.refresh_from_db()
        transaction.on_commit(lambda: sending.send(job))
    return True


def request_cancel(*, actor: Actor, job: Job) -> Job:
    """Ask a job to stop: the wish is stored first. A queued job, or one on a node, ends at once.

    Its creator may, or an operator. Raises PermissionDenied.
    """
    from controlplane.core.access import require

    if actor is None or actor.pk != job.created_by_id:
        require(actor, Role.OPERATOR)
    with transaction.atomic():
        asked = Job.objects.filter(pk=job.pk, cancel_requested_at__isnull=True, finished_at__isnull=True).update(
            cancel_requested_at=timezone.now()
        )
        job.refresh_from_db()
        if asked:
            log_change(job, ChangeLog.Action.ACT, actor=actor, after={"cancel_requested": True})
            # What a node still does is ended by a command of its own (``on_cancelled``); what it says is dropped.
            states = (State.QUEUED, State.RUNNING) if isinstance(get_kind(job.kind), NodeJobKind) else (State.QUEUED,)
            cancel(job, from_states=states)
            job.refresh_from_db()
    return job


def retry_job(*, actor: Actor, job: Job) -> Job:
    """Do what a failed or cancelled job should have done, as a new job; takes whom the act itself takes.

    Raises PermissionDenied, and ValidationError where the job did not end badly or the act makes no sense any more.
    """
    from controlplane.core.access import require

    if job.state not in (State.FAILED, State.CANCELLED):
        state = job.get_state_display().lower()
        raise ValidationError(f"The job is {state}; only a failed or cancelled one can be submitted again.")
    with transaction.atomic():
        fresh = get_kind(job.kind).again(job, actor)
    if fresh is not None:
        return fresh
    require(actor, Role.OPERATOR)
    return submit_job(actor=actor, kind=job.kind, payload=job.payload, queue=job.queue)


def _own(job: Job) -> models.QuerySet[Job]:
    return Job.objects.filter(pk=job.pk, state=State.RUNNING, attempt=job.attempt)


def _end(job: Job, state: str, *, from_states: tuple[str, ...], **values: Any) -> bool:
    """Move a job to a final state when it is still this attempt's; refreshes ``job``."""
    now = timezone.now()
    moved = Job.objects.filter(pk=job.pk, state__in=from_states, attempt=job.attempt).update(
        state=state, finished_at=now, heartbeat_at=now, **values
    )
    if moved:
        job.refresh_from_db()
    return moved == 1

"""What the scheduler's tick does for jobs: send again, reap, end, explain. Safe to run in several places at once."""

from __future__ import annotations

import datetime as dt
import os
import socket

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from controlplane.jobs import sending, services
from controlplane.jobs.kinds import NodeJobKind, get_kind
from controlplane.jobs.models import Job

State = Job.State
NODE_WAIT = dt.timedelta(minutes=15)
"""How long a command waits for a node worker that shows no sign of life."""


def sweep(now: dt.datetime | None = None) -> dict[str, int]:
    """One pass over the unfinished jobs; returns how many were sent, requeued, failed and cancelled."""
    moment = now or timezone.now()
    counts = {"sent": 0, "requeued": 0, "failed": 0, "cancelled": 0}
    for job in Job.objects.filter(state__in=[State.QUEUED, State.RUNNING]).order_by("created_at"):
        act = _queued(job, moment) if job.state == State.QUEUED else _running(job, moment)
        if act:
            counts[act] += 1
    return counts


def _queued(job: Job, now: dt.datetime) -> str:
    if job.cancel_requested_at is not None:
        return "cancelled" if services.cancel(job, from_states=(State.QUEUED,)) else ""
    if job.deadline_at is not None and now > job.deadline_at:
        return _expire(job, now, State.QUEUED)
    is_node = isinstance(get_kind(job.kind), NodeJobKind)
    if is_node and (problem := _silent_node(job, now)):
        return "failed" if services.fail(job, *problem, from_states=(State.QUEUED,)) else ""
    if job.sent_at is not None and now - job.sent_at < dt.timedelta(seconds=settings.JOB_RESEND_S):
        return ""
    if job.sent_at is None and now - job.created_at < dt.timedelta(seconds=2):
        return ""  # just written: its own message is on the way
    if job.sent_at is not None and _queue_is_busy(job):
        return ""  # waits behind another job; a second message would only make the queue longer
    return "sent" if sending.send(job) else ""


def _running(job: Job, now: dt.datetime) -> str:
    if job.deadline_at is not None and now > job.deadline_at:
        return _expire(job, now, State.RUNNING)
    alive_at = job.heartbeat_at or job.started_at or job.created_at
    silent = now - alive_at
    gone = _process_is_gone(job)
    if silent < dt.timedelta(seconds=settings.JOB_STALE_S) and not gone:
        return ""
    said = (
        f"The worker process {job.claimed_by} has ended"
        if gone
        else f"The worker {job.claimed_by or '?'} gave no sign of life for {silent.total_seconds():.0f} s"
    )
    if job.cancel_requested_at is not None:
        return "cancelled" if services.cancel(job) else ""
    if job.attempt < job.max_attempts:
        return "requeued" if services.requeue(job, f"{said}; attempt {job.attempt + 1} follows.") else ""
    remedy = "See the worker's log for why it ended (killed for memory, host restarted), then try again."
    return "failed" if services.fail(job, f"{said}, in attempt {job.attempt} of {job.max_attempts}.", remedy) else ""


def _expire(job: Job, now: dt.datetime, state: str) -> str:
    began = job.started_at if state == State.RUNNING and job.started_at else job.created_at
    minutes = (now - began).total_seconds() / 60
    doing = f"while {job.step[:1].lower()}{job.step[1:]}" if job.step else f"while {state}"
    ended = services.fail(
        job,
        f"It was not done by its deadline: {minutes:.0f} minutes had passed, {doing}.",
        "Check that its worker runs and is not overloaded, then try again.",
        from_states=(state,),
    )
    return "failed" if ended else ""


def _process_is_gone(job: Job) -> bool:
    """Whether the job's worker was a process of this host that is no more; asked only where all run on one host."""
    host, _, pid = job.claimed_by.rpartition(":")
    if not settings.ENV.embedded_database or host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _queue_is_busy(job: Job) -> bool:
    alive_after = timezone.now() - dt.timedelta(seconds=settings.JOB_STALE_S)
    return (
        Job.objects.filter(queue=job.queue, state=State.RUNNING, heartbeat_at__gt=alive_after)
        .exclude(pk=job.pk)
        .exists()
    )


def _silent_node(job: Job, now: dt.datetime) -> tuple[str, str] | None:
    """Reason and remedy when the node's worker has been silent too long, else None."""
    from controlplane.inventory.models import Node

    if now - (job.sent_at or job.created_at) < dt.timedelta(0) or now - job.created_at < NODE_WAIT:
        return None
    slug = job.queue.removeprefix("node.")
    alive = Node.objects.filter(Q(slug=slug), worker_last_seen_at__gt=now - NODE_WAIT).exists()
    if alive or _queue_is_busy(job):
        return None
    return (
        f"The worker of node {slug} has not answered for {NODE_WAIT.total_seconds() / 60:.0f} minutes.",
        f"Start it on that host: TONNAGE_NODE_SLUG={slug} python -m runners worker",
    )

"""Messages out. Each only nudges: what is lost here is sent again by the sweep."""

from __future__ import annotations

from dataclasses import asdict

import structlog
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from controlplane.jobs.kinds import NodeJobKind, get_kind
from controlplane.jobs.models import Job

RUN_TASK = "tonnage.control.run_job"
log = structlog.get_logger(__name__)


def send(job: Job) -> bool:
    """Send the message of a queued job; False when the broker did not take it (the sweep tries again)."""
    kind = get_kind(job.kind)
    try:
        if isinstance(kind, NodeJobKind):
            publish(kind.task, asdict(kind.command(job, job.attempt + 1)), job.queue)
        else:
            publish(RUN_TASK, {"job_id": str(job.pk)}, job.queue)
    except (BrokerError, OSError) as error:
        log.warning("message not sent", job=str(job.pk), kind=job.kind, queue=job.queue, error=str(error))
        return False
    Job.objects.filter(pk=job.pk).update(sent_at=timezone.now())
    return True


def publish(task: str, payload: dict, queue: str) -> None:
    """Hand one message to the broker."""
    from controlplane.celery import app

    app.send_task(task, args=[payload], queue=queue, ignore_result=True, retry=False)

"""The Celery tasks of the control plane; the work is in running.py and observing.py."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from controlplane.jobs.observing import apply_observation
from controlplane.jobs.retrying import TRANSIENT, retry_transient
from controlplane.jobs.running import run_job
from controlplane.jobs.sending import RUN_TASK
from runners.contracts import OBSERVE_TASK


@shared_task(name=RUN_TASK)
def run(message: dict[str, Any]) -> str:
    """Run the job that ``message`` names."""
    return run_job(message["job_id"])


@shared_task(name=OBSERVE_TASK, bind=True, max_retries=None)
def observe(self: Task, message: dict[str, Any]) -> str:
    """Apply what a node worker reports; a database that is locked or away never loses it."""
    try:
        return retry_transient(lambda: apply_observation(message))
    except TRANSIENT as error:
        raise self.retry(exc=error, countdown=5) from error

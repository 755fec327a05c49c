"""Drive one job in a control worker: claim, keep alive, run, end."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import close_old_connections, connection

from controlplane.jobs import services
from controlplane.jobs.kinds import get_kind
from controlplane.jobs.models import Job, JobLog
from controlplane.jobs.retrying import TRANSIENT, retry_transient
from controlplane.jobs.services import JobCancelled, JobLost
from planner.errors import PlannerError

log = structlog.get_logger(__name__)
_WRITE_EVERY_S = 0.25


class JobFailed(Exception):  # noqa: N818 - raised by kinds to end a job with a remedy
    """The act cannot be done: what happened, and what to do about it. Safe to show."""

    def __init__(self, error: str, remedy: str = "") -> None:
        self.error = error
        self.remedy = remedy
        super().__init__(error)


class RunningJob:
    """The ``Work`` of a claimed job: what its kind reports goes to the row, what users wish comes back."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.payload: dict[str, Any] = job.payload
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._written_at = 0.0
        self._step = ""

    def progress(self, share: float, step: str) -> None:
        """Say how far (0..1) and what is being done. Raises JobCancelled or JobLost when the work is to stop."""
        now = time.monotonic()
        if step != self._step or now - self._written_at >= _WRITE_EVERY_S or share >= 1:
            if step and step != self._step:
                retry_transient(lambda: services.add_log(self.job, [step]))
            self._step, self._written_at = step, now
            if retry_transient(lambda: services.set_progress(self.job, share, step)):
                self._stop.set()
        self.check()

    def log(self, text: str, level: str = JobLog.Level.INFO) -> None:
        """Append one line to the log."""
        retry_transient(lambda: services.add_log(self.job, [text], level))

    def should_cancel(self) -> bool:
        """Whether to stop as soon as possible; cheap enough to ask often."""
        return self._stop.is_set() or self._lost.is_set()

    def check(self) -> None:
        """Raise JobCancelled or JobLost when the work is to stop."""
        if self._lost.is_set():
            raise JobLost(str(self.job.pk))
        if self._stop.is_set():
            raise JobCancelled(str(self.job.pk))

    def keep_alive(self, done: threading.Event) -> None:
        """Heartbeat until ``done``; runs in a thread of its own."""
        try:
            while not done.wait(settings.JOB_HEARTBEAT_S):
                try:
                    if services.heartbeat(self.job):
                        self._stop.set()
                except JobLost:
                    self._lost.set()
                    return
                except TRANSIENT:
                    connection.close()
        finally:
            connection.close()


def run_job(job_id: str) -> str:
    """Claim and run a job; returns how it ended. A second delivery of the same message finds nothing to claim."""
    worker = f"{socket.gethostname()}:{os.getpid()}"
    job = retry_transient(lambda: services.claim(job_id, worker=worker))
    if job is None:
        return "not claimed"
    running = RunningJob(job)
    done = threading.Event()
    keeper = threading.Thread(target=running.keep_alive, args=(done,), name=f"heartbeat-{job.pk}", daemon=True)
    keeper.start()
    with structlog.contextvars.bound_contextvars(job=str(job.pk), kind=job.kind):
        try:
            return _drive(running)
        finally:
            done.set()
            keeper.join(timeout=5)
            if not connection.in_atomic_block:
                close_old_connections()


def _drive(running: RunningJob) -> str:
    job = running.job
    try:
        outcome = get_kind(job.kind).run(running)
        running.check()
        return "succeeded" if retry_transient(lambda: services.finish(job, outcome)) else "lost"
    except JobLost:
        log.warning("job was taken away from this worker")
        return "lost"
    except JobCancelled:
        return "cancelled" if retry_transient(lambda: services.cancel(job)) else "lost"
    except JobFailed as error:
        return _fail(job, error.error, error.remedy)
    except PlannerError as error:
        return _fail(job, str(error), "")
    except ValidationError as error:
        return _fail(job, " ".join(error.messages), "Correct the record and try again.")
    except TRANSIENT as error:
        log.warning("database failure", error=str(error))
        reason = f"The database was not available: {error}"
        moved = retry_transient(lambda: services.requeue(job, reason))
        return "requeued" if moved else "lost"
    except MemoryError:
        return _fail(
            job, "The worker ran out of memory.", "Run it on a host with more memory, or plan fewer workloads."
        )
    except Exception as error:  # a fault of ours must not leave the row running
        log.exception("job failed")
        services.add_log(job, traceback.format_exc().splitlines()[-40:], JobLog.Level.ERROR)
        return _fail(
            job, f"An internal error: {type(error).__name__}: {error}", "The log holds the details; please report it."
        )


def _fail(job: Job, error: str, remedy: str) -> str:
    return "failed" if retry_transient(lambda: services.fail(job, error, remedy)) else "lost"

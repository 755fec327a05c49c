"""The scheduler: one small loop that keeps jobs moving and the database tidy."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, connection
from django.utils import timezone

from controlplane.core import hostlease
from controlplane.core.models import IdempotencyKey
from controlplane.jobs.models import Job, JobMessage
from controlplane.jobs.sweep import sweep

log = structlog.get_logger(__name__)
IDEMPOTENCY_KEPT = dt.timedelta(days=1)
MESSAGES_KEPT = dt.timedelta(days=7)
TIDY_EVERY = 900


def run(stop: threading.Event) -> None:
    """Tick until ``stop``; a failing tick is logged and the next one tries again. Raises HostError."""
    count = 0
    while not stop.is_set():
        tick(tidy=count % TIDY_EVERY == 0)
        count += 1
        stop.wait(settings.SCHEDULER_TICK_S)


def tick(*, tidy: bool = False) -> None:
    """One pass: renew the host lease, sweep the jobs and, now and then, tidy up."""
    hostlease.renew()
    steps: list[Callable[[], object]] = [sweep, *([_tidy] if tidy else [])]
    for step in steps:
        try:
            close_old_connections()
            counts = step()
            if isinstance(counts, dict) and any(counts.values()):
                log.info("swept jobs", **{name: count for name, count in counts.items() if count})
        except DatabaseError as error:
            log.warning("tick failed; the next one tries again", error=str(error))
            connection.close()


def _tidy() -> None:
    now = timezone.now()
    IdempotencyKey.objects.filter(created_at__lt=now - IDEMPOTENCY_KEPT).delete()
    JobMessage.objects.filter(job__state__in=Job.FINAL, job__finished_at__lt=now - MESSAGES_KEPT).delete()

"""Settings of the processes in test_services.py: a job kind that only counts, and a sweep that is quick to reap."""

from __future__ import annotations

import time
from typing import Any

from django.apps import AppConfig

from controlplane.settings import *  # noqa: F403
from controlplane.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.controlplane.counting_settings.CountingConfig"]
JOB_HEARTBEAT_S = 0.5
JOB_STALE_S = 5
JOB_RESEND_S = 2
SCHEDULER_TICK_S = 0.5


class CountingConfig(AppConfig):
    """Registers the kind ``test.count``."""

    name = "tests.controlplane.counting_settings"
    label = "counting"

    def ready(self) -> None:
        """Payload: ``steps``, and ``pause_s`` before each of them in the first attempt."""
        from controlplane.jobs.kinds import JobKind, Work, register

        @register
        class Count(JobKind):
            kind = "test.count"
            label = "Count"

            def run(self, job: Work) -> dict[str, Any]:
                steps = job.payload["steps"]
                for step in range(steps):
                    job.progress(step / steps, f"Step {step + 1} of {steps}")
                    time.sleep(job.payload["pause_s"] if job.job.attempt == 1 else 0)
                return {"steps": steps, "attempt": job.job.attempt}

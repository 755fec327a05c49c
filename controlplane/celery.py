"""The Celery application of the control plane; node workers run ``python -m runners worker``.

Two queues: ``control`` for short acts and for what node workers report, ``plan`` for computing, so that a long plan
never holds up an observation.
"""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import setup_logging, worker_init
from kombu import Queue

from controlplane import broker
from controlplane import env as _env
from runners.contracts import CONTROL_QUEUE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

PLAN_QUEUE = "plan"

app = Celery("tonnage")
app.conf.update(
    **{
        **broker.celery_settings(_env.load()),
        "task_default_queue": CONTROL_QUEUE,
        "task_queues": [Queue(name, routing_key=name) for name in (CONTROL_QUEUE, PLAN_QUEUE)],
        "task_create_missing_queues": True,
        "worker_prefetch_multiplier": 1,
        "enable_utc": True,
        "timezone": "UTC",
    }
)
app.autodiscover_tasks(["controlplane.jobs"])


@setup_logging.connect
def _keep_our_logging(**_kwargs: object) -> None:
    """Leave logging as the Django settings made it."""


@worker_init.connect
def _refuse_foreign_host(**_kwargs: object) -> None:
    """A worker on another host must not open this host's SQLite file."""
    from controlplane.core import hostlease

    try:
        hostlease.check()
    except hostlease.HostError as error:
        raise SystemExit(f"tonnage: {error}") from error

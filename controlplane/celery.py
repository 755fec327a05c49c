"""The Celery application of the control plane; node workers run runners.celery_app instead."""

from __future__ import annotations

import os

from celery import Celery
from kombu import Queue

from runners.contracts import CONTROL_QUEUE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from controlplane import broker
from controlplane import env as _env

app = Celery("tonnage")
app.conf.update(
    **broker.celery_settings(_env.load()),
    task_default_queue=CONTROL_QUEUE,
    task_queues=[Queue(CONTROL_QUEUE, routing_key=CONTROL_QUEUE)],
    task_create_missing_queues=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    enable_utc=True,
    timezone="UTC",
)
app.autodiscover_tasks(["controlplane.jobs", "controlplane.deployments"])

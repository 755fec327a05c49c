"""Celery application of a node worker: ``python -m runners worker`` runs it on queue ``node.<slug>``."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

from celery import Celery, signals
from kombu.exceptions import OperationalError

from planner.jsonio import to_json
from runners.adopting import Keeper
from runners.broker import broker_settings
from runners.config import load_config
from runners.contracts import ADOPT_TASK, CONTROL_QUEUE, OBSERVE_TASK, AdoptCommand, Observation, node_queue
from runners.node import Node
from runners.state import StateStore

log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it writes a line for every question to an engine
logging.getLogger("kombu.connection").setLevel(logging.ERROR)  # it warns that filesystem:// names no host
SEND_TRIES = {"max_retries": 5, "interval_start": 0.1, "interval_step": 0.4, "interval_max": 2.0}

TASKS_AT_ONCE = 16

config = load_config()
queue = node_queue(config.slug)
app = Celery("tonnage.node", include=["runners.tasks"])
app.conf.update(
    **broker_settings(config.broker_url, config.data_dir),
    task_default_queue=queue,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=1,
    worker_pool="threads",  # tasks wait for engines most of the time, and must see the worker's shutdown
    worker_concurrency=TASKS_AT_ONCE,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    enable_utc=True,
)


@functools.cache
def node() -> Node:
    """This worker's node, made on first use."""
    return Node(config, StateStore(config.state_dir), send_observation)


def send_observation(observation: Observation) -> None:
    """Send one observation to the control plane. One that cannot be sent is logged: the state on disk keeps the truth,
    and the next adoption reports it again.
    """
    try:
        app.send_task(
            OBSERVE_TASK, args=[to_json(observation)], queue=CONTROL_QUEUE, retry=True, retry_policy=SEND_TRIES
        )
    except (OperationalError, OSError) as error:
        log.warning("observation %s of job %s was not sent: %s", observation.state, observation.job_id, error)


@signals.worker_ready.connect
def _begin(**_kwargs: Any) -> None:
    """Take up what an earlier worker left, then look after it."""
    command = AdoptCommand(job_id="", attempt=0, node_slug=config.slug)
    with contextlib.suppress(OperationalError):
        app.send_task(ADOPT_TASK, args=[to_json(command)], queue=queue)
    Keeper(node()).start()


@signals.worker_shutting_down.connect
def _end(**_kwargs: Any) -> None:
    """Let what waits end now; engines go on, and the next worker takes them up."""
    node().stopping.set()

"""A real node worker in a process of its own, over the filesystem broker, and what it sends to the control plane."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Connection

from planner.jsonio import from_json, to_json
from runners.broker import broker_settings
from runners.config import load_config
from runners.contracts import CONTROL_QUEUE, Observation, node_queue
from runners.hosts import process
from runners.state import StateStore

REPOSITORY = Path(__file__).resolve().parents[2]
SLUG = "e2e"


class WorkerProcess:
    """Starts, kills and talks to a worker of the node ``e2e`` whose data lie in ``data_dir``."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        settings = broker_settings("filesystem://", data_dir)
        self.app = Celery("test")
        self.app.conf.update(**settings)
        self._queue = Connection("filesystem://", transport_options=settings["broker_transport_options"]).SimpleQueue(
            CONTROL_QUEUE
        )
        self.store = StateStore(load_config(self._variables()).state_dir)
        self.seen: list[Observation] = []
        self.worker: subprocess.Popen[bytes] | None = None

    def _variables(self) -> dict[str, str]:
        return {"TONNAGE_DATA_DIR": str(self.data_dir), "TONNAGE_NODE_SLUG": SLUG, "TONNAGE_MIN_FREE_MIB": "1"}

    def start(self) -> None:
        """Start a worker; its log goes to worker.log."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TONNAGE_")}
        with (self.data_dir / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "runners", "worker"],
                cwd=REPOSITORY,
                env={**kept, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End the worker as a power cut would."""
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait(timeout=10)

    def close(self) -> None:
        """End the worker and every engine."""
        if self.worker is not None and self.worker.poll() is None:
            self.worker.send_signal(signal.SIGTERM)
            try:
                self.worker.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.worker.kill()
        for handle in self.store.handles():
            process.stop(handle.process, handle.deployment_id, grace_s=0.0)
        for record in self.store.probes():
            process.stop(None, f"probe-{record.probe_id}", grace_s=0.0)

    def send(self, task: str, command: Any) -> None:
        """Send a command to the node."""
        self.app.send_task(task, args=[to_json(command)], queue=node_queue(SLUG))

    def wait(self, wanted: Callable[[Observation], bool], seconds: float) -> Observation:
        """The first observation from now on that is wanted; heartbeats and the rest are kept in ``seen``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                message = self._queue.get(timeout=0.5)
            except self._queue.Empty:
                continue
            observation = from_json(Observation, message.payload[0][0])
            message.ack()
            self.seen.append(observation)
            if wanted(observation):
                return observation
        said = "; ".join(f"{item.job_id} {item.state} {item.phase} {item.reason}" for item in self.seen[-12:])
        raise AssertionError(f"no such observation within {seconds:.0f} s; the last ones: {said}")

    def ends(self, job: str, seconds: float = 60.0) -> Observation:
        """The observation that ends a job."""
        final = {"ready", "probed", "stopped", "discovered", "failed"}
        return self.wait(lambda item: item.job_id == job and item.state in final, seconds)

    def left_behind(self, deployment: str) -> list[int]:
        """Processes of a deployment that still live."""
        handle = self.store.load(deployment)
        return process.members(handle.process if handle else None, deployment)

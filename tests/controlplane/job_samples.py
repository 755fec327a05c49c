"""Job kinds that do what a test says, and messages about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from controlplane.jobs import kinds, services
from controlplane.jobs.models import Job
from planner.jsonio import to_json
from runners.contracts import DISCOVER_TASK, DiscoverCommand, Observation


class Recorder(kinds.JobKind):
    """Does what the test says."""

    kind = "test.control"
    label = "Test"
    max_attempts = 2

    def __init__(self) -> None:
        self.act: Callable[[kinds.Work], Any] = lambda job: {"answer": 42}
        self.ended: list[str] = []

    def run(self, job: kinds.Work) -> Any:
        return self.act(job)

    def on_failed(self, job: Job) -> None:
        self.ended.append(f"failed: {job.error}")

    def on_cancelled(self, job: Job) -> None:
        self.ended.append("cancelled")


class NodeRecorder(kinds.NodeJobKind):
    """A node command."""

    kind = "test.node"
    label = "Test on a node"
    task = DISCOVER_TASK
    max_attempts = 2

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.tardy: list[Observation] = []

    def command(self, job: Job, attempt: int) -> DiscoverCommand:
        return DiscoverCommand(job_id=str(job.pk), attempt=attempt, node_slug="n1")

    def observed(self, job: Job, observation: Observation) -> dict | None:
        self.seen.append(observation)
        return {"ok": True} if observation.state == "discovered" else None

    def late(self, job: Job, observation: Observation) -> None:
        self.tardy.append(observation)


def submit(kind: str = "test.control", **extra: Any) -> Job:
    return services.submit_job(actor=None, kind=kind, payload={"n": 1}, **extra)


def seen(job: Job, sequence: int, state: Any = "progress", attempt: int = 1, **extra: Any) -> dict:
    observation = Observation(
        job_id=str(job.pk), attempt=attempt, sequence=sequence, state=state, node="n1", at=time.time(), **extra
    )
    return to_json(observation)

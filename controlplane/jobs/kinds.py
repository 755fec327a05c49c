"""Job kinds: plain classes, registered by name, driven by one task.

``JobKind`` runs in a control worker. ``NodeJobKind`` is a command that a node worker carries out and reports on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from django.apps import apps

from runners.contracts import (
    CONTROL_QUEUE,
    CancelCommand,
    DiscoverCommand,
    LaunchCommand,
    Observation,
    ProbeCommand,
    StopCommand,
)

if TYPE_CHECKING:
    from controlplane.core.access import Actor
    from controlplane.jobs.models import Job

NodeCommand = LaunchCommand | ProbeCommand | CancelCommand | StopCommand | DiscoverCommand


class Work(Protocol):
    """What a kind sees of its job while it runs: payload in; progress, log lines and the wish to stop."""

    job: Job
    payload: dict[str, Any]

    def progress(self, share: float, step: str) -> None:
        """Say how far (0..1) and what is being done; raises when the work is to stop."""

    def log(self, text: str) -> None:
        """Append one line to the job's log."""

    def should_cancel(self) -> bool:
        """Whether to stop as soon as possible; cheap enough to ask often."""


class JobKind:
    """One kind of long act. Subclasses say how it runs; they hold no state between jobs."""

    kind: ClassVar[str]
    label: ClassVar[str]
    queue: ClassVar[str] = CONTROL_QUEUE
    max_attempts: ClassVar[int] = 3
    deadline: ClassVar[dt.timedelta] = dt.timedelta(hours=1)

    def run(self, job: Work) -> Any:
        """Do the work, outside any transaction. Report through ``job``; raise to fail. The answer goes to ``store``."""
        raise NotImplementedError

    def store(self, job: Job, outcome: Any) -> dict | None:
        """Write the outcome, in the transaction that also ends the job; returns the job's ``result``."""
        return outcome if isinstance(outcome, dict) else None

    def on_failed(self, job: Job) -> None:
        """The job has failed for good (same transaction)."""

    def on_cancelled(self, job: Job) -> None:
        """The job was cancelled (same transaction)."""

    def again(self, job: Job, actor: Actor) -> Job | None:
        """Begin the act of a job that failed or was cancelled anew; returns the new job, whose role it checks itself.

        None: nothing of ours waits for the job, so that its payload is submitted as it is. Raises ValidationError when
        the act makes no sense any more.
        """


class NodeJobKind(JobKind):
    """An act of a node worker. The message carries the command and the number of the attempt it would be."""

    task: ClassVar[str]

    def command(self, job: Job, attempt: int) -> NodeCommand:
        """The command to send; built anew for each attempt, so that it says what holds now."""
        raise NotImplementedError

    def observed(self, job: Job, observation: Observation) -> dict | None:
        """Apply one message of the worker (same transaction). A dict, even an empty one, ends the job with it."""
        raise NotImplementedError

    def late(self, job: Job, observation: Observation) -> None:
        """A message of this attempt that came after the job had ended (same transaction)."""


_KINDS: dict[str, JobKind] = {}
K = TypeVar("K", bound=type[JobKind])


def register(cls: K) -> K:
    """Class decorator: make the kind known by its name."""
    if cls.kind in _KINDS:
        raise ValueError(f"two job kinds are called {cls.kind}")
    _KINDS[cls.kind] = cls()
    return cls


def get_kind(name: str) -> JobKind:
    """The kind of that name; raises KeyError."""
    return _KINDS[name]


def load_kinds(find: Callable[[str], Any] = import_module) -> None:
    """Import ``job_kinds`` of every app of ours that has one."""
    for config in apps.get_app_configs():
        if config.name.startswith("controlplane."):
            try:
                find(f"{config.name}.job_kinds")
            except ModuleNotFoundError as error:
                if error.name != f"{config.name}.job_kinds":
                    raise

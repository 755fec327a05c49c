"""What every command of a node worker works with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runners.config import NodeConfig
from runners.contracts import Observation
from runners.errors import WorkerStoppingError
from runners.state import StateStore

Send = Callable[[Observation], None]


@dataclass(eq=False)
class Node:
    """One node worker: its settings, its state on disk and its way to the control plane.

    ``stopping`` is set when the worker shuts down; whatever waits must end soon and leave its state to the next worker.
    """

    config: NodeConfig
    store: StateStore
    send: Send
    stopping: threading.Event = field(default_factory=threading.Event)

    def pause(self, seconds: float) -> None:
        """Sleep; raises WorkerStoppingError when the worker shuts down meanwhile."""
        if self.stopping.wait(seconds):
            raise WorkerStoppingError("The worker is shutting down.", "The next worker takes this up again.")


class Reporter:
    """Sends the observations of one job attempt, numbered without gaps.

    ``remember`` stores the last number, so that a worker that takes the job over goes on counting.
    """

    def __init__(
        self,
        node: Node,
        *,
        job_id: str,
        attempt: int,
        deployment_id: str = "",
        probe_id: str = "",
        emulated: bool = False,
        sequence: int = 0,
        remember: Callable[[int], object] = lambda _sequence: None,
    ) -> None:
        self.node = node
        self.job_id = job_id
        self.attempt = attempt
        self.deployment_id = deployment_id
        self.probe_id = probe_id
        self.emulated = emulated
        self.sequence = sequence
        self.remember = remember
        self._last_sent = 0.0

    def emit(self, state: Any, **payload: Any) -> None:
        """Send one observation."""
        self.sequence += 1
        self.remember(self.sequence)
        self._last_sent = time.monotonic()
        self.node.send(
            Observation(
                job_id=self.job_id,
                attempt=self.attempt,
                sequence=self.sequence,
                state=state,
                node=self.node.config.slug,
                at=time.time(),
                deployment_id=self.deployment_id,
                probe_id=self.probe_id,
                emulated=self.emulated,
                **payload,
            )
        )

    def heartbeat(self, every_s: float = 10.0) -> None:
        """Send a heartbeat when nothing was sent for ``every_s`` seconds."""
        if time.monotonic() - self._last_sent >= every_s:
            self.emit("heartbeat")

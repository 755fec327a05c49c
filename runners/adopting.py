"""Taking up what an earlier worker left, and looking after engines that run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from planner.jsonio import from_json
from runners.contracts import AdoptCommand, DiscoverCommand, LaunchCommand, Observation
from runners.discovery import discover_gpus, discover_host
from runners.errors import EngineExitedError, RunnerError
from runners.hosts import process
from runners.launching import repeat_state
from runners.node import Node, Reporter
from runners.state import Handle, ProbeRecord
from runners.stopping import halt
from runners.waiting import gone

NODE_HEARTBEAT_S = 15.0
LOOK_S = 2.0
PROBE_MARK = "probe-"


def discover(command: DiscoverCommand, node: Node) -> None:
    """Carry out a DiscoverCommand; ends with ``discovered``."""
    reporter = Reporter(node, job_id=command.job_id, attempt=command.attempt)
    reporter.emit("discovered", gpus=discover_gpus(), host=discover_host(node.config), progress=1.0)


def adopt(command: AdoptCommand, node: Node, relaunch: Callable[[LaunchCommand], None]) -> None:
    """Go through all handles: report what runs, finish stops, explain what died, wait on for what was loading.

    ``relaunch`` is given the stored command of every engine that still loads; it must not wait for it.
    """
    for handle in node.store.handles():
        _adopt_one(handle, node, relaunch)
    for record in node.store.probes():
        _end_orphaned_probe(record, node)
    if command.job_id:
        Reporter(node, job_id=command.job_id, attempt=command.attempt).emit(
            "discovered", host=discover_host(node.config)
        )


def _adopt_one(handle: Handle, node: Node, relaunch: Callable[[LaunchCommand], None]) -> None:
    if handle.state in ("starting", "loading"):
        with node.store.lock(handle.deployment_id, "launch", wait=False) as free:
            if not free:
                return
        relaunch(from_json(LaunchCommand, handle.command))
    elif handle.state == "ready":
        reporter = _reporter(handle, node)
        try:
            repeat_state(handle, node, reporter)
        except EngineExitedError as error:
            _lost(handle, node, reporter, error)
    elif handle.state == "stopping":
        reporter = _reporter(handle, node)
        try:
            halt(handle, handle.deployment_id, node, grace_s=0.0)
            reporter.emit("stopped", phase="stopped")
        except RunnerError as error:
            reporter.emit("failed", reason=error.reason, remedy=error.remedy)


def _reporter(handle: Handle, node: Node) -> Reporter:
    def remember(number: int) -> None:
        node.store.update(handle.deployment_id, lambda now: replace(now, sequence=number))

    return Reporter(
        node,
        job_id=handle.job_id,
        attempt=handle.attempt,
        deployment_id=handle.deployment_id,
        emulated=handle.emulated,
        sequence=handle.sequence,
        remember=remember,
    )


def _lost(handle: Handle, node: Node, reporter: Reporter, error: RunnerError) -> None:
    """An engine that was ready has ended by itself."""
    reason, remedy = error.reason, error.remedy
    try:
        process.stop(handle.process, handle.deployment_id, grace_s=0.0)
    except RunnerError as left:
        reason, remedy = f"{reason} {left.reason}", f"{remedy} {left.remedy}"
    node.store.set_state(handle.deployment_id, "failed", reason=reason, remedy=remedy)
    reporter.emit("failed", reason=reason, remedy=remedy)


def _end_orphaned_probe(record: ProbeRecord, node: Node) -> None:
    if record.state != "running":
        return
    with node.store.lock(record.probe_id, "probe", wait=False) as orphaned:
        if not orphaned:
            return
        process.stop(None, PROBE_MARK + record.probe_id, grace_s=0.0)
        reason, remedy = "The worker ended in the middle of the probe.", "Probe again; the engine was left as it was."
        node.store.save_probe(replace(record, state="failed", reason=reason, remedy=remedy))
        Reporter(
            node,
            job_id=record.job_id,
            attempt=record.attempt,
            deployment_id=record.deployment_id,
            probe_id=record.probe_id,
            sequence=record.sequence,
        ).emit("failed", reason=reason, remedy=remedy)


class Keeper(threading.Thread):
    """Background thread of a worker: notices engines that end by themselves, and says that the node lives."""

    def __init__(self, node: Node) -> None:
        super().__init__(name="keeper", daemon=True)
        self.node = node
        self._sequence = 0

    def run(self) -> None:
        """Look until the worker stops."""
        next_beat = 0.0
        while not self.node.stopping.wait(LOOK_S):
            try:
                self.look()
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + NODE_HEARTBEAT_S
                    self._beat()
            except (RunnerError, OSError) as error:
                self._beat(f"the keeper could not look: {error}")

    def look(self) -> None:
        """One round over all ready engines."""
        for handle in self.node.store.handles():
            if handle.state == "ready" and not process.is_alive(handle.process):
                now = self.node.store.load(handle.deployment_id)
                if now is not None and now.state == "ready":
                    _lost(now, self.node, _reporter(now, self.node), gone(now, self.node))

    def _beat(self, phase: str = "") -> None:
        self._sequence += 1
        config = self.node.config
        self.node.send(
            Observation("", 0, self._sequence, state="heartbeat", node=config.slug, at=time.time(), phase=phase)
        )

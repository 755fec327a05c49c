"""Stopping an engine: the whole group, its port, its GPU memory."""

from __future__ import annotations

import time

from runners.contracts import StopCommand
from runners.discovery import gpu_memory_used
from runners.errors import RunnerError, StopFailedError
from runners.hosts import process
from runners.node import Node, Reporter
from runners.state import Handle

MEMORY_WAIT_S = 30.0
MEMORY_SLACK_MIB = 1024


def stop(command: StopCommand, node: Node) -> None:
    """Carry out a StopCommand; harmless when nothing runs. Ends with ``stopped`` or ``failed``."""
    handle = node.store.load(command.deployment_id)
    reporter = Reporter(
        node,
        job_id=command.job_id,
        attempt=command.attempt,
        deployment_id=command.deployment_id,
        emulated=handle.emulated if handle else False,
    )
    try:
        reporter.emit("started", phase="stopping")
        killed = halt(handle, command.deployment_id, node, command.grace_s)
        phase = "killed: it did not end within its grace" if killed else "stopped"
        reporter.emit("stopped", phase=phase, progress=1.0)
    except RunnerError as error:
        reporter.emit("failed", reason=error.reason, remedy=error.remedy)


def halt(handle: Handle | None, deployment_id: str, node: Node, grace_s: float) -> bool:
    """End every process of a deployment and check that port and memory are free; True when it had to be killed.

    Raises StopFailedError when something is left.
    """
    if handle is not None:
        node.store.set_state(deployment_id, "stopping")
    killed = process.stop(handle.process if handle else None, deployment_id, grace_s=grace_s)
    if handle is None:
        return killed
    try:
        _check_port(handle, node)
        _check_memory(handle)
    except StopFailedError as error:
        node.store.set_state(deployment_id, "failed", reason=error.reason, remedy=error.remedy)
        raise
    node.store.set_state(deployment_id, "stopped", reason="", remedy="")
    return killed


def _check_port(handle: Handle, node: Node) -> None:
    if handle.port and process.is_port_open(node.config.bind_host, handle.port):
        raise StopFailedError(
            f"The engine is gone, but something still listens on its port {handle.port}.",
            "It is not one of the engine's processes: find it with ss -ltnp and stop it.",
        )


def _check_memory(handle: Handle) -> None:
    """GPU memory must fall back to what it was before the start."""
    if not handle.gpu_used_mib:
        return
    before = {int(index): used for index, used in handle.gpu_used_mib.items()}
    deadline = time.monotonic() + MEMORY_WAIT_S
    while True:
        now = gpu_memory_used(tuple(before))
        held = {index: used - before[index] for index, used in now.items() if used > before[index] + MEMORY_SLACK_MIB}
        if not held:
            return
        if time.monotonic() >= deadline:
            shown = ", ".join(f"GPU {index}: {mib} MiB more than before" for index, mib in held.items())
            raise StopFailedError(
                f"The engine's processes are gone, but memory is still held ({shown}).",
                "Another deployment may have started there; else find the holder with nvidia-smi, or reset the GPU.",
            )
        time.sleep(0.5)

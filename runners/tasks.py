"""Celery tasks of a node worker: each turns a message into a command and hands it on.

Every task may be delivered twice or late; the state on disk makes that harmless.
"""

from __future__ import annotations

from typing import Any

from planner.jsonio import to_json
from runners import contracts
from runners.adopting import adopt as adopt_all
from runners.adopting import discover as discover_node
from runners.celery_app import app, node
from runners.dispatch import carry_out
from runners.launching import launch as launch_engine
from runners.probing import cancel as cancel_probe
from runners.probing import probe as probe_engine
from runners.stopping import stop as stop_engine


@app.task(name=contracts.LAUNCH_TASK, acks_late=True)
def launch(message: dict[str, Any]) -> None:
    """LaunchCommand: start an engine and report until it is ready or has failed."""
    carry_out(contracts.LaunchCommand, message, launch_engine, node())


@app.task(name=contracts.PROBE_TASK, acks_late=True)
def probe(message: dict[str, Any]) -> None:
    """ProbeCommand: measure a running deployment."""
    carry_out(contracts.ProbeCommand, message, probe_engine, node())


@app.task(name=contracts.CANCEL_TASK, acks_late=True)
def cancel(message: dict[str, Any]) -> None:
    """CancelCommand: end the load of a probe."""
    carry_out(contracts.CancelCommand, message, cancel_probe, node())


@app.task(name=contracts.STOP_TASK, acks_late=True)
def stop(message: dict[str, Any]) -> None:
    """StopCommand: end an engine's whole process group."""
    carry_out(contracts.StopCommand, message, stop_engine, node())


@app.task(name=contracts.DISCOVER_TASK, acks_late=True)
def discover(message: dict[str, Any]) -> None:
    """DiscoverCommand: say what is in this host."""
    carry_out(contracts.DiscoverCommand, message, discover_node, node())


@app.task(name=contracts.ADOPT_TASK, acks_late=True)
def adopt(message: dict[str, Any]) -> None:
    """AdoptCommand: take up what an earlier worker left."""

    def relaunch(command: contracts.LaunchCommand) -> None:
        launch.apply_async(args=[to_json(command)])

    carry_out(contracts.AdoptCommand, message, lambda command, at: adopt_all(command, at, relaunch), node())

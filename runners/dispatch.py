"""From a message to a command, and from any error to an observation: no job may wait for an answer that never comes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from planner.errors import InputError
from planner.jsonio import from_json
from runners.errors import RunnerError
from runners.node import Node, Reporter

log = logging.getLogger(__name__)
T = TypeVar("T")


def carry_out(kind: type[T], message: Any, act: Callable[[T, Node], None], node: Node) -> None:
    """Read ``message`` as a ``kind`` and act on it. A malformed message or an unforeseen error is reported as
    failed.
    """
    try:
        command = from_json(kind, message)
    except InputError as error:
        _report(message, node, f"The command is malformed: {error}", "Control plane and worker must be of one version.")
        return
    try:
        act(command, node)
    except RunnerError as error:
        _report(message, node, error.reason, error.remedy)
    except Exception as error:
        log.exception("a command failed in an unforeseen way")
        reason = f"The worker failed in an unforeseen way: {type(error).__name__}: {error}"
        _report(message, node, reason, "Look at the worker's log; report it as a defect.")


def _report(message: Any, node: Node, reason: str, remedy: str) -> None:
    fields = message if isinstance(message, dict) else {}
    attempt = fields.get("attempt")
    Reporter(
        node,
        job_id=str(fields.get("job_id", "")),
        attempt=attempt if isinstance(attempt, int) else 0,
        deployment_id=str(fields.get("deployment_id", "")),
        probe_id=str(fields.get("probe_id", "")),
        sequence=1_000_000,  # after whatever the attempt has already said
    ).emit("failed", reason=reason, remedy=remedy)

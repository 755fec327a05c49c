"""Errors of a node worker. Each says what happened (``reason``) and what to do about it (``remedy``)."""

from __future__ import annotations


class RunnerError(Exception):
    """Base of all runner errors; ``reason`` and ``remedy`` are whole sentences, safe to show to a user."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason} {remedy}".strip())


class CommandRefusedError(RunnerError):
    """The command asks for something that the contract or this node does not allow."""


class EngineMissingError(RunnerError):
    """The engine's program or environment is not installed on this node."""


class PortInUseError(RunnerError):
    """Another process listens on the port."""


class DiskFullError(RunnerError):
    """A file of the deployment could not be written."""


class EngineExitedError(RunnerError):
    """The engine ended by itself."""


class ReadyTimeoutError(RunnerError):
    """The engine lives, but did not serve within its time."""


class StopFailedError(RunnerError):
    """Processes or memory were left behind after a stop."""


class ProbeError(RunnerError):
    """A measurement could not be made or is not sound."""


class ProbeCancelledError(RunnerError):
    """Somebody cancelled the probe."""


class LaunchCancelledError(RunnerError):
    """The deployment was stopped while its launch was under way."""


class WorkerStoppingError(RunnerError):
    """The worker shuts down; what it was doing is taken up again by the next one."""

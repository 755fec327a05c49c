"""Waiting until an engine serves: phases from its log, questions to its endpoint, an eye on its process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from planner.jsonio import from_json
from runners.contracts import LaunchCommand
from runners.engines.base import EngineAdapter, shorten
from runners.engines.registry import adapter_for
from runners.errors import EngineExitedError, LaunchCancelledError, ReadyTimeoutError, RunnerError
from runners.hosts import process
from runners.hosts.follow import LogFollower, run_lines
from runners.node import Node, Reporter
from runners.probe.readiness import Answer, generate_one, list_model
from runners.state import Handle

POLL_S = 0.2
ASK_EVERY_S = 1.0
SILENCE_S = 60.0
SEEN_FROM_S = 5.0
"""A worker that comes later than this after the start did not see its first phases pass."""
LOG_LINES_AT_ONCE = 40


@dataclass(slots=True)
class _Progress:
    """What was seen of the start so far. ``began_at`` is when the process was started, Unix time."""

    began_at: float

    phase: str = "starting"
    progress: float = 0.02
    last_line: str = ""
    last_line_at: float = 0.0
    noted_at: float = 0.0
    detail: str = ""
    whole: bool = True
    entered: list[tuple[str, float]] = field(default_factory=list)

    def enter(self, phase: str, progress: float, at: float) -> None:
        """Go on to the next phase."""
        self.phase, self.progress = phase, progress
        self.entered.append((phase, at))

    def phases_s(self, ended_at: float) -> dict[str, float]:
        """Seconds of each phase until ``ended_at``; empty when the beginning was not seen."""
        if not self.whole:
            return {}
        begun = [("starting", self.began_at), *self.entered]
        ends = [*(at for _, at in self.entered), ended_at]
        spent: dict[str, float] = {}
        for (phase, start), end in zip(begun, ends, strict=True):
            spent[phase] = round(spent.get(phase, 0.0) + end - start, 2)
        return {phase: seconds for phase, seconds in spent.items() if seconds > 0}


@dataclass(frozen=True, slots=True)
class Ready:
    """An engine that serves: what its endpoint said, and how long each phase took."""

    answer: Answer
    ready_s: float
    phases_s: dict[str, float]


def wait_ready(handle: Handle, command: LaunchCommand, node: Node, adapter: EngineAdapter, reporter: Reporter) -> Ready:
    """Follow the start of an engine until it lists the model and has generated one token.

    Raises EngineExitedError, LaunchCancelledError, ReadyTimeoutError, WorkerStoppingError.
    """
    follower = LogFollower(node.store.log_path(handle.deployment_id))
    waited = max(time.time() - handle.started_at, 0.0)
    seen = _Progress(handle.started_at, last_line_at=time.monotonic(), whole=waited < SEEN_FROM_S)
    deadline = time.monotonic() + max(command.launch.ready_timeout_s - waited, 0.0)
    name = adapter.listed_name(command.launch)
    question: _Question | None = None
    next_ask = 0.0
    while True:
        _read_log(follower, adapter, reporter, seen)
        if not process.is_alive(handle.process):
            raise _exited(handle, node)
        if question is None and time.monotonic() >= next_ask:
            question = _Question(handle.base_url, name, deadline)
        elif question is not None and question.answer is not None:
            answer, question = question.answer, None
            if answer.ready:
                _read_log(follower, adapter, reporter, seen)
                now = time.time()
                return Ready(answer, round(now - handle.started_at, 2), seen.phases_s(now))
            seen.detail = answer.detail
            next_ask = time.monotonic() + ASK_EVERY_S
        if time.monotonic() >= deadline:
            raise _too_late(command, seen)
        _note_silence(reporter, seen)
        reporter.heartbeat()
        node.pause(POLL_S)


class _Question:
    """Asks for the model and one token in a thread of its own: the first generation may take minutes, and meanwhile the
    log, the process and the heartbeat must not wait. ``answer`` is None until there is one.
    """

    def __init__(self, base_url: str, name: str, deadline: float) -> None:
        self.answer: Answer | None = None
        self._asked = (base_url, name, deadline)
        threading.Thread(target=self._run, name="ready", daemon=True).start()

    def _run(self) -> None:
        self.answer = _ask(*self._asked)


def command_of(handle: Handle) -> LaunchCommand:
    """The command that a handle was made by."""
    return from_json(LaunchCommand, handle.command)


def gone(handle: Handle, node: Node) -> EngineExitedError:
    """Why an engine that should live does not."""
    if handle.boot_id and handle.process is not None and not process.same_boot(handle.process):
        return EngineExitedError("The node was restarted; the engine went with it.", "Launch the deployment again.")
    adapter = adapter_for(command_of(handle).launch)
    record = process.read_exit(node.store.exit_path(handle.deployment_id))
    lines = run_lines(node.store.log_path(handle.deployment_id))
    failure = adapter.explain_failure(lines, record.returncode if record else None)
    return EngineExitedError(failure.reason, failure.remedy)


def _exited(handle: Handle, node: Node) -> RunnerError:
    now = node.store.load(handle.deployment_id)
    if now is not None and now.state in ("stopping", "stopped"):
        return LaunchCancelledError("The deployment was stopped while it was starting.", "Launch it again when needed.")
    return gone(handle, node)


def _ask(base_url: str, name: str, deadline: float) -> Answer:
    """Ask for the model, then for one token."""
    listed = list_model(base_url, name)
    if not listed.ready:
        return listed
    generated = generate_one(base_url, name, max(deadline - time.monotonic(), 1.0))
    return listed if generated.ready else generated


def _read_log(follower: LogFollower, adapter: EngineAdapter, reporter: Reporter, seen: _Progress) -> None:
    lines = follower.new_lines()
    if not lines:
        return
    seen.last_line, seen.last_line_at = lines[-1], time.monotonic()
    changed = False
    for line in lines:
        for phase in adapter.phases:
            if phase.progress > seen.progress and phase.pattern.search(line):
                seen.enter(phase.text, phase.progress, time.time())
                changed = True
    if changed:
        shown = tuple(shorten(line) for line in lines[-LOG_LINES_AT_ONCE:])
        reporter.emit("progress", phase=seen.phase, progress=seen.progress, lines=shown)


def _note_silence(reporter: Reporter, seen: _Progress) -> None:
    quiet_s = time.monotonic() - max(seen.last_line_at, seen.noted_at)
    if quiet_s < SILENCE_S:
        return
    seen.noted_at = time.monotonic()
    silent_s = time.monotonic() - seen.last_line_at
    reporter.emit("progress", phase=f"{seen.phase} (no word for {silent_s:.0f} s)", progress=seen.progress)


def _too_late(command: LaunchCommand, seen: _Progress) -> ReadyTimeoutError:
    quiet_s = time.monotonic() - seen.last_line_at
    missing = f", and {seen.detail}" if seen.detail else ""
    return ReadyTimeoutError(
        f"Not ready after {command.launch.ready_timeout_s:.0f} s: it was at '{seen.phase}'{missing}. "
        f"Its log has been silent for {quiet_s:.0f} s; last line: {shorten(seen.last_line, 200) or 'none'}",
        "If it was still making progress, raise the ready timeout; if it hangs, read its log and check the GPUs.",
    )

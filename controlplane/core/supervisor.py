"""Runs several processes as one: prefixes their output, restarts what crashes, stops all of it together.

Each child leads a process group of its own, so that Ctrl-C reaches the supervisor alone and stopping is orderly. On
Linux a child is told to end when the supervisor dies, however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
HEALTHY_S = 60.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(eq=False)
class Child:
    """One supervised program."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    wait_s: float = FIRST_WAIT_S
    restarts: int = 0

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Starts ``children``, keeps them running until ``stop`` is set, then ends them.

    ``say`` writes one line for people; lines of children come as "name | line".
    """

    def __init__(self, children: list[Child], say: Callable[[str], None], grace_s: float = 15.0) -> None:
        self.children = children
        self.say = say
        self.grace_s = grace_s
        self.stop = threading.Event()
        self._width = max(len(child.name) for child in children)

    def run(self, ready: Callable[[], bool] = lambda: True, on_ready: Callable[[], None] = lambda: None) -> None:
        """Supervise until stopped by a signal or by ``stop``; ``on_ready`` is called once when ``ready`` says so."""
        with self._signals():
            try:
                for child in self.children:
                    self._start(child)
                announced = False
                while not self.stop.wait(0.2):
                    for child in self.children:
                        self._look_after(child)
                    if not announced and ready():
                        announced = True
                        on_ready()
            finally:
                self.end()

    def end(self) -> None:
        """SIGTERM to every child, SIGKILL to the groups of those that do not end within the grace."""
        for child in reversed(self.children):
            if child.running and child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(child.stop_signal)
        give_up_at = time.monotonic() + self.grace_s
        for child in self.children:
            if child.process is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=max(0.05, give_up_at - time.monotonic()))
            if child.running:
                self.say(f"{child.name} did not end within {self.grace_s:.0f} s and was killed")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)  # what it left behind in its group
            child.process.wait()

    def _start(self, child: Child) -> None:
        child.process = subprocess.Popen(
            child.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **child.env},
            cwd=child.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # one prctl call, no locks
        )
        child.started_at = time.monotonic()
        threading.Thread(target=self._relay, args=(child, child.process.stdout), daemon=True).start()

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.running:
            if now - child.started_at > HEALTHY_S:
                child.wait_s = FIRST_WAIT_S
            return
        if child.process is not None:
            code = child.process.returncode
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            self.say(f"{child.name} ended ({_in_words(code)}); it is started again in {child.wait_s:.0f} s")
            child.process = None
            child.restart_at = now + child.wait_s
            child.wait_s = min(child.wait_s * 2, LONGEST_WAIT_S)
        elif now >= child.restart_at:
            child.restarts += 1
            self._start(child)

    def _relay(self, child: Child, stream: IO[str] | None) -> None:
        if stream is not None:
            with stream:
                for line in stream:
                    if line.strip():
                        self.say(f"{child.name:<{self._width}} | {line.rstrip()}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(_number: int, _frame: object) -> None:
            if not self.stop.is_set():
                self.say("Stopping…")
            self.stop.set()

        held = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)


def _end_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _in_words(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

"""Parent of one engine process; started as a script, with the standard library alone.

It leads the engine's session and process group and outlives the worker. It writes the engine's output to a log that
is rotated by size, goes on when the disk is full, kills whatever the engine leaves behind when its main process ends,
and records how it ended in a small JSON file. When it is killed itself, the kernel kills the engine
(PR_SET_PDEATHSIG), so that no engine keeps a GPU without a keeper.

usage: supervise.py --log FILE --max-bytes N --folder DIR --exit FILE -- PROGRAM ARGUMENT...
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_ROUNDS = 100
EXIT_NOT_EXECUTABLE = 127


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Process ids below ``root`` in the process tree, by /proc; zombies excluded."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


class RotatingLog:
    """Log file that moves to ``<path>.1`` at ``max_bytes``; counts what a full disk made it lose."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.lost_bytes = 0
        self.size = os.path.getsize(path) if os.path.exists(path) else 0
        self.fd = self._open()

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        except OSError:
            return -1

    def write(self, data: bytes) -> None:
        """Append ``data``; never raises."""
        if self.size + len(data) > self.max_bytes and self.size > 0:
            with contextlib.suppress(OSError):
                os.replace(self.path, self.path + ".1")
                if self.fd >= 0:
                    os.close(self.fd)
                self.fd, self.size = self._open(), 0
        if self.fd < 0:
            self.fd = self._open()
        try:
            written = os.write(self.fd, data)
        except OSError:
            written = 0
        self.size += written
        self.lost_bytes += len(data) - written


def _start(argv: list[str], output: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_NOT_EXECUTABLE)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXIT_NOT_EXECUTABLE)


def _reap(main: int) -> int | None:
    """Collect dead children; the wait status of ``main`` once it has ended."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main:
            status = code


def _pump(source: int, log: RotatingLog, wait_s: float) -> bool:
    """Move what is there from the pipe to the log; False at its end."""
    ready, _, _ = select.select([source], [], [], wait_s)
    if not ready:
        return True
    data = os.read(source, 65536)
    if data:
        log.write(data)
    return bool(data)


def _kill_rest(main: int) -> int:
    """Kill all that is left below this process; returns how many were there."""
    left = descendants(os.getpid())
    for _ in range(KILL_ROUNDS):
        living = descendants(os.getpid())
        if not living:
            break
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap(main)
    return len(left)


def _record(path: str, status: int, left_behind: int, lost_bytes: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    text = json.dumps({"returncode": code, "left_behind": left_behind, "log_lost_bytes": lost_bytes, "at": time.time()})
    try:
        with open(path + ".part", "w", encoding="ascii") as stream:
            stream.write(text)
        os.replace(path + ".part", path)
    except OSError as error:
        print(f"cannot record the exit: {error}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run one engine to its end; returns its exit code (128 + signal when killed)."""
    split = arguments.index("--")
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.chdir(options["--folder"])
    log = RotatingLog(options["--log"], int(options["--max-bytes"]))
    source, output = os.pipe()
    child = _start(arguments[split + 1 :], output)
    os.close(output)
    open_pipe, status = True, None
    while status is None:
        if open_pipe:
            open_pipe = _pump(source, log, 0.1)
        else:
            time.sleep(0.05)
        status = _reap(child)
    left_behind = _kill_rest(child)
    while open_pipe and select.select([source], [], [], 0)[0]:
        open_pipe = _pump(source, log, 0)
    _record(options["--exit"], status, left_behind, log.lost_bytes)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

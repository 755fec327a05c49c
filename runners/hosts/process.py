"""Engines as detached local processes: start, recognise, adopt, stop as a group.

Linux only: identity and children are read from /proc. A process is recognised by pid, start time and boot id, so that a
recycled pid is never taken for an engine. Every process of a deployment carries ``TONNAGE_DEPLOYMENT=<id>`` in its
environment, by which even a process that no handle knows is found again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.errors import DiskFullError, EngineMissingError, PortInUseError, StopFailedError
from runners.hosts.supervise import descendants

MARKER = "TONNAGE_DEPLOYMENT"
_SUPERVISOR = Path(__file__).with_name("supervise.py")
_SECRET_WORDS = ("PASSWORD", "SECRET", "PRIVATE_KEY")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for ever: ``start_ticks`` is field 22 of /proc/<pid>/stat, ``boot_id`` the kernel's."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How an engine ended; ``returncode`` negative for a signal."""

    returncode: int
    left_behind: int
    log_lost_bytes: int
    at: float


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/<pid>/stat from the state on; None when there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Identity of a living process, None when there is none of that pid."""
    fields = _stat(pid)
    return ProcessIdentity(pid, int(fields[19]), _boot_id()) if fields else None


def is_alive(process: ProcessIdentity | None) -> bool:
    """Whether exactly this process lives; collects it when it is a dead child of ours."""
    if process is None:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return identify(process.pid) == process


def same_boot(process: ProcessIdentity) -> bool:
    """Whether the host has not been restarted since ``process`` was started."""
    return process.boot_id == _boot_id()


def marked(value: str, marker: str = MARKER) -> list[int]:
    """Pids of living processes whose environment has ``marker=value``."""
    wanted = f"{marker}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ and _stat(int(name)):
            found.append(int(name))
    return found


def port_owner(host: str, port: int) -> str | None:
    """None when ``host:port`` is free, else a sentence that says who listens, as far as can be told.

    vLLM sets SO_REUSEPORT, so two engines on one port share its traffic without an error: ask before starting one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"another process listens on port {port}"
            return f"port {port} of {host} cannot be used: {error.strerror}"
    return None


def is_port_open(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        return client.connect_ex((host, port)) == 0


def require_port(host: str, port: int) -> None:
    """Raise PortInUseError unless ``port`` can be bound now."""
    taken = port_owner(host, port)
    if taken:
        raise PortInUseError(
            f"The engine was not started: {taken}.", "Launch it again, which tries another port, or stop that process."
        )


def require_space(folder: Path, min_free_mib: int) -> None:
    """Raise DiskFullError when the file system of ``folder`` has less than ``min_free_mib`` MiB free."""
    try:
        free_mib = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        raise disk_error(folder, error) from error
    if free_mib < min_free_mib:
        raise DiskFullError(
            f"Only {free_mib} MiB are free under {folder}; logs and handles need {min_free_mib} MiB.",
            "Free space there, or set TONNAGE_NODE_STATE_DIR to another disk.",
        )


def disk_error(path: Path, error: OSError) -> DiskFullError:
    """A write that failed, as an error for people."""
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return DiskFullError(f"Cannot write {path}: {why}.", "Free space or mend the permissions there, then launch again.")


def engine_environment(extra: Mapping[str, str], deployment_id: str) -> dict[str, str]:
    """This worker's environment without the application's own settings and secrets, plus ``extra`` and the marker."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TONNAGE_", "DJANGO_", "CELERY_"))
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }
    kept.pop("PYTHONPATH", None)
    kept.pop("VIRTUAL_ENV", None)
    return {**kept, **extra, MARKER: deployment_id}


def start(
    argv: list[str],
    *,
    env: Mapping[str, str],
    folder: Path,
    log: Path,
    exit_file: Path,
    log_limit_bytes: int,
) -> ProcessIdentity:
    """Start ``argv`` detached, in a session of its own, under the supervisor.

    Raises EngineMissingError when the program is not there or not executable, DiskFullError when the log cannot be
    written.
    """
    program = shutil.which(argv[0], path=env.get("PATH"))
    if program is None:
        raise EngineMissingError(
            f"The engine's program is not on this node: {argv[0]}.",
            "Install the engine there (see docs/runners.md), or point the worker at it by its TONNAGE_ variable.",
        )
    try:
        exit_file.unlink(missing_ok=True)
        with log.open("ab") as stream:
            stream.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} start\n".encode())
    except OSError as error:
        raise disk_error(log, error) from error
    command = [sys.executable, "-I", "-S", str(_SUPERVISOR), "--log", str(log), "--max-bytes", str(log_limit_bytes)]
    command += ["--folder", str(folder), "--exit", str(exit_file), "--", program, *argv[1:]]
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    pid = os.posix_spawn(sys.executable, command, dict(env), file_actions=silent, setsid=True)
    identity = identify(pid)
    if identity is None:
        raise EngineMissingError("The engine's supervisor ended at once.", "Look at the worker's log.")
    return identity


def read_exit(exit_file: Path) -> ExitRecord | None:
    """How the engine ended; None when it has not, or its keeper was killed before it could say."""
    try:
        return ExitRecord(**json.loads(exit_file.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return None


def members(process: ProcessIdentity | None, deployment_id: str) -> list[int]:
    """All living processes of a deployment: the supervisor, all below it, and all that carry its mark."""
    found = set(marked(deployment_id))
    if process is not None and is_alive(process):
        found |= {process.pid, *descendants(process.pid)}
    found.discard(os.getpid())
    return sorted(found)


def stop(
    process: ProcessIdentity | None,
    deployment_id: str,
    *,
    grace_s: float,
    wake: Callable[[], bool] = lambda: False,
) -> bool:
    """Ask the whole group to end, kill it after ``grace_s``; True when it had to be killed.

    ``wake`` is asked each round; True cuts the grace short. Raises StopFailedError naming the pids that survive.
    """
    if process is not None and is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    else:
        _signal(members(process, deployment_id), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while members(process, deployment_id):
        if time.monotonic() >= deadline or wake():
            break
        time.sleep(0.05)
    else:
        return False
    # The supervisor last: it records how the engine ended.
    _signal([pid for pid in members(process, deployment_id) if process is None or pid != process.pid], signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while (living := members(process, deployment_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal(living, signal.SIGKILL)
    deadline = time.monotonic() + 10.0
    while (living := members(process, deployment_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if living:
        raise StopFailedError(
            f"Processes survived SIGKILL: {', '.join(map(str, living))}.",
            "They wait in the kernel, usually for a GPU or a network disk: reset the GPU or restart the node.",
        )
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

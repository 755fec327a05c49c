"""What a node worker knows on disk: one handle per deployment, one record per probe.

Handles make commands idempotent and let a new worker take up what an old one left. They are written atomically under
``<state dir>/deployments/<id>/handle.json``; a lock file beside each keeps two tasks from working on one deployment,
and the kernel drops it when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from runners.errors import CommandRefusedError
from runners.hosts.process import ProcessIdentity, disk_error

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LIVE_STATES = frozenset({"starting", "loading", "ready", "stopping"})


@dataclass(frozen=True, slots=True)
class Handle:
    """One deployment on this node.

    ``state`` starting | loading | ready | stopping | stopped | failed. ``command`` is the LaunchCommand as JSON,
    ``sequence`` the number of its last observation. ``startup`` is StartupFacts as JSON once the engine is ready.
    """

    deployment_id: str
    job_id: str
    attempt: int
    state: str
    command: dict[str, Any]
    sequence: int = 0
    port: int = 0
    base_url: str = ""
    argv: tuple[str, ...] = ()
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    started_at: float = 0.0
    ready_at: float = 0.0
    emulated: bool = False
    tokenizer: str = ""
    gpu_used_mib: dict[str, int] = field(default_factory=dict)  # before the start, by GPU index
    startup: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    remedy: str = ""

    @property
    def process(self) -> ProcessIdentity | None:
        """The supervisor's identity, None before it was started."""
        return ProcessIdentity(self.pid, self.start_ticks, self.boot_id) if self.pid else None


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One probe: ``state`` running | probed | failed; ``metrics`` is ProbeMetrics as JSON once measured."""

    probe_id: str
    job_id: str
    attempt: int
    deployment_id: str
    state: str
    sequence: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    remedy: str = ""


def check_id(value: str) -> str:
    """Return ``value`` when it is safe as a file name, else raise CommandRefusedError."""
    if not _ID.fullmatch(value) or ".." in value:
        raise CommandRefusedError(f"Not an identifier: {value[:80]!r}.", "Use letters, digits, dots and hyphens.")
    return value


class StateStore:
    """Handles and probe records under one directory. Raises DiskFullError when a file cannot be written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, deployment_id: str) -> Path:
        """Directory of one deployment: handle, log, exit record, engine files; made when missing."""
        return self._made(self.root / "deployments" / check_id(deployment_id))

    def log_path(self, deployment_id: str) -> Path:
        """The engine's log."""
        return self.folder(deployment_id) / "engine.log"

    def exit_path(self, deployment_id: str) -> Path:
        """Where the supervisor records how the engine ended."""
        return self.folder(deployment_id) / "exit.json"

    def probe_folder(self, probe_id: str) -> Path:
        """Directory of one probe's artefacts; made when missing."""
        return self._made(self.root / "probes" / check_id(probe_id))

    def load(self, deployment_id: str) -> Handle | None:
        """The handle, None when there is none or it is unreadable."""
        data = self._read(self.root / "deployments" / check_id(deployment_id) / "handle.json")
        return None if data is None else Handle(**{**data, "argv": tuple(data.get("argv", ()))})

    def save(self, handle: Handle) -> Handle:
        """Write ``handle`` whole; returns it."""
        self._write(self.folder(handle.deployment_id) / "handle.json", asdict(handle))
        return handle

    def update(self, deployment_id: str, change: Callable[[Handle], Handle]) -> Handle | None:
        """Read, change and write one handle as one act; None when there is none."""
        with self.lock(deployment_id, "handle"):
            handle = self.load(deployment_id)
            return None if handle is None else self.save(change(handle))

    def set_state(self, deployment_id: str, state: str, **values: Any) -> Handle | None:
        """Change the state and any other fields of one handle."""
        return self.update(deployment_id, lambda handle: replace(handle, state=state, **values))

    def handles(self) -> list[Handle]:
        """All readable handles, by deployment id."""
        folder = self.root / "deployments"
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        return [handle for name in names if _ID.fullmatch(name) and (handle := self.load(name))]

    def cancel_probe(self, probe_id: str, job_id: str) -> None:
        """Note that this job's measurement is not wanted; a job that retries the probe is another one."""
        self._write(self.probe_folder(probe_id) / "cancelled.json", {"job_id": job_id})

    def is_cancelled(self, probe_id: str, job_id: str) -> bool:
        """Whether this job's measurement is not wanted."""
        path = self.root / "probes" / check_id(probe_id) / "cancelled.json"
        try:
            return bool(json.loads(path.read_text(encoding="utf-8"))["job_id"] == job_id)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def load_probe(self, probe_id: str) -> ProbeRecord | None:
        """The record of a probe, None when there is none."""
        data = self._read(self.root / "probes" / check_id(probe_id) / "record.json")
        return None if data is None else ProbeRecord(**data)

    def save_probe(self, record: ProbeRecord) -> ProbeRecord:
        """Write ``record`` whole; returns it."""
        self._write(self.probe_folder(record.probe_id) / "record.json", asdict(record))
        return record

    def probes(self) -> list[ProbeRecord]:
        """All readable probe records."""
        folder = self.root / "probes"
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        return [record for name in names if _ID.fullmatch(name) and (record := self.load_probe(name))]

    @contextlib.contextmanager
    def lock(self, name: str, kind: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock ``kind`` of ``name``; with ``wait=False`` yields False when another task holds it."""
        path = self._made(self.root / "locks") / f"{check_id(name)}.{kind}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise disk_error(path, error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    @staticmethod
    def _made(folder: Path) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from error
        return folder

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        kind = Handle if path.name == "handle.json" else ProbeRecord
        known = {item.name for item in fields(kind)}
        return {key: value for key, value in data.items() if key in known} if isinstance(data, dict) else None

    @staticmethod
    def _write(path: Path, data: dict[str, Any]) -> None:
        part = path.with_suffix(".part")
        try:
            with part.open("w", encoding="utf-8") as stream:
                json.dump(data, stream)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise disk_error(path, error) from error

"""One installation in processes of its own: database, control worker, node worker; driven by Django shells."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Installation:
    """A data directory with a migrated SQLite database, and the workers on it."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir()
        self.data_dir = data_dir
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TONNAGE_", "DJANGO_"))}
        port = _free_port()
        own = {"TONNAGE_DATA_DIR": str(data_dir), "TONNAGE_NODE_SLUG": "local"}
        self.env = {**kept, **own, "TONNAGE_ENGINE_PORTS": f"{port}-{port}"}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.manage("migrate", "-v0")

    def manage(self, *arguments: str) -> str:
        """Run a management command; returns what it printed, fails with what it said."""
        argv = [sys.executable, "-W", "ignore", str(REPOSITORY / "manage.py"), *arguments]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def shell(self, code: str) -> Any:
        """Run Python inside Django; the last line that it prints is JSON and is returned."""
        return json.loads(self.manage("shell", "-v0", "-c", code).strip().splitlines()[-1])

    def start(self) -> None:
        """Start the control worker (with the planning queue) and this host's node worker."""
        control = ["celery", "-A", "controlplane.celery:app", "worker", "-Q", "control,plan", "--pool", "solo"]
        control += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
        for name, module in (("control", control), ("node", ["runners", "worker"])):
            with (self.data_dir / f"{name}.log").open("ab") as log:
                argv = [sys.executable, "-W", "ignore", "-m", *module]
                process = subprocess.Popen(
                    argv, cwd=REPOSITORY, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            self.workers.append(process)

    def wait(self, code: str, wanted: Callable[[Any], bool], seconds: float) -> Any:
        """Ask ``code`` again and again until its answer is wanted."""
        deadline = time.monotonic() + seconds
        answer = None
        while time.monotonic() < deadline:
            answer = self.shell(code)
            if wanted(answer):
                return answer
            time.sleep(1.0)
        raise AssertionError(f"not within {seconds:.0f} s; the last answer: {answer}; logs: {self._logs()}")

    def close(self) -> None:
        """End everything, engines too."""
        subprocess.run(
            [sys.executable, "-m", "runners", "stop-all", "--grace", "10"],
            cwd=REPOSITORY,
            env=self.env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        for process in self.workers:
            process.terminate()
        for process in self.workers:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

    def _logs(self) -> str:
        return " ".join(
            (self.data_dir / f"{name}.log").read_text(errors="replace")[-1500:] for name in ("control", "node")
        )

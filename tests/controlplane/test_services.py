"""Real workers and a real scheduler over every kind of database and broker: a job's whole life, and a killed worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from kombu import Connection
from psycopg import sql

ROOT = Path(__file__).resolve().parents[2]
POSTGRES = os.environ.get("TONNAGE_TEST_POSTGRES") or "postgresql://postgres@127.0.0.1:5432/postgres"
REDIS = "redis://127.0.0.1:6379/14"
RABBITMQ = os.environ.get("TONNAGE_TEST_RABBITMQ") or "amqp://guest:guest@127.0.0.1:5672//"
QUEUES = ("control", "plan")
SUBMIT = """
from controlplane.jobs.sending import RUN_TASK, publish
from controlplane.jobs.services import submit_job
for payload in {payloads}:
    job = submit_job(actor=None, kind="test.count", payload=payload)
    publish(RUN_TASK, {{"job_id": str(job.pk)}}, job.queue)
    publish(RUN_TASK, {{"job_id": str(job.pk)}}, job.queue)
    print(job.pk)
"""


class JobRow(NamedTuple):
    """What a test looks at of a job."""

    state: str
    attempt: int
    progress: float
    claimed_by: str
    result: Any
    error: str


class Installation:
    """A fresh database and an emptied broker, with the processes started on them."""

    def __init__(self, folder: Path, database_url: str, broker_url: str) -> None:
        self.folder = folder
        self.database_url = database_url
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TONNAGE_", "DJANGO_"))}
        self.env = {
            **kept,
            "TONNAGE_DATA_DIR": str(folder),
            "TONNAGE_DATABASE_URL": database_url,
            "TONNAGE_BROKER_URL": broker_url,
            "DJANGO_SETTINGS_MODULE": "tests.controlplane.counting_settings",
            "PYTHONPATH": str(ROOT),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def manage(self, *arguments: str) -> str:
        """Run a management command to its end; returns what it printed."""
        argv = [sys.executable, "-W", "ignore", str(ROOT / "manage.py"), *arguments]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def submit(self, *payloads: dict[str, Any]) -> list[str]:
        """Submit counting jobs, each with its message sent three times; returns their ids."""
        code = SUBMIT.format(payloads=payloads)
        return self.manage("shell", "-v0", "-c", code).split()[-len(payloads) :]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one process; its output goes to output.log."""
        with (self.folder / "output.log").open("ab") as log:
            argv = [sys.executable, "-W", "ignore", *arguments]
            process = subprocess.Popen(argv, env=self.env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a control worker on both queues."""
        name = f"services-{uuid.uuid4().hex[:8]}@%h"
        options = ["-Q", ",".join(QUEUES), "--pool", "solo", "--loglevel", "WARNING", "-n", name]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return self.start("-m", "celery", "--quiet", "-A", "controlplane.celery:app", "worker", *options, *quiet)

    def query(self, text: str) -> list[tuple]:
        """Rows of a query, on a connection of its own."""
        if self.database_url:
            with psycopg.connect(self.database_url, autocommit=True) as link:
                return link.execute(text).fetchall()  # type: ignore[call-overload]
        path = f"file:{self.folder / 'tonnage.sqlite3'}?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True, timeout=20)) as lite:
            return lite.execute(text).fetchall()

    def job(self, key: str) -> JobRow:
        """The job's row."""
        wanted = key if self.database_url else key.replace("-", "")
        columns = ", ".join(JobRow._fields)
        (row,) = self.query(f"SELECT {columns} FROM jobs_job WHERE id = '{wanted}'")
        made = JobRow(*row)
        return made._replace(result=json.loads(made.result)) if isinstance(made.result, str) else made

    def log(self, key: str) -> list[str]:
        """The lines of the job's log."""
        wanted = key if self.database_url else key.replace("-", "")
        text = f"SELECT text FROM jobs_joblog WHERE job_id = '{wanted}' ORDER BY sequence"
        return [line for (line,) in self.query(text)]

    def wait(self, key: str, wanted: Callable[[JobRow], bool], seconds: float = 90.0) -> JobRow:
        """The job's row once it is as wanted."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if wanted(row := self.job(key)):
                return row
            time.sleep(0.1)
        said = (self.folder / "output.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"not within {seconds:.0f} s: {self.job(key)}; {said}")

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def fresh_postgres() -> Iterator[str]:
    """The URL of a database of its own, dropped afterwards; skips without a server."""
    try:
        link = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL at {POSTGRES.rsplit('@', 1)[-1]}: {error}")
    name = f"tonnage_test_{uuid.uuid4().hex[:12]}"
    with link:
        link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(POSTGRES)._replace(path=f"/{name}").geturl()
        finally:
            link.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def emptied_broker(url: str) -> Iterator[str]:
    """A broker without messages, before and after; skips without a server."""
    with Connection(url, connect_timeout=5) as link:
        try:
            link.ensure_connection(max_retries=1, interval_start=0.1)
        except link.connection_errors as error:
            pytest.skip(f"no broker at {url.rsplit('@', 1)[-1]}: {error}")
    _empty(url)
    yield url
    _empty(url)


def _empty(url: str) -> None:
    with Connection(url, connect_timeout=5) as link, link.channel() as channel:
        for name in QUEUES:
            channel.queue_declare(name, durable=True, auto_delete=False)
            channel.queue_purge(name)


BACKENDS = [
    pytest.param(("sqlite", ""), id="sqlite-filesystem", marks=pytest.mark.embedded),
    pytest.param(("postgresql", REDIS), id="postgresql-redis", marks=pytest.mark.services),
    pytest.param(("postgresql", RABBITMQ), id="postgresql-rabbitmq", marks=pytest.mark.services),
]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A migrated installation on one kind of database and broker."""
    database, broker_url = request.param
    with contextlib.ExitStack() as stack:
        database_url = stack.enter_context(fresh_postgres()) if database == "postgresql" else ""
        if broker_url:
            stack.enter_context(emptied_broker(broker_url))
        made = Installation(tmp_path_factory.mktemp("services"), database_url, broker_url)
        made.manage("migrate", "-v0")
        yield made


@pytest.fixture
def installation(backend: Installation) -> Iterator[Installation]:
    """The installation; what a test starts ends with it."""
    yield backend
    backend.close()


def test_a_job_is_claimed_progresses_and_ends_once(installation: Installation) -> None:
    installation.worker()
    key, behind = installation.submit({"steps": 12, "pause_s": 0.3}, {"steps": 1, "pause_s": 0})
    running = installation.wait(key, lambda row: 0 < row.progress < 1)
    assert (running.state, running.attempt) == ("running", 1)
    assert running.claimed_by
    done = installation.wait(key, lambda row: row.state not in ("queued", "running"))
    assert (done.state, done.progress, done.error) == ("succeeded", 1.0, "")
    assert done.result == {"steps": 12, "attempt": 1}
    installation.wait(behind, lambda row: row.state == "succeeded")  # its message stood behind the duplicates
    assert installation.job(key) == done
    assert installation.log(key) == [f"Step {step} of 12" for step in range(1, 13)]


def test_a_killed_worker_is_noticed_and_its_job_runs_again(installation: Installation) -> None:
    first = installation.worker()
    (key,) = installation.submit({"steps": 300, "pause_s": 0.5})
    held = installation.wait(key, lambda row: row.progress > 0)
    assert held.claimed_by.endswith(f":{first.pid}")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=20)
    assert installation.job(key).state == "running", "nobody has noticed yet"
    installation.start(str(ROOT / "manage.py"), "scheduler")
    second = installation.worker()
    done = installation.wait(key, lambda row: row.state not in ("queued", "running"))
    assert (done.state, done.attempt, done.result) == ("succeeded", 2, {"steps": 300, "attempt": 2})
    assert done.claimed_by.endswith(f":{second.pid}")
    assert sum("attempt 2 follows" in line for line in installation.log(key)) == 1

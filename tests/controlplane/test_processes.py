"""Real processes: the supervisor, a Celery worker over a real broker, and ``manage.py demo`` as a user runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.core import supervisor
from controlplane.core.supervisor import Child, Supervisor

pytestmark = pytest.mark.embedded

ROOT = Path(__file__).resolve().parents[2]
NO_SERVER = "postgresql://nobody@127.0.0.1:1/x"
SUBMIT = """
from controlplane.jobs.models import Job
from controlplane.jobs.sending import RUN_TASK, publish
from controlplane.planning.models import Scenario
from controlplane.planning.services import compute_plan
plan = compute_plan(actor=None, scenario=Scenario.objects.create(name="Empty", slug="empty"))
publish(RUN_TASK, {"job_id": str(plan.job_id)}, "plan")
publish(RUN_TASK, {"job_id": "00000000000000000000000000000000"}, "plan")
print(plan.job_id)
"""


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> object:
    """What ``what`` returns once it is true; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:.0f} s in vain")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def environment(data_dir: Path, **extra: str) -> dict[str, str]:
    """An installation of its own, whatever the tests themselves run on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TONNAGE_", "DJANGO_"))}
    return {**kept, "TONNAGE_DATA_DIR": str(data_dir), **extra}


def manage(env: dict[str, str], *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run one management command to its end."""
    argv = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.run(argv, env={**env, **extra}, capture_output=True, text=True, timeout=120, check=False)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script(text: str) -> list[str]:
    """A child that runs Python."""
    return [sys.executable, "-c", text]


def test_supervisor_restarts_what_crashes_and_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.1)
    lines: list[str] = []
    child = Child("crash", script("print('up', flush=True); raise SystemExit(3)"), wait_s=0.1)
    fine = Child("fine", script("import time; print('fine', flush=True); time.sleep(60)"))
    watch = Supervisor([child, fine], lines.append)
    thread = threading.Thread(target=_run_without_signals, args=(watch,))
    thread.start()
    wait_for(lambda: child.restarts >= 2, 30)
    watch.stop.set()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert lines.count("crash | up") >= 2
    ended = [line for line in lines if line.startswith("crash ended (exit code 3)")]
    assert len(ended) >= 2
    assert child.wait_s >= 0.4
    assert fine.restarts == 0
    assert not fine.running


def test_supervisor_leaves_nothing_behind() -> None:
    lines: list[str] = []
    stubborn = script(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(os.getpid(), grandchild.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    watch = Supervisor([Child("stubborn", stubborn)], lines.append, grace_s=0.5)
    thread = threading.Thread(target=_run_without_signals, args=(watch,))
    thread.start()
    pids = wait_for(lambda: next((re.findall(r"\d+", line) for line in lines if line.startswith("stubborn | ")), None))
    assert isinstance(pids, list)
    watch.stop.set()
    thread.join(timeout=20)
    assert any("did not end within" in line for line in lines)
    wait_for(lambda: not any(alive(int(pid)) for pid in pids), 10)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux")
def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    program = (
        "from controlplane.core.supervisor import *\n"
        "import sys\n"
        "inner = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "child = Child('c', [sys.executable, '-c', inner])\n"
        "Supervisor([child], lambda text: print(text, flush=True)).run()\n"
    )
    with subprocess.Popen(script(program), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split("|")[1])
        process.kill()
    wait_for(lambda: not alive(pid), 10)


def _run_without_signals(watch: Supervisor) -> None:
    """Signal handlers belong to the main thread; everything else is as in ``run``."""
    watch._signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    watch.run()


@contextlib.contextmanager
def celery_worker(env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the control plane on both queues."""
    argv = [sys.executable, "-m", "celery", "-A", "controlplane.celery:app", "worker", "-Q", "control,plan"]
    argv += ["--pool", "solo", "--loglevel", "WARNING", "-n", f"test{os.getpid()}@%h"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=20)


def test_a_real_worker_over_the_filesystem_broker(tmp_path: Path) -> None:
    env = environment(tmp_path / "data")
    assert manage(env, "migrate", "-v0").returncode == 0
    submitted = manage(env, "shell", "-v0", "-c", SUBMIT)
    job = submitted.stdout.split()[-1].replace("-", "")
    database = tmp_path / "data" / "tonnage.sqlite3"

    def state() -> tuple | None:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as link:
            row = link.execute("SELECT state, attempt, error FROM jobs_job WHERE id = ?", (job,)).fetchone()
        return row if row and row[0] not in ("queued", "running") else None

    with celery_worker(env, tmp_path / "worker.log"):
        found = wait_for(state, 60)
        messages = tmp_path / "data" / "broker" / "messages"
        wait_for(lambda: not list(messages.glob("*.plan.msg")), 30)
    assert found == ("failed", 1, "The scenario has no workloads; add at least one."), "once, though delivered twice"
    with contextlib.closing(sqlite3.connect(database)) as link:
        assert link.execute("SELECT state FROM planning_plan").fetchall() == [("failed",)]
        assert link.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_worker_on_another_host_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "host.json").write_text(f'{{"host": "elsewhere/0", "at": {time.time() + 30}}}')
    argv = [sys.executable, "-m", "celery", "-A", "controlplane.celery:app", "worker", "--pool", "solo"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "in use by the host elsewhere, and SQLite cannot be shared between hosts" in done.stdout + done.stderr
    up = manage(env, "up", "--port", str(free_port()))
    assert up.returncode == 1
    assert "in use by the host elsewhere" in up.stderr


@pytest.mark.parametrize(
    ("arguments", "extra", "words"),
    [
        (
            ("up", "--port", "TAKEN"),
            {},
            r"Port \d+ on 127.0.0.1 cannot be used: Address already in use. Choose another",
        ),
        (("up",), {"TONNAGE_DATA_DIR": "/proc/nothing"}, "data directory /proc/nothing cannot be used"),
        (("up",), {"TONNAGE_PORT": "many"}, "TONNAGE_PORT is 'many'"),
        (
            ("up", "--port", "FREE"),
            {"TONNAGE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"},
            "database cannot be used",
        ),
    ],
)
def test_what_is_wrong_is_one_clear_sentence(tmp_path: Path, arguments: tuple, extra: dict, words: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"TAKEN": str(taken.getsockname()[1]), "FREE": str(free_port())}
        done = manage(environment(tmp_path), *(ports.get(item, item) for item in arguments), **extra)
    assert done.returncode == 1
    assert re.search(words, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tonnage: ")


@pytest.mark.slow
def test_demo_from_nothing_to_ctrl_c_and_again(tmp_path: Path) -> None:
    port = free_port()
    env = environment(tmp_path, TONNAGE_ENGINE_PORTS="18900-18910")
    first = _demo(env, port)
    try:
        lines = _until_ready(first)
        text = "".join(lines)
        assert "Sample fleet: 2 sites, 20 nodes" in text
        assert re.search(r"user admin, password \S{12,}  \(shown this once\)", text)
        assert "Plan: submitted" in text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            assert answer.status == 200
        second = manage(env, "up", "--port", str(free_port()))
        assert second.returncode == 1
        assert f"runs already on {tmp_path} (process {first.pid})" in second.stderr
        group = _descendants(first.pid)
        assert len(group) >= 5
    finally:
        first.send_signal(signal.SIGINT)
        rest, _ = first.communicate(timeout=60)
    assert first.returncode == 0
    assert "Stopped." in rest
    assert "Traceback" not in rest
    wait_for(lambda: not any(alive(pid) for pid in group), 10)
    again = _demo(env, port)
    try:
        text = "".join(_until_ready(again))
        assert "Administrator: exists" in text
        assert "shown this once" not in text
        assert "Plan: submitted" not in text
    finally:
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
    assert again.returncode == 0


def _demo(env: dict[str, str], port: int) -> subprocess.Popen[str]:
    argv = [sys.executable, str(ROOT / "manage.py"), "demo", "--port", str(port)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _until_ready(process: subprocess.Popen[str]) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if "Tonnage is ready" in line:
            return lines
    raise AssertionError("".join(lines))


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found

"""Detached processes: start, recognise, stop as a group, logs, ports, full disks."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners.errors import DiskFullError, EngineMissingError, PortInUseError
from runners.hosts import process
from runners.hosts.follow import LogFollower, run_lines
from runners.hosts.process import ProcessIdentity
from runners.hosts.supervise import RotatingLog

PYTHON = sys.executable


class Engine:
    """A process of this test's own."""

    def __init__(self, folder: Path, code: str, *, limit: int = 1 << 20, mark: str = "unit") -> None:
        self.folder, self.mark = folder, f"{mark}-{os.getpid()}-{time.monotonic_ns()}"
        self.log, self.exit_file = folder / "engine.log", folder / "exit.json"
        self.identity = process.start(
            [PYTHON, "-c", code],
            env=process.engine_environment({}, self.mark),
            folder=folder,
            log=self.log,
            exit_file=self.exit_file,
            log_limit_bytes=limit,
        )

    def wait_gone(self, seconds: float = 10.0) -> None:
        wait_for(lambda: not process.is_alive(self.identity), seconds)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(code: str, **options: int) -> Engine:
        engines.append(Engine(tmp_path, code, **options))
        return engines[-1]

    yield make
    for engine in engines:
        process.stop(engine.identity, engine.mark, grace_s=0.0)


def test_an_engine_lives_apart_and_ends_with_a_record(run: Callable[..., Engine]) -> None:
    engine = run("print('hello'); raise SystemExit(3)")
    assert os.getpgid(engine.identity.pid) == engine.identity.pid != os.getpgid(0)
    engine.wait_gone()
    record = process.read_exit(engine.exit_file)
    assert record is not None
    assert (record.returncode, record.left_behind) == (3, 0)
    assert run_lines(engine.log) == ["hello"]


def test_a_recycled_pid_is_not_taken_for_the_engine(run: Callable[..., Engine]) -> None:
    engine = run("import time; time.sleep(60)")
    assert process.is_alive(engine.identity)
    older = ProcessIdentity(engine.identity.pid, engine.identity.start_ticks - 1, engine.identity.boot_id)
    other_boot = ProcessIdentity(engine.identity.pid, engine.identity.start_ticks, "another")
    assert not process.is_alive(older)
    assert not process.is_alive(other_boot)


def test_stopping_is_gentle_first(run: Callable[..., Engine]) -> None:
    code = "import signal,sys,time\nsignal.signal(signal.SIGTERM, lambda *a: (print('bye', flush=True), sys.exit(0)))\n"
    engine = run(code + "print('up', flush=True)\ntime.sleep(60)")
    wait_for(lambda: "up" in run_lines(engine.log))
    assert process.stop(engine.identity, engine.mark, grace_s=10.0) is False
    assert run_lines(engine.log)[-1] == "bye"
    assert process.members(engine.identity, engine.mark) == []


def test_stopping_kills_what_will_not_end(run: Callable[..., Engine]) -> None:
    engine = run("import signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)")
    wait_for(lambda: "up" in run_lines(engine.log))
    assert process.stop(engine.identity, engine.mark, grace_s=0.3) is True
    assert process.members(engine.identity, engine.mark) == []
    record = process.read_exit(engine.exit_file)
    assert record is not None
    assert record.returncode == -9


def test_children_that_left_the_session_go_too(run: Callable[..., Engine], tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    code = f"import subprocess,sys\np=subprocess.Popen([sys.executable,'-c',{child!r}],start_new_session=True)\n"
    engine = run(code + "print(p.pid, flush=True)\nraise SystemExit(0)")
    engine.wait_gone()
    record = process.read_exit(engine.exit_file)
    assert record is not None
    assert record.left_behind == 1
    assert process.marked(engine.mark) == []


def test_the_engine_dies_with_its_keeper(run: Callable[..., Engine]) -> None:
    engine = run("import os,time; print(os.getpid(), flush=True); time.sleep(60)")
    wait_for(lambda: bool(run_lines(engine.log)))
    os.kill(engine.identity.pid, 9)
    wait_for(lambda: not process.marked(engine.mark))
    assert process.read_exit(engine.exit_file) is None


def test_logs_rotate(run: Callable[..., Engine]) -> None:
    engine = run("for i in range(3000): print('line', i, flush=True)", limit=20_000)
    engine.wait_gone()
    assert engine.log.stat().st_size <= 20_000 + 65_536
    assert engine.log.with_name("engine.log.1").exists()
    assert run_lines(engine.log)[-1] == "line 2999"


def test_a_full_disk_loses_log_lines_but_not_the_engine() -> None:
    log = RotatingLog("/dev/full", 1 << 30)
    log.write(b"x" * 100)
    assert log.lost_bytes == 100


def test_a_log_that_cannot_be_written_is_a_stated_failure(tmp_path: Path) -> None:
    (tmp_path / "engine.log").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="the disk is full"):
        Engine(tmp_path, "print(1)")


def test_too_little_space_is_refused_before_a_start(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="are free under"):
        process.require_space(tmp_path, 10**9)


def test_errors_name_what_the_system_said(tmp_path: Path) -> None:
    full = process.disk_error(tmp_path / "handle.json", OSError(errno.ENOSPC, "No space left on device"))
    assert full.reason == f"Cannot write {tmp_path / 'handle.json'}: the disk is full."
    assert "Permission denied" in process.disk_error(tmp_path, OSError(errno.EACCES, "Permission denied")).reason


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineMissingError, match="no-such-engine"):
        process.start(
            ["/no-such-engine"],
            env={},
            folder=tmp_path,
            log=tmp_path / "l",
            exit_file=tmp_path / "e",
            log_limit_bytes=1000,
        )


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_taken_port_is_seen_even_when_it_could_be_shared(reuse_port: bool) -> None:
    with socket.socket() as holder:
        if reuse_port:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)):
            process.require_port("127.0.0.1", port)
    process.require_port("127.0.0.1", port)


def test_engines_do_not_inherit_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TONNAGE_BROKER_URL", "redis://:hidden@host")
    monkeypatch.setenv("DB_PASSWORD", "hidden")
    monkeypatch.setenv("HF_HOME", "/models")
    env = process.engine_environment({"OMP_NUM_THREADS": "2"}, "d1")
    assert "hidden" not in " ".join(env.values())
    assert (env["HF_HOME"], env["OMP_NUM_THREADS"], env[process.MARKER]) == ("/models", "2", "d1")


def test_a_followed_log_yields_whole_lines_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    follower = LogFollower(path)
    assert follower.new_lines() == []
    path.write_text("one\ntw")
    assert follower.new_lines() == ["one"]
    path.write_text("one\ntwo\n")
    assert follower.new_lines() == ["two"]
    path.rename(tmp_path / "engine.log.1")
    path.write_text("three\n")
    assert follower.new_lines() == ["three"]


def test_only_the_present_run_counts(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("--- 2026-12-01 10:00:00 start\nold\n--- 2026-12-01 11:00:00 start\nnew\n")
    assert run_lines(path) == ["new"]


def test_the_supervisor_says_that_a_program_cannot_be_executed(tmp_path: Path) -> None:
    script = Path(process.__file__).with_name("supervise.py")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    log, exit_file = tmp_path / "log", tmp_path / "exit.json"
    command = [PYTHON, "-I", "-S", str(script), "--log", str(log), "--max-bytes", "10000", "--exit", str(exit_file)]
    command += ["--folder", str(tmp_path)]
    done = subprocess.run([*command, "--", str(broken)], check=False, timeout=20)
    assert done.returncode == 127
    assert "cannot start" in log.read_text()
    record = process.read_exit(exit_file)
    assert record is not None
    assert record.returncode == 127

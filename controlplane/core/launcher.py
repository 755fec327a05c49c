"""What ``manage.py up`` does before and around its processes: checks, migrations, the command lines."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.core import hostlease
from controlplane.core.supervisor import Child, Supervisor

Say = Callable[[str], None]
LOCAL_SLUG = "local"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared with, not bound by default


def check_port(host: str, port: int) -> None:
    """Raise CommandError when nobody could listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == 13:
                raise CommandError(
                    f"Port {port} is reserved for the system; choose one above 1023 with --port."
                ) from error
            raise CommandError(
                f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with --port, or PORT= of make."
            ) from error


@contextlib.contextmanager
def single_instance() -> Iterator[None]:
    """Hold the data directory for one ``up``; raises CommandError when another one runs on it."""
    path = Path(settings.DATA_DIR) / "up.lock"
    try:
        file: IO[str] = path.open("a+")
    except OSError as error:
        raise CommandError(_unusable(error)) from error
    with file:
        os.set_inheritable(file.fileno(), False)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise CommandError(
                f"Tonnage runs already on {settings.DATA_DIR} (process {pid}). Stop it with Ctrl-C there, or set "
                "TONNAGE_DATA_DIR to another directory."
            ) from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def prepare(say: Say) -> None:
    """Make the database ready, saying each step; raises CommandError with one sentence."""
    try:
        Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
        hostlease.check()
        executor = MigrationExecutor(connection)
        pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if pending:
            say(f"Database: applying {len(pending)} migrations")
            call_command("migrate", verbosity=0, interactive=False)
        say("Database: ready")
    except hostlease.HostError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(_unusable(error)) from error
    except DatabaseError as error:
        where = "data directory " + str(settings.DATA_DIR) if settings.ENV.embedded_database else "database server"
        raise CommandError(f"The database cannot be used: {str(error).strip()}. Check the {where}.") from error


def children(host: str, port: int, node_slug: str = LOCAL_SLUG) -> list[Child]:
    """The processes of one installation on this host."""
    python = sys.executable
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    celery = [python, "-W", "ignore", "-m", "celery", "--quiet"]
    quiet = ["--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    own_env = {"TONNAGE_DATA_DIR": str(settings.DATA_DIR), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    web = [
        python, "-m", "gunicorn", "controlplane.wsgi:application", "--bind", bind, "--workers", "2", "--threads", "4",
        "--worker-class", "gthread", "--preload", "--timeout", "120", "--graceful-timeout", "10",
        "--log-level", "warning", "--worker-tmp-dir", _worker_tmp(),
    ]  # fmt: skip
    control = [*celery, "-A", "controlplane.celery:app", "worker", "-Q", "control", "-n", "control@%h", *quiet]
    plan = [*celery, "-A", "controlplane.celery:app", "worker", "-Q", "plan", "-n", "plan@%h", *quiet]
    node = [python, "-W", "ignore", "-m", "runners", "worker", "--loglevel", "WARNING"]
    scheduler = [python, str(settings.BASE_DIR / "manage.py"), "scheduler"]
    programs: list[tuple[str, list[str], dict[str, str]]] = [
        ("web", web, own_env),
        ("scheduler", scheduler, own_env),
        ("control", [*control, "--pool", "threads", "--concurrency", "2"], own_env),
        ("plan", [*plan, "--pool", "prefork", "--concurrency", "1"], own_env),
        ("node", node, node_environment(node_slug)),
    ]
    made = [Child(name, argv, env, cwd=str(settings.BASE_DIR)) for name, argv, env in programs]
    # A plan may take minutes, and its worker keeps nothing: it is dropped, and the next start computes it again.
    made[3].stop_signal = signal.SIGKILL
    return made


def node_environment(node_slug: str = LOCAL_SLUG) -> dict[str, str]:
    """What the worker of this host is told; it holds no credentials of ours."""
    return {
        "TONNAGE_DATA_DIR": str(settings.DATA_DIR),
        "TONNAGE_BROKER_URL": settings.ENV.broker_url or "filesystem://",
        "TONNAGE_NODE_SLUG": node_slug,
        "TONNAGE_DATABASE_URL": "",
        "TONNAGE_SECRET_KEY": "",
        "DJANGO_SETTINGS_MODULE": "",
    }


def serve(say: Say, host: str, port: int, *, stop_engines: bool) -> None:
    """Run everything until Ctrl-C or SIGTERM; then the engines of this host go on, or are stopped too."""
    here = host in ("127.0.0.1", EVERYWHERE)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{'localhost' if here else shown}:{port}/"
    check = f"http://{'127.0.0.1' if here else shown}:{port}/healthz"

    def announce() -> None:
        say(f"Tonnage is ready: {url}  (Ctrl-C stops it)")

    supervisor = Supervisor(children(host, port), say)
    supervisor.run(ready=lambda: _answers(check), on_ready=announce)
    end_engines(say, stop=stop_engines)
    say("Stopped.")


def end_engines(say: Say, *, stop: bool) -> None:
    """Stop the engines that this host's worker started, or say that they go on."""
    from controlplane.deployments.reporting import local_engines, mark_stopped

    try:
        running = local_engines()
        if not running:
            return
        if not stop:
            say(f"{len(running)} engines go on and are taken up by the next start.")
            say("To end them: .venv/bin/python -m runners stop-all")
            return
        say(f"Stopping {len(running)} engines")
        command = [sys.executable, "-m", "runners", "stop-all", "--grace", "10"]
        done = subprocess.run(command, env={**os.environ, **node_environment()}, cwd=settings.BASE_DIR, check=False)
        if done.returncode == 0:
            mark_stopped(running, "It was stopped together with Tonnage.")
    except DatabaseError as error:
        say(f"The engines could not be looked up: {error}")


def options(parser: Any, *, stop_engines: bool) -> None:
    """Command-line options of ``up`` and ``demo``."""
    parser.add_argument("--port", type=int, default=settings.ENV.port, help="port of the web application (8000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    parser.add_argument(
        "--stop-engines",
        action=argparse.BooleanOptionalAction,
        default=stop_engines,
        help="whether the engines that this host runs end with it",
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own address
            return answer.status == 200
    except OSError:
        return False


def _worker_tmp() -> str:
    """Gunicorn's heartbeat files belong on a memory disk where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(settings.DATA_DIR)  # noqa: S108


def _unusable(error: OSError) -> str:
    return (
        f"The data directory {settings.DATA_DIR} cannot be used: {error.strerror}. Make it writable, or set "
        "TONNAGE_DATA_DIR to a directory that is."
    )

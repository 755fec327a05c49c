"""``python -m runners worker|status|stop-all``: run this node's worker, look at its engines, or end them all."""

from __future__ import annotations

import argparse
import sys

from runners.config import load_config
from runners.errors import RunnerError
from runners.hosts import process
from runners.state import LIVE_STATES, StateStore


def worker(arguments: list[str]) -> int:
    """Serve the node's queue until SIGTERM. Engines go on after that."""
    from runners.celery_app import app, queue

    options = [
        "--quiet",  # no banner; to be given before the command
        "worker",
        "--queues",
        queue,
        "--hostname",
        f"{queue}@%h",
        "--loglevel",
        "INFO",
        "--without-gossip",
        "--without-mingle",
    ]
    app.worker_main([*options, "--without-heartbeat", *arguments])
    return 0


def status(store: StateStore) -> int:
    """Print a line for each deployment."""
    for handle in store.handles():
        alive = "alive" if process.is_alive(handle.process) else "gone"
        print(f"{handle.deployment_id}\t{handle.state}\t{alive}\t{handle.base_url}\t{handle.reason}")
    return 0


def stop_all(store: StateStore, grace_s: float) -> int:
    """End every engine of this node; returns 1 when something was left behind."""
    code = 0
    for handle in store.handles():
        if handle.state not in LIVE_STATES and not process.members(handle.process, handle.deployment_id):
            continue
        store.set_state(handle.deployment_id, "stopping")
        try:
            process.stop(handle.process, handle.deployment_id, grace_s=grace_s)
            store.set_state(handle.deployment_id, "stopped")
            print(f"{handle.deployment_id}: stopped")
        except RunnerError as error:
            print(f"{handle.deployment_id}: {error}", file=sys.stderr)
            code = 1
    return code


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runners", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker", help="serve this node's queue (further options go to celery worker)")
    commands.add_parser("status", help="the deployments on this node")
    ending = commands.add_parser("stop-all", help="end every engine of this node")
    ending.add_argument("--grace", type=float, default=20.0, help="seconds before SIGKILL")
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "worker":
        parser.error(f"unknown argument {rest[0]}")
    try:
        if options.command == "worker":
            return worker(rest)
        store = StateStore(load_config().state_dir)
        return status(store) if options.command == "status" else stop_all(store, options.grace)
    except (RunnerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""Starting an engine, or taking up one that an earlier worker started, and waiting until it serves."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from planner.jsonio import from_json, to_json
from runners.contracts import LaunchCommand, StartupFacts
from runners.discovery import gpu_memory_used
from runners.engines.base import EngineAdapter, shorten
from runners.engines.registry import adapter_for
from runners.errors import (
    CommandRefusedError,
    RunnerError,
    WorkerStoppingError,
)
from runners.hosts import process
from runners.hosts.follow import run_lines
from runners.node import Node, Reporter
from runners.probe.scrape import fetch_text, read_cache_info
from runners.state import LIVE_STATES, Handle
from runners.waiting import LOG_LINES_AT_ONCE, Ready, gone, wait_ready

STOP_GRACE_S = 10.0


def launch(command: LaunchCommand, node: Node) -> None:
    """Carry out a LaunchCommand. It may come twice, late, or again after the worker died: the handle decides.

    Ends with one observation ``ready`` or ``failed``, except when another task is already on this deployment, when the
    message is older than what the handle knows, and when the worker shuts down (the next one takes it up).
    """
    with node.store.lock(command.deployment_id, "launch", wait=False) as mine:
        if not mine:
            return
        handle = node.store.load(command.deployment_id)
        if handle and handle.job_id == command.job_id and handle.attempt > command.attempt:
            return
        same = handle is not None and (handle.job_id, handle.attempt) == (command.job_id, command.attempt)
        reporter = _reporter(command, node, handle.sequence if handle and same else 0)
        try:
            if handle and same and handle.state in ("ready", "failed", "stopped", "stopping"):
                repeat_state(handle, node, reporter)
                return
            adapter = adapter_for(command.launch)
            handle = _take_up(command, node, handle, reporter) or _start(command, node, adapter, reporter)
            ready = wait_ready(handle, command, node, adapter, reporter)
            _report_ready(handle, node, adapter, reporter, ready)
        except WorkerStoppingError:
            return
        except RunnerError as error:
            _fail(command, node, reporter, error)
        except OSError as error:
            _fail(command, node, reporter, process.disk_error(node.store.root, error))


def _reporter(command: LaunchCommand, node: Node, sequence: int) -> Reporter:
    def remember(number: int) -> None:
        node.store.update(
            command.deployment_id,
            lambda handle: replace(handle, sequence=number) if handle.job_id == command.job_id else handle,
        )

    return Reporter(
        node,
        job_id=command.job_id,
        attempt=command.attempt,
        deployment_id=command.deployment_id,
        emulated=command.launch.engine == "emulated",
        sequence=sequence,
        remember=remember,
    )


def repeat_state(handle: Handle, node: Node, reporter: Reporter) -> None:
    """Report again what a handle says: its message may have been lost."""
    if handle.state == "ready" and process.is_alive(handle.process):
        reporter.emit("ready", phase="ready", progress=1.0, **_ready_payload(handle))
    elif handle.state == "ready":
        raise gone(handle, node)
    elif handle.state == "stopped":
        reporter.emit("stopped", phase="stopped")
    elif handle.state == "failed":
        reporter.emit("failed", reason=handle.reason, remedy=handle.remedy)


def _ready_payload(handle: Handle) -> dict[str, Any]:
    startup = from_json(StartupFacts, handle.startup) if handle.startup else None
    return {"base_url": handle.base_url, "pid": handle.pid, "command_line": handle.argv, "startup": startup}


def _take_up(command: LaunchCommand, node: Node, handle: Handle | None, reporter: Reporter) -> Handle | None:
    """The engine that already runs for this deployment, None when one must be started."""
    if handle is None or handle.state not in LIVE_STATES or not process.is_alive(handle.process):
        return None
    if handle.command.get("launch") != to_json(command.launch):
        raise CommandRefusedError(
            "This deployment already runs on the node with other settings.", "Stop it first, then launch it again."
        )
    taken = node.store.save(
        replace(handle, job_id=command.job_id, attempt=command.attempt, sequence=reporter.sequence, state="loading")
    )
    reporter.emit("started", phase="taken up again", pid=taken.pid, command_line=taken.argv, base_url=taken.base_url)
    return taken


def _start(command: LaunchCommand, node: Node, adapter: EngineAdapter, reporter: Reporter) -> Handle:
    config, store, launch = node.config, node.store, command.launch
    folder = store.folder(command.deployment_id)
    process.require_space(folder, config.min_free_mib)
    process.stop(None, command.deployment_id, grace_s=0.0)  # what a worker left that died before it wrote a handle
    process.require_port(config.bind_host, launch.port)
    plan = adapter.plan(launch, folder, config)
    gpus = launch.gpu_indexes if adapter.uses_gpus else ()
    handle = store.save(
        Handle(
            deployment_id=command.deployment_id,
            job_id=command.job_id,
            attempt=command.attempt,
            state="starting",
            command=to_json(command),
            sequence=reporter.sequence,
            port=launch.port,
            base_url=f"http://{config.public_host}:{launch.port}",
            argv=plan.argv,
            started_at=time.time(),
            emulated=adapter.emulated,
            tokenizer=plan.tokenizer,
            gpu_used_mib={str(index): used for index, used in gpu_memory_used(gpus).items()},
        )
    )
    started = process.start(
        list(plan.argv),
        env=process.engine_environment(plan.env, command.deployment_id),
        folder=folder,
        log=store.log_path(command.deployment_id),
        exit_file=store.exit_path(command.deployment_id),
        log_limit_bytes=config.log_limit_bytes,
    )
    handle = store.save(replace(handle, state="loading", **asdict(started)))
    reporter.emit(
        "started", phase="started", progress=0.02, pid=handle.pid, command_line=plan.argv, base_url=handle.base_url,
        lines=plan.notes,
    )  # fmt: skip
    return handle


def _report_ready(handle: Handle, node: Node, adapter: EngineAdapter, reporter: Reporter, seen: Ready) -> None:
    answer = seen.answer
    facts = adapter.parse_startup(run_lines(node.store.log_path(handle.deployment_id)))
    cache = read_cache_info(fetch_text(handle.base_url, adapter.metrics) or "")
    facts = replace(
        facts,
        kv_blocks=facts.kv_blocks or cache.blocks,
        block_tokens=facts.block_tokens or cache.block_tokens,
        max_model_len=answer.max_model_len or facts.max_model_len,
        ready_s=seen.ready_s,
        phases_s=seen.phases_s,
    )
    ready = node.store.set_state(
        handle.deployment_id, "ready", startup=to_json(facts), ready_at=time.time(), sequence=reporter.sequence
    )
    if ready is None or answer.emulated != ready.emulated:
        raise CommandRefusedError(
            "What answers on the port is not the engine that was launched.", "Stop what else listens on that port."
        )
    reporter.emit("ready", phase="ready", progress=1.0, **_ready_payload(ready))


def _fail(command: LaunchCommand, node: Node, reporter: Reporter, error: RunnerError) -> None:
    """Leave no process, record the failure, report it."""
    handle = node.store.load(command.deployment_id)
    # A refused command says nothing against an engine that runs under other settings.
    foreign = handle is not None and (handle.job_id, handle.attempt) != (command.job_id, command.attempt)
    reason, remedy = error.reason, error.remedy
    if not foreign:
        try:
            process.stop(handle.process if handle else None, command.deployment_id, grace_s=STOP_GRACE_S)
        except RunnerError as left:
            reason, remedy = f"{reason} {left.reason}", f"{remedy} {left.remedy}"
        if handle is not None and handle.state not in ("stopping", "stopped"):
            try:
                node.store.set_state(command.deployment_id, "failed", reason=reason, remedy=remedy)
            except RunnerError as full:
                reason = f"{reason} {full.reason}"
    reporter.remember = lambda _sequence: None
    tail = tuple(shorten(line) for line in run_lines(node.store.log_path(command.deployment_id))[-LOG_LINES_AT_ONCE:])
    reporter.emit("failed", reason=reason, remedy=remedy, lines=tail)

"""Measuring a running deployment with a load."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace
from pathlib import Path

from planner.jsonio import from_json, to_json
from runners.adopting import PROBE_MARK
from runners.contracts import CancelCommand, EngineLaunch, ProbeCommand, ProbeLoad, ProbeMetrics
from runners.engines.base import EngineAdapter, clean_lines, last_matching, shorten
from runners.engines.registry import adapter_for
from runners.errors import CommandRefusedError, ProbeCancelledError, ProbeError, RunnerError, WorkerStoppingError
from runners.hosts import process
from runners.hosts.process import ProcessIdentity
from runners.node import Node, Reporter
from runners.probe import aiperf
from runners.probe.lengths import check_lengths
from runners.probe.power import PowerSampler
from runners.probe.readiness import embeds_only, list_model
from runners.probe.scrape import Counters, fetch_text, read_counters
from runners.state import Handle, ProbeRecord
from runners.waiting import gone

POLL_S = 0.5
STOP_GRACE_S = 5.0
LOG_LIMIT_BYTES = 8 * 2**20
WARM_FROM = 0.8
COLD_UP_TO = 0.02
LARGEST_REQUESTS = 1_000_000


def probe(command: ProbeCommand, node: Node) -> None:
    """Carry out a ProbeCommand; a repeated message repeats the result. Ends with ``probed`` or ``failed``."""
    with node.store.lock(command.probe_id, "probe", wait=False) as mine:
        if not mine:
            return
        record = node.store.load_probe(command.probe_id)
        same = record is not None and (record.job_id, record.attempt) == (command.job_id, command.attempt)
        if record and record.job_id == command.job_id and record.attempt > command.attempt:
            return
        handle = node.store.load(command.deployment_id)
        reporter = _reporter(command, node, record.sequence if record and same else 0, handle)
        if record and same and record.state == "probed":
            reporter.emit("probed", progress=1.0, metrics=from_json(ProbeMetrics, record.metrics))
            return
        if record and same and record.state == "failed":
            reporter.emit("failed", reason=record.reason, remedy=record.remedy)
            return
        _measure_and_report(command, node, handle, reporter)


def cancel(command: CancelCommand, node: Node) -> None:
    """Carry out a CancelCommand: the probe's own task, when there is one, sees the note and ends its load. Harmless
    when nothing runs, and a probe that has not begun will not. Ends with ``stopped`` or ``failed``.
    """
    reporter = Reporter(
        node,
        job_id=command.job_id,
        attempt=command.attempt,
        deployment_id=command.deployment_id,
        probe_id=command.probe_id,
    )
    try:
        reporter.emit("started", phase="ending the load")
        node.store.cancel_probe(command.probe_id, command.cancelled_job)
        with node.store.lock(command.probe_id, "probe"):
            process.stop(None, PROBE_MARK + command.probe_id, grace_s=STOP_GRACE_S)
        reporter.emit("stopped", phase="the load has ended", progress=1.0)
    except RunnerError as error:
        reporter.emit("failed", reason=error.reason, remedy=error.remedy)


def _stop_if_cancelled(command: ProbeCommand, node: Node) -> None:
    if node.store.is_cancelled(command.probe_id, command.job_id):
        raise ProbeCancelledError("The probe was cancelled.", "Probe again when a measurement is wanted.")


def _reporter(command: ProbeCommand, node: Node, sequence: int, handle: Handle | None) -> Reporter:
    def remember(number: int) -> None:
        record = node.store.load_probe(command.probe_id)
        if record is not None:
            node.store.save_probe(replace(record, sequence=number))

    return Reporter(
        node,
        job_id=command.job_id,
        attempt=command.attempt,
        deployment_id=command.deployment_id,
        probe_id=command.probe_id,
        emulated=command.engine == "emulated" or (handle is not None and handle.emulated),
        sequence=sequence,
        remember=remember,
    )


def _measure_and_report(command: ProbeCommand, node: Node, handle: Handle | None, reporter: Reporter) -> None:
    record = ProbeRecord(command.probe_id, command.job_id, command.attempt, command.deployment_id, "running")
    try:
        process.require_space(node.store.probe_folder(command.probe_id), node.config.min_free_mib)
        node.store.save_probe(replace(record, sequence=reporter.sequence))
        metrics = _measure(command, node, handle, reporter)
        done = replace(record, state="probed", metrics=to_json(metrics), sequence=reporter.sequence)
        node.store.save_probe(done)
        reporter.emit("probed", phase="measured", progress=1.0, metrics=metrics)
    except WorkerStoppingError:
        error: RunnerError = ProbeError("The worker was stopped in the middle of the probe.", "Probe again.")
        _fail(record, node, reporter, error)
    except RunnerError as error:
        _fail(record, node, reporter, error)
    except OSError as error:
        _fail(record, node, reporter, process.disk_error(node.store.root, error))


def _fail(record: ProbeRecord, node: Node, reporter: Reporter, error: RunnerError) -> None:
    reason, remedy = error.reason, error.remedy
    try:
        process.stop(None, PROBE_MARK + record.probe_id, grace_s=STOP_GRACE_S)
        node.store.save_probe(
            replace(record, state="failed", reason=reason, remedy=remedy, sequence=reporter.sequence + 1)
        )
    except RunnerError as left:
        reason, remedy = f"{reason} {left.reason}", f"{remedy} {left.remedy}"
    reporter.remember = lambda _sequence: None
    reporter.emit("failed", reason=reason, remedy=remedy)


def _measure(command: ProbeCommand, node: Node, handle: Handle | None, reporter: Reporter) -> ProbeMetrics:
    check_load(command.load)
    _stop_if_cancelled(command, node)
    adapter = _adapter(command, handle)
    if handle is not None:
        name = adapter.listed_name(from_json(EngineLaunch, handle.command["launch"]))
        command = replace(command, served_name=name)
    answer = list_model(command.base_url, command.served_name)
    if not answer.ready:
        if handle is not None and not process.is_alive(handle.process):
            raise gone(handle, node)
        raise ProbeError(f"The endpoint is not ready: {answer.detail}.", "Launch the deployment, then probe it.")
    reporter.emulated = reporter.emulated or answer.emulated
    if command.load.endpoint == "completions" and embeds_only(command.base_url, command.served_name):
        command = replace(command, load=replace(command.load, endpoint="embeddings"))
    tokenizer = _tokenizer(command, handle)
    length_note = check_lengths(
        command.base_url, command.served_name, tokenizer, adapter.tokenize_path, command.load.seed
    )
    reporter.emit("started", phase="warming up", progress=0.05)
    command = replace(command, load=replace(command.load, seed=prompt_seed(command)))
    folder = node.store.probe_folder(command.probe_id)
    artefacts = folder / "aiperf"
    before = _counters(command, adapter)
    launch = from_json(EngineLaunch, handle.command["launch"]) if handle else None
    gpus = launch.gpu_indexes if launch and adapter.uses_gpus else ()
    with PowerSampler(gpus) as power:
        summary = _run(command, node, handle, reporter, tokenizer, folder, artefacts)
    after = _counters(command, adapter)
    metrics = aiperf.parse(summary, command.load, artefacts)
    prefix_hit = _share(before, after)
    drafted = _difference(before.drafted, after.drafted)
    accepted = _difference(before.accepted, after.accepted)
    warnings = aiperf.doubts(metrics, summary, command.load, artefacts)
    if length_note:
        warnings.append(length_note)
    meant = command.load.shared_tokens / command.load.input_tokens
    if prefix_hit is not None and prefix_hit > meant + COLD_UP_TO and not reporter.emulated:
        warnings.append(f"{prefix_hit:.0%} of the prompt tokens came from the engine's prefix cache.")
    return replace(
        metrics,
        prefix_hit=prefix_hit,
        cache_state=cache_state(prefix_hit),
        acceptance=accepted / drafted if drafted and accepted is not None else None,
        preemptions=_difference(before.preemptions, after.preemptions),
        mean_power_w=power.mean_w(aiperf.profiling_window(artefacts)),
        warnings=tuple(warnings),
    )


def cache_state(prefix_hit: float | None) -> str:
    """Whether a run was made with a warm prefix cache: by what the engine counted, never by what was meant."""
    if prefix_hit is None:
        return ""
    if prefix_hit >= WARM_FROM:
        return "warm"
    return "cold" if prefix_hit <= COLD_UP_TO else "mixed"


def check_load(load: ProbeLoad) -> None:
    """Refuse absurd loads; raises CommandRefusedError naming the field."""
    checks = {
        "input_tokens": 1 <= load.input_tokens <= 10_000_000,
        "output_tokens": 1 <= load.output_tokens <= 10_000_000,
        "requests": 1 <= load.requests <= LARGEST_REQUESTS,
        "concurrency": load.rate_per_s > 0 or 1 <= load.concurrency <= 100_000,
        "rate_per_s": 0 <= load.rate_per_s <= 100_000,
        "input_sd": load.input_sd >= 0,
        "output_sd": load.output_sd >= 0,
        "warmup_requests": 0 <= load.warmup_requests <= LARGEST_REQUESTS,
        "timeout_s": 0 < load.timeout_s <= 86_400,
        "endpoint": load.endpoint in ("completions", "chat", "embeddings"),
        "mix": _mix_fits(load),
        "shared_tokens": 0 <= load.shared_tokens < min([load.input_tokens, *(pair[0] for pair in load.mix)]),
        "shared_prefixes": 1 <= load.shared_prefixes <= LARGEST_REQUESTS,
        "slo_ms": load.slo_ms.keys() <= {"ttft", "tpot", "e2e"} and all(limit > 0 for limit in load.slo_ms.values()),
    }
    for name, fine in checks.items():
        if not fine:
            value = getattr(load, name)
            raise CommandRefusedError(f"The load's {name} is out of range: {value!r}.", "Correct the load.")


def _mix_fits(load: ProbeLoad) -> bool:
    """Percentages of positive lengths that add up to 100, with the means that the load states."""
    if not load.mix:
        return True
    if any(tokens_in < 1 or tokens_out < 1 or percent <= 0 for tokens_in, tokens_out, percent in load.mix):
        return False
    means = (sum(pair[side] * pair[2] for pair in load.mix) / 100 for side in (0, 1))
    stated = (load.input_tokens, load.output_tokens)
    whole = abs(sum(pair[2] for pair in load.mix) - 100) < 0.01
    return whole and all(abs(mean - said) <= 1 for mean, said in zip(means, stated, strict=True))


def prompt_seed(command: ProbeCommand) -> int:
    """Seed of the prompts, of 32 bits: one of its own for each attempt of each probe, for the engine's prefix cache
    still holds the prompts of the one before.
    """
    return zlib.crc32(f"{command.load.seed}/{command.probe_id}/{command.attempt}".encode())


def _adapter(command: ProbeCommand, handle: Handle | None) -> EngineAdapter:
    if handle is not None:
        return adapter_for(from_json(EngineLaunch, handle.command["launch"]))
    return adapter_for(EngineLaunch(command.engine, "", "model", command.served_name, 8000, ()))


def _tokenizer(command: ProbeCommand, handle: Handle | None) -> str:
    """Folder or name of the tokenizer: the deployment's own unless the command names one."""
    if command.tokenizer not in ("", "builtin") and not (handle and handle.emulated):
        return command.tokenizer
    if handle is not None and handle.tokenizer:
        return handle.tokenizer
    raise ProbeError(
        "No tokenizer is known for this endpoint, so prompts of a given length cannot be made.",
        "Name the model's tokenizer: a folder on the node, or an id in its Hugging Face cache.",
    )


def _run(
    command: ProbeCommand,
    node: Node,
    handle: Handle | None,
    reporter: Reporter,
    tokenizer: str,
    folder: Path,
    artefacts: Path,
) -> dict:
    """Run AIPerf to its end while watching the engine; returns its summary."""
    argv = aiperf.command(
        command.load,
        base_url=command.base_url,
        served_name=command.served_name,
        tokenizer=tokenizer,
        folder=artefacts,
    )
    mark = PROBE_MARK + command.probe_id
    exit_file, log = folder / "exit.json", folder / "aiperf.log"
    running = process.start(
        argv,
        env=process.engine_environment({"HF_HUB_DISABLE_TELEMETRY": "1"}, mark),
        folder=folder,
        log=log,
        exit_file=exit_file,
        log_limit_bytes=LOG_LIMIT_BYTES,
    )
    try:
        _watch(command, node, handle, reporter, running, artefacts)
    finally:
        process.stop(running, mark, grace_s=STOP_GRACE_S)
    summary = aiperf.read_summary(artefacts)
    record = process.read_exit(exit_file)
    if handle is not None and not process.is_alive(handle.process):
        raise _engine_died(handle, node)
    if summary is None:
        lines = clean_lines(log.read_text(encoding="utf-8", errors="replace"))
        said = last_matching(lines, ("Error", "ERROR")) or (lines[-1] if lines else "nothing")
        code = record.returncode if record else "unknown"
        raise ProbeError(
            f"AIPerf ended with code {code} and no result. It said: {shorten(said, 300)}",
            f"Read {log} on the node.",
        )
    return summary


def _engine_died(handle: Handle, node: Node) -> ProbeError:
    error = gone(handle, node)
    return ProbeError(f"The engine ended during the probe. {error.reason}", error.remedy)


def _watch(
    command: ProbeCommand,
    node: Node,
    handle: Handle | None,
    reporter: Reporter,
    running: ProcessIdentity,
    artefacts: Path,
) -> None:
    deadline = time.monotonic() + command.load.timeout_s
    expected = command.load.requests + aiperf.warmups(command.load)
    shown = aiperf.Counts()
    while process.is_alive(running):
        _stop_if_cancelled(command, node)
        if handle is not None and not process.is_alive(handle.process):
            raise _engine_died(handle, node)
        if time.monotonic() >= deadline:
            raise ProbeError(
                f"The probe did not end within {command.load.timeout_s:.0f} s: "
                f"{shown.answered} of {expected} requests were answered.",
                "Lower the number of requests or the load, or raise the probe's timeout.",
            )
        counts = aiperf.count_records(artefacts)
        if counts.answered > shown.answered:
            shown = counts
            phase = "measuring" if counts.answered > aiperf.warmups(command.load) else "warming up"
            reporter.emit("progress", phase=phase, progress=0.05 + 0.9 * min(counts.answered / expected, 1.0))
        reporter.heartbeat()
        node.pause(POLL_S)


def _counters(command: ProbeCommand, adapter: EngineAdapter) -> Counters:
    text = fetch_text(command.base_url, adapter.metrics)
    return read_counters(text, adapter.metrics) if text else Counters()


def _difference(before: float | None, after: float | None) -> int | None:
    return None if before is None or after is None else int(after - before)


def _share(before: Counters, after: Counters) -> float | None:
    """Share of the prompt tokens of this run that were cached; None when the engine does not count them."""
    pairs = (("prompt_cached", "prompt_tokens"), ("prefix_hits", "prefix_queries"))
    for cached, asked in pairs:
        part = _difference(getattr(before, cached), getattr(after, cached))
        whole = _difference(getattr(before, asked), getattr(after, asked))
        if part is not None and whole:
            return part / whole
    return None

"""AIPerf as a subprocess: its command line, and what its exports say.

Metric tags are AIPerf's own (metrics/types): ``inter_token_latency`` = (request_latency - time_to_first_token) /
(output tokens - 1) per request, which is TPOT here; ``inter_chunk_latency`` the gaps between streamed chunks, which
is ITL. Percentiles are over requests (over all gaps for ITL).
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.contracts import ProbeLoad, ProbeMetrics
from runners.errors import ProbeError

ERROR_SHARE = 0.05
"""A run with a larger share of failed requests is stopped: its latencies would be those of the lucky."""
RECORDS = "profile_export.jsonl"
SUMMARY = "profile_export_aiperf.json"
PHASES = "phase_manifest.json"
_STATS = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_SEND_LAG_MS = 10.0
_SLO_TAGS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
EMBEDDINGS = "embeddings"


def program() -> str:
    """AIPerf's program beside this Python; raises ProbeError when it is not installed."""
    beside = Path(sys.executable).parent / "aiperf"
    found = str(beside) if beside.exists() else shutil.which("aiperf")
    if found is None:
        raise ProbeError(
            "The load generator AIPerf is not installed on this node.",
            "Install the worker's environment from requirements.lock: it contains aiperf.",
        )
    return found


def warmups(load: ProbeLoad) -> int:
    """Warm-up requests: never fewer than run at once, so that no measured request is the first of its kind."""
    at_once = load.concurrency if load.rate_per_s <= 0 else max(load.concurrency, math.ceil(load.rate_per_s))
    return max(load.warmup_requests, at_once, 1)


def command(load: ProbeLoad, *, base_url: str, served_name: str, tokenizer: str, folder: Path) -> list[str]:
    """AIPerf's command line. Every prompt is used once, outputs have the asked length (``ignore_eos``)."""
    ahead = warmups(load)
    argv = [program(), "profile", "--model", served_name, "--url", base_url]
    argv += ["--endpoint-type", load.endpoint, "--tokenizer", tokenizer]
    argv += _lengths(load)
    if load.endpoint != EMBEDDINGS:
        argv.append("--streaming")
        argv += ["--use-legacy-max-tokens", "--use-server-token-count"]
        argv += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    argv += ["--prompt-corpus", "random", "--num-dataset-entries", str(load.requests + ahead)]
    argv += ["--dataset-sampling-strategy", "sequential", "--random-seed", str(load.seed)]
    argv += ["--request-count", str(load.requests), "--warmup-request-count", str(ahead)]
    if load.rate_per_s > 0:
        argv += ["--request-rate", f"{load.rate_per_s:g}", "--arrival-pattern", "poisson"]
    else:
        argv += ["--concurrency", str(load.concurrency)]
    if load.slo_ms:
        limits = sorted(load.slo_ms.items())
        argv += ["--goodput", " ".join(f"{_SLO_TAGS[metric]}:{limit:g}" for metric, limit in limits)]
    argv += ["--failed-request-threshold", f"{ERROR_SHARE:g}", "--request-timeout-seconds", f"{load.timeout_s:g}"]
    argv += ["--output-artifact-dir", str(folder), "--ui", "none", "--no-auto-plot"]
    return [*argv, "--no-gpu-telemetry", "--no-server-metrics"]


def _lengths(load: ProbeLoad) -> list[str]:
    """Lengths, or their mixture, and what prompts share: AIPerf puts the shared text before the prompt's own."""
    if load.mix:
        pairs = (f"{ask - load.shared_tokens},{answer}:{percent:g}" for ask, answer, percent in load.mix)
        argv = ["--seq-dist", ";".join(pairs)]
    else:
        argv = ["--isl", str(load.input_tokens - load.shared_tokens), "--isl-stddev", f"{load.input_sd:g}"]
        if load.endpoint != EMBEDDINGS:
            argv += ["--osl", str(load.output_tokens), "--osl-stddev", f"{load.output_sd:g}"]
    if load.shared_tokens:
        argv += ["--prefix-prompt-length", str(load.shared_tokens), "--num-prefix-prompts", str(load.shared_prefixes)]
    return argv


@dataclass(frozen=True, slots=True)
class Counts:
    """Records so far, warm-up included: how many were answered, how many failed."""

    answered: int = 0
    failed: int = 0


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Per-request records that AIPerf has written so far; half-written lines are left out."""
    try:
        with (folder / RECORDS).open(encoding="utf-8") as stream:
            for line in stream:
                if line.endswith("\n"):
                    yield json.loads(line)
    except (OSError, ValueError):
        return


def measured(folder: Path) -> Iterator[dict[str, Any]]:
    """Records of answered requests after the warm-up."""
    for record in records(folder):
        if (record.get("metadata") or {}).get("benchmark_phase") == "profiling" and not record.get("error"):
            yield record


def _at(record: dict[str, Any], name: str) -> float:
    return float((record.get("metadata") or {}).get(name) or 0.0) / 1e9


def _rate(times: list[float]) -> float | None:
    """Events a second between the first and the last: (n - 1) / (last - first); None for fewer than two."""
    span = max(times) - min(times) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else None


@dataclass(slots=True)
class _Tally:
    """What the records of a run add up to, in one reading of them; counts of requests, chunks and tokens."""

    requests: int = 0
    chunks: int = 0
    tokens: float = 0.0
    ends: list[float] = field(default_factory=list)
    met: dict[str, int] = field(default_factory=dict)

    @property
    def chunks_per_token(self) -> float | None:
        """Streamed chunks per output token; None without records."""
        return self.chunks / self.tokens if self.tokens else None

    def slo_shares(self, total: int) -> dict[str, float]:
        """Share of all ``total`` requests, failed ones included, that met each limit by itself; {} without records."""
        return {metric: met / max(total, self.requests) for metric, met in self.met.items()} if self.requests else {}


def _tally(folder: Path, load: ProbeLoad) -> _Tally:
    found = _Tally(met=dict.fromkeys(load.slo_ms, 0))
    for record in measured(folder):
        found.requests += 1
        found.ends.append(_at(record, "request_end_ns"))
        metrics = record.get("metrics") or {}
        gaps = (metrics.get("inter_chunk_latency") or {}).get("value")
        length = (metrics.get("output_sequence_length") or {}).get("value")
        if isinstance(gaps, list) and length:
            found.chunks += len(gaps) + 1
            found.tokens += length
        if load.slo_ms:
            row = _latencies(record)
            for metric, limit in load.slo_ms.items():
                found.met[metric] += row[metric] is not None and row[metric] <= limit
    return found


def _latencies(record: dict[str, Any]) -> dict[str, Any]:
    values = {name: (item or {}).get("value") for name, item in (record.get("metrics") or {}).items()}
    ttft, e2e = values.get("time_to_first_token"), values.get("request_latency")
    tokens = values.get("output_sequence_length") or 0
    tpot = None if ttft is None or e2e is None or tokens < 2 else (e2e - ttft) / (tokens - 1)
    return {"ttft": ttft, "e2e": e2e, "tpot": tpot}


def count_records(folder: Path) -> Counts:
    """How far a run is."""
    answered = failed = 0
    for record in records(folder):
        failed += bool(record.get("error"))
        answered += not record.get("error")
    return Counts(answered, failed)


def profiling_window(folder: Path) -> tuple[float, float] | None:
    """Unix times of the measured phase's start and end, None when the run did not get that far."""
    try:
        phases = json.loads((folder / PHASES).read_text(encoding="utf-8"))["phases"]
        phase = next(row for row in phases if row["phase_kind"] == "profiling")
        return phase["start_ns"] / 1e9, phase["end_ns"] / 1e9
    except (OSError, ValueError, KeyError, StopIteration, TypeError):
        return None


def read_summary(folder: Path) -> dict[str, Any] | None:
    """AIPerf's JSON export, None when there is none."""
    try:
        data = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _value(summary: dict[str, Any], tag: str, stat: str = "avg") -> float | None:
    row = summary.get(tag)
    number = row.get(stat) if isinstance(row, dict) else None
    return float(number) if isinstance(number, (int, float)) and math.isfinite(number) else None


def _stats(summary: dict[str, Any], tag: str) -> dict[str, float]:
    found = {name: _value(summary, tag, stat) for name, stat in _STATS.items()}
    return {name: value for name, value in found.items() if value is not None}


def error_summary(summary: dict[str, Any] | None) -> str:
    """The most frequent request error, "" when there is none."""
    rows = (summary or {}).get("error_summary") or []
    if not rows:
        return ""
    detail = rows[0].get("error_details") or {}
    return f"{detail.get('type') or detail.get('code') or 'error'}: {str(detail.get('message', ''))[:200]}"


def parse(summary: dict[str, Any], load: ProbeLoad, folder: Path) -> ProbeMetrics:
    """ProbeMetrics out of AIPerf's exports; raises ProbeError when the run cannot be believed.

    ``prefix_hit``, ``preemptions`` and ``mean_power_w`` are not AIPerf's to know and stay None.
    """
    completed = int(_value(summary, "request_count") or 0)
    failed = int(_value(summary, "error_request_count") or 0)
    total = completed + failed
    if total == 0 or completed == 0:
        said = error_summary(summary)
        raise ProbeError(
            f"No request was answered{': ' + said if said else ''}.",
            "Look at the engine's log: it refuses these requests or cannot take this load.",
        )
    if failed / total > ERROR_SHARE or summary.get("was_cancelled"):
        raise ProbeError(
            f"{failed} of {total} requests failed; the run was stopped. {error_summary(summary)}".strip(),
            "Lower the load or find the cause in the engine's log: latencies of the rest would flatter the engine.",
        )
    streaming = _stats(summary, "time_to_first_token")
    duration = _value(summary, "benchmark_duration")
    one_pass = load.endpoint == EMBEDDINGS
    if (not streaming and not one_pass) or duration is None or duration <= 0:
        raise ProbeError("AIPerf reported no streamed token.", "Check that the engine streams on this route.")
    seen = _tally(folder, load)
    chunks = seen.chunks_per_token
    mean_input = _value(summary, "input_sequence_length") or 0.0
    req_per_s = _value(summary, "request_throughput") or 0.0
    metrics = ProbeMetrics(
        requests=load.requests,
        completed=completed,
        failed=failed,
        duration_s=duration,
        output_tok_per_s=_value(summary, "output_token_throughput") or 0.0,
        total_tok_per_s=mean_input * req_per_s if one_pass else _value(summary, "total_token_throughput") or 0.0,
        req_per_s=req_per_s,
        ttft_ms=streaming,
        tpot_ms=_stats(summary, "inter_token_latency"),
        itl_ms=_stats(summary, "inter_chunk_latency"),
        e2e_ms=_stats(summary, "request_latency"),
        achieved_concurrency=_value(summary, "effective_concurrency") or 0.0,
        mean_input_tokens=mean_input,
        mean_output_tokens=_value(summary, "output_sequence_length") or 0.0,
        itl_kind="chunks" if chunks is not None and chunks < 0.95 else "tokens",
        goodput_per_s=(_value(summary, "goodput") or 0.0) if load.slo_ms else None,
        good_share=(_value(summary, "good_request_count") or 0.0) / total if load.slo_ms else None,
        slo_shares=seen.slo_shares(total),
        first_answer_ms=_stats(summary, "time_to_first_output_token"),
        completions_per_s=_rate(seen.ends),
        send_lag_ms=_stats(summary, "credit_to_start_latency"),
        generator=f"aiperf {summary.get('aiperf_version', '')}".strip(),
    )
    return metrics


def doubts(metrics: ProbeMetrics, summary: dict[str, Any], load: ProbeLoad, folder: Path) -> list[str]:
    """What a reader should know before believing the figures, as sentences."""
    found = []
    if metrics.completed + metrics.failed < load.requests:
        found.append(f"Only {metrics.completed + metrics.failed} of {load.requests} requests were made.")
    if abs(metrics.mean_input_tokens - load.input_tokens) > max(0.03 * load.input_tokens, 2):
        found.append(f"Prompts had {metrics.mean_input_tokens:.1f} tokens on average, {load.input_tokens} asked for.")
    one_pass = load.endpoint == EMBEDDINGS
    if not one_pass and abs(metrics.mean_output_tokens - load.output_tokens) > max(0.03 * load.output_tokens, 1):
        found.append(f"Outputs had {metrics.mean_output_tokens:.1f} tokens on average, {load.output_tokens} asked for.")
    typical = _value(summary, "effective_concurrency", "p50")
    if load.rate_per_s <= 0 and typical is not None and typical < 0.95 * load.concurrency:
        found.append(f"The client kept {typical:.1f} requests in flight, not {load.concurrency}: it held back.")
    lag = _value(summary, "credit_to_start_latency", "p99")
    if lag is not None and lag > _SEND_LAG_MS:
        found.append(f"The client sent up to {lag:.0f} ms (p99) late; latencies do not contain that wait.")
    starts = [_at(record, "request_start_ns") for record in measured(folder)] if load.rate_per_s > 0 else []
    sent = _rate(starts)
    if sent is not None and sent < load.rate_per_s * (1 - max(0.05, 3 / load.requests**0.5)):
        found.append(f"The client sent {sent:.4g} requests a second, not {load.rate_per_s:g}: it fell behind.")
    if load.rate_per_s <= 0 and load.requests < 5 * load.concurrency:
        found.append("Fewer than five requests a client: throughput contains much of the ramp up and down.")
    return found

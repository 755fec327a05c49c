"""Delays outside the kernels: host work in each step, and the front end and client around the engine.

Fitted on real vLLM 0.24.0 runs on an H200 (closed loops of 1-256 clients, 128-4096 prompt tokens, the engine's own load
generator on the same host). Decode steps take 0.15 ms more than their kernels. A lone prompt pays 11-19 ms more than
its step, growing with its length; a client sends its next request 0.3 ms after its last token. Streams: 256 sequences
get a token every 21.9 ms although the step takes 18.5, and 128 sequences at 8.6 ms lose a fifth of their chunks to
merging at 7.6 ms steps; both are about 0.087 ms a chunk, one Python process. Above 128 outputs a step that process
yields between slices and never merges (vLLM's output slice), so its lag grows over a decode phase and keeps the
clients of a closed loop in step.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.engines.types import EngineName, ResolvedSettings
from planner.steptime.types import FrontEnd


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host time of a step in ms: ``fixed_ms`` always, ``per_sequence_ms`` for each sequence in the batch."""

    fixed_ms: float
    per_sequence_ms: float


_ASYNC = HostTime(fixed_ms=0.16, per_sequence_ms=0.0012)
_VLLM_SYNC = HostTime(fixed_ms=1.2, per_sequence_ms=0.012)
_VLLM_OLD = HostTime(
    fixed_ms=2.5, per_sequence_ms=0.03
)  # before the V1 engine: scheduler, sampler and output in one thread
_TRT_SYNC = HostTime(fixed_ms=0.8, per_sequence_ms=0.006)


def version_tuple(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, "0.24.0" -> (0, 24, 0); pre-release tails are cut."""
    numbers: list[int] = []
    for part in version.lstrip("v").split("."):
        digits = ""
        for char in part:
            if not char.isdigit():
                break
            digits += char
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def host_time(resolved: ResolvedSettings) -> HostTime:
    """Host time per step of this engine and version."""
    if resolved.async_scheduling:
        return _ASYNC
    if resolved.engine is EngineName.TENSORRT_LLM:
        return _TRT_SYNC
    return _VLLM_OLD if version_tuple(resolved.version) < (0, 8) else _VLLM_SYNC


def front_end(resolved: ResolvedSettings) -> FrontEnd:
    """Front-end delays of this engine, as a streaming HTTP client sees them."""
    if resolved.engine is EngineName.TENSORRT_LLM:
        return FrontEnd(
            request_ms=6.0,
            request_ms_per_1k_tokens=2.0,
            response_ms=3.0,
            turnaround_ms=0.5,
            request_serial_ms=0.7,
            chunk_ms=0.06,
            merge_below=0,
        )
    return FrontEnd(
        request_ms=7.5,
        request_ms_per_1k_tokens=2.0,
        response_ms=4.0,
        turnaround_ms=0.5,
        request_serial_ms=0.7,
        chunk_ms=0.087,
        merge_below=128,
    )

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
from math import log2

from planner.catalog.types import GpuSpec
from planner.engines.gpu_traits import is_sm90
from planner.engines.types import EngineName, ResolvedSettings
from planner.steptime.types import EventLoop, FrontEnd


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host time of a step in ms: ``fixed_ms`` always, ``per_sequence_ms`` for each of the first ``up_to`` sequences."""

    fixed_ms: float
    per_sequence_ms: float
    up_to: int = 2048


@dataclass(frozen=True, slots=True)
class HostFloor:
    """Host work beside the step before, in ms: a step is never shorter."""

    step_ms: float
    step_ms_per_sequence: float


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """Time in which the host launches the kernels of one layer that no graph holds, in ms: of any layer, what routed
    experts add, what they add more when their activations are narrowed, and what latent attention adds.
    """

    layer_ms: float
    experts_ms: float
    narrow_experts_ms: float
    latent_ms: float


# vLLM 0.24.0, Qwen3-0.6B on an H200: decode steps last 1.7-2.0 ms at one stream, 2.8 at 64, 4.0 at 128, 7.0 at 256 and
# 10.8 at 512, more than their kernels (the engine's own counters; 0.012-0.026 ms a sequence by run).
_VLLM_FLOOR = HostFloor(step_ms=1.7, step_ms_per_sequence=0.017)
# TensorRT-LLM 1.0, Qwen3-30B-A3B in FP4 on one B200: 38,000-40,000 tokens a second at its largest batch whatever the
# shape (its performance page), where the kernels allow 1.3-1.7 times as many; later versions exceed 50,000.
_TRT_FLOOR = HostFloor(step_ms=0.0, step_ms_per_sequence=0.022)
_NO_FLOOR = HostFloor(step_ms=0.0, step_ms_per_sequence=0.0)

# A step with a prompt of 1024 tokens, beyond the captured sizes. vLLM 0.24.0 on an H200: 16 ms at the 28 layers of
# Qwen3-0.6B, 21 ms at the 36 of Qwen3-8B in FP8, whose kernels take 15. vLLM 0.17.0 on B200 at 4 clients (public rows):
# MiniMax-M2.5 about 95 ms at 62 layers, where sizes up to 2048 were captured 35; Kimi-K2.5 about 125 ms at 61 layers in
# FP4, at most 100 in INT4. TensorRT-LLM's PyTorch back end captures decode steps alone: DeepSeek-R1 in FP4 on 4 and 8
# B200 132 ms at 61 layers where the kernels take 35, and no such wait where the launch script turns its piecewise
# graphs on.
_LAUNCH = LaunchTime(layer_ms=0.57, experts_ms=0.65, narrow_experts_ms=0.35, latent_ms=0.45)
# TensorRT-LLM 1.1.0rc2, DeepSeek-R1 (public rows with one prompt of 1024 tokens a step, alike at 4 to 128 clients): 77
# ms in FP4 with its own experts' kernel on B200, 132 in FP8 with DeepGEMM there, 190 in FP8 on H200, whose kernels take
# 60; no later version is there on Hopper.
_TRT_1_1_OWN_KERNEL = LaunchTime(layer_ms=0.57, experts_ms=0.25, narrow_experts_ms=0.0, latent_ms=0.45)
_TRT_1_1 = LaunchTime(layer_ms=0.57, experts_ms=0.65, narrow_experts_ms=0.55, latent_ms=0.45)
_TRT_HOPPER = LaunchTime(layer_ms=0.57, experts_ms=0.65, narrow_experts_ms=1.55, latent_ms=0.45)
# TensorRT-LLM 0.21.0rc2, DeepSeek-R1 in FP8 on 8 H200 (NVIDIA/TensorRT-LLM issue 5929): a lone prompt of 1600 tokens
# takes 124 ms to the client, where the kernels take about 100; no version between it and 1.1 was seen.
_TRT_HOPPER_BEFORE_1_1 = LaunchTime(layer_ms=0.57, experts_ms=0.65, narrow_experts_ms=0.0, latent_ms=0.45)
_NO_LAUNCH = LaunchTime(layer_ms=0.0, experts_ms=0.0, narrow_experts_ms=0.0, latent_ms=0.0)

# TensorRT-LLM 1.0 over pipeline stages has no overlap scheduler, and every micro-batch is scheduled out of the requests
# of all (``PyExecutor._schedule``): Llama-3.3-70B in FP4 on 2, 4 and 8 RTX PRO 6000 takes 0.021, 0.036 and 0.057
# ms a sequence of a micro-batch above the kernels, in each stage (performance page), Llama-3.1-405B on 8 as much; later
# versions a third on 2.
_TRT_STAGE_MS_PER_SEQUENCE, _TRT_STAGE_MS_PER_ACTIVE = 0.009, 0.006
_TRT_STAGE_SINCE_1_1 = 0.38

# vLLM 0.24.0 on an H200, time of the API server's loop (``benchmarks/data/h200_series5``, the runs made to look at it).
# Prompts alone at 64 clients: 2.03 and 2.43 ms a request at 256 and 1,024 tokens, of which clients that end together
# send their next requests 0.5 ms apart, so that much follows a last token. One to 16 streams: 0.3 ms a step. Steps of
# 32 to 128 tokens 0.040-0.045 ms a message, larger ones, which are handled in slices, 0.046-0.067. Requests that come
# together reach the engine in about the last third of the loop's work on them; 512 do not wait for all of each other.
_VLLM_LOOP = EventLoop(
    request_ms=1.25,
    request_ms_per_1k_tokens=0.65,
    parsing_share=0.7,
    turns=12,
    end_ms=0.5,
    chunk_ms=0.043,
    large_step_chunk_ms=0.057,
    step_ms=0.3,
    tokenise_ms_per_1k_tokens=1.5,
)

# TensorRT-LLM 1.0, Llama-3.1-8B on 2, 4 and 8 H100 (public rows): never more than 9,230 streamed tokens a second at 128
# clients, whatever the shape, and seconds of TTFT in the queue before it; B200 rows of later versions reach twice that.
_TRT_1_0_CHUNK_MS = 0.108
_TRT_CHUNK_MS = 0.06

_NOTHING = HostTime(fixed_ms=0.0, per_sequence_ms=0.0)
_ASYNC = HostTime(fixed_ms=0.16, per_sequence_ms=0.0012)
# vLLM 0.12.0, Qwen3-32B on 2-8 H100: 1.8, 3.0, 4.2 and 6.9 ms above the kernels at 8, 32, 64 and 128 streams, at any
# TP.
_VLLM_SYNC = HostTime(fixed_ms=1.5, per_sequence_ms=0.042)
_VLLM_OLD = HostTime(
    fixed_ms=2.5, per_sequence_ms=0.05
)  # before the V1 engine: scheduler, sampler, output in one thread
# TensorRT-LLM 0.14, engines of 7B and 8B models at their largest batch: 1.3 ms and 2-4 us a sequence above the kernels
# on one H100, H200 and L40S (its performance page); the C++ runtime schedules when a step has ended.
_TRT_ENGINE = HostTime(fixed_ms=1.2, per_sequence_ms=0.003)
# TensorRT-LLM 1.0, Llama-3.1-8B on 2, 4, 8 H100: above the kernels 0.2 + 0.005 b, 0.2 + 0.02 b, 0.35 + 0.028 b ms at
# batch b, nothing on one GPU, no more at 128 than at 64: the ranks agree on each step's requests in Python.
_TRT_RANKS = HostTime(fixed_ms=0.1, per_sequence_ms=0.0095, up_to=64)


# vLLM before V1, 7-70B models on 2 and 4 H100 (ANL LLM-Inference-Bench, static batches 1-64): 0.1-2.1 and 0.8-2.6 ms
# above what one GPU's runs add.
_VLLM_OLD_RANKS = HostTime(fixed_ms=0.3, per_sequence_ms=0.015)


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
    if resolved.engine is EngineName.TENSORRT_LLM:
        return _ASYNC if resolved.async_scheduling else _TRT_ENGINE
    if resolved.async_scheduling:
        return _ASYNC
    return _VLLM_OLD if version_tuple(resolved.version) < (0, 8) else _VLLM_SYNC


def host_floor(resolved: ResolvedSettings) -> HostFloor:
    """What host work beside the kernels allows at best, where it was measured."""
    if not resolved.async_scheduling:
        return _NO_FLOOR
    if resolved.engine is EngineName.VLLM:
        return _VLLM_FLOOR
    return _TRT_FLOOR if version_tuple(resolved.version)[:2] == (1, 0) else _NO_FLOOR


def launch_time(resolved: ResolvedSettings, gpu: GpuSpec) -> LaunchTime:
    """Launch time of a layer outside graphs. An engine built ahead (TensorRT back end, vLLM before V1 was another
    program) was not measured; TensorRT-LLM's piecewise graphs hold every step up to its token limit.
    """
    if resolved.engine is EngineName.VLLM:
        return _LAUNCH if version_tuple(resolved.version) >= (0, 8) else _NO_LAUNCH
    if resolved.trt_backend != "pytorch" or resolved.piecewise_cuda_graphs:
        return _NO_LAUNCH
    if is_sm90(gpu):
        return _TRT_HOPPER if version_tuple(resolved.version) >= (1, 1) else _TRT_HOPPER_BEFORE_1_1
    if version_tuple(resolved.version) >= (1, 2):
        return _LAUNCH
    return _TRT_1_1_OWN_KERNEL if (resolved.moe_backend or "").upper() == "TRTLLM" else _TRT_1_1


def rank_time(resolved: ResolvedSettings) -> HostTime:
    """Host time per step that an instance of several ranks adds in this engine and version."""
    version = version_tuple(resolved.version)
    if resolved.engine is EngineName.TENSORRT_LLM:
        per_doubling = _TRT_RANKS if version[:2] == (1, 0) else _NOTHING
    else:
        per_doubling = _VLLM_OLD_RANKS if version < (0, 8) else _NOTHING
    doublings = log2(resolved.tp * resolved.dp)
    return HostTime(per_doubling.fixed_ms * doublings, per_doubling.per_sequence_ms * doublings, per_doubling.up_to)


def stage_time(resolved: ResolvedSettings) -> HostTime:
    """Host time that a micro-batch's passage through the pipeline stages adds."""
    overlapped = resolved.engine is not EngineName.TENSORRT_LLM or resolved.trt_backend != "pytorch"
    if resolved.pp <= 1 or overlapped:
        return _NOTHING
    each = _TRT_STAGE_MS_PER_SEQUENCE + _TRT_STAGE_MS_PER_ACTIVE * resolved.pp
    if version_tuple(resolved.version) >= (1, 1):
        each *= _TRT_STAGE_SINCE_1_1
    return HostTime(fixed_ms=0.0, per_sequence_ms=each * resolved.pp)


def front_end(resolved: ResolvedSettings) -> FrontEnd:
    """Front-end delays of this engine, as a streaming HTTP client sees them."""
    if resolved.engine is EngineName.TENSORRT_LLM:
        slow = version_tuple(resolved.version)[:2] == (1, 0)
        return FrontEnd(
            request_ms=6.0,
            request_ms_per_1k_tokens=2.0,
            response_ms=3.0,
            turnaround_ms=0.5,
            request_serial_ms=0.7,
            chunk_ms=_TRT_1_0_CHUNK_MS if slow else _TRT_CHUNK_MS,
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
        loop=_VLLM_LOOP,
    )

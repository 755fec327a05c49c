"""How vLLM fills in what a user leaves open, by version, GPU and model.

Read from ``EngineArgs.get_batch_defaults``, ``config/cache.py``, ``config/scheduler.py``, ``config/vllm.py`` and
``platforms/cuda.py`` of the releases 0.8.0 to 0.33.0. Each value comes with a sentence on where it came from.
"""

from __future__ import annotations

import math
from typing import Any

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines import vllm_v0 as v0
from planner.engines.precision import changes_precision, kv_cache_precision, run_precision
from planner.engines.types import EngineSettings, ResolvedSettings
from planner.engines.versions import at_least
from planner.models.spec import ModelSpec

USER = "user"
MARLIN = "marlin"
SMALL_DEVICE_GIB = 70.0
LARGE_DEVICE_GIB = 160.0
V2_RUNNER_FIRST = "0.22.1"
TRITON_KERNELS_FIRST = "0.12.0"
"""First wheel that carries ``triton_kernels`` (0.11.2 does not)."""
NOT_OF_VLLM: dict[str, Any] = {
    "kv_cache_max_gpu_gib": None,
    "piecewise_cuda_graphs": False,
    "attention_dp_wait_iters": 0,
    "batch_wait_iters": 0,
    "batch_wait_tokens_ratio": 0.0,
}
"""Settings of TensorRT-LLM that the simulator would obey."""
_QWEN3_DENSE = ("Qwen3ForCausalLM",)
_V2_ARCHITECTURES = {
    "0.22.1": _QWEN3_DENSE,
    "0.23.0": (*_QWEN3_DENSE, "LlamaForCausalLM", "MistralForCausalLM"),
    "0.24.0": (
        *_QWEN3_DENSE,
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "DeepseekV2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "GraniteMoeForCausalLM",
    ),
}


def default_utilization(version: str) -> float:
    """Share of total memory that vLLM asks for when not told: 0.9 up to 0.19, 0.92 since 0.20.2."""
    return 0.92 if at_least(version, "0.20.2") else 0.9


def batch_defaults(version: str, gpu: GpuSpec, world_size: int) -> tuple[int, int, str]:
    """Default (max_num_batched_tokens, max_num_seqs) of ``vllm serve`` before clamps, and the reason in words."""
    if gt.is_cpu(gpu):
        return 2048 * world_size, 128 * world_size, f"vLLM {version} default for CPUs ({world_size} ranks)"
    if not at_least(version, "0.8.5"):
        if gt.is_h100_or_h200(gpu):
            return 8192, 1024, f"vLLM {version} default for H100 and H200"
        return 2048, 256 if at_least(version, "0.8.4") else 1024, f"vLLM {version} default but for H100 and H200"
    a100 = gt.is_a100(gpu) and at_least(version, "0.9.0")
    small_by_name = a100 or (at_least(version, "0.33.0") and gpu.compute_capability == 12.1)
    if gpu.total_gib < SMALL_DEVICE_GIB or small_by_name:
        why = "A100 by name" if a100 else f"under {SMALL_DEVICE_GIB:.0f} GiB"
        return 2048, 256, f"vLLM {version} default for small GPUs ({why})"
    if gpu.total_gib >= LARGE_DEVICE_GIB and at_least(version, "0.28.0"):
        return 16384, 1024, f"vLLM {version} default for GPUs of {LARGE_DEVICE_GIB:.0f} GiB or more"
    return 8192, 1024, f"vLLM {version} default for GPUs of {SMALL_DEVICE_GIB:.0f} GiB or more"


def uses_v2_runner(version: str, model: ModelSpec) -> bool:
    """Whether vLLM drives ``model`` with its V2 model runner, whose sampler and graph accounting differ."""
    if model.task != "generate" or not at_least(version, V2_RUNNER_FIRST):
        return False
    if at_least(version, "0.30.0"):
        return True
    if at_least(version, "0.25.0"):
        return not mt.is_recurrent(model)
    if not at_least(version, "0.23.0"):
        return model.architecture in _QWEN3_DENSE and model.quantization.method == "none"
    key = "0.24.0" if at_least(version, "0.24.0") else "0.23.0"
    if key == "0.23.0" and model.quantization.method != "none":
        return False
    return model.architecture in _V2_ARCHITECTURES[key]


def block_tokens(version: str, model: ModelSpec, gpu: GpuSpec) -> tuple[int, str]:
    """KV block size in tokens that the attention back end ends up with, and why."""
    if gt.is_cpu(gpu):
        return (16, "CPU latent attention") if mt.is_mla(model) else (128, "CPU back end")
    if model.model_type.startswith("deepseek_v4"):
        return 256, "sparse sliding-window back end of DeepSeek V4"
    if gpu.vendor == "intel":
        return 64, "XPU FlashAttention"
    if mt.is_mla(model) and gt.is_nvidia(gpu):
        if mt.is_sparse_mla(model):
            return 64, "sparse FlashMLA"
        if gt.is_sm100_family(gpu):
            if at_least(version, "0.12.0"):
                return 64, "FlashInfer MLA"
            return 128, "CUTLASS MLA"
        if gt.is_sm90(gpu) and not at_least(version, "0.14.0"):
            return 64, "FlashMLA"
    return 16, f"vLLM {version} default"


def graph_sizes(
    version: str,
    gpu: GpuSpec,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    speculative_tokens: int,
    asked: int | None = None,
) -> tuple[int, ...]:
    """Batch sizes that vLLM captures as CUDA graphs (``_set_cudagraph_sizes``); ``asked`` is the largest wanted."""
    query_len = 1 + speculative_tokens if at_least(version, "0.13.0") else 1
    ceiling = 1024 if at_least(version, "0.28.0") and gt.is_sm100_family(gpu) else 512
    largest = min(2 * max_num_seqs * query_len, ceiling)
    largest = min(asked or largest, max_num_batched_tokens)
    if at_least(version, "0.12.0"):
        candidates = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    else:
        candidates = [1, 2, 4, *range(8, largest + 1, 8)]
    sizes = {size for size in candidates if size <= largest}
    if at_least(version, "0.20.2") and max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    return tuple(sorted(sizes))


def mxfp4_experts(version: str, gpu: GpuSpec) -> str | None:
    """Kernel that runs MXFP4 experts where none is asked for: marlin, or None for the one that was measured.

    ``get_mxfp4_backend`` of ``layers/quantization/mxfp4.py``: FlashInfer's on data-centre Blackwell, Triton's on Hopper
    where ``triton_kernels`` can be imported (start-up logs on H100: "Using Marlin backend" in 0.10, "Using Triton
    backend" in 0.14.1), Marlin elsewhere.
    """
    if gt.is_sm100_family(gpu) or not gt.is_nvidia(gpu):
        return None
    measured = gt.is_sm90(gpu) and at_least(version, TRITON_KERNELS_FIRST)
    return None if measured else MARLIN


def resolve(
    settings: EngineSettings, model: ModelSpec, gpu: GpuSpec, version: str, expected_len: int | None
) -> ResolvedSettings:
    """Fill in vLLM's defaults; see ``planner.engines.resolve``."""
    origin: dict[str, str] = {}
    default = f"vLLM {version} default"
    generate = model.task == "generate"

    max_model_len = pick_length(settings, model, expected_len, origin)
    first = v0.runs_v0(version, gpu)
    chunked = settings.enable_chunked_prefill
    if chunked is None:
        chunked = generate and not mt.is_encoder_only(model)
        chunked = chunked and (not first or v0.chunks_by_default(settings, model, gpu, max_model_len))
        off = "of the V0 engine" if first and generate else "for models that do not generate"
        origin["enable_chunked_prefill"] = default if chunked else f"{default} {off}"
    else:
        origin["enable_chunked_prefill"] = USER
    limits = (
        v0.batch_defaults(version, model, max_model_len, chunked)
        if first and not gt.is_cpu(gpu)
        else batch_defaults(version, gpu, settings.tp * settings.pp)
    )
    mbt, mns = _batch_limits(settings, limits, max_model_len, chunked, origin)

    utilization = settings.gpu_memory_utilization
    origin["gpu_memory_utilization"] = USER if utilization is not None else default
    if utilization is None:
        utilization = default_utilization(version)

    if settings.block_tokens is not None:
        block, origin["block_tokens"] = settings.block_tokens, USER
    else:
        block, origin["block_tokens"] = block_tokens(version, model, gpu)

    prefix = settings.enable_prefix_caching
    origin["enable_prefix_caching"] = USER if prefix is not None else default
    if prefix is None:
        prefix = chunked and not first and (not mt.is_recurrent(model) or at_least(version, "0.20.2"))

    sampler = settings.sampler
    if sampler == "auto":
        # The published images of these versions carry FlashInfer and use it; later ones do so on request only.
        sampler = "flashinfer" if at_least(version, "0.9.0") and not at_least(version, "0.11.1") else "native"
        origin["sampler"] = f"published image of {version}"
    asynchronous = settings.async_scheduling
    origin["async_scheduling"] = USER
    if asynchronous is None:
        asynchronous = generate and not gt.is_cpu(gpu) and at_least(version, "0.14.0")
        origin["async_scheduling"] = f"{default}: {'on' if asynchronous else 'off'}"
    precision, weight_only = run_precision(settings, model, gpu)
    carried = {**carried_over(settings), **NOT_OF_VLLM}
    origin["moe_backend"] = USER if settings.moe_backend else default
    if settings.moe_backend is None and mt.is_moe(model) and precision == "mxfp4":
        carried["moe_backend"] = mxfp4_experts(version, gpu)
    origin["precision"] = USER if changes_precision(settings, model) else "checkpoint"
    kv_dtype, origin["kv_cache_dtype"] = kv_cache_precision(settings, model, gpu, version)

    captures = generate and not settings.enforce_eager and gpu.vendor in ("nvidia", "amd")
    largest = settings.max_cudagraph_capture_size
    origin["cuda_graph_sizes"] = (default if largest is None else USER) if captures else "no CUDA graphs"
    if largest is None and model.architecture == "GptOssForCausalLM":
        # model_executor/models/config.py: "Overriding max cuda graph capture size"; 992 in 0.11.0
        largest = 992 if at_least(version, "0.11.0") and not at_least(version, "0.11.1") else 1024
    sizes = graph_sizes(version, gpu, mbt, mns, settings.speculative_tokens, largest) if captures else ()
    return ResolvedSettings(
        version=version,
        precision=precision,
        weight_only=weight_only,
        kv_cache_dtype=kv_dtype,
        max_model_len=max_model_len,
        gpu_memory_utilization=utilization,
        free_gpu_memory_fraction=None,
        max_num_seqs=mns,
        max_num_batched_tokens=mbt,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=prefix,
        block_tokens=block,
        async_scheduling=asynchronous,
        cuda_graph_sizes=sizes,
        capacity_policy="PREEMPT_RECOMPUTE",
        sampler=sampler,
        origin=origin,
        **carried,
    )


def carried_over(settings: EngineSettings) -> dict[str, Any]:
    """Fields of ``settings`` that no default touches."""
    names = (
        "engine",
        "tp",
        "pp",
        "ep",
        "dp",
        "kv_cache_max_tokens",
        "enforce_eager",
        "max_loras",
        "max_lora_rank",
        "speculative_tokens",
        "speculative_acceptance",
        "mm_items_per_prompt",
        "trt_backend",
        "kv_cache_max_gpu_gib",
        "kv_cache_host_gib",
        "logprobs",
        "prompt_logprobs",
        "moe_backend",
        "even_expert_routing",
        "piecewise_cuda_graphs",
        "attention_dp_wait_iters",
        "batch_wait_iters",
        "batch_wait_tokens_ratio",
        "watermark",
    )
    return {name: getattr(settings, name) for name in names}


def pick_length(settings: EngineSettings, model: ModelSpec, expected_len: int | None, origin: dict[str, str]) -> int:
    """Context length: the user's, else the longest request planned for, else what the model's configuration allows."""
    if settings.max_model_len is not None:
        origin["max_model_len"] = USER
        return settings.max_model_len
    if expected_len is not None:
        origin["max_model_len"] = f"longest request planned for ({expected_len} tokens), in whole KV blocks of 64"
        return min(model.max_position, math.ceil(expected_len / 64) * 64)
    origin["max_model_len"] = f"model configuration ({model.max_position} positions)"
    return model.max_position


def _batch_limits(
    settings: EngineSettings,
    defaults: tuple[int, int, str],
    max_model_len: int,
    chunked: bool,
    origin: dict[str, str],
) -> tuple[int, int]:
    default_mbt, default_mns, why = defaults
    mbt = settings.max_num_batched_tokens
    mns = settings.max_num_seqs
    origin["max_num_seqs"] = USER if mns is not None else why
    origin["max_num_batched_tokens"] = USER if mbt is not None else why
    effective_mns = mns if mns is not None else default_mns
    if mbt is None:
        mbt = default_mbt
        if not chunked and mbt < max_model_len:
            mbt = max_model_len
            origin["max_num_batched_tokens"] = f"{why}, raised to the context length: no chunked prefill"
        if mbt > effective_mns * max_model_len:
            mbt = effective_mns * max_model_len
            origin["max_num_batched_tokens"] = f"{why}, lowered to max_num_seqs x max_model_len"
    if mns is None and default_mns > mbt:
        effective_mns = mbt
        origin["max_num_seqs"] = f"{why}, lowered to max_num_batched_tokens"
    return mbt, effective_mns

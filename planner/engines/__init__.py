"""Engines: what vLLM and TensorRT-LLM do with a model, a GPU and a set of options, by version."""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import tensorrt_llm, vllm
from planner.engines.launch import command_line, config_files
from planner.engines.precision import as_loaded
from planner.engines.scheduler import SchedulerPolicy, scheduler_policy
from planner.engines.support import support
from planner.engines.types import DEFAULT_VERSION, EngineName, EngineSettings, ResolvedSettings, Support
from planner.engines.versions import version_key
from planner.errors import InputError
from planner.models.spec import ModelSpec

LARGEST_SETTING = 10**9

__all__ = [
    "EngineName",
    "EngineSettings",
    "ResolvedSettings",
    "SchedulerPolicy",
    "Support",
    "as_loaded",
    "command_line",
    "config_files",
    "resolve",
    "scheduler_policy",
    "support",
]


def resolve(
    settings: EngineSettings, model: ModelSpec, gpu: GpuSpec, *, expected_len: int | None = None
) -> ResolvedSettings:
    """Fill in every default as the engine would, with the origin of each value.

    ``expected_len`` is the longest request (prompt + output, tokens) that the caller plans for: it stands in for the
    context length when the user states none, where the engine itself would take the model's maximum. Does not check
    that the combination runs; ``support`` does. Raises InputError for absurd sizes, unknown precision or version.
    """
    version = settings.version or DEFAULT_VERSION[settings.engine]
    version_key(version)
    _check_positive(settings, expected_len)
    fill_in = vllm.resolve if settings.engine is EngineName.VLLM else tensorrt_llm.resolve
    resolved = fill_in(settings, model, gpu, version, expected_len)
    resolved.origin["version"] = (
        vllm.USER if settings.version else "the version that the operator data were measured on"
    )
    return resolved


def _check_positive(settings: EngineSettings, expected_len: int | None) -> None:
    sizes = {
        name: getattr(settings, name)
        for name in (
            "tp",
            "pp",
            "ep",
            "dp",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_tokens",
            "kv_cache_max_tokens",
            "max_lora_rank",
            "max_cudagraph_capture_size",
        )
    }
    sizes["expected_len"] = expected_len
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= LARGEST_SETTING:
            raise InputError(f"must lie between 1 and {LARGEST_SETTING:,}", field=name, value=value)
    for name in ("max_loras", "speculative_tokens", "mm_items_per_prompt", "logprobs", "attention_dp_wait_iters",
                 "batch_wait_iters"):  # fmt: skip
        if not 0 <= getattr(settings, name) <= LARGEST_SETTING:
            raise InputError(f"must lie between 0 and {LARGEST_SETTING:,}", field=name, value=getattr(settings, name))
    for name in ("kv_cache_max_gpu_gib", "kv_cache_host_gib"):
        limit = getattr(settings, name)
        if limit is not None and not 0 < limit < 1e6:
            raise InputError("must be positive, in GiB", field=name, value=limit)
    if not 0 <= settings.watermark < 1:
        raise InputError("must be at least 0 and below 1", field="watermark", value=settings.watermark)
    for name in ("gpu_memory_utilization", "free_gpu_memory_fraction"):
        share = getattr(settings, name)
        if share is not None and not 0 < share <= 1:
            raise InputError("must be above 0 and at most 1", field=name, value=share)

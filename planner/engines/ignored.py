"""Settings that change nothing with this engine, model or shape, in words."""

from __future__ import annotations

from planner.engines import model_traits as mt
from planner.engines.types import EngineName, EngineSettings
from planner.models.spec import ModelSpec
from planner.words import ENGINE_LABEL

_OF_VLLM = ("gpu_memory_utilization", "watermark")
_OF_TENSORRT_LLM = (
    "free_gpu_memory_fraction",
    "capacity_policy",
    "trt_backend",
    "kv_cache_max_gpu_gib",
    "piecewise_cuda_graphs",
    "attention_dp_wait_iters",
    "batch_wait_iters",
    "batch_wait_tokens_ratio",
)
_OF_EXPERTS = ("moe_backend", "even_expert_routing")
_OF_A_CACHE = ("kv_cache_dtype", "kv_cache_max_tokens", "block_tokens", "watermark", "enable_prefix_caching")
_OF_GENERATION = ("async_scheduling", "logprobs", "prompt_logprobs", "max_cudagraph_capture_size", "max_loras")
_NOTHING_ASKED = EngineSettings(EngineName.VLLM)


def ignored(model: ModelSpec, settings: EngineSettings) -> list[str]:
    """A sentence for each setting that is stated and has no effect."""
    vllm = settings.engine is EngineName.VLLM
    label = ENGINE_LABEL[settings.engine]
    other = ENGINE_LABEL[EngineName.TENSORRT_LLM if vllm else EngineName.VLLM]
    foreign = [name for name in (_OF_TENSORRT_LLM if vllm else _OF_VLLM) if _asked(settings, name)]
    found = [f"{name} is a setting of {other}: {label} has none, so it changes nothing." for name in foreign]
    why = _idle(model, settings)
    return found + [f"{name} changes nothing: {why[name]}." for name in why if name not in foreign]


def _asked(settings: EngineSettings, name: str) -> bool:
    return bool(getattr(settings, name) != getattr(_NOTHING_ASKED, name))


def _idle(model: ModelSpec, settings: EngineSettings) -> dict[str, str]:
    """Why a setting has nothing to act on, by name."""
    why: dict[str, str] = {}
    if not mt.experts(model):
        why |= dict.fromkeys(_OF_EXPERTS, "the model has no experts")
    if mt.is_encoder_only(model):
        why |= dict.fromkeys(_OF_A_CACHE, "an encoder keeps no KV cache")
    if model.task != "generate":
        why |= dict.fromkeys(_OF_GENERATION, "not modelled for models that answer in one pass")
    if not settings.max_loras:
        why["max_lora_rank"] = "max_loras is 0"
    if model.vision is None:
        why["mm_items_per_prompt"] = "the model takes no images"
    elif settings.engine is EngineName.TENSORRT_LLM:
        why["mm_items_per_prompt"] = "TensorRT-LLM's encoder memory is not modelled"
    if settings.dp == 1:
        why["attention_dp_wait_iters"] = "there is one data-parallel rank"
    if settings.trt_backend == "tensorrt":
        why["piecewise_cuda_graphs"] = "the engine-build back end captures no such graphs"
    return {name: reason for name, reason in why.items() if _asked(settings, name)}

"""Defaults of vLLM's first engine generation (V0): whole prompts in a step unless the context is long.

Read from ``engine/arg_utils.py`` and ``config.py`` of the source releases 0.6.3 to 0.10.2.
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines.types import EngineSettings
from planner.engines.versions import at_least
from planner.models.spec import Attention, ModelSpec

V1_SINCE = "0.8.0"
"""First release whose server starts the second generation unless told otherwise."""

V0_GONE_FOR_OLD_GPUS = "0.10.2"
"""Up to here GPUs below compute capability 8.0 fell back to V0 ("Compute Capability < 8.0")."""

_OLD_CAPABILITY = 8.0
_LONG_CONTEXT = 32_768
_SEQUENCES = 256
_SHORTEST_BUDGET = 2048
_MULTIMODAL_BUDGET = 5120
_CHUNK_BEFORE = ("0.6.5", 512)  # a step's chunk was 512 tokens before, 2048 from there on


def runs_v0(version: str, gpu: GpuSpec) -> bool:
    """Whether ``vllm serve`` of ``version`` starts the first generation on ``gpu``."""
    if not at_least(version, V1_SINCE):
        return True
    old = gt.is_nvidia(gpu) and 0.0 < gt.capability(gpu) < _OLD_CAPABILITY
    return old and not at_least(version, V0_GONE_FOR_OLD_GPUS)


def chunks_by_default(settings: EngineSettings, model: ModelSpec, gpu: GpuSpec, max_model_len: int) -> bool:
    """Chunked prefill is on by itself for contexts above 32,768 tokens only, and not beside what it did not support:
    images, sliding windows, speculation, adapters.
    """
    windowed = any(isinstance(g.mixer, Attention) and g.mixer.kind == "sliding" for g in model.groups)
    beside = windowed or model.vision is not None or bool(settings.speculative_tokens) or bool(settings.max_loras)
    generates = model.task == "generate" and gt.is_nvidia(gpu)
    return generates and max_model_len > _LONG_CONTEXT and not beside


def batch_defaults(version: str, model: ModelSpec, max_model_len: int, chunked: bool) -> tuple[int, int, str]:
    """Default (max_num_batched_tokens, max_num_seqs), and the reason in words."""
    if chunked:
        since, before = _CHUNK_BEFORE
        budget = _SHORTEST_BUDGET if at_least(version, since) else before
        return budget, _SEQUENCES, f"vLLM {version} default (V0 engine, chunked prefill)"
    budget = max(max_model_len, _SHORTEST_BUDGET, _MULTIMODAL_BUDGET if model.vision is not None else 0)
    return budget, _SEQUENCES, f"vLLM {version} default (V0 engine, whole prompts)"

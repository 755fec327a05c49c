"""How engines and versions differ in what they run: kernels of older versions against the measured ones, exchanges."""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines.types import EngineName, ResolvedSettings
from planner.models.spec import Attention
from planner.steptime.front_end import version_tuple

_ENGINE_ALL_REDUCE = 1.2
"""TensorRT-LLM's engine back end adds the residual and normalises in kernels of their own after an all-reduce. Version
0.14, models of 47-405B parameters on 2, 4 and 8 GPUs (its performance page): 1.1-1.4 times the rows of 1.x on H100 and
H200, 1.15-1.2 over PCIe."""

_ENGINE_WIDE_GROUP, _ENGINE_WIDE_GROUP_DECODE = 8, 1.4
"""Query heads a K/V head from which decode attention of that back end lags behind the rows of 1.x, and by how much:
Llama-3 70B on A100, H100, H200 and L40S, 1.3-1.5; nothing for groups of four and six."""

_FLASH_ATTENTION_2_TILE = 64.0
"""Query rows of a tile of FlashAttention 2 over a paged cache."""
_FLASH_ATTENTION_2_SINCE = (0, 8)
"""vLLM's V1 engine hands a step with prompts and decodes to FlashAttention in one call. Version 2 packs the query heads
of a K/V head and splits long caches only where every sequence has one query row (``max_seqlen_q == 1`` in
``flash_api.cpp``), else each head of a decode fills a tile of its own (vllm-project/vllm pull request 58013, open in
September 2026, which splits the call). Version 3, on Hopper, packs and schedules tiles; TensorRT-LLM, FlashInfer and
vLLM before V1 run decodes apart."""

_SHARED_BESIDE_TOKENS = 256
"""``VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD``: steps of so many tokens run shared experts on a stream of their own
beside the router and the routed ones (``fused_moe/layer.py``, since 0.24 ``runner/shared_experts.py``)."""
_SHARED_BESIDE_SINCE, _SHARED_BESIDE_MARLIN_SINCE = (0, 11, 1), (0, 13, 0)
"""0.11.1 still left them one after the other where Marlin widens the routed experts' weights."""


def _engine_built(resolved: ResolvedSettings) -> bool:
    return resolved.engine is EngineName.TENSORRT_LLM and resolved.trt_backend == "tensorrt"


def all_reduce_factor(resolved: ResolvedSettings) -> float:
    """Time of an all-reduce, with what follows it unfused, over that of the measured version."""
    return _ENGINE_ALL_REDUCE if _engine_built(resolved) else 1.0


def decode_factor(resolved: ResolvedSettings, attention: Attention) -> float:
    """Time of decode attention over that of the measured version."""
    wide = attention.heads >= _ENGINE_WIDE_GROUP * attention.kv_heads
    return _ENGINE_WIDE_GROUP_DECODE if wide and _engine_built(resolved) else 1.0


def shared_experts_beside(resolved: ResolvedSettings, gpu: GpuSpec, widened: bool) -> int:
    """Tokens of a step up to which shared experts run beside the routed ones, whose weights are ``widened`` or not.

    The second stream is CUDA's. With several data-parallel ranks the exchange of tokens decides instead, which is not
    modelled: none.
    """
    if resolved.engine is not EngineName.VLLM or gpu.vendor != "nvidia" or resolved.dp > 1:
        return 0
    since = _SHARED_BESIDE_MARLIN_SINCE if widened else _SHARED_BESIDE_SINCE
    return _SHARED_BESIDE_TOKENS if version_tuple(resolved.version) >= since else 0


def travels_to_experts(resolved: ResolvedSettings) -> bool:
    """Whether a token goes only to the ranks that hold its experts. TensorRT-LLM gathers all tokens on all ranks and
    scatters the sums (``fused_moe``: all-to-all needs multi-node NVLink), vLLM sends them."""
    return resolved.engine is EngineName.VLLM


def mixed_rows(resolved: ResolvedSettings, gpu: GpuSpec) -> float:
    """Query rows that prefill attention spends on a decode which shares a step with a prompt; 0 where decodes keep
    their own kernel."""
    major = int(gpu.compute_capability or 0.0)
    if resolved.engine is not EngineName.VLLM or major not in (8, 12) or resolved.kv_cache_dtype.startswith("fp8"):
        return 0.0
    return _FLASH_ATTENTION_2_TILE if version_tuple(resolved.version) >= _FLASH_ATTENTION_2_SINCE else 0.0

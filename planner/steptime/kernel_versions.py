"""How engines and versions differ in what they run: kernels of older versions against the measured ones, exchanges."""

from __future__ import annotations

from planner.engines.types import EngineName, ResolvedSettings
from planner.models.spec import Attention

_ENGINE_ALL_REDUCE = 1.2
"""TensorRT-LLM's engine back end adds the residual and normalises in kernels of their own after an all-reduce. Version
0.14, models of 47-405B parameters on 2, 4 and 8 GPUs (its performance page): 1.1-1.4 times the rows of 1.x on H100 and
H200, 1.15-1.2 over PCIe."""

_ENGINE_WIDE_GROUP, _ENGINE_WIDE_GROUP_DECODE = 8, 1.4
"""Query heads a K/V head from which decode attention of that back end lags behind the rows of 1.x, and by how much:
Llama-3 70B on A100, H100, H200 and L40S, 1.3-1.5; nothing for groups of four and six."""


def _engine_built(resolved: ResolvedSettings) -> bool:
    return resolved.engine is EngineName.TENSORRT_LLM and resolved.trt_backend == "tensorrt"


def all_reduce_factor(resolved: ResolvedSettings) -> float:
    """Time of an all-reduce, with what follows it unfused, over that of the measured version."""
    return _ENGINE_ALL_REDUCE if _engine_built(resolved) else 1.0


def decode_factor(resolved: ResolvedSettings, attention: Attention) -> float:
    """Time of decode attention over that of the measured version."""
    wide = attention.heads >= _ENGINE_WIDE_GROUP * attention.kv_heads
    return _ENGINE_WIDE_GROUP_DECODE if wide and _engine_built(resolved) else 1.0


def travels_to_experts(resolved: ResolvedSettings) -> bool:
    """Whether a token goes only to the ranks that hold its experts. TensorRT-LLM gathers all tokens on all ranks and
    scatters the sums (``fused_moe``: all-to-all needs multi-node NVLink), vLLM sends them."""
    return resolved.engine is EngineName.VLLM

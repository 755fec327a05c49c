"""Step tables and rules by hand, for the serving tests: simple formulas, no operator data."""

from __future__ import annotations

import numpy as np

from planner.engines.scheduler import SchedulerPolicy
from planner.evidence import Evidence
from planner.serving.engine import InstanceRules
from planner.serving.types import Lengths
from planner.steptime.types import FrontEnd, StepModel, StepTables

NO_FRONT_END = FrontEnd(0.0, 0.0, 0.0, 0.0)
REAL_FRONT_END = FrontEnd(7.5, 2.0, 4.0, 0.5, 0.7, 0.087, 128)


def tables(*, bandwidth: float = 1.0, pp: int = 1) -> StepTables:
    """An 8B-like model: 4.5 ms of weights, 19.5 us a token, 12 ns a KV token; ``bandwidth`` speeds memory up."""
    batch = np.array([1, 8, 32, 64, 128, 256, 512.0])
    kv = np.array([16, 128, 512, 1024, 2048, 4096, 16384, 65536.0])
    new = np.array([1, 128, 1024, 8192.0])
    context = np.array([1, 512, 4096, 65536.0])
    tokens = np.array([1, 64, 256, 512, 1024, 8192.0])
    return StepTables(
        shared_tokens=tokens,
        shared_ms=np.maximum(4.5 / bandwidth, tokens * 0.0195),
        head_seqs=np.array([1, 64, 512.0]),
        head_ms=np.array([0.3, 0.32, 0.8]),
        prefill_tokens=new,
        prefill_context=context,
        prefill_ms=np.outer(new, context) * 4e-8 + 0.3,
        decode_batch=batch,
        decode_kv=kv,
        decode_ms=0.2 + np.outer(batch, kv) * 1.2e-5 / bandwidth,
        fixed_ms=0.15,
        graph_sizes=np.array([1.0, 2, 4, *range(8, 257, 8)]),
        pp=pp,
    )


def step_model(front_end: FrontEnd = NO_FRONT_END, *, bandwidth: float = 1.0, pp: int = 1) -> StepModel:
    """A StepModel over ``tables``."""
    return StepModel(tables(bandwidth=bandwidth, pp=pp), front_end, Evidence.SILICON)


def policy(
    *,
    budget: int = 8192,
    seqs: int = 256,
    block: int = 16,
    chunked: bool = True,
    reserve: bool = False,
    full_prompt: bool = True,
    ahead: int = 1,
    multiple: int = 1,
    cached_in_budget: bool = False,
    watermark: float = 0.0,
    caching: bool = True,
    partial_first: bool = False,
) -> SchedulerPolicy:
    """A scheduler policy; vLLM's by default."""
    return SchedulerPolicy(
        token_budget=budget,
        max_seqs=seqs,
        block_tokens=block,
        chunked_prefill=chunked,
        prefix_caching=caching,
        reserve_output=reserve,
        reserve_full_prompt=full_prompt,
        steps_ahead=ahead,
        chunk_multiple=multiple,
        cached_tokens_use_budget=cached_in_budget,
        lost_blocks=0,
        watermark=watermark,
        partial_blocks_first=partial_first,
    )


def vllm_rules(pool_blocks: int = 50_000, **changes: int) -> InstanceRules:
    """vLLM's scheduler over a pool."""
    return InstanceRules(policy(**changes), pool_blocks, extra_step=False)  # type: ignore[arg-type]


def trt_rules(pool_blocks: int = 25_000, **changes: int) -> InstanceRules:
    """TensorRT-LLM's batcher, no eviction, whole prompts, overlap scheduler."""
    settings = {"block": 32, "chunked": False, "reserve": True, **changes}
    return InstanceRules(policy(**settings), pool_blocks, extra_step=True)  # type: ignore[arg-type]


def fixed(value: int) -> Lengths:
    """Always ``value`` tokens."""
    return Lengths("fixed", value=value)


def uniform(low: int, high: int) -> Lengths:
    """``low`` to ``high`` tokens."""
    return Lengths("uniform", low=low, high=high)

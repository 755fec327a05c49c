"""What the serving simulator needs to know of an engine's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least


@dataclass(frozen=True, slots=True)
class SchedulerPolicy:
    """Rules of one engine's scheduler, for one data-parallel rank.

    ``token_budget`` new tokens per step; ``max_seqs`` running sequences; ``reserve_output`` admits a request only when
    prompt + max output fit what is not yet promised (GUARANTEED_NO_EVICT); ``reserve_full_prompt`` admits only when the
    whole prompt fits, not just its first chunk; ``steps_ahead`` how many steps are scheduled before the last one's
    tokens are known; ``chunk_multiple`` prefill chunks are whole multiples of this; ``cached_tokens_use_budget``
    prefix-cache hits use the token budget; ``lost_blocks`` blocks of the pool never given to a request; ``watermark``
    share of blocks kept free on admission; ``partial_blocks_first`` free blocks that were not full are handed out
    before those that hold cached ones.
    """

    token_budget: int
    max_seqs: int
    block_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    reserve_output: bool
    reserve_full_prompt: bool
    steps_ahead: int
    chunk_multiple: int
    cached_tokens_use_budget: bool
    lost_blocks: int
    watermark: float = 0.0
    partial_blocks_first: bool = False


def scheduler_policy(resolved: ResolvedSettings) -> SchedulerPolicy:
    """The scheduler's rules under ``resolved``.

    vLLM: ``v1/core/sched/scheduler.py``. TensorRT-LLM: ``capacityScheduler.cpp``, ``microBatchScheduler.cpp``.
    """
    if resolved.engine is EngineName.VLLM:
        return SchedulerPolicy(
            token_budget=resolved.max_num_batched_tokens,
            max_seqs=resolved.max_num_seqs,
            block_tokens=resolved.block_tokens,
            chunked_prefill=resolved.enable_chunked_prefill,
            prefix_caching=resolved.enable_prefix_caching,
            reserve_output=False,
            reserve_full_prompt=at_least(resolved.version, "0.19.0"),
            steps_ahead=1 if resolved.async_scheduling else 0,
            chunk_multiple=1,
            cached_tokens_use_budget=False,
            lost_blocks=1,
            watermark=resolved.watermark,
            partial_blocks_first=at_least(resolved.version, "0.23.0"),
        )
    no_evict = resolved.capacity_policy == "GUARANTEED_NO_EVICT"
    return SchedulerPolicy(
        token_budget=resolved.max_num_batched_tokens,
        max_seqs=resolved.max_num_seqs,
        block_tokens=resolved.block_tokens,
        chunked_prefill=resolved.enable_chunked_prefill,
        prefix_caching=resolved.enable_prefix_caching,
        reserve_output=no_evict,
        reserve_full_prompt=True,
        steps_ahead=1 if resolved.async_scheduling else 0,
        chunk_multiple=resolved.block_tokens,
        cached_tokens_use_budget=not resolved.enable_chunked_prefill,
        lost_blocks=0,
    )

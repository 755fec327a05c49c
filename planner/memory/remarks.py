"""What a ledger has to say of settings that were stated, and of a term that holds something else than its name."""

from __future__ import annotations

from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.memory import override
from planner.memory.types import MemoryLedger
from planner.units import GIB

OTHERS_COUNT_BEFORE = "0.9.1"
"""Up to this version vLLM took all memory in use on the GPU for its own; later only what it added itself."""

_LIMITS = {"max_tokens": "kv_cache_max_tokens", "max_gpu_total_bytes": "kv_cache_max_gpu_gib"}
"""TensorRT-LLM's limits of the pool and the fields that state them."""


def states_gib(resolved: ResolvedSettings, state_bytes_per_seq: float) -> float:
    """Recurrent state that TensorRT-LLM sets aside for ``max_num_seqs`` sequences; vLLM keeps it in the pool."""
    if resolved.engine is EngineName.VLLM:
        return 0.0
    return state_bytes_per_seq * resolved.max_num_seqs / GIB


def remarks(
    resolved: ResolvedSettings,
    *,
    pool_limit: str,
    blocks: int,
    state_bytes_per_seq: float,
    logprobs_gib: float,
    others_gib: float,
) -> list[str]:
    """The sentences; empty where nothing of the kind was stated and the terms hold what they are called."""
    found = []
    states = states_gib(resolved, state_bytes_per_seq)
    if states:
        found.append(
            f"Recurrent state for {resolved.max_num_seqs:,} sequences takes {states:.1f} GiB, counted with activation; "
            "a smaller max_num_seqs frees it."
        )
    if logprobs_gib:
        found.append(
            f"Log-probabilities take up to {logprobs_gib:.2f} GiB more while they are computed, outside the budget."
        )
    if pool_limit in _LIMITS:
        found.append(f"{pool_limit} sets the pool: it is the smallest of the limits given.")
    if pool_limit == override.OPTION:
        found.append(f"{pool_limit} sets the pool: {blocks:,} blocks of {resolved.block_tokens} tokens.")
    found += _loose_limits(resolved, pool_limit)
    if resolved.kv_cache_host_gib:
        found.append("The host cache keeps blocks for reuse; it holds no running request, so capacity stays the same.")
    if others_gib and resolved.engine is EngineName.VLLM and at_least(resolved.version, OTHERS_COUNT_BEFORE):
        found.append(
            f"used_by_others_gib leaves the pool as it is: vLLM {resolved.version} takes its share of all memory, and"
            " starts only if so much is free."
        )
    return found


def remarks_of(resolved: ResolvedSettings, memory: MemoryLedger, others_gib: float) -> list[str]:
    """The same of a ledger that is made."""
    return remarks(
        resolved,
        pool_limit=memory.pool_limit,
        blocks=memory.kv_blocks,
        state_bytes_per_seq=memory.state_bytes_per_seq,
        logprobs_gib=memory.logprobs_gib,
        others_gib=others_gib,
    )


def _loose_limits(resolved: ResolvedSettings, pool_limit: str) -> list[str]:
    """Stated limits of TensorRT-LLM's pool above what another one leaves."""
    if resolved.engine is EngineName.VLLM or not pool_limit:
        return []
    loose = [field for limit, field in _LIMITS.items() if limit != pool_limit and getattr(resolved, field) is not None]
    return [f"{field} changes nothing: {_LIMITS.get(pool_limit, pool_limit)} leaves less." for field in loose]

"""vLLM's ``--num-gpu-blocks-override``: so many blocks, whatever profiling found.

``v1/core/kv_cache_utils.py`` (0.33: ``kv_cache_planning.py``), read in 0.10.2 to 0.33.0: the number replaces the
profiled one, also where it is larger; the pool is then allocated without a look at what is free.
"""

from __future__ import annotations

from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.errors import InputError

OPTION = "num_gpu_blocks_override"

CHECKED_SINCE = "0.20.2"
"""From here the start-up check plans with the option; before, it saw only what profiling found."""

NULL_BLOCK_SINCE = "0.30.0"
"""From here the start-up check leaves out the block that the pool keeps for itself."""


def asked_blocks(resolved: ResolvedSettings) -> int | None:
    """Blocks of ``kv_cache_max_tokens``; None when it is not stated. Raises InputError for less than one."""
    limit, size = resolved.kv_cache_max_tokens, resolved.block_tokens
    if limit is None:
        return None
    if limit < size:
        raise InputError(
            "is less than one block", field="kv_cache_max_tokens", value=limit, remedy=f"Give {size} tokens or more."
        )
    return limit // size


def held_back(resolved: ResolvedSettings) -> int:
    """Blocks of the pool that the start-up check does not count."""
    return int(resolved.engine is EngineName.VLLM and at_least(resolved.version, NULL_BLOCK_SINCE))


def despite(resolved: ResolvedSettings, blocks: int, pool_limit: str) -> str:
    """What an engine does although one request of full length does not fit into ``blocks``."""
    if resolved.engine is EngineName.TENSORRT_LLM:
        return " TensorRT-LLM starts all the same, with its context cut to that."
    if pool_limit != OPTION:
        return ""
    found = f" kv_cache_max_tokens leaves {blocks:,} blocks of {resolved.block_tokens} tokens"
    if at_least(resolved.version, CHECKED_SINCE):
        return f"{found}: raise it, or lower max_model_len."
    return f"{found}: vLLM {resolved.version} starts all the same, and longer requests wait for ever."

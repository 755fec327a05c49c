"""KV waste in the pool of a ledger: the three policies on a trace or a length distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.engines.types import ResolvedSettings
from planner.errors import InputError
from planner.fragmentation.kv import KvWasteReport, kv_waste
from planner.memory.types import MemoryLedger

MOST_REQUESTS = 20_000
_FEWEST_REQUESTS = 200
_POOLS_OF_REQUESTS = 8.0


@dataclass(frozen=True, slots=True)
class PoolWaste:
    """``report`` on ``requests`` requests; ``refused_share`` of those given exceed the context and were left out."""

    report: KvWasteReport
    requests: int
    refused_share: float


def waste_in_pool(
    memory: MemoryLedger, resolved: ResolvedSettings, input_tokens: ArrayLike, output_tokens: ArrayLike
) -> PoolWaste:
    """Run the policies of ``kv_waste`` on the pool of ``memory``, at most ``MOST_REQUESTS`` requests in order.

    The contiguous reservation is the longest request rounded up to a power of two, at most the context. Raises
    InputError where no request fits the context or the pool does not hold one reservation.
    """
    prompts = np.maximum(np.asarray(input_tokens, dtype=np.int64), 1)
    outputs = np.maximum(np.asarray(output_tokens, dtype=np.int64), 1)
    keep = prompts + outputs <= resolved.max_model_len
    if not keep.any():
        raise InputError("no request of this demand fits it", field="max_model_len", value=resolved.max_model_len)
    refused = 1.0 - float(keep.mean())
    prompts, outputs = prompts[keep][:MOST_REQUESTS], outputs[keep][:MOST_REQUESTS]
    longest = int((prompts + outputs).max())
    reservation = min(1 << (longest - 1).bit_length(), resolved.max_model_len)
    if memory.kv_tokens < reservation + memory.block_tokens:
        raise InputError(
            f"the pool holds {memory.kv_tokens:,} tokens, less than the longest request's reservation of "
            f"{reservation:,}",
            field="max_model_len",
            value=resolved.max_model_len,
            remedy="Shorten the context, or give the pool more memory.",
        )
    report = kv_waste(
        prompts,
        outputs,
        memory.kv_tokens,
        block_tokens=memory.block_tokens,
        max_model_len=reservation,
        max_seqs=resolved.max_num_seqs,
    )
    return PoolWaste(report, int(prompts.size), refused)


def lengths(mean_tokens: int, spread: float, count: int, seed: int) -> NDArray[np.int64]:
    """``count`` log-normal lengths: mean ``mean_tokens``, coefficient of variation ``spread`` (0: all equal).

    Raises InputError below one token or for a spread outside 0 to 5.
    """
    if mean_tokens < 1:
        raise InputError("must be at least 1", field="input_tokens", value=mean_tokens)
    if not 0.0 <= spread <= 5.0:
        raise InputError("must lie between 0 and 5", field="spread", value=spread)
    if spread == 0.0:
        return np.full(count, mean_tokens, dtype=np.int64)
    variance = math.log1p(spread * spread)
    sample = np.random.default_rng(seed).lognormal(math.log(mean_tokens) - variance / 2, math.sqrt(variance), count)
    return np.maximum(1, np.rint(sample)).astype(np.int64)


def requests_to_load(memory: MemoryLedger, mean_tokens: float) -> int:
    """How many requests keep the pool full long enough for its means to settle."""
    wanted = _POOLS_OF_REQUESTS * memory.kv_tokens / max(1.0, mean_tokens)
    return int(min(MOST_REQUESTS, max(_FEWEST_REQUESTS, wanted)))

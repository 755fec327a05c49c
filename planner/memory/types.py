"""What the memory ledger answers."""

from __future__ import annotations

from dataclasses import dataclass

from planner.evidence import Evidence, Interval


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Memory of one GPU (the tightest rank) in GiB, and what the KV pool holds.

    ``budget_gib`` is what the engine allows itself (vLLM: total x utilisation; TensorRT-LLM: what is free after load x
    fraction, plus the load). ``kv_gib`` may be negative: the engine would refuse to start. ``kv_tokens`` is the pool
    of one data-parallel rank as the engine prints it; ``max_concurrency`` full-length requests it holds at once.
    """

    total_gib: float
    budget_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    graph_gib: float
    lora_gib: float
    kv_gib: float
    kv_blocks: int
    block_tokens: int
    kv_tokens: int
    kv_bytes_per_token: float  # per GPU, averaged over the pool for hybrid models
    state_bytes_per_seq: float  # per GPU, recurrent state of one sequence
    max_concurrency: float
    largest_model_len: int  # longest single request the pool holds, 0 when none
    fits: bool
    reasons: tuple[str, ...]  # why it does not fit, in words; empty when it fits
    binding: str  # the term that is too large: total | weights | activation | kv | state | graphs | ""
    margin_gib: float  # room left when one full-length request is held; negative when it does not fit
    evidence: Evidence
    notes: tuple[str, ...] = ()
    graph_in_budget: bool = True  # False: graphs take memory outside the engine's budget, so KV is not reduced by them
    blocks_per_request: int = 0  # pool blocks that one full-length request holds
    padded_share: float = 0.0  # of the pool, lost to the alignment of layer groups
    sentence: str = ""  # the answer in words
    kv_gib_80: Interval | None = None  # 80 % interval, not below 0 unless kv_gib is; see planner.memory.intervals
    logprobs_gib: float = 0.0  # taken while log-probabilities are computed, outside the budget: no profiling saw it
    pool_limit: str = ""  # what set the pool: TensorRT-LLM's smallest limit, vLLM's num_gpu_blocks_override, or ""
    running_tokens: int = 0  # tokens of running requests, where compressors make that more than kv_tokens
    host_kv_tokens: int = 0  # tokens that the host cache keeps for reuse; running requests cannot use them


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that would make it fit: which setting, to what, and the sentence to show."""

    field: str
    value: int | float | str
    sentence: str

"""Engine settings worth trying for a model on a kind of GPU: parallel shapes, and knobs to tune."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.engines.model_traits import experts, is_mla
from planner.engines.types import EngineName, EngineSettings
from planner.models.spec import ModelSpec
from planner.placement.fleet import bin_size
from planner.plan_types import PlanNode, PlanWorkload

MAX_STAGES = 4
MAX_ADAPTERS_IN_BATCH = 32
"""Slots at most: each takes memory, and a request of an adapter without a slot waits for one. 16 adapters over 8 slots
served 32 to 38 % fewer tokens a second than 8 did (vLLM 0.24.0, own H200 runs, sixth series)."""


def parallel_shapes(model: ModelSpec, nodes: Iterable[PlanNode]) -> tuple[tuple[int, int, int, int], ...]:
    """(tp, pp, ep, dp) that some of ``nodes`` could hold, smallest first.

    Tensor parallel by powers of two inside a domain; pipeline stages of a whole domain for what is larger; two stages
    inside a domain too, where GPUs share PCIe, and one stage a GPU where their number is no power of two. For models
    with experts also expert parallelism, and data-parallel attention for a latent cache, which tensor parallelism
    would only copy.
    """
    found: set[tuple[int, int, int, int]] = set()
    for node in nodes:
        size = bin_size(node)
        powers = [2**i for i in range(size.bit_length()) if 2**i <= size]
        for tp in powers:
            found.add((tp, 1, 1, 1))
            if node.nvlink_domain <= 1 and 2 * tp <= size:
                found.add((tp, 2, 1, 1))
            if experts(model) and tp > 1:
                found.add((tp, 1, tp, 1))
        if experts(model) and is_mla(model):
            found |= {(1, 1, dp, dp) for dp in powers if dp > 1}
        if powers[-1] != size:  # 3, 6 or 7 GPUs rarely divide the heads: stages do
            found.add((1, size, 1, 1))
        found |= {(powers[-1], pp, 1, 1) for pp in range(2, MAX_STAGES + 1) if powers[-1] == size}
    return tuple(sorted(found, key=lambda s: (s[0] * s[1] * s[3], s)))


def base_settings(
    workload: PlanWorkload, engine: EngineName, precision: str, shape: tuple[int, int, int, int]
) -> EngineSettings:
    """The settings that a workload implies, before tuning. Prefix caching stays at the default of both engines: on."""
    tp, pp, ep, dp = shape
    return EngineSettings(
        engine=engine,
        tp=tp,
        pp=pp,
        ep=ep,
        dp=dp,
        precision=precision,
        max_model_len=workload.max_model_len,
        max_loras=min(workload.adapters, MAX_ADAPTERS_IN_BATCH),
        max_lora_rank=workload.adapter_rank,
    )


def adapter_notes(workload: PlanWorkload) -> tuple[str, ...]:
    """What to say where more adapters are asked for than a batch has slots."""
    if workload.adapters <= MAX_ADAPTERS_IN_BATCH:
        return ()
    return (
        f"{workload.adapters} adapters share {MAX_ADAPTERS_IN_BATCH} slots: requests of the others wait for a slot, "
        "which is not counted here.",
    )


def variants(settings: EngineSettings, *, offline: bool) -> tuple[EngineSettings, ...]:
    """Tuned alternatives of ``settings``, each engine with its own knobs, so that tuned meets tuned.

    Both: the token budget of a step (smaller steadies TPOT, larger speeds prefill). TensorRT-LLM: chunked prefill, off
    by default, and admission by utilisation instead of guaranteed completion. Work that nobody waits for also tries
    more sequences at once.
    """
    budgets = (2048, 4096, 16384)
    found = []
    if settings.engine is EngineName.VLLM:
        found += [replace(settings, max_num_batched_tokens=budget) for budget in budgets]
        if offline:
            found.append(replace(settings, max_num_seqs=2048, max_num_batched_tokens=16384))
        return tuple(found)
    chunked = replace(settings, enable_chunked_prefill=True)
    found.append(chunked)
    found += [replace(chunked, max_num_batched_tokens=budget) for budget in budgets]
    found.append(replace(chunked, capacity_policy="MAX_UTILIZATION"))
    return tuple(found)

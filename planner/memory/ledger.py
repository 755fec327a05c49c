"""The ledger of one GPU: what the engine loads, reserves and has left for KV, and what that pool holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines.precision import as_loaded
from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least, outside_verified_range
from planner.errors import InputError
from planner.evidence import Evidence, Interval
from planner.memory import constants as c
from planner.memory import override, trtllm_terms, vllm_terms
from planner.memory.intervals import MAY_BE_MISSING, kv_interval, of_pool
from planner.memory.kv_layout import KvLayout, kv_layout
from planner.memory.logprobs import logprobs_gib
from planner.memory.remarks import OTHERS_COUNT_BEFORE, remarks, states_gib
from planner.memory.types import MemoryLedger
from planner.memory.weights import loaded_weights_gib
from planner.models.sharding import stage_groups
from planner.models.spec import ModelSpec
from planner.units import GIB

STATE_BLOCKS_SINCE = "0.19.0"
"""From here vLLM refuses a recurrent model whose pool has fewer blocks than ``max_num_seqs`` (pull request 38270)."""

_LOAD_PEAK_SHARE = 0.6
"""Share of the checkpoint that a host with unified memory holds in its page cache while loading (reported: 112 GiB used
by a 48 GiB model against a budget of 83)."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """Terms of one rank of one pipeline stage, GiB."""

    stage: int
    weights: float
    activation: float
    non_torch: float
    graph: float
    lora: float
    kv: float
    layout: KvLayout
    blocks: int
    pool_limit: str = ""
    share_gib: float | None = None  # of free memory, before other limits


def ledger(
    model: ModelSpec,
    gpu: GpuSpec,
    resolved: ResolvedSettings,
    *,
    total_gib: float | None = None,
    used_by_others_gib: float = 0.0,
) -> MemoryLedger:
    """Account for one GPU's memory as ``resolved.engine`` does, on the rank with the fewest KV blocks.

    ``total_gib`` overrides the catalogue's memory as the driver reports it (a MIG slice, a capped card);
    ``used_by_others_gib`` is held by other processes when the engine starts. A pool that does not hold one request of
    ``max_model_len`` tokens does not fit; ``reasons`` say which term is too large. Raises InputError for sizes that are
    absurd or a parallel shape that cannot divide the model.
    """
    total = gpu.total_gib if total_gib is None else total_gib
    if not 0 < total < 1e5:
        raise InputError("must be positive, in GiB", field="gpu_memory_gib", value=total)
    if not 0 <= used_by_others_gib <= total:
        raise InputError("must lie between 0 and the total", field="used_by_others_gib", value=used_by_others_gib)
    model = as_loaded(model, resolved)
    vllm = resolved.engine is EngineName.VLLM
    budget = vllm_budget_gib(total, resolved) if vllm else total
    account = _vllm_rank if vllm else _trtllm_rank
    ranks = [account(model, gpu, resolved, stage, budget, used_by_others_gib) for stage in range(resolved.pp)]
    rank = min(ranks, key=lambda each: (each.blocks, each.kv))
    if not vllm:
        fraction = resolved.free_gpu_memory_fraction or 0.0
        free = total - used_by_others_gib - rank.weights - rank.activation - rank.non_torch - rank.graph - rank.lora
        budget = total - used_by_others_gib - max(0.0, free) * (1.0 - fraction)
    return _assemble(model, gpu, resolved, total, used_by_others_gib, budget, rank)


def vllm_budget_gib(total_gib: float, resolved: ResolvedSettings) -> float:
    """Memory that vLLM asks for: ceil(total bytes x utilisation), in GiB."""
    return math.ceil(total_gib * GIB * (resolved.gpu_memory_utilization or 0.0)) / GIB


def kv_tokens_from_gib(model: ModelSpec, resolved: ResolvedSettings, kv_gib: float) -> tuple[int, int, float]:
    """(blocks, tokens as printed, concurrency) of a pool of ``kv_gib`` GiB per GPU on the tightest rank.

    Exact to the block for what the engine itself reports, rounded GiB apart.
    """
    model = as_loaded(model, resolved)
    layouts = [kv_layout(model, resolved, stage=stage) for stage in range(resolved.pp)]
    blocks, layout = min(((_blocks(each, kv_gib), each) for each in layouts), key=lambda pair: pair[0])
    return blocks, printed_tokens(layout, resolved, blocks), concurrency(layout, resolved, blocks)


def concurrency(layout: KvLayout, resolved: ResolvedSettings, blocks: int) -> float:
    """Requests of ``max_model_len`` tokens that ``blocks`` blocks hold at once; MNS for a model without a cache."""
    need = layout.counted_for(resolved.max_model_len)
    return blocks / need if need else float(resolved.max_num_seqs)


def printed_tokens(layout: KvLayout, resolved: ResolvedSettings, blocks: int) -> int:
    """Pool size in tokens as the engine prints it.

    vLLM up to 0.19: blocks // groups x block; since 0.20.2: concurrency x context length. TensorRT-LLM: blocks x block.
    """
    if not layout.groups:
        return 0
    if resolved.engine is EngineName.TENSORRT_LLM:
        return blocks * resolved.block_tokens
    if at_least(resolved.version, "0.20.2"):
        return int(concurrency(layout, resolved, blocks) * resolved.max_model_len)
    return blocks // len(layout.groups) * layout.block_tokens


def _running_tokens(layout: KvLayout, resolved: ResolvedSettings, blocks: int, printed: int) -> int:
    """Tokens of requests at their full length whose prompts are done, where compressors keep a few tokens each.

    0 elsewhere: beside plain windows the printed figure is nearer to what published runs of gpt-oss-120b carried.
    """
    if not layout.main_block_tokens:
        return 0
    length = resolved.max_model_len
    return max(printed, int(blocks / max(1, layout.running_for(length)) * length))


def _blocks(layout: KvLayout, kv_gib: float) -> int:
    if layout.block_bytes == 0:
        return 0
    return max(0, int(kv_gib * GIB // layout.block_bytes))


def _vllm_rank(
    model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings, stage: int, budget: float, others: float
) -> _Rank:
    weights = loaded_weights_gib(model, gpu, resolved, stage=stage)
    activation = vllm_terms.activation_gib(model, resolved, stage=stage)
    non_torch = vllm_terms.non_torch_gib(gpu, resolved)
    graph = vllm_terms.graph_gib(model, resolved, stage=stage)
    lora = vllm_terms.lora_gib(model, resolved, stage=stage)
    kv = budget - weights - activation - non_torch - lora
    if vllm_terms.graphs_in_budget(model, gpu, resolved):
        kv -= graph
    if not at_least(resolved.version, OTHERS_COUNT_BEFORE):
        kv -= others
    layout = kv_layout(model, resolved, stage=stage)
    rank = _Rank(stage, weights, activation, non_torch, graph, lora, kv, layout, _blocks(layout, kv))
    return _with_override(rank, resolved)


def _with_override(rank: _Rank, resolved: ResolvedSettings) -> _Rank:
    """The pool that ``kv_cache_max_tokens`` asks for, whether profiling found fewer blocks or more."""
    asked = override.asked_blocks(resolved)
    if asked is None or not rank.layout.groups or rank.kv <= 0:
        return rank
    kv = asked * rank.layout.block_bytes / GIB
    return replace(rank, kv=kv, blocks=asked, pool_limit=override.OPTION, share_gib=rank.kv)


def _trtllm_rank(
    model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings, stage: int, total: float, others: float
) -> _Rank:
    weights = loaded_weights_gib(model, gpu, resolved, stage=stage)
    activation = trtllm_terms.activation_gib(model, resolved)
    non_torch = trtllm_terms.outside_torch_gib(gpu, resolved)
    graph = trtllm_terms.graph_gib(model, resolved, stage=stage)
    layout = kv_layout(model, resolved, stage=stage)
    states = states_gib(resolved, layout.state_bytes_per_seq)
    free = total - others - weights - activation - non_torch - graph - states
    lora = trtllm_terms.lora_gib(resolved, free)
    fraction = resolved.free_gpu_memory_fraction or 0.0
    share = (free - lora) * fraction
    limits = trtllm_terms.pool_limits(resolved, layout.block_bytes, share)
    limit = min(limits, key=lambda name: limits[name])
    kv = limits[limit]
    blocks = _blocks(layout, kv)
    return _Rank(stage, weights, activation + states, non_torch, graph, lora, kv, layout, blocks, limit, share)


def _assemble(
    model: ModelSpec,
    gpu: GpuSpec,
    resolved: ResolvedSettings,
    total: float,
    others: float,
    budget: float,
    rank: _Rank,
) -> MemoryLedger:
    layout, blocks = rank.layout, rank.blocks
    need = layout.blocks_for(resolved.max_model_len)
    limit = max(model.max_position, resolved.max_model_len)
    longest = layout.longest_for(blocks - override.held_back(resolved), limit) if rank.kv > 0 else 0
    in_budget = resolved.engine is EngineName.TENSORRT_LLM or vllm_terms.graphs_in_budget(model, gpu, resolved)
    logprobs = logprobs_gib(model, resolved, rank.activation)
    reasons, binding = _verdict(resolved, gpu, total, others, budget, rank, need, longest, in_budget, logprobs)
    printed = printed_tokens(layout, resolved, blocks)
    margin = rank.kv - need * layout.block_bytes / GIB
    evidence = _evidence(model, gpu, resolved)
    unfitted = rank.activation + rank.non_torch + (rank.graph if in_budget else 0.0)
    band = kv_interval(resolved, evidence, rank.kv, rank.share_gib, unfitted_gib=unfitted)
    if vllm_terms.sampler_is_assumed(resolved):
        band = replace(band, low=band.low - max(0.0, vllm_terms.sort_sampler_extra_gib(model, resolved)))
    pool = None if mt.is_encoder_only(model) else of_pool(band)
    missing = (MAY_BE_MISSING,) if pool is not None and pool.low <= 0 and not reasons else ()
    host = resolved.kv_cache_host_gib or 0.0
    result = MemoryLedger(
        total_gib=total,
        budget_gib=budget,
        weights_gib=rank.weights,
        activation_gib=rank.activation,
        non_torch_gib=rank.non_torch,
        graph_gib=rank.graph,
        lora_gib=rank.lora,
        kv_gib=rank.kv,
        kv_blocks=blocks,
        block_tokens=layout.block_tokens or resolved.block_tokens,
        kv_tokens=printed,
        kv_bytes_per_token=blocks * layout.block_bytes / printed if printed else 0.0,
        state_bytes_per_seq=layout.state_bytes_per_seq,
        max_concurrency=concurrency(layout, resolved, blocks) if rank.kv > 0 else 0.0,
        largest_model_len=longest,
        fits=not reasons,
        reasons=tuple(reasons),
        binding=binding,
        margin_gib=margin,
        evidence=evidence,
        notes=(*_notes(model, gpu, resolved, total, rank, in_budget, logprobs, others), *missing),
        graph_in_budget=in_budget,
        blocks_per_request=need,
        padded_share=layout.padded_share,
        sentence=_sentence(resolved, reasons, margin, longest, model, band),
        kv_gib_80=pool,
        logprobs_gib=logprobs,
        pool_limit=rank.pool_limit,
        running_tokens=_running_tokens(layout, resolved, blocks, printed),
        host_kv_tokens=_blocks(layout, host) * resolved.block_tokens,
    )
    return result


def _verdict(
    resolved: ResolvedSettings,
    gpu: GpuSpec,
    total: float,
    others: float,
    budget: float,
    rank: _Rank,
    need: int,
    longest: int,
    in_budget: bool,
    logprobs: float,
) -> tuple[list[str], str]:
    """(reasons why it does not fit, binding term)."""
    reasons: list[str] = []
    binding = ""
    vllm = resolved.engine is EngineName.VLLM
    in_use = max(others, c.CUDA_CONTEXT_GIB if gt.is_nvidia(gpu) else 0.0)
    if vllm and total - in_use < budget:
        binding = "total"
        reasons.append(
            f"Only {total - in_use:.2f} of {total:.2f} GiB are free at start, less than the {budget:.2f} GiB that "
            f"gpu_memory_utilization {resolved.gpu_memory_utilization} asks for: the engine refuses to start."
        )
    if rank.kv <= 0:
        room = budget if vllm else total - others
        binding = "weights" if rank.weights >= room else "activation"
        states = states_gib(resolved, rank.layout.state_bytes_per_seq)
        activation = f"activation {rank.activation - states:.2f}"
        if states:
            activation += f", recurrent state of {resolved.max_num_seqs:,} sequences {states:.2f}"
        parts = f"weights {rank.weights:.2f}, {activation}, outside torch {rank.non_torch:.2f} GiB"
        reasons.append(
            f"No memory is left for the KV cache: {parts} against {room:.2f} GiB (short by {-rank.kv:.2f} GiB)."
            if rank.weights < room
            else f"The weights alone ({rank.weights:.2f} GiB per GPU) exceed the {room:.2f} GiB available."
        )
    elif rank.pool_limit == override.OPTION and rank.share_gib is not None and rank.kv > rank.share_gib:
        binding = "kv"
        room = _blocks(rank.layout, rank.share_gib) * resolved.block_tokens
        reasons.append(
            f"kv_cache_max_tokens {resolved.kv_cache_max_tokens:,} asks for {rank.kv:.2f} GiB of KV cache, "
            f"{rank.share_gib:.2f} GiB are left: vLLM allocates what {override.OPTION} says and runs out of memory; "
            f"lower it to {room:,} or leave it out."
        )
    elif rank.blocks - override.held_back(resolved) < need:
        binding = "kv"
        block = rank.layout.block_bytes / GIB
        usable = rank.kv - override.held_back(resolved) * block
        despite = override.despite(resolved, rank.blocks, rank.pool_limit)
        reasons.append(
            f"One request of {resolved.max_model_len:,} tokens needs {need * block:.2f} GiB of KV cache, {usable:.2f} "
            f"GiB are available; the longest that fits is {longest:,} tokens.{despite}"
        )
    states = bool(rank.layout.state_bytes_per_seq) and bool(resolved.cuda_graph_sizes)
    strict = vllm and states and at_least(resolved.version, STATE_BLOCKS_SINCE)
    if strict and not reasons and resolved.max_num_seqs > rank.blocks:
        binding = "state"
        reasons.append(
            f"max_num_seqs ({resolved.max_num_seqs:,}) exceeds the {rank.blocks:,} state blocks of the pool, one for "
            f"each running sequence: the engine refuses to start; lower it to at most {rank.blocks:,}."
        )
    spare = total - in_use - budget + rank.activation
    if vllm and not in_budget and not reasons and rank.graph > spare:
        binding = "graphs"
        reasons.append(
            f"The KV cache fits, but capturing CUDA graphs needs about {rank.graph:.2f} GiB and only {spare:.2f} GiB "
            "lie outside it; lower gpu_memory_utilization."
        )
    reserve = total - in_use - budget - (0.0 if in_budget or not vllm else rank.graph)
    if logprobs and not reasons and logprobs > reserve:
        binding = "logprobs"
        share = "gpu_memory_utilization" if vllm else "free_gpu_memory_fraction"
        reasons.append(
            f"The KV cache fits, but log-probabilities take {logprobs:.2f} GiB that no start-up check sees, and only "
            f"{max(0.0, reserve):.2f} GiB lie outside the engine's share; lower {share} or forbid them."
        )
    return reasons, binding


def _sentence(
    resolved: ResolvedSettings, reasons: list[str], margin: float, longest: int, model: ModelSpec, band: Interval
) -> str:
    if reasons:
        return "Does not fit. " + reasons[0]
    if mt.is_encoder_only(model):
        return f"Fits with {margin:.1f} GiB to spare; an encoder keeps no KV cache."
    text = f"Fits with {margin:.1f} GiB to spare"
    if margin < band.value - band.low:
        text += f", less than the estimate's error of {band.value - band.low:.1f} GiB: it may not start"
    if longest > resolved.max_model_len:
        return f"{text}; context could grow to {longest:,} tokens."
    return f"{text} at the model's full context of {resolved.max_model_len:,} tokens."


def _evidence(model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings) -> Evidence:
    """Calibrated where the terms were fitted on this kind of GPU and version, else extrapolated."""
    fitted = gt.is_nvidia(gpu) and gt.effective_capability(gpu) in (8.0, 9.0)
    if resolved.engine is EngineName.TENSORRT_LLM or not fitted:
        return Evidence.EXTRAPOLATED
    if outside_verified_range(resolved.engine, resolved.version) or model.vision is not None:
        return Evidence.EXTRAPOLATED
    return Evidence.CALIBRATED


def _notes(
    model: ModelSpec,
    gpu: GpuSpec,
    resolved: ResolvedSettings,
    total: float,
    rank: _Rank,
    in_budget: bool,
    logprobs: float,
    others: float,
) -> list[str]:
    notes = remarks(
        resolved,
        pool_limit=rank.pool_limit,
        blocks=rank.blocks,
        state_bytes_per_seq=rank.layout.state_bytes_per_seq,
        logprobs_gib=logprobs,
        others_gib=others,
    )
    if gpu.total_gib_evidence == "estimated" and total == gpu.total_gib:
        notes.append(f"The memory that the driver reports for {gpu.name} is estimated; state it if you know it.")
    if resolved.engine is EngineName.VLLM and not in_budget and rank.graph:
        notes.append(f"CUDA graphs take about {rank.graph:.2f} GiB more, outside gpu_memory_utilization.")
    if resolved.engine is EngineName.VLLM and in_budget and rank.graph:
        share, shift = resolved.gpu_memory_utilization or 0.0, rank.graph / total
        notes.append(
            f"CUDA graphs are taken from gpu_memory_utilization: {share:.4g} acts like {share - shift:.4f} of the "
            f"versions before 0.20, which left them out; {share + shift:.4f} gives the pool of then."
        )
    if resolved.engine is EngineName.VLLM and resolved.sampler == "flashinfer":
        more = vllm_terms.sort_sampler_extra_gib(model, resolved)
        if more > 0.1:
            notes.append(f"Without FlashInfer installed this version needs up to {more:.1f} GiB more for sampling.")
    if gpu.vendor == "amd" and rank.graph:
        notes.append(
            "CUDA graphs were fitted on NVIDIA GPUs; on MI355X one large model took 4.7 to 16.9 GiB for them where 1.3 "
            "were expected. Leave room, or measure a start-up."
        )
    if gpu.unified_memory:
        peak = rank.weights * _LOAD_PEAK_SHARE
        notes.append(
            f"Host and GPU share one memory: the host's own use counts, and loading caches about {peak:.0f} GiB more."
        )
    if rank.layout.padded_share > 0.005:
        notes.append(f"Alignment of layer groups wastes {rank.layout.padded_share:.1%} of the pool.")
    if resolved.pp > 1:
        layers = [sum(stage_groups(model, resolved.pp, s).values()) for s in range(resolved.pp)]
        notes.append(f"Stage {rank.stage + 1} of {resolved.pp} ({layers[rank.stage]} layers) is the tightest.")
    if outside_verified_range(resolved.engine, resolved.version):
        notes.append(f"Version {resolved.version} lies outside those whose rules were verified.")
    return notes

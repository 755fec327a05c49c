"""vLLM's terms besides weights and KV: activation peak, CUDA graphs, memory outside torch, adapter slots.

The causes are those of ``determine_available_memory``: a dummy forward pass of ``max_num_batched_tokens`` tokens, then
a dummy sampler on the logits of ``max_num_seqs`` rows; the larger peak counts, the experts' workspace stays through it.
"""

from __future__ import annotations

import math

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines.types import ResolvedSettings
from planner.engines.versions import at_least
from planner.engines.vllm import uses_v2_runner
from planner.memory import constants as c
from planner.models.sharding import RankLinear, rank_linears, stage_layers
from planner.models.spec import Attention, Mla, ModelSpec
from planner.units import GIB, MIB

_LOGITS_BYTES = 4
_HIDDEN_BYTES = 2
_LORA_ROLES = ("q", "kv", "o", "gate_up", "down", "shared_gate_up", "shared_down")
_LORA_EXPERT_ROLES = ("expert_gate_up", "expert_down")


def sampler_cost(model: ModelSpec, resolved: ResolvedSettings) -> c.SamplerCost:
    """Constants of the sampler that this version runs for this model."""
    if uses_v2_runner(resolved.version, model):
        return c.SAMPLER_V2
    if resolved.sampler == "flashinfer":
        return c.SAMPLER_FLASHINFER
    return [cost for cost in c.SAMPLER_V1 if at_least(resolved.version, cost.since)][-1]


def activation_gib(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Peak that the profiling pass adds to the weights on one rank of pipeline stage ``stage``, in GiB."""
    workspace = moe_workspace_bytes(model, resolved)
    persistent = workspace if at_least(resolved.version, c.MOE_WORKSPACE_SINCE) else 0.0
    forward = _forward_bytes(model, resolved, stage) + (workspace - persistent)
    sampler = 0.0
    if stage == resolved.pp - 1 and model.lm_head is not None and model.task == "generate":
        sampler = _sampler_bytes(model, resolved)
    pooled = _multimodal_bytes(model, resolved) if stage == 0 else 0.0
    return (max(forward, sampler) + persistent + pooled) / GIB


def sampler_is_assumed(resolved: ResolvedSettings) -> bool:
    """Whether FlashInfer's sampler is taken for granted: the published images have it, a plain installation has not."""
    return resolved.sampler == "flashinfer" and resolved.origin.get("sampler", "").startswith("published image")


def sort_sampler_extra_gib(model: ModelSpec, resolved: ResolvedSettings) -> float:
    """How much more the sorting sampler would take than FlashInfer's, in GiB."""
    native = [cost for cost in c.SAMPLER_V1 if at_least(resolved.version, cost.since)][-1]
    rows = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    return (native.units - c.SAMPLER_FLASHINFER.units) * rows * model.vocab * _LOGITS_BYTES / GIB


def _sampler_bytes(model: ModelSpec, resolved: ResolvedSettings) -> float:
    cost = sampler_cost(model, resolved)
    rows = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    if resolved.speculative_tokens:
        rows *= 2
    logits = rows * model.vocab * _LOGITS_BYTES
    wide = model.dtype == "fp32"  # the logits come out in 32 bits, half a unit more
    hidden = resolved.max_num_batched_tokens * model.hidden * _HIDDEN_BYTES * (2 if wide else 1)
    return (cost.units + (0.5 if wide else 0.0)) * logits + hidden + cost.fixed_gib * GIB


def _forward_bytes(model: ModelSpec, resolved: ResolvedSettings, stage: int) -> float:
    """Widest point of one layer: three hidden states, and the gate/up product with the activation's output."""
    tokens = resolved.max_num_batched_tokens
    narrow = 1 if resolved.precision in ("fp8", "fp8_block", "int8") and not resolved.weight_only else _HIDDEN_BYTES
    widest = 0.0
    for group in model.groups:
        ffn = group.ffn
        inner = 0.0
        if ffn is not None:
            width = max(ffn.intermediate if ffn.experts == 0 else 0, ffn.shared_intermediate)
            inner = width / resolved.tp * ((2 if ffn.gated else 1) * _HIDDEN_BYTES + narrow)
        attention = 0.0
        if isinstance(group.mixer, Attention):
            mixer = group.mixer
            heads = mixer.heads / resolved.tp + 2 * max(1.0, mixer.kv_heads / resolved.tp)
            attention = (heads * mixer.head_dim + mixer.heads / resolved.tp * mixer.v_head_dim) * _HIDDEN_BYTES
        elif isinstance(group.mixer, Mla):
            latent = group.mixer
            per_head = 2 * (latent.qk_nope_head_dim + latent.qk_rope_head_dim) + 2 * latent.v_head_dim
            attention = latent.heads / resolved.tp * per_head * _HIDDEN_BYTES
        widest = max(widest, inner, attention)
    copies = c.FORWARD_HIDDEN_COPIES + (c.PIPELINE_HIDDEN_COPIES if resolved.pp > 1 else 0.0)
    return tokens * (widest + copies * model.hidden * _HIDDEN_BYTES) + c.FORWARD_FIXED_GIB * GIB


def moe_workspace_bytes(model: ModelSpec, resolved: ResolvedSettings) -> float:
    """Two buffers of the fused experts: tokens x top-k x max(half or whole gate/up width, hidden), 16-bit.

    mxfp4 kernels and Blackwell's fp4 kernels keep none.
    """
    largest = 0.0
    if resolved.precision in ("mxfp4", "fp4") and not resolved.weight_only:
        return 0.0
    if resolved.precision == "mxfp4":
        return 0.0
    inner_tp = max(1, resolved.tp * resolved.dp // resolved.ep)
    for group in model.groups:
        ffn = group.ffn
        if ffn is None or not ffn.experts:
            continue
        pairs = resolved.max_num_batched_tokens * ffn.experts_per_token
        width = ffn.expert_intermediate / inner_tp
        first = max(width, model.hidden)
        second = max((2 if ffn.gated else 1) * width, model.hidden)
        largest = max(largest, pairs * (first + second) * _HIDDEN_BYTES)
    return largest


def multimodal_budget_tokens(model: ModelSpec, resolved: ResolvedSettings) -> int:
    """Encoder tokens reserved while profiling: the token budget, or the worst-case item (or the items asked for)."""
    if model.vision is None:
        return 0
    item = model.vision.max_tokens_per_item or 0
    return max(resolved.max_num_batched_tokens, item, item * resolved.mm_items_per_prompt)


def _multimodal_bytes(model: ModelSpec, resolved: ResolvedSettings) -> float:
    if model.vision is None:
        return 0.0
    tokens = multimodal_budget_tokens(model, resolved)
    return tokens * model.hidden * _HIDDEN_BYTES + c.MULTIMODAL_FIXED_GIB * GIB


def non_torch_gib(gpu: GpuSpec, resolved: ResolvedSettings) -> float:
    """CUDA context growth and communication buffers of one rank, in GiB."""
    row = [each for each in c.NON_TORCH if at_least(resolved.version, each.since)][-1]
    if gt.is_cpu(gpu):
        return 0.0
    ranks = resolved.tp * (resolved.dp if resolved.ep > 1 else 1)
    if ranks == 1:
        return min(row.single_gib, c.PIPELINE_NON_TORCH_GIB) if resolved.pp > 1 else row.single_gib
    doublings = max(0.0, math.log2(resolved.tp) - 1)
    if not gt.has_nvlink(gpu):
        return row.pcie_gib
    if gt.effective_capability(gpu) >= 9.0 and (gpu.scale_up_domain or 0) >= 4:
        return row.nvswitch_gib + row.per_doubling_gib * doublings
    return row.nvlink_gib


def graph_gib(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Memory of the captured CUDA graphs on one rank, in GiB: piecewise ones at every size, full ones up to MNS."""
    sizes = resolved.cuda_graph_sizes
    if not sizes:
        return 0.0
    graphs = len(sizes)
    if at_least(resolved.version, "0.11.0"):
        limit = resolved.max_num_seqs * (1 + resolved.speculative_tokens)
        graphs += sum(1 for size in sizes if size <= limit)
    layers = stage_layers(model.layers, resolved.pp)[stage]
    return graphs * layers * c.GRAPH_MIB_PER_GRAPH_LAYER * MIB / GIB


def graphs_in_budget(model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings) -> bool:
    """Whether the version subtracts an estimate of the graphs from the budget; else they come on top of it."""
    if not at_least(resolved.version, "0.20.2"):
        return False
    if gpu.vendor != "nvidia":
        return at_least(resolved.version, "0.33.0")
    return at_least(resolved.version, "0.30.0") or not uses_v2_runner(resolved.version, model)


def lora_gib(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Adapter slots allocated beside the weights: A and B of every adapted matrix, 16-bit, for ``max_loras`` slots.

    A of a row-parallel and B of a column-parallel matrix are divided by TP; the other half is on every rank.
    """
    if not resolved.max_loras:
        return 0.0
    total = 0.0
    for linear in rank_linears(model, resolved, stage=stage):
        experts = linear.role in _LORA_EXPERT_ROLES and at_least(resolved.version, "0.12.0")
        if linear.role in _LORA_ROLES or experts:
            total += _adapter_elements(linear) * resolved.max_lora_rank
    return resolved.max_loras * total * _HIDDEN_BYTES / GIB


def _adapter_elements(linear: RankLinear) -> float:
    """A and B of rank one; merged matrices (k and v, gate and up) have an A each."""
    merged = 2 if linear.role == "kv" or linear.role.endswith("gate_up") else 1
    return (linear.n + merged * linear.k) * linear.copies * linear.layers

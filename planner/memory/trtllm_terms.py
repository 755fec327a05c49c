"""TensorRT-LLM's terms besides weights and KV, and its rule for the pool.

Read from ``_torch/pyexecutor/_util.py``: the pool is a fraction of what is free after weights, the peak of a dummy
prefill of ``max_num_tokens`` and everything outside torch (CUDA graphs, NCCL, other processes).
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines.types import ResolvedSettings
from planner.memory import constants as c
from planner.models.sharding import stage_layers
from planner.models.spec import ModelSpec
from planner.units import GIB, MIB

_HIDDEN_BYTES = 2


def activation_gib(model: ModelSpec, resolved: ResolvedSettings) -> float:
    """Torch peak of a dummy prefill of ``max_num_tokens`` tokens on one rank, in GiB.

    Three hidden states, the widest feed-forward part, the experts' two buffers
    (with attention DP for the tokens of all its ranks, ``fused_moe``), and fp32 logits of the prompts' last
    tokens (at most ``max_batch_size`` rows). gpt-oss-120b at 8,224 tokens: 0.85 logged. The engine-build back end
    allocates its logits and sampling buffers for ``max_batch_size`` rows beforehand.
    """
    tokens = resolved.max_num_batched_tokens
    widest = 0.0
    experts = 0.0
    inner_tp = max(1, resolved.tp * resolved.dp // resolved.ep)
    for group in model.groups:
        ffn = group.ffn
        if ffn is None:
            continue
        width = max(ffn.intermediate if ffn.experts == 0 else 0, ffn.shared_intermediate)
        widest = max(widest, 3.0 * width / resolved.tp)
        if ffn.experts:
            each = 2.0 * ffn.expert_intermediate / inner_tp + 2.0 * model.hidden
            experts = max(experts, ffn.experts_per_token * each * resolved.dp)
    logits = min(resolved.max_num_seqs, tokens) * model.vocab / resolved.tp * 4
    if resolved.trt_backend == "tensorrt":
        logits = c.TRTLLM.decoder_units * resolved.max_num_seqs * model.vocab * 4 / resolved.tp
    return (tokens * (3.0 * model.hidden + max(widest, experts)) * _HIDDEN_BYTES + logits) / GIB


def outside_torch_gib(gpu: GpuSpec, resolved: ResolvedSettings) -> float:
    """CUDA context, libraries and NCCL on one rank, in GiB."""
    ranks = resolved.tp * resolved.pp * resolved.dp
    context = c.TRTLLM.engine_context_gib if resolved.trt_backend == "tensorrt" else c.TRTLLM.context_gib
    return context + (c.TRTLLM.nccl_gib if ranks > 1 and gpu.vendor == "nvidia" else 0.0)


def graph_gib(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Memory of the captured decode graphs on one rank, in GiB; the engine-build back end captures none by default."""
    if resolved.trt_backend == "tensorrt":
        return 0.0
    layers = stage_layers(model.layers, resolved.pp)[stage]
    return len(resolved.cuda_graph_sizes) * layers * c.TRTLLM.graph_mib_per_graph_layer * MIB / GIB


def lora_gib(resolved: ResolvedSettings, free_gib: float) -> float:
    """Adapter cache: ``peft_cache_config.device_cache_percent``, 2 % of what is free, when adapters are on."""
    return max(0.0, free_gib) * 0.02 if resolved.max_loras else 0.0


def pool_limits(resolved: ResolvedSettings, block_bytes: float, share_gib: float) -> dict[str, float]:
    """GiB that each limit allows the pool, by the engine's name for it; the smallest wins.

    ``share_gib`` is the fraction of what is free. ``_util.py`` takes ``max_tokens`` and ``max_gpu_total_bytes`` into
    account after the fraction. The host cache is no limit of this pool.
    """
    limits = {"free_gpu_memory_fraction": share_gib}
    if resolved.kv_cache_max_tokens is not None and block_bytes:
        limits["max_tokens"] = resolved.kv_cache_max_tokens * block_bytes / resolved.block_tokens / GIB
    if resolved.kv_cache_max_gpu_gib is not None:
        limits["max_gpu_total_bytes"] = resolved.kv_cache_max_gpu_gib
    return limits

"""Weights as they lie on one GPU: the tensors, what the allocator rounds them to, and the position tables.

PyTorch's caching allocator takes segments in multiples of 2 MiB for tensors of 10 MiB and more, and leaves a remainder
of up to 1 MiB attached to the tensor (``CUDACachingAllocator.cpp``). For Qwen2.5-7B that is 2 MiB a layer.
"""

from __future__ import annotations

import math
from collections import defaultdict

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.engines.vllm import MARLIN
from planner.models.sharding import RankLinear, rank_linears, rope_cache_bytes, stage_groups, weights_bytes
from planner.models.spec import Mla, ModelSpec
from planner.units import GIB, MIB

_LARGE_TENSOR = 10 * MIB
_SEGMENT = 2 * MIB
_UNSPLIT = MIB
_MERGED = {"q": "qkv", "kv": "qkv"}
_STACKED = ("expert_gate_up", "expert_down")
_DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def loaded_weights_gib(model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Memory that "model loading" takes on one GPU of pipeline stage ``stage``, in GiB.

    ``model`` as loaded (``planner.engines.as_loaded``). Multi-token-prediction layers count when speculation is on.
    """
    linears = rank_linears(model, resolved, stage=stage)
    total = weights_bytes(model, resolved, stage=stage)
    total += allocator_waste_bytes(linears)
    total += mxfp4_padding_bytes(model, linears, gpu, resolved)
    total += absorbed_mla_bytes(model, resolved, stage=stage)
    total += rope_cache_bytes(model)
    if resolved.speculative_tokens and stage == resolved.pp - 1:
        total += _mtp_bytes(model, resolved)
    return total / GIB


def allocator_waste_bytes(linears: list[RankLinear]) -> float:
    """Bytes that the allocator adds to the tensors of ``linears``; q, k and v are one tensor, experts are stacked."""
    sizes: dict[tuple[int, str], float] = defaultdict(float)
    counts: dict[tuple[int, str], int] = {}
    for linear in linears:
        key = (linear.group, _MERGED.get(linear.role, linear.role))
        stacked = linear.copies if linear.role in _STACKED else 1
        sizes[key] += linear.n * linear.k * stacked * linear.bits / 8
        counts[key] = linear.layers * (1 if linear.role in _STACKED else linear.copies)
    return sum(counts[key] * _waste(size) for key, size in sizes.items())


def _waste(size: float) -> float:
    if size < _LARGE_TENSOR:
        return 0.0
    remainder = -math.ceil(size) % _SEGMENT
    return float(remainder) if remainder <= _UNSPLIT else 0.0


def mxfp4_padding_bytes(model: ModelSpec, linears: list[RankLinear], gpu: GpuSpec, resolved: ResolvedSettings) -> float:
    """Difference in bytes between mxfp4 experts as the kernels of this GPU pad them and as ``linears`` states them.

    vLLM: Marlin pads the inner width to 128 and the hidden size to 256; Hopper's Triton layout pads the contraction to
    256 (4-bit values only) and, since 0.17, the outputs to 128, in 0.24 to 64 (``oracle/mxfp4.py``); data-centre
    Blackwell pads both to 256. TensorRT-LLM pads both to 128. gpt-oss-120b: 64.38 GiB on an H100 with Triton's experts
    (0.16) and 64.67 on an H200 (0.24), 65.97 with Marlin's (vllm-project/vllm#23278), 17.22 on each of four A100, 63.32
    in TensorRT-LLM.
    """
    inner_tp = max(1, resolved.tp * resolved.dp // resolved.ep)
    total = 0.0
    for linear in linears:
        ffn = model.groups[linear.group].ffn if linear.group >= 0 else None
        if linear.precision != "mxfp4" or linear.role not in _STACKED or ffn is None:
            continue
        inner = math.ceil(ffn.expert_intermediate / inner_tp)
        gated = (2 if ffn.gated else 1) if linear.role == "expert_gate_up" else 1
        n, k = (inner, model.hidden) if linear.role == "expert_gate_up" else (model.hidden, inner)
        bits = _mxfp4_bits(n, k, linear, gpu, resolved) * gated
        total += (bits - linear.n * linear.k * linear.bits) / 8 * linear.copies * linear.layers
    return total


def _mxfp4_bits(n: int, k: int, linear: RankLinear, gpu: GpuSpec, resolved: ResolvedSettings) -> float:
    """Bits of one n x k expert matrix as padded; scales are one byte for 32 values."""
    capability = gt.effective_capability(gpu)
    scale_bits = n * k * (linear.bits - 4.0)
    if resolved.engine is not EngineName.VLLM:
        return _up(n, 128) * _up(k, 128) * linear.bits
    if 9.0 <= capability < 10.0 and (resolved.moe_backend or "").lower() != MARLIN:
        unit = 64 if at_least(resolved.version, "0.24.0") else 128
        rows = _up(n, unit) if at_least(resolved.version, "0.17.0") else n
        return rows * _up(k, 256) * 4.0 + scale_bits
    if 10.0 <= capability < 12.0:
        return _up(n, 256) * _up(k, 256) * linear.bits
    units = (128, 256) if linear.role == "expert_gate_up" else (256, 128)
    return _up(n, units[0]) * _up(k, units[1]) * linear.bits


def _up(value: float, unit: int) -> float:
    return math.ceil(value / unit) * unit


def absorbed_mla_bytes(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Bytes of the copies of the latent's up-projection that both engines keep for decoding, on one rank.

    Now the up-projection itself, in 16 bits. vLLM 0.7 multiplied it out with its neighbours (``W_Q_UK``, ``W_UV_O``,
    ``W_QR`` of ``attention/backends/mla/utils.py``), in fp8 where the weights are: DeepSeek-V2-Lite at TP8 logged 3.97
    GiB, with these 3.96.
    """
    multiplied = resolved.engine is EngineName.VLLM and at_least(resolved.version, "0.7.1")
    multiplied = multiplied and not at_least(resolved.version, "0.8.0")
    total = 0.0
    for index, layers in stage_groups(model, resolved.pp, stage).items():
        mixer = model.groups[index].mixer
        if not isinstance(mixer, Mla):
            continue
        if multiplied:
            queries = mixer.q_lora_rank or model.hidden
            size = 1 if resolved.precision in ("fp8", "fp8_block") else 2
            per_head = mixer.kv_lora_rank * (queries + model.hidden) * size + mixer.qk_rope_head_dim * queries * 2
        else:
            per_head = mixer.kv_lora_rank * (mixer.qk_nope_head_dim + mixer.v_head_dim) * 2
        total += layers * mixer.heads / resolved.tp * per_head
    return total


def _mtp_bytes(model: ModelSpec, resolved: ResolvedSettings) -> float:
    """Weights of the multi-token-prediction layers, divided by TP."""
    bits = model.quantization.weight_bits + model.quantization.scale_bits_per_weight
    plain = 8.0 * _DTYPE_BYTES[model.dtype]
    total = sum(
        group.count * linear.params * (bits if linear.quantised else plain)
        for group in model.mtp_groups
        for linear in group.linears
    )
    return total / 8 / resolved.tp

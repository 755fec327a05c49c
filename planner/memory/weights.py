"""Weights as they lie on one GPU: the tensors, what the allocator rounds them to, and the position tables.

PyTorch's caching allocator takes segments in multiples of 2 MiB for tensors of 10 MiB and more, and leaves a remainder
of up to 1 MiB attached to the tensor (``CUDACachingAllocator.cpp``). For Qwen2.5-7B that is 2 MiB a layer.
"""

from __future__ import annotations

import math
from collections import defaultdict

from planner.engines.types import ResolvedSettings
from planner.models.sharding import RankLinear, rank_linears, stage_groups, weights_bytes
from planner.models.spec import Attention, Mla, ModelSpec
from planner.units import GIB, MIB

_LARGE_TENSOR = 10 * MIB
_SEGMENT = 2 * MIB
_UNSPLIT = MIB
_MERGED = {"q": "qkv", "kv": "qkv"}
_STACKED = ("expert_gate_up", "expert_down")
_DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def loaded_weights_gib(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Memory that "model loading" takes on one GPU of pipeline stage ``stage``, in GiB.

    ``model`` as loaded (``planner.engines.as_loaded``). Multi-token-prediction layers count when speculation is on.
    """
    total = weights_bytes(model, resolved, stage=stage)
    total += allocator_waste_bytes(rank_linears(model, resolved, stage=stage))
    total += rotary_bytes(model, resolved, stage=stage)
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


def rotary_bytes(model: ModelSpec, resolved: ResolvedSettings, *, stage: int) -> float:
    """Bytes of the cos/sin tables, one for each distinct (kind of attention, rotary width), shared by the layers."""
    widths = set()
    partial = _partial_rotary_factor(model)
    for index in stage_groups(model, resolved.pp, stage):
        mixer = model.groups[index].mixer
        if isinstance(mixer, Mla):
            widths.add(("full", mixer.qk_rope_head_dim))
        elif isinstance(mixer, Attention) and mixer.kind in ("full", "sliding", "chunked"):
            widths.add((mixer.kind if mixer.kind == "sliding" else "full", int(mixer.head_dim * partial)))
    return sum(model.max_position * width * _DTYPE_BYTES[model.dtype] for _, width in widths)


def _partial_rotary_factor(model: ModelSpec) -> float:
    language = model.config.get("text_config", model.config)
    for source in (language, language.get("rope_parameters") or {}):
        factor = source.get("partial_rotary_factor")
        if isinstance(factor, int | float) and 0 < factor <= 1:
            return float(factor)
    return 1.0


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

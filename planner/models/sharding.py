"""Weights and GEMM shapes of one GPU under tensor, pipeline, expert and data parallelism.

Rules, as vLLM and TensorRT-LLM lay weights out:

* TP divides output features of column-parallel and input features of row-parallel matrices. K/V heads are divided by
  min(TP, heads) and replicated beyond. Vocabulary rows are padded to a multiple of 64, then divided.
* Routers, norms, MLA down-projections and small extra parts are on every rank.
* EP divides whole experts over ``ep`` ranks; without it each expert is divided by TP. With attention DP (``dp`` > 1) an
  expert group spans dp x tp ranks; attention is divided by ``tp`` alone.
* PP gives each stage whole layers. What does not divide goes to the middle and later stages, never the last
  (vLLM ``get_pp_indices``). The first stage holds the embedding, the last one norm and head; a tied embedding is on
  both.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

from planner.errors import InputError
from planner.models.quantization import STORED_BITS
from planner.models.spec import Ffn, LayerGroup, Linear, ModelSpec, Shard

VOCAB_PADDING = 64

DTYPE_BITS = {"bf16": 16.0, "fp16": 16.0, "fp32": 32.0}


class Parallelism(Protocol):
    """What sharding needs to know; ``EngineSettings`` and ``ResolvedSettings`` both have it."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def dp(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Parallel:
    """A plain ``Parallelism``."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1


@dataclass(frozen=True, slots=True)
class RankLinear:
    """A weight matrix as one GPU holds it: ``copies`` of n x k in each of ``layers`` layers, ``bits`` per weight."""

    role: str
    n: int
    k: int
    copies: int
    layers: int
    bits: float
    bias: bool
    precision: str  # of the stored weights: bf16, fp16, fp32, fp8, fp8_block, int8, int4, fp4, mxfp4
    group: int = -1  # index into ModelSpec.groups; -1 outside the layers

    @property
    def bytes(self) -> float:
        """Bytes on this GPU over all layers and copies; the bias of a narrow matrix is 16-bit."""
        bias_bits = max(self.bits, 16.0) * self.n if self.bias else 0.0
        return self.layers * self.copies * (self.n * self.k * self.bits + bias_bits) / 8


def linear_precision(spec: ModelSpec, linear: Linear) -> str:
    """Precision in which ``linear`` is stored."""
    if not linear.quantised:
        return spec.dtype
    return linear.precision or spec.quantization.precision


def linear_bits(spec: ModelSpec, linear: Linear) -> float:
    """Bits of one stored weight of ``linear``, scales included."""
    if not linear.quantised:
        return DTYPE_BITS[spec.dtype]
    quantization = spec.quantization
    if linear.precision and linear.precision != quantization.precision:
        return dict(quantization.per_role_bits).get(linear.precision, STORED_BITS[linear.precision])
    return quantization.weight_bits + quantization.scale_bits_per_weight


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Number of layers of each pipeline stage, vLLM's rule.

    ``layers // pp`` each; a remainder r goes one layer each to the stages before the last (the last r stages but one),
    because the last stage also has the head. Raises InputError when there are fewer layers than stages.

    >>> stage_layers(61, 4)
    (15, 15, 16, 15)
    """
    if pp < 1 or pp > layers:
        raise InputError(f"must lie in 1..{layers}, the number of layers", field="pp", value=pp)
    counts = [layers // pp] * pp
    for offset in range(layers % pp):
        counts[-2 - offset] += 1
    return tuple(counts)


def stage_groups(spec: ModelSpec, pp: int, stage: int) -> dict[int, int]:
    """Layers of each group (index into ``spec.groups``) on pipeline stage ``stage``."""
    counts = stage_layers(spec.layers, pp)
    if not 0 <= stage < pp:
        raise InputError(f"must lie in 0..{pp - 1}", field="stage", value=stage)
    first = sum(counts[:stage])
    return dict(Counter(spec.layer_order[first : first + counts[stage]]))


def rank_linears(spec: ModelSpec, parallel: Parallelism, *, stage: int = 0) -> list[RankLinear]:
    """Every weight matrix on one GPU of pipeline stage ``stage``, ends of the network included.

    Raises InputError where TP or EP cannot divide the model. The vision tower is not in the list: ``weights_bytes``
    counts it.
    """
    check_parallel(spec, parallel)
    result = []
    for index, layers in sorted(stage_groups(spec, parallel.pp, stage).items()):
        group = spec.groups[index]
        result += [_on_rank(spec, linear, parallel, layers, index, group) for linear in group.linears]
    result += [_on_rank(spec, linear, parallel, 1, -1, None) for linear in _ends(spec, parallel.pp, stage)]
    return result


def weights_bytes(spec: ModelSpec, parallel: Parallelism, *, stage: int | None = None) -> float:
    """Bytes of weights on one GPU: of pipeline stage ``stage``, or of the fullest stage when it is None.

    The image tower counts on the first stage, divided by TP. What an engine derives from the weights (kernel padding,
    absorbed projections, rotary tables: ``rope_cache_bytes``) is not in it; ``planner.memory`` adds it by version.
    """
    stages = range(parallel.pp) if stage is None else (stage,)
    largest = 0.0
    for current in stages:
        total = sum(linear.bytes for linear in rank_linears(spec, parallel, stage=current))
        if current == 0 and spec.vision is not None:
            total += spec.vision.params * DTYPE_BITS[spec.dtype] / 8 / parallel.tp
        largest = max(largest, total)
    return largest


def rope_cache_bytes(spec: ModelSpec) -> float:
    """Bytes of rotary tables on every GPU; engines log them with the weights."""
    return spec.rope_cache_elements * DTYPE_BITS[spec.dtype] / 8


def total_weights_bytes(spec: ModelSpec) -> float:
    """Bytes of the whole model on one GPU: the checkpoint as loaded."""
    return weights_bytes(spec, Parallel())


def active_params(spec: ModelSpec) -> int:
    """Parameters that one token passes: routed experts count ``experts_per_token`` of them, the embedding table not."""
    total = 0
    for group in spec.groups:
        for linear in group.linears:
            share = linear.params
            if linear.shard is Shard.EXPERT and group.ffn is not None and group.ffn.experts:
                share = share * group.ffn.experts_per_token // group.ffn.experts
            total += group.count * share
    head = spec.lm_head.params if spec.lm_head is not None else 0
    return total + head + sum(linear.params for linear in spec.extra_linears)


def check_parallel(spec: ModelSpec, parallel: Parallelism) -> None:
    """Raise InputError when the model cannot be divided so: heads by TP, experts by EP, layers by PP."""
    for name in ("tp", "pp", "ep", "dp"):
        value = getattr(parallel, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError("must be a positive integer", field=name, value=value)
    stage_layers(spec.layers, parallel.pp)
    for group in spec.groups:
        heads = getattr(group.mixer, "heads", 0)
        if heads and heads % parallel.tp:
            raise InputError(
                f"must divide the model's {heads} attention heads",
                field="tp",
                value=parallel.tp,
                remedy=_divisors(heads),
            )
        if group.ffn is not None:
            _check_widths(group.ffn, parallel)
        kv = getattr(group.mixer, "kv_heads", 0)
        if kv and kv % parallel.tp and parallel.tp % kv:
            raise InputError(f"must divide {kv} KV heads, or be a multiple of them", field="tp", value=parallel.tp)
    if parallel.ep > 1:
        experts = {group.ffn.experts for group in spec.groups if group.ffn is not None and group.ffn.experts}
        if not experts:
            raise InputError("the model has no experts", field="ep", value=parallel.ep, remedy="Use ep = 1.")
        if parallel.ep > parallel.tp * parallel.dp:
            raise InputError("must not exceed tp x dp", field="ep", value=parallel.ep)
        if (parallel.tp * parallel.dp) % parallel.ep:
            raise InputError("must divide tp x dp", field="ep", value=parallel.ep)


def _check_widths(ffn: Ffn, parallel: Parallelism) -> None:
    widths = [(ffn.intermediate, parallel.tp), (ffn.shared_intermediate, parallel.tp)]
    if ffn.experts and parallel.tp * parallel.dp % parallel.ep == 0:
        widths.append((ffn.expert_intermediate, parallel.tp * parallel.dp // parallel.ep))
    for width, parts in widths:
        if width % parts:
            raise InputError(
                f"does not divide the feed-forward width of {width} by {parts}", field="tp", value=parallel.tp
            )


def _divisors(heads: int) -> str:
    powers = [str(size) for size in (1, 2, 4, 8, 16, 32) if heads % size == 0]
    return f"Use one of: {', '.join(powers)}."


def _ends(spec: ModelSpec, pp: int, stage: int) -> list[Linear]:
    """Weights outside the layers on ``stage``."""
    ends: list[Linear] = []
    first, last = stage == 0, stage == pp - 1
    if first:
        ends.append(spec.embedding)
        ends += [linear for linear in spec.extra_linears if linear.role == "embed"]
    if last:
        ends += [linear for linear in spec.extra_linears if linear.role != "embed"]
        if spec.lm_head is not None:
            if not spec.tied_embeddings:
                ends.append(spec.lm_head)
            elif not first:
                ends.append(replace(spec.embedding, role="lm_head"))
    return ends


def _on_rank(
    spec: ModelSpec, linear: Linear, parallel: Parallelism, layers: int, index: int, group: LayerGroup | None
) -> RankLinear:
    n, k, copies = linear.n, linear.k, linear.copies
    tp = parallel.tp
    if linear.shard is Shard.COLUMN:
        n = math.ceil(n / tp)
    elif linear.shard is Shard.ROW:
        k = math.ceil(k / tp)
    elif linear.shard is Shard.KV_COLUMN:
        kv = getattr(group.mixer, "kv_heads", tp) if group is not None else tp
        n = math.ceil(n / min(tp, kv))
    elif linear.shard is Shard.VOCAB:
        padded = math.ceil(n / VOCAB_PADDING) * VOCAB_PADDING
        n = math.ceil(padded / tp)
    elif linear.shard is Shard.EXPERT:
        n, k, copies = _expert_share(linear, parallel)
    return RankLinear(
        linear.role,
        n,
        k,
        copies,
        layers,
        linear_bits(spec, linear),
        linear.bias,
        linear_precision(spec, linear),
        index,
    )


def _expert_share(linear: Linear, parallel: Parallelism) -> tuple[int, int, int]:
    """(n, k, copies) of the experts on one rank: whole ones over EP, what is left of tp x dp divides each expert."""
    copies = math.ceil(linear.copies / parallel.ep)
    inner = parallel.tp * parallel.dp // parallel.ep
    if linear.role == "expert_down":
        return linear.n, math.ceil(linear.k / inner), copies
    return math.ceil(linear.n / inner), linear.k, copies

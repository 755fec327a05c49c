"""What one rank computes in a step: operators with shapes, taken from a ModelSpec and the parallelism.

The list is independent of where times come from; ``silicon`` and ``roofline`` both time it. Widths are per GPU,
``count`` is how often the operator runs in one forward pass of the whole pipeline (PP stages run in sequence, so
layers are not divided).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from planner.catalog.types import GpuSpec
from planner.engines.precision import as_loaded, computes_natively
from planner.engines.types import EngineName, ResolvedSettings
from planner.models.sharding import VOCAB_PADDING, Parallel, RankLinear, linear_bits, linear_precision, rank_linears
from planner.models.spec import Attention, Ffn, LayerGroup, Mla, ModelSpec, RecurrentState
from planner.steptime.adapters import AdapterOp
from planner.steptime.kernel_versions import all_reduce_factor, decode_factor, shared_experts_beside, travels_to_experts


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a GEMM's weight is stored and multiplied. ``compute`` is the planner's precision word of the arithmetic."""

    stored: str  # bf16, fp16, fp32, fp8, fp8_block, int8, int4, fp4, mxfp4
    bits: float  # per stored weight, scales included
    compute: str  # bf16, fp16, fp32, fp8, int8, fp4


@dataclass(frozen=True, slots=True)
class GemmOp:
    """``count`` GEMMs of (rows x k) @ (k x n)."""

    name: str
    n: int
    k: int
    weight: WeightFormat
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """Softmax attention of one rank. ``window`` None: every key is seen.

    ``decode_factor`` time of this engine version's decode kernel over that of the versions that were measured.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None
    qk_norm: bool
    kv_dtype: str
    causal: bool = True
    decode_factor: float = 1.0
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class MlaOp:
    """Multi-head latent attention of one rank; ``topk`` caps the keys a token attends to (sparse attention).

    ``projections`` run inside it (measured modules hold them), so they are not among the token operators.
    """

    heads: int
    native_heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    topk: int | None
    kv_dtype: str
    weight: WeightFormat
    projections: tuple[GemmOp, ...] = ()
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class StateOp:
    """A recurrent mixer's kernels (without its projections). Elements per sequence and layer on this rank."""

    kind: str
    heads: int
    head_dim: int
    hidden: int
    conv_elements: float
    state_elements: float
    state_bytes: int
    conv_bytes: int
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class MoeOp:
    """Routed experts of one layer over an expert group of ``tp`` x ``ep`` ranks fed by ``dp`` attention ranks.

    ``kernel`` the engine's word for the kernel asked for; empty: its own choice. ``even`` tokens reach every expert
    alike.
    """

    hidden: int
    intermediate: int
    topk: int
    experts: int
    gated: bool
    tp: int
    ep: int
    dp: int
    weight: WeightFormat
    kernel: str = ""
    even: bool = False
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class ElementwiseOp:
    """Memory-bound glue: ``values`` 16-bit elements read and written per token."""

    values: int
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class AllReduceOp:
    """All-reduce of ``hidden`` 16-bit elements per token over ``gpus`` ranks.

    ``factor`` time of this engine version's kernels over those of the versions that were measured.
    """

    hidden: int
    gpus: int
    factor: float = 1.0
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class TransferOp:
    """Moves ``values`` 16-bit elements per token to other ranks: pipeline hand-over, logits gather, expert dispatch.

    ``gpus`` of the group; for a hand-over those of the whole instance, which say whether it leaves the node.
    """

    kind: Literal["p2p", "gather", "all_to_all"]
    values: float
    gpus: int
    count: float = 1.0


Mixer = AttentionOp | MlaOp | StateOp
TokenOp = GemmOp | MoeOp | ElementwiseOp | AllReduceOp | TransferOp | AdapterOp


@dataclass(frozen=True)
class RankGraph:
    """Operators of one rank: ``tokens`` run on every token of the step, ``head`` on one row per sequence, ``mixers``
    see KV. ``beside`` are those of the tokens' that run while routed experts do in steps of ``beside_up_to`` tokens.
    """

    tokens: tuple[TokenOp, ...]
    head: tuple[TokenOp, ...]
    mixers: tuple[Mixer, ...]
    layers: int
    beside: tuple[TokenOp, ...] = ()
    beside_up_to: int = 0


_COMPUTE = {"fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "fp4": "fp4", "mxfp4": "fp8"}
_EXPERT_ROLES = {"expert_gate_up", "expert_down"}
_INDEXER = "self_attn.indexer."
_LATENT_ROLES = {"mla_q_a", "mla_kv_a", "mla_q_b", "q", "o"}
_LORA_TARGETS = {"qkv", "o", "gate_up", "down", "shared_gate_up", "shared_down"}
_MERGED = {"qkv": 3, "gate_up": 2, "shared_gate_up": 2}  # matrices of one GEMM
_NARROWED = {"fp8_block", "fp4"}
"""Formats whose activations vLLM scales by block in front of each GEMM; the rows hold the GEMM alone. Llama-3.1-70B in
NVFP4 on one B200 decodes 1.7 ms slower than its GEMM rows, 5 us for each of 320."""
_SHARED_EXPERTS = {"shared_gate_up", "shared_down"}
_NO_GEMM = {"norm", "conv", "embed"} | _EXPERT_ROLES
_FUSED = {
    "q": "qkv",
    "kv": "qkv",
    "gate_up": "gate_up",
    "shared_gate_up": "shared_gate_up",
    "mla_q_a": "mla_a",
    "mla_kv_a": "mla_a",
}


class _Builder:
    """Collects the operators of one rank; equal ones are merged by adding up their counts."""

    def __init__(self, model: ModelSpec, resolved: ResolvedSettings, gpu: GpuSpec) -> None:
        self.model = model
        self.gpu = gpu
        self.resolved = resolved
        self.tp = resolved.tp
        self.tokens: Counter[TokenOp] = Counter()
        self.beside: Counter[TokenOp] = Counter()
        self.beside_up_to = 0
        self.mixers: Counter[Mixer] = Counter()

    def add(self, op: TokenOp, count: float, beside: bool = False) -> None:
        self.tokens[op] += count  # type: ignore[assignment]
        if beside:
            self.beside[op] += count  # type: ignore[assignment]

    def weight(self, stored: str, bits: float) -> WeightFormat:
        """Format of a stored precision as this engine multiplies it."""
        model = self.model
        if stored in ("bf16", "fp16", "fp32"):
            return WeightFormat(stored, bits, stored)
        wide = "fp16" if model.dtype == "fp16" else "bf16"
        quantization = model.quantization
        if stored == "mxfp4":  # states no activation format: where the GPU multiplies it, activations are MXFP8
            narrow = not self.resolved.weight_only
        elif stored != quantization.precision:  # the other format of a mixed checkpoint
            narrow = computes_natively(stored, self.gpu)
        else:
            narrow = not self.resolved.weight_only and quantization.activation_bits < 16
        return WeightFormat(stored, bits, _COMPUTE.get(stored, wide) if narrow else wide)

    def group(self, group: LayerGroup, linears: list[RankLinear]) -> None:
        count = group.count
        mixer = self.mixer(group, linears)
        if mixer is not None:
            self.mixers[mixer] += count
        for op in self.gemms(group, linears, inside=False):
            shared = op.name in _SHARED_EXPERTS
            self.add(replace(op, count=1.0), op.count * count, shared)
            if self.narrows_inputs(op):
                self.add(ElementwiseOp(values=op.k), op.count * count, shared)
            if self.resolved.max_loras and op.name in _LORA_TARGETS:
                self.add(self.adapters(op), op.count * count)
        blocks = (group.mixer is not None) + (group.ffn is not None)
        self.add(ElementwiseOp(values=4 * self.model.hidden), blocks * count)
        if self.tp > 1:
            self.add(self.all_reduce(self.model.hidden), blocks * count)
        if isinstance(group.mixer, Attention) and any(x.module.endswith(".q_norm") for x in group.linears):
            self.norm_over_all_heads(group.mixer, count)
        if group.ffn is not None:
            self.ffn(group, group.ffn, linears)

    def adapters(self, op: GemmOp) -> AdapterOp:
        merged = _MERGED.get(op.name, 1)
        return AdapterOp(op.k, op.n, merged, self.resolved.max_lora_rank, self.resolved.max_loras)

    def all_reduce(self, elements: int) -> AllReduceOp:
        return AllReduceOp(elements, self.tp, all_reduce_factor(self.resolved))

    def narrows_inputs(self, op: GemmOp) -> bool:
        """Whether a kernel of its own narrows the GEMM's activations."""
        narrow = op.weight.stored in _NARROWED and op.weight.compute in ("fp8", "fp4")
        return narrow and self.resolved.engine is EngineName.VLLM

    def norm_over_all_heads(self, attention: Attention, count: int) -> None:
        """Q and K normalised over all heads, which TP divides: their squares are summed over the ranks in between.

        vLLM ``MiniMaxText01RMSNormTP``: squares of Q and K, one all-reduce of two FP32 values a token, the scaling.
        """
        width = ceil((attention.heads + attention.kv_heads) * attention.head_dim / self.tp)
        self.add(ElementwiseOp(values=width), 2 * count)
        if self.tp > 1:
            self.add(self.all_reduce(4), count)

    def ffn(self, group: LayerGroup, ffn: Ffn, linears: list[RankLinear]) -> None:
        width = ffn.shared_intermediate if ffn.experts else ffn.intermediate
        if width:
            values = (3 if ffn.gated else 2) * ceil(width / self.tp)
            self.add(ElementwiseOp(values=values), group.count, ffn.experts > 0)
        expert = next((x for x in linears if x.role == "expert_gate_up"), None)
        if not ffn.experts or expert is None:
            return
        ranks = self.tp * self.resolved.dp
        ep = self.resolved.ep
        moe = MoeOp(
            hidden=expert.k,
            intermediate=ffn.expert_intermediate or ffn.intermediate,
            topk=ffn.experts_per_token,
            experts=ffn.experts,
            gated=ffn.gated,
            tp=max(1, ranks // ep),
            ep=ep,
            dp=self.resolved.dp,
            weight=self.weight(expert.precision, expert.bits),
            kernel=(self.resolved.moe_backend or "").lower(),
            even=self.resolved.even_expert_routing,
        )
        self.add(moe, group.count)
        widened = moe.weight.stored not in ("bf16", "fp16") and moe.weight.compute in ("bf16", "fp16")
        self.beside_up_to = shared_experts_beside(self.resolved, self.gpu, widened)
        if self.resolved.dp > 1:
            # With whole experts per rank a token travels to the ranks of its experts, where the engine sends it there;
            # else every rank gets every token.
            copies = ranks  # its own among them, which never leaves
            if ep > 1 and travels_to_experts(self.resolved):
                copies = min(ffn.experts_per_token, ep)
            self.add(TransferOp("all_to_all", float(expert.k * copies), ranks), 2 * group.count)

    def mixer(self, group: LayerGroup, linears: list[RankLinear]) -> Mixer | None:
        tp, spec, kv_dtype = self.tp, group.mixer, self.resolved.kv_cache_dtype
        if isinstance(spec, Attention):
            return AttentionOp(
                heads=ceil(spec.heads / tp),
                kv_heads=ceil(spec.kv_heads / tp),
                head_dim=spec.head_dim,
                v_head_dim=spec.v_head_dim,
                window=spec.window if spec.kind in ("sliding", "chunked") else None,
                qk_norm=spec.qk_norm,
                kv_dtype=kv_dtype,
                causal=spec.kind != "encoder",
                decode_factor=decode_factor(self.resolved, spec),
            )
        if isinstance(spec, Mla):
            out = next((x for x in linears if x.role == "o"), None)
            return MlaOp(
                heads=ceil(spec.heads / tp),
                native_heads=spec.heads,
                kv_lora_rank=spec.kv_lora_rank,
                rope_dim=spec.qk_rope_head_dim,
                nope_dim=spec.qk_nope_head_dim,
                v_head_dim=spec.v_head_dim,
                topk=spec.index_topk,
                kv_dtype=kv_dtype,
                weight=self.weight(out.precision, out.bits) if out else WeightFormat("bf16", 16.0, "bf16"),
                projections=tuple(self.gemms(group, linears, inside=True)),
            )
        if isinstance(spec, RecurrentState):
            return StateOp(
                kind=spec.kind,
                heads=ceil(spec.heads / tp),
                head_dim=spec.head_dim,
                hidden=self.model.hidden,
                conv_elements=spec.conv_elements / tp,
                state_elements=spec.state_elements / tp,
                state_bytes=spec.state_dtype_bytes,
                conv_bytes=spec.conv_dtype_bytes,
            )
        return None

    def gemms(self, group: LayerGroup, linears: list[RankLinear], *, inside: bool) -> list[GemmOp]:
        """GEMMs of one layer as the engines launch them: q, k, v as one, gate and up as one; without experts, norms.

        ``inside``: those that a latent attention module holds, a sparse one's indexer included, else all others.
        """
        latent = isinstance(group.mixer, Mla)
        indexer = {(x.role, x.n, x.k) for x in group.linears if x.module.startswith(_INDEXER)}
        fused: dict[tuple[str, int, WeightFormat], int] = {}
        ops: list[GemmOp] = []
        for linear in linears:
            if linear.k <= 1 or linear.role in _NO_GEMM:
                continue
            held = latent and (linear.role in _LATENT_ROLES or (linear.role, linear.n, linear.k) in indexer)
            if linear.role == "mla_kv_b" or held != inside:
                continue  # kv_b is absorbed into the attention itself
            weight = self.weight(linear.precision, linear.bits)
            name = _FUSED.get(linear.role)
            if name is None:
                ops.append(GemmOp(linear.role, linear.n, linear.k, weight, float(linear.copies)))
            else:
                key = (name, linear.k, weight)
                fused[key] = fused.get(key, 0) + linear.n * linear.copies
        return [GemmOp(name, n, k, weight) for (name, k, weight), n in fused.items()] + ops


def build_graph(model: ModelSpec, resolved: ResolvedSettings, gpu: GpuSpec) -> RankGraph:
    """Operators of one rank of ``model`` on ``gpu`` under ``resolved``'s precision and parallelism.

    One instance of ``tp`` x ``pp`` GPUs, one of ``dp`` such attention ranks that share the experts. Raises InputError
    where the model cannot be divided so.
    """
    model = as_loaded(model, resolved)
    builder = _Builder(model, resolved, gpu)
    by_group: dict[int, list[RankLinear]] = {}
    for linear in rank_linears(model, Parallel(resolved.tp, 1, resolved.ep, resolved.dp)):
        by_group.setdefault(linear.group, []).append(linear)
    for index, group in enumerate(model.groups):
        builder.group(group, by_group.get(index, []))
    builder.add(ElementwiseOp(values=2 * model.hidden), 1)  # embedding rows
    if resolved.tp > 1:
        builder.add(builder.all_reduce(model.hidden), 1)
    if resolved.pp > 1:
        builder.add(TransferOp("p2p", float(2 * model.hidden), resolved.tp * resolved.pp), resolved.pp - 1)
    return RankGraph(
        tokens=tuple(replace(op, count=float(count)) for op, count in builder.tokens.items()),
        head=tuple(_head(builder)),
        mixers=tuple(replace(op, count=float(count)) for op, count in builder.mixers.items()),
        layers=model.layers,
        beside=tuple(replace(op, count=float(count)) for op, count in builder.beside.items()),
        beside_up_to=builder.beside_up_to,
    )


def _head(builder: _Builder) -> list[TokenOp]:
    model, tp = builder.model, builder.tp
    head = model.lm_head
    if head is None:
        return []
    rows = ceil(ceil(head.n / VOCAB_PADDING) * VOCAB_PADDING / tp)
    weight = builder.weight(linear_precision(model, head), linear_bits(model, head))
    ops: list[TokenOp] = [GemmOp("lm_head", rows, head.k, weight)]
    if tp > 1:
        ops.append(TransferOp("gather", float(head.n), tp))
    return ops

"""Samples operator times on sparse grids and adds them up to StepTables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.catalog.types import GpuSpec
from planner.evidence import Evidence, weakest
from planner.steptime.adapters import AdapterOp
from planner.steptime.clock import slowdown
from planner.steptime.graph import (
    AllReduceOp,
    AttentionOp,
    ElementwiseOp,
    GemmOp,
    MlaOp,
    MoeOp,
    RankGraph,
    StateOp,
    TokenOp,
    TransferOp,
)
from planner.steptime.roofline import peak_flops_per_ms
from planner.steptime.sources import F64, OperatorSource, Timed


def _axis(*values: float) -> F64:
    return np.array(values, dtype=np.float64)


# Nodes sit where the operator tables have theirs, so that linear interpolation between them loses next to nothing.
TOKENS = _axis(
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768,
    1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768,
)  # fmt: skip
SEQUENCES = _axis(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PREFILL_TOKENS = _axis(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PREFILL_CONTEXT = _axis(32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
DECODE_BATCH = _axis(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
DECODE_KV = _axis(16, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576)

_FAMILIES: dict[type, str] = {
    GemmOp: "gemm",
    MoeOp: "moe",
    AllReduceOp: "all_reduce",
    TransferOp: "transfer",
    ElementwiseOp: "glue",
    AttentionOp: "attention",
    MlaOp: "mla",
    StateOp: "state",
    AdapterOp: "adapters",
}
_SHARE_THAT_COUNTS = 0.1
_FORMULAS = {"glue", "transfer"}  # never tabulated: bytes over bandwidth plus a floor, checked on whole steps
_REFERENCE_BATCH, _REFERENCE_KV, _REFERENCE_PROMPT = 32.0, 2048.0, 2048.0


@dataclass(frozen=True, eq=False)
class Sampled:
    """Kernel times of a graph, without host time: the arrays of StepTables and how they are known."""

    shared_ms: F64
    head_ms: F64
    prefill_ms: F64
    decode_ms: F64
    max_decode_kv: F64
    experts_ms: F64
    operators: dict[str, Evidence]
    evidence: Evidence
    notes: tuple[str, ...]


def sample(graph: RankGraph, source: OperatorSource, gpu: GpuSpec) -> Sampled:
    """Time every operator of ``graph`` on the grids and add up.

    The evidence is the weakest among the operator families that make up a tenth or more of a decode step (32 sequences
    of 2048 tokens) or of a prefill step (one prompt of 2048).
    """
    shared, experts = np.zeros_like(TOKENS), np.zeros_like(TOKENS)
    head = np.zeros_like(SEQUENCES)
    prefill = np.zeros((PREFILL_TOKENS.size, PREFILL_CONTEXT.size))
    decode = np.zeros((DECODE_BATCH.size, DECODE_KV.size))
    in_range = np.full(DECODE_BATCH.size, np.inf)
    evidences: dict[str, list[Evidence]] = {}
    decode_share: dict[str, float] = {}
    prefill_share: dict[str, float] = {}
    notes: dict[str, None] = {}

    def note(op: object, timed: Timed, at_decode: float, at_prefill: float) -> None:
        family = _FAMILIES[type(op)]
        evidences.setdefault(family, []).append(timed.evidence)
        decode_share[family] = decode_share.get(family, 0.0) + at_decode
        prefill_share[family] = prefill_share.get(family, 0.0) + at_prefill
        notes.update(dict.fromkeys(timed.notes))

    at_batch = int(np.searchsorted(TOKENS, _REFERENCE_BATCH))
    at_prompt = int(np.searchsorted(TOKENS, _REFERENCE_PROMPT))
    for op in graph.tokens:
        timed = source.rows(op, TOKENS)
        ms = timed.ms * _sustained(op, timed, gpu)
        shared += ms
        if isinstance(op, MoeOp) or (isinstance(op, TransferOp) and op.kind == "all_to_all"):
            experts += ms
        note(op, timed, timed.ms[at_batch], timed.ms[at_prompt])
    shared -= _hidden_beside(graph, source, gpu, experts)
    at_sequences = int(np.searchsorted(SEQUENCES, _REFERENCE_BATCH))
    for op in graph.head:
        timed = source.rows(op, SEQUENCES)
        head += timed.ms
        note(op, timed, timed.ms[at_sequences], timed.ms[0])
    row, column = int(np.searchsorted(DECODE_BATCH, _REFERENCE_BATCH)), int(np.searchsorted(DECODE_KV, _REFERENCE_KV))
    new = int(np.searchsorted(PREFILL_TOKENS, _REFERENCE_PROMPT))
    keys = int(np.searchsorted(PREFILL_CONTEXT, _REFERENCE_PROMPT / 2))
    for mixer in graph.mixers:
        on_prompt = source.prefill(mixer, PREFILL_TOKENS, PREFILL_CONTEXT)
        prefill += on_prompt.ms * _sustained_prefill(on_prompt, gpu)
        note(mixer, on_prompt, 0.0, on_prompt.ms[new, keys])
        on_decode = source.decode(mixer, DECODE_BATCH, DECODE_KV)
        decode += on_decode.ms
        if on_decode.in_range is not None:
            in_range = np.minimum(in_range, on_decode.in_range)
        note(mixer, on_decode, on_decode.ms[row, column], 0.0)
    operators = {family: weakest(found) for family, found in evidences.items()}
    return Sampled(
        shared_ms=shared,
        head_ms=head,
        prefill_ms=prefill,
        decode_ms=decode,
        max_decode_kv=in_range,
        experts_ms=experts,
        operators=operators,
        evidence=_overall(operators, decode_share, prefill_share),
        notes=tuple(notes),
    )


def _hidden_beside(graph: RankGraph, source: OperatorSource, gpu: GpuSpec, experts: F64) -> F64:
    """Time of the operators beside the routed experts that passes while those run, in ms at ``TOKENS``.

    Both want the memory's bandwidth, so reading the weights beside is never hidden; launch, latency and arithmetic are.
    """
    weights = sum(op.count * op.n * op.k * op.weight.bits / 8 for op in graph.beside if isinstance(op, GemmOp))
    if not weights or not gpu.mem_bw_gb_s:
        return np.zeros_like(TOKENS)
    beside = sum((source.rows(op, TOKENS).ms for op in graph.beside), np.zeros_like(TOKENS))
    hidden = np.maximum(0.0, np.minimum(beside, experts) - weights / (gpu.mem_bw_gb_s * 1e6))
    return np.where(graph.beside_up_to >= TOKENS, hidden, 0.0)


def _sustained(op: TokenOp, timed: Timed, gpu: GpuSpec) -> F64 | float:
    """Clock slowdown of a token operator. Analytic times stand for whole runs already and take none."""
    if timed.evidence is Evidence.ROOFLINE or not isinstance(op, GemmOp | MoeOp):
        return 1.0
    peak = peak_flops_per_ms(gpu, op.weight.compute)
    if peak is None:
        return 1.0
    if isinstance(op, GemmOp):
        flops = 2.0 * op.n * op.k * TOKENS
    else:
        matrices = 3 if op.gated else 2
        flops = 2.0 * matrices * op.hidden * op.intermediate / op.tp * TOKENS * op.dp * op.topk / op.ep
    return slowdown(gpu, flops * op.count / (peak * timed.ms))


def _sustained_prefill(timed: Timed, gpu: GpuSpec) -> F64 | float:
    """Clock slowdown of prefill attention: like a compute-bound GEMM once a step has 2048 tokens or more."""
    if timed.evidence is Evidence.ROOFLINE:
        return 1.0
    return slowdown(gpu, np.clip(PREFILL_TOKENS / 2048.0, 0.0, 1.0))[:, None]


def _overall(
    operators: dict[str, Evidence], decode_share: dict[str, float], prefill_share: dict[str, float]
) -> Evidence:
    counted = [Evidence.SILICON]
    for shares in (decode_share, prefill_share):
        total = sum(shares.values())
        counted += [
            operators[family]
            for family, ms in shares.items()
            if family not in _FORMULAS and total > 0 and ms >= _SHARE_THAT_COUNTS * total
        ]
    return weakest(counted)

"""Operator times from first principles: arithmetic, bytes moved, link traffic, and the shares of peak in
``efficiency``.

Covers every GPU with a data sheet, whatever its maker. Williams et al., "Roofline", CACM 52(4), 2009, per operator.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from planner.catalog.types import GpuSpec
from planner.errors import UnsupportedError
from planner.evidence import Evidence
from planner.steptime.adapters import AdapterOp, adapter_evidence, adapter_ms
from planner.steptime.efficiency import Efficiency, efficiency
from planner.steptime.graph import (
    AllReduceOp,
    AttentionOp,
    ElementwiseOp,
    GemmOp,
    Mixer,
    MlaOp,
    MoeOp,
    StateOp,
    TokenOp,
    TransferOp,
    WeightFormat,
)
from planner.steptime.sources import F64, Fabric, Timed, prefill_shape, windowed_context

PCIE_GB_S = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}  # by generation: one direction of x16, protocol overhead taken off
_WIDE = ("bf16", "fp16", "fp32")
_BF16 = WeightFormat("bf16", 16.0, "bf16")
_USUAL_NODE = 8  # GPUs of a server where the fabric does not say
_EXPERT_LOAD_CV = 2.1
"""Spread of the load of single experts: rows of many tokens with power-law routing against balanced ones (TensorRT-LLM
on H200) take 1.15, 1.4 and 1.7 times as long over 2, 4 and 8 ranks of 128 experts, 3.5 over 8 ranks of 8."""
_HAND_OVER_MS = 0.01  # start of a send between pipeline stages
_HIGHEST_SHARE = 0.95  # of the data sheet's bandwidth, by any kernel
_KV_BYTES = {"fp8": 1.0, "fp4": 0.5625, "int8": 1.0}


def peak_flops_per_ms(gpu: GpuSpec, compute: str) -> float | None:
    """Dense peak of an arithmetic in operations per millisecond; None when the data sheet lacks it.

    Without units of its own an arithmetic runs on the 16-bit ones (weights are widened first); fp32 at an eighth of
    them.
    """
    half = gpu.bf16_tflops or gpu.fp16_tflops
    rates = {"bf16": half, "fp16": gpu.fp16_tflops or gpu.bf16_tflops, "fp32": None if half is None else half / 8}
    rates |= {"fp8": gpu.fp8_tflops, "int8": gpu.int8_tops, "fp4": gpu.fp4_tflops}
    rate = rates.get(compute) or half
    return None if rate is None else rate * 1e9


def rank_imbalance(experts: int, ranks: int) -> float:
    """Tokens of the busiest of ``ranks`` expert-parallel ranks over the mean, expected; at most ``ranks``.

    A rank's load is the sum of ``experts / ranks`` expert loads, so its coefficient of variation is that of an expert
    over the root of their number; the expected largest of n normal values lies Phi^-1((n - 0.375) / (n + 0.25))
    deviations above the mean (Blom, "Statistical Estimates and Transformed Beta-Variables", 1958).
    """
    if ranks <= 1:
        return 1.0
    deviations = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return min(float(ranks), 1.0 + deviations * _EXPERT_LOAD_CV / (experts / ranks) ** 0.5)


class RooflineSource:
    """Analytic times of one rank on ``gpu`` in nodes joined by ``fabric``; evidence is ROOFLINE but for adapters."""

    def __init__(self, gpu: GpuSpec, engine: str, fabric: Fabric = Fabric()) -> None:  # noqa: B008 (frozen)
        if gpu.mem_bw_gb_s is None:
            raise UnsupportedError(
                "the memory bandwidth of this GPU is unknown, so no step time can be computed",
                field="gpu",
                value=gpu.name,
                remedy="Add its bandwidth to the GPU record.",
            )
        self.gpu = gpu
        self.engine = engine
        self.fabric = fabric
        self.node_gpus = fabric.gpus_per_node or max(_USUAL_NODE, gpu.scale_up_domain or 1)
        self.efficiency: Efficiency = efficiency(gpu, engine)
        self.bytes_per_ms = gpu.mem_bw_gb_s * 1e6

    def peak_flops_per_ms(self, compute: str) -> float:
        """See ``peak_flops_per_ms``; raises UnsupportedError where the data sheet gives no 16-bit rate."""
        rate = peak_flops_per_ms(self.gpu, compute)
        if rate is None:
            raise UnsupportedError(
                "the data sheet of this GPU gives no 16-bit arithmetic rate",
                field="gpu",
                value=self.gpu.name,
                remedy="Add bf16_tflops or fp16_tflops to the GPU record.",
            )
        return rate

    def compute_share(self, compute: str) -> float:
        """Share of peak that large GEMMs reach in this arithmetic."""
        return self.efficiency.gemm_flops.get(compute, self.efficiency.gemm_flops["bf16"])

    def rows(self, op: TokenOp, rows: F64) -> Timed:
        """See ``OperatorSource.rows``."""
        if isinstance(op, GemmOp):
            ms = self._gemm(op.n, op.k, op.weight, rows)
        elif isinstance(op, MoeOp):
            ms = self._moe(op, rows)
        elif isinstance(op, ElementwiseOp):
            ms = 2.0 * op.values * rows / (self.bytes_per_ms * self.efficiency.glue_bw) + self._launch()
        elif isinstance(op, AdapterOp):
            known, notes = adapter_evidence(self.engine, self.gpu)
            return Timed(adapter_ms(op, rows) * op.count, known, notes)
        elif isinstance(op, AllReduceOp):
            moved = 2 * (op.gpus - 1) / op.gpus * 2.0 * op.hidden * rows
            ms = self._link(moved, op.gpus) * op.factor
        else:
            ms = self._transfer(op, rows)
        return Timed(np.asarray(ms, dtype=np.float64) * op.count, Evidence.ROOFLINE)

    def prefill(self, op: Mixer, tokens: F64, context: F64) -> Timed:
        """See ``OperatorSource.prefill``."""
        new, keys = np.meshgrid(tokens, context, indexing="ij")
        if isinstance(op, AttentionOp):
            seen = np.vectorize(lambda t, c: windowed_context(t, c, op.window))(new, keys)
            ms = self._softmax_prefill(new, seen, op.heads, op.head_dim + op.v_head_dim, op)
        elif isinstance(op, MlaOp):
            seen = keys if op.topk is None else np.minimum(keys, op.topk)
            width = op.nope_dim + op.rope_dim + op.v_head_dim
            ms = self._softmax_prefill(new, seen, op.heads, width, op)
            ms = ms + self._gemm(op.heads * (op.nope_dim + op.v_head_dim), op.kv_lora_rank, _BF16, new.ravel()).reshape(
                new.shape
            )
            if op.topk is not None:
                ms = ms + self._indexer(new * keys)
            ms = ms + self._projections(op, tokens)[:, None]
        else:
            # A scan over the tokens: the state is read and written once per 64-token chunk, as the chunked kernels do.
            chunks = np.maximum(1.0, new / 64)
            moved = 2 * self._state_bytes(op) * chunks + 8.0 * new * op.heads * op.head_dim
            flops = 4.0 * new * op.state_elements
            ms = np.maximum(
                moved / (self.bytes_per_ms * self.efficiency.glue_bw),
                flops / (self.peak_flops_per_ms("bf16") * self.efficiency.prefill_flops),
            )
            ms = ms + self.efficiency.attention_us / 1e3
        # A window's mean keys fall a little where many short prompts turn into one long one; the time does not.
        ms = np.maximum.accumulate(np.maximum.accumulate(ms, axis=0), axis=1)
        return Timed(ms * op.count, Evidence.ROOFLINE)

    def decode(self, op: Mixer, batch: F64, kv: F64) -> Timed:
        """See ``OperatorSource.decode``."""
        sequences, length = np.meshgrid(batch, kv, indexing="ij")
        width = _KV_BYTES.get(op.kv_dtype, 2.0) if not isinstance(op, StateOp) else 0.0
        factor = 1.0
        if isinstance(op, AttentionOp):
            factor = op.decode_factor
            seen = length if op.window is None else np.minimum(length, op.window)
            moved = self._cache_bytes(op, sequences, length)
            flops = 2.0 * sequences * seen * op.heads * (op.head_dim + op.v_head_dim)
        elif isinstance(op, MlaOp):
            seen = length if op.topk is None else np.minimum(length, op.topk)
            moved = sequences * seen * (op.kv_lora_rank + op.rope_dim) * width
            flops = 2.0 * sequences * seen * op.heads * (2 * op.kv_lora_rank + op.rope_dim)
            # Absorbed projections in and out of the latent space.
            moved = moved + 2.0 * op.heads * op.kv_lora_rank * (op.nope_dim + op.v_head_dim)
            flops = flops + 2.0 * sequences * op.heads * op.kv_lora_rank * (op.nope_dim + op.v_head_dim)
            if op.topk is not None:
                moved = moved + sequences * length * 132.0
        else:
            moved = 2.0 * sequences * self._state_bytes(op)
            flops = 4.0 * sequences * op.state_elements
        share = self.efficiency
        ms = np.maximum(
            moved / (self.bytes_per_ms * share.decode_bw),
            flops / (self.peak_flops_per_ms("bf16") * share.prefill_flops),
        )
        if isinstance(op, MlaOp):
            ms = ms + self._projections(op, batch)[:, None]
        ms = (ms * factor + share.attention_us / 1e3) * op.count
        return Timed(ms, Evidence.ROOFLINE, (), np.full(len(batch), np.inf))

    def fastest_decode_ms(self, op: AttentionOp, batch: F64, kv: F64) -> F64:
        """Least time of one layer's decode attention on a (batch, KV) grid: its cache from memory at the highest share
        of bandwidth that any decode kernel reaches, a tenth above that of large ones in general."""
        sequences, length = np.meshgrid(batch, kv, indexing="ij")
        share = min(_HIGHEST_SHARE, 1.1 * self.efficiency.decode_bw)
        return self._cache_bytes(op, sequences, length) / (self.bytes_per_ms * share)

    def fastest_weights_ms(self, op: GemmOp | MoeOp) -> float:
        """Least time of a GEMM or of an expert layer: its weights, or one token's experts, from memory."""
        if isinstance(op, GemmOp):
            weights = float(op.n * op.k)
        else:
            weights = op.topk / op.ep * (3 if op.gated else 2) * op.hidden * op.intermediate / op.tp
        return weights * op.weight.bits / 8 / (self.bytes_per_ms * _HIGHEST_SHARE)

    def _cache_bytes(self, op: AttentionOp, sequences: F64, length: F64) -> F64:
        """K/V cache that one decode step of one layer reads on this rank."""
        seen = length if op.window is None else np.minimum(length, op.window)
        return sequences * seen * op.kv_heads * (op.head_dim + op.v_head_dim) * _KV_BYTES.get(op.kv_dtype, 2.0)

    def _softmax_prefill(self, new: F64, keys: F64, heads: int, width: int, op: AttentionOp | MlaOp) -> F64:
        """Attention of ``new`` tokens over ``keys`` each, with its rotary embedding and cache writes."""
        flops = 2.0 * new * keys * heads * width
        if isinstance(op, AttentionOp) and not op.causal:
            flops = flops * 2.0
        share = self.efficiency
        prompts = np.maximum(1.0, np.vectorize(lambda t, c: prefill_shape(t, c)[0])(new, keys))
        kv_heads = op.kv_heads if isinstance(op, AttentionOp) else 1
        moved = 2.0 * (new * heads * width + keys * prompts * kv_heads * width)
        reached = share.prefill_flops * keys / (keys + share.prefill_half)
        core = np.maximum(
            flops / (self.peak_flops_per_ms("bf16") * reached), moved / (self.bytes_per_ms * share.decode_bw)
        )
        glue = 2.0 * new * (heads + 2 * kv_heads) * width / (self.bytes_per_ms * share.glue_bw)
        return core + glue + (share.attention_us + 3 * share.launch_us) / 1e3

    def _projections(self, op: MlaOp, rows: F64) -> F64:
        return sum((self.rows(gemm, rows).ms for gemm in op.projections), np.zeros_like(rows))

    def _indexer(self, pairs: F64) -> F64:
        """Scores of a sparse-attention indexer: 64 heads of 128, FP8 (DeepSeek-V3.2's indexer)."""
        return 2.0 * pairs * 64 * 128 / (self.peak_flops_per_ms("fp8") * self.efficiency.prefill_flops)

    def _gemm(self, n: float, k: float, weight: WeightFormat, rows: F64) -> F64:
        peak = self.peak_flops_per_ms(weight.compute) * self._gemm_share(weight)
        bandwidth, extra_us = self._weight_reading(weight)
        moved = n * k * weight.bits / 8 + 2.0 * rows * (n + k)
        return np.maximum(2.0 * rows * n * k / peak, moved / bandwidth) + self._launch() + extra_us / 1e3

    def _gemm_share(self, weight: WeightFormat) -> float:
        """Share of the arithmetic's peak that large GEMMs over weights of this format reach."""
        widened = self.efficiency.dequant_flops if self._widens(weight) else 1.0
        return self.compute_share(weight.compute) * widened

    def _widens(self, weight: WeightFormat) -> bool:
        """Whether a kernel turns weights into a wider format before it multiplies them."""
        if weight.stored in _WIDE:
            return False
        plain = peak_flops_per_ms(self.gpu, "bf16")
        return weight.compute in _WIDE or peak_flops_per_ms(self.gpu, weight.compute) == plain

    def _weight_reading(self, weight: WeightFormat) -> tuple[float, float]:
        """(bytes per ms at which weights of this format are read, microseconds that a GEMM over them takes besides)."""
        share = self.efficiency
        if weight.stored in _WIDE:
            return self.bytes_per_ms * share.weight_bw, 0.0
        if self._widens(weight):
            return self.bytes_per_ms * (share.dequant8_bw if weight.bits >= 8 else share.dequant_bw), share.dequant_us
        return self.bytes_per_ms * share.narrow_bw, share.narrow_us

    def _moe(self, op: MoeOp, rows: F64) -> F64:
        """Grouped GEMMs of the routed experts on one rank.

        Weights read: the distinct experts that the step's tokens select, E (1 - (1 - k / E)^T) with T the tokens to the
        power 0.9, since real routing repeats experts more than uniform choice would (operators with a power-law
        routing). The layer lasts as long as its busiest rank, see ``rank_imbalance``.
        """
        matrices = 3 if op.gated else 2
        inter = op.intermediate / op.tp
        total = rows * op.dp
        routed = total * op.topk / op.ep * rank_imbalance(op.experts, op.ep)
        active = op.experts / op.ep * (1.0 - (1.0 - op.topk / op.experts) ** (total**0.9))
        moved = active * matrices * op.hidden * inter * op.weight.bits / 8 + 4.0 * routed * (op.hidden + inter)
        flops = 2.0 * routed * matrices * op.hidden * inter
        peak = self.peak_flops_per_ms(op.weight.compute)
        widened = self.efficiency.widened_experts
        if widened is not None and self._widens(op.weight):
            multiply, read = widened
            return flops / (peak * multiply) + moved / (self.bytes_per_ms * read) + 6 * self._launch()
        bandwidth, extra_us = self._weight_reading(op.weight)
        peak *= self._gemm_share(op.weight) * self.efficiency.expert_flops
        return np.maximum(flops / peak, moved / bandwidth) + 6 * self._launch() + 2 * extra_us / 1e3

    def _launch(self) -> float:
        return self.efficiency.launch_us / 1e3

    def _state_bytes(self, op: StateOp) -> float:
        return op.state_elements * op.state_bytes + op.conv_elements * op.conv_bytes

    def inside_node(self, gpus: int) -> bool:
        """Whether a group of ``gpus`` fits one node (or NVLink domain)."""
        return gpus <= self.node_gpus

    def link_gb_s(self, gpus: int) -> float:
        """Bandwidth of a GPU, one direction, in a ring collective of ``gpus``.

        Over several nodes as many rings run as each node holds GPUs of the group, each through a network port of its
        own, so the ports of a node add up until the links inside it are the limit.
        """
        inside = self._inside_gb_s(min(gpus, self.node_gpus))
        if self.inside_node(gpus):
            return inside
        return min(inside, self.fabric.network_gb_s * self.node_gpus)

    def _inside_gb_s(self, gpus: int) -> float:
        if self.gpu.link_gb_s and gpus <= (self.gpu.scale_up_domain or 1):
            return self.gpu.link_gb_s
        return PCIE_GB_S.get(self.gpu.pcie_gen or 4, 24.0)

    def _link(self, moved_bytes: F64, gpus: int) -> F64:
        """Time to move ``moved_bytes`` per GPU in a collective of ``gpus``."""
        return moved_bytes / (self.link_gb_s(gpus) * 1e6 * self.efficiency.link) + self._start_ms(gpus)

    def _start_ms(self, gpus: int) -> float:
        """Start-up of a collective: one exchange inside a switched domain whatever its size, one per peer over PCIe or
        a network."""
        share = self.efficiency
        switched = self.gpu.link_gb_s is not None and gpus <= (self.gpu.scale_up_domain or 1)
        switched = switched and self.inside_node(gpus) and "pcie" not in self.gpu.link.lower()
        return (share.link_us if switched else share.peer_us * gpus) / 1e3

    def _transfer(self, op: TransferOp, rows: F64) -> F64:
        values = op.values * rows
        rate = 1e6 * self.efficiency.link
        if op.kind == "p2p":
            leaves_node = not self.inside_node(op.gpus)
            bandwidth = self.fabric.network_gb_s if leaves_node else self.link_gb_s(op.gpus)
            return 2.0 * values / (bandwidth * rate) + (2 if leaves_node else 1) * _HAND_OVER_MS
        moved = 2.0 * values * (op.gpus - 1) / op.gpus
        if op.kind == "all_to_all" and not self.inside_node(op.gpus):
            # every GPU sends through its own port what other nodes get
            away = (op.gpus - self.node_gpus) / (op.gpus - 1)
            return moved * away / (self.fabric.network_gb_s * rate) + self._start_ms(op.gpus)
        return self._link(moved, op.gpus)

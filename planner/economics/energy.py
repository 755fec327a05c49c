"""Electrical power of a GPU under an inference load, from measurements; None where there are none. Never the TDP.

    power = min(cap, idle + bandwidth_w * share of memory bandwidth used + compute_w * share of dense bf16 rate used)

Fitted on 17 runs of vLLM 0.24.0, Qwen3-8B bf16, on one H200 (471-691 W, concurrency 1 to 256): mean error 2.2 %,
largest 7.4 %. The intercept, 60 W, agrees with published idle readings of 74 and 80 W. The H100 SXM has the same die
and limit: on published readings of Llama-3-8B (363-456 W) the same coefficients are within 25 %; on gpt-oss-120b over
8 GPUs (159-205 W) they are 31 % low at 4 users and 57 % high at 64, because experts are read unevenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from planner.catalog.types import GpuSpec
from planner.economics.tariff import EnergyPrice, usd_per_kw_hour
from planner.evidence import Evidence
from planner.models.sharding import active_params
from planner.models.spec import ModelSpec, Shard


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Coefficients of one GPU in watts; ``error_share`` is the spread seen against readings of other models."""

    idle_w: float
    bandwidth_w: float
    compute_w: float
    cap_w: float
    error_share: float
    evidence: Evidence
    source: str

    def watts(self, bandwidth_share: float, compute_share: float) -> float:
        """Mean power in watts at the given shares of memory bandwidth and dense bf16 rate (0..1)."""
        return min(self.idle_w + self.bandwidth_w * bandwidth_share + self.compute_w * compute_share, self.cap_w)


_FIT = "17 runs of vLLM 0.24.0 with Qwen3-8B bf16 on one H200, 2026-12-01"
_MODELS = {
    "H200-SXM-141GB": PowerModel(60.4, 614.1, 983.5, 690.0, 0.25, Evidence.CALIBRATED, _FIT),
    "H100-SXM5-80GB": PowerModel(60.4, 614.1, 983.5, 690.0, 0.55, Evidence.EXTRAPOLATED, _FIT + ", same die and limit"),
}


def power_model(gpu: str) -> PowerModel | None:
    """The fitted model of ``gpu`` (catalogue name), or None when no measurement covers it."""
    return _MODELS.get(gpu)


def power_w(
    gpu: GpuSpec,
    model: ModelSpec,
    *,
    weights_gib_per_gpu: float,
    kv_bytes_per_token_per_gpu: float,
    gpus: int,
    output_tok_per_s: float,
    total_tok_per_s: float,
    mean_batch: float,
    mean_context_tokens: float,
    ranks: int = 1,
) -> float | None:
    """Mean watts of one of ``gpus`` GPUs that serve the given rates together; None when the GPU was never measured.

    ``ranks`` data-parallel engines share the rates, ``mean_batch`` is that of one of them. Bytes per second: each step
    reads the weights that it touches (all of a dense model; of routed experts the share 1 - (1 - k/E)^batch) and each
    generated token the KV of its context. Operations: 2 x active parameters per token.
    """
    coefficients = power_model(gpu.name)
    if coefficients is None or not gpu.mem_bw_gb_s or not gpu.bf16_tflops:
        return None
    batch = max(mean_batch, 1.0)
    output_tok_per_s = output_tok_per_s / ranks
    steps_per_s = output_tok_per_s / batch
    touched = _touched_share(model, batch)
    read = steps_per_s * weights_gib_per_gpu * 2**30 * touched
    read += output_tok_per_s * kv_bytes_per_token_per_gpu * mean_context_tokens
    flops = 2 * active_params(model) * total_tok_per_s / gpus
    bandwidth_share = min(read / (gpu.mem_bw_gb_s * 1e9), 1.0)
    compute_share = min(flops / (gpu.bf16_tflops * 1e12), 1.0)
    return coefficients.watts(bandwidth_share, compute_share)


def _touched_share(model: ModelSpec, batch: float) -> float:
    touched = everything = 0.0
    for group in model.groups:
        for linear in group.linears:
            share = 1.0
            if linear.shard is Shard.EXPERT and group.ffn is not None and group.ffn.experts:
                share = 1 - (1 - group.ffn.experts_per_token / group.ffn.experts) ** batch
            everything += group.count * linear.params
            touched += group.count * linear.params * share
    return touched / everything if everything else 1.0


def energy_usd_per_hour(
    watts_per_gpu: float, gpus: int | Decimal, energy: EnergyPrice, profile: Sequence[float] = ()
) -> Decimal:
    """Electricity of ``gpus`` GPUs an hour, cooling (PUE) and demand charge included. GPUs alone: no host, no network.

    ``profile`` weighs the tariff's hours of the week (168 relative draws); without one all hours count alike.
    """
    return Decimal(str(watts_per_gpu)) * gpus / 1000 * usd_per_kw_hour(energy, profile)


def power_profile(gpu: str, watts_per_gpu: float, hour_of_week: Sequence[float]) -> tuple[float, ...]:
    """Relative draw of each hour of the week: the idle part stays, the rest follows the load. Empty without a load."""
    coefficients = power_model(gpu)
    if coefficients is None or not hour_of_week or watts_per_gpu <= 0:
        return ()
    idle = min(coefficients.idle_w, watts_per_gpu)
    mean = sum(hour_of_week) / len(hour_of_week)
    return tuple(idle + (watts_per_gpu - idle) * load / mean for load in hour_of_week)


def joules_per_token(watts_per_gpu: float, gpus: int, tok_per_s: float) -> float | None:
    """Energy per token of the kind that ``tok_per_s`` counts; None when no token is served."""
    return watts_per_gpu * gpus / tok_per_s if tok_per_s > 0 else None

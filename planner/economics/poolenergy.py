"""Electrical power of prefill and decode pools, by the same measured model of utilisation as single instances."""

from __future__ import annotations

from dataclasses import dataclass

from planner.catalog.types import GpuSpec
from planner.economics.energy import power_w
from planner.serving.disaggregated import Disaggregated
from planner.serving.instance import Instance
from planner.serving.types import Performance


@dataclass(frozen=True, slots=True)
class PoolWatts:
    """Mean watts of one GPU of each pool, and of one GPU of the unit: the mean over both pools' GPUs."""

    prefill: float
    decode: float
    mean: float


def pool_watts(
    gpu: GpuSpec, unit: Disaggregated, performance: Performance, *, context_tokens: float, load_share: float = 1.0
) -> PoolWatts | None:
    """Watts at ``load_share`` of the load of ``performance`` (of one unit); None when the GPU was never measured.

    A prefill step reads the weights once for as many prompt tokens as fit it, up to one prompt, and computes the tokens
    that no cache holds. A decode step reads the weights and the KV of ``context_tokens`` for each sequence.
    """
    prompts = (performance.computed_tok_per_s - performance.output_tok_per_s) * load_share
    answers = performance.output_tok_per_s * load_share
    requests = performance.req_per_s * load_share
    budget = unit.prefill.resolved.max_num_batched_tokens
    a_step = min(prompts / requests, float(budget)) if requests > 0 else 1.0
    first = _watts(gpu, unit.prefill, unit.prefill_count, prompts, a_step, 0.0)
    second = _watts(gpu, unit.decode, unit.decode_count, answers, performance.mean_batch, context_tokens)
    if first is None or second is None:
        return None
    return PoolWatts(first, second, (first * unit.prefill_gpus + second * unit.decode_gpus) / unit.gpus)


def _watts(
    gpu: GpuSpec, role: Instance, instances: int, tok_per_s: float, tokens_a_step: float, context_tokens: float
) -> float | None:
    return power_w(
        gpu,
        role.model,
        weights_gib_per_gpu=role.memory.weights_gib,
        kv_bytes_per_token_per_gpu=role.memory.kv_bytes_per_token,
        gpus=role.resolved.gpus,
        output_tok_per_s=tok_per_s / instances,
        total_tok_per_s=tok_per_s / instances,
        mean_batch=tokens_a_step,
        mean_context_tokens=context_tokens,
        ranks=role.resolved.dp,
    )

"""What the planner says of one deployment: memory, performance under a load, and the material of its emulation.

The settings are those the deployment is launched with, so that a prediction and its measurement mean the same engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from controlplane.deployments.models import Deployment, Engine
from controlplane.planning.mapping import active_calibrations
from controlplane.workloads.services import model_spec
from planner import catalog
from planner.calibration import CalibrationFactor
from planner.catalog.types import GpuSpec
from planner.engines.types import EngineSettings, ResolvedSettings
from planner.errors import PlannerError
from planner.evidence import Z80, Interval
from planner.jsonio import from_json, to_json
from planner.memory.types import MemoryLedger
from planner.models.spec import ModelSpec
from planner.serving.types import Lengths, Load, Performance
from planner.steptime.types import StepModel
from runners.contracts import ProbeLoad

PLANNER_ENGINE = {"vllm": "vllm", "vllm_cpu": "vllm", "tensorrt_llm": "tensorrt_llm"}
"""Which planner engine stands for a runner's."""

_KEEPS_UP = 0.9  # share of the tokens asked for that an engine which keeps up delivers in a short run


@dataclass(frozen=True)
class Subject:
    """A deployment as the planner sees it."""

    model: ModelSpec
    gpu: GpuSpec
    resolved: ResolvedSettings
    ledger: MemoryLedger


def resolve_settings(
    model_ref: str, gpu_name: str, settings: dict[str, Any], memory_gib: float | None = None
) -> ResolvedSettings:
    """Fill in an engine's defaults for a model on a GPU; ``memory_gib`` as its driver reports it.

    Raises PlannerError (unsupported, malformed).
    """
    from planner.engines import resolve, support

    model, gpu = model_spec(model_ref), catalog.with_reported_memory(catalog.get_gpu(gpu_name), memory_gib)
    wanted = from_json(EngineSettings, settings, "settings")
    answer = support(model, gpu, wanted)
    if not answer.ok:
        from planner.errors import UnsupportedError

        raise UnsupportedError("; ".join(reason.rstrip(".") for reason in answer.reasons), field="settings")
    return resolve(wanted, model, gpu)


def subject(deployment: Deployment) -> Subject:
    """Model, GPU, settings and memory of a deployment; raises PlannerError."""
    from planner.memory import ledger
    from planner.placement.sharing import used_by_neighbours_gib

    model = model_spec(deployment.model_ref)
    kind, device = deployment.node.node_type.gpu_model, deployment.device
    resolved = from_json(ResolvedSettings, deployment.settings, "settings")
    if device.get("slice_profile"):
        gpu = catalog.get_gpu(catalog.slice_name(catalog.get_gpu(kind.name).name, device["slice_profile"]))
    else:
        gpu = catalog.with_reported_memory(catalog.get_gpu(kind.name), kind.memory_gib)
    others = used_by_neighbours_gib(gpu, resolved, device.get("sharers", 1))
    return Subject(model, gpu, resolved, ledger(model, gpu, resolved, used_by_others_gib=others))


def step_model(what: Subject, calibrations: tuple[CalibrationFactor, ...] | None = None) -> StepModel:
    """Step times, with the active calibrations unless others are given; raises UnsupportedError."""
    from planner.steptime import build

    factors = active_calibrations() if calibrations is None else calibrations
    return build(what.model, what.gpu, what.resolved, calibrations=factors)


def predict_probe(
    deployment: Deployment, load: ProbeLoad, calibrations: tuple[CalibrationFactor, ...] | None = None
) -> Performance:
    """What a probe of ``load`` should measure; raises PlannerError where there is no prediction."""
    from planner.serving import Instance, predict

    what = subject(deployment)
    demand, tokens_in, tokens_out = probe_load(load)
    if load.shared_tokens and what.resolved.enable_prefix_caching:
        block = what.ledger.block_tokens or what.resolved.block_tokens
        demand = replace(demand, prefix_hit=load.shared_tokens // block * block / load.input_tokens)
    instance = Instance(what.model, what.resolved, what.ledger, step_model(what, calibrations))
    return _by_chance_of_arrivals(predict(instance, demand, tokens_in, tokens_out, seed=load.seed), load)


def _by_chance_of_arrivals(expected: Performance, load: ProbeLoad) -> Performance:
    """Throughput with a band that holds the chance of arrivals as well.

    The planner spreads N requests at a rate over N / rate, as most load generators do; AIPerf draws each gap of its
    Poisson arrivals, so that the time N of them take has a relative standard deviation of N^-1/2 (gamma distribution).
    Where the engine falls behind the arrivals it is the limit, not they.
    """
    band = expected.output_tok_per_s_80
    if band.value < _KEEPS_UP * load.rate_per_s * load.output_tokens or load.rate_per_s <= 0:
        return expected
    chance = Z80 / math.sqrt(load.requests)
    low, high = (math.hypot(bound / band.value - 1, chance) for bound in (band.low, band.high))
    wider = Interval(band.value, band.value * max(0.0, 1 - low), band.value * (1 + high))
    return replace(expected, output_tok_per_s_80=wider)


def probe_load(load: ProbeLoad) -> tuple[Load, Lengths, Lengths]:
    """A probe's load in the planner's words."""
    demand = (
        Load(kind="open", rate_per_s=load.rate_per_s, requests=load.requests)
        if load.rate_per_s > 0
        else Load(kind="closed", concurrency=load.concurrency, requests=load.requests)
    )
    if load.mix:
        drawn = [pair for pair in load.mix for _ in range(max(1, round(pair[2])))]
        samples = (tuple(int(pair[side]) for pair in drawn) for side in (0, 1))
        tokens_in, tokens_out = (Lengths(kind="samples", samples=side) for side in samples)
        return demand, tokens_in, tokens_out
    return demand, _lengths(load.input_tokens, load.input_sd), _lengths(load.output_tokens, load.output_sd)


def predicted_parts(deployment: Deployment) -> dict[str, Any]:
    """Memory as JSON, or why there is none."""
    if deployment.engine == Engine.VLLM_CPU:
        return {"memory": None, "memory_reason": "On a processor the KV cache is what the engine is told, not a share."}
    try:
        return {"memory": to_json(subject(deployment).ledger)}
    except PlannerError as error:
        return {"memory": None, "memory_reason": str(error)}


def emulation_of(deployment: Deployment) -> dict[str, Any]:
    """What the emulated engine is told (runners' EmulationSpec): uncalibrated step times, limits, start-up facts.

    Raises PlannerError where the planner has no step times.
    """
    what = subject(deployment)
    step = step_model(what, ())
    resolved, memory = what.resolved, what.ledger
    workload = deployment.workload
    return {
        "acts_as": resolved.engine.value,
        "version": resolved.version,
        "gpu": what.gpu.name,
        "tables": to_json(step.tables),
        "front_end": to_json(step.front_end),
        "limits": {
            "max_num_seqs": resolved.max_num_seqs,
            "max_num_batched_tokens": resolved.max_num_batched_tokens,
            "max_model_len": resolved.max_model_len,
            "block_tokens": memory.block_tokens or resolved.block_tokens,
            "kv_blocks": max(memory.kv_blocks, 1),
            "chunked_prefill": resolved.enable_chunked_prefill,
            "prefix_caching": resolved.enable_prefix_caching,
            "async_scheduling": resolved.async_scheduling,
            "reserve_output": resolved.capacity_policy == "GUARANTEED_NO_EVICT",
        },
        "startup": {
            "engine_version": resolved.version,
            "weights_gib": memory.weights_gib,
            "kv_gib": memory.kv_gib,
            "kv_tokens": memory.kv_tokens,
            "kv_blocks": memory.kv_blocks,
            "block_tokens": memory.block_tokens,
            "graph_gib": memory.graph_gib,
            "activation_gib": memory.activation_gib,
            "non_torch_gib": memory.non_torch_gib,
            "total_gib": memory.total_gib,
            "max_model_len": resolved.max_model_len,
            "max_concurrency": memory.max_concurrency,
        },
        "prefix_hit": workload.prefix_hit if workload else 0.0,
    }


def engine_flags(resolved: ResolvedSettings) -> dict[str, str | int | float | bool]:
    """The options an engine is started with, by their planner names: those that the prediction rests on."""
    flags: dict[str, str | int | float | bool] = {}
    for name in _FLAGS:
        value = getattr(resolved, name)
        if value is not None:
            flags[name] = value
    return flags


_FLAGS = (
    "tp", "pp", "ep", "dp", "precision", "kv_cache_dtype", "max_model_len", "gpu_memory_utilization",
    "free_gpu_memory_fraction", "kv_cache_max_tokens", "max_num_seqs", "max_num_batched_tokens",
    "enable_chunked_prefill", "enable_prefix_caching", "block_tokens", "enforce_eager", "max_loras", "max_lora_rank",
    "speculative_tokens", "mm_items_per_prompt", "capacity_policy", "trt_backend", "kv_cache_max_gpu_gib",
    "kv_cache_host_gib", "logprobs", "prompt_logprobs",
)  # fmt: skip


def _lengths(mean: int, sd: float) -> Lengths:
    if sd > 0:
        return Lengths(kind="normal", mean=float(mean), sd=sd)
    return Lengths(kind="fixed", value=mean)

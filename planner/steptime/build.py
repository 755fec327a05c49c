"""Builds a StepModel: picks the source of operator times, samples it, adds host time and corrections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from planner.calibration import CalibrationFactor
from planner.catalog.types import GpuSpec
from planner.engines.types import DEFAULT_VERSION, EngineName, ResolvedSettings
from planner.engines.versions import unknown_speed
from planner.engines.vllm import USER
from planner.evidence import Evidence, weakest
from planner.models.spec import ModelSpec
from planner.steptime import calibrated
from planner.steptime.adapters import ADAPTER_LAUNCH_MS, AdapterOp
from planner.steptime.efficiency import family
from planner.steptime.front_end import front_end, host_floor, host_time, launch_time, rank_time, stage_time
from planner.steptime.graph import AttentionOp, MlaOp, MoeOp, RankGraph, build_graph
from planner.steptime.kernel_versions import mixed_rows
from planner.steptime.roofline import RooflineSource
from planner.steptime.sources import Fabric, OperatorSource
from planner.steptime.tables import (
    DECODE_BATCH,
    DECODE_KV,
    PREFILL_CONTEXT,
    PREFILL_TOKENS,
    SEQUENCES,
    TOKENS,
    Sampled,
    sample,
)
from planner.steptime.types import AS_MEASURED, SETTINGS_STATED, StepModel, StepTables
from planner.steptime.variants import vary

_USUAL = Fabric()


def build(
    model: ModelSpec,
    gpu: GpuSpec,
    resolved: ResolvedSettings,
    *,
    calibrations: Sequence[CalibrationFactor] = (),
    fabric: Fabric = _USUAL,
) -> StepModel:
    """Step times of one data-parallel rank of ``model`` on ``gpu`` as ``resolved``.

    Measured operators where the package has this engine on this GPU, the roofline else; operator by operator. With
    ``dp`` above one the other ranks are taken to run the same number of tokens: they step together, so a step lasts as
    long as the busiest rank's, and the busiest expert rank's share is in the expert operators. ``fabric`` joins the
    nodes of an instance that does not fit one. Raises UnsupportedError when the GPU's
    data sheet lacks the rates that a roofline needs.
    """
    graph = build_graph(model, resolved, gpu)
    fits = resolved.gpus <= min(8, fabric.gpus_per_node or 8)
    sampled = _sampled(graph, gpu, resolved.engine, _USUAL if fits else fabric)
    step = _assemble(vary(sampled, resolved, graph.layers), resolved, graph, gpu)
    factor = calibrated.matching(
        calibrations,
        engine=resolved.engine.value,
        gpu=gpu.name,
        model=model.model_id,
        precision=resolved.precision,
        tp=resolved.tp,
    )
    return step if factor is None else calibrated.apply(step, factor)


@lru_cache(maxsize=512)
def _sampled(graph: RankGraph, gpu: GpuSpec, engine: EngineName, fabric: Fabric) -> Sampled:
    return sample(graph, source_for(gpu, engine, fabric), gpu)


@lru_cache(maxsize=64)
def source_for(gpu: GpuSpec, engine: EngineName, fabric: Fabric = _USUAL) -> OperatorSource:
    """Measured operators backed by the roofline, or the roofline alone where the package or its data is missing."""
    roofline = RooflineSource(gpu, engine.value, fabric)
    if gpu.aic_system is None:
        return roofline
    try:
        from planner.steptime.database import open_database
        from planner.steptime.silicon import SiliconSource

        database = open_database(gpu.aic_system, engine.value)
    except ImportError:  # the operator package has no wheel for every platform
        return roofline
    return roofline if database is None else SiliconSource(database, roofline)


def launch_ms(graph: RankGraph, resolved: ResolvedSettings, gpu: GpuSpec) -> float:
    """Time in which the host launches one forward pass kernel by kernel; each draft is one more layer."""
    each = launch_time(resolved, gpu)
    experts = [op for op in graph.tokens if isinstance(op, MoeOp)]
    narrow = sum(op.count for op in experts if op.weight.compute in ("fp8", "fp4"))
    latent = sum(op.count for op in graph.mixers if isinstance(op, MlaOp))
    layers = each.layer_ms * graph.layers + each.latent_ms * latent
    layers += each.experts_ms * sum(op.count for op in experts) + each.narrow_experts_ms * narrow
    if layers:
        layers += ADAPTER_LAUNCH_MS * sum(op.count for op in graph.tokens if isinstance(op, AdapterOp))
    return layers * (1.0 + resolved.speculative_tokens / graph.layers)


_SPEED_SETTINGS = (
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "free_gpu_memory_fraction",
    "max_num_seqs",
    "max_num_batched_tokens",
    "cuda_graph_sizes",
)
_ENOUGH_SETTINGS = 3
"""So many of them stated: the user describes a launch command rather than a model on a GPU."""


def residuals_of(sampled: Sampled, resolved: ResolvedSettings, gpu: GpuSpec) -> str:
    """Whose residuals the bands are made of: the engine's, those of runs whose settings are known, or those of runs of
    which nothing is left to guess.

    The last are our own: the version is stated and is that of the operator data, a dense model on one Hopper GPU.
    """
    engine = resolved.engine.value
    stated = resolved.origin.get("version") == USER and resolved.version == DEFAULT_VERSION[resolved.engine]
    known = stated and family(gpu) == "hopper" and set(sampled.operators) <= {"gemm", "attention", "glue"}
    if known:
        return f"{engine}, {AS_MEASURED}"
    named = sum(resolved.origin.get(name) == USER for name in _SPEED_SETTINGS)
    return f"{engine}, {SETTINGS_STATED}" if named >= _ENOUGH_SETTINGS else engine


def _assemble(sampled: Sampled, resolved: ResolvedSettings, graph: RankGraph, gpu: GpuSpec) -> StepModel:
    host = (host_time(resolved), rank_time(resolved), stage_time(resolved))
    by_sequence = sum((h.per_sequence_ms * np.minimum(SEQUENCES, h.up_to) for h in host), np.zeros_like(SEQUENCES))
    beside = host_floor(resolved)
    graph_sizes = () if resolved.enforce_eager else resolved.cuda_graph_sizes
    tables = StepTables(
        shared_tokens=TOKENS,
        shared_ms=sampled.shared_ms,
        head_seqs=SEQUENCES,
        head_ms=sampled.head_ms + by_sequence,
        prefill_tokens=PREFILL_TOKENS,
        prefill_context=PREFILL_CONTEXT,
        prefill_ms=sampled.prefill_ms,
        decode_batch=DECODE_BATCH,
        decode_kv=DECODE_KV,
        decode_ms=sampled.decode_ms,
        fixed_ms=sum(h.fixed_ms for h in host),
        graph_sizes=np.array(sorted(graph_sizes), dtype=np.float64),
        pp=resolved.pp,
        host_ms=beside.step_ms,
        host_ms_per_sequence=beside.step_ms_per_sequence,
        launch_ms=launch_ms(graph, resolved, gpu),
        mixed_rows=mixed_rows(resolved, gpu) if all(isinstance(op, AttentionOp) for op in graph.mixers) else 0.0,
        experts_ms=sampled.experts_ms if resolved.dp > 1 else np.zeros(0),
    )
    unknown = unknown_speed(resolved.engine, resolved.version)
    return StepModel(
        tables=tables,
        front_end=front_end(resolved),
        evidence=weakest((sampled.evidence, Evidence.EXTRAPOLATED)) if unknown else sampled.evidence,
        max_decode_kv_in_range=sampled.max_decode_kv,
        notes=sampled.notes,
        operators=sampled.operators,
        engine=residuals_of(sampled, resolved, gpu),
    )

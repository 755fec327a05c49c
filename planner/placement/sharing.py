"""Several engines on one GPU: what an equal share of it holds and how fast it is while the neighbours work.

Memory: ``gpu_memory_utilization`` of vLLM is a share of the whole GPU, so N engines ask for 1/N of the usual share
each, and the others' memory counts as in use. Compute: without MPS the driver gives the GPU to the processes in turns,
so with N busy engines each gets 1/N of its time. An engine is sized for that worst case; how much faster it is while
neighbours idle widens the band. Nothing here was measured: the evidence is ``extrapolated`` at best. TensorRT-LLM takes
a share of what is free when it starts, so what it gets depends on who started first: it is not planned on a shared GPU.
"""

from __future__ import annotations

import math
from dataclasses import replace

from planner.catalog.types import GpuSpec
from planner.economics.energy import power_model
from planner.engines.types import EngineName, EngineSettings, ResolvedSettings
from planner.evidence import Evidence, Interval, weakest
from planner.memory import ledger
from planner.placement.problem import may_share
from planner.plan_types import PlanNode, PlanRequest, PlanWorkload
from planner.serving.instance import Instance
from planner.serving.types import Performance
from planner.steptime.types import StepModel

SHARES = (2, 4, 8)
SWITCH_LOSS = 1.25  # what turns between processes may cost on top, at worst; no public measurement was found


def shares_worth_trying(
    workload: PlanWorkload, request: PlanRequest, nodes: tuple[PlanNode, ...], replica_share: float
) -> tuple[int, ...]:
    """Into how many shares a GPU may be divided: one share must still carry the whole demand.

    Empty where nobody else could share it: no other workload of the tenant, or only nodes that give away whole GPUs.
    """
    mates = any(other.tenant == workload.tenant and other.name != workload.name for other in request.workloads)
    if not request.share_gpus or not mates or not any(may_share(node) for node in nodes):
        return ()
    return tuple(share for share in SHARES if replica_share >= share)


def shared_settings(settings: EngineSettings, whole: ResolvedSettings, sharers: int) -> EngineSettings | None:
    """Settings for one of ``sharers`` engines on a GPU that ``whole`` would have alone; None where it cannot be."""
    if whole.engine is not EngineName.VLLM or whole.gpus > 1 or whole.gpu_memory_utilization is None:
        return None
    each = math.floor(100 * whole.gpu_memory_utilization / sharers) / 100
    return replace(settings, gpu_memory_utilization=each) if each > 0 else None


def used_by_neighbours_gib(gpu: GpuSpec, resolved: ResolvedSettings, sharers: int) -> float:
    """Memory that the other engines hold, in GiB: their utilisation of the whole GPU."""
    return gpu.total_gib * (resolved.gpu_memory_utilization or 0.0) * (sharers - 1)


def on_share(made: Instance, gpu: GpuSpec, sharers: int) -> Instance:
    """``made`` beside ``sharers`` - 1 equal engines on its GPU: their memory is taken, its steps last longer."""
    if sharers == 1:
        return made
    others = used_by_neighbours_gib(gpu, made.resolved, sharers)
    memory = ledger(made.model, gpu, made.resolved, used_by_others_gib=others)
    return replace(made, memory=memory, step=time_sliced(made.step, sharers))


def time_sliced(step: StepModel, sharers: int) -> StepModel:
    """``step`` while ``sharers`` engines keep the GPU busy: work on the GPU takes that many times as long.

    The host's own work per step does not: each engine has its process.
    """
    tables = step.tables
    slowed = replace(
        tables,
        shared_ms=tables.shared_ms * sharers,
        head_ms=tables.head_ms * sharers,
        prefill_ms=tables.prefill_ms * sharers,
        decode_ms=tables.decode_ms * sharers,
    )
    note = f"one of {sharers} engines on the GPU, sized as if all of them were always busy"
    return replace(
        step,
        tables=slowed,
        evidence=weakest((step.evidence, Evidence.EXTRAPOLATED)),
        notes=(*step.notes, note),
        factors={name: value for name, value in step.factors.items() if name != "calibration_log_sd"},
    )


def widened_rate(band: Interval, whole: Interval | None, sharers: int) -> Interval:
    """Rate of one share: down by what turns may cost, up to what the GPU carries for it while the others idle."""
    high = band.high * sharers
    return Interval(band.value, band.low / SWITCH_LOSS, min(high, whole.high) if whole is not None else high)


def widened(performance: Performance, sharers: int) -> Performance:
    """``performance`` with its latencies reaching from idle to busy neighbours."""

    def times(band: Interval | None) -> Interval | None:
        return None if band is None else Interval(band.value, band.low / sharers, band.high * SWITCH_LOSS)

    return replace(performance, ttft_ms_80=times(performance.ttft_ms_80), tpot_ms_80=times(performance.tpot_ms_80))


def watts_of_share(gpu: GpuSpec, watts: float | None, sharers: int) -> float | None:
    """Watts of one engine on a shared GPU: its own activity and its part of the idle power; None where unknown."""
    model = power_model(gpu.name)
    if watts is None or model is None:
        return None
    return watts - model.idle_w * (1 - 1 / sharers)

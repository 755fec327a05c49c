"""What one instance carries of a workload within its SLO, and how a set of replicas performs at the planned load."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.catalog.types import GpuSpec
from planner.engines.types import ResolvedSettings
from planner.evidence import Interval
from planner.memory import ledger
from planner.models.spec import ModelSpec
from planner.placement.encoder import largest_encoder_load, simulate_encoder
from planner.plan_types import PlanRequest, PlanWorkload
from planner.serving.arrivals import mean_rate, trace_at_rate
from planner.serving.instance import Instance
from planner.serving.littles_law import expected_load
from planner.serving.metrics import slo_ratio
from planner.serving.predict import performance, predict
from planner.serving.simulator import simulate
from planner.serving.sizing import largest_load
from planner.serving.types import LargestLoad, Lengths, Load, Performance
from planner.steptime import Fabric, build

CLIFF_MARGIN = 0.9  # near saturation a small error is a long queue: plan on this share of the largest load
SIMULATED_REQUESTS = 1200


def instance(model: ModelSpec, gpu: GpuSpec, resolved: ResolvedSettings, request: PlanRequest) -> Instance:
    """Memory and step times of ``resolved``, with the calibrations of the request.

    Raises UnsupportedError when there is nothing to predict the speed from.
    """
    memory = ledger(model, gpu, resolved)
    fabric = fabric_of(request, gpu.name)
    step = build(model, gpu, resolved, calibrations=request.calibrations, fabric=fabric)
    return Instance(model, resolved, memory, step)


def fabric_of(request: PlanRequest, gpu: str) -> Fabric:
    """What joins nodes of ``gpu``: the slowest network among them, since a replica may be placed on any, and the most
    GPUs that one holds. Where there is none it is the usual one."""
    nodes = [node for node in request.nodes if node.gpu == gpu]
    if not nodes:
        return Fabric()
    most = max(max(node.gpus, node.nvlink_domain) for node in nodes)
    return Fabric(min(node.network_gb_s for node in nodes), most)


@dataclass(frozen=True, slots=True)
class Size:
    """What one instance carries: requests/s with the band, the share of the workload's demand, and what limits it."""

    rate_per_s: float
    band: Interval
    share: float
    binding: str
    near_saturation: bool
    largest: float = 0.0  # before the margin for saturation: requests/s, clients in a closed loop


def demand_per_s(workload: PlanWorkload) -> float | None:
    """Requests per second at the peak to plan for; None in a closed loop, where users, not arrivals, are given."""
    load = workload.load
    if load.kind == "closed":
        return None
    if load.kind == "offline":
        return (load.requests or 0) / (workload.hours_per_month * 3600)
    if load.arrival == "trace":
        return mean_rate(load.times_s)
    return load.rate_per_s


def size(instance: Instance, workload: PlanWorkload, outputs: Lengths, seed: int, near: float = 0.0) -> Size:
    """Largest load of one instance; ``share`` 0 when even a light load breaks the SLO. Raises as the simulator does.

    ``near`` requests/s, or clients of a closed loop, that it may carry, 0 where nothing is known: a search begins there
    for sessions and clients.
    """
    load = workload.load
    if load.kind == "offline":
        load = replace(load, requests=min(load.requests or SIMULATED_REQUESTS, SIMULATED_REQUESTS))
    if instance.model.task != "generate":
        found = largest_encoder_load(
            instance.step, instance.resolved, load, workload.input_tokens, slo=workload.slo, seed=seed
        )
        return planned(found, workload)
    largest = largest_load(
        instance,
        load,
        workload.input_tokens,
        outputs,
        slo=workload.slo,
        seed=seed,
        near=near,
    )
    return planned(largest, workload)


def expected(instance: Instance, workload: PlanWorkload, outputs: Lengths) -> float:
    """What ``size`` should find by Little's law: requests/s, or clients of a closed loop; 0 where that says nothing."""
    if instance.model.task != "generate" or workload.load.kind == "offline" or not instance.memory.fits:
        return 0.0
    found = expected_load(instance, workload.load, workload.input_tokens, outputs, workload.slo)
    return found.users if workload.load.kind == "closed" else found.rate_per_s


def carries(instance: Instance, workload: PlanWorkload, outputs: Lengths, seed: int, most: float) -> bool:
    """Whether one instance carries ``most`` requests/s (clients of a closed loop) within the SLO: one simulation."""
    load = workload.load
    if load.kind == "closed":
        load = replace(load, concurrency=math.ceil(most))
    elif load.arrival == "trace":
        load = replace(load, times_s=trace_at_rate(load.times_s, most))
    else:
        load = replace(load, rate_per_s=most, requests=_requests(load))
    found = simulate(
        instance,
        load,
        workload.input_tokens,
        outputs,
        slo=workload.slo,
        seed=seed,
    )
    ratio = slo_ratio(workload.slo, found.ttft_ms, found.tpot_ms, found.itl_ms, found.e2e_ms)
    return not found.saturated and ratio <= 1.0


def planned(largest: LargestLoad, workload: PlanWorkload) -> Size:
    """``largest`` with the margin for saturation, as a share of the workload's demand."""
    margin = CLIFF_MARGIN if largest.near_saturation else 1.0
    rate = largest.rate_per_s * margin
    band = Interval(rate, largest.band.low * margin, largest.band.high * margin)
    demand = demand_per_s(workload)
    if demand is None:
        share = largest.concurrency / workload.load.concurrency if workload.load.concurrency else 0.0
    else:
        share = rate / demand if demand > 0 else 0.0
    most = float(largest.concurrency) if demand is None else largest.rate_per_s
    return Size(rate, band, share, largest.binding, largest.near_saturation, most)


def _requests(load: Load) -> int | None:
    """Requests to simulate of an open load; sessions know themselves how many they need."""
    return load.requests or (None if load.turns else SIMULATED_REQUESTS)


def per_replica_load(workload: PlanWorkload, replicas: int, share: float = 1.0) -> Load:
    """The load that each of ``replicas`` carries when a router spreads ``share`` of the demand evenly over them.

    Poisson arrivals dealt out at random are Poisson arrivals at each replica; a trace is thinned.
    """
    load = workload.load
    if load.kind == "closed":
        return replace(load, concurrency=max(1, round(load.concurrency * share / replicas)))
    if load.kind == "offline":
        return replace(load, requests=min(load.requests or SIMULATED_REQUESTS, SIMULATED_REQUESTS))
    if load.arrival == "trace":
        return replace(load, times_s=trace_at_rate(load.times_s, mean_rate(load.times_s) * share / replicas))
    return replace(
        load,
        rate_per_s=load.rate_per_s * share / replicas,
        requests=_requests(load),
    )


def at_planned_load(
    instance: Instance, workload: PlanWorkload, outputs: Lengths, replicas: int, seed: int
) -> Performance:
    """Performance of all ``replicas`` together: latencies of one at its share of the load, throughputs of all."""
    return of_all(predicted(instance, workload, outputs, per_replica_load(workload, replicas), seed), replicas)


def of_all(one: Performance, replicas: int) -> Performance:
    """Latencies of ``one`` replica, throughputs of all of them."""
    many = float(replicas)
    return replace(
        one,
        output_tok_per_s=one.output_tok_per_s * many,
        total_tok_per_s=one.total_tok_per_s * many,
        req_per_s=one.req_per_s * many,
        output_tok_per_s_80=Interval(
            one.output_tok_per_s_80.value * many,
            one.output_tok_per_s_80.low * many,
            one.output_tok_per_s_80.high * many,
        ),
        preemptions=one.preemptions * replicas,
        goodput_per_s=None if one.goodput_per_s is None else one.goodput_per_s * many,
    )


def lightest(instance: Instance, workload: PlanWorkload, outputs: Lengths, seed: int) -> Performance:
    """Performance with hardly any load: what the SLO would have to allow at least."""
    load = replace(workload.load, kind="closed", concurrency=1, requests=24, arrival="poisson", times_s=(), think_s=0.0)
    return predicted(instance, workload, outputs, load, seed)


def predicted(instance: Instance, workload: PlanWorkload, outputs: Lengths, load: Load, seed: int) -> Performance:
    """One instance at ``load``, with its bands; an encoder's by the batch server. Raises as the simulators do."""
    if instance.model.task != "generate":
        found = simulate_encoder(
            instance.step, instance.resolved, load, workload.input_tokens, slo=workload.slo, seed=seed
        )
        return performance(found, instance.step)
    return predict(
        instance,
        load,
        workload.input_tokens,
        outputs,
        slo=workload.slo,
        seed=seed,
    )

"""Candidates that serve prefill and decode from pools of their own: one replica is a unit of both, placed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from planner.catalog import get_model
from planner.catalog.types import GpuSpec
from planner.economics.cost import ServedLoad, throughput_factors
from planner.economics.money import CENT
from planner.economics.poolenergy import PoolWatts, pool_watts
from planner.economics.types import CostBreakdown
from planner.engines import EngineName
from planner.engines.disaggregation import ROLES
from planner.models.spec import ModelSpec
from planner.placement.billing import beyond_gpus_usd_per_hour, bill_of
from planner.placement.candidates import (
    gpu_of_nodes,
    gpu_pools,
    nvlink_group,
    saturation_notes,
)
from planner.placement.fleet import bin_size, fits_shape
from planner.placement.pools import Asked, best_unit, may_gain
from planner.placement.problem import replicas_needed
from planner.placement.shapes import base_settings, parallel_shapes
from planner.placement.sharing import on_share
from planner.placement.siteenergy import mean_electricity
from planner.placement.sizing import Size, demand_per_s, fabric_of, instance, of_all, per_replica_load
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload, PoolRole, Pools
from planner.serving.disaggregated import Disaggregated, PoolUse
from planner.serving.disaggregated_sizing import predict_disaggregated
from planner.serving.instance import Instance
from planner.serving.kv_transfer import Link, link_across_nodes, link_of, link_within_node
from planner.serving.sessions import mean_prompt

NODES = 2
"""Nodes of a unit where one NVLink domain has no room for both pools."""


def disaggregated_candidates(
    workload: PlanWorkload,
    request: PlanRequest,
    aggregated: Sequence[Candidate],
    *,
    pools: dict[str, tuple[PlanNode, ...]] | None = None,
) -> tuple[Candidate, ...]:
    """At most one unit for each GPU type, engine and precision: the one that serves the demand on the fewest GPUs.

    Tried where the workload has limits on the first token and between tokens, and where a bound says that a unit could
    carry more per GPU than the best of ``aggregated`` (the workload's other candidates) does within its SLO.
    """
    model = get_model(workload.model)
    if not request.disaggregate or not may_gain(workload, model):
        return ()
    found: list[Candidate] = []
    for gpu_name, nodes in (gpu_pools(request) if pools is None else pools).items():
        gpu = gpu_of_nodes(gpu_name, nodes)
        usable = tuple(n for n in nodes if workload.site in ("", n.site) and not n.slice_of)
        if not usable:
            continue
        for engine in EngineName:
            if engine.value not in workload.allowed_engines:
                continue
            for precision in workload.allowed_precisions:
                made = _candidate(workload, request, model, gpu, usable, engine, precision, aggregated)
                found += [made] if made is not None else []
    return tuple(found)


def _candidate(
    workload: PlanWorkload,
    request: PlanRequest,
    model: ModelSpec,
    gpu: GpuSpec,
    nodes: tuple[PlanNode, ...],
    engine: EngineName,
    precision: str,
    aggregated: Sequence[Candidate],
) -> Candidate | None:
    node = max(nodes, key=lambda n: (bin_size(n), n.gpus))
    prompt = workload.input_tokens.longest
    asked = Asked(
        workload=workload,
        model=model,
        gpu=gpu,
        settings=base_settings(workload, engine, precision, (1, 1, 1, 1)),
        longest_prompt=prompt,
        expected_len=prompt + workload.output_tokens.longest,
        calibrations=request.calibrations,
        seed=request.seed,
        fabric=fabric_of(request, gpu.name),
    )
    prefix = f"{workload.name}/{engine.value}/{gpu.name}/"
    own = [c for c in aggregated if c.id.startswith(prefix) and c.id.endswith(f"/{precision}") and c.status == "ok"]
    to_beat = max((c.replica_rate_per_s / float(c.gpus_charged) for c in own), default=0.0)

    def link(gpus: int) -> Link:
        if gpus <= node.gpus:
            return link_within_node(gpu, gpus, node.nvlink_domain)
        return link_across_nodes(node.network_gb_s)

    shapes = [shape for shape in parallel_shapes(model, nodes) if shape[0] * shape[3] <= bin_size(node)]
    found = best_unit(asked, shapes, range(2, bin_size(node) + 1), link, to_beat)
    if found is None and bin_size(node) == node.gpus and len(nodes) >= NODES:
        found = best_unit(asked, shapes, (NODES * node.gpus,), link, to_beat)
    if found is None:
        return None
    unit, sized = found
    domain = max(nvlink_group(role.resolved) for role in (unit.prefill, unit.decode))
    if not any(fits_shape(each, unit.gpus, domain) for each in nodes):
        return None
    cheapest = min(nodes, key=lambda node: node.price.usd_per_gpu_hour)
    blank = Candidate(
        id=f"{prefix}{unit_shape(unit)}/{precision}",
        workload=workload.name,
        gpu=gpu.name,
        settings=unit.decode.resolved,
        status="ok",
        memory=unit.decode.memory,
        gpus_per_replica=unit.gpus,
        max_nvlink_domain_needed=unit.gpus if unit.link.kind == "nvlink" else domain,
    )
    return _priced(workload, request, gpu, blank, unit, sized, cheapest, nodes)


def deployed(candidate: Candidate, model: ModelSpec, gpu: GpuSpec, request: PlanRequest) -> Instance | Disaggregated:
    """What one replica of ``candidate`` runs, its memory and step times built again: an instance, on its share of a GPU
    where it has one, or a unit of pools. Raises UnsupportedError as ``build`` does.
    """
    pools = candidate.disagg
    if pools is None:
        if candidate.settings is None:
            raise ValueError(f"{candidate.id} has no settings")
        return on_share(instance(model, gpu, candidate.settings, request), gpu, candidate.sharers)
    first, second = (instance(model, gpu, role.settings, request) for role in (pools.prefill, pools.decode))
    link = link_of(pools.link, pools.link_gb_s)
    return Disaggregated(first, second, pools.prefill.instances, pools.decode.instances, link)


def unit_shape(unit: Disaggregated) -> str:
    """Both pools as a candidate's id holds them: "2xtp2pp1ep1dp1-1xtp4pp1ep1dp1"."""
    parts = []
    for role, count in ((unit.prefill, unit.prefill_count), (unit.decode, unit.decode_count)):
        r = role.resolved
        parts.append(f"{count}xtp{r.tp}pp{r.pp}ep{r.ep}dp{r.dp}")
    return "-".join(parts)


def _priced(
    workload: PlanWorkload,
    request: PlanRequest,
    gpu: GpuSpec,
    blank: Candidate,
    unit: Disaggregated,
    sized: Size,
    cheapest: PlanNode,
    nodes: Sequence[PlanNode],
) -> Candidate:
    replicas = replicas_needed(sized.share, workload.n_plus_1)
    one, use = predict_disaggregated(
        unit,
        per_replica_load(workload, replicas),
        workload.input_tokens,
        workload.output_tokens,
        slo=workload.slo,
        seed=request.seed,
    )
    performance = of_all(one, replicas)
    gpus = replicas * unit.gpus
    context = mean_prompt(workload.load, workload.input_tokens, workload.output_tokens)
    context += workload.output_tokens.expected / 2
    watts = pool_watts(gpu, unit, one, context_tokens=context, load_share=workload.mean_load_share)
    mean_watts = None if watts is None else watts.mean
    electricity = mean_electricity(request, workload, gpu.name, mean_watts, gpus, nodes)
    cost = bill_of(
        workload,
        request,
        unit.decode.resolved,
        _served(workload, sized, replicas, unit),
        price=cheapest.price,
        pool=cheapest.pool,
        gpus=gpus,
        replicas=replicas,
        gpus_per_replica=unit.gpus,
        electricity=electricity,
    )
    per_user = performance.tpot_ms.mean if performance.tpot_ms else 0.0
    return replace(
        blank,
        reasons=_notes(unit, sized),
        performance=performance,
        replica_rate_per_s=sized.rate_per_s,
        replica_rate_80=sized.band,
        replicas=replicas,
        tok_s_per_gpu=performance.output_tok_per_s / gpus,
        tok_s_per_user=1000 / per_user if per_user > 0 else 0.0,
        cost=cost,
        evidence=performance.evidence,
        replica_share=sized.share,
        replica_extra_usd_per_hour=beyond_gpus_usd_per_hour(cost, replicas),
        watts_per_gpu=mean_watts,
        disagg=_pools(unit, use, cost, watts),
    )


def _served(workload: PlanWorkload, sized: Size, replicas: int, unit: Disaggregated) -> ServedLoad:
    """The load carried; input tokens bear the prefill pool's part of the bill, output tokens the decode pool's."""
    return ServedLoad(
        req_per_s=(demand_per_s(workload) or 0.0) * workload.mean_load_share,
        input_tokens=workload.input_tokens.expected,
        output_tokens=workload.output_tokens.expected,
        capacity_req_per_s=sized.rate_per_s * replicas,
        hours=workload.hours_per_month,
        prefill_time_share=unit.prefill_gpus / unit.gpus,
        throughput_80=throughput_factors(sized.rate_per_s, sized.band),
    )


def _pools(unit: Disaggregated, use: PoolUse, cost: CostBreakdown, watts: PoolWatts | None) -> Pools:
    roles = {}
    bills = cost.allocated_usd_input, cost.allocated_usd_output
    tokens = cost.mtok_input_per_month, cost.mtok_output_per_month
    counts = unit.prefill_count, unit.decode_count
    busy = use.prefill_utilisation, use.decode_utilisation
    for i, name in enumerate(ROLES):
        made = (unit.prefill, unit.decode)[i]
        usd = bills[i] or Decimal(0).quantize(CENT)
        roles[name] = PoolRole(
            settings=made.resolved,
            memory=made.memory,
            instances=counts[i],
            utilisation=busy[i],
            usd_per_month=usd,
            usd_per_mtok=(usd / tokens[i]).quantize(Decimal("0.000001")) if tokens[i] > 0 else None,
            watts_per_gpu=None if watts is None else (watts.prefill, watts.decode)[i],
        )
    return Pools(roles["prefill"], roles["decode"], unit.link.kind, unit.link.gb_s, use.transfer_ms_mean)


def _notes(unit: Disaggregated, sized: Size) -> tuple[str, ...]:
    kind = {"nvlink": "NVLink", "pcie": "PCIe", "network": "the network"}[unit.link.kind]
    pools = (
        f"Prefill on {unit.prefill_gpus} GPUs, decode on {unit.decode_gpus}; a prompt's KV cache crosses {kind} between"
        " them. All of a unit is placed together and started by the files that a plan exports."
    )
    return (pools, *saturation_notes(sized))

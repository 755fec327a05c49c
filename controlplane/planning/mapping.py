"""From the database to the planner's dataclasses. Nothing else maps between the two."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, cast

from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.deployments.models import Calibration, Deployment
from controlplane.inventory.models import Gpu, Node, Price, Site
from controlplane.inventory.pricing import exchange_rates, hour_price, price_inputs, price_row, site_energy
from controlplane.planning.models import Scenario
from controlplane.workloads.models import Workload
from controlplane.workloads.services import lengths_of, planner_model, trace_window
from planner import fleet_money
from planner.calibration import CalibrationFactor
from planner.demand import mean_share
from planner.economics.currency import Converter
from planner.economics.price import RentalInputs, gpu_hour_price, price_terms
from planner.economics.tariff import EnergyPrice, mean_usd_per_kwh
from planner.economics.types import GpuHourPrice, PriceSheet
from planner.errors import InputError, UnsupportedError
from planner.plan_types import (
    GpuSlice,
    Placement,
    PlanNode,
    PlanRequest,
    PlanWorkload,
    PurchaseLimits,
    PurchaseOption,
    SiteEnergy,
)
from planner.serving.types import Lengths, Load, SloTarget

NodeState = Literal["active", "planned", "maintenance"]


def plan_request(scenario: Scenario) -> PlanRequest:
    """Everything the planner needs to answer a scenario, as it stands now.

    Raises ValidationError when there is no node or no workload, or when one of them cannot be mapped, naming it.
    """
    workloads = scenario_workloads(scenario)
    nodes = scenario_nodes(scenario)
    if not workloads:
        raise ValidationError("The scenario has no workloads; add at least one.")
    if not nodes:
        raise ValidationError("The scenario has no nodes: its sites hold none that is active, planned or maintained.")
    live = _live_deployments(nodes)
    names = {workload.pk for workload in workloads}
    day = (scenario.rates_as_of or timezone.now().date()).isoformat()
    try:
        money = Converter(scenario.currency, day, exchange_rates())
        return _request(scenario, workloads, nodes, live, names, money)
    except InputError as error:
        raise ValidationError(f"Scenario {scenario}: {error}") from error


def _request(
    scenario: Scenario,
    workloads: list[Workload],
    nodes: list[Node],
    live: list[Deployment],
    names: set[int],
    money: Converter,
) -> PlanRequest:
    """The request with every amount in the scenario's currency."""
    classes = fleet_money.price_classes(scenario.price_classes)
    class_of = {name: entry.name for entry, members in classes for name in members}
    energies = _energies(nodes, money)
    prices = _prices(nodes, money)
    request = PlanRequest(
        name=scenario.name,
        nodes=tuple(
            plan_node(node, _busy(node, live, names), _slices(node, live, names), prices[_pool(node)][0])
            for node in nodes
        ),
        workloads=tuple(
            replace(
                plan_workload(w),
                growth_per_month=_growth(w, scenario),
                price_class=class_of.get(w.name, ""),
            )
            for w in workloads
        ),
        mode=cast(Any, scenario.mode),
        objective=cast(Any, scenario.objective),
        orchestrators=tuple(scenario.orchestrators),
        share_gpus=scenario.share_gpus,
        purchase_options=() if scenario.mode == Scenario.Mode.OWNED else _purchase_options(nodes, prices),
        limits=_limits(scenario),
        energy=_mean_energy(nodes, energies),
        calibrations=active_calibrations(),
        current=tuple(_placement(item) for item in live if item.candidate_id and item.workload_id in names),
        time_limit_s=scenario.time_limit_s,
        seed=scenario.seed,
        lead_time_months=scenario.lead_time_months,
        currency=money.reporting,
        rates_as_of=money.as_of,
        operations=fleet_money.operations(scenario.operations, money),
        api_prices=fleet_money.api_prices(scenario.api_prices, money),
        cloud_prices=fleet_money.cloud_prices(scenario.cloud_prices, money),
        price_classes=tuple(entry for entry, _ in classes),
        price_erosion_per_year=scenario.price_erosion_per_year,
        horizon_months=scenario.horizon_months,
        site_energy=tuple(SiteEnergy(site.name, energy) for site, energy in energies.items()),
        price_sheets=tuple(prices[pool][1] for pool in sorted(prices)),
    )
    return replace(request, rates=money.used)


def scenario_workloads(scenario: Scenario) -> list[Workload]:
    """The workloads of a scenario: those it names, else all."""
    rows = scenario.workloads.all() if scenario.workloads.exists() else Workload.objects.all()
    return list(rows.select_related("trace", "site").prefetch_related("slo_targets"))


def scenario_nodes(scenario: Scenario) -> list[Node]:
    """The nodes of a scenario: of the sites it names, else of all; retired ones left out."""
    rows = Node.objects.exclude(state=Node.State.RETIRED)
    if scenario.sites.exists():
        rows = rows.filter(site__in=scenario.sites.all())
    related = rows.select_related("site", "node_type__gpu_model").prefetch_related(
        "gpus", "node_type__gpu_model__prices"
    )
    return list(related.order_by("name"))


def _purchase_options(
    nodes: list[Node], prices: dict[str, tuple[GpuHourPrice, PriceSheet]]
) -> tuple[PurchaseOption, ...]:
    """More of the kinds of node at hand, at the price of their site, with the power and space of their type.

    Where nodes are planned, those are what may be bought: the kinds then only say what one takes.
    """
    most = 0 if any(node.state == Node.State.PLANNED for node in nodes) else None
    kinds: dict[tuple[int, int], PurchaseOption] = {}
    for node in nodes:
        kind = node.node_type
        if (kind.pk, node.site_id) in kinds:
            continue
        pattern = plan_node(node, price=prices[_pool(node)][0])
        pattern = replace(
            pattern, name=f"{node.site.slug}-{kind.slug}", state="planned", failure_domain="", tenant="", busy_gpus=(),
            slices=(), orchestrator="none", cluster="", partition="", min_replica_gpus=1, reserved_for="",
            allowed_engines=("vllm", "tensorrt_llm"),
        )  # fmt: skip
        power = None if kind.max_power_w is None else kind.max_power_w / 1000
        kinds[kind.pk, node.site_id] = PurchaseOption(pattern, most, power, kind.rack_units)
    return tuple(kinds.values())


def _limits(scenario: Scenario) -> PurchaseLimits | None:
    values = scenario.budget_usd_per_hour, scenario.max_power_kw, scenario.max_rack_units
    return None if values == (None, None, None) else PurchaseLimits(*values)


def _slices(node: Node, live: list[Deployment], planned: set[int]) -> tuple[GpuSlice, ...]:
    """MIG slices of the node's GPUs; busy when reserved, or serving something that this scenario does not plan."""
    held = {
        item.device["slice_uuid"]
        for item in live
        if item.node_id == node.pk and item.workload_id not in planned and item.device.get("slice_uuid")
    }
    found = []
    for gpu in sorted(node.gpus.all(), key=lambda gpu: gpu.index):
        for text in gpu.mig_slices if gpu.mig_enabled else ():
            profile, *rest = text.split()
            uuid = next((word for word in rest if word != "reserved"), "")
            found.append(GpuSlice(gpu.index, profile, uuid, busy="reserved" in rest or (uuid != "" and uuid in held)))
    return tuple(found)


def plan_node(
    node: Node,
    busy: tuple[int, ...] = (),
    slices: tuple[GpuSlice, ...] = (),
    price: GpuHourPrice | None = None,
) -> PlanNode:
    """One node with the price of its GPUs, in US dollars unless given; raises ValidationError when none is known."""
    kind = node.node_type
    if price is None:
        price, _ = _node_price(node, Converter(rates=exchange_rates()))
    return PlanNode(
        name=node.name,
        pool=_pool(node),
        site=node.site.name,
        gpu=kind.gpu_model.name,
        gpus=kind.gpus,
        nvlink_domain=kind.nvlink_domain,
        price=price,
        state=cast(NodeState, node.state),
        busy_gpus=busy,
        failure_domain=node.failure_domain,
        network_gb_s=kind.network_gb_s,
        allowed_engines=tuple(node.allowed_engines),
        tenant=node.tenant,
        gpu_memory_gib=kind.gpu_model.memory_gib,
        orchestrator=cast(Any, node.orchestrator),
        cluster=node.cluster,
        partition=node.partition,
        min_replica_gpus=node.min_replica_gpus,
        slices=slices,
        reserved_for=_reserved_for(node),
    )


def plan_workload(workload: Workload) -> PlanWorkload:
    """One workload; raises ValidationError naming it and the field that does not fit."""
    profile = tuple(float(value) for value in workload.hour_profile or ())
    try:
        return PlanWorkload(
            name=workload.name,
            model=planner_model(workload.model_ref),
            load=plan_load(workload),
            input_tokens=lengths_of(workload, "input"),
            output_tokens=lengths_of(workload, "output"),
            slo=tuple(
                SloTarget(cast(Any, item.metric), cast(Any, item.stat), item.limit_ms)
                for item in workload.slo_targets.all()
            ),
            kind=workload.kind,
            priority=workload.priority,
            tenant=workload.tenant,
            site=workload.site.name if workload.site else "",
            adapters=workload.adapters,
            adapter_rank=workload.adapter_rank,
            revisions_per_month=workload.revisions_per_month,
            allowed_engines=tuple(workload.allowed_engines),
            allowed_precisions=tuple(workload.allowed_precisions),
            max_model_len=workload.max_model_len,
            n_plus_1=workload.n_plus_1,
            spread=workload.spread,
            hours_per_month=workload.hours_per_month,
            mean_load_share=mean_share(profile) if profile else workload.mean_load_share,
            hour_profile=profile,
            plan_for_month=workload.plan_for_month,
        )
    except InputError as error:
        raise ValidationError(f"Workload {workload}: {error}") from error


def _growth(workload: Workload, scenario: Scenario) -> float:
    """The workload's own, else the scenario's."""
    return scenario.growth_per_month if workload.growth_per_month is None else workload.growth_per_month


def plan_load(workload: Workload) -> Load:
    """The demand over all replicas at the peak. Arrivals of a trace are stretched to the stated rate."""
    load = Load(kind="offline", prefix_hit=_prefix_hit(workload))
    if workload.has_sessions:
        turns = Lengths("uniform", low=workload.turns_low, high=workload.turns_high)
        load = replace(load, turns=turns, shared_tokens=workload.shared_tokens)
    if workload.load_kind == Workload.LoadKind.CLOSED:
        return replace(load, kind="closed", concurrency=workload.concurrency, think_s=workload.think_s)
    if workload.load_kind == Workload.LoadKind.OFFLINE:
        return replace(load, requests=workload.requests)
    times: tuple[float, ...] = ()
    if workload.arrival == Workload.Arrival.TRACE and workload.trace is not None:
        moments, _, _ = trace_window(workload)
        rate = (len(moments) - 1) / float(moments[-1] - moments[0])
        times = tuple(((moments - moments[0]) * (rate / workload.rate_per_s)).tolist())
    return replace(
        load,
        kind="open",
        rate_per_s=workload.rate_per_s,
        arrival=cast(Any, workload.arrival),
        cv=workload.arrival_cv,
        times_s=times,
        think_s=workload.think_s if workload.has_sessions else 0.0,
    )


def _prefix_hit(workload: Workload) -> float:
    """What is stated; where nothing is, and prompts are those of a trace that names prefix blocks, what these tell."""
    lengths = workload.input_tokens
    from_trace = isinstance(lengths, dict) and lengths.get("kind") == "trace" and not workload.has_sessions
    if workload.prefix_hit or not from_trace or workload.trace is None:
        return workload.prefix_hit
    return workload.trace.prefix_hit or 0.0


def active_calibrations() -> tuple[CalibrationFactor, ...]:
    """The corrections that the next prediction uses."""
    return tuple(
        CalibrationFactor(
            engine=row.engine,
            gpu=row.gpu,
            model=row.model,
            precision=row.precision,
            tp=row.tp,
            step_factor=row.step_factor,
            ttft_extra_ms=row.ttft_extra_ms,
            samples=row.samples,
            residual_log_sd=row.residual_log_sd,
            source=row.source,
        )
        for row in Calibration.objects.filter(active=True).order_by("pk")
    )


def _live_deployments(nodes: list[Node]) -> list[Deployment]:
    rows = Deployment.objects.filter(state__in=Deployment.LIVE, node__in=nodes, emulated=False)
    return list(rows.select_related("node", "workload").order_by("created_at"))


def _busy(node: Node, live: list[Deployment], planned: set[int]) -> tuple[int, ...]:
    """GPUs that cannot be given away: out of service, or serving something that this scenario does not plan."""
    taken = {
        gpu.index for gpu in node.gpus.all() if gpu.state != Gpu.State.OK or (gpu.mig_enabled and not gpu.mig_slices)
    }
    for item in live:
        on_slice = bool(item.device.get("slice_profile"))
        if item.node_id == node.pk and item.workload_id not in planned and not on_slice:
            taken.update(item.gpu_indexes)
    return tuple(sorted(index for index in taken if index < node.node_type.gpus))


def _reserved_for(node: Node) -> str:
    """Who holds GPUs of the node, by name."""
    names = {gpu.reserved_for for gpu in node.gpus.all() if gpu.state == Gpu.State.RESERVED and gpu.reserved_for}
    return ", ".join(sorted(names))


def _placement(item: Deployment) -> Placement:
    return Placement(
        workload=item.workload.name if item.workload else "",
        candidate_id=item.candidate_id,
        replica=item.replica,
        node=item.node.name,
        gpu_indexes=tuple(item.gpu_indexes),
        **item.device,
    )


def _pool(node: Node) -> str:
    return f"{node.site.slug}/{node.node_type.slug}"


def _node_price(node: Node, money: Converter) -> tuple[GpuHourPrice, PriceSheet]:
    """Price of a node's GPUs in the currency of ``money``, and how it comes about."""
    kind = node.node_type
    row = price_row(kind.gpu_model, node.site)
    facts = {"pool": _pool(node), "gpu": kind.gpu_model.name, "site": node.site.name, "gpus": kind.gpus}
    where = f"Price of {kind.gpu_model} at {node.site}"
    if row is None:
        try:
            found = fleet_money.catalogue_price(kind.gpu_model.name, "price", money)
        except (InputError, UnsupportedError) as error:
            raise ValidationError(
                f"There is no price for {kind.gpu_model} at {node.site}: {error.message}. {error.remedy} "
                f"Add one under Prices."
            ) from error
        return found, fleet_money.sheet_of(found, (), facts, "", money)
    inputs = price_inputs(row)
    if inputs is None and row.basis == Price.Basis.CATALOGUE:
        found = hour_price(row)
        usd = fleet_money.converted(found.usd_per_gpu_hour, row.currency, money, where)
        found = replace(found, usd_per_gpu_hour=usd, parts=((found.parts[0][0], usd),))
        return found, fleet_money.sheet_of(found, (), facts, row.currency, money)
    inputs = inputs or RentalInputs(row.usd_per_gpu_hour, source=row.source, currency=row.currency)
    energy = fleet_money.checked_energy(site_energy(node.site), node.site.currency, money, f"Site {node.site}")
    try:
        found, terms = gpu_hour_price(inputs, energy, money), price_terms(inputs, energy, money)
    except InputError as error:
        raise InputError(
            error.message, field=f"{where}, {error.field}", value=error.value, remedy=error.remedy
        ) from error
    found = replace(found, basis=cast(Any, row.basis), source=row.source)
    return found, fleet_money.sheet_of(found, terms, facts, row.currency, money)


def _prices(nodes: list[Node], money: Converter) -> dict[str, tuple[GpuHourPrice, PriceSheet]]:
    """The price of each pool, one site's nodes of one type, and how it comes about."""
    first = {_pool(node): node for node in reversed(nodes)}
    return {pool: _node_price(node, money) for pool, node in first.items()}


def _energies(nodes: list[Node], money: Converter) -> dict[Site, EnergyPrice]:
    """Electricity of each site."""
    sites = {node.site_id: node.site for node in nodes}.values()
    return {site: fleet_money.checked_energy(site_energy(site), site.currency, money, f"Site {site}") for site in sites}


def _mean_energy(nodes: list[Node], energies: dict[Site, EnergyPrice]) -> EnergyPrice:
    """Where no site is meant: the mean over the sites, weighted by their GPUs."""
    gpus: dict[Site, int] = defaultdict(int)
    for node in nodes:
        gpus[node.site] += node.node_type.gpus
    total = Decimal(sum(gpus.values()))
    price = sum((mean_usd_per_kwh(energies[site]) * count for site, count in gpus.items()), Decimal(0)) / total
    pue = sum((site.pue * count for site, count in gpus.items()), Decimal(0)) / total
    return EnergyPrice(price.quantize(Decimal("0.0001")), pue.quantize(Decimal("0.001")))

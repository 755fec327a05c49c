"""From a scenario to a plan: candidates, placement, verdicts, cost and fragmentation. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from planner import MODEL_VERSION
from planner.catalog import get_gpu, get_model, mig_profile
from planner.demand import check_profile, demand_notes, mean_share, planned
from planner.economics.classes import factor_of
from planner.economics.currency import symbol
from planner.errors import CancelledError, InputError
from planner.fleet_money import gpu_of_price
from planner.fragmentation.consolidate import consolidate
from planner.fragmentation.fleet import WorkloadShape, stranded
from planner.mix_types import Mix
from planner.placement.candidates import candidates, gpu_pools
from planner.placement.devices import restored, restored_moves, usd_per_hour, with_slices
from planner.placement.disaggregation import disaggregated_candidates
from planner.placement.solver import PlacementResult, solve
from planner.plan_types import Candidate, Placement, PlanNode, PlanRequest, PlanResult, PlanWorkload
from planner.recommend.bill import billed
from planner.recommend.engineplans import cheaper_alone, engine_plans, plans_alone
from planner.recommend.flips import flip_points
from planner.recommend.mixes import mix_of
from planner.recommend.router import router_config
from planner.recommend.rules import rules_of_thumb
from planner.recommend.runway import outlook
from planner.recommend.ties import settle_ties, tie_note
from planner.recommend.verdict import verdict
from planner.serving.sessions import check_sessions
from planner.verdict_types import Verdict

SIZING_SHARE = 0.7  # of the progress bar
PLACING_SHARE = 0.85


def make_plan(
    request: PlanRequest,
    progress: Callable[[float, str], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> PlanResult:
    """Compute the plan of ``request``.

    ``progress`` gets a share from 0 to 1 and what is being done; ``should_cancel`` is asked between steps. Same
    request, same plan, as long as the solver ends before its time limit. Raises InputError (with the path of the
    field) for a request that makes no sense and CancelledError when asked to stop.
    """
    check_request(request)
    request = planned(request)
    asked, request = request, with_slices(request)
    steps = _Steps(progress, should_cancel)
    found = _candidates(request, steps)
    steps.say(SIZING_SHARE, f"Placing {len(request.workloads)} workloads on {len(request.nodes)} nodes")
    cheapest = solve(request, found)
    placement = settle_ties(asked, request, found, cheapest, gpus_at_hand(request))
    steps.say(PLACING_SHARE, "Placing again with one engine alone")
    alone = plans_alone(request, found, placement)
    verdicts, mixes = _verdicts(request, found, placement, alone, steps)
    steps.say(0.97, "Holding the rules of thumb against this fleet")
    by_engine = engine_plans(asked, found, placement, alone)
    rules = rules_of_thumb(request, found, by_engine, mixes)
    shapes = workload_shapes(request, found)
    tidy = None
    if request.current:
        tidy = consolidate(
            request.nodes, request.current, found, request.workloads, shapes, operations=request.operations
        )
    placements = restored(placement.placements, asked)
    usd = _placed_usd(asked, placements, placement.purchased_nodes)
    months, runways = outlook(request, found, placement.placements, placement.purchased_nodes)
    steps.say(1.0, "Done")
    made = PlanResult(
        request_name=request.name,
        model_version=MODEL_VERSION,
        status=placement.status,
        objective_usd_per_hour=placement.objective_usd_per_hour,
        bound_usd_per_hour=placement.bound_usd_per_hour,
        gap=placement.gap,
        solve_s=placement.solve_s,
        candidates=found,
        verdicts=verdicts,
        placements=placements,
        unplaced=placement.unplaced,
        usd_per_hour=usd,
        idle_usd_per_hour=_idle_usd(asked, usd, placement.purchased_nodes),
        stranded_before=stranded(request.nodes, request.current, shapes),
        stranded_after=stranded(request.nodes, placement.placements, shapes),
        consolidation=None if tidy is None else restored_moves(tidy, asked),
        moves=placement.moves,
        notes=(
            *_notes(request, found, placement),
            *tie_note(cheapest, placement, request.currency),
            *(cheaper_alone(by_engine, symbol(request.currency)) if _engine_people(request) else ()),
        ),
        purchased_nodes=placement.purchased_nodes,
        baselines=placement.baselines,
        rules=rules,
        months=months,
        runways=runways,
        engine_plans=by_engine,
        mixes=mixes,
        router_config=router_config(asked, found, placements, mixes),
    )
    return billed(asked, made)


class _Steps:
    def __init__(self, progress: Callable[[float, str], None] | None, should_cancel: Callable[[], bool] | None) -> None:
        self._progress = progress
        self._should_cancel = should_cancel

    def say(self, share: float, text: str) -> None:
        """Report, then stop when asked to."""
        if self._progress is not None:
            self._progress(share, text)
        if self._should_cancel is not None and self._should_cancel():
            raise CancelledError("the plan was cancelled", remedy="Start it again when you need it.")


def check_request(request: PlanRequest) -> None:
    """Refuse a request that makes no sense, naming the field: names unique, GPUs and models known, sizes positive."""
    for field, names in (
        ("nodes", [node.name for node in request.nodes]),
        ("workloads", [workload.name for workload in request.workloads]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InputError("is used twice", field=f"{field}.name", value=twice[0], remedy="Give each its own name.")
    if not request.workloads:
        raise InputError("is empty", field="workloads", remedy="Describe at least one workload.")
    if not request.nodes and not request.purchase_options:
        raise InputError("is empty", field="nodes", remedy="Add a node, or an option to purchase.")
    for i, node in enumerate((*request.nodes, *(option.node for option in request.purchase_options))):
        path = f"nodes[{i}]" if i < len(request.nodes) else f"purchase_options[{i - len(request.nodes)}].node"
        get_gpu(node.gpu)
        if node.gpus < 1:
            raise InputError("must be at least 1", field=f"{path}.gpus", value=node.gpus)
        if node.nvlink_domain < 1:
            raise InputError("must be at least 1", field=f"{path}.nvlink_domain", value=node.nvlink_domain)
        if node.price.usd_per_gpu_hour < 0:
            raise InputError("must not be negative", field=f"{path}.price", value=node.price.usd_per_gpu_hour)
        wrong = [index for index in node.busy_gpus if not 0 <= index < node.gpus]
        if wrong:
            raise InputError(f"the node has GPUs 0 to {node.gpus - 1}", field=f"{path}.busy_gpus", value=wrong[0])
    if not 1 <= request.horizon_months <= 120:
        raise InputError("must be between 1 and 120", field="horizon_months", value=request.horizon_months)
    for i, entry in enumerate(request.price_classes):
        if entry.factor < 0:
            raise InputError("must not be negative", field=f"price_classes[{i}].factor", value=entry.factor)
    pools = {node.pool for node in (*request.nodes, *(option.node for option in request.purchase_options))}
    for i, workload in enumerate(request.workloads):
        _check_workload(workload, f"workloads[{i}]")
        for pool in sorted(pools):
            factor_of(request.price_classes, workload.price_class, pool)
    _check_price_names(request)


def _check_price_names(request: PlanRequest) -> None:
    """Prices to compare with are of a workload of the plan and of a GPU of the catalogue; else they would say nothing.

    Raises InputError, or UnknownGpuError.
    """
    names = [workload.name for workload in request.workloads]
    for i, api in enumerate(request.api_prices):
        if api.workload not in names:
            raise InputError(
                "is no workload of the plan", field=f"api_prices[{i}].workload", value=api.workload,
                remedy=f"Name one of: {', '.join(names[:8])}; or leave the price out.",
            )  # fmt: skip
    for i, cloud in enumerate(request.cloud_prices):
        gpu_of_price(cloud.gpu, f"cloud_prices[{i}].gpu")


def _check_workload(workload: PlanWorkload, path: str) -> None:
    get_model(workload.model)
    load = workload.load
    if load.kind == "open" and load.arrival != "trace" and load.rate_per_s <= 0:
        raise InputError("must be above 0", field=f"{path}.load.rate_per_s", value=load.rate_per_s)
    if load.kind == "open" and load.arrival == "trace" and len(load.times_s) < 2:
        raise InputError("needs at least two arrivals", field=f"{path}.load.times_s", value=len(load.times_s))
    if load.kind == "closed" and load.concurrency < 1:
        raise InputError("must be at least 1", field=f"{path}.load.concurrency", value=load.concurrency)
    if load.kind == "offline" and not load.requests:
        raise InputError("must be at least 1", field=f"{path}.load.requests", value=load.requests)
    if workload.hours_per_month <= 0:
        raise InputError("must be above 0", field=f"{path}.hours_per_month", value=workload.hours_per_month)
    if not 0 < workload.mean_load_share <= 1:
        raise InputError(
            "must be above 0 and at most 1", field=f"{path}.mean_load_share", value=workload.mean_load_share
        )
    check_profile(workload.hour_profile, f"{path}.hour_profile")
    share = mean_share(workload.hour_profile)
    if workload.hour_profile and workload.mean_load_share not in (1.0, share):
        raise InputError(
            f"is {share:g} by hour_profile", field=f"{path}.mean_load_share", value=workload.mean_load_share,
            remedy="Leave one of the two out.",
        )  # fmt: skip
    if not 0 <= workload.plan_for_month <= 120:
        raise InputError("must be between 0 and 120", field=f"{path}.plan_for_month", value=workload.plan_for_month)
    if load.turns is not None:
        check_sessions(load)
    if not -0.5 <= workload.growth_per_month <= 1:
        raise InputError(
            "must be between -0.5 and 1", field=f"{path}.growth_per_month", value=workload.growth_per_month
        )
    for j, target in enumerate(workload.slo):
        if target.limit_ms <= 0:
            raise InputError("must be above 0", field=f"{path}.slo[{j}].limit_ms", value=target.limit_ms)


def _candidates(request: PlanRequest, steps: _Steps) -> tuple[Candidate, ...]:
    pools = gpu_pools(request)
    total = len(request.workloads) * len(pools)
    found: list[Candidate] = []
    done = 0
    for workload in request.workloads:

        def on_gpu(gpu: str, name: str = workload.name) -> None:
            nonlocal done
            done += 1
            steps.say(SIZING_SHARE * (done - 1) / total, f"Sizing {name} on {gpu}: {done} of {total}")

        own = candidates(workload, request, pools=pools, on_gpu=on_gpu)
        found += [*own, *disaggregated_candidates(workload, request, own, pools=pools)]
    return tuple(found)


def _verdicts(
    request: PlanRequest,
    found: tuple[Candidate, ...],
    placement: PlacementResult,
    alone: Mapping[str, PlacementResult],
    steps: _Steps,
) -> tuple[tuple[Verdict, ...], tuple[Mix, ...]]:
    """The verdict on every workload, and its mix where it has one."""
    taken: dict[str, Counter[str]] = {}
    for item in placement.placements:
        taken.setdefault(item.workload, Counter())[item.candidate_id] += 1
    verdicts: list[Verdict] = []
    mixes: list[Mix] = []
    at_hand = gpus_at_hand(request)
    count = len(request.workloads)
    for i, workload in enumerate(request.workloads):
        share = PLACING_SHARE + (0.97 - PLACING_SHARE) * i / count
        steps.say(share, f"Searching flip points of {workload.name}")
        placed = taken[workload.name].most_common(1)[0][0] if workload.name in taken else None
        shares = any(c.id == placed and c.sharers > 1 for c in found)  # a share is worth nothing without neighbours
        near = tuple(c for c in found if c.workload == workload.name and (c.gpu in at_hand or c.status != "ok"))
        own = tuple(c for c in near if c.sharers == 1 or (shares and c.id == placed))
        flips = flip_points(workload, own, request, placed=placed)
        mix = mix_of(workload, near, request, placement.placements, alone)
        mixes += [mix] if mix is not None else []
        verdicts.append(
            verdict(workload, own, request, placed=placed, placements=placement.placements, flip_points=flips, mix=mix)
        )
    return tuple(verdicts), tuple(mixes)


def gpus_at_hand(request: PlanRequest) -> frozenset[str]:
    """GPUs (catalogue names) that the mode lets a plan use; planned nodes and purchases count unless it is "owned"."""
    buys = request.mode != "owned"
    nodes = [node for node in request.nodes if node.state != "planned" or buys]
    return frozenset(node.gpu for node in (*nodes, *(option.node for option in request.purchase_options if buys)))


def workload_shapes(request: PlanRequest, found: tuple[Candidate, ...]) -> tuple[WorkloadShape, ...]:
    """Shapes of the workload mix: for each GPU type the cheapest candidate's replica, weighted by its replicas."""
    shapes = []
    for workload in request.workloads:
        cheapest: dict[str, Candidate] = {}
        for candidate in found:
            if candidate.workload != workload.name or candidate.status != "ok" or candidate.cost is None:
                continue
            known = cheapest.get(candidate.gpu)
            if known is None or known.cost is None or candidate.cost.usd_per_month < known.cost.usd_per_month:
                cheapest[candidate.gpu] = candidate
        if not cheapest:
            continue
        best = min(cheapest.values(), key=lambda c: (c.cost.usd_per_month if c.cost else Decimal(0), c.id))
        sizes = {gpu: candidate.gpus_per_replica for gpu, candidate in cheapest.items()}
        shapes.append(WorkloadShape(workload.name, sizes, float(best.replicas), workload.site, workload.tenant))
    return tuple(shapes)


def _placed_usd(request: PlanRequest, placements: Sequence[Placement], bought: Sequence[PlanNode]) -> Decimal:
    """USD an hour of the GPUs in use; of one that is shared or in slices the parts in use."""
    nodes = {node.name: node for node in (*request.nodes, *bought)}
    return sum((usd_per_hour(item, nodes[item.node]) for item in placements), Decimal("0.0000"))


def _engine_people(request: PlanRequest) -> bool:
    """Whether people are paid for each engine in use."""
    return request.operations.people_hours_per_engine_month * request.operations.people_usd_per_hour > 0


def _idle_usd(request: PlanRequest, placed_usd: Decimal, bought: Sequence[PlanNode]) -> Decimal:
    """USD an hour of active and bought GPUs, and of parts of GPUs, that neither this plan nor others use."""
    total = Decimal("0.0000")
    owned = () if request.mode == "purchase" else tuple(n for n in request.nodes if n.state == "active")
    for node in (*owned, *bought):
        held = Fraction(len(node.busy_gpus))
        for item in node.slices:
            if item.busy and item.gpu not in node.busy_gpus:
                held += mig_profile(node.gpu, item.profile).fraction
        free = node.gpus - held
        total += node.price.usd_per_gpu_hour * free.numerator / free.denominator
    return (total - placed_usd).quantize(Decimal("0.0001"))


def _notes(request: PlanRequest, found: tuple[Candidate, ...], placement: PlacementResult) -> tuple[str, ...]:
    notes = []
    if placement.status == "feasible":
        notes.append(f"The time limit of {request.time_limit_s:g} s ended the search; the gap says what may be left.")
    if placement.status == "greedy":
        notes.append("No better plan than the greedy one was found.")
    if request.energy is not None and any(c.status == "ok" and c.watts_per_gpu is None for c in found):
        gpus = sorted({c.gpu for c in found if c.status == "ok" and c.watts_per_gpu is None})
        notes.append(f"Power is unknown for {', '.join(gpus)}: their electricity is not in the cost.")
    sign = symbol(request.currency)
    assumed = {n.gpu: n.price for n in request.nodes if n.price.basis == "catalogue"}
    notes += [
        f"{gpu}: no price of your own; {sign}{price.usd_per_gpu_hour} per GPU-hour was taken ({price.source})."
        for gpu, price in sorted(assumed.items())
    ]
    served = {c.gpu for c in found if c.status == "ok"}
    notes += demand_notes(request.workloads)
    notes += [f"No workload can be served on {gpu}." for gpu in sorted({c.gpu for c in found} - served)]
    return tuple(notes)

"""Every way to serve a workload on the GPUs at hand: engines x precisions x parallel shapes, tuned and sized.

What cannot be is kept too, as a state with its reason: ``unsupported`` (the engine refuses), ``infeasible`` (memory or
SLO), ``no_data`` (nothing to predict from). A missing figure is never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal

from planner.catalog import get_gpu, get_model, with_reported_memory
from planner.catalog.types import GpuSpec
from planner.economics.cost import ServedLoad, break_even_utilisation, throughput_factors
from planner.economics.energy import power_w
from planner.economics.types import GpuHourPrice
from planner.engines import EngineName, EngineSettings, ResolvedSettings, resolve, support
from planner.errors import InfeasibleError, PlannerError, UnsupportedError
from planner.evidence import Interval
from planner.memory import fewer_sequences
from planner.models.spec import ModelSpec
from planner.placement.billing import beyond_gpus_usd_per_hour, bill_of
from planner.placement.fleet import fits_shape
from planner.placement.problem import replicas_needed
from planner.placement.shapes import adapter_notes, base_settings, parallel_shapes, variants
from planner.placement.sharing import (
    on_share,
    shared_settings,
    shares_worth_trying,
    watts_of_share,
    widened,
    widened_rate,
)
from planner.placement.siteenergy import mean_electricity
from planner.placement.sizing import Size, at_planned_load, carries, demand_per_s, expected, instance, lightest, size
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload
from planner.serving.instance import Instance
from planner.serving.sessions import longest_prompt, mean_prompt
from planner.serving.types import Lengths, Performance, SloTarget

TUNING_GAIN = 1.02  # a knob is turned only for a gain of 2 % or more: defaults are what people run
SESSIONS_GAIN = 1.05  # their largest loads scatter by a few per cent where the cache becomes too small for them
MAX_REPLICAS = 5000


def gpu_of_nodes(name: str, nodes: Iterable[PlanNode]) -> GpuSpec:
    """The GPU ``name`` with the least memory that any of its ``nodes`` reports: a plan must fit on each of them."""
    reported = [node.gpu_memory_gib for node in nodes if node.gpu == name and node.gpu_memory_gib is not None]
    return with_reported_memory(get_gpu(name), min(reported, default=None))


def gpu_pools(request: PlanRequest) -> dict[str, tuple[PlanNode, ...]]:
    """Nodes by GPU (catalogue name) that the request may place on, what it may buy included; order is stable."""
    found: dict[str, list[PlanNode]] = {}
    nodes: Iterable[PlanNode] = (*request.nodes, *(option.node for option in request.purchase_options))
    for node in nodes:
        found.setdefault(node.gpu, []).append(node)
    return {gpu: tuple(members) for gpu, members in found.items()}


def candidates(
    workload: PlanWorkload,
    request: PlanRequest,
    *,
    pools: dict[str, tuple[PlanNode, ...]] | None = None,
    on_gpu: Callable[[str], None] | None = None,
) -> tuple[Candidate, ...]:
    """All candidates of ``workload``. ``on_gpu`` is called with the GPU's name before each GPU is sized.

    Raises UnknownModelError or UnknownGpuError for names that are not in the catalogue.
    """
    model = get_model(workload.model)
    found: list[Candidate] = []
    for gpu_name, nodes in (gpu_pools(request) if pools is None else pools).items():
        if on_gpu is not None:
            on_gpu(gpu_name)
        gpu = gpu_of_nodes(gpu_name, nodes)
        usable = tuple(node for node in nodes if workload.site in ("", node.site))
        for engine in EngineName:
            if engine.value not in workload.allowed_engines:
                continue
            for precision in workload.allowed_precisions:
                found += _of_precision(_Context(workload, request, model, gpu, usable or nodes), engine, precision)
    return tuple(found)


class _Context:
    """What stays the same over the candidates of one workload on one GPU."""

    def __init__(
        self,
        workload: PlanWorkload,
        request: PlanRequest,
        model: ModelSpec,
        gpu: GpuSpec,
        nodes: tuple[PlanNode, ...],
    ) -> None:
        self.workload = workload
        self.request = request
        self.model = model
        self.gpu = gpu
        self.nodes = nodes
        cheapest = min(nodes, key=lambda node: node.price.usd_per_gpu_hour)
        self.price: GpuHourPrice = cheapest.price
        self.pool = cheapest.pool
        self.generates = model.task == "generate"
        # an encoder answers in one pass: the simulator is asked for the single step that the prompt takes
        self.outputs = workload.output_tokens if self.generates else Lengths("fixed", value=1)
        self.longest_prompt = longest_prompt(workload.load, workload.input_tokens, self.outputs)
        self.prompt = mean_prompt(workload.load, workload.input_tokens, self.outputs)
        self.expected_len = self.longest_prompt + self.outputs.longest
        # what the last shape carried / what Little's law expects of it: where the search for the next one begins
        self.times_expected = 0.0


def _of_precision(context: _Context, engine: EngineName, precision: str) -> list[Candidate]:
    found: list[Candidate] = []
    refused: set[tuple[str, ...]] = set()
    for shape in parallel_shapes(context.model, context.nodes):
        settings = base_settings(context.workload, engine, precision, shape)
        if not any(fits_shape(node, settings.gpus, nvlink_group(settings)) for node in context.nodes):
            continue
        spans_nodes = all(settings.gpus > node.gpus for node in context.nodes)
        if spans_nodes and any(candidate.status == "ok" for candidate in found):
            continue  # an instance over several nodes is for what one node cannot hold
        candidate = _candidate(context, settings)
        if candidate.status == "unsupported":
            if candidate.reasons in refused:
                continue
            refused.add(candidate.reasons)
        found.append(candidate)
        if candidate.status == "ok" and candidate.gpus_per_replica == 1:
            found += _shared(context, settings, candidate)
    return _without_repeats(found)


def _shared(context: _Context, settings: EngineSettings, whole: Candidate) -> list[Candidate]:
    """The engine of ``whole`` on 1/2, 1/4 and 1/8 of its GPU, as long as one share carries the whole demand."""
    found: list[Candidate] = []
    for sharers in shares_worth_trying(context.workload, context.request, context.nodes, whole.replica_share):
        asked = shared_settings(settings, whole.settings, sharers) if whole.settings else None
        if asked is None:
            break
        try:
            made = on_share(_instance(context, asked), context.gpu, sharers)
            if not made.memory.fits:
                break
            near = context.times_expected * expected(made, context.workload, context.outputs)
            sized = size(made, context.workload, context.outputs, context.request.seed, near)
        except PlannerError:
            break
        if sized.share < 1:
            break
        if sized.rate_per_s > whole.replica_rate_per_s:  # where the host binds, a share does not beat the whole
            cut = whole.replica_rate_per_s / sized.rate_per_s
            band = Interval(*(cut * each for each in (sized.band.value, sized.band.low, sized.band.high)))
            sized = replace(sized, rate_per_s=whole.replica_rate_per_s, share=sized.share * cut, band=band)
        blank = Candidate(
            id=candidate_id(context.workload.name, context.gpu.name, settings, sharers),
            workload=context.workload.name,
            gpu=context.gpu.name,
            settings=made.resolved,
            status="ok",
            gpus_per_replica=1,
            memory=made.memory,
            evidence=made.step.evidence,
            sharers=sharers,
        )
        sized = replace(sized, band=widened_rate(sized.band, whole.replica_rate_80, sharers))
        mates = f"Shares its GPU with up to {sharers - 1} more: sized as if all were always busy."
        replicas = replicas_needed(sized.share, context.workload.n_plus_1)
        notes = (mates, *saturation_notes(sized), *made.memory.notes)
        found.append(_priced(context, blank, made, sized, replicas, notes))
    return found


def _without_repeats(found: list[Candidate]) -> list[Candidate]:
    """Of several shapes that are infeasible for memory only the largest is kept: it says most."""
    short = [c for c in found if c.status == "infeasible" and c.memory is not None and not c.memory.fits]
    largest = max(short, key=lambda c: c.gpus_per_replica, default=None)
    return [c for c in found if c not in short or c is largest]


def _candidate(context: _Context, settings: EngineSettings) -> Candidate:
    workload = context.workload
    blank = Candidate(
        id=candidate_id(workload.name, context.gpu.name, settings),
        workload=workload.name,
        gpu=context.gpu.name,
        settings=None,
        status="unsupported",
        gpus_per_replica=settings.gpus,
        max_nvlink_domain_needed=nvlink_group(settings),
    )
    able = support(context.model, context.gpu, settings)
    if not able.ok:
        return replace(blank, reasons=able.reasons)
    try:
        made = _instance(context, settings)
        if not made.memory.fits:
            reasons = made.memory.reasons or ("It does not fit into the memory of the GPU.",)
            return replace(blank, status="infeasible", reasons=reasons, settings=made.resolved, memory=made.memory)
        made, sized, settings, tuned = _tuned(context, settings, made)
    except UnsupportedError as error:
        return replace(blank, status="no_data", reasons=(str(error),))
    except PlannerError as error:
        return replace(blank, status="infeasible", reasons=(str(error),))
    blank = replace(blank, settings=made.resolved, memory=made.memory, evidence=made.step.evidence)
    if sized.share <= 0:
        return replace(blank, status="infeasible", reasons=(_misses_slo(context, made),))
    replicas = replicas_needed(sized.share, workload.n_plus_1)
    if replicas > MAX_REPLICAS:
        reason = f"It would take {replicas:,} replicas: one carries {sized.rate_per_s:.3g} requests/s within the SLO."
        return replace(blank, status="infeasible", reasons=(reason,))
    warnings = support(context.model, context.gpu, settings).warnings
    notes = tuned + saturation_notes(sized) + adapter_notes(workload)
    notes += context.model.assumed + warnings + made.memory.notes
    return _priced(context, blank, made, sized, replicas, notes)


def _instance(context: _Context, settings: EngineSettings) -> Instance:
    settings = fewer_sequences(context.model, context.gpu, settings, expected_len=context.expected_len)
    resolved = resolve(settings, context.model, context.gpu, expected_len=context.expected_len)
    prompt = min(context.longest_prompt, resolved.max_model_len)
    if not resolved.enable_chunked_prefill and settings.max_num_batched_tokens is None:
        # a prompt must fit one step: an operator has to raise the limit
        resolved = replace(resolved, max_num_batched_tokens=max(resolved.max_num_batched_tokens, prompt))
    return instance(context.model, context.gpu, resolved, context.request)


def _tuned(
    context: _Context, settings: EngineSettings, start: Instance
) -> tuple[Instance, Size, EngineSettings, tuple[str, ...]]:
    """The variant of ``settings`` that carries most within the SLO; the defaults unless a knob gains 2 % or more (5 %
    for sessions), or they refuse what is asked.
    """
    workload, seed = context.workload, context.request.seed
    best, chosen, best_size, refusal = start, settings, None, None
    by_law = expected(start, workload, context.outputs)
    gain = TUNING_GAIN if workload.load.turns is None else SESSIONS_GAIN
    try:
        best_size = size(start, workload, context.outputs, seed, context.times_expected * by_law)
    except InfeasibleError as error:
        refusal = error
    if best_size is not None and by_law > 0 and best_size.share > 0:
        context.times_expected = best_size.largest / by_law
    for variant in variants(settings, offline=workload.load.kind == "offline") if context.generates else ():
        if not support(context.model, context.gpu, variant).ok:
            continue
        try:
            trial = _instance(context, variant)
            if not trial.memory.fits:
                continue
            wanted = best_size.largest * gain if best_size is not None else 0.0
            searched = workload.load.kind != "offline"
            if searched and wanted and not carries(trial, workload, context.outputs, seed, wanted):
                continue
            trial_size = size(trial, workload, context.outputs, seed, wanted)
        except PlannerError:
            continue
        if best_size is None or trial_size.share > best_size.share * gain:
            best, best_size, chosen = trial, trial_size, variant
    if best_size is None:
        raise refusal or InfeasibleError("serves nothing", field="load")
    turned = [
        f"{name} = {getattr(chosen, name)}"
        for name in ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "capacity_policy")
        if getattr(chosen, name) != getattr(settings, name)
    ]
    return best, best_size, chosen, ("Tuned: " + ", ".join(turned) + ".",) if turned else ()


def _priced(
    context: _Context, blank: Candidate, made: Instance, sized: Size, replicas: int, notes: tuple[str, ...]
) -> Candidate:
    workload, request = context.workload, context.request
    performance = at_planned_load(made, workload, context.outputs, replicas, request.seed)
    gpus = replicas * blank.gpus_per_replica
    paid = Decimal(gpus) / blank.sharers
    watts = _watts(context, made, performance, gpus)
    if blank.sharers > 1:
        performance = widened(performance, blank.sharers)
        watts = watts_of_share(context.gpu, watts, blank.sharers)
    electricity = mean_electricity(request, workload, context.gpu.name, watts, gpus, context.nodes)
    cost = bill_of(
        workload,
        request,
        made.resolved,
        _served(context, made, performance, sized, replicas),
        price=context.price,
        pool=context.pool,
        gpus=paid,
        replicas=replicas,
        gpus_per_replica=blank.gpus_per_replica,
        electricity=electricity,
    )
    cost = replace(cost, break_even_utilisation=_break_even(context, sized, paid, replicas))
    performance_user = performance.tpot_ms.mean if performance.tpot_ms else 0.0
    return replace(
        blank,
        status="ok",
        reasons=notes,
        performance=performance,
        replica_rate_per_s=sized.rate_per_s,
        replica_rate_80=sized.band,
        replicas=replicas,
        tok_s_per_gpu=performance.output_tok_per_s / float(paid) if context.generates else 0.0,
        tok_s_per_user=1000 / performance_user if performance_user > 0 else 0.0,
        cost=cost,
        evidence=performance.evidence,
        replica_share=sized.share,
        replica_extra_usd_per_hour=beyond_gpus_usd_per_hour(cost, replicas),
        watts_per_gpu=watts,
    )


def _break_even(context: _Context, sized: Size, gpus: Decimal, replicas: int) -> Decimal | None:
    """Share of the replicas' capacity at which the API price of the request would cost as much; None without one."""
    price = next((p for p in context.request.api_prices if p.workload == context.workload.name), None)
    if price is None:
        return None
    rate = sized.rate_per_s * replicas
    return break_even_utilisation(
        usd_per_hour=context.price.usd_per_gpu_hour * gpus,
        capacity_input_tok_per_s=rate * context.prompt,
        capacity_output_tok_per_s=rate * context.outputs.expected if context.generates else 0.0,
        api_usd_per_mtok_input=price.usd_per_mtok_input,
        api_usd_per_mtok_output=price.usd_per_mtok_output,
    )


def _served(context: _Context, made: Instance, performance: Performance, sized: Size, replicas: int) -> ServedLoad:
    workload = context.workload
    capacity = sized.rate_per_s * replicas
    demand = demand_per_s(workload)
    return ServedLoad(
        req_per_s=(performance.req_per_s if demand is None else demand) * workload.mean_load_share,
        input_tokens=context.prompt,
        output_tokens=context.outputs.expected if context.generates else 0.0,
        capacity_req_per_s=capacity,
        hours=workload.hours_per_month,
        prefill_time_share=_prefill_share(context, made, performance),
        throughput_80=throughput_factors(sized.rate_per_s, sized.band),
    )


def _prefill_share(context: _Context, made: Instance, performance: Performance) -> float:
    """Share of GPU time that prompts take: one prefill against the decode steps of one answer at the mean batch."""
    load = context.workload.load
    hit = load.prefix_hit if load.turns is None else performance.prefix_hit
    tokens = context.prompt * (1 - hit)
    prefill = made.step.mixed_ms(max(1, round(tokens)), 0, 0.0)
    if not context.generates:
        return 1.0
    batch = max(1, round(performance.mean_batch))
    answer = context.outputs.expected
    kv = context.prompt + answer / 2
    decode = answer * made.step.decode_ms(batch, kv) / batch
    return prefill / (prefill + decode) if prefill + decode > 0 else 0.5


def _watts(context: _Context, made: Instance, performance: Performance, gpus: int) -> float | None:
    """Mean watts over the month: at the mean, not the peak, of the demand."""
    replicas = gpus // made.resolved.gpus
    share = context.workload.mean_load_share / replicas
    return power_w(
        context.gpu,
        context.model,
        weights_gib_per_gpu=made.memory.weights_gib,
        kv_bytes_per_token_per_gpu=made.memory.kv_bytes_per_token,
        gpus=made.resolved.gpus,
        output_tok_per_s=performance.output_tok_per_s * share if context.generates else 0.0,
        total_tok_per_s=performance.computed_tok_per_s * share,
        mean_batch=performance.mean_batch,
        mean_context_tokens=context.prompt + context.outputs.expected / 2,
        ranks=made.resolved.dp,
    )


def _misses_slo(context: _Context, made: Instance) -> str:
    """Why no load at all meets the SLO, with the figure of an almost idle made."""
    best = lightest(made, context.workload, context.outputs, context.request.seed)
    values = {"ttft": best.ttft_ms, "tpot": best.tpot_ms, "itl": best.tpot_ms, "e2e": best.e2e_ms}
    broken = []
    for target in context.workload.slo:
        found = values[target.metric]
        reached = getattr(found, target.stat) if found is not None else None
        if reached is not None and reached > target.limit_ms:
            broken.append(f"{_metric(target)} is {reached:.0f} ms even alone, the limit is {target.limit_ms:.0f} ms")
    if not broken:
        return "The SLO is met by a lone request, but not by any steady load."
    return "; ".join(broken) + "."


def _metric(target: SloTarget) -> str:
    return f"{target.metric.upper()} {target.stat}"


def saturation_notes(sized: Size) -> tuple[str, ...]:
    """What to say of a size that lies at the edge."""
    if not sized.near_saturation:
        return ()
    return ("The largest load lies at the edge of saturation: 90 % of it is planned.",)


def candidate_id(workload: str, gpu: str, settings: EngineSettings, sharers: int = 1) -> str:
    """Stable id: workload/engine/gpu/tp..pp..ep..dp../precision; "s4" behind the shape on a quarter of a GPU."""
    shape = f"tp{settings.tp}pp{settings.pp}ep{settings.ep}dp{settings.dp}" + (f"s{sharers}" if sharers > 1 else "")
    return f"{workload}/{settings.engine.value}/{gpu}/{shape}/{settings.precision}"


def nvlink_group(settings: EngineSettings | ResolvedSettings) -> int:
    """GPUs that must share one NVLink domain: the tensor-parallel group; with experts spread, all of a stage."""
    return settings.tp * settings.dp if settings.ep > 1 or settings.dp > 1 else settings.tp

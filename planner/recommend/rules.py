"""Rules of thumb of the field, each held against this fleet and these workloads: true or not, with the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from statistics import median
from typing import Literal

from planner.catalog import get_gpu, get_model
from planner.economics.currency import symbol
from planner.economics.operations import (
    ADAPTER_SWAP_MINUTES,
    BUILD_MINUTES_TENSORRT,
    START_UP_MINUTES,
)
from planner.engines import EngineName, EngineSettings, as_loaded, resolve, support
from planner.errors import PlannerError
from planner.fragmentation import kv_waste
from planner.mix_types import Mix
from planner.models.sharding import total_weights_bytes
from planner.placement.candidates import gpu_of_nodes
from planner.placement.sizing import instance
from planner.plan_types import Candidate, EnginePlan, PlanRequest, PlanWorkload
from planner.recommend.preference import SAME, engine_of
from planner.serving.arrivals import request_set
from planner.serving.predict import predict
from planner.serving.types import Load
from planner.units import GIB
from planner.verdict_types import RuleOfThumb
from planner.words import ENGINE_LABEL, place_words, whole

Outcome = Literal["confirmed", "refuted", "mixed", "unsettled", "not_testable"]
DENSE_STREAMS = 128
KV_POOLFULS = 8
KV_REQUESTS = 1000


def rules_of_thumb(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    alone: Sequence[EnginePlan],
    mixes: Sequence[Mix],
) -> tuple[RuleOfThumb, ...]:
    """All rules, in a fixed order; one that nothing here can test says so. ``alone`` as ``engine_plans`` gives them."""
    pairs = _pairs(request, candidates)
    return (
        _ttft(pairs),
        _density(request, pairs),
        _fp8(request),
        _kv(request, candidates),
        _builds(candidates),
        _agility(request),
        _portability(request),
        _hybrid(alone, mixes, symbol(request.currency)),
    )


def _pairs(request: PlanRequest, candidates: Sequence[Candidate]) -> list[tuple[PlanWorkload, Candidate, Candidate]]:
    """(workload, vLLM, TensorRT-LLM) on the same GPU, shape and precision."""
    workloads = {workload.name: workload for workload in request.workloads}
    usable = {c.id: c for c in candidates if c.status == "ok"}
    found = []
    for candidate in usable.values():
        if engine_of(candidate) != "vllm":
            continue
        prefix, rest = candidate.workload + "/vllm/", candidate.id
        twin = usable.get(f"{candidate.workload}/tensorrt_llm/{rest.removeprefix(prefix)}")
        if twin is not None:
            found.append((workloads[candidate.workload], candidate, twin))
    return found


def _ttft(pairs: list[tuple[PlanWorkload, Candidate, Candidate]]) -> RuleOfThumb:
    """Judged on equal deployments; where the bands of both predictions leave room for the claim it is not refuted."""
    claim = "TensorRT-LLM's time to first token is 22 to 35 % lower than vLLM's on Hopper."
    cases, reach = [], []
    for workload, first, second in pairs:
        if get_gpu(first.gpu).architecture != "Hopper" or first.replicas != second.replicas:
            continue
        ours, theirs = first.performance, second.performance
        if ours and theirs and ours.ttft_ms and theirs.ttft_ms and ours.ttft_ms.p50 > 0:
            lower = 100 * (1 - theirs.ttft_ms.p50 / ours.ttft_ms.p50)
            cases.append((f"{workload.name} on {place_words(first.id)}: % lower", round(lower, 1)))
            if ours.ttft_ms_80 and theirs.ttft_ms_80 and ours.ttft_ms_80.low > 0:
                reach.append(
                    (
                        100 * (1 - theirs.ttft_ms_80.high / ours.ttft_ms_80.low),
                        100 * (1 - theirs.ttft_ms_80.low / ours.ttft_ms_80.high),
                    )
                )
    rule = _of_share("ttft", claim, cases, 22.0, 35.0, "TTFT p50 at the planned load")
    if rule.verdict != "refuted" or not reach:
        return rule
    least, most = median(low for low, _ in reach), median(high for _, high in reach)
    if least > 35.0 or most < 22.0:
        return rule
    doubt = (
        f" The 80 % bands of both leave room for {_side(least)} to {_side(most)}, the claim within it: a probe of each"
        " engine at one load would settle it."
    )
    return replace(rule, verdict="unsettled", sentence=rule.sentence + doubt)


def _density(request: PlanRequest, pairs: list[tuple[PlanWorkload, Candidate, Candidate]]) -> RuleOfThumb:
    claim = f"Past {DENSE_STREAMS} concurrent streams TensorRT-LLM packs more tokens per second on a GPU than vLLM."
    cases = []
    for workload, first, second in _one_per_workload(pairs):
        rates = [_closed_rate(workload, candidate, request, 2 * DENSE_STREAMS) for candidate in (first, second)]
        if rates[0] and rates[1]:
            gain = round(100 * (rates[1] / rates[0] - 1), 1)
            cases.append(
                (f"{workload.name} on {place_words(first.id)} at {2 * DENSE_STREAMS} streams: % more tokens/s", gain)
            )
    if not cases:
        return RuleOfThumb("density", claim, "not_testable", "No workload can be served by both engines alike here.")
    gains = [gain for _, gain in cases]
    outcome: Outcome = "confirmed" if min(gains) > 2 else "refuted" if max(gains) < 2 else "mixed"
    sentence = (
        f"At {2 * DENSE_STREAMS} streams TensorRT-LLM gives {whole(min(gains), sign=True)} to "
        f"{whole(max(gains), sign=True)} % tokens per second."
    )
    return RuleOfThumb("density", claim, outcome, sentence, tuple(cases))


def _closed_rate(workload: PlanWorkload, candidate: Candidate, request: PlanRequest, streams: int) -> float | None:
    if candidate.settings is None or get_model(workload.model).task != "generate":
        return None
    model, gpu = get_model(workload.model), gpu_of_nodes(candidate.gpu, request.nodes)
    resolved = candidate.settings
    if resolved.max_num_seqs < streams:
        resolved = replace(resolved, max_num_seqs=streams)
    made = instance(model, gpu, resolved, request)
    if not made.memory.fits:
        return None
    load = Load(
        "closed",
        concurrency=streams,
        requests=3 * streams,
        prefix_hit=workload.load.prefix_hit,
        turns=workload.load.turns,
        shared_tokens=workload.load.shared_tokens,
    )
    try:
        found = predict(
            made,
            load,
            workload.input_tokens,
            workload.output_tokens,
            seed=request.seed,
        )
    except PlannerError:
        return None
    return found.output_tok_per_s


def _fp8(request: PlanRequest) -> RuleOfThumb:
    claim = "FP8 halves the memory of the weights."
    cases = []
    for model_id in dict.fromkeys(workload.model for workload in request.workloads):
        model = get_model(model_id)
        gpu = get_gpu(next((node.gpu for node in request.nodes), "H100-SXM5-80GB"))
        if model.quantization.method != "none":
            continue
        sizes = {}
        for precision in ("bf16", "fp8"):
            resolved = resolve(EngineSettings(EngineName.VLLM, precision=precision), model, gpu)
            sizes[precision] = total_weights_bytes(as_loaded(model, resolved)) / GIB
        cases.append((f"{model_id}: FP8 / BF16", round(sizes["fp8"] / sizes["bf16"], 3)))
    if not cases:
        return RuleOfThumb("fp8", claim, "not_testable", "Every model here is already quantised.")
    ratios = [ratio for _, ratio in cases]
    outcome: Outcome = "confirmed" if max(ratios) <= 0.55 else "refuted" if min(ratios) > 0.6 else "mixed"
    sentence = (
        f"FP8 weights take {100 * min(ratios):.0f} to {100 * max(ratios):.0f} % of BF16: embeddings and head stay wide."
    )
    return RuleOfThumb("fp8", claim, outcome, sentence, tuple(cases))


def _kv(request: PlanRequest, candidates: Sequence[Candidate]) -> RuleOfThumb:
    claim = "Reserving the maximum length wastes 60 to 80 % of the KV cache; paging gives 2 to 4 times the streams."
    cases: list[tuple[str, float]] = []
    wasted, gains = [], []
    for workload in request.workloads:
        own = [c for c in candidates if c.workload == workload.name and c.status == "ok" and c.memory is not None]
        best = min(own, key=lambda c: (c.cost.usd_per_month if c.cost else Decimal(0), c.id), default=None)
        if best is None or best.memory is None or best.memory.kv_tokens < 1:
            continue
        try:
            load = Load("offline", requests=KV_REQUESTS)
            drawn = request_set(load, workload.input_tokens, workload.output_tokens, seed=request.seed, block_tokens=16)
            # The share does not depend on the pool's size: one that these requests fill several times over.
            mean_tokens = float((drawn.inputs + drawn.outputs).mean())
            pool_tokens = min(best.memory.kv_tokens, int(KV_REQUESTS * mean_tokens / KV_POOLFULS))
            found = kv_waste(
                drawn.inputs,
                drawn.outputs,
                pool_tokens,
                max_model_len=workload.max_model_len,
                max_seqs=KV_REQUESTS,
            )
        except PlannerError:
            continue
        wasted.append(100 * found.policy("contiguous").waste)
        gains.append(found.concurrency_gain)
        cases.append(
            (f"{workload.name}: % wasted when {found.max_model_len} tokens are reserved", round(wasted[-1], 1))
        )
        cases.append((f"{workload.name}: % wasted when paged", round(100 * found.policy("paged").waste, 1)))
        cases.append((f"{workload.name}: times the streams by paging", round(gains[-1], 2)))
    if not gains:
        return RuleOfThumb("kv", claim, "not_testable", "No workload here keeps a KV cache.")
    inside = [60 <= waste <= 80 and 2 <= gain <= 4 for waste, gain in zip(wasted, gains, strict=True)]
    outcome: Outcome = "confirmed" if all(inside) else "mixed" if any(inside) else "refuted"
    sentence = (
        f"On these workloads' lengths reservation wastes {min(wasted):.0f} to {max(wasted):.0f} % of the pool and "
        f"paging runs {min(gains):.1f} to {max(gains):.1f} times the streams."
    )
    return RuleOfThumb("kv", claim, outcome, sentence, tuple(cases))


def _builds(candidates: Sequence[Candidate]) -> RuleOfThumb:
    claim = "TensorRT-LLM needs 10 to 25 minutes of build for each topology and revision."
    used = [c for c in candidates if c.status == "ok" and engine_of(c) == "tensorrt_llm" and c.settings is not None]
    if not used:
        return RuleOfThumb("builds", claim, "not_testable", "No workload can run on TensorRT-LLM here.")
    built = [c for c in used if c.settings is not None and c.settings.trt_backend == "tensorrt"]
    start = START_UP_MINUTES[EngineName.TENSORRT_LLM]
    cases = (
        ("minutes to build, TensorRT back end", float(BUILD_MINUTES_TENSORRT)),
        ("minutes to warm up, PyTorch back end", float(start)),
    )
    if built:
        return RuleOfThumb("builds", claim, "confirmed", f"{len(built)} candidates build an engine first.", cases)
    sentence = (
        f"The candidates here use the PyTorch back end, which builds nothing: about {start} minutes of warm-up. "
        "The claim holds for the TensorRT back end, gone after 1.3.0rc20."
    )
    return RuleOfThumb("builds", claim, "refuted", sentence, cases)


def _agility(request: PlanRequest) -> RuleOfThumb:
    claim = "On vLLM adapters and revisions are there in seconds."
    start = dict(request.operations.start_up_minutes).get("vllm", START_UP_MINUTES[EngineName.VLLM])
    swap_s, start_s = float(ADAPTER_SWAP_MINUTES) * 60, float(start) * 60
    sentence = (
        f"True of adapters (0.1 to {swap_s:.1f} s from files at hand, loaded at run time), not of revisions: a new "
        f"model takes about {start_s:.0f} s from launch to healthy (94 s with a warm compile cache, 135 to 167 s cold)."
    )
    cases = (("adapter, seconds", swap_s), ("revision, seconds", start_s))
    return RuleOfThumb("agility", claim, "mixed", sentence, cases)


def _portability(request: PlanRequest) -> RuleOfThumb:
    claim = "TensorRT-LLM is for NVIDIA only; vLLM runs anywhere."
    cases = []
    for gpu_name in sorted({node.gpu for node in request.nodes}):
        gpu = get_gpu(gpu_name)
        for engine in EngineName:
            models = {workload.model for workload in request.workloads}
            able = sum(1 for m in models if support(get_model(m), gpu, EngineSettings(engine)).ok)
            cases.append(
                (f"{gpu_name}, {ENGINE_LABEL[engine.value]}: models it can run, of {len(models)}", float(able))
            )
    others = sorted({node.gpu for node in request.nodes if get_gpu(node.gpu).vendor != "nvidia"})
    if not others:
        return RuleOfThumb("portability", claim, "not_testable", "Every GPU of this fleet is NVIDIA's.", tuple(cases))
    sentence = f"{', '.join(others)}: vLLM only. A fleet with them cannot be TensorRT-LLM alone."
    return RuleOfThumb("portability", claim, "confirmed", sentence, tuple(cases))


def _hybrid(plans: Sequence[EnginePlan], mixes: Sequence[Mix], sign: str) -> RuleOfThumb:
    """The fleet as planned against each engine alone; then, workload by workload, both engines behind one router."""
    claim = "A fleet of both engines is cheaper than either alone."
    alone = [plan for plan in plans if plan.engine and plan.status != "infeasible"]
    if len(alone) < 2:
        return RuleOfThumb("hybrid", claim, "not_testable", "Only one engine can serve these workloads.")
    both = next(plan for plan in plans if not plan.engine)
    cases = [(f"as planned, {sign} a month", float(both.usd_per_month))]
    cases += [
        (
            f"{ENGINE_LABEL[p.engine]} alone, {sign} a month (serves {100 * p.served_share:.0f} %)",
            float(p.usd_per_month),
        )
        for p in alone
    ]
    split = _split_words(mixes)
    complete = [plan for plan in alone if plan.saving is not None]
    if not complete:
        sentence = "Neither engine alone serves as much as both: " + ", ".join(
            f"{ENGINE_LABEL[p.engine]} {100 * p.served_share:.0f} % of the demand" for p in alone
        )
        sentence = f"{sentence}, both {100 * both.served_share:.0f} %.{split}"
        return RuleOfThumb("hybrid", claim, "confirmed", sentence, tuple(cases))
    best = min(complete, key=lambda plan: plan.usd_per_month)
    saving = best.saving
    outcome: Outcome = "refuted"
    if best.too_close:
        outcome = "unsettled"
    elif saving is not None and saving.value >= SAME:
        outcome = "confirmed"
    band = "" if saving is None else f" ({whole(100 * saving.low)} to {whole(100 * saving.high)} %)"
    saved = 0.0 if saving is None else 100 * saving.value
    sentence = (
        f"As planned {sign}{both.usd_per_month:,.0f} a month, {ENGINE_LABEL[best.engine]} alone "
        f"{sign}{best.usd_per_month:,.0f}: {saved:.1f} % saved{band}.{split}"
    )
    return RuleOfThumb("hybrid", claim, outcome, sentence, tuple(cases))


def _split_words(mixes: Sequence[Mix]) -> str:
    """How many workloads gain by both engines behind one router; empty where none was compared."""
    compared = [mix for mix in mixes if len({part.engine for part in mix.parts}) > 1]
    if not compared:
        return ""
    counts = Counter(mix.outcome for mix in compared)
    return (
        f" Split over both engines, {counts['confirmed']} of {len(compared)} workloads would be cheaper than on either "
        f"alone, {counts['refuted']} would not, {counts['unsettled']} too close to call."
    )


def _of_share(name: str, claim: str, cases: list[tuple[str, float]], low: float, high: float, what: str) -> RuleOfThumb:
    if not cases:
        return RuleOfThumb(name, claim, "not_testable", "No pair of equal deployments on such GPUs is in this plan.")
    values = [value for _, value in cases]
    middle = median(values)
    inside = [low <= value <= high for value in values]
    outcome: Outcome = "confirmed" if all(inside) else "mixed" if any(inside) else "refuted"
    sentence = f"{what} is {_side(middle)} (median of {len(cases)}); from {_side(min(values))} to {_side(max(values))}."
    return RuleOfThumb(name, claim, outcome, sentence, tuple(cases[:16]))


def _side(lower: float) -> str:
    """A share by which something is lower, in words."""
    return f"{abs(lower):.0f} % {'lower' if lower >= 0 else 'higher'}"


def _one_per_workload(
    pairs: list[tuple[PlanWorkload, Candidate, Candidate]],
) -> list[tuple[PlanWorkload, Candidate, Candidate]]:
    first: dict[str, tuple[PlanWorkload, Candidate, Candidate]] = {}
    for pair in sorted(pairs, key=lambda p: (p[1].cost.usd_per_month if p[1].cost else Decimal(0), p[1].id)):
        first.setdefault(pair[0].name, pair)
    return list(first.values())

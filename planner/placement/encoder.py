"""One-pass models (embedding, classification): a batch server without decode, and what one instance carries.

Whenever the GPU is free, waiting prompts are taken in order of arrival up to the token budget of a step and the
sequence limit; all of them are answered when the step ends. Attention is bidirectional: a prompt of n tokens attends n
x n pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.engines.types import ResolvedSettings
from planner.errors import InputError
from planner.serving import bands
from planner.serving.arrivals import request_set, trace_at_rate
from planner.serving.instance import Instance
from planner.serving.metrics import percentiles, samples_of, slo_ratio
from planner.serving.predict import performance
from planner.serving.sizing import PROBE, STEEP
from planner.serving.types import LargestLoad, Lengths, Load, Performance, SimResult, SloTarget
from planner.steptime.kernel import step_ms
from planner.steptime.types import StepModel, kernel_args

REQUESTS = 1500
PRECISION = 0.01
_NO_OUTPUT = Lengths("fixed", value=1)
_Ratio = Callable[[Load], tuple[float, SimResult]]


def simulate_encoder(
    step: StepModel,
    resolved: ResolvedSettings,
    load: Load,
    inputs: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
) -> SimResult:
    """Serve ``load`` on one instance; TTFT and E2E are the time to the answer, TPOT does not exist.

    Raises InputError when a prompt is longer than the token budget of a step: an encoder cannot chunk it.
    """
    drawn = request_set(load, inputs, _NO_OUTPUT, seed=seed, block_tokens=resolved.block_tokens)
    lengths = drawn.inputs
    budget, width = resolved.max_num_batched_tokens, max(1, resolved.max_num_seqs)
    if int(lengths.max()) > budget:
        raise InputError(
            "a prompt is longer than the token budget of a step, and an encoder takes it in one",
            field="max_num_batched_tokens",
            value=budget,
            remedy=f"Raise it to {int(lengths.max())}.",
        )
    front = step.front_end
    before = front.request_ms + front.request_ms_per_1k_tokens * lengths / 1000
    ready = drawn.sent_ms + before if not drawn.closed else before.copy()
    first = drawn.first_issued if drawn.closed else lengths.size
    tables = kernel_args(step.tables)
    finish, start = np.zeros(lengths.size), drawn.sent_ms.astype(float).copy()
    order = list(np.argsort(ready[:first], kind="stable"))
    issued, now, busy, steps, batched, position = first, 0.0, 0.0, 0, 0, 0
    while position < len(order):
        head = order[position]
        now = max(now, float(ready[head]))
        taken: list[int] = []
        tokens = 0
        while position < len(order) and len(taken) < width:
            i = order[position]
            if ready[i] > now or (taken and tokens + int(lengths[i]) > budget):
                break
            taken.append(i)
            tokens += int(lengths[i])
            position += 1
        pairs = float(np.sum(lengths[taken].astype(float) ** 2))
        took = float(step_ms(*tables, float(tokens), float(len(taken)), pairs, 0.0, 0.0))  # type: ignore[call-arg]
        now += took
        busy += took
        steps += 1
        batched += len(taken)
        finish[taken] = now + front.response_ms
        for i in taken if drawn.closed else ():
            if issued >= lengths.size:
                break
            start[issued] = finish[i]
            ready[issued] = finish[i] + front.turnaround_ms + before[issued]
            order.append(issued)
            issued += 1
    latency = finish - start
    return _summary(load, lengths, start, finish, latency, busy, steps, batched, slo)


def _summary(
    load: Load,
    lengths: np.ndarray,
    start: np.ndarray,
    finish: np.ndarray,
    latency: np.ndarray,
    busy: float,
    steps: int,
    batched: int,
    slo: Sequence[SloTarget],
) -> SimResult:
    span_s = max(float(finish.max() - start.min()) / 1000, 1e-9)
    found = percentiles(latency)
    half = latency.size // 2
    grows = load.kind == "open" and half > 50 and latency[half:].mean() > 3 * max(latency[:half].mean(), 1e-9)
    targets = [t for t in slo if t.metric in ("ttft", "e2e")]
    met = np.ones(latency.size, dtype=bool)
    for target in targets:
        met &= latency <= target.limit_ms
    return SimResult(
        requests=latency.size,
        completed=latency.size,
        duration_s=span_s,
        output_tok_per_s=0.0,
        total_tok_per_s=float(lengths.sum()) / span_s,
        req_per_s=latency.size / span_s,
        ttft_ms=found,
        tpot_ms=None,
        itl_ms=None,
        e2e_ms=found,
        goodput_per_s=float(met.sum()) / span_s if slo else None,
        preemptions=0,
        utilisation=min(busy / (span_s * 1000), 1.0),
        mean_batch=batched / max(steps, 1),
        mean_kv_used=0.0,
        kv_waste=0.0,
        steps=steps,
        saturated=bool(grows),
        samples=samples_of(latency, latency),
    )


def predict_one_pass(
    instance: Instance, load: Load, inputs: Lengths, *, seed: int = 0, replicas: int = 1
) -> Performance:
    """Performance of ``replicas`` that share ``load`` evenly: latencies of one, throughputs of all of them.

    Raises InputError for prompts that one step or the context cannot hold.
    """
    context = instance.resolved.max_model_len
    if inputs.longest > context:
        remedy = "Shorten the prompts or cut them, as the embedding service would have to."
        raise InputError(
            f"longer than the context of {context} tokens", field="input_tokens", value=inputs.longest, remedy=remedy
        )
    found = simulate_encoder(instance.step, instance.resolved, _part(load, replicas), inputs, seed=seed)
    one = performance(found, instance.step, where="offline" if load.kind == "offline" else "")
    return replace(one, req_per_s=one.req_per_s * replicas, total_tok_per_s=one.total_tok_per_s * replicas)


def _part(load: Load, replicas: int) -> Load:
    """The load of each of ``replicas``."""
    if replicas == 1:
        return load
    requests = None if load.requests is None else max(1, round(load.requests / replicas))
    if load.kind == "closed":
        return replace(load, requests=requests, concurrency=max(1, round((load.concurrency or 1) / replicas)))
    return replace(load, requests=requests, rate_per_s=load.rate_per_s / replicas)


def largest_encoder_load(
    step: StepModel,
    resolved: ResolvedSettings,
    load: Load,
    inputs: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
) -> LargestLoad:
    """Largest load of one instance within ``slo``: bisection on the rate (open) or on the clients (closed)."""
    count = load.requests or REQUESTS
    runs = 0

    def ratio(trial: Load) -> tuple[float, SimResult]:
        nonlocal runs
        runs += 1
        found = simulate_encoder(step, resolved, trial, inputs, slo=slo, seed=seed)
        worst = slo_ratio(slo, found.ttft_ms, None, None, found.e2e_ms)
        return (max(worst, 2.0) if found.saturated else worst), found

    full = simulate_encoder(step, resolved, Load("offline", requests=min(count, REQUESTS)), inputs, seed=seed)
    if load.kind == "offline":
        return _answer(step, full, full.req_per_s, steep=False, concurrency=0, runs=1)
    if load.kind == "closed":
        return _largest_clients(step, load, ratio)
    low, high, best = 0.0, full.req_per_s, None
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        worst, found = ratio(_at_rate(load, middle, count))
        if worst <= 1.0:
            low, best = middle, found
        else:
            high = middle
        if high < 1e-3 * full.req_per_s:
            break
    if best is None:
        return _answer(step, None, 0.0, steep=False, concurrency=0, runs=runs)
    steep = ratio(_at_rate(load, low * PROBE, count))[0] > STEEP or low > 0.97 * full.req_per_s
    return _answer(step, best, low, steep=steep, concurrency=0, runs=runs)


def _largest_clients(step: StepModel, load: Load, ratio: _Ratio) -> LargestLoad:
    low, best, clients, runs = 0, None, 1, 0
    while clients <= 8192:
        worst, found = ratio(replace(load, concurrency=clients, requests=max(20 * clients, 200)))
        runs += 1
        if worst > 1.0 or (best is not None and found.req_per_s < 1.01 * best.req_per_s):
            break
        low, best = clients, found
        clients *= 2
    rate = best.req_per_s if best is not None else 0.0
    return _answer(step, best, rate, steep=False, concurrency=low, runs=runs)


def _at_rate(load: Load, rate: float, count: int) -> Load:
    if load.arrival != "trace":
        return replace(load, rate_per_s=rate, requests=count)
    return replace(load, times_s=trace_at_rate(load.times_s, rate))


def _answer(
    step: StepModel, result: SimResult | None, rate: float, *, steep: bool, concurrency: int, runs: int
) -> LargestLoad:
    by = bands.factors(step.evidence, "ttft", "any")
    spread = bands.Factors(1 / max(by.high, 1.0), 1 / min(by.low, 1.0))
    return LargestLoad(
        rate_per_s=rate,
        band=bands.interval(rate, spread),
        result=result,
        near_saturation=steep,
        concurrency=concurrency,
        binding="e2e" if not steep and not math.isclose(rate, 0.0) else "throughput",
        simulations=runs,
    )

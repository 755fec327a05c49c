"""A service of several parts: its percentiles are those of all requests together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, step_model, vllm_rules

from planner.errors import InputError
from planner.evidence import Evidence
from planner.serving.arrivals import request_set
from planner.serving.mixture import ServedPart, mixed_latencies, mixed_percentiles, mixed_performance
from planner.serving.predict import performance
from planner.serving.simulator import run_requests
from planner.serving.types import Distribution, Lengths, Load, Percentiles, Samples, SimResult

STATS = ("p50", "p90", "p95", "p99")
latencies = st.lists(st.floats(0.1, 1e5), min_size=1, max_size=60).map(lambda found: Distribution(np.array(found)))


def quantiles(part: Distribution) -> list[float]:
    return [float(value) for value in np.percentile(part.values, (50, 90, 95, 99))]


def run(load: Load) -> SimResult:
    requests = request_set(
        load, Lengths("fixed", value=512), Lengths("normal", mean=60, sd=20), seed=1, block_tokens=16
    )
    return run_requests(step_model(REAL_FRONT_END), vllm_rules(), requests)


def served(share: float, rate: float, *, factor: float = 1.0, replicas: int = 1) -> ServedPart:
    result = run(Load("open", rate_per_s=rate, requests=600))
    samples = result.samples
    moved = Samples(
        *(None if d is None else d.scaled(factor) for d in (samples.ttft_ms, samples.e2e_ms, samples.tpot_ms))
    )
    found = performance(result, step_model(REAL_FRONT_END))
    ttft = Percentiles(*(factor * getattr(found.ttft_ms, name) for name in ("mean", *STATS)))
    return ServedPart(share, replicas, replace(found, ttft_ms=ttft), moved)


@given(latencies)
def test_a_mixture_of_one_part_is_that_part(part: Distribution) -> None:
    found = mixed_percentiles([(0.3, part)])
    assert found.mean == pytest.approx(part.values.mean())
    assert [getattr(found, name) for name in STATS] == pytest.approx(quantiles(part), rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), latencies), min_size=2, max_size=4))
def test_quantiles_of_the_whole_lie_between_those_of_its_parts(parts: list[tuple[float, Distribution]]) -> None:
    found = mixed_percentiles(parts)
    for at, name in enumerate(STATS):
        own = [quantiles(part)[at] for _, part in parts]
        assert min(own) * (1 - 1e-9) <= getattr(found, name) <= max(own) * (1 + 1e-9)


def test_quantiles_are_not_means_of_quantiles() -> None:
    fast, slow = Distribution(np.linspace(10, 20, 1001)), Distribution(np.linspace(1000, 2000, 1001))
    found = mixed_percentiles([(0.98, fast), (0.02, slow)])
    assert found.p50 == pytest.approx(10 + 10 * 0.5 / 0.98, rel=1e-3)
    assert found.p99 == pytest.approx(1500, rel=1e-3)  # half of the slow requests are the slowest hundredth
    pooled = np.concatenate([np.repeat(fast.values, 49), slow.values])
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(
        list(np.percentile(pooled, (50, 90, 95, 99))), rel=5e-3
    )


def test_counts_stand_for_repeated_values() -> None:
    counted = Distribution(np.array([3.0, 1.0, 7.0]), np.array([2, 3, 0]))
    spelt = Distribution(np.array([1.0, 1.0, 1.0, 3.0, 3.0]))
    assert mixed_percentiles([(1.0, counted)]) == mixed_percentiles([(1.0, spelt)])
    assert mixed_percentiles([(1.0, None), (0.0, spelt)]) is None


def test_requests_of_one_token_have_no_say_in_the_time_between_tokens() -> None:
    ones = np.full(90, 5.0)
    first = Samples(Distribution(ones), Distribution(ones), Distribution(np.full(9, 50.0)))
    second = Samples(Distribution(ones), Distribution(ones), Distribution(np.full(90, 10.0)))
    found = mixed_latencies([(0.5, first), (0.5, second)])
    assert found.tpot_ms.mean == pytest.approx((50.0 * 0.1 + 10.0) / 1.1)


def test_samples_are_those_that_the_percentiles_of_a_run_were_made_of() -> None:
    result = run(Load("closed", concurrency=12, requests=200))
    found = mixed_latencies([(1.0, result.samples)])
    for kind in ("ttft_ms", "tpot_ms", "e2e_ms"):
        mixed, own = getattr(found, kind), getattr(result, kind)
        assert [getattr(mixed, s) for s in STATS] == pytest.approx([getattr(own, s) for s in STATS], rel=1e-9)
    assert found.itl_ms.p99 == pytest.approx(result.itl_ms.p99, rel=0.02)


def test_a_router_that_draws_lots_gives_the_predicted_percentiles() -> None:
    """12,000 requests dealt out one by one to a fast and a slow engine, against each at its own Poisson rate."""
    rate, share = 40.0, 0.7
    load = Load("open", rate_per_s=rate, requests=12_000)
    inputs, outputs = Lengths("fixed", value=512), Lengths("normal", mean=60, sd=20)
    fast, slow = step_model(REAL_FRONT_END, bandwidth=2.0), step_model(REAL_FRONT_END, bandwidth=0.3)
    everyone = request_set(load, inputs, outputs, seed=3, block_tokens=16)
    lots = np.random.default_rng(4).random(everyone.size) < share
    dealt = []
    for step, own in ((fast, lots), (slow, ~lots)):
        part = replace(
            everyone, first_issued=int(own.sum()),
            **{name: getattr(everyone, name)[own] for name in ("sent_ms", "inputs", "outputs", "hits", "think_ms")},
        )  # fmt: skip
        dealt.append(run_requests(step, vllm_rules(), part).samples)
    pooled = np.concatenate([samples.ttft_ms.values for samples in dealt])
    predicted = []
    for step, part in ((fast, share), (slow, 1 - share)):
        drawn = request_set(replace(load, rate_per_s=rate * part), inputs, outputs, seed=5, block_tokens=16)
        predicted.append((part, run_requests(step, vllm_rules(), drawn).samples))
    found = mixed_latencies(predicted).ttft_ms
    assert [found.p50, found.p90, found.p95] == pytest.approx(list(np.percentile(pooled, (50, 90, 95))), rel=0.05)
    assert found.mean == pytest.approx(pooled.mean(), rel=0.05)
    medians = [float(np.median(samples.ttft_ms.values)) for _, samples in predicted]
    assert medians[1] > 1.5 * medians[0]


def test_throughput_adds_up_and_the_weakest_evidence_counts() -> None:
    first, second = served(0.75, 6.0, replicas=3), served(0.25, 2.0, factor=2.0)
    second = replace(second, performance=replace(second.performance, evidence=Evidence.ROOFLINE, saturated=True))
    whole = mixed_performance([first, second])
    each = [first.performance, second.performance]
    for name in ("output_tok_per_s", "total_tok_per_s", "req_per_s", "preemptions"):
        assert getattr(whole, name) == pytest.approx(sum(getattr(p, name) for p in each))
    band = whole.output_tok_per_s_80
    assert band.value == pytest.approx(whole.output_tok_per_s)
    assert band.low == pytest.approx(sum(p.output_tok_per_s_80.low for p in each))
    assert whole.ttft_ms_80.low <= whole.ttft_ms.p50 <= whole.ttft_ms_80.high
    assert whole.evidence is Evidence.ROOFLINE
    assert whole.saturated
    assert whole.goodput_per_s is None
    assert first.performance.ttft_ms.p50 <= whole.ttft_ms.p50 <= second.performance.ttft_ms.p50


def test_one_part_alone_keeps_its_bands() -> None:
    part = served(1.0, 6.0)
    whole = mixed_performance([part])
    for name in ("output_tok_per_s_80", "ttft_ms_80", "tpot_ms_80"):
        mixed, own = getattr(whole, name), getattr(part.performance, name)
        assert (mixed.value, mixed.low, mixed.high) == pytest.approx((own.value, own.low, own.high), rel=1e-9)


def test_shares_must_add_up() -> None:
    with pytest.raises(InputError, match="share"):
        mixed_performance([served(0.5, 3.0)])

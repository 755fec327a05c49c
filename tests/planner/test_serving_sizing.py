"""Largest load, replicas, curves, bands and arrivals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, step_model, tables, uniform, vllm_rules

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.errors import InputError
from planner.evidence import Evidence
from planner.memory import ledger
from planner.serving import (
    Instance,
    LargestLoad,
    Lengths,
    Load,
    SloTarget,
    bands,
    largest_load,
    load_curve,
    load_sensitivity,
    predict,
    replicas_for,
    simulate,
)
from planner.serving.arrivals import mean_rate, request_set, trace_at_rate
from planner.serving.simulator import run_requests
from planner.steptime.types import StepModel

MODEL = get_model("Qwen/Qwen3-8B")
GPU = get_gpu("H200")
RESOLVED = resolve(EngineSettings(EngineName.VLLM), MODEL, GPU, expected_len=4096)
LEDGER = ledger(MODEL, GPU, RESOLVED)
STEP = StepModel(tables(), REAL_FRONT_END, Evidence.SILICON)
INSTANCE = Instance(MODEL, RESOLVED, LEDGER, STEP)
CHAT = (uniform(200, 1800), uniform(50, 350))
TPOT = (SloTarget("tpot", "p99", 12.0), SloTarget("ttft", "p90", 400.0))


def test_largest_load_meets_the_slo_and_a_little_more_does_not() -> None:
    found = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=TPOT)
    assert found.result is not None
    assert found.result.tpot_ms is not None
    assert found.result.tpot_ms.p99 <= 12.0
    assert found.simulations <= 15
    more = Load("open", rate_per_s=found.rate_per_s * 1.1, requests=1200)
    beyond = simulate(INSTANCE, more, *CHAT)
    assert beyond.tpot_ms is not None
    assert beyond.ttft_ms is not None
    assert beyond.tpot_ms.p99 > 12.0 or beyond.ttft_ms.p90 > 400.0
    assert found.band.low < found.rate_per_s < found.band.high


def test_a_looser_slo_never_carries_less() -> None:
    loads = [
        largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=(SloTarget("tpot", "mean", limit),)).rate_per_s
        for limit in (4.0, 8.0, 12.0, 40.0)
    ]
    assert loads == sorted(loads)
    assert loads[0] == 0.0
    assert loads[-1] > 0.0


def test_near_saturation_is_said_and_widens_the_band() -> None:
    """P11: where capacity and not latency limits, small errors are large ones."""
    loose = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=(SloTarget("e2e", "p99", 1e9),))
    tight = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=TPOT)
    assert loose.near_saturation
    assert loose.band.low / loose.rate_per_s < tight.band.low / tight.rate_per_s


@pytest.mark.parametrize("version", ["0.11.0", "0.24.0"])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    ("prompt", "output", "pool_tokens"), [(256, 512, 52_224), (1000, 500, 48_000), (8000, 1000, 96_000)]
)
def test_what_a_tight_pool_carries_is_carried_ten_times_as_long(
    version: str, caching: bool, prompt: int, output: int, pool_tokens: int
) -> None:
    """Pools that preempt when all comes at once: 1,200 requests at the rate found are no fluke of a short run."""
    tight = replace(
        INSTANCE,
        resolved=replace(RESOLVED, version=version, enable_prefix_caching=caching, max_model_len=32_768),
        memory=replace(LEDGER, kv_tokens=pool_tokens, kv_blocks=pool_tokens // 16),
    )
    lengths = uniform(prompt // 2, prompt * 3 // 2), uniform(output // 2, output * 3 // 2)
    found = largest_load(tight, Load("open", rate_per_s=1), *lengths)
    offline = largest_load(tight, Load("offline", requests=1200), *lengths)
    assert offline.result is not None
    assert offline.result.preemptions > 0
    longer = simulate(tight, Load("open", rate_per_s=found.rate_per_s, requests=12_000), *lengths)
    assert not longer.saturated
    assert longer.req_per_s > 0.99 * found.rate_per_s
    assert found.rate_per_s > 0.97 * offline.rate_per_s
    assert found.near_saturation
    assert found.simulations <= 15


def test_an_open_load_may_exceed_what_is_served_with_everything_queued() -> None:
    """Everything queued fills the pool and preempts 1,600 times; at 4 % more than it delivers nobody waits."""
    tight = replace(INSTANCE, memory=replace(LEDGER, kv_tokens=52_224, kv_blocks=3264))
    lengths = uniform(128, 384), uniform(256, 768)
    queued = simulate(tight, Load("offline", requests=1200), *lengths)
    found = largest_load(tight, Load("open", rate_per_s=1), *lengths, slo=(SloTarget("ttft", "p99", 2000.0),))
    assert queued.preemptions > 1000
    assert found.rate_per_s > 1.03 * queued.req_per_s
    longer = simulate(tight, Load("open", rate_per_s=found.rate_per_s, requests=12_000), *lengths)
    assert longer.ttft_ms is not None
    assert longer.ttft_ms.p99 < 2000.0


def test_closed_and_offline_loads_are_sized_too() -> None:
    closed = largest_load(INSTANCE, Load("closed", concurrency=1), *CHAT, slo=TPOT)
    assert closed.concurrency > 8
    offline = largest_load(INSTANCE, Load("offline", requests=400), *CHAT)
    assert offline.result is not None
    assert offline.rate_per_s == pytest.approx(400 / offline.result.duration_s)
    twice = largest_load(INSTANCE, Load("closed", concurrency=1), *CHAT, slo=TPOT, replicas=2)
    assert twice.rate_per_s == pytest.approx(2 * closed.rate_per_s)
    assert twice.concurrency == 2 * closed.concurrency


def test_a_trace_is_scaled_in_time() -> None:
    times = tuple(np.cumsum(np.random.default_rng(1).exponential(0.2, 1500)).tolist())
    load = Load("open", arrival="trace", times_s=times)
    found = largest_load(INSTANCE, load, *CHAT, slo=TPOT)
    assert found.rate_per_s > 5.0


def test_replicas_for_a_demand() -> None:
    one = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=TPOT)
    assert replicas_for(one.rate_per_s * 2, one) == 2
    assert replicas_for(one.rate_per_s * 2.01, one) == 3
    assert replicas_for(one.rate_per_s * 2, one, n_plus_1=True) == 3
    nothing = LargestLoad(0.0, one.band, None, near_saturation=False)
    assert replicas_for(1.0, nothing) is None
    with pytest.raises(InputError, match="demand_per_s"):
        replicas_for(-1.0, one)


def test_the_last_percent_of_load_costs_more_near_the_knee() -> None:
    top = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=(SloTarget("e2e", "p99", 1e9),)).rate_per_s

    def slope(share: float) -> float:
        load = Load("open", rate_per_s=share * top, requests=2000)
        return load_sensitivity(INSTANCE, load, *CHAT)

    assert slope(1.0) > 2 * slope(0.5)


def test_goodput_falls_past_the_knee() -> None:
    curve = load_curve(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=TPOT, points=10)
    goodput = [point.performance.goodput_per_s or 0.0 for point in curve]
    best = int(np.argmax(goodput))
    assert best < len(curve) - 1
    assert goodput[-1] < goodput[best]
    assert all(point.meets_slo == (i <= sum(p.meets_slo for p in curve) - 1) for i, point in enumerate(curve))
    closed = load_curve(INSTANCE, Load("closed", concurrency=1), *CHAT, points=6)
    rates = [point.performance.output_tok_per_s for point in closed]
    assert rates == sorted(rates)


def test_bands_hold_the_value_and_widen_with_weaker_evidence() -> None:
    width = {}
    for evidence in (Evidence.SILICON, Evidence.ROOFLINE):
        step = StepModel(tables(), REAL_FRONT_END, evidence)
        seen = predict(replace(INSTANCE, step=step), Load("closed", concurrency=16), *CHAT)
        band = seen.output_tok_per_s_80
        assert band.low < band.value < band.high
        assert seen.ttft_ms_80 is not None
        assert seen.ttft_ms_80.low < seen.ttft_ms_80.high
        width[evidence] = band.high / band.low
    assert width[Evidence.ROOFLINE] > width[Evidence.SILICON]
    calibrated = bands.factors(Evidence.CALIBRATED, "tpot", "light", residual_log_sd=0.02)
    assert calibrated.high < 1.03
    plain = StepModel(tables(), REAL_FRONT_END, Evidence.SILICON)
    probed = replace(plain, evidence=Evidence.CALIBRATED, factors={"calibration": 1.0, "calibration_log_sd": 0.02})
    before, after = (
        predict(replace(INSTANCE, step=step), Load("closed", concurrency=16), *CHAT) for step in (plain, probed)
    )
    assert before.tpot_ms_80 is not None
    assert after.tpot_ms_80 is not None
    assert after.tpot_ms_80.high / after.tpot_ms_80.low < 1.06 < before.tpot_ms_80.high / before.tpot_ms_80.low
    assert after.ttft_ms_80 == before.ttft_ms_80


def test_an_engine_with_rows_enough_has_bands_of_its_own() -> None:
    vllm, trt = (bands.factors(Evidence.SILICON, "ttft", "any", engine=name) for name in ("vllm", "tensorrt_llm"))
    assert vllm != trt
    everyone = bands.factors(Evidence.SILICON, "ttft", "any")
    assert bands.factors(Evidence.SILICON, "ttft", "any", engine="another") == everyone


def test_runs_of_which_nothing_is_hidden_have_narrower_bands() -> None:
    # not of TPOT: open loops, whose steps with a prompt last longer than predicted, are a larger part of these rows
    for metric, share in (("ttft", 0.6), ("output_tok_per_s", 0.65)):
        known, hidden = (
            bands.factors(Evidence.SILICON, metric, "any", engine=name) for name in ("vllm, as measured", "vllm")
        )
        assert known.high / known.low < share * hidden.high / hidden.low
    # a group without rows has those of its engine
    other, engine = (
        bands.factors(Evidence.SILICON, "ttft", "any", engine=name)
        for name in ("tensorrt_llm, as measured", "tensorrt_llm")
    )
    assert other == engine


def test_few_rows_tell_less_of_a_tenth() -> None:
    few, many = (bands.quantiles(np.linspace(0.5, 1.5, count).tolist()) for count in (20, 2000))
    assert few.low < many.low < 0.61
    assert few.high > many.high > 1.39


def test_open_loop_bands_widen_towards_saturation() -> None:
    top = largest_load(INSTANCE, Load("open", rate_per_s=1), *CHAT, slo=(SloTarget("e2e", "p99", 1e9),)).rate_per_s

    def spread(share: float) -> float:
        load = Load("open", rate_per_s=share * top, requests=1500)
        band = predict(INSTANCE, load, *CHAT).ttft_ms_80
        assert band is not None
        return band.high / band.value

    assert spread(0.98) > 1.5 * spread(0.3)


def test_saturation_is_seen() -> None:
    def saturated(rate: float) -> bool:
        load = Load("open", rate_per_s=rate, requests=1500)
        return simulate(INSTANCE, load, *CHAT).saturated

    assert not saturated(5.0)
    assert saturated(200.0)


def test_the_least_loaded_replica_spares_the_tail() -> None:
    """Long answers fill the seats of some replicas: a router that looks keeps the tail shorter than taking turns."""
    outputs = Lengths("samples", samples=(20,) * 9 + (3000,))
    requests = request_set(Load("open", rate_per_s=6, requests=1200), fixed(200), outputs, seed=2, block_tokens=16)
    rules = vllm_rules(seqs=6)
    turn = run_requests(step_model(), rules, requests, instances=3)
    least = run_requests(step_model(), rules, requests, instances=3, router="least_loaded")
    assert turn.completed == least.completed == 1200
    assert turn.ttft_ms is not None
    assert least.ttft_ms is not None
    assert least.ttft_ms.p99 < turn.ttft_ms.p99


def test_a_long_run_in_chunks_agrees_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("open", rate_per_s=10, requests=6000)
    whole = simulate(INSTANCE, load, *CHAT, slo=TPOT)
    monkeypatch.setattr("planner.serving.simulator.LONG_RUN", 1000)
    monkeypatch.setattr("planner.serving.simulator.CHUNK", 700)
    chunked = simulate(INSTANCE, load, *CHAT, slo=TPOT)
    assert chunked.requests == chunked.completed == 6000
    assert whole.ttft_ms is not None
    assert chunked.ttft_ms is not None
    assert chunked.ttft_ms.p50 == pytest.approx(whole.ttft_ms.p50, rel=0.02)
    assert chunked.output_tok_per_s == pytest.approx(whole.output_tok_per_s, rel=0.03)
    assert chunked.goodput_per_s == pytest.approx(whole.goodput_per_s, rel=0.03)
    twice = simulate(INSTANCE, load, *CHAT, slo=TPOT, replicas=2)
    assert twice.completed == 6000
    assert not chunked.saturated


def test_timeline_and_waste() -> None:
    load = Load("offline", requests=300)
    seen = simulate(INSTANCE, load, *CHAT, timeline=True)
    assert seen.timeline is not None
    line = seen.timeline
    assert line.t_s.size == line.running.size == line.kv_used.size
    assert line.waiting[0] > 0
    assert line.running.max() <= RESOLVED.max_num_seqs
    assert (line.live_kv <= line.kv_used + 1e-9).all()
    assert 0.0 < seen.kv_waste < 0.2


def test_speculative_decoding_gains_what_is_accepted() -> None:
    drafted = EngineSettings(EngineName.VLLM, speculative_tokens=3, speculative_acceptance=1.0)
    resolved = resolve(drafted, MODEL, GPU, expected_len=4096)
    load = Load("closed", concurrency=1, requests=8)
    plain = simulate(INSTANCE, load, fixed(256), fixed(257))
    faster = simulate(replace(INSTANCE, resolved=resolved), load, fixed(256), fixed(257))
    assert plain.tpot_ms is not None
    assert faster.tpot_ms is not None
    assert plain.tpot_ms.mean / faster.tpot_ms.mean == pytest.approx(2.0, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    arrival=st.sampled_from(["poisson", "constant", "gamma", "onoff"]),
    rate=st.floats(0.1, 500.0),
    seed=st.integers(0, 99),
)
def test_arrivals_keep_their_rate_and_order(arrival: str, rate: float, seed: int) -> None:
    load = Load("open", rate_per_s=rate, arrival=arrival, cv=1.5, requests=4000, period_s=200.0 / rate)  # type: ignore[arg-type]
    requests = request_set(load, fixed(10), fixed(10), seed=seed, block_tokens=16)
    assert (np.diff(requests.sent_ms) >= 0).all()
    assert requests.size / requests.sent_ms[-1] * 1000.0 == pytest.approx(rate, rel=0.12)


def test_the_last_of_a_stated_number_of_poisson_arrivals_falls_where_the_rate_puts_it() -> None:
    load = Load("open", rate_per_s=12.0, requests=240)
    ends = {request_set(load, fixed(10), fixed(10), seed=seed, block_tokens=16).sent_ms[-1] for seed in range(5)}
    assert max(ends) == pytest.approx(20_000.0)
    assert min(ends) == pytest.approx(20_000.0)


def test_streaming_leaves_the_front_end_less_time_for_new_requests() -> None:
    load = Load("open", rate_per_s=8.0, requests=300)
    chunks = simulate(INSTANCE, load, fixed(512), fixed(256)).ttft_ms
    free = replace(STEP, front_end=replace(REAL_FRONT_END, chunk_ms=0.0))
    none = simulate(replace(INSTANCE, step=free), load, fixed(512), fixed(256)).ttft_ms
    assert chunks is not None
    assert none is not None
    share = 0.087e-3 * 8.0 * 256
    alone = 7.5 + 2.0 * 0.512 + 4.0 + 0.7
    assert chunks.mean - none.mean == pytest.approx(alone * share / (1 - share), abs=1.5)


def test_samples_of_one_trace_stay_together() -> None:
    inputs, outputs = Lengths("samples", samples=(10, 2000)), Lengths("samples", samples=(1, 500))
    drawn = request_set(Load("offline", requests=200), inputs, outputs, seed=1, block_tokens=16)
    assert {(int(i), int(o)) for i, o in zip(drawn.inputs, drawn.outputs, strict=True)} == {(10, 1), (2000, 500)}


@pytest.mark.parametrize(
    ("load", "field"),
    [
        (Load("closed"), "load.concurrency"),
        (Load("open"), "load.rate_per_s"),
        (Load("offline"), "load.requests"),
        (Load("open", arrival="trace", times_s=(3.0, 1.0)), "load.times_s"),
        (Load("closed", concurrency=1, prefix_hit=1.5), "load.prefix_hit"),
        (Load("closed", concurrency=1, think_s=-1.0), "load.think_s"),
    ],
)
def test_senseless_loads_name_the_field(load: Load, field: str) -> None:
    with pytest.raises(InputError) as caught:
        request_set(load, fixed(10), fixed(10), seed=0, block_tokens=16)
    assert caught.value.field == field


@given(share=st.floats(0.05, 0.99), seed=st.integers(0, 20))
def test_a_thinned_trace_keeps_its_span_and_spreads_its_bursts(share: float, seed: int) -> None:
    gaps = np.random.default_rng(seed).exponential(1.0, 400)
    gaps[::10] = 0.0  # bursts
    times = tuple(float(t) for t in np.cumsum(gaps))
    thin = trace_at_rate(times, mean_rate(times) * share)
    assert set(thin) <= set(times)
    assert len(thin) == pytest.approx(len(times) * share, abs=1.01)
    assert list(thin) == sorted(thin)


def test_a_trace_above_its_rate_is_compressed() -> None:
    times = (10.0, 11.0, 13.0)
    assert trace_at_rate(times, 2.0 * mean_rate(times)) == pytest.approx((10.0, 10.5, 11.5))

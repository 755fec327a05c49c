"""Disaggregated pools: limits that are known, order properties, and every role checked before anything is shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, step_model, uniform

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings
from planner.engines.disaggregation import role_settings
from planner.errors import InfeasibleError, InputError
from planner.evidence import Evidence
from planner.memory import ledger
from planner.serving import Instance, Load, SloTarget, simulate
from planner.serving.disaggregated import Disaggregated, simulate_disaggregated
from planner.serving.disaggregated_sizing import RESIDUALS, largest_disaggregated_load, predict_disaggregated
from planner.serving.kv_transfer import Link
from planner.serving.predict import performance

H100 = get_gpu("H100-SXM5-80GB")
MODEL = get_model("meta-llama/Llama-3.1-8B-Instruct")
NOTHING = Link("nvlink", 1e12, 1.0, 0.0)
SLO = (SloTarget("ttft", "p99", 1500.0), SloTarget("tpot", "p99", 25.0))


def instance(role: str, engine: str = "vllm", *, front_end=REAL_FRONT_END, **other) -> Instance:
    asked = EngineSettings(EngineName(engine), **other)
    resolved = role_settings(asked, MODEL, H100, role, expected_len=6000, longest_prompt=5000)
    return Instance(MODEL, resolved, ledger(MODEL, H100, resolved), step_model(front_end))


def unit(prefill: int = 1, decode: int = 1, engine: str = "vllm", link: Link = NOTHING) -> Disaggregated:
    return Disaggregated(instance("prefill", engine), instance("decode", engine), prefill, decode, link)


def poisson(rate: float, requests: int = 400) -> Load:
    return Load("open", rate_per_s=rate, requests=requests)


def test_a_lone_request_pays_prefill_transfer_and_one_decode_step() -> None:
    load = Load("closed", concurrency=1, requests=8)
    result, use = simulate_disaggregated(unit(), load, fixed(2048), fixed(64))
    alone = simulate(instance("prefill"), load, fixed(2048), fixed(1))
    assert result.ttft_ms is not None
    assert alone.ttft_ms is not None
    decode_ms = instance("decode").step.decode_ms(1, 2048)
    front_end_ms = 7.5 + 2.0 * 2.048 + 0.7 + 4.0
    extra = result.ttft_ms.p50 - alone.ttft_ms.p50
    # proxy, handshake and one and a half steps of waiting beside them
    assert decode_ms + front_end_ms < extra < 3.2 * decode_ms + front_end_ms + 4.0
    assert result.completed == 8
    assert use.prefill_utilisation < 0.5


def test_with_a_free_link_and_a_vast_prefill_pool_decode_is_a_queue_of_its_own() -> None:
    """Nothing of prefill is left but its time: TPOT is that of an instance whose prompts are all cached."""
    load = poisson(20.0, 600)
    result, _ = simulate_disaggregated(unit(prefill=64), load, fixed(1024), fixed(128))
    decode = instance("decode")
    cached = simulate(decode, replace(load, prefix_hit=1.0), fixed(1024), fixed(128))
    assert result.tpot_ms is not None
    assert cached.tpot_ms is not None
    assert result.tpot_ms.p50 == pytest.approx(cached.tpot_ms.p50, rel=0.06)


def test_with_one_output_token_a_prefill_pool_is_all_that_queues() -> None:
    load = poisson(8.0, 400)
    result, _ = simulate_disaggregated(unit(decode=16), load, fixed(4096), fixed(1))
    alone = simulate(instance("prefill"), load, fixed(4096), fixed(1))
    assert result.ttft_ms is not None
    assert alone.ttft_ms is not None
    waiting = result.ttft_ms.p90 - result.ttft_ms.p50
    assert waiting == pytest.approx(alone.ttft_ms.p90 - alone.ttft_ms.p50, rel=0.1)


def test_prompts_no_longer_disturb_decoding() -> None:
    load = poisson(6.0)
    together = simulate(instance("decode"), load, fixed(4096), fixed(128), replicas=2)
    apart, _ = simulate_disaggregated(unit(), load, fixed(4096), fixed(128))
    assert together.tpot_ms is not None
    assert apart.tpot_ms is not None
    assert apart.tpot_ms.p99 < together.tpot_ms.p99


@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(1.0, 12.0),
    seed=st.integers(0, 50),
    pool=st.sampled_from(["prefill", "decode"]),
    engine=st.sampled_from(["vllm", "tensorrt_llm"]),
)
def test_one_more_instance_never_lowers_goodput_beyond_noise(rate: float, seed: int, pool: str, engine: str) -> None:
    sizes = {"prefill": 1, "decode": 1}
    fewer, _ = simulate_disaggregated(
        unit(engine=engine, **sizes), poisson(rate), uniform(2000, 4000), uniform(50, 150), slo=SLO, seed=seed
    )
    sizes[pool] += 1
    more, _ = simulate_disaggregated(
        unit(engine=engine, **sizes), poisson(rate), uniform(2000, 4000), uniform(50, 150), slo=SLO, seed=seed
    )
    assert fewer.goodput_per_s is not None
    assert more.goodput_per_s is not None
    assert more.goodput_per_s >= 0.95 * fewer.goodput_per_s - 0.05


@settings(max_examples=15, deadline=None)
@given(gb_s=st.floats(0.5, 200.0), factor=st.floats(1.5, 20.0), seed=st.integers(0, 20))
def test_a_faster_link_never_slows_the_first_token(gb_s: float, factor: float, seed: int) -> None:
    slow, fast = (
        simulate_disaggregated(
            unit(link=Link("network", rate, 0.9, 0.2)), poisson(4.0, 200), fixed(3000), fixed(40), seed=seed
        )
        for rate in (gb_s, gb_s * factor)
    )
    assert slow[0].ttft_ms is not None
    assert fast[0].ttft_ms is not None
    assert fast[0].ttft_ms.mean <= slow[0].ttft_ms.mean * 1.02 + 1.0
    assert fast[1].transfer_ms_mean <= slow[1].transfer_ms_mean + 1e-6


@settings(max_examples=15, deadline=None)
@given(
    load=st.one_of(
        st.builds(poisson, st.floats(0.5, 10.0), st.integers(40, 200)),
        st.builds(lambda c: Load("closed", concurrency=c, requests=5 * c), st.integers(1, 40)),
        st.builds(lambda n: Load("offline", requests=n), st.integers(1, 80)),
    ),
    engine=st.sampled_from(["vllm", "tensorrt_llm"]),
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
)
def test_no_request_is_lost_and_time_runs_forward(load: Load, engine: str, prefill: int, decode: int) -> None:
    result, use = simulate_disaggregated(unit(prefill, decode, engine), load, uniform(100, 4000), uniform(1, 100))
    assert result.completed == result.requests == (load.requests or result.requests)
    assert result.ttft_ms is not None
    assert result.e2e_ms is not None
    assert 0 < result.ttft_ms.p50 <= result.e2e_ms.p99
    assert result.total_tok_per_s > result.output_tok_per_s
    assert 0 <= use.link_utilisation <= 1


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second = (
        simulate_disaggregated(unit(2, 2), Load("closed", concurrency=24, requests=96), fixed(1500), fixed(60), seed=3)
        for _ in range(2)
    )
    assert first[0].ttft_ms == second[0].ttft_ms
    assert first[0].e2e_ms == second[0].e2e_ms


def test_a_closed_loop_keeps_its_clients() -> None:
    """Little's law: throughput x (E2E + turnaround) is the number of clients."""
    clients = 16
    result, _ = simulate_disaggregated(
        unit(2, 1), Load("closed", concurrency=clients, requests=320), fixed(1000), fixed(100)
    )
    assert result.e2e_ms is not None
    assert result.req_per_s * (result.e2e_ms.mean + 0.5) / 1000 == pytest.approx(clients, rel=0.08)


def test_every_role_is_checked_before_anything_is_predicted() -> None:
    """Case D1: a prefill role that cannot hold its prompts is refused, whatever the decode role can."""
    big = get_model("meta-llama/Llama-3.1-70B-Instruct")
    asked = EngineSettings(EngineName.VLLM, tp=1, precision="fp8", max_model_len=131_072)
    small = role_settings(asked, big, H100, "prefill", expected_len=None, longest_prompt=131_000)
    wide = role_settings(replace(asked, tp=4), big, H100, "decode", expected_len=None, longest_prompt=131_000)
    roles = [Instance(big, resolved, ledger(big, H100, resolved), step_model()) for resolved in (small, wide)]
    assert roles[1].memory.fits
    refused = Disaggregated(roles[0], roles[1], 4, 1, NOTHING)
    with pytest.raises(InfeasibleError, match="prefill instances would not start"):
        simulate_disaggregated(refused, poisson(1.0), fixed(1000), fixed(10))


def test_roles_that_cannot_exchange_caches_are_refused() -> None:
    one = instance("decode")
    other = replace(one, resolved=replace(one.resolved, kv_cache_dtype="fp8"))
    with pytest.raises(InputError, match="kv_cache_dtype"):
        simulate_disaggregated(
            Disaggregated(instance("prefill"), other, 1, 1, NOTHING), poisson(1.0), fixed(100), fixed(10)
        )
    with pytest.raises(InputError, match="at least one instance"):
        simulate_disaggregated(unit(prefill=0), poisson(1.0), fixed(100), fixed(10))


def test_the_weaker_role_gives_the_evidence_and_the_transfer_widens_ttft() -> None:
    found = unit(link=Link("network", 10.0, 0.9, 0.2))
    weak = replace(found.prefill, step=replace(found.prefill.step, evidence=Evidence.ROOFLINE))
    found = replace(found, prefill=weak)
    assert found.evidence is Evidence.ROOFLINE
    performance, use = predict_disaggregated(found, poisson(3.0, 200), fixed(3000), fixed(50))
    assert performance.evidence is Evidence.ROOFLINE
    assert performance.ttft_ms_80 is not None
    assert performance.ttft_ms_80.high - performance.ttft_ms_80.value >= use.transfer_ms_mean


def test_bands_widen_where_the_queue_grows_and_nowhere_else() -> None:
    """Near the end of what the pools carry steps at the fast end of their band leave no queue to wait in."""
    found = unit()
    most = largest_disaggregated_load(found, poisson(1.0), fixed(4000), fixed(100)).rate_per_s
    shares = {}
    for at in (0.2, 0.97):
        band = predict_disaggregated(found, poisson(at * most), fixed(4000), fixed(100))[0].ttft_ms_80
        alone = simulate_disaggregated(found, poisson(at * most), fixed(4000), fixed(100))[0]
        plain = performance(alone, found.decode.step).ttft_ms_80
        assert band is not None
        assert plain is not None
        shares[at] = band.low / band.value, min(RESIDUALS["ttft"].low, plain.low / plain.value)
    assert shares[0.2][0] == pytest.approx(shares[0.2][1], rel=0.02)
    assert shares[0.97][0] < 0.8 * shares[0.97][1]


def test_cached_prompts_are_told() -> None:
    result, _ = simulate_disaggregated(
        unit(), Load("open", rate_per_s=2.0, requests=50, prefix_hit=0.5), fixed(1280), fixed(20)
    )
    assert result.prefix_hit == pytest.approx(0.5)


def test_the_largest_load_of_a_unit_lies_within_its_slo_and_grows_with_the_tighter_pool() -> None:
    one = largest_disaggregated_load(unit(1, 1), poisson(1.0), fixed(4000), fixed(100), slo=SLO)
    two = largest_disaggregated_load(unit(2, 1), poisson(1.0), fixed(4000), fixed(100), slo=SLO)
    assert one.result is not None
    assert one.result.ttft_ms is not None
    assert one.result.ttft_ms.p99 <= 1500.0
    assert two.rate_per_s > 1.3 * one.rate_per_s
    assert np.isfinite(one.band.low)

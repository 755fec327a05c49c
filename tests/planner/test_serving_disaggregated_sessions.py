"""Sessions over prefill and decode pools: what each role holds of a turn, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, policy, step_model, uniform

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings
from planner.engines.disaggregation import role_settings
from planner.estimate import estimate
from planner.memory import ledger
from planner.serving import Instance, Load, simulate
from planner.serving.arrivals import RequestSet
from planner.serving.disaggregated import Disaggregated, simulate_disaggregated
from planner.serving.disaggregated_sessions import chains, held_by_decode, sent_after
from planner.serving.engine import InstanceRules
from planner.serving.kv_transfer import Link

H100 = get_gpu("H100-SXM5-80GB")
MODEL = get_model("meta-llama/Llama-3.1-8B-Instruct")
NOTHING = Link("nvlink", 1e12, 1.0, 0.0)


def role(name: str, engine: str = "vllm", **other: object) -> Instance:
    asked = EngineSettings(EngineName(engine), **other)
    resolved = role_settings(asked, MODEL, H100, name, expected_len=16_000, longest_prompt=15_000)
    return Instance(MODEL, resolved, ledger(MODEL, H100, resolved), step_model(REAL_FRONT_END))


def unit(prefill: int = 1, decode: int = 1, **other: object) -> Disaggregated:
    return Disaggregated(role("prefill", **other), role("decode", **other), prefill, decode, NOTHING)


SIX_TURNS = Load("closed", concurrency=1, requests=6, turns=fixed(6))
PROMPTS = np.array([640 * n + 64 * (n - 1) for n in range(1, 7)])  # all that was said before, and 640 new tokens


def test_prefill_finds_its_own_prompts_and_decode_keeps_its_answers() -> None:
    """Blocks of 64: of turn n prefill holds the prompt of turn n - 1, and only what came since crosses the link."""
    result, use = simulate_disaggregated(unit(), SIX_TURNS, fixed(640), fixed(64))
    assert result.completed == 6
    assert result.prefix_hit == pytest.approx(PROMPTS[:-1].sum() / PROMPTS.sum())
    assert use.moved_tokens_mean == pytest.approx((640 + 5 * 704) / 6)


def test_without_a_prefix_cache_every_turn_is_computed_and_moved_whole() -> None:
    result, use = simulate_disaggregated(unit(enable_prefix_caching=False), SIX_TURNS, fixed(640), fixed(64))
    assert result.prefix_hit == 0.0
    assert use.moved_tokens_mean == pytest.approx(PROMPTS.mean())


def test_an_instance_that_made_the_answers_itself_finds_more_than_a_prefill_pool() -> None:
    load = Load("open", rate_per_s=4.0, turns=uniform(2, 10), think_s=10.0, shared_tokens=640)
    pools, use = simulate_disaggregated(unit(), load, uniform(50, 250), uniform(100, 400))
    alone = simulate(role("decode"), load, uniform(50, 250), uniform(100, 400))
    assert 0.5 < pools.prefix_hit < alone.prefix_hit
    assert pools.req_per_s == pytest.approx(alone.req_per_s, rel=0.05)
    assert use.moved_tokens_mean < 2.5 * 150 + 64  # new tokens, the rest of a block, and first turns whole


def test_the_same_seed_gives_the_same_bits_and_more_instances_lose_nothing() -> None:
    load = Load("open", rate_per_s=6.0, turns=uniform(2, 6), think_s=5.0)
    first, second, wide = (
        simulate_disaggregated(each, load, uniform(50, 250), uniform(50, 150), seed=3)[0]
        for each in (unit(), unit(), unit(2, 3))
    )
    assert first.ttft_ms == second.ttft_ms
    assert first.e2e_ms == second.e2e_ms
    assert wide.prefix_hit == pytest.approx(first.prefix_hit, rel=0.02)  # a session stays where it is
    assert wide.requests == first.requests


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.floats(1.0, 1e4), st.floats(0.0, 1e3))
def test_turns_follow_their_answers(sizes: list[int], e2e_ms: float, pause_ms: float) -> None:
    count = sum(sizes)
    ends = np.cumsum(sizes) - 1
    following = np.arange(1, count + 1)
    following[ends] = -1
    chain, place = chains(following)
    assert chain.tolist() == [i for i, size in enumerate(sizes) for _ in range(size)]
    assert place.tolist() == [n for size in sizes for n in range(size)]
    starts = np.arange(count) * 10.0
    sent = sent_after(starts, np.full(count, e2e_ms), np.full(count, pause_ms), following, place)
    heads = ends - np.array(sizes) + 1
    assert sent == pytest.approx(starts[heads][chain] + place * (e2e_ms + pause_ms))


def asked(inputs: list[int], outputs: list[int]) -> RequestSet:
    zeros = np.zeros(len(inputs), dtype=np.int64)
    return RequestSet(
        zeros.astype(float), np.array(inputs), np.array(outputs), zeros, closed=False, first_issued=len(inputs),
        think_ms=zeros.astype(float),
    )  # fmt: skip


def held(pool_blocks: int, shared: int = 0, caching: bool = True) -> list[int]:
    """Two sessions of two turns each, one after the other, in blocks of 10: A1 B1 A2 B2."""
    requests = asked([40, 60, 60, 80], [10, 10, 10, 10])
    rules = InstanceRules(replace(policy(block=10), prefix_caching=caching), pool_blocks, extra_step=False)
    start, end = np.array([0.0, 10.0, 20.0, 30.0]), np.array([5.0, 15.0, 25.0, 35.0])
    one = np.zeros(4, dtype=np.int64)
    return held_by_decode(rules, start, end, requests, np.array([0, 1, 0, 1]), one, shared).tolist()


def test_decode_holds_ended_turns_until_their_blocks_are_needed() -> None:
    assert held(100) == [0, 0, 40, 60]
    # 12 blocks: B1 takes 7 of the 12 and A1's 4 fit beside it; A2 takes 7, so that of B1's 6 only 5 stay
    assert held(12) == [0, 0, 40, 50]
    assert held(7) == [0, 0, 0, 0]
    assert held(100, caching=False) == [0, 0, 0, 0]
    assert held(100, shared=20) == [0, 20, 40, 60]  # B1 finds the beginning that A1 left


def test_an_estimate_takes_sessions_over_pools() -> None:
    load = {"kind": "open", "rate_per_s": 4, "turns": {"low": 2, "high": 8}, "think_s": 10, "shared_tokens": 500}
    answer = estimate(
        {
            "id": "s", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "engine": "vllm", "load": load,
            "input_tokens": 200, "output_tokens": 200, "disagg": {"prefill": {}, "decode": {}},
        }
    )  # fmt: skip
    assert answer["status"] == "ok"
    assert 0.5 < answer["perf"]["prefix_hit"] < 1
    moved = answer["disagg"]["transfer"]
    assert 200 < moved["tokens_per_request"] < 700
    # 32 layers, 8 heads of 128, K and V, bf16: 128 KiB a token
    assert moved["mib_per_request"] == pytest.approx(moved["tokens_per_request"] / 8, rel=0.15)
    assert answer["power_w"] > 2 * 60

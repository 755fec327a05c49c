"""The timeline of a unit of pools: each request in one place, the cache within the pool, Little's law on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, step_model, uniform

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings
from planner.engines.disaggregation import role_settings
from planner.memory import ledger
from planner.serving import Instance, Load, UnitTimeline, simulate
from planner.serving.disaggregated import PROXY_MS, Disaggregated, simulate_disaggregated
from planner.serving.kv_transfer import Link
from planner.serving.types import Timeline

H100 = get_gpu("H100-SXM5-80GB")
MODEL = get_model("meta-llama/Llama-3.1-8B-Instruct")
FAST = Link("nvlink", 450.0, 0.5, 3.3)
PROMPTS, ANSWERS = uniform(500, 4000), uniform(1, 120)


def instance(role: str, engine: str, **other) -> Instance:
    asked = EngineSettings(EngineName(engine), **other)
    resolved = role_settings(asked, MODEL, H100, role, expected_len=6000, longest_prompt=5000)
    return Instance(MODEL, resolved, ledger(MODEL, H100, resolved), step_model(REAL_FRONT_END))


def unit(prefill: int = 1, decode: int = 1, engine: str = "vllm", link: Link = FAST, **of_decode) -> Disaggregated:
    return Disaggregated(instance("prefill", engine), instance("decode", engine, **of_decode), prefill, decode, link)


def every(gap_s: float, count: int) -> Load:
    times = tuple(gap_s * at for at in range(count))
    return Load("open", arrival="trace", times_s=times, requests=count)


def burst(rate: float, count: int) -> Load:
    return Load("open", rate_per_s=rate, arrival="onoff", on_share=0.5, period_s=20.0, requests=count)


def under_way(line: UnitTimeline) -> np.ndarray:
    pools = line.prefill.waiting + line.prefill.running + line.decode.waiting + line.decode.running
    return pools + line.transferring


def seen(found: Disaggregated, load: Load, inputs=PROMPTS, outputs=ANSWERS, seed=0):
    result, use = simulate_disaggregated(found, load, inputs, outputs, seed=seed, timeline=True)
    assert use.timeline is not None
    return result, use, use.timeline


@settings(max_examples=20, deadline=None)
@given(
    gap_s=st.floats(0.02, 0.5), prefill=st.integers(1, 3), decode=st.integers(1, 3),
    engine=st.sampled_from(["vllm", "tensorrt_llm"]), seed=st.integers(0, 20),
)  # fmt: skip
def test_every_request_is_in_exactly_one_place(gap_s, prefill, decode, engine, seed) -> None:
    """Counted from outside: those sent by then, less those whose last token was there."""
    load = every(gap_s, 150)
    result, _, line = seen(unit(prefill, decode, engine), load, seed=seed)
    assert result.samples is not None
    sent = np.array(load.times_s) * 1000.0
    ended = np.sort(sent + result.samples.e2e_ms.values)
    at = line.decode.t_s * 1000.0
    expected = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    # a token of rounding either way at the very moment of an event
    assert np.abs(under_way(line) - expected).max() <= 1
    assert (under_way(line) == expected).mean() > 0.99
    for part in (line.prefill.waiting, line.prefill.running, line.transferring, line.decode.waiting):
        assert part.min() >= 0
    assert under_way(line)[-1] == 0
    assert (np.diff(line.prefill.t_s) > 0).all()
    assert np.array_equal(line.prefill.t_s, line.decode.t_s)


@settings(max_examples=15, deadline=None)
@given(rate=st.floats(2.0, 40.0), engine=st.sampled_from(["vllm", "tensorrt_llm"]), seats=st.integers(4, 64))
def test_batches_keep_to_their_seats_and_caches_to_their_pool(rate: float, engine: str, seats: int) -> None:
    found = unit(1, 2, engine, max_num_seqs=seats)
    _, _, line = seen(found, burst(rate, 300))
    assert line.decode.running.max() <= 2 * seats
    for pool in (line.prefill, line.decode):
        assert pool.kv_used.min() >= 0.0
        assert pool.kv_used.max() <= 1.0 + 1e-9
        assert (pool.live_kv <= pool.kv_used + 1e-9).all()
    assert line.decode.kv_used.max() > 0.0


@pytest.mark.parametrize("gb_s", [0.5, 2.0, 20.0])
def test_what_is_on_its_way_is_rate_times_transfer_time(gb_s: float) -> None:
    load = Load("open", rate_per_s=4.0, requests=600)
    result, use, line = seen(unit(2, 1, link=Link("network", gb_s, 0.9, 0.2)), load, fixed(3000), fixed(40))
    expected = result.requests * (use.transfer_ms_mean + PROXY_MS) / 1000.0 / result.duration_s
    # looked at 1024 times: the mean of so many looks at a number that jumps
    assert float(line.transferring.mean()) == pytest.approx(expected, rel=0.1)


def test_the_pools_mean_batch_is_that_of_the_simulation() -> None:
    result, _, line = seen(unit(1, 1), Load("open", rate_per_s=5.0, requests=500), fixed(2000), fixed(150))
    busy = line.decode.running[line.decode.running > 0]
    assert float(busy.mean()) == pytest.approx(result.mean_batch, rel=0.1)


@pytest.mark.parametrize("engine", ["vllm", "tensorrt_llm"])
def test_a_prompt_that_is_computed_does_not_wait(engine: str) -> None:
    """One every 0.4 s, each alone in its pool: it runs as long as the pool is busy and waits for the front end only."""
    _, use, line = seen(unit(1, 1, engine), every(0.4, 200), fixed(2000), fixed(10))
    runs = float((line.prefill.running > 0).mean())
    assert runs == pytest.approx(use.prefill_utilisation, rel=0.1)
    assert line.prefill.running.max() == 1
    front_end_ms = 7.5 + 2.0 * 2.0 + 0.7 + 4.0
    assert float(line.prefill.waiting.mean()) == pytest.approx(front_end_ms / 400.0, rel=0.15)


def test_a_burst_queues_before_the_pool_that_is_short() -> None:
    """Long prompts and few tokens wait for prefill; few seats and many tokens for decode."""
    _, _, prompts = seen(unit(1, 2), burst(12.0, 400), fixed(4000), fixed(8))
    assert prompts.prefill.waiting.max() > 20 > prompts.decode.waiting.max()
    _, _, answers = seen(unit(3, 1, max_num_seqs=16), burst(12.0, 400), fixed(500), fixed(200))
    assert answers.decode.waiting.max() > 20 > answers.prefill.waiting.max()


def test_nothing_lasts_through_the_pause_between_bursts() -> None:
    _, _, line = seen(unit(2, 2), burst(3.0, 120), fixed(1000), fixed(50))
    idle = under_way(line) == 0
    assert idle.mean() > 0.2, "bursts take half of the time"
    for pool in (line.prefill, line.decode):
        assert float(np.quantile(pool.kv_used[idle], 0.95)) == 0.0


def test_looking_changes_nothing_and_is_the_same_twice() -> None:
    load, sides = Load("closed", concurrency=24, requests=120), (uniform(500, 3000), uniform(20, 100))
    plain, use = simulate_disaggregated(unit(2, 2), load, *sides, seed=3)
    assert use.timeline is None
    assert plain.timeline is None
    first, again = (simulate_disaggregated(unit(2, 2), load, *sides, seed=3, timeline=True) for _ in range(2))
    assert first[0].e2e_ms == plain.e2e_ms
    assert first[1] == use
    lines = [found[1].timeline for found in (first, again)]
    assert lines[0] is not None
    assert lines[1] is not None
    assert np.array_equal(lines[0].transferring, lines[1].transferring)
    for pool in ("prefill", "decode"):
        one, two = (getattr(line, pool) for line in lines)
        assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in Timeline.__dataclass_fields__)


def test_sessions_have_a_timeline_of_both_pools() -> None:
    load = Load("open", rate_per_s=4.0, turns=fixed(4), requests=200, think_s=2.0)
    _, _, line = seen(unit(1, 1), load, fixed(400), fixed(60))
    assert line.prefill.running.max() > 0
    assert line.decode.running.max() > 0
    assert under_way(line)[-1] == 0


def test_an_engine_alone_shows_its_pause_too() -> None:
    found = simulate(instance("decode", "vllm"), burst(3.0, 120), fixed(1000), fixed(50), timeline=True)
    assert found.timeline is not None
    line = found.timeline
    gap = int(np.argmax(np.diff(line.t_s)))
    assert line.t_s[gap + 1] - line.t_s[gap] > 5.0, "half of each 20 s"
    assert line.running[gap] == line.waiting[gap] == 0
    assert line.kv_used[gap] == 0.0
    assert line.running[-1] == 0

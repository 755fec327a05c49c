"""Where searches begin and how they go on: Little's law against simulations, and brackets that close."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, step_model, uniform

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.memory import ledger
from planner.serving import Instance, Load, SloTarget, bracket, largest_load, simulate
from planner.serving.littles_law import expected_load

MODEL, GPU = get_model("Qwen/Qwen3-8B"), get_gpu("H200")
RESOLVED = resolve(EngineSettings(EngineName.VLLM), MODEL, GPU, expected_len=32_768)
INSTANCE = Instance(MODEL, RESOLVED, ledger(MODEL, GPU, RESOLVED), step_model(REAL_FRONT_END))
CHAT = (uniform(50, 800), uniform(100, 500))
USERS = Load("closed", concurrency=300, turns=uniform(2, 14), think_s=20.0, shared_tokens=400)
SLO = (SloTarget("ttft", "p90", 800.0), SloTarget("tpot", "mean", 40.0))


def test_users_are_those_who_are_answered_and_those_who_pause() -> None:
    found = expected_load(INSTANCE, USERS, *CHAT, SLO)
    assert found.users == pytest.approx(found.rate_per_s * (USERS.think_s + found.answer_s), rel=1e-6)
    at_once = expected_load(INSTANCE, replace(USERS, think_s=0.0), *CHAT, SLO)
    assert at_once.users < found.users


@pytest.mark.parametrize("pause_s", [0.0, 20.0, 60.0])
def test_what_is_expected_is_near_what_is_found(pause_s: float) -> None:
    load = replace(USERS, think_s=pause_s)
    for slo in (SLO, (SloTarget("tpot", "mean", 15.0),)):
        found = largest_load(INSTANCE, load, *CHAT, slo=slo)
        assert 0.5 < expected_load(INSTANCE, load, *CHAT, slo).users / found.concurrency < 1.6


def test_a_limit_that_nobody_keeps_expects_one_user_and_is_found_out_at_once() -> None:
    slo = (SloTarget("tpot", "mean", 1.0),)
    assert expected_load(INSTANCE, USERS, *CHAT, slo).users == 1.0
    found = largest_load(INSTANCE, USERS, *CHAT, slo=slo)
    assert found.rate_per_s == 0.0
    assert found.simulations == 1


@pytest.mark.parametrize("times", [0.3, 0.9, 1.0, 1.1, 3.0])
def test_where_a_search_for_users_begins_does_not_decide_where_it_ends(times: float) -> None:
    anywhere = largest_load(INSTANCE, USERS, *CHAT, slo=SLO)
    found = largest_load(INSTANCE, USERS, *CHAT, slo=SLO, near=times * anywhere.concurrency)
    assert found.concurrency == pytest.approx(anywhere.concurrency, rel=0.06)
    assert found.simulations <= 9
    assert anywhere.simulations <= 8, "doubling from one user took 16"


def test_the_users_found_keep_the_limits_and_a_few_more_do_not() -> None:
    found = largest_load(INSTANCE, USERS, *CHAT, slo=SLO)
    kept = simulate(INSTANCE, replace(USERS, concurrency=found.concurrency), *CHAT)
    assert kept.ttft_ms.p90 <= 800.0
    assert kept.tpot_ms.mean <= 40.0
    more = simulate(INSTANCE, replace(USERS, concurrency=round(1.08 * found.concurrency)), *CHAT)
    assert more.ttft_ms.p90 > 800.0 or more.tpot_ms.mean > 40.0


def test_more_users_than_seats_are_sized_where_most_of_them_pause() -> None:
    few = replace(INSTANCE, resolved=replace(RESOLVED, max_num_seqs=16))
    load = Load("closed", concurrency=300, turns=fixed(4), think_s=60.0)
    found = largest_load(few, load, fixed(200), fixed(100), slo=(SloTarget("ttft", "p90", 2000.0),))
    assert found.concurrency > 2 * 16, "twice the seats was the most that was tried"


@given(
    low=st.floats(1.0, 1e4),
    gap=st.floats(1.001, 100.0),
    below=st.floats(1e-6, 1.0),
    above=st.floats(1.0, 1e6, exclude_min=True),
)
def test_the_next_load_lies_between_the_ends(low: float, gap: float, below: float, above: float) -> None:
    high = low * gap
    middle = bracket.between(low, below, high, above)
    assert low < middle < high
    assert bracket.higher(low, below) > low
    assert bracket.lower(high, above) < high


def test_a_bracket_closes_on_the_limit_of_a_power_law() -> None:
    limit, ratio = 137.0, lambda load: (load / 137.0) ** 3
    low, high, runs = 60.0, 600.0, 0
    while not bracket.settled(low, ratio(low), high, ratio(high), 0.01):
        middle = bracket.between(low, ratio(low), high, ratio(high))
        low, high = (middle, high) if ratio(middle) <= 1.0 else (low, middle)
        runs += 1
    assert 0.99 * limit <= low <= limit
    assert runs <= 12

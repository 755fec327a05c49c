"""Demand over the week and the months, and sessions, through a whole plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.catalog import get_rate_profile
from planner.demand import WEEK_HOURS, demand_notes, hour_of_week, mean_share, planned, scaled_lengths, scaled_load
from planner.errors import InputError
from planner.fleet_file import load_fleet_file
from planner.plan import check_request, make_plan
from planner.plan_types import PlanRequest
from planner.serving.types import Lengths, Load, SloTarget

OFFICE = tuple(4.0 if hour < 120 and 8 <= hour % 24 < 18 else 1.0 for hour in range(WEEK_HOURS))
FLEET = {
    "name": "one rack",
    "sites": {"here": {"usd_per_kwh": 0.1}},
    "pools": [{"name": "h200", "site": "here", "gpu": "H200", "gpus": 4, "nvlink_domain": 4, "count": 1, "price": 2.5}],
}
CHAT = {
    "name": "chat", "model": "Qwen/Qwen3-8B", "input_tokens": {"low": 200, "high": 1800},
    "output_tokens": {"low": 50, "high": 350}, "allowed_engines": ["vllm"],
    "slo": {"ttft_p90_ms": 500, "tpot_p90_ms": 25},
}  # fmt: skip


def fleet(tmp_path: Path, **workload: object) -> PlanRequest:
    """One rack and one workload, from a file."""
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump({**FLEET, "workloads": [{**CHAT, "load": {"rate_per_s": 20}, **workload}]}))
    return load_fleet_file(path)


def test_mean_share_of_office_hours() -> None:
    assert mean_share(OFFICE) == pytest.approx((50 * 4 + 118) / 168 / 4)
    assert mean_share(()) == 1.0


def test_two_weeks_of_a_real_service_become_hours_of_the_week() -> None:
    rates = get_rate_profile("rate_servegen_m_mid")
    week = hour_of_week(rates)
    assert len(week) == WEEK_HOURS
    assert sum(week) / WEEK_HOURS == pytest.approx(float(rates.rate_per_s.mean()), rel=1e-9)
    monday = [float(r) for s, r in zip(rates.start_s, rates.rate_per_s, strict=True) if s % (168 * 3600) < 3600]
    assert week[0] == pytest.approx(sum(monday) / len(monday))
    assert 0 < mean_share(week) < 1


def test_a_single_day_stands_for_every_day() -> None:
    week = hour_of_week(get_rate_profile("rate_servegen_deepseek_r1"))
    assert week[:24] == week[24:48] == week[-24:]


def test_it_is_planned_for_the_peak_after_growth_and_paid_at_the_mean(tmp_path: Path) -> None:
    today = make_plan(fleet(tmp_path))
    later = make_plan(fleet(tmp_path, growth_per_month=0.1, plan_for_month=6, hour_profile=list(OFFICE)))
    served = [next(c for c in r.candidates if c.id == r.placements[0].candidate_id) for r in (today, later)]
    assert later.notes[0].startswith("chat: planned for 35.4 requests/s, the peak in 6 months: 1.77 times today's")
    assert later.notes[1] == "chat: paid for at the mean of its week, 47.3 % of the peak hour."
    grown = 1.1**6
    bills = [one.cost for one in served]
    assert bills[0] is not None
    assert bills[1] is not None
    mean_tokens = 1000 * 20 * grown * mean_share(OFFICE)  # prompts of 200 to 1,800 tokens
    per_s = bills[1].usd_per_month / bills[1].usd_per_mtok_input * 10**6 / (730 * 3600)
    assert float(per_s) == pytest.approx(mean_tokens, rel=1e-3)
    assert len(later.placements) >= len(today.placements)
    needed = [month.gpus_needed[served[1].gpu] for month in later.months]
    assert needed[0] <= needed[6] == len(later.placements) * served[1].gpus_per_replica


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hour_profile": [1.0] * 24}, "hour_profile"),
        ({"hour_profile": [0.0] * 168}, "hour_profile"),
        ({"hour_profile": [-1.0] + [1.0] * 167}, "hour_profile"),
        ({"hour_profile": "no_such_profile"}, "rate_profile"),
    ],
)
def test_senseless_profiles_are_named(tmp_path: Path, changes: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        fleet(tmp_path, **changes)


def test_a_profile_and_another_mean_contradict_each_other(tmp_path: Path) -> None:
    request = fleet(tmp_path, hour_profile=list(OFFICE), mean_load_share=0.9)
    with pytest.raises(InputError, match="mean_load_share"):
        check_request(request)
    months = fleet(tmp_path, plan_for_month=500)
    with pytest.raises(InputError, match="plan_for_month"):
        check_request(months)


def test_every_kind_of_load_grows(tmp_path: Path) -> None:
    assert scaled_load(Load("closed", concurrency=10), 1.25).concurrency == 13
    assert scaled_load(Load("offline", requests=100), 1.5).requests == 150
    times = tuple(float(t) for t in range(101))
    twice = scaled_load(Load("open", arrival="trace", times_s=times), 2.0)
    assert len(twice.times_s) / (twice.times_s[-1] - twice.times_s[0]) == pytest.approx(2.0, rel=0.02)
    request = fleet(tmp_path, growth_per_month=0.1, plan_for_month=2)
    assert planned(request).workloads[0].load.rate_per_s == pytest.approx(20 * 1.21)
    assert planned(replace(request, workloads=())).workloads == ()


def test_sessions_from_a_fleet_file(tmp_path: Path) -> None:
    load = {"rate_per_s": 20, "turns": {"low": 2, "high": 10}, "think_s": 10, "shared_tokens": 500}
    request = fleet(tmp_path, load=load, input_tokens=300, output_tokens=200, growth_per_month=0.0)
    assert request.workloads[0].load.turns == Lengths("uniform", low=2, high=10)
    result = make_plan(request)
    chosen = next(c for c in result.candidates if c.id == result.placements[0].candidate_id)
    assert chosen.performance is not None
    assert chosen.performance.prefix_hit > 0.75
    assert any("same one" in note for note in result.notes)
    wrong = fleet(tmp_path, load={**load, "prefix_hit": 0.3})
    with pytest.raises(InputError, match="prefix_hit"):
        make_plan(wrong)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (Load("open", rate_per_s=2.0), ""),
        (Load("closed", concurrency=4), "users who wait"),
        (Load("open", rate_per_s=2.0, turns=Lengths("fixed", value=3)), "For sessions"),
    ],
)
def test_where_pools_are_not_searched_the_plan_says_so(tmp_path: Path, load: Load, said: str) -> None:
    limits = (SloTarget("ttft", "p99", 900.0), SloTarget("tpot", "mean", 40.0))
    asked = replace(fleet(tmp_path).workloads[0], load=load, slo=limits)
    found = [note for note in demand_notes([asked]) if "pools were not searched" in note]
    assert bool(found) == bool(said)
    assert all(said in note for note in found)
    assert not [note for note in demand_notes([replace(asked, slo=limits[:1])]) if "pools" in note]


def test_lengths_scale_in_every_form() -> None:
    assert scaled_lengths(Lengths("fixed", value=100), 0.25).value == 25
    assert scaled_lengths(Lengths("normal", mean=100, sd=10), 2).sd == 20
    assert scaled_lengths(Lengths("uniform", low=1, high=9), 0.01).high == 1
    assert scaled_lengths(Lengths("samples", samples=(3, 300)), 0.1).samples == (1, 30)

"""Verdicts, margins, flip points and rules on candidates whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from fleet_samples import H100, candidate, node, request, workload

from planner.economics import OperationsCosts
from planner.economics.types import CostBreakdown, EnergyPrice
from planner.evidence import Evidence, Interval
from planner.placement.candidates import candidates
from planner.plan_types import EnginePlan, Placement
from planner.recommend import verdict
from planner.recommend.costing import Change, best_of, usd_per_hour
from planner.recommend.flips import _search, _sweeps, engine_costs, flip_points
from planner.recommend.rules import _hybrid, _ttft
from planner.recommend.tornado import tornado
from planner.recommend.verdict import margin_of
from planner.serving.types import Lengths, Load, Percentiles, Performance, SloTarget
from planner.words import article, figure, place_words, whole

NODES = [node("a", usd="2.0000")]


def banded(name, share, *, spread=0.0, **other):
    """A candidate of 10 requests/s demand with a band of +-spread around what one replica carries."""
    rate = 10 * share
    band = Interval(rate, rate * (1 - spread), rate * (1 + spread))
    return candidate(name, share, replica_rate_per_s=rate, replica_rate_80=band, **other)


def judged(ours, theirs, work=None, **other):
    work = work or workload("w")
    return verdict(work, (ours, theirs), request(NODES, [work], **other))


def test_clear_margin_is_stated_with_its_band() -> None:
    found = judged(banded("w", 0.010, spread=0.02), banded("w", 0.008, engine="tensorrt_llm", spread=0.02))
    assert found.engine == "vllm"
    assert found.margin.value == pytest.approx(1 - 100 / 125)
    assert not found.too_close
    assert found.sentence.startswith("vLLM is 20 % cheaper here than TensorRT-LLM (")
    assert found.probe == ""


def test_overlapping_bands_are_too_close_and_name_the_probe() -> None:
    found = judged(banded("w", 0.010, spread=0.02), banded("w", 0.0095, engine="tensorrt_llm", spread=0.25, gpus=1))
    assert found.too_close
    assert found.margin.low < 0 < found.margin.high
    assert found.sentence.startswith("Too close to call: vLLM looks 6 % cheaper")
    assert found.probe.startswith("Probe TensorRT-LLM on H100-SXM5-80GB")
    assert "($1.00)" in found.probe
    assert any(reason.startswith("Safer:") for reason in found.reasons)


def test_equal_bills_say_which_engine_has_more_room() -> None:
    found = judged(banded("w", 0.80), banded("w", 0.60, engine="tensorrt_llm"))
    assert found.too_close
    assert found.sentence == "Equal at this cost; vLLM because it could carry 33 % more on the same bill."
    assert found.tie == "vLLM because it could carry 33 % more on the same bill"


def test_margin_widens_with_either_band() -> None:
    work = workload("w")
    asked = request(NODES, [work])
    narrow = margin_of(banded("w", 0.01, spread=0.02), banded("w", 0.008, spread=0.02), work, asked)
    wide = margin_of(banded("w", 0.01, spread=0.02), banded("w", 0.008, spread=0.3), work, asked)
    assert wide.high - wide.low > narrow.high - narrow.low
    assert narrow.low <= narrow.value <= narrow.high


def test_placed_candidate_is_the_chosen_one_even_when_dearer() -> None:
    ours, theirs = banded("w", 0.010), banded("w", 0.020, engine="tensorrt_llm")
    work = workload("w")
    found = verdict(work, (ours, theirs), request(NODES, [work]), placed=ours.id)
    assert found.chosen == ours.id
    assert found.margin.value == pytest.approx(-1.0)
    assert "there is no room for it" in found.sentence


def test_no_room_is_said_only_where_there_is_none() -> None:
    work = workload("w")
    ours, theirs = banded("w", 0.25), banded("w", 0.5, engine="tensorrt_llm")

    def sentence(*others: Placement, **asked) -> str:
        found = verdict(work, (ours, theirs), request(NODES, [work], **asked), placed=ours.id, placements=others)
        return found.sentence

    own = Placement("w", ours.id, 0, "a", (0, 1, 2, 3))
    free, full = (Placement("other", "x", 0, "a", taken) for taken in (tuple(range(6)), tuple(range(7))))
    assert "alone would be 50 % cheaper: beside the other workloads the plan keeps to vLLM." in sentence(own)
    assert "no room" not in sentence(own, free)
    assert "there is no room for it" in sentence(own, full)
    assert "no room" not in sentence(own, full, mode="owned_plus_purchase")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("chat/vllm/H100/tp1pp1ep1dp1/as-config", "H100 (TP 1)"),
        ("a/b/vllm/H100/tp4pp2ep4dp1/fp8", "H100 (TP 4, PP 2, EP 4, FP8)"),
        ("chat/vllm/H100/odd/fp8", "H100 (odd, FP8)"),
    ],
)
def test_a_candidate_is_named_plainly(key: str, words: str) -> None:
    assert place_words(key) == words


def test_figures_have_no_exponent_and_names_their_article() -> None:
    assert [figure(v) for v in (28412.0, 5.324, 0.0030, 12, 0, 999.7)] == [
        "28,400",
        "5.32",
        "0.003",
        "12",
        "0",
        "1,000",
    ]
    words = ("H100 price", "L40S price", "B200 price", "input length", "request rate")
    assert [article(text)[:3].strip() for text in words] == ["an", "an", "a B", "an", "a r"]


def test_a_larger_bill_with_a_cheaper_token_is_explained() -> None:
    ours, theirs = banded("w", 0.5), banded("w", 0.4, engine="tensorrt_llm")
    bills = [
        CostBreakdown(Decimal(bill), (), None, Decimal(token), None, None, Decimal(730))
        for bill, token in (("1000.00", "1.82"), ("1300.00", "1.60"))
    ]
    found = judged(replace(ours, cost=bills[0]), replace(theirs, cost=bills[1]))
    words = (
        "The bill of TensorRT-LLM is larger, yet it serves the same users more tokens: $1.60 per million output tokens"
    )
    assert any(reason.startswith(words) for reason in found.reasons)
    found = judged(
        replace(ours, cost=bills[0]), replace(theirs, cost=replace(bills[1], usd_per_mtok_output=Decimal(2)))
    )
    assert not any("yet it serves" in reason for reason in found.reasons)


def test_figures_have_a_true_minus_and_no_negative_zero() -> None:
    assert [whole(value) for value in (-7.4, -0.3, 12.5)] == ["−7", "0", "12"]
    assert [whole(value, sign=True) for value in (-7.4, -0.3, 31)] == ["−7", "0", "+31"]
    assert whole(12345) == "12,345"


def test_only_engine_and_nothing_at_all() -> None:
    work = workload("w")
    refused = replace(
        banded("w", 0.5, engine="tensorrt_llm"), status="unsupported", reasons=("It needs Ampere.",), settings=None
    )
    found = verdict(work, (banded("w", 0.5), refused), request(NODES, [work]))
    assert "the only engine that can serve it here" in found.sentence
    assert found.reasons[0] == "TensorRT-LLM is out: It needs Ampere."
    found = verdict(work, (refused,), request(NODES, [work]))
    assert found.chosen is None
    assert "TensorRT-LLM on H100-SXM5-80GB: It needs Ampere." in found.reasons


def performance(ttft: float, tpot: float) -> Performance:
    times = {name: Percentiles(value, value, value, value, value) for name, value in (("ttft", ttft), ("tpot", tpot))}
    return Performance(
        1000.0, 2000.0, 10.0, times["ttft"], times["tpot"], times["ttft"], Interval(1000, 900, 1100), None, None,
        0, 0.0, 0.5, 8.0, 0.5, None, False, Evidence.SILICON,
    )  # fmt: skip


def test_safer_engine_has_the_stronger_evidence_then_more_room_in_the_slo() -> None:
    work = workload("w", slo=(SloTarget("ttft", "p99", 100.0),))
    ours = banded("w", 0.8, performance=performance(90, 10), evidence=Evidence.SILICON)
    theirs = banded("w", 0.8, engine="tensorrt_llm", performance=performance(50, 10), evidence=Evidence.SILICON)
    safer = next(r for r in judged(ours, theirs, work).reasons if r.startswith("Safer"))
    assert safer == "Safer: TensorRT-LLM, it uses 50 % of the tightest SLO limit."
    measured = replace(ours, evidence=Evidence.MEASURED)
    safer = next(r for r in judged(measured, theirs, work).reasons if r.startswith("Safer"))
    assert safer.startswith("Safer: vLLM, known from stronger evidence (measured)")


def flips(candidates, work, **other):
    asked = request(NODES, [work], **other)
    winner = "vllm"
    return {s.parameter: _search(s, candidates, work, asked, winner) for s in _sweeps(work, candidates, asked)}


def test_request_rate_flips_where_the_replicas_do() -> None:
    """One H100 of vLLM carries 10 req/s, a pair of TensorRT-LLM 40: above 20 req/s the pair is cheaper."""
    work = workload("w", load=Load("open", rate_per_s=8.0))
    found = flips((banded("w", 10 / 8), banded("w", 40 / 8, engine="tensorrt_llm", gpus=2)), work)
    assert found["request rate"].value == pytest.approx(20.0, rel=1e-3)
    assert found["request rate"].sentence.startswith("The answer flips to TensorRT-LLM at a request rate of 20")


def test_utilisation_flips_where_one_more_replica_is_needed() -> None:
    """vLLM: 1.2 of the demand for 2 USD, a third replica (6 USD) below 0.5 / 1.2; TensorRT-LLM: 3 times for 4 USD."""
    found = flips((banded("w", 1.2), banded("w", 3.0, engine="tensorrt_llm", gpus=2)), workload("w"))
    assert found["utilisation of replicas"].value == pytest.approx(0.5 / 1.2, rel=1e-3)
    assert found["utilisation of replicas"].current == 1.0


def test_users_who_wait_are_searched_beside_the_rate() -> None:
    """Little's law gives today's number; more of them never cost less."""
    work = workload("w", load=Load("open", rate_per_s=6.0), slo=(SloTarget("tpot", "p90", 25.0),))
    asked = request([node("a", gpus=1)], [work])
    made = candidates(work, asked)
    found = {point.parameter: point for point in flip_points(work, made, asked)}
    users = found["concurrency"]
    best = min((c for c in made if c.status == "ok" and c.cost), key=lambda c: c.cost.usd_per_month)
    assert users.current == pytest.approx(6.0 * best.performance.e2e_ms.mean / 1000, rel=0.25)
    costs = [at.vllm_usd_per_hour for at in users.curve]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]


def test_users_of_sessions_keep_their_turns_and_pauses() -> None:
    sessions = Load("open", rate_per_s=4.0, turns=Lengths("fixed", value=4), think_s=10.0, shared_tokens=200)
    work = workload("w", load=sessions)
    asked = request([node("a", gpu=H100, gpus=2)], [work])
    found = candidates(work, asked)
    points = {point.parameter: point for point in flip_points(work, found, asked)}
    waits = min(c.performance.e2e_ms.mean for c in found if c.performance) / 1000
    assert points["concurrency"].current >= round(4.0 * (waits + 10.0)) - 1  # Little's law, pauses included
    today = engine_costs([c for c in found if c.status == "ok"], work, asked, Change())
    for name in ("input length", "output length", "number of adapters in a batch"):
        here = next(at for at in points[name].curve if at.value == points[name].current)
        assert (here.vllm_usd_per_hour, here.tensorrt_llm_usd_per_hour) == (today["vllm"], today["tensorrt_llm"])


def test_revisions_flip_where_operations_eat_the_saving() -> None:
    """vLLM takes half a minute more a revision: TensorRT-LLM with a licence is dearer until revisions are many."""
    work = workload("w")
    operations = OperationsCosts(
        licence_usd_per_gpu_year=(("tensorrt_llm", Decimal("87.6")),),
    )
    found = flips((banded("w", 1.0), banded("w", 1.0, engine="tensorrt_llm")), work, operations=operations)
    # licence 0.01 USD/h; half a minute at 2 USD/h = 0.016667 USD a revision: 0.01 x 730 / 0.016667 = 438
    assert found["number of revisions"].value == pytest.approx(438, rel=0.01)


def test_electricity_flips_where_the_watts_outweigh_the_rest() -> None:
    work = workload("w")
    ours = banded("w", 1.0, watts_per_gpu=600.0)
    theirs = banded("w", 1.0, engine="tensorrt_llm", watts_per_gpu=400.0)
    operations = OperationsCosts(licence_usd_per_gpu_year=(("tensorrt_llm", Decimal(876)),))
    energy = EnergyPrice(Decimal("0.10"), Decimal("1.25"))
    found = flips((ours, theirs), work, operations=operations, energy=energy)
    # licence 0.10 USD/h against 0.2 kW x 1.25: equal at 0.40 USD/kWh
    assert found["electricity price"].value == pytest.approx(0.40, rel=0.01)


def test_no_flip_says_what_was_searched() -> None:
    work = workload("w")
    found = flips((banded("w", 0.1), banded("w", 0.01, engine="tensorrt_llm")), work)
    assert found["request rate"].value is None
    assert found["request rate"].sentence.startswith("No request rate between")
    assert found[f"{H100} price"].value is None


def test_hourly_cost_counts_replicas_operations_and_power() -> None:
    work = workload("w", revisions_per_month=73.0)
    asked = request(NODES, [work], energy=EnergyPrice(Decimal("0.10"), Decimal("1.0")))
    one = banded("w", 0.6, gpus=2, watts_per_gpu=500.0)
    # 2 replicas x 2 GPUs x 2 USD; 73 x 2.5 min x 2 GPUs x 2 USD a replica and month; 4 x 0.5 kW x 0.10
    expected = 8 + 2 * 73 * 2.5 / 60 * 2 * 2 / 730 + 4 * 0.05
    assert usd_per_hour(one, work, asked, Change()) == pytest.approx(expected)
    assert usd_per_hour(one, work, asked, Change(load_factor=0.5)) == pytest.approx(expected / 2)
    assert best_of([], work, asked, Change()) is None


@pytest.mark.parametrize(
    ("ttfts", "outcome"), [((100, 70), "confirmed"), ((100, 95), "refuted"), ((100, 130), "refuted")]
)
def test_ttft_rule_is_judged_on_equal_deployments(ttfts, outcome) -> None:
    work = workload("w")
    ours = banded("w", 1.0, performance=performance(ttfts[0], 10), replicas=1)
    theirs = banded("w", 1.0, engine="tensorrt_llm", performance=performance(ttfts[1], 10), replicas=1)
    rule = _ttft([(work, ours, theirs)])
    assert rule.verdict == outcome
    side = "lower" if ttfts[1] < 100 else "higher"
    assert f"{abs(100 - ttfts[1])} % {side}" in rule.sentence


def test_ttft_rule_is_not_refuted_by_predictions_that_leave_room_for_it() -> None:
    work = workload("w")
    pair = []
    for engine, band in (("vllm", Interval(100, 80, 120)), ("tensorrt_llm", Interval(100, 60, 300))):
        seen = replace(performance(100, 10), ttft_ms_80=band)
        pair.append(banded("w", 1.0, engine=engine, performance=seen, replicas=1))
    rule = _ttft([(work, *pair)])
    assert rule.verdict == "unsettled"
    assert "275 % higher to 50 % lower" in rule.sentence
    sure = [replace(c, performance=replace(c.performance, ttft_ms_80=Interval(100, 95, 105))) for c in pair]
    assert _ttft([(work, *sure)]).verdict == "refuted"


def engine_plan(engine: str, usd: int, served: float = 1.0, saving: Interval | None = None, **other) -> EnginePlan:
    amount = Decimal(usd)
    return EnginePlan(engine, "optimal", amount, amount * 730, 0.0, 4, 0, served, saving=saving, **other)


def test_hybrid_rule_compares_with_the_better_engine_alone() -> None:
    plans = (
        engine_plan("", 9),
        engine_plan("vllm", 12, saving=Interval(0.25, 0.1, 0.4)),
        engine_plan("tensorrt_llm", 8, 0.7),
    )
    rule = _hybrid(plans, (), "$")
    assert rule.verdict == "confirmed"
    assert "vLLM alone $8,760: 25.0 % saved (10 to 40 %)" in rule.sentence
    unsure = replace(plans[1], saving=Interval(0.25, -0.1, 0.4), too_close=True)
    assert _hybrid((plans[0], unsure, plans[2]), (), "$").verdict == "unsettled"
    same = replace(plans[1], saving=Interval(0.0, 0.0, 0.0))
    assert _hybrid((plans[0], same, plans[2]), (), "$").verdict == "refuted"
    barred = replace(plans[2], status="infeasible")
    assert _hybrid((*plans[:2], barred), (), "$").verdict == "not_testable"
    rule = _hybrid((plans[0], engine_plan("vllm", 7, 0.8), plans[2]), (), "$")
    assert rule.verdict == "confirmed"
    assert "vLLM 80 % of the demand" in rule.sentence


def test_tornado_shows_the_widest_first_and_moves_one_input_at_a_time() -> None:
    work = workload("w", load=Load("open", rate_per_s=10.0), revisions_per_month=10.0)
    asked = request(NODES, [work], energy=EnergyPrice(Decimal("0.10")))
    bars = tornado(banded("w", 0.01, spread=0.1, watts_per_gpu=500.0), work, asked)
    widths = [abs(bar.usd_per_hour_high - bar.usd_per_hour_low) for bar in bars]
    assert widths == sorted(widths, reverse=True)
    by_name = {bar.parameter: bar for bar in bars}
    assert set(by_name) == {"load", "what one replica carries", "GPU price", "electricity price", "revisions"}
    load = by_name["load"]
    assert (load.low, load.high) == (8.0, 12.0)
    assert load.usd_per_hour_low == pytest.approx(0.8 * load.usd_per_hour)
    assert by_name["what one replica carries"].usd_per_hour_low > load.usd_per_hour
    assert by_name["electricity price"].usd_per_hour_high > load.usd_per_hour


def test_flip_curve_holds_both_engines_and_todays_value() -> None:
    work = workload("w", load=Load("open", rate_per_s=8.0))
    found = flips((banded("w", 10 / 8), banded("w", 40 / 8, engine="tensorrt_llm", gpus=2)), work)["request rate"]
    values = [point.value for point in found.curve]
    assert values == sorted(values)
    assert 8.0 in values
    today = next(point for point in found.curve if point.value == 8.0)
    assert (today.vllm_usd_per_hour, today.tensorrt_llm_usd_per_hour) == (pytest.approx(2.0), pytest.approx(4.0))
    beyond = [point for point in found.curve if point.value > 25]
    assert all(p.tensorrt_llm_usd_per_hour <= p.vllm_usd_per_hour for p in beyond)


def test_electricity_inside_the_gpu_price_is_not_charged_again() -> None:
    work = workload("w")
    priced = replace(NODES[0].price, parts=(("rental", Decimal("1.9")), ("electricity", Decimal("0.1"))))
    asked = request([replace(NODES[0], price=priced)], [work], energy=EnergyPrice(Decimal("0.10")))
    assert usd_per_hour(banded("w", 1.0, watts_per_gpu=500.0), work, asked, Change()) == pytest.approx(2.0)

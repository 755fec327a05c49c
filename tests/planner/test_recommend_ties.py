"""Engines that cost the same are taken by reasons: the verdict says which, and the placement stays as cheap."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from fleet_samples import candidate, node, request, workload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placement_samples import as_plan

from planner.economics import OperationsCosts
from planner.economics.types import ELECTRICITY, GPU_BILL, PEOPLE, CostBreakdown, EnergyPrice
from planner.evidence import Evidence, Interval
from planner.placement.check import check
from planner.placement.solver import solve
from planner.plan import gpus_at_hand
from planner.plan_types import Candidate, Placement, PlanRequest
from planner.recommend import verdict
from planner.recommend.bill import bill_rows
from planner.recommend.preference import NOISE, SAME, is_tie, preferred
from planner.recommend.ties import ROUNDING, settle_ties, tie_note
from planner.serving.types import SloTarget
from tests.planner.test_recommend import performance

NODES = [node("a", usd="2.0000")]
WORK = workload("w")
POWER = EnergyPrice(Decimal("0.10"), Decimal("1"))


def billed(name: str, share: float, engine: str, *, watts: float = 0.0, spread: float = 0.0, **other) -> Candidate:
    """A candidate of two replicas with its bill: 2 GPUs at 2 USD an hour, and their ``watts`` at 0.10 USD a kWh."""
    power = (Decimal(str(watts)) * 2 * 730 / 10_000).quantize(Decimal("0.01"))
    parts = ((GPU_BILL, Decimal("2920.00")), (ELECTRICITY, power))
    cost = CostBreakdown(2920 + power, parts, None, None, None, None, Decimal(1460))
    rate = 10 * share
    values = {
        "replicas": 2, "cost": cost, "replica_rate_per_s": rate, "watts_per_gpu": watts,
        "replica_rate_80": Interval(rate, rate * (1 - spread), rate * (1 + spread)),
    } | other  # fmt: skip
    return replace(candidate(name, share, engine=engine, extra=str(power / 1460)), **values)


def settled(pair, work=WORK, nodes=NODES, **other):
    asked = request(nodes, [work], energy=POWER, **other)
    before = solve(asked, tuple(pair))
    after = settle_ties(asked, asked, tuple(pair), before, gpus_at_hand(asked))
    assert check(asked, as_plan(asked, after, pair)) == []
    return asked, before, after


def engines(result) -> set[str]:
    return {item.candidate_id.split("/")[1] for item in result.placements}


@pytest.mark.parametrize(
    ("margin", "tie"),
    [
        (Interval(0.00003, 0.00003, 0.00003), True),  # the last digit, whatever the bands
        (Interval(-0.0009, -0.3, 0.3), True),
        (Interval(0.004, -0.2, 0.25), True),  # the same bill, the band reaches past it on both sides
        (Interval(0.004, 0.004, 0.004), False),  # small, and certain
        (Interval(0.004, -0.001, 0.25), False),
        (Interval(0.006, -0.2, 0.25), False),
    ],
)
def test_a_tie_is_what_the_figures_cannot_tell_apart(margin: Interval, tie: bool) -> None:
    assert is_tie(margin) is tie
    assert NOISE < SAME


def test_a_tie_is_settled_by_its_reason_in_placement_and_verdict() -> None:
    """TensorRT-LLM is cheaper by a few cents a month; vLLM carries a third more on the same GPUs."""
    ours = billed("w", 0.80, "vllm", watts=300.6)
    theirs = billed("w", 0.60, "tensorrt_llm", watts=300.0)
    asked, before, after = settled((ours, theirs))
    assert engines(before) == {"tensorrt_llm"}
    assert engines(after) == {"vllm"}
    assert after.status == "optimal"
    assert after.bound_usd_per_hour <= before.objective_usd_per_hour <= after.objective_usd_per_hour
    said = verdict(WORK, (ours, theirs), asked, placed=after.placements[0].candidate_id, placements=after.placements)
    assert said.engine == "vllm"
    assert said.tie == "vLLM because it could carry 33 % more on the same bill"
    assert said.sentence == f"Equal at this cost; {said.tie}."
    alone = verdict(WORK, (ours, theirs), asked)
    assert (alone.engine, alone.tie) == (said.engine, said.tie)


def test_the_note_states_what_settling_costs() -> None:
    _, before, after = settled((billed("w", 0.80, "vllm", watts=310.0), billed("w", 0.60, "tensorrt_llm", watts=300.0)))
    more = after.objective_usd_per_hour - before.objective_usd_per_hour
    assert more == Decimal("0.0020")
    assert tie_note(before, after, "USD") == (
        "Engines that cost the same were taken by their reasons, not by the last digit: $0.0020 an hour above the "
        "cheapest placement, less than the figures can tell.",
    )
    assert tie_note(before, before, "USD") == ()


def test_gpus_that_are_only_planned_settle_nothing() -> None:
    """A cheaper twin of vLLM on nodes that are not there yet does not hide the tie on those that are."""
    nodes = [*NODES, node("new", gpu="H200-SXM-141GB", usd="0.5000", state="planned")]
    ours, theirs = billed("w", 0.80, "vllm", watts=300.6), billed("w", 0.60, "tensorrt_llm", watts=300.0)
    later = replace(candidate("w", 0.8, gpu="H200-SXM-141GB"), replicas=2, cost=ours.cost, watts_per_gpu=300.0)
    _, before, after = settled((ours, theirs, later), nodes=nodes)
    assert engines(before) == {"tensorrt_llm"}
    assert {item.candidate_id for item in after.placements} == {ours.id}


def test_a_difference_beyond_a_tie_is_settled_by_cost() -> None:
    pair = (billed("w", 0.80, "vllm", watts=450.0), billed("w", 0.60, "tensorrt_llm", watts=300.0))
    asked, before, after = settled(pair)
    assert after is before
    assert engines(after) == {"tensorrt_llm"}
    assert verdict(WORK, pair, asked, placed=after.placements[0].candidate_id).tie == ""


def test_a_tie_that_finds_no_room_keeps_its_place_and_says_so() -> None:
    """Two single GPUs on two nodes: the pair that vLLM needs stands nowhere."""
    nodes = [node("a", gpus=2, busy_gpus=(0,)), node("b", gpus=2, busy_gpus=(1,))]
    theirs = billed("w", 0.60, "tensorrt_llm")
    ours = replace(candidate("w", 1.6, gpus=2, extra="0"), replicas=1, replica_rate_per_s=16.0, cost=theirs.cost)
    asked, before, after = settled((ours, theirs), nodes=nodes)
    assert after is before
    said = verdict(WORK, (ours, theirs), asked, placed=theirs.id, placements=after.placements)
    assert said.engine == "tensorrt_llm"
    assert said.tie == (
        "TensorRT-LLM although vLLM would be preferred, it could carry 33 % more on the same bill: "
        "there is no room for vLLM"
    )


def test_a_second_engine_whose_people_cost_more_is_not_brought_in_by_a_tie() -> None:
    people = OperationsCosts(people_usd_per_hour=Decimal(80), people_hours_per_engine_month=Decimal(10))
    works = [workload("w"), workload("x", allowed_engines=("tensorrt_llm",))]
    made = [
        billed("w", 0.80, "vllm"), billed("w", 0.60, "tensorrt_llm"), billed("x", 0.60, "tensorrt_llm"),
    ]  # fmt: skip
    made = [replace(c, cost=replace(c.cost, parts=(*c.cost.parts, (PEOPLE, Decimal(800))))) for c in made]
    asked = request(NODES, works, operations=people, energy=POWER)
    before = solve(asked, tuple(made))
    first = [item for item in before.placements if item.workload == "w"]
    if first[0].candidate_id.startswith("w/vllm"):  # whichever the search took: start from one engine alone
        before = solve(asked, tuple(made[1:]))
    assert settle_ties(asked, asked, tuple(made), before, gpus_at_hand(asked)) is before


def test_reasons_come_in_their_order() -> None:
    work = workload("w", slo=(SloTarget("ttft", "p99", 100.0),), revisions_per_month=4.0, adapters=3)
    asked = request(NODES, [work], energy=POWER)
    first, second = billed("w", 0.8, "vllm"), billed("w", 0.8, "tensorrt_llm")
    built = replace(second, settings=replace(second.settings, trt_backend="tensorrt"))

    def because(one, other, of=work, **more) -> tuple[str, str]:
        found = preferred(one, other, of, replace(asked, **more))
        assert found == preferred(other, one, of, replace(asked, **more))
        return found.candidate.id.split("/")[1], found.because

    assert because(first, second) == (
        "vllm",
        "adapters load and unload while it runs, and it also runs on AMD and Intel",
    )
    assert because(first, second, workload("w")) == ("vllm", "it also runs on AMD and Intel")
    assert because(first, built) == ("vllm", "4 revisions a month take 2.5 minutes each, not 19.5")
    slow = OperationsCosts(start_up_minutes=(("vllm", Decimal(9)),))
    assert because(first, second, operations=slow) == ("tensorrt_llm", "4 revisions a month take 2 minutes each, not 9")
    more = replace(second, replica_share=0.9)
    assert because(first, more) == ("tensorrt_llm", "it could carry 12 % more on the same bill")
    wide = replace(first, replica_rate_80=Interval(8.0, 6.0, 10.0))
    assert because(wide, more)[0] == "vllm"  # 12 % more lies within the band: no reason
    near, far = performance(50, 10), performance(90, 10)
    roomy, tight = replace(first, performance=near), replace(more, performance=far)
    assert because(roomy, tight) == ("vllm", "it uses 50 % of the tightest SLO limit")
    known = replace(tight, evidence=Evidence.MEASURED)
    assert because(roomy, known) == ("tensorrt_llm", "it is known from stronger evidence (measured)")
    runs = (Placement("w", first.id, 0, "a", (0,)),)
    assert because(roomy, known, current=runs) == ("vllm", "it runs there today")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.34, 0.5, 0.8, 1.1]), st.sampled_from([0.34, 0.5, 0.8, 1.1]),
            st.integers(0, 40), st.integers(0, 40), st.floats(0.0, 0.3),
        ),
        min_size=1, max_size=4,
    ),
    st.integers(2, 8),
)  # fmt: skip
def test_settling_never_costs_more_than_the_share_of_a_tie(rows, gpus: int) -> None:
    works = [workload(f"w{i}") for i in range(len(rows))]
    made = []
    for i, (ours, theirs, a, b, spread) in enumerate(rows):
        made += [
            billed(f"w{i}", ours, "vllm", watts=300 + 5 * a, spread=spread),
            billed(f"w{i}", theirs, "tensorrt_llm", watts=300 + 5 * b, spread=spread),
        ]
    asked: PlanRequest = request([node("a", gpus=gpus)], works, energy=POWER)
    before = solve(asked, tuple(made))
    after = settle_ties(asked, asked, tuple(made), before, gpus_at_hand(asked))
    assert check(asked, as_plan(asked, after, made)) == []
    assert {u.workload: u.replicas for u in after.unplaced} == {u.workload: u.replicas for u in before.unplaced}
    limit = before.objective_usd_per_hour * (1 + Decimal(str(SAME))) + ROUNDING * len(rows)
    assert before.objective_usd_per_hour - ROUNDING <= after.objective_usd_per_hour <= limit
    months = [
        sum(row.usd_per_month for row in bill_rows(asked, made, each.placements, each.purchased_nodes))
        for each in (before, after)
    ]
    assert months[1] <= months[0] * (1 + Decimal(str(SAME))) + 1

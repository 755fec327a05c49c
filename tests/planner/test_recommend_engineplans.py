"""The plan beside each engine alone: the same candidates, the same solver, people paid once for each engine."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fleet_samples import candidate, node, request, workload

from planner.economics import OperationsCosts
from planner.economics.types import CostBreakdown
from planner.evidence import Interval
from planner.placement.solver import solve
from planner.recommend.engineplans import cheaper_alone, engine_plans, plans_alone


def priced(name: str, share: float, *, engine: str, people: str = "0", spread: float = 0.1):
    """A candidate at $2 a GPU-hour, sized for as many replicas as it needs, with the people of its engine."""
    made = candidate(name, share, engine=engine)
    replicas = -(-100 // round(100 * share))
    gpus = Decimal(1460 * replicas)
    parts = (("GPUs, carried load", gpus), ("people", Decimal(people)))
    cost = CostBreakdown(gpus + Decimal(people), parts, None, None, None, None, Decimal(730))
    band = Interval(share, share * (1 - spread), share * (1 + spread))
    extra = (Decimal(people) / 730 / replicas).quantize(Decimal("0.000001"))
    return replace(made, cost=cost, replicas=replicas, replica_rate_80=band, replica_extra_usd_per_hour=extra)


def planned(made, works, *, people: str = "0", gpus: int = 8):
    costs = OperationsCosts(people_usd_per_hour=Decimal(people), people_hours_per_engine_month=Decimal(1))
    asked = request([node("a", gpus=gpus)], works, operations=costs)
    chosen = solve(asked, tuple(made))
    alone = plans_alone(asked, made, chosen)
    return chosen, alone, engine_plans(asked, made, chosen, alone)


def test_each_engine_is_placed_alone_and_compared() -> None:
    made = [
        priced("w", 1.0, engine="vllm"), priced("w", 0.5, engine="tensorrt_llm"),
        priced("v", 0.5, engine="vllm"), priced("v", 1.0, engine="tensorrt_llm"),
    ]  # fmt: skip
    chosen, alone, (both, first, second) = planned(made, [workload("w"), workload("v")])
    assert [row.engine for row in (both, first, second)] == ["", "vllm", "tensorrt_llm"]
    assert (both.gpus, first.gpus, second.gpus) == (2, 3, 3)
    assert (both.usd_per_month, first.usd_per_month) == (Decimal("2920.00"), Decimal("4380.00"))
    assert both.saving is None
    for row in (first, second):
        assert row.saving.value == 1 - 2 / 3
        assert row.saving.low <= row.saving.value <= row.saving.high
        assert {p.candidate_id.split("/")[1] for p in alone[row.engine].placements} == {row.engine}
    assert chosen.served_share == first.served_share == 1.0


def test_a_plan_of_one_engine_is_that_engines_best_plan() -> None:
    made = [priced("w", 1.0, engine="vllm"), priced("w", 0.5, engine="tensorrt_llm")]
    chosen, alone, (both, first, second) = planned(made, [workload("w")])
    assert alone["vllm"] is chosen
    assert first.saving == Interval(0.0, 0.0, 0.0)
    assert not first.too_close
    assert first.usd_per_month == both.usd_per_month
    assert second.saving.value == 0.5


def test_a_second_engine_is_paid_for_in_people() -> None:
    people = {"people": "500"}
    made = [
        priced("w", 1.0, engine="vllm", **people), priced("v", 0.5, engine="vllm", **people),
        priced("v", 1.0, engine="tensorrt_llm", **people),
    ]  # fmt: skip
    works = [workload("w"), workload("v")]
    _, _, (both, vllm, _) = planned(made, works, people="500")
    assert round(both.usd_per_month) == 2 * 1460 + 2 * 500
    assert round(vllm.usd_per_month) == 3 * 1460 + 500
    assert round(float(vllm.saving.value), 3) == round(1 - 3920 / 4880, 3)


def test_one_engine_that_is_cheaper_with_its_people_is_named() -> None:
    made = [
        priced("w", 1.0, engine="vllm", people="3000"), priced("v", 0.5, engine="vllm", people="3000"),
        priced("v", 1.0, engine="tensorrt_llm", people="3000"),
    ]  # fmt: skip
    *_, rows = planned(made, [workload("w"), workload("v")], people="3000")
    assert rows[1].saving.value < 0
    (words,) = cheaper_alone(rows, "$")
    assert words.startswith("vLLM alone would cost $1,540 less a month")
    *_, rows = planned(made, [workload("w"), workload("v")], people="0")
    assert cheaper_alone(rows, "$") == ()


def test_what_one_engine_cannot_serve_is_named_with_its_reason() -> None:
    refused = replace(
        priced("v", 1.0, engine="tensorrt_llm"), status="unsupported", reasons=("It cannot.",), replica_share=0.0
    )
    made = [
        priced("w", 1.0, engine="vllm"), priced("w", 1.0, engine="tensorrt_llm"), priced("v", 1.0, engine="vllm"),
        refused,
    ]  # fmt: skip
    *_, (both, vllm, trt) = planned(made, [workload("w"), workload("v")])
    assert vllm.served_share == both.served_share == 1.0
    assert trt.served_share == 0.5
    assert trt.saving is None
    assert [(item.workload, "It cannot" in item.reason) for item in trt.unplaced] == [("v", True)]


def test_an_engine_without_any_candidate_serves_nothing() -> None:
    *_, (_, vllm, trt) = planned([priced("w", 1.0, engine="vllm")], [workload("w")])
    assert vllm.status == "optimal"
    assert (trt.status, trt.gpus, trt.usd_per_month, trt.saving) == ("infeasible", 0, Decimal("0.00"), None)
    assert [item.workload for item in trt.unplaced] == ["w"]

"""What-if changes: each does what its words say, and one that meets nothing is refused."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest
from fleet_samples import H100, L40S, node, request, workload
from hypothesis import given
from hypothesis import strategies as st

from planner import whatif
from planner.demand import planned
from planner.economics.types import EnergyPrice, GpuHourPrice
from planner.errors import InputError
from planner.plan_types import Placement, PlanRequest
from planner.serving.types import Lengths, Load, SloTarget

PARTS = (("purchase", Decimal("1.5000")), ("electricity", Decimal("0.3000")), ("people", Decimal("0.2000")))


def base() -> PlanRequest:
    """Two nodes at two sites, three kinds of load, a price with parts."""
    priced = GpuHourPrice(Decimal("2.0000"), "tco", "test", PARTS)
    return dataclasses.replace(
        request(
            [node("a", price=priced), node("b", gpu=L40S, usd="1.0000", site="west")],
            [
                workload("open", slo=(SloTarget("ttft", "p90", 500.0), SloTarget("tpot", "p90", 50.0))),
                workload("users", load=Load("closed", concurrency=10)),
                workload("night", load=Load("offline", requests=1000)),
            ],
        ),
        energy=EnergyPrice(Decimal("0.1000"), Decimal("1.3")),
        current=(Placement("open", "c", 0, "a", (0,)), Placement("open", "c", 0, "b", (0,))),
    )


def applied(**change: object) -> PlanRequest:
    return whatif.apply(base(), [whatif.parse_change(change)])


def test_demand_of_every_kind_of_load() -> None:
    loads = [w.load for w in applied(kind="demand", factor=1.5).workloads]
    assert (loads[0].rate_per_s, loads[1].concurrency, loads[2].requests) == (15.0, 15, 1500)
    one = applied(kind="demand", factor=2, workload="users").workloads
    assert (one[0].load.rate_per_s, one[1].load.concurrency) == (10.0, 20)


def test_a_trace_arrives_faster() -> None:
    traced = workload("t", load=Load("open", rate_per_s=2.0, arrival="trace", times_s=(0.0, 1.0, 3.0)))
    found = whatif.apply(request([node("a")], [traced]), [whatif.DemandChange(2.0)])
    assert found.workloads[0].load.times_s == (0.0, 0.5, 1.5)


@given(st.floats(0.1, 50), st.integers(1, 10_000))
def test_no_plan_is_for_less_than_was_asked_and_growth_asks_alike(factor: float, users: int) -> None:
    for load in (Load("closed", concurrency=users), Load("offline", requests=users)):
        asked = request([node("a")], [workload("w", load=load)])
        changed = whatif.apply(asked, [whatif.DemandChange(factor)]).workloads[0].load
        found = changed.concurrency or changed.requests
        assert max(1.0, users * factor - 1e-6) <= found < users * factor + 1
        if 0.5 <= factor <= 2:
            grown = dataclasses.replace(asked.workloads[0], plan_for_month=1, growth_per_month=factor - 1)
            assert planned(dataclasses.replace(asked, workloads=(grown,))).workloads[0].load == changed


def test_less_of_a_trace_is_every_other_arrival_not_slower_bursts() -> None:
    times = (0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0)
    traced = workload("w", load=Load("open", arrival="trace", times_s=times))
    found = whatif.apply(request([node("a")], [traced]), [whatif.DemandChange(0.5)])
    assert found.workloads[0].load.times_s == (0.0, 10.0, 20.0, 30.0)


@given(st.floats(0.02, 50))
def test_more_and_back_again_is_the_same_demand(factor: float) -> None:
    there = whatif.apply(base(), [whatif.DemandChange(factor), whatif.DemandChange(1 / factor)])
    assert there.workloads[0].load.rate_per_s == pytest.approx(10.0)


@given(st.floats(0.02, 50))
def test_the_parts_of_a_price_add_up_after_any_change(factor: float) -> None:
    for change in (whatif.GpuPriceChange(factor), whatif.ElectricityChange(Decimal(str(round(factor / 10, 4))))):
        price = whatif.apply(base(), [change]).nodes[0].price
        assert sum(usd for _, usd in price.parts) == price.usd_per_gpu_hour


def test_prices_of_one_gpu_or_of_all() -> None:
    assert [n.price.usd_per_gpu_hour for n in applied(kind="gpu_price", factor=0.5).nodes] == [
        Decimal("1.0000"), Decimal("0.5000"),
    ]  # fmt: skip
    one = applied(kind="gpu_price", factor=1.1, gpu=L40S)
    assert [n.price.usd_per_gpu_hour for n in one.nodes] == [Decimal("2.0000"), Decimal("1.1000")]


def test_electricity_moves_its_part_of_the_price() -> None:
    found = applied(kind="electricity", usd_per_kwh="0.30")
    assert found.energy is not None
    assert found.energy.usd_per_kwh == Decimal("0.3000")
    assert dict(found.nodes[0].price.parts)["electricity"] == Decimal("0.9000")
    assert [n.price.usd_per_gpu_hour for n in found.nodes] == [Decimal("2.6000"), Decimal("1.0000")]


def test_a_lost_node_takes_replicas_that_reach_onto_it() -> None:
    found = applied(kind="lost", node="b")
    assert [n.name for n in found.nodes] == ["a"]
    assert found.current == ()
    assert [n.name for n in applied(kind="lost", site="east").nodes] == ["b"]


def test_limits_lengths_growth_precision_and_model() -> None:
    found = applied(kind="slo", factor=0.5, metric="ttft")
    assert [t.limit_ms for t in found.workloads[0].slo] == [250.0, 50.0]
    assert applied(kind="lengths", side="output", factor=2, workload="open").workloads[0].output_tokens == Lengths(
        "fixed", value=512
    )
    assert {w.growth_per_month for w in applied(kind="growth", per_month=0.05).workloads} == {0.05}
    assert applied(kind="precision", precisions=["fp8"]).workloads[1].allowed_precisions == ("fp8",)
    assert applied(kind="model", workload="open", model="Qwen/Qwen3-32B").workloads[0].model == "Qwen/Qwen3-32B"


def test_a_new_gpu_may_be_bought() -> None:
    found = applied(kind="buy", gpu="B200-SXM", gpus=8, nvlink_domain=8, usd_per_gpu_hour="5.50", at_most=2)
    (option,) = found.purchase_options
    assert found.mode == "owned_plus_purchase"
    assert (option.node.gpu, option.node.price.usd_per_gpu_hour, option.max_count) == ("B200-SXM", Decimal("5.50"), 2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "nonsense"}, "kind"),
        ({"kind": "demand"}, "factor"),
        ({"kind": "demand", "factor": 0}, "factor"),
        ({"kind": "demand", "factor": float("nan")}, "factor"),
        ({"kind": "demand", "factor": 2, "workload": "none"}, "workload"),
        ({"kind": "growth", "per_month": 3}, "per_month"),
        ({"kind": "slo", "factor": 0.5, "workload": "users"}, "metric"),
        ({"kind": "precision", "precisions": []}, "precisions"),
        ({"kind": "precision", "precisions": ["fp8", "fp99"]}, "precisions"),
        ({"kind": "model", "workload": "open", "model": "BAAI/bge-m3"}, "model"),
        ({"kind": "gpu_price", "factor": 2, "gpu": H100 + "x"}, "gpu"),
        ({"kind": "electricity", "usd_per_kwh": -1}, "usd_per_kwh"),
        ({"kind": "lost", "node": "z"}, "node"),
        ({"kind": "lost", "node": "a", "site": "east"}, "node"),
        ({"kind": "buy", "gpu": H100, "gpus": 0, "nvlink_domain": 8, "usd_per_gpu_hour": 1}, "gpus"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(change: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        whatif.apply(base(), [whatif.parse_change(change)])
    assert field in refused.value.field


def test_nothing_is_left_without_the_last_node() -> None:
    with pytest.raises(InputError, match="no node would be left"):
        whatif.apply(base(), [whatif.LostChange(node="a"), whatif.LostChange(node="b")])


def test_the_base_stays_and_changes_say_what_they_do() -> None:
    before = base()
    changes = [
        whatif.DemandChange(1.3), whatif.DemandChange(0.5, "open"), whatif.SloChange(0.5, "ttft", "open"),
        whatif.GpuPriceChange(0.8), whatif.ElectricityChange(Decimal("0.2500")), whatif.GrowthChange(0.05),
        whatif.LostChange(site="west"),
    ]  # fmt: skip
    found = whatif.apply(before, changes, "New")
    assert before == base()
    assert found.name == "New"
    assert whatif.words(changes) == (
        "Demand +30 %; open: demand −50 %; open: TTFT limits −50 %; GPU prices −20 %; "
        "Electricity at $0.25 per kWh; Growth of 5 % a month; Without site west"
    )
    assert [whatif.parse_change(item) for item in whatif.as_json(changes)] == changes


def test_amounts_of_a_change_are_in_the_currency_of_the_plan() -> None:
    changes = [whatif.ElectricityChange(Decimal("0.250")), whatif.DemandChange(2)]
    assert whatif.words(changes, "EUR") == "Electricity at €0.25 per kWh; Demand +100 %"
    assert whatif.words(changes[:1]) == "Electricity at $0.25 per kWh"
    bought = whatif.BuyChange("B200-SXM", 8, 8, Decimal("5.50"), 2)
    assert "CHF 5.5 per GPU-hour" in whatif.words([bought], "CHF")
    assert "$5.5 per GPU-hour" in bought.words

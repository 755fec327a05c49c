"""What a plan buys: the cheapest kinds, after what is owned, within limits that are named when they stop it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from fleet_samples import L40S, candidate, node, workload
from placement_samples import solved

from planner.plan_types import PurchaseLimits, PurchaseOption


def test_purchase_buys_whole_nodes_of_the_cheapest_kind_within_limits() -> None:
    options = (
        PurchaseOption(node("h", usd="2.0000"), power_kw=10.2, rack_units=8),
        PurchaseOption(node("l", gpu=L40S, gpus=4, usd="1.0000"), power_kw=2.0, rack_units=4),
    )
    made = [candidate("w", 0.1), candidate("w", 0.08, gpu=L40S)]
    result = solved([], [workload("w")], made, mode="purchase", purchase_options=options)
    assert {n.gpu for n in result.purchased_nodes} == {L40S}
    assert len(result.purchased_nodes) == 4
    assert float(result.objective_usd_per_hour) == pytest.approx(16.0)
    limits = PurchaseLimits(power_kw=6.5)
    result = solved([], [workload("w")], made, mode="purchase", purchase_options=options, limits=limits)
    assert len(result.purchased_nodes) == 3
    assert result.unplaced[0].workload == "w"


def test_owned_nodes_are_used_before_nodes_are_bought() -> None:
    nodes = [node("own", gpus=4), node("new", gpus=4, state="planned")]
    made = [candidate("w", 1 / 6)]
    result = solved(nodes, [workload("w")], made, mode="owned_plus_purchase")
    assert [n.name for n in result.purchased_nodes] == ["new"]
    assert solved(nodes, [workload("w")], made).purchased_nodes == ()
    nodes.append(node("cheap", gpu=L40S, state="planned", usd="0.1000"))
    made = [candidate("w", 1 / 4), candidate("w", 1 / 4, gpu=L40S)]
    result = solved(nodes, [workload("w")], made, mode="owned_plus_purchase")
    assert result.purchased_nodes == ()
    assert {p.node for p in result.placements} == {"own"}


def test_objective_decides_between_new_spending_and_the_total() -> None:
    nodes = [node("own", gpus=4), node("cheap", gpu=L40S, gpus=4, state="planned", usd="0.1000")]
    made = [candidate("w", 1 / 4), candidate("w", 1 / 4, gpu=L40S)]
    spend = solved(nodes, [workload("w")], made, mode="owned_plus_purchase", objective="new_spend")
    assert spend.purchased_nodes == ()
    total = solved(nodes, [workload("w")], made, mode="owned_plus_purchase", objective="total_cost")
    assert [n.name for n in total.purchased_nodes] == ["cheap"]
    assert total.objective_usd_per_hour < spend.objective_usd_per_hour


@pytest.mark.parametrize(
    ("limits", "words", "relaxation"),
    [
        (PurchaseLimits(usd_per_hour=Decimal(20)), "the budget of 20 USD an hour binds", "Raise the budget to 32 USD"),
        (PurchaseLimits(power_kw=15.0), "the power limit of 15 kW binds", "Raise the power limit to 20.4 kW"),
        (PurchaseLimits(rack_units=9), "the rack limit of 9 rack units binds", "Raise the rack limit to 16 rack units"),
        (
            PurchaseLimits(usd_per_hour=Decimal(20), rack_units=9),
            "binds (16 are taken) and the rack limit",
            "Raise the budget to 32 USD an hour and the rack limit to 16 rack units.",
        ),
    ],
)
def test_limit_that_stops_a_purchase_is_named_and_its_raise_is_enough(limits, words, relaxation) -> None:
    option = PurchaseOption(node("h", usd="2.0000"), power_kw=10.2, rack_units=8)
    made = [candidate("w", 1 / 16)]
    asked = {"mode": "purchase", "purchase_options": (option,)}
    result = solved([], [workload("w")], made, limits=limits, **asked)
    assert len(result.purchased_nodes) == 1
    assert words in result.unplaced[0].reason
    assert relaxation in result.unplaced[0].relaxation
    raised = PurchaseLimits(Decimal(32), 20.4, 16)
    assert not solved([], [workload("w")], made, limits=raised, **asked).unplaced


def test_number_that_may_be_bought_is_named() -> None:
    option = PurchaseOption(node("h", gpus=4), max_count=1)
    result = solved([], [workload("w")], [candidate("w", 1 / 6)], mode="purchase", purchase_options=(option,))
    assert "only 1 of" in result.unplaced[0].reason
    assert result.unplaced[0].relaxation == "Raise their number to 2."

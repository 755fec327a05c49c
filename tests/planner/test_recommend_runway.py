"""Months ahead: GPUs, money and the moment to order, from compound growth."""

from __future__ import annotations

from decimal import Decimal

import pytest
from fleet_samples import H100, candidate, node, request, workload

from planner.plan_types import Placement
from planner.recommend.runway import outlook


def months_of(growth: float, share: float, **other):
    work = workload("w", growth_per_month=growth)
    made = candidate("w", share)
    placed = (Placement("w", made.id, 0, "a", (0,)),)
    return outlook(request([node("a", usd="2.0000")], [work], **other), (made,), placed)


def test_without_growth_there_is_no_outlook() -> None:
    assert months_of(0.0, 0.5) == ((), ())


def test_gpus_grow_with_the_demand_and_run_out() -> None:
    """Doubling each month: 1, 2, 4, 8, 16 GPUs of which 8 are there."""
    views, runways = months_of(1.0, 1.0, lead_time_months=3.0)
    assert [view.gpus_needed[H100] for view in views[:5]] == [1, 2, 4, 8, 16]
    assert views[3].usd_per_month == Decimal("11680.00")
    assert runways[0].full_in_months == 4
    assert runways[0].order_in_months == pytest.approx(1.0)
    assert "Order in 1 month (lead time 3 months)" in runways[0].sentence


def test_late_order_is_now() -> None:
    _, runways = months_of(1.0, 1.0, lead_time_months=6.0)
    assert runways[0].order_in_months == 0.0
    assert "Order now" in runways[0].sentence


def test_what_lasts_says_so() -> None:
    _, runways = months_of(0.01, 1.0)
    assert runways[0].full_in_months is None
    assert runways[0].gpus_short == 0
    assert "it lasts" in runways[0].sentence


def test_later_gpus_cost_the_eroded_price() -> None:
    views, _ = months_of(1.0, 1.0, price_erosion_per_year=0.5)
    eroded = 0.5 ** (4 / 12)
    assert float(views[4].usd_per_month) == pytest.approx(730 * 2 * (8 + 8 * eroded), abs=0.01)

"""Amounts: the fleet in the installation's currency by dated rates, a plan in its own, side by side in the first's."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from controlplane import env
from controlplane.core.models import User
from controlplane.dashboard import compareview, fleetview, fmt
from controlplane.inventory.models import ExchangeRate, Price
from controlplane.inventory.pricing import exchange_rates
from controlplane.planning import comparing
from controlplane.planning.models import Plan, Scenario
from tests.controlplane import fleet_fixture

EARLY, LATE = dt.date(2026, 1, 2), dt.date(2026, 1, 9)


@pytest.fixture
def everything(db: None) -> dict[str, Any]:
    """The sample fleet with two plans."""
    return fleet_fixture.make_everything()


@pytest.fixture
def euro(settings: Any, everything: dict[str, Any]) -> None:
    """An installation in euros, with a rate of two days."""
    settings.CURRENCY = "EUR"
    ExchangeRate.objects.all().delete()
    for day, rate in ((EARLY, "1.05"), (LATE, "1.25")):
        ExchangeRate.objects.create(currency="EUR", date=day, usd_per_unit=Decimal(rate), source="reference rate")


def in_currency(plan: Plan, code: str) -> Plan:
    Plan.objects.filter(pk=plan.pk).update(request={**(plan.request or {}), "currency": code})
    plan.refresh_from_db()
    return plan


def test_a_wrong_currency_of_the_installation_is_named() -> None:
    assert env.load({"TONNAGE_CURRENCY": "CHF"}).currency == "CHF"
    assert env.load({}).currency == "USD"
    with pytest.raises(env.EnvError, match="TONNAGE_CURRENCY"):
        env.load({"TONNAGE_CURRENCY": "francs"})


def test_the_fleet_is_summed_in_the_installations_currency_by_the_newest_rate(euro: None, settings: Any) -> None:
    found = fleetview.totals(fleetview.fleet())
    assert [(rate.currency, rate.date) for rate in found.rates] == [("EUR", LATE.isoformat())]
    settings.CURRENCY = "USD"
    dollars = fleetview.totals(fleetview.fleet())
    assert dollars.rates == ()
    assert dollars.usd_per_hour > 0
    assert found.usd_per_hour == pytest.approx(dollars.usd_per_hour / Decimal("1.25"))


def test_a_price_without_a_rate_is_left_out_and_says_so(everything: dict[str, Any], settings: Any) -> None:
    settings.CURRENCY = "SEK"
    rows = fleetview.fleet()
    priced = {row.node.node_type.gpu_model_id for row in rows} & set(Price.objects.values_list("gpu_model", flat=True))
    assert priced
    for row in rows:
        assert row.usd_per_gpu_hour is None
        assert ("no exchange rate of SEK" in row.unpriced) == (row.node.node_type.gpu_model_id in priced)
    assert fleetview.totals(rows).usd_per_hour == 0


def test_pages_show_the_fleet_in_euros_and_the_plan_in_its_own(
    euro: None, everything: dict[str, Any], client: Client
) -> None:
    client.force_login(everything["user"])
    home = client.get("/").content.decode()
    assert "1 EUR" in home
    assert LATE.isoformat() in home
    tiles, table = home.split("What serves what")
    assert "€" in tiles.split("Fleet cost")[1].split("</div>")[0]
    assert 'Cost <span class="u">$ / M tok' in table
    in_currency(everything["plan"], "EUR")
    home = client.get("/").content.decode()
    assert "$" not in home.split("<main")[1]
    listed = client.get("/workloads/").content.decode()
    assert 'Cost <span class="u">€ / M tok' in listed
    assert "€ / GPU-h" in client.get("/fleet/nodes/").content.decode()
    form = client.get(f"/plans/{everything['plan'].pk}/what-if/").content.decode()
    assert "€ / kWh" in form
    assert "€ / GPU-h" in form
    assert "$" not in form.split("<main")[1]


def test_a_new_scenario_is_in_the_installations_currency(settings: Any) -> None:
    settings.CURRENCY = "EUR"
    assert Scenario(name="x").currency == "EUR"


def test_plans_side_by_side_are_in_the_currency_of_the_first(
    euro: None, everything: dict[str, Any], client: Client, viewer: User
) -> None:
    dollars, euros = everything["plan"], in_currency(everything["other"], "EUR")
    alone = comparing.compare([euros, dollars], exchange_rates())
    assert (alone.currency, [rate.date for rate in alone.rates]) == ("EUR", [LATE.isoformat()])
    own, other = next(line.values for line in alone.totals if line.key == "usd_per_hour")
    assert own == Decimal(str((euros.result or {})["usd_per_hour"]))
    assert other == pytest.approx(
        Decimal(str((dollars.result or {})["usd_per_hour"])) / Decimal("1.25"), abs=Decimal("0.00001")
    )
    assert next(line.unit for line in alone.totals if line.key == "usd_per_hour") == "€ / h"
    with fmt.in_currency(alone.currency):
        charts = compareview.charts(alone)
    for chart in charts:
        assert "$" not in chart.payload
        assert "USD" not in chart.payload + "".join(column.unit for column in chart.columns)
        assert len(chart.figure.data) == 2, "a legend of plans stays short however many workloads there are"
    assert "EUR/h" in comparing.as_csv(alone).decode("utf-8-sig")
    client.force_login(viewer)
    page = client.get(f"/plans/compare/?ids={euros.pk},{dollars.pk}").content.decode()
    assert "Amounts in EUR" in page
    assert "reference rate" in page
    ExchangeRate.objects.all().delete()
    with pytest.raises(ValidationError, match=r"cannot be held against.*no exchange rate of EUR"):
        comparing.compare([euros, dollars], exchange_rates())

"""Money of a plan: currencies of the inventory, the bill by tenant and site, the cost page and its figures."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from typing import Any
from unittest.mock import patch

import openpyxl
import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.core.models import Role, User
from controlplane.dashboard import costview, figures_cost, planrow
from controlplane.inventory import pricing, services
from controlplane.inventory.models import ExchangeRate, GpuModel, Price, Site
from controlplane.planning import exporting, mapping, report
from controlplane.planning.exporting import answer_of
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload
from planner.economics.operations import OperationsCosts
from planner.economics.tariff import EnergyPrice
from planner.jsonio import to_json
from planner.plan_types import ApiPrice, PlanRequest, PlanResult, PriceClass, SiteEnergy
from planner.verdict_types import MonthView
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    return fleet_fixture.make_everything()


@pytest.fixture
def answer(sample: dict[str, Any]) -> tuple[PlanRequest, PlanResult]:
    return answer_of(sample["plan"])


@pytest.fixture
def reader(sample: dict[str, Any], client: Client) -> Client:
    client.force_login(fleet_fixture.make_user("eve", Role.VIEWER), backend="django.contrib.auth.backends.ModelBackend")
    return client


def scenario(**values: Any) -> Scenario:
    made = Scenario.objects.create(**{"name": "money", "slug": "money", "currency": "EUR"} | values)
    made.workloads.set(Workload.objects.filter(name="support-chat"))
    return made


def test_a_plan_is_asked_in_the_currency_of_its_scenario(sample: dict[str, Any]) -> None:
    """2.40 EUR stays 2.40 EUR; dollars are converted by the rate of the stated day, which stands in the request."""
    model = GpuModel.objects.get(name="H100-SXM5-80GB")
    Price.objects.filter(gpu_model=model).delete()
    Price.objects.create(
        gpu_model=model, basis="rental", usd_per_gpu_hour="2.40", currency="EUR", source="s", valid_from="2026-01-01"
    )
    ExchangeRate.objects.create(currency="EUR", date="2026-12-24", usd_per_unit="2", source="later")
    asked = mapping.plan_request(
        scenario(
            rates_as_of=dt.date(2026, 11, 30),
            operations={"people_usd_per_hour": 108.62, "currency": "USD"},
            price_classes=[{"name": "interactive", "factor": 2, "workloads": ["support-chat"]}],
        )
    )
    assert (asked.currency, asked.rates_as_of) == ("EUR", "2026-11-30")
    assert [(rate.currency, rate.usd_per_unit) for rate in asked.rates] == [("EUR", Decimal("1.08620000"))]
    prices = {node.gpu: node.price.usd_per_gpu_hour for node in asked.nodes}
    assert prices["H100-SXM5-80GB"] == Decimal("2.40")
    assert asked.operations.people_usd_per_hour == 100
    sheets = {sheet.gpu: sheet for sheet in asked.price_sheets}
    assert sheets["H100-SXM5-80GB"].quoted_in == "EUR"
    assert sheets["L40S"].quoted_in == "USD"
    assert {w.name: w.price_class for w in asked.workloads}["support-chat"] == "interactive"
    assert {entry.site for entry in asked.site_energy} == {node.site for node in asked.nodes}


def test_a_missing_rate_is_an_error_with_its_remedy(sample: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"no exchange rate of EUR on or before 2026-01-01.*Exchange rates"):
        mapping.plan_request(scenario(rates_as_of=dt.date(2026, 1, 1)))


def test_service_units_need_no_rate_where_all_is_in_them(sample: dict[str, Any]) -> None:
    Site.objects.update(currency="SU")
    for model in GpuModel.objects.all():
        Price.objects.filter(gpu_model=model).delete()
        Price.objects.create(
            gpu_model=model, basis="rental", usd_per_gpu_hour=1000, currency="SU", source="s", valid_from="2026-01-01"
        )
    asked = mapping.plan_request(scenario(currency="SU"))
    assert asked.rates == ()
    assert {node.price.usd_per_gpu_hour for node in asked.nodes} == {Decimal(1000)}


def test_tariffs_and_offers_are_checked(sample: dict[str, Any]) -> None:
    operator = User.objects.create(username="op", role=Role.OPERATOR)
    site = Site.objects.first()
    assert site is not None
    site.tariff_bands = [{"from_hour": 6, "to_hour": 6, "usd_per_kwh": "0.1"}]
    with pytest.raises(ValidationError, match="within a day"):
        services.save_item(actor=operator, record=site)
    model = GpuModel.objects.get(name="L40S")
    price = Price(
        gpu_model=model, basis="rental", usd_per_gpu_hour=0, source="contract", valid_from=dt.date(2026, 11, 17),
        tco_inputs={"usd_per_gpu_hour": "2", "offers": [{"kind": "spot", "share": "0.5", "usd_per_gpu_hour": "1"}]},
    )  # fmt: skip
    services.save_item(actor=operator, record=price)
    assert price.usd_per_gpu_hour == Decimal("1.5")
    assert dict(pricing.hour_price(price).parts) == {"on demand": Decimal(1), "spot": Decimal("0.5")}


def test_the_bill_is_told_by_tenant(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    names = ("research", "sales")
    workloads = tuple(replace(w, tenant=names[i % 2]) for i, w in enumerate(request.workloads))
    found = report.bill(replace(request, workloads=workloads), result)
    assert set(found.by_tenant) == set(names)
    total = sum(row.usd_per_month for rows in found.by_tenant.values() for row in rows)
    assert total == found.usd_per_month


def test_electricity_follows_the_site(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    known = tuple(replace(c, watts_per_gpu=500.0) for c in result.candidates)
    sites = {node.site for node in request.nodes}
    priced = [
        replace(
            request,
            site_energy=tuple(SiteEnergy(site, EnergyPrice(Decimal(kwh), Decimal(1))) for site in sites),
        )
        for kwh in ("0.10", "0.20")
    ]
    bills = [report.bill(each, replace(result, candidates=known)) for each in priced]
    first, second = (sum(dict(row.parts).get("electricity", Decimal(0)) for row in each.rows) for each in bills)
    gpus = sum(len(part.gpu_indexes) for part in result.placements)
    assert abs(first - gpus * Decimal("0.05") * 730) <= Decimal("0.01") * len(bills[0].rows)
    assert abs(second - 2 * first) <= Decimal("0.01") * len(bills[0].rows)
    silent = report.bill(priced[0], replace(result, candidates=tuple(replace(c, watts_per_gpu=None) for c in known)))
    assert all("electricity" not in dict(row.parts) for row in silent.rows)


def test_a_class_pays_its_share_of_the_gpus(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    plain = report.bill(request, result).rows[0]
    workloads = (replace(request.workloads[0], price_class="interactive"), *request.workloads[1:])
    twice = replace(request, workloads=workloads, price_classes=(PriceClass("interactive", Decimal(2)),))
    dear = report.bill(twice, result).rows[0]

    def gpus(row: report.BillRow) -> Decimal:
        return sum((usd for label, usd in row.parts if label.startswith("GPUs")), Decimal(0))

    assert abs(gpus(dear) - 2 * gpus(plain)) <= Decimal("0.02")


def test_an_engine_is_looked_after_once(answer: tuple[PlanRequest, PlanResult]) -> None:
    """Ten hours a month at 100 for each engine in use, whatever many workloads it serves."""
    request, result = answer
    costs = OperationsCosts(people_usd_per_hour=Decimal(100), people_hours_per_engine_month=Decimal(10))

    def with_people(candidate: Any) -> Any:
        if candidate.cost is None:
            return candidate
        parts = tuple(part for part in candidate.cost.parts if part[0] != "people")
        return replace(candidate, cost=replace(candidate.cost, parts=(*parts, ("people", Decimal("1000.00")))))

    made = replace(result, candidates=tuple(map(with_people, result.candidates)))
    rows = report.bill(replace(request, operations=costs), made).rows
    engines = {row.candidate.settings.engine for row in rows if row.candidate and row.candidate.settings}
    people = sum(dict(row.parts).get("people", Decimal(0)) for row in rows)
    assert people == 1000 * len(engines)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    price=st.decimals("0.0001", "50", places=4),
    factor=st.decimals("0.01", "9", places=2),
    kwh=st.decimals("0", "2", places=4),
    kept=st.integers(1, 10),
)
def test_any_bill_adds_up_to_the_cent(
    answer: tuple[PlanRequest, PlanResult], price: Decimal, factor: Decimal, kwh: Decimal, kept: int
) -> None:
    request, result = answer
    nodes = tuple(replace(n, price=replace(n.price, usd_per_gpu_hour=price, parts=())) for n in request.nodes)
    workloads = tuple(replace(w, price_class="x") for w in request.workloads)
    asked = replace(
        request, nodes=nodes, workloads=workloads, price_classes=(PriceClass("x", factor),), currency="EUR",
        energy=EnergyPrice(kwh), operations=OperationsCosts(Decimal(97), Decimal("3.3")),
    )  # fmt: skip
    candidates = tuple(replace(c, watts_per_gpu=333.3) for c in result.candidates)
    given_ = replace(result, candidates=candidates, placements=result.placements[:: max(1, kept % 4)])
    found = report.bill(asked, given_)
    header, *lines = report.table(found)
    at = header.index("EUR per month")
    parts = [i for i, name in enumerate(header) if str(name).endswith(", EUR per month")]
    rows, (total, idle, both) = lines[:-3], lines[-3:]
    for line in (*rows, total):
        assert sum((line[i] or Decimal(0) for i in parts), Decimal(0)) == (line[at] or 0)
    assert sum((line[at] for line in rows), Decimal(0)) == total[at]
    assert total[at] + idle[at] == both[at]
    assert all(amount == amount.quantize(Decimal("0.01")) for line in lines for amount in [line[at]])


def test_the_cost_page_shows_every_term_with_its_arithmetic(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    page = reader.get(f"/plans/{plan.pk}/cost/")
    assert page.status_code == 200
    text = page.content.decode()
    for word in (
        "Bill of a month",
        "What a GPU-hour is made of",
        "Prices of one part",
        "as stated",
        "Years ahead",
        "By tenant",
    ):
        assert word in text
    assert f'href="/plans/{plan.pk}/cost/"' in reader.get(f"/plans/{plan.pk}/").content.decode()


def test_the_cost_page_of_a_plan_in_euros(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    request = {**plan.request, "currency": "EUR", "rates_as_of": "2026-11-30"}
    request["rates"] = [{"currency": "EUR", "date": "2026-11-27", "usd_per_unit": "1.0862", "source": "reference"}]
    type(plan).objects.filter(pk=plan.pk).update(request=request)
    text = reader.get(f"/plans/{plan.pk}/cost/").content.decode()
    assert "€" in text
    assert "exchange rates as of 2026-11-30" in text
    assert "1.0862 USD" in text
    book = openpyxl.load_workbook(io.BytesIO(reader.get(f"/plans/{plan.pk}/export/?format=xlsx").content))
    assert "EUR per month" in next(book["Bill"].iter_rows(values_only=True))
    basis = {row[0]: row[1] for row in book["Basis"].iter_rows(values_only=True)}
    assert (basis["Currency"], basis["Exchange rates as of"]) == ("EUR", "2026-11-30")


def test_waterfall_ends_at_the_price(answer: tuple[PlanRequest, PlanResult]) -> None:
    sheet = costview.price_sheets(answer[0])[0]
    chart = figures_cost.price_waterfall(sheet, "x", "USD")
    values = chart.figure.data[0].y
    assert sum(values[:-1]) == pytest.approx(values[-1])
    assert chart.rows[-1][1] == sheet.usd_per_gpu_hour


def test_break_even_lines_cross_where_they_should() -> None:
    chart = figures_cost.break_even("b", "t", 1.0, 4.0, "USD / M tok", ("Own", "API"))
    own, api = chart.figure.data
    crossing = next(x for x, y in zip(own.x, own.y, strict=True) if y <= api.y[0])
    assert crossing == pytest.approx(0.25, abs=0.02)
    assert "25 %" in chart.note
    assert "even at full use" in figures_cost.break_even("b", "t", 5.0, 4.0, "USD", ("Own", "API")).note


def test_break_even_of_a_workload_agrees_with_its_bill(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    name = request.workloads[0].name

    def served(candidate: Any) -> Any:
        if candidate.cost is None:
            return candidate
        tokens = {"mtok_input_per_month": Decimal(100), "mtok_output_per_month": Decimal(50)}
        return replace(candidate, cost=replace(candidate.cost, **tokens))

    made = replace(result, candidates=tuple(map(served, result.candidates)))
    asked = replace(request, api_prices=(ApiPrice(name, Decimal("0.5"), Decimal("1.5"), "list"),))
    (chart,) = [c for c in costview.context(asked, made)["break_even"] if name in c.title]
    assert chart.figure.data[1].y[0] == pytest.approx((100 * 0.5 + 50 * 1.5) / 150)
    row = next(row for row in report.bill(asked, made).rows if row.workload.name == name)
    today = next(shape["x0"] for shape in chart.figure.layout.to_plotly_json()["shapes"][::-1])
    assert float(row.usd_per_month / 150) == pytest.approx(chart.figure.data[0].y[-1] / today)


def test_years_add_the_months_up(answer: tuple[PlanRequest, PlanResult]) -> None:
    _, result = answer
    months = tuple(MonthView(m, {"g": m}, {"g": 1}, Decimal("10.01"), {"g": 1}, Decimal("0.99")) for m in range(31))
    found = costview.years(replace(result, months=months))
    assert [(year.number, year.months) for year in found] == [(1, 12), (2, 12), (3, 6)]
    assert [year.usd for year in found] == [Decimal("132.00"), Decimal("132.00"), Decimal("66.00")]


def test_the_pages_of_a_plan_say_its_currency(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    type(plan).objects.filter(pk=plan.pk).update(request={**plan.request, "currency": "EUR"})
    text = reader.get(f"/plans/{plan.pk}/").content.decode()
    assert "€" in text
    assert ">$" not in text
    assert "€" not in reader.get("/fleet/nodes/").content.decode(), "the next page is in dollars again"


def test_a_price_in_euros_is_shown_in_dollars_beside_others(sample: dict[str, Any], reader: Client) -> None:
    model = GpuModel.objects.get(name="A10")
    Price.objects.filter(gpu_model=model).delete()
    Price.objects.create(
        gpu_model=model, basis="rental", usd_per_gpu_hour="1.00", currency="EUR", source="s", valid_from="2026-01-01"
    )
    assert "$1.09" in reader.get("/fleet/nodes/?gpu=A10").content.decode()
    assert "€1.00" in reader.get("/fleet/prices/").content.decode()
    ExchangeRate.objects.all().delete()
    assert "$1.09" not in reader.get("/fleet/nodes/?gpu=A10").content.decode()


def test_a_what_if_price_shows_as_it_stands(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, _ = answer
    sheets = costview.price_sheets(request)
    kept = replace(request, price_sheets=sheets)
    assert costview.price_sheets(kept) == sheets
    nodes = tuple(replace(n, price=replace(n.price, usd_per_gpu_hour=Decimal(9), parts=())) for n in request.nodes)
    assert {sheet.usd_per_gpu_hour for sheet in costview.price_sheets(replace(kept, nodes=nodes))} == {Decimal(9)}


def test_the_plans_page_and_its_cost_page_state_one_bill(sample: dict[str, Any], reader: Client) -> None:
    where_it_goes = reader.get(f"/plans/{sample['plan'].pk}/").context["split_chart"]
    billed = reader.get(f"/plans/{sample['plan'].pk}/cost/").context["bill"]
    assert where_it_goes.rows[-1] == ("Bill", billed.usd_per_month)
    priced = reader.get(f"/plans/{sample['plan'].pk}/cost/").context["total"].usd_per_mtok[1]
    assert reader.get(f"/plans/{sample['plan'].pk}/").context["usd_per_mtok"] == priced
    assert reader.get("/").context["usd_per_mtok"] == priced
    speaking = [row for row in billed.rows if row.mtok_output > 0]
    assert len(speaking) < len(billed.rows), "embeddings have no part in the price of output"
    assert priced == (sum(r.usd_per_month for r in speaking) / sum(r.mtok_output for r in speaking)).quantize(
        Decimal("0.000001")
    )
    whole = report.bill(*answer_of(sample["plan"]))
    assert billed == whole, "candidates that nothing runs on change no bill"


def test_the_table_of_a_plan_adds_up_to_its_bill_to_the_cent(sample: dict[str, Any], reader: Client) -> None:
    billed = reader.get(f"/plans/{sample['plan'].pk}/cost/").context["bill"]
    shown = reader.get(f"/plans/{sample['plan'].pk}/")
    rows = shown.context["rows"]
    months = {row.name: Decimal(row.on_bill["usd_per_month"]) for row in rows if row.on_bill}
    assert sum(months.values()) == billed.usd_per_month == Decimal(shown.context["month"])
    for line in billed.rows:
        assert months[line.workload.name] == line.usd_per_month
        assert f"${line.usd_per_month:,.2f}" in shown.content.decode()
    priced = {row.name: row.usd_chosen for row in rows if row.usd_chosen}
    for line in billed.rows:
        tokens = line.mtok_output or line.mtok_input
        found = priced[line.workload.name]
        assert Decimal(found["value"]) == line.usd_per_mtok(tokens)
        own = planrow.usd_per_mtok(to_json(line.candidate))
        if own["low"] is not None:  # the band is the candidate's, as a share
            assert float(found["low"]) / float(found["value"]) == pytest.approx(float(own["low"]) / float(own["value"]))


def test_plans_side_by_side_state_the_bill(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    other = Plan.objects.create(
        scenario=plan.scenario, number=plan.number + 1, state="ready", request=plan.request, result=plan.result
    )
    found = reader.get(f"/plans/compare/?ids={plan.pk},{other.pk}").context["found"]
    billed = report.bill(*answer_of(plan))
    totals = {line.key: line.values[0] for line in found.totals}
    assert totals["usd_per_month"] == billed.usd_per_month
    by_name = {line.name: line.cells[0] for line in found.workloads}
    for row in billed.rows:
        if row.mtok_output:
            assert by_name[row.workload.name].usd_per_mtok_output == row.usd_per_mtok(row.mtok_output)
    placed = sum(cell.usd_per_hour for cell in by_name.values() if cell)
    assert placed == pytest.approx(totals["usd_per_hour"], abs=Decimal("0.0001"))


def test_an_older_answer_gets_its_bill_once(sample: dict[str, Any]) -> None:
    plan = sample["plan"]
    bare = {k: v for k, v in plan.result.items() if k not in ("bills", "usd_per_month", "usd_per_mtok_output")}
    Plan.objects.filter(pk=plan.pk).update(result=bare)
    import_module("controlplane.planning.migrations.0006_bill_kept").keep_bills(apps, None)
    plan.refresh_from_db()
    billed = report.bill(*answer_of(plan))
    assert Decimal(plan.result["usd_per_month"]) == billed.usd_per_month
    assert sum(Decimal(row["usd_per_month"]) for row in plan.result["bills"]) == billed.usd_per_month
    assert {k: v for k, v in plan.result.items() if k in bare} == bare
    with patch("controlplane.planning.exporting.billed", side_effect=AssertionError("computed anew")):
        assert exporting.answer_billed(plan) == plan.result

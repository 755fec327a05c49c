"""Currencies, tariffs, offers, classes: exact amounts, and the cases that billing gets wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from fleet_samples import H100, candidate, node, price, request, workload
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import price_facts
from planner.economics import (
    Converter,
    EnergyPrice,
    ExchangeRate,
    Offer,
    RentalInputs,
    ServedLoad,
    TariffBand,
    TcoInputs,
    break_even_with_cloud,
    gpu_hour_price,
    price_terms,
    unit_costs,
    workload_cost,
)
from planner.economics.classes import factor_of
from planner.economics.energy import energy_usd_per_hour, joules_per_token, power_profile
from planner.economics.tariff import hourly_prices, mean_usd_per_kwh
from planner.errors import InputError, UnknownGpuError
from planner.estimate import estimate
from planner.fleet_file import parse_fleet
from planner.placement.problem import build
from planner.plan import check_request
from planner.plan_types import ApiPrice, CloudPrice, PriceClass, SiteEnergy

EUR = ExchangeRate("EUR", "2026-11-27", Decimal("1.0862"), "a central bank's reference rate")
GBP = ExchangeRate("GBP", "2026-11-27", Decimal("1.2700"), "a central bank's reference rate")
LOAD = ServedLoad(10.0, 1000.0, 250.0, 20.0)

money = st.decimals(min_value=Decimal("0.0001"), max_value=1000, places=4)


def test_the_newest_rate_of_the_day_counts_and_is_kept() -> None:
    older, later = ExchangeRate("EUR", "2026-06-30", Decimal("1.17")), ExchangeRate("EUR", "2026-12-24", Decimal("2"))
    converter = Converter("USD", "2026-11-30", (later, EUR, older, GBP))
    assert converter.convert(Decimal(100), "EUR") == Decimal("108.6200")
    assert converter.used == (EUR,)
    assert Converter("EUR", "2026-07-01", (older, later)).convert(Decimal("1.17"), "USD") == 1


def test_two_currencies_meet_over_the_dollar() -> None:
    assert Converter("EUR", rates=(EUR, GBP)).convert(Decimal("1.0862"), "GBP") == Decimal("1.27")


def test_a_missing_rate_names_currency_day_and_remedy() -> None:
    with pytest.raises(InputError) as caught:
        Converter("EUR", "2026-11-01", (EUR,)).convert(Decimal(1), "USD", "pools[0].price.currency")
    assert caught.value.field == "pools[0].price.currency"
    assert "EUR on or before 2026-11-01" in str(caught.value)
    assert "Exchange rates" in caught.value.remedy


@given(money, st.integers(1, 64), st.integers(1, 744))
def test_a_bill_in_its_own_currency_is_exact_to_the_cent(amount: Decimal, gpus: int, hours: int) -> None:
    """No rate touches an amount that is in the plan's currency already."""
    listed = gpu_hour_price(RentalInputs(amount, currency="EUR"), converter=Converter("EUR", "2026-11-30", (EUR,)))
    load = ServedLoad(10.0, 1000.0, 250.0, 20.0, hours=float(hours))
    bill = workload_cost(price=listed, gpus=gpus, load=load, currency="EUR")
    assert abs(bill.usd_per_month - amount * gpus * hours) <= Decimal("0.005")
    assert bill.currency == "EUR"
    assert sum(part for _, part in bill.parts) == bill.usd_per_month


@given(money, money)
def test_converted_parts_add_up_to_the_converted_price(amount: Decimal, licence: Decimal) -> None:
    inputs = RentalInputs(amount, licence_usd_per_gpu_year=licence * 100, currency="GBP")
    found = gpu_hour_price(inputs, converter=Converter("EUR", "2026-11-30", (EUR, GBP)))
    assert sum(usd for _, usd in found.parts) == found.usd_per_gpu_hour
    exact = (amount + licence * 100 / 8760) * Decimal("1.27") / Decimal("1.0862")
    assert abs(found.usd_per_gpu_hour - exact) <= Decimal("0.0000006")


def test_every_unit_price_of_one_gives_one() -> None:
    """Case C7: all prices 1: each resource costs 1 an hour, none falls back on a default."""
    found = gpu_hour_price(RentalInputs(Decimal(1)))
    assert found.usd_per_gpu_hour == 1
    assert workload_cost(price=found, gpus=1, load=ServedLoad(1, 1, 1, 1, hours=1.0)).usd_per_month == 1


def test_an_hourly_price_stays_hourly() -> None:
    """Case C8: 0.95 per GPU-hour is 0.95 for an hour and 693.50 for a month of 730 hours, never 0.95 a month."""
    found = gpu_hour_price(RentalInputs(Decimal("0.95")))
    assert found.usd_per_gpu_hour == Decimal("0.95")
    assert workload_cost(price=found, gpus=1, load=LOAD).usd_per_month == Decimal("693.50")
    assert workload_cost(price=found, gpus=1, load=ServedLoad(1, 1, 1, 1, hours=1.0)).usd_per_month == Decimal("0.95")


def test_a_price_of_the_node_is_divided_once() -> None:
    """Case C9: g5.2xlarge, 1.35296 $/h, one GPU; and a node of eight: both ways of stating it agree."""
    assert gpu_hour_price(RentalInputs(usd_per_node_hour=Decimal("1.35296"))).usd_per_gpu_hour == Decimal("1.3530")
    by_node = gpu_hour_price(RentalInputs(usd_per_node_hour=Decimal("20.00"), gpus=8))
    by_gpu = gpu_hour_price(RentalInputs(Decimal("2.50")))
    assert by_node.usd_per_gpu_hour == by_gpu.usd_per_gpu_hour
    both = [workload_cost(price=each, gpus=8, load=LOAD).usd_per_month for each in (by_node, by_gpu)]
    assert both == [Decimal("14600.00")] * 2
    with pytest.raises(InputError, match="not both"):
        gpu_hour_price(RentalInputs(Decimal(1), usd_per_node_hour=Decimal(8), gpus=8))


def test_no_gpu_no_gpu_cost() -> None:
    """Case C10: a node without GPUs has none of their cost, whatever it costs itself."""
    assert gpu_hour_price(RentalInputs(usd_per_node_hour=Decimal("1.35"), gpus=0)).usd_per_gpu_hour == 0


def test_seconds_are_metered() -> None:
    """Case C13: 90 s of 4 GPUs at 3.60 are 0.36; nothing is rounded up to an hour or down to none."""
    found = gpu_hour_price(RentalInputs(Decimal("3.60")))
    load = ServedLoad(10.0, 1000.0, 250.0, 20.0, hours=90 / 3600)
    assert workload_cost(price=found, gpus=4, load=load).usd_per_month == Decimal("0.36")


def test_service_units_by_pool_and_class() -> None:
    """Case C15: A100 at 1,000 SU; interactive twice, pre-emptible half; a pool may differ; no rate to the dollar."""
    classes = (
        PriceClass("interactive", Decimal(2)),
        PriceClass("preempt", Decimal("0.5")),
        PriceClass("preempt", Decimal("0.25"), "night"),
    )
    found = gpu_hour_price(RentalInputs(Decimal(1000), currency="SU"), converter=Converter("SU"))
    bills = {
        (name, pool): workload_cost(
            price=found, gpus=1, load=ServedLoad(1, 1, 1, 1, hours=1.0), currency="SU",
            class_factor=factor_of(classes, name, pool),
        ).usd_per_month
        for name, pool in (("", "day"), ("interactive", "day"), ("preempt", "day"), ("preempt", "night"))
    }  # fmt: skip
    assert list(bills.values()) == [1000, 2000, 500, 250]
    with pytest.raises(InputError, match="known: interactive, preempt"):
        factor_of(classes, "gold", "day")


def test_three_figures_name_their_token() -> None:
    """Cases C1 and C3: the cost over input, over output and over all tokens, $/h / (tok/s x 3600) x 10^6."""
    per_input, per_output, per_total = unit_costs(Decimal("3.6"), 3000, 1000)
    assert (per_input, per_output, per_total) == (Decimal("0.333333"), Decimal("1.000000"), Decimal("0.250000"))


def test_energy_per_token_by_kind() -> None:
    """Cases C3 and C4: 8 GPUs of 159 W at 1.23 J per output token serve 1,034 output tokens/s; TDP would say 5.4 J."""
    rate = 159 * 8 / 1.23
    assert joules_per_token(159, 8, rate) == pytest.approx(1.23)
    assert joules_per_token(159, 8, 2 * rate) == pytest.approx(0.615), "per token of both kinds"
    assert joules_per_token(700, 8, rate) == pytest.approx(5.4, abs=0.05)


@pytest.mark.parametrize(("clients", "watts", "joules"), [(4, 159.0, 1.23), (64, 205.0, 0.16)])
def test_power_is_far_from_the_label(clients: int, watts: float, joules: float) -> None:
    """Case C4: gpt-oss-120b on eight H100, 1k/1k: 159 to 205 W a GPU of 700; within a factor of two of that."""
    got = estimate(
        {
            "engine": "vllm", "engine_version": "0.18.0", "model": "openai/gpt-oss-120b", "gpu": "H100", "tp": 8,
            "load": {"kind": "closed", "concurrency": clients}, "input_tokens": 1024, "output_tokens": 1024,
        }
    )  # fmt: skip
    assert watts / 2 < got["power_w"] / 8 < watts * 1.5 < 700 / 2
    found = got["power_w"] / got["perf"]["output_tok_per_s"]
    assert joules / 2 < found < joules * 2
    label = 8 * 700 / got["perf"]["output_tok_per_s"]
    assert abs(math.log(found / joules)) < abs(math.log(label / joules))


def test_idle_gpus_of_a_chassis_are_charged() -> None:
    """Cases C5 and C11: what is allocated and what is used differ, and the difference stands apart as idle."""
    bill = workload_cost(price=gpu_hour_price(RentalInputs(Decimal(2))), gpus=8, load=ServedLoad(1, 1000, 250, 8))
    parts = dict(bill.parts)
    assert parts["GPUs, carried load"] == bill.usd_per_month / 8
    assert parts["GPUs, idle head-room"] == bill.usd_per_month * 7 / 8


def test_tariff_by_hour_of_week() -> None:
    night = TariffBand(0, 6, Decimal("0.10"))
    peak = TariffBand(17, 20, Decimal("0.40"), ("mon", "tue", "wed", "thu", "fri"))
    energy = EnergyPrice(Decimal("0.20"), Decimal("1.25"), (night, peak))
    prices = hourly_prices(energy)
    assert len(prices) == 168
    assert [prices[hour] for hour in (0, 6, 17, 5 * 24 + 17)] == list(map(Decimal, ("0.1", "0.2", "0.4", "0.2")))
    by_hand = (42 * Decimal("0.10") + 15 * Decimal("0.40") + 111 * Decimal("0.20")) / 168
    assert mean_usd_per_kwh(energy) == by_hand
    at_night = [1.0 if hour % 24 < 6 else 0.0 for hour in range(168)]
    assert mean_usd_per_kwh(energy, at_night) == Decimal("0.10")
    assert energy_usd_per_hour(1000.0, 1, energy, at_night) == Decimal("0.125")


def test_bands_that_overlap_are_refused() -> None:
    bands = (TariffBand(0, 6, Decimal(1)), TariffBand(5, 7, Decimal(2), ("sun",)))
    with pytest.raises(InputError, match="overlaps"):
        hourly_prices(EnergyPrice(Decimal(1), bands=bands))


def test_demand_charge_is_in_the_hour() -> None:
    """10 kW at PUE 1.2 and 14.60 per kW and month: 175.20 a month, 0.24 an hour, beside the energy."""
    energy = EnergyPrice(Decimal(0), Decimal("1.2"), demand_usd_per_kw_month=Decimal("14.60"))
    assert energy_usd_per_hour(1250.0, 8, energy) == Decimal("0.24")


def test_power_follows_the_load_above_its_idle_part() -> None:
    profile = power_profile("H200-SXM-141GB", 400.0, [0.0] * 84 + [2.0] * 84)
    assert profile[0] == pytest.approx(60.4)
    assert sum(profile) / 168 == pytest.approx(400.0)
    assert power_profile("L4", 50.0, [1.0] * 168) == ()


def test_unknown_power_has_no_electricity_anywhere() -> None:
    energy = EnergyPrice(Decimal("0.2"))
    asked = request([node("a")], [workload("w")], energy=energy, site_energy=(SiteEnergy("east", energy),))
    problem = build(asked, (candidate("w", 1.0),))
    assert all(choice.site_usd_per_hour == () for choice in problem.choices)


def test_placement_goes_where_electricity_is_cheap() -> None:
    dear, cheap = EnergyPrice(Decimal("0.40")), EnergyPrice(Decimal("0.05"))
    asked = request(
        [node("a", pool="a"), node("b", pool="b", site="north")],
        [workload("w")],
        energy=dear,
        site_energy=(SiteEnergy("east", dear), SiteEnergy("north", cheap)),
    )
    made = candidate("w", 1.0, watts_per_gpu=500.0)
    bill = workload_cost(price=price("2"), gpus=1, load=LOAD, energy_usd_per_hour=Decimal("0.14625"))
    problem = build(asked, (replace(made, cost=bill, replicas=1),))
    costs = {group.pattern.site: problem.usd_per_hour(problem.choices[0], group) for group in problem.classes}
    # 0.5 kW x 1.3 x 0.35 USD/kWh apart
    assert costs["east"] - costs["north"] == pytest.approx(0.5 * 1.3 * 0.35)


def test_offers_blend_and_the_rest_is_on_demand() -> None:
    """A half committed at 1.60, a quarter reserved with 8,760 upfront for a year, the rest at 3.00 on demand."""
    inputs = RentalInputs(
        Decimal(3),
        offers=(
            Offer("committed", Decimal("0.5"), Decimal("1.60"), Decimal(3)),
            Offer("reserved", Decimal("0.25"), Decimal("0.40"), Decimal(1), Decimal(8760)),
        ),
    )
    found = gpu_hour_price(inputs)
    assert dict(found.parts) == {
        "on demand": Decimal("0.75"), "committed": Decimal("0.8"), "reserved": Decimal("0.1"),
        "upfront": Decimal("0.25"),
    }  # fmt: skip
    assert found.usd_per_gpu_hour == Decimal("1.9")
    with pytest.raises(InputError, match="more than 1"):
        gpu_hour_price(RentalInputs(Decimal(3), offers=(Offer("spot", Decimal("0.6"), Decimal(1)),) * 2))


def test_terms_carry_formula_and_source() -> None:
    inputs = TcoInputs(
        purchase_usd=Decimal(280320), gpus=8, hosting_usd_per_kw_month=Decimal(150), provisioned_kw=Decimal("10.2"),
        source="purchase order", sources=(("hosting_usd_per_kw_month", "hosting contract"),),
    )  # fmt: skip
    terms = {term.label: term for term in price_terms(inputs)}
    assert terms["hosting"].formula == "150 per kW and month x 12 x 10.2 kW / 8,760 h / 8 GPUs"
    assert terms["hosting"].source == "hosting contract"
    assert terms["purchase less residual"].source == "purchase order"
    assert sum(term.usd_per_gpu_hour for term in terms.values()) == gpu_hour_price(inputs).usd_per_gpu_hour


def test_a_server_by_the_published_method_of_nvidia() -> None:
    """NVIDIA's method: yearly cost of a server = price / depreciation years + hosting, plus licence per GPU and year.

    The method is that of developer.nvidia.com, "benchmarking-llm-inference-costs-for-smarter-scaling-and-deployment":
    cost per million tokens = yearly cost / yearly tokens. The figures are round ones of ours: 320,000 over 4 years,
    3,000 hosting a year as 250 a month on 1 kW, 4,500 per GPU and year for 8 GPUs: 119,000 a year by hand.
    """
    inputs = TcoInputs(
        purchase_usd=Decimal(320000), gpus=8, hosting_usd_per_kw_month=Decimal(250), provisioned_kw=Decimal(1),
        licence_usd_per_gpu_year=Decimal(4500),
    )  # fmt: skip
    found = gpu_hour_price(inputs)
    assert found.usd_per_gpu_hour * 8 * 8760 == pytest.approx(Decimal(119000), rel=Decimal("0.0001"))
    _, per_output, _ = unit_costs(found.usd_per_gpu_hour * 8, 0, 10000)
    assert float(per_output) == pytest.approx(119000 / (10000 * 3600 * 8760) * 1e6, rel=1e-4)


@pytest.mark.parametrize(
    ("gpu", "hyperscaler", "neocloud", "rental"),
    [("H100", "1.30", "1.69", "1.30"), ("H200", "1.41", "1.74", "1.60")],
)
def test_inferencex_cost_basis_and_formula(gpu: str, hyperscaler: str, neocloud: str, rental: str) -> None:
    """InferenceX publishes $ per million tokens as $/GPU-hour over tokens of a GPU an hour, on three cost bases.

    The bases (costh, costn, costr) as its HW_REGISTRY states them; the catalogue holds the same.
    """
    facts = [fact for fact in price_facts(gpu) if "InferenceX" in fact.source]
    assert [fact.usd for fact in facts][:3] == [Decimal(hyperscaler), Decimal(neocloud), Decimal(rental)]
    per_gpu = 6000.0  # tok/s of one GPU, both kinds
    _, _, per_total = unit_costs(Decimal(hyperscaler), per_gpu * 0.99, per_gpu * 0.01)
    assert float(per_total) == pytest.approx(float(hyperscaler) / (per_gpu * 3600) * 1e6, abs=1e-6)


def test_break_even_with_the_cloud() -> None:
    assert break_even_with_cloud(Decimal("1.69"), Decimal("3.38")) == Decimal("0.5000")
    assert break_even_with_cloud(Decimal(1), Decimal(0)) is None


FLEET = """
currency: EUR
rates_as_of: 2026-11-30
exchange_rates:
  - {currency: EUR, date: 2026-11-27, usd_per_unit: 1.0862, source: reference rate}
  - {currency: NOK, date: 2026-11-27, usd_per_unit: 0.0910, source: reference rate}
sites:
  frankfurt: {currency: EUR, usd_per_kwh: 0.19, pue: 1.3, bands: [{from_hour: 0, to_hour: 6, usd_per_kwh: 0.11}]}
  oslo: {currency: NOK, usd_per_kwh: 0.80, pue: 1.1, demand_usd_per_kw_month: 50}
pools:
  - {name: a, site: frankfurt, node_type: 8xH100-SXM, price: {usd_per_gpu_hour: 2.35, currency: EUR}}
  - {name: b, site: oslo, node_type: 8xH100-SXM, price: {usd_per_gpu_hour: 2.35, currency: USD}}
workloads:
  - {name: w, model: Qwen/Qwen3-8B, load: {rate_per_s: 1}, input_tokens: 100, output_tokens: 100, price_class: x}
price_classes: [{name: x, factor: 2}]
api_prices: [{workload: w, usd_per_mtok_input: 0.1, usd_per_mtok_output: 1.0862, currency: USD}]
"""


def test_a_fleet_file_leaves_in_one_currency() -> None:
    found = parse_fleet(FLEET)
    assert (found.currency, found.rates_as_of) == ("EUR", "2026-11-30")
    assert [rate.currency for rate in found.rates] == ["NOK", "EUR"]
    prices = {entry.name: entry.price.usd_per_gpu_hour for entry in found.nodes}
    assert prices == {"a": Decimal("2.35"), "b": Decimal("2.163506")}
    sites = {entry.site: entry.energy for entry in found.site_energy}
    assert sites["frankfurt"].bands[0].usd_per_kwh == Decimal("0.11")
    assert sites["oslo"].usd_per_kwh == (Decimal("0.80") * Decimal("0.0910") / Decimal("1.0862")).quantize(
        Decimal("0.000001")
    )
    assert found.api_prices[0].usd_per_mtok_output == 1
    assert [(sheet.pool, sheet.quoted_in) for sheet in found.price_sheets] == [("a", "EUR"), ("b", "USD")]
    assert H100 in {sheet.gpu for sheet in found.price_sheets}


def test_a_fleet_file_without_the_rate_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        parse_fleet(FLEET.replace("currency: NOK, date", "currency: SEK, date"))
    assert caught.value.field == "sites.oslo.currency"


def test_prices_name_what_is_there() -> None:
    named = parse_fleet(FLEET + "cloud_prices: [{gpu: h100 sxm5 80gb, usd_per_gpu_hour: 2}]\n")
    assert [price.gpu for price in named.cloud_prices] == [H100]
    check_request(named)
    stranger = ApiPrice("nobody", Decimal(1), Decimal(1))
    with pytest.raises(InputError, match=r"Name one of: w; or leave the price out") as caught:
        check_request(replace(named, api_prices=(stranger,)))
    assert (caught.value.field, caught.value.value) == ("api_prices[0].workload", "nobody")
    with pytest.raises(UnknownGpuError, match="Did you mean") as unknown:
        parse_fleet(FLEET + "cloud_prices: [{gpu: H1000, usd_per_gpu_hour: 2}]\n")
    assert (unknown.value.field, unknown.value.value) == ("cloud_prices[0].gpu", "H1000")
    with pytest.raises(UnknownGpuError) as unknown:
        check_request(replace(named, cloud_prices=(CloudPrice("none", Decimal(1)),)))
    assert unknown.value.field == "cloud_prices[0].gpu"

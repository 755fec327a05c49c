"""What a GPU costs an hour: owned (total cost of ownership) or rented, each part with its arithmetic.

Owned: equivalent annual cost of the purchase (annuity, residual value discounted), plus yearly costs, over 8,760 h and
the GPUs of the node. The annuity is the textbook capital-recovery factor r / (1 - (1 + r)^-n); r = 0 gives
straight-line. Rented: a blend of what is on demand, committed, reserved with a payment upfront, and spot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from planner.economics.currency import CONVERTED_STEP, Converter
from planner.economics.money import PRICE_STEP, money, round_parts
from planner.economics.tariff import EnergyPrice, mean_usd_per_kwh
from planner.economics.types import ELECTRICITY, PEOPLE, GpuHourPrice, PriceTerm
from planner.errors import InputError
from planner.units import HOURS_PER_YEAR


@dataclass(frozen=True, slots=True)
class TcoInputs:
    """Ownership of one node. Money in ``currency``, power at the wall socket of the node, before PUE.

    ``power_kw`` is the mean electrical power of the node; None leaves electricity out (it is then charged by use).
    ``hosting_usd_per_kw_month`` is charged on ``provisioned_kw`` (the power reserved in the hall).
    ``*_share_per_year`` are shares of the purchase price. ``life_years`` until the residual value is realised.
    ``sources`` says of single fields where they were read; ``source`` of all others.
    """

    purchase_usd: Decimal
    gpus: int
    life_years: Decimal = Decimal(4)
    residual_share: Decimal = Decimal(0)
    financing_rate_per_year: Decimal = Decimal(0)
    hosting_usd_per_kw_month: Decimal = Decimal(0)
    provisioned_kw: Decimal = Decimal(0)
    power_kw: Decimal | None = None
    licence_usd_per_gpu_year: Decimal = Decimal(0)
    people_usd_per_gpu_month: Decimal = Decimal(0)
    spares_share_per_year: Decimal = Decimal(0)
    maintenance_share_per_year: Decimal = Decimal(0)
    network_usd: Decimal = Decimal(0)  # share of the fabric that this node carries, bought with it
    source: str = "your figures"
    currency: str = ""  # empty: that of the plan
    sources: tuple[tuple[str, str], ...] = ()  # field, source


@dataclass(frozen=True, slots=True)
class Offer:
    """A share of the GPU-hours rented on terms of its own; what no offer covers is at the on-demand price.

    ``upfront_usd_per_gpu`` is paid once for ``term_years``. Spot GPUs can be taken away: plan them for what may wait.
    """

    kind: Literal["committed", "reserved", "spot"]
    share: Decimal
    usd_per_gpu_hour: Decimal = Decimal(0)
    term_years: Decimal = Decimal(1)
    upfront_usd_per_gpu: Decimal = Decimal(0)
    source: str = ""


@dataclass(frozen=True, slots=True)
class RentalInputs:
    """A rental price per GPU-hour (on demand), with licences on top where the provider does not include them.

    ``usd_per_node_hour`` instead, with ``gpus``, for a price of the whole node: it is divided once.
    """

    usd_per_gpu_hour: Decimal | None = None
    licence_usd_per_gpu_year: Decimal = Decimal(0)
    source: str = "your figures"
    offers: tuple[Offer, ...] = ()
    usd_per_node_hour: Decimal | None = None
    gpus: int = 1
    currency: str = ""  # empty: that of the plan


_TCO_MONEY = ("purchase_usd", "network_usd", "hosting_usd_per_kw_month", "licence_usd_per_gpu_year",
              "people_usd_per_gpu_month")  # fmt: skip


def capital_recovery_factor(rate_per_year: Decimal, years: Decimal) -> Decimal:
    """Yearly payment per unit of capital over ``years`` at ``rate_per_year`` (annuity in arrears).

    >>> capital_recovery_factor(Decimal("0.08"), Decimal(4)).quantize(Decimal("0.000001"))
    Decimal('0.301921')
    """
    if rate_per_year == 0:
        return 1 / years
    return rate_per_year / (1 - (1 + rate_per_year) ** -years)


def gpu_hour_price(
    inputs: TcoInputs | RentalInputs, energy: EnergyPrice | None = None, converter: Converter | None = None
) -> GpuHourPrice:
    """Price of one GPU-hour with its parts, which add up exactly (kept to 0.0001, from another currency to 0.000001).

    ``energy`` is needed when ``inputs.power_kw`` is given, and is in the plan's currency already. Raises InputError for
    absurd figures or a missing exchange rate, naming the field.
    """
    terms = price_terms(inputs, energy, converter)
    parts = tuple((term.label, term.usd_per_gpu_hour) for term in terms)
    basis: Literal["tco", "rental"] = "tco" if isinstance(inputs, TcoInputs) else "rental"
    total = sum((usd for _, usd in parts), Decimal(0).quantize(_step(inputs, converter)))
    return GpuHourPrice(total, basis, inputs.source, parts)


def price_terms(
    inputs: TcoInputs | RentalInputs, energy: EnergyPrice | None = None, converter: Converter | None = None
) -> tuple[PriceTerm, ...]:
    """The parts of ``gpu_hour_price``, each with its formula, in the plan's currency. Raises as it does."""
    if isinstance(inputs, RentalInputs):
        exact = _rental(_rental_converted(inputs, converter))
    else:
        exact = _ownership(_tco_converted(inputs, converter), energy)
    kept = [term for term in exact if term.usd_per_gpu_hour] or exact[:1]
    rounded = round_parts([(term.label, term.usd_per_gpu_hour) for term in kept], _step(inputs, converter))
    return tuple(replace(term, usd_per_gpu_hour=usd) for term, (_, usd) in zip(kept, rounded, strict=True))


def _step(inputs: TcoInputs | RentalInputs, converter: Converter | None) -> Decimal:
    foreign = converter is not None and inputs.currency not in ("", converter.reporting)
    return CONVERTED_STEP if foreign else PRICE_STEP


def _ownership(inputs: TcoInputs, energy: EnergyPrice | None) -> list[PriceTerm]:
    _check(inputs)
    hours, gpus = Decimal(HOURS_PER_YEAR), Decimal(inputs.gpus)
    bought = inputs.purchase_usd + inputs.network_usd
    rate, years = inputs.financing_rate_per_year, inputs.life_years
    residual = inputs.purchase_usd * inputs.residual_share
    residual_now = residual / (1 + rate) ** years
    depreciation = (bought - residual) / years
    annuity = (bought - residual_now) * capital_recovery_factor(rate, years)
    own = depreciation * inputs.purchase_usd / bought if bought else Decimal(0)
    fabric = depreciation * inputs.network_usd / bought if bought else Decimal(0)
    known = dict(inputs.sources)
    per = f"/ {HOURS_PER_YEAR:,} h / {inputs.gpus} GPUs"
    found: list[PriceTerm] = []

    def add(label: str, yearly: Decimal, formula: str, *fields: str) -> None:
        notes = dict.fromkeys(known[field] for field in fields if field in known)
        found.append(PriceTerm(label, yearly / hours / gpus, f"{formula} {per}", "; ".join(notes) or inputs.source))

    life = f"{_n(years)} years"
    net = f"({_n(bought)} - {_n(residual)} residual) / {life}"
    add("purchase less residual", own, f"{net} x {_n(inputs.purchase_usd)} / {_n(bought)}", "purchase_usd",
        "residual_share", "life_years")  # fmt: skip
    add("network", fabric, f"{net} x {_n(inputs.network_usd)} / {_n(bought)}", "network_usd")
    factor = capital_recovery_factor(rate, years)
    formula = f"(({_n(bought)} - {_n(residual_now)} residual today) x {factor:.6f} - {_n(depreciation)} straight-line)"
    add("financing", max(annuity - depreciation, Decimal(0)), formula, "financing_rate_per_year")
    formula = f"{_n(inputs.hosting_usd_per_kw_month)} per kW and month x 12 x {_n(inputs.provisioned_kw)} kW"
    hosting = inputs.hosting_usd_per_kw_month * 12 * inputs.provisioned_kw
    add("hosting", hosting, formula, "hosting_usd_per_kw_month", "provisioned_kw")
    for label, share in (("spares", inputs.spares_share_per_year), ("maintenance", inputs.maintenance_share_per_year)):
        add(label, share * inputs.purchase_usd, f"{_n(share * 100)} % a year x {_n(inputs.purchase_usd)}",
            f"{label}_share_per_year")  # fmt: skip
    formula = f"{_n(inputs.licence_usd_per_gpu_year)} per GPU and year x {inputs.gpus}"
    add("licence", inputs.licence_usd_per_gpu_year * gpus, formula, "licence_usd_per_gpu_year")
    formula = f"{_n(inputs.people_usd_per_gpu_month)} per GPU and month x 12 x {inputs.gpus}"
    add(PEOPLE, inputs.people_usd_per_gpu_month * 12 * gpus, formula, "people_usd_per_gpu_month")
    if inputs.power_kw is not None:
        if energy is None:
            raise InputError(
                "electricity needs a price", field="energy", remedy="Give usd_per_kwh and pue of the site."
            )
        kwh = mean_usd_per_kwh(energy)
        words = f"{_n(inputs.power_kw)} kW x PUE {_n(energy.pue)} x "
        yearly = inputs.power_kw * energy.pue * kwh * hours
        add(ELECTRICITY, yearly, f"{words}{_n(kwh)} per kWh x {HOURS_PER_YEAR:,} h", "power_kw")
        demand = inputs.power_kw * energy.pue * energy.demand_usd_per_kw_month * 12
        add("demand charge", demand, f"{words}{_n(energy.demand_usd_per_kw_month)} per kW and month x 12", "power_kw")
    return found


def _rental(inputs: RentalInputs) -> list[PriceTerm]:
    listed = _on_demand(inputs)
    covered = sum((offer.share for offer in inputs.offers), Decimal(0))
    for i, offer in enumerate(inputs.offers):
        _check_offer(offer, f"offers[{i}]")
    if covered > 1:
        raise InputError(
            "the shares add up to more than 1", field="offers", value=covered, remedy="The rest is on demand."
        )
    label = "on demand" if inputs.offers else "rental"
    price = f"{_n(inputs.usd_per_node_hour)} per node-hour / {inputs.gpus} GPUs" if inputs.usd_per_node_hour else ""
    price = price or f"{_n(listed)} per GPU-hour"
    formula = f"{_n((1 - covered) * 100)} % x {price}" if inputs.offers else price
    found = [PriceTerm(label, (1 - covered) * listed, formula, inputs.source)]
    for offer in inputs.offers:
        share, source = f"{_n(offer.share * 100)} %", offer.source or inputs.source
        formula = f"{share} x {_n(offer.usd_per_gpu_hour)} per GPU-hour"
        if offer.kind != "spot":
            formula += f", {_n(offer.term_years)} years"
        found.append(PriceTerm(offer.kind, offer.share * offer.usd_per_gpu_hour, formula, source))
        if offer.upfront_usd_per_gpu:
            hours = offer.term_years * HOURS_PER_YEAR
            formula = f"{share} x {_n(offer.upfront_usd_per_gpu)} upfront / ({_n(offer.term_years)} x "
            formula += f"{HOURS_PER_YEAR:,} h)"
            found.append(PriceTerm("upfront", offer.share * offer.upfront_usd_per_gpu / hours, formula, source))
    licence = inputs.licence_usd_per_gpu_year
    formula = f"{_n(licence)} per GPU and year / {HOURS_PER_YEAR:,} h"
    return [*found, PriceTerm("licence", licence / Decimal(HOURS_PER_YEAR), formula, inputs.source)]


def _on_demand(inputs: RentalInputs) -> Decimal:
    """The listed price of one GPU-hour; a price of the node is divided by its GPUs once."""
    if inputs.usd_per_node_hour is not None:
        if inputs.usd_per_gpu_hour is not None:
            raise InputError(
                "is given beside usd_per_gpu_hour", field="usd_per_node_hour", value=inputs.usd_per_node_hour,
                remedy="Give the price of the node or that of a GPU, not both.",
            )  # fmt: skip
        if inputs.gpus < 1:
            return Decimal(0)  # a node without GPUs has no GPU cost
        price, field = inputs.usd_per_node_hour / inputs.gpus, "usd_per_node_hour"
    elif inputs.usd_per_gpu_hour is None:
        raise InputError("is missing", field="usd_per_gpu_hour", remedy="Give it, or usd_per_node_hour.")
    else:
        price, field = inputs.usd_per_gpu_hour, "usd_per_gpu_hour"
    if price < 0:
        raise InputError("must not be negative", field=field, value=price)
    return price


def _check_offer(offer: Offer, path: str) -> None:
    if not 0 <= offer.share <= 1:
        raise InputError("must be between 0 and 1", field=f"{path}.share", value=offer.share)
    if offer.term_years <= 0:
        raise InputError("must be positive", field=f"{path}.term_years", value=offer.term_years)
    for name in ("usd_per_gpu_hour", "upfront_usd_per_gpu"):
        if getattr(offer, name) < 0:
            raise InputError("must not be negative", field=f"{path}.{name}", value=getattr(offer, name))


def _check(inputs: TcoInputs) -> None:
    if inputs.gpus < 1:
        raise InputError("must be at least 1", field="gpus", value=inputs.gpus)
    if inputs.life_years <= 0:
        raise InputError("must be positive", field="life_years", value=inputs.life_years)
    if not 0 <= inputs.residual_share <= 1:
        raise InputError("must be between 0 and 1", field="residual_share", value=inputs.residual_share)
    if not 0 <= inputs.financing_rate_per_year < 1:
        raise InputError(
            "must be between 0 and 1", field="financing_rate_per_year", value=inputs.financing_rate_per_year
        )
    for name in (*_TCO_MONEY, "provisioned_kw", "spares_share_per_year", "maintenance_share_per_year"):
        if getattr(inputs, name) < 0:
            raise InputError("must not be negative", field=name, value=getattr(inputs, name))


def _tco_converted(inputs: TcoInputs, converter: Converter | None) -> TcoInputs:
    factor = _factor(inputs.currency, converter)
    if factor == 1:
        return inputs
    changed: Mapping[str, Decimal] = {name: getattr(inputs, name) * factor for name in _TCO_MONEY}
    return replace(inputs, currency="", **changed)  # type: ignore[arg-type]


def _rental_converted(inputs: RentalInputs, converter: Converter | None) -> RentalInputs:
    factor = _factor(inputs.currency, converter)
    if factor == 1:
        return inputs
    offers = tuple(
        replace(
            offer,
            usd_per_gpu_hour=offer.usd_per_gpu_hour * factor,
            upfront_usd_per_gpu=offer.upfront_usd_per_gpu * factor,
        )
        for offer in inputs.offers
    )
    gpu, node = inputs.usd_per_gpu_hour, inputs.usd_per_node_hour
    return replace(
        inputs,
        currency="",
        offers=offers,
        usd_per_gpu_hour=None if gpu is None else gpu * factor,
        usd_per_node_hour=None if node is None else node * factor,
        licence_usd_per_gpu_year=inputs.licence_usd_per_gpu_year * factor,
    )


def _factor(currency: str, converter: Converter | None) -> Decimal:
    return Decimal(1) if not currency or converter is None else converter.factor(currency, "currency")


def _n(value: Decimal | None) -> str:
    """A number inside a formula: up to six decimals, thousands separated."""
    text = f"{value or Decimal(0):,.6f}"
    return text.rstrip("0").rstrip(".")


def with_price(price: GpuHourPrice, usd_per_gpu_hour: Decimal) -> GpuHourPrice:
    """The same price at another level, its parts scaled alike (for what-if and flip points)."""
    parts = price.parts
    total = money(usd_per_gpu_hour, PRICE_STEP)
    if parts and price.usd_per_gpu_hour:
        factor = usd_per_gpu_hour / price.usd_per_gpu_hour
        parts = round_parts([(label, usd * factor) for label, usd in parts], PRICE_STEP)
        total = sum((usd for _, usd in parts), Decimal(0).quantize(PRICE_STEP))
    return GpuHourPrice(total, price.basis, price.source, parts)

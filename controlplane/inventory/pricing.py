"""Prices, electricity and exchange rates as recorded, in the planner's terms."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.inventory.models import ExchangeRate, GpuModel, Price, Site
from planner.economics.currency import BASE, Converter
from planner.economics.currency import ExchangeRate as Rate
from planner.economics.price import RentalInputs, TcoInputs, gpu_hour_price
from planner.economics.published import default_price
from planner.economics.tariff import TariffBand
from planner.economics.types import EnergyPrice, GpuHourPrice
from planner.errors import PlannerError
from planner.fleet_money import checked_energy
from planner.jsonio import from_json


def price_row(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> Price | None:
    """The recorded price that applies to a GPU at a site on a day; None when there is none."""
    day = on or timezone.now().date()
    rows = [
        row
        for row in gpu_model.prices.all()
        if row.valid_from <= day and row.site_id in (None, site.pk if site else None)
    ]
    return max(rows, key=lambda row: (row.site_id is not None, row.valid_from), default=None)


def price_at(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> GpuHourPrice:
    """What one GPU costs an hour at a site on a day, in the currency it was stated in: recorded, else the catalogue's.

    Raises UnsupportedError when neither is known.
    """
    found = price_row(gpu_model, site, on)
    return default_price(gpu_model.name) if found is None else hour_price(found)


def price_currency(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> str:
    """The currency of ``price_at``."""
    found = price_row(gpu_model, site, on)
    return BASE if found is None else found.currency


def hour_price(price: Price) -> GpuHourPrice:
    """A recorded price with its parts, in its own currency."""
    inputs = price_inputs(price)
    if inputs is None:
        label = "rental" if price.basis == Price.Basis.RENTAL else price.get_basis_display().lower()
        basis: Any = price.basis
        return GpuHourPrice(price.usd_per_gpu_hour, basis, price.source, ((label, price.usd_per_gpu_hour),))
    return _computed(price, inputs)


def price_inputs(price: Price) -> TcoInputs | RentalInputs | None:
    """What a price is computed from; None when it is stated as it is. Raises ValidationError for bad inputs."""
    if not price.tco_inputs or price.basis == Price.Basis.CATALOGUE:
        return None
    stated = {"source": price.source, **price.tco_inputs}
    if isinstance(stated.get("sources"), dict):
        stated["sources"] = [[field, str(text)] for field, text in stated["sources"].items()]
    try:
        if price.basis == Price.Basis.TCO:
            return from_json(TcoInputs, {**stated, "currency": price.currency}, "tco_inputs")
        return from_json(RentalInputs, {**stated, "currency": price.currency}, "tco_inputs")
    except PlannerError as error:
        raise ValidationError({"tco_inputs": str(error)}) from error


def compute_price(price: Price) -> None:
    """With inputs, the hourly figure follows from them."""
    inputs = price_inputs(price)
    if inputs is not None:
        price.usd_per_gpu_hour = _computed(price, inputs).usd_per_gpu_hour


def _computed(price: Price, inputs: TcoInputs | RentalInputs) -> GpuHourPrice:
    """In the currency of the price; the site's electricity is converted to it."""
    try:
        money = Converter(price.currency, "", exchange_rates() if price.site_id else ())
        energy = EnergyPrice(Decimal("0.12"))
        if price.site is not None and isinstance(inputs, TcoInputs) and inputs.power_kw is not None:
            energy = checked_energy(site_energy(price.site), price.site.currency, money, "site")
        return gpu_hour_price(inputs, energy, money)
    except PlannerError as error:
        raise ValidationError({"tco_inputs": str(error)}) from error


def site_energy(site: Site) -> EnergyPrice:
    """Electricity of a site, in its own currency."""
    bands = from_json(tuple[TariffBand, ...], site.tariff_bands, "tariff_bands")
    return EnergyPrice(site.usd_per_kwh, site.pue, bands, site.demand_usd_per_kw_month)


def exchange_rates() -> tuple[Rate, ...]:
    """All recorded rates as the planner takes them."""
    return tuple(
        Rate(row.currency, row.date.isoformat(), row.usd_per_unit, row.source) for row in ExchangeRate.objects.all()
    )

"""The money of a fleet file: exchange rates, tariffs, prices, operations. All of it leaves here in one currency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, TypeVar

from planner.catalog import get_gpu
from planner.economics.currency import BASE, CONVERTED_STEP, Converter, ExchangeRate
from planner.economics.operations import OperationsCosts
from planner.economics.price import RentalInputs, TcoInputs, gpu_hour_price, price_terms
from planner.economics.published import default_price
from planner.economics.tariff import EnergyPrice, hourly_prices
from planner.economics.types import GpuHourPrice, PriceSheet, PriceTerm
from planner.errors import InputError, PlannerError, UnknownGpuError
from planner.jsonio import from_json
from planner.plan_types import ApiPrice, CloudPrice, PriceClass

T = TypeVar("T")
ENERGY_FIELDS = ("usd_per_kwh", "pue", "bands", "demand_usd_per_kw_month", "currency")


def converter(top: Mapping[str, Any]) -> Converter:
    """The file's currency (USD), the day of its rates and the rates; raises InputError for what makes no sense.

    A rate is ``{currency, date, usd_per_unit, source}``; YAML reads a day without quotes as a date, which is fine too.
    """
    rows = top.get("exchange_rates", [])
    if not isinstance(rows, list):
        raise InputError("must be a list", field="exchange_rates", value=rows)
    rates = []
    for i, row in enumerate(rows):
        dated = {**row, "date": str(row.get("date", ""))} if isinstance(row, Mapping) else row
        rates.append(from_json(ExchangeRate, dated, f"exchange_rates[{i}]"))
    reporting = from_json(str, top.get("currency", BASE), "currency")
    return Converter(reporting, str(top.get("rates_as_of", "")), rates)


def energy(value: Any, path: str, money: Converter) -> EnergyPrice | None:
    """Tariff of a site, in the currency of the file; None where no price is stated."""
    site = dict(value) if isinstance(value, Mapping) else {}
    if value is not None and not isinstance(value, Mapping):
        raise InputError("must be a mapping", field=path, value=value)
    unknown = sorted(set(site) - set(ENERGY_FIELDS))
    if unknown:
        remedy = f"Known fields: {', '.join(ENERGY_FIELDS)}."
        raise InputError("unknown field", field=f"{path}.{unknown[0]}", remedy=remedy)
    currency = from_json(str, site.pop("currency", ""), f"{path}.currency")
    if "usd_per_kwh" not in site:
        return None
    found = from_json(EnergyPrice, site, path)
    return checked_energy(found, currency, money, path)


def checked_energy(found: EnergyPrice, currency: str, money: Converter, path: str) -> EnergyPrice:
    """``found`` converted from ``currency``; raises InputError for bands that overlap or a PUE below 1."""
    try:
        hourly_prices(found)
    except InputError as error:
        raise InputError(error.message, field=f"{path}.{error.field}", value=error.value, remedy=error.remedy) from None
    if found.pue < 1:
        raise InputError("must be at least 1", field=f"{path}.pue", value=found.pue)
    for name in ("usd_per_kwh", "demand_usd_per_kw_month"):
        if getattr(found, name) < 0:
            raise InputError("must not be negative", field=f"{path}.{name}", value=getattr(found, name))

    def convert(amount: Decimal) -> Decimal:
        return converted(amount, currency, money, f"{path}.currency")

    bands = tuple(replace(band, usd_per_kwh=convert(band.usd_per_kwh)) for band in found.bands)
    return EnergyPrice(convert(found.usd_per_kwh), found.pue, bands, convert(found.demand_usd_per_kw_month))


def price(
    value: Any, path: str, node: Mapping[str, Any], tariff: EnergyPrice | None, money: Converter
) -> tuple[PriceSheet, GpuHourPrice]:
    """Price of the GPUs of a pool with its arithmetic: a number (rental), a mapping, or nothing (the catalogue's)."""
    if value is None:
        found = catalogue_price(str(node["gpu"]), path, money)
        return sheet_of(found, (), node, "", money), found
    if not isinstance(value, Mapping):
        inputs: TcoInputs | RentalInputs = RentalInputs(from_json(Decimal, value, path))
    else:
        stated = dict(value)
        if isinstance(stated.get("sources"), Mapping):
            stated["sources"] = [[field, str(text)] for field, text in stated["sources"].items()]
        stated = {"gpus": node["gpus"], **stated}
        owned = "purchase_usd" in stated
        inputs = from_json(TcoInputs, stated, path) if owned else from_json(RentalInputs, stated, path)
    try:
        found = gpu_hour_price(inputs, tariff, money)
        return sheet_of(found, price_terms(inputs, tariff, money), node, inputs.currency, money), found
    except InputError as error:
        raise InputError(error.message, field=f"{path}.{error.field}", value=error.value, remedy=error.remedy) from None


def catalogue_price(gpu: str, path: str, money: Converter) -> GpuHourPrice:
    """The published price of ``gpu`` in the currency of the plan; raises InputError at ``path`` when there is none."""
    try:
        found = default_price(gpu)
    except PlannerError as error:
        raise InputError(error.message, field=path, value=error.value, remedy=error.remedy) from None
    if money.reporting == BASE:
        return found
    usd = converted(found.usd_per_gpu_hour, BASE, money, path)
    return replace(found, usd_per_gpu_hour=usd, parts=(("rental", usd),))


def sheet_of(
    found: GpuHourPrice,
    terms: tuple[PriceTerm, ...],
    node: Mapping[str, Any],
    currency: str,
    money: Converter,
) -> PriceSheet:
    """``found`` with its arithmetic, for the pool that ``node`` (pool, gpu, site, gpus) belongs to."""
    quoted = currency or (BASE if found.basis == "catalogue" else money.reporting)
    listed = terms or tuple(PriceTerm(label, usd, "as published", found.source) for label, usd in found.parts)
    return PriceSheet(
        pool=str(node.get("pool", "")),
        gpu=str(node["gpu"]),
        site=str(node.get("site", "")),
        basis=found.basis,
        source=found.source,
        usd_per_gpu_hour=found.usd_per_gpu_hour,
        terms=listed,
        quoted_in=quoted,
        rate=money.factor(quoted),
        gpus_per_node=int(node.get("gpus", 1)),
    )


def operations(value: Any, money: Converter) -> OperationsCosts:
    """Costs of engine operations. Engine-keyed figures are mappings in the file, pairs in the contract."""
    if not isinstance(value, Mapping):
        raise InputError("must be a mapping", field="operations", value=value)
    stated = {str(key): item for key, item in value.items()}
    currency = from_json(str, stated.pop("currency", ""), "operations.currency")
    for key in ("licence_usd_per_gpu_year", "start_up_minutes"):
        if key in stated:
            if not isinstance(stated[key], Mapping):
                raise InputError("must be a mapping", field=f"operations.{key}", value=stated[key])
            stated[key] = [[engine, usd] for engine, usd in stated[key].items()]
    found = from_json(OperationsCosts, stated, "operations")
    for path, amount in _amounts(found):
        if amount < 0:
            raise InputError("must not be negative", field=f"operations.{path}", value=amount)

    def convert(amount: Decimal) -> Decimal:
        return converted(amount, currency, money, "operations.currency")

    return replace(
        found,
        people_usd_per_hour=convert(found.people_usd_per_hour),
        licence_usd_per_gpu_year=tuple((engine, convert(usd)) for engine, usd in found.licence_usd_per_gpu_year),
    )


def _amounts(costs: OperationsCosts) -> Iterator[tuple[str, Decimal]]:
    """Every figure with its path in the file."""
    for field in fields(costs):
        value = getattr(costs, field.name)
        if isinstance(value, Decimal):
            yield field.name, value
        elif isinstance(value, tuple):
            yield from ((f"{field.name}.{engine}", amount) for engine, amount in value)


def api_prices(rows: Any, money: Converter) -> tuple[ApiPrice, ...]:
    """API prices of the file, each in a ``currency`` of its own."""
    return _priced(ApiPrice, rows, "api_prices", money)


def cloud_prices(rows: Any, money: Converter) -> tuple[CloudPrice, ...]:
    """Cloud prices of the file, each in a ``currency`` of its own, by the catalogue's name of the GPU."""
    found = _priced(CloudPrice, rows, "cloud_prices", money)
    return tuple(replace(price, gpu=gpu_of_price(price.gpu, f"cloud_prices[{i}].gpu")) for i, price in enumerate(found))


def gpu_of_price(name: str, field: str) -> str:
    """The catalogue's name of a GPU that a price is for; raises UnknownGpuError at ``field``."""
    try:
        return get_gpu(name).name
    except UnknownGpuError as error:
        raise UnknownGpuError(error.message, field=field, value=name, remedy=error.remedy) from error


def price_classes(rows: Any) -> tuple[tuple[PriceClass, tuple[str, ...]], ...]:
    """Price classes with the workloads that are in each: rows of ``name``, ``factor``, ``pool``, ``workloads``."""
    if not isinstance(rows, list):
        raise InputError("must be a list", field="price_classes", value=rows)
    found = []
    for i, row in enumerate(rows):
        stated = dict(row) if isinstance(row, Mapping) else row
        members = stated.pop("workloads", []) if isinstance(stated, dict) else []
        names = from_json(tuple[str, ...], members, f"price_classes[{i}].workloads")
        made = from_json(PriceClass, stated, f"price_classes[{i}]")
        if made.factor < 0:
            raise InputError("must not be negative", field=f"price_classes[{i}].factor", value=made.factor)
        found.append((made, names))
    return tuple(found)


def _priced(kind: type[T], rows: Any, field: str, money: Converter) -> tuple[T, ...]:
    if not isinstance(rows, list):
        raise InputError("must be a list", field=field, value=rows)
    found = []
    for i, row in enumerate(rows):
        stated = dict(row) if isinstance(row, Mapping) else row
        currency = ""
        if isinstance(stated, dict):
            currency = from_json(str, stated.pop("currency", ""), f"{field}[{i}].currency")
        made: Any = from_json(kind, stated, f"{field}[{i}]")
        amounts = {f.name: getattr(made, f.name) for f in fields(made) if f.name.startswith("usd_")}
        below = next((name for name, usd in amounts.items() if usd < 0), None)
        if below is not None:
            raise InputError("must not be negative", field=f"{field}[{i}].{below}", value=amounts[below])
        changed = {name: converted(usd, currency, money, f"{field}[{i}].currency") for name, usd in amounts.items()}
        found.append(replace(made, **changed))
    return tuple(found)


def converted(amount: Decimal, currency: str, money: Converter, field: str) -> Decimal:
    """``amount`` in the plan's currency; rounded to a millionth only when it was in another."""
    if not currency or currency == money.reporting:
        return amount
    return money.convert(amount, currency, field).quantize(CONVERTED_STEP)

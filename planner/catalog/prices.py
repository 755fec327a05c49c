"""Published prices, and the one used when a user states none."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Literal, cast

from planner.catalog.gpus import get_gpu
from planner.catalog.tables import money, read_csv
from planner.catalog.types import PriceFact
from planner.economics.types import GpuHourPrice
from planner.errors import InputError, UnsupportedError

_PREFERENCE = (
    "provider catalogue",
    "paid or quoted by the authors",
    "analyst model",
    "second-hand list price",
    "price-comparison page",
    "single marketplace offer",
    "planning assumption",
)
"""Kinds of rental price from most to least trusted. Spot offers are never used: they can be taken away."""


@cache
def _facts() -> tuple[PriceFact, ...]:
    return tuple(_fact(row) for row in read_csv("prices.csv"))


def price_facts(gpu_name: str) -> tuple[PriceFact, ...]:
    """Every published price of a GPU (name or alias), in the order of the file; empty when there is none."""
    name = get_gpu(gpu_name).name
    return tuple(fact for fact in _facts() if fact.item == name)


def default_price(gpu_name: str) -> GpuHourPrice:
    """The rental price used when nobody states one: a starting point to be replaced by one's own.

    Among the on-demand ``cloud_hour`` prices the most trusted kind that exists is taken (a provider's catalogue, then
    what authors paid, an analyst's 3-year rental, second-hand lists, ..., last another planner's assumption), and of
    its prices the median (the lower one of two in the middle). Raises UnsupportedError when no price was published.
    """
    name = get_gpu(gpu_name).name
    offers = [
        fact
        for fact in price_facts(name)
        if fact.kind == "cloud_hour" and fact.usd is not None and "SPOT" not in fact.notes
    ]
    for kind in _PREFERENCE:
        matching = sorted(
            (cast(Decimal, fact.usd), fact.source, fact.notes) for fact in offers if fact.reliability == kind
        )
        if matching:
            usd, source, notes = matching[(len(matching) - 1) // 2]
            label = f"{kind}, median of {len(matching)}: {source} ({notes})"
            return GpuHourPrice(usd, "catalogue", label, (("rental", usd),))
    raise UnsupportedError(
        "no rental price was published", field="usd_per_gpu_hour", value=name, remedy="State a price for this GPU."
    )


def _fact(row: dict[str, str]) -> PriceFact:
    item = row["item"]
    if row["kind"] not in ("purchase", "cloud_hour", "tco_hour"):
        raise InputError("unknown kind of price", field=f"prices.csv {item}.kind", value=row["kind"])
    return PriceFact(
        item=item,
        kind=cast(Literal["purchase", "cloud_hour", "tco_hour"], row["kind"]),
        usd=money(row, "usd", item),
        unit=row["unit"],
        usd_low=money(row, "usd_low", item),
        usd_high=money(row, "usd_high", item),
        source=row["source"],
        date=row["date"],
        reliability=row["reliability"],
        notes=row["notes"],
    )

"""The price of a GPU-hour when nobody states one: chosen among those that were published."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from planner.catalog import get_gpu, price_facts
from planner.economics.types import GpuHourPrice
from planner.errors import UnsupportedError

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

"""Published prices."""

from __future__ import annotations

from functools import cache
from typing import Literal, cast

from planner.catalog.gpus import get_gpu
from planner.catalog.tables import money, read_csv
from planner.catalog.types import PriceFact
from planner.errors import InputError


@cache
def _facts() -> tuple[PriceFact, ...]:
    return tuple(_fact(row) for row in read_csv("prices.csv"))


def price_facts(gpu_name: str) -> tuple[PriceFact, ...]:
    """Every published price of a GPU (name or alias), in the order of the file; empty when there is none."""
    name = get_gpu(gpu_name).name
    return tuple(fact for fact in _facts() if fact.item == name)


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

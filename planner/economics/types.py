"""Prices in, costs out. Money is Decimal, in the currency of the plan, whatever ``usd`` a name says."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from planner.economics.tariff import EnergyPrice

__all__ = ["CostBreakdown", "EnergyPrice", "GpuHourPrice", "PriceSheet", "PriceTerm"]

ELECTRICITY, PEOPLE = "electricity", "people"
"""Labels of parts of a price per GPU-hour and of a bill."""

GPU_BILL, CARRIED_LOAD, HEAD_ROOM = "GPUs", "GPUs, carried load", "GPUs, idle head-room"
"""Labels of parts of a bill. All that begin with the first are the GPU price times GPU-hours."""

OPERATIONS = "engine operations"
"""Label of a part of a bill: GPU-hours that start-ups and builds take."""


@dataclass(frozen=True, slots=True)
class GpuHourPrice:
    """What one GPU costs an hour, powered on, idle or busy, and where the figure comes from."""

    usd_per_gpu_hour: Decimal
    basis: Literal["tco", "rental", "catalogue"]
    source: str
    parts: tuple[tuple[str, Decimal], ...] = ()  # label, USD per GPU-hour; add up to usd_per_gpu_hour

    @property
    def holds_electricity(self) -> bool:
        """Whether the price includes electricity already."""
        return any(label == ELECTRICITY for label, _ in self.parts)


@dataclass(frozen=True, slots=True)
class PriceTerm:
    """One part of a price per GPU-hour with its arithmetic: the formula with the numbers put in, and their source."""

    label: str
    usd_per_gpu_hour: Decimal
    formula: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """How the price of the GPUs of ``pool`` comes about. The terms add up to ``usd_per_gpu_hour``.

    ``quoted_in`` is the currency in which the figures were stated, ``rate`` units of the plan's currency for one of it.
    """

    pool: str
    gpu: str
    site: str
    basis: str
    source: str
    usd_per_gpu_hour: Decimal
    terms: tuple[PriceTerm, ...]
    quoted_in: str = "USD"
    rate: Decimal = Decimal(1)
    gpus_per_node: int = 1


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """Cost of one workload on one candidate. The parts add up to ``usd_per_month``.

    ``usd_per_mtok_*`` divide the whole bill by that kind of token; None when no such token is served. Interval
    inherited from the throughput prediction. ``allocated_usd_*`` split the bill between input and output by GPU time
    of prefill and decode (they add up to it); None when that split is unknown.
    """

    usd_per_month: Decimal
    parts: tuple[tuple[str, Decimal], ...]  # gpu (carried load), idle, engine operations, licence, energy...
    usd_per_mtok_input: Decimal | None
    usd_per_mtok_output: Decimal | None
    usd_per_mtok_total: Decimal | None
    usd_per_mtok_output_80: tuple[Decimal, Decimal] | None
    gpu_hours_per_month: Decimal
    currency: str = "USD"
    mtok_input_per_month: Decimal = Decimal(0)
    mtok_output_per_month: Decimal = Decimal(0)
    allocated_usd_input: Decimal | None = None
    allocated_usd_output: Decimal | None = None
    break_even_utilisation: Decimal | None = None  # share of capacity where an API costs the same

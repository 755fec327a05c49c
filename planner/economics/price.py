"""What a GPU costs an hour: owned (total cost of ownership) or rented.

Owned: equivalent annual cost of the purchase (annuity, residual value discounted), plus yearly costs, over 8,760 h and
the GPUs of the node. The annuity is the textbook capital-recovery factor r / (1 - (1 + r)^-n); r = 0 gives
straight-line.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from planner.economics.money import PRICE_STEP, money, round_parts
from planner.economics.types import EnergyPrice, GpuHourPrice
from planner.errors import InputError
from planner.units import HOURS_PER_YEAR


@dataclass(frozen=True, slots=True)
class TcoInputs:
    """Ownership of one node. Money in USD, power at the wall socket of the node, before PUE.

    ``power_kw`` is the mean electrical power of the node; None leaves electricity out (it is then charged by use).
    ``hosting_usd_per_kw_month`` is charged on ``provisioned_kw`` (the power reserved in the hall).
    ``*_share_per_year`` are shares of the purchase price. ``life_years`` until the residual value is realised.
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


@dataclass(frozen=True, slots=True)
class RentalInputs:
    """A rental price per GPU-hour, with licences on top where the provider does not include them."""

    usd_per_gpu_hour: Decimal
    licence_usd_per_gpu_year: Decimal = Decimal(0)
    source: str = "your figures"


def capital_recovery_factor(rate_per_year: Decimal, years: Decimal) -> Decimal:
    """Yearly payment per unit of capital over ``years`` at ``rate_per_year`` (annuity in arrears).

    >>> capital_recovery_factor(Decimal("0.08"), Decimal(4)).quantize(Decimal("0.000001"))
    Decimal('0.301921')
    """
    if rate_per_year == 0:
        return 1 / years
    return rate_per_year / (1 - (1 + rate_per_year) ** -years)


def gpu_hour_price(inputs: TcoInputs | RentalInputs, energy: EnergyPrice | None = None) -> GpuHourPrice:
    """Price of one GPU-hour with its parts, which add up exactly (kept to 0.0001 USD).

    ``energy`` is needed when ``inputs.power_kw`` is given. Raises InputError for absurd figures, naming the field.
    """
    if isinstance(inputs, RentalInputs):
        return _rental(inputs)
    _check(inputs)
    hours, gpus = Decimal(HOURS_PER_YEAR), Decimal(inputs.gpus)
    bought = inputs.purchase_usd + inputs.network_usd
    rate, years = inputs.financing_rate_per_year, inputs.life_years
    residual_now = inputs.purchase_usd * inputs.residual_share / (1 + rate) ** years
    depreciation = (bought - inputs.purchase_usd * inputs.residual_share) / years
    annuity = (bought - residual_now) * capital_recovery_factor(rate, years)
    yearly = [
        ("purchase less residual", depreciation * (bought - inputs.network_usd) / bought if bought else Decimal(0)),
        ("network", depreciation * inputs.network_usd / bought if bought else Decimal(0)),
        ("financing", max(annuity - depreciation, Decimal(0))),
        ("hosting", inputs.hosting_usd_per_kw_month * 12 * inputs.provisioned_kw),
        ("spares", inputs.spares_share_per_year * inputs.purchase_usd),
        ("maintenance", inputs.maintenance_share_per_year * inputs.purchase_usd),
        ("licence", inputs.licence_usd_per_gpu_year * gpus),
        ("people", inputs.people_usd_per_gpu_month * 12 * gpus),
    ]
    if inputs.power_kw is not None:
        if energy is None:
            raise InputError(
                "electricity needs a price", field="energy", remedy="Give usd_per_kwh and pue of the site."
            )
        yearly.append(("electricity", inputs.power_kw * energy.pue * energy.usd_per_kwh * hours))
    parts = round_parts([(label, usd / hours / gpus) for label, usd in yearly if usd], PRICE_STEP)
    total = sum((usd for _, usd in parts), Decimal(0).quantize(PRICE_STEP))
    return GpuHourPrice(total, "tco", inputs.source, parts)


def _rental(inputs: RentalInputs) -> GpuHourPrice:
    if inputs.usd_per_gpu_hour < 0:
        raise InputError("must not be negative", field="usd_per_gpu_hour", value=inputs.usd_per_gpu_hour)
    exact = [("rental", inputs.usd_per_gpu_hour)]
    if inputs.licence_usd_per_gpu_year:
        exact.append(("licence", inputs.licence_usd_per_gpu_year / Decimal(HOURS_PER_YEAR)))
    parts = round_parts(exact, PRICE_STEP)
    total = sum((usd for _, usd in parts), Decimal(0).quantize(PRICE_STEP))
    return GpuHourPrice(total, "rental", inputs.source, parts)


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
    for name in (
        "purchase_usd",
        "network_usd",
        "hosting_usd_per_kw_month",
        "provisioned_kw",
        "licence_usd_per_gpu_year",
        "people_usd_per_gpu_month",
        "spares_share_per_year",
        "maintenance_share_per_year",
    ):
        if getattr(inputs, name) < 0:
            raise InputError("must not be negative", field=name, value=getattr(inputs, name))


def with_price(price: GpuHourPrice, usd_per_gpu_hour: Decimal) -> GpuHourPrice:
    """The same price at another level, its parts scaled alike (for what-if and flip points)."""
    parts = price.parts
    total = money(usd_per_gpu_hour, PRICE_STEP)
    if parts and price.usd_per_gpu_hour:
        factor = usd_per_gpu_hour / price.usd_per_gpu_hour
        parts = round_parts([(label, usd * factor) for label, usd in parts], PRICE_STEP)
        total = sum((usd for _, usd in parts), Decimal(0).quantize(PRICE_STEP))
    return GpuHourPrice(total, price.basis, price.source, parts)

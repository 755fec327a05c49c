"""Electricity by the hour of the week: a flat price, or bands over it, with a demand charge and the site's PUE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from planner.errors import InputError

HOURS_PER_WEEK = 168
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class TariffBand:
    """Hours of the week with a price of their own: ``from_hour`` (0-23) up to, not including, ``to_hour`` (1-24).

    ``days`` by name (mon .. sun); empty: every day. Local time of the site.
    """

    from_hour: int
    to_hour: int
    usd_per_kwh: Decimal
    days: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnergyPrice:
    """Electricity at a site. ``usd_per_kwh`` outside all ``bands``; ``demand_usd_per_kw_month`` on the power drawn.

    The demand charge is taken on the mean power of a GPU at the wall, PUE included: peaks of many GPUs do not coincide.
    Amounts are in the currency of the plan.
    """

    usd_per_kwh: Decimal
    pue: Decimal = Decimal("1.3")
    bands: tuple[TariffBand, ...] = ()
    demand_usd_per_kw_month: Decimal = Decimal(0)


def hourly_prices(energy: EnergyPrice) -> tuple[Decimal, ...]:
    """Price per kWh of each of the 168 hours from Monday 0:00. Raises InputError for bands that overlap or are empty.

    >>> night = TariffBand(0, 6, Decimal("0.10"), ("mon",))
    >>> sum(hourly_prices(EnergyPrice(Decimal("0.20"), bands=(night,))))
    Decimal('33.00')
    """
    prices = [energy.usd_per_kwh] * HOURS_PER_WEEK
    taken: dict[int, int] = {}
    for i, band in enumerate(energy.bands):
        path = f"bands[{i}]"
        if not 0 <= band.from_hour < band.to_hour <= 24:
            raise InputError(
                "must lie within a day", field=f"{path}.from_hour", value=f"{band.from_hour} to {band.to_hour}",
                remedy="Give 0 <= from_hour < to_hour <= 24; split a band at midnight.",
            )  # fmt: skip
        if band.usd_per_kwh < 0:
            raise InputError("must not be negative", field=f"{path}.usd_per_kwh", value=band.usd_per_kwh)
        for day in band.days or DAYS:
            if day not in DAYS:
                raise InputError("is no day", field=f"{path}.days", value=day, remedy=f"Use: {', '.join(DAYS)}.")
            for hour in range(band.from_hour, band.to_hour):
                at = 24 * DAYS.index(day) + hour
                if at in taken:
                    raise InputError(
                        f"overlaps bands[{taken[at]}]", field=path, value=f"{day} {hour}:00", remedy="Split them."
                    )
                taken[at] = i
                prices[at] = band.usd_per_kwh
    return tuple(prices)


def mean_usd_per_kwh(energy: EnergyPrice, profile: Sequence[float] = ()) -> Decimal:
    """Mean price of a kWh, over the hours of the week alike or by ``profile`` (168 relative draws of power).

    Raises InputError when the profile has another length, a negative entry, or only zeros.
    """
    if not energy.bands:
        return energy.usd_per_kwh
    prices = hourly_prices(energy)
    weights = [Decimal(str(value)) for value in check_profile(profile)] or [Decimal(1)] * HOURS_PER_WEEK
    return sum((p * w for p, w in zip(prices, weights, strict=True)), Decimal(0)) / sum(weights, Decimal(0))


def check_profile(profile: Sequence[float], field: str = "hour_of_week") -> Sequence[float]:
    """The profile, when it is empty or has 168 entries that are not negative and not all zero; else InputError."""
    if profile and (len(profile) != HOURS_PER_WEEK or min(profile) < 0 or not any(profile)):
        raise InputError(
            "must hold 168 relative loads, from Monday 0:00", field=field, value=len(profile),
            remedy="Give one number for each hour of the week, none negative, not all zero.",
        )  # fmt: skip
    return profile


def usd_per_kw_hour(energy: EnergyPrice, profile: Sequence[float] = ()) -> Decimal:
    """What a kW drawn by a GPU for an hour costs: (price of the kWh + demand charge / 730 h) x PUE."""
    return (mean_usd_per_kwh(energy, profile) + energy.demand_usd_per_kw_month / 730) * energy.pue

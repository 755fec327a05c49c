"""Amounts of several currencies in one plan: dated rates, one reporting currency, one day.

A rate says what one unit of a currency is worth in US dollars on a day; any two currencies are converted over the
dollar. A service unit (an allotment's hour, a credit) is a currency like any other: as long as every amount of a plan
is in it, no rate is needed. Amounts are converted when a plan is asked, at full precision; bills are rounded after it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from planner.errors import InputError

BASE = "USD"
SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}
CONVERTED_STEP = Decimal("0.000001")  # prices and tariffs that come from another currency


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of ``currency`` was worth ``usd_per_unit`` US dollars on the day ``date`` (ISO 8601)."""

    currency: str
    date: str
    usd_per_unit: Decimal
    source: str = ""


class Converter:
    """Amounts in any currency to ``reporting``, by the newest rate that is not younger than ``as_of``.

    ``used`` lists the rates that were asked for, in order of first use: they belong into the plan's snapshot. Raises
    InputError for a rate or day that makes no sense.
    """

    def __init__(self, reporting: str = BASE, as_of: str = "", rates: Iterable[ExchangeRate] = ()) -> None:
        self.reporting = currency_code(reporting, "currency")
        self.as_of = as_of
        if as_of:
            _day(as_of, "rates_as_of")
        self._rates: dict[str, ExchangeRate] = {}
        for i, rate in enumerate(rates):
            code = currency_code(rate.currency, f"exchange_rates[{i}].currency")
            _day(rate.date, f"exchange_rates[{i}].date")
            if rate.usd_per_unit <= 0:
                raise InputError("must be above 0", field=f"exchange_rates[{i}].usd_per_unit", value=rate.usd_per_unit)
            known = self._rates.get(code)
            if (not as_of or rate.date <= as_of) and (known is None or known.date <= rate.date):
                self._rates[code] = rate
        self._used: dict[str, ExchangeRate] = {}

    @property
    def used(self) -> tuple[ExchangeRate, ...]:
        """Rates that amounts were converted by."""
        return tuple(self._used.values())

    def factor(self, currency: str, field: str = "currency") -> Decimal:
        """Units of the reporting currency for one of ``currency``; raises InputError when a rate is missing."""
        code = currency_code(currency or self.reporting, field)
        if code == self.reporting:
            return Decimal(1)
        return self._usd(code, field) / self._usd(self.reporting, field)

    def convert(self, amount: Decimal, currency: str, field: str = "currency") -> Decimal:
        """``amount`` in the reporting currency; unrounded, and untouched when it is in that currency already."""
        factor = self.factor(currency, field)
        return amount if factor == 1 else amount * factor

    def _usd(self, code: str, field: str) -> Decimal:
        if code == BASE:
            return Decimal(1)
        rate = self._rates.get(code)
        if rate is None:
            when = f" on or before {self.as_of}" if self.as_of else ""
            raise InputError(
                f"there is no exchange rate of {code}{when}",
                field=field,
                value=code,
                remedy=f"Add what one {code} is worth in USD (Exchange rates), or state the amount in "
                f"{self.reporting}.",
            )
        self._used.setdefault(code, rate)
        return rate.usd_per_unit


def currency_code(value: str, field: str) -> str:
    """An ISO 4217 code or the short name of a service unit: 2 to 12 capitals and digits. Raises InputError."""
    code = value.strip()
    if not (2 <= len(code) <= 12 and code.isascii() and code.isalnum() and code == code.upper() and code[0].isalpha()):
        raise InputError(
            "is no currency", field=field, value=value, remedy="Use a code like EUR, or a unit of your own like SU."
        )
    return code


def symbol(currency: str) -> str:
    """What stands before an amount: $, €, £, or the code and a space."""
    return SYMBOLS.get(currency, f"{currency} ")


def _day(value: str, field: str) -> dt.date:
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        raise InputError("is no day", field=field, value=value, remedy="Write it like 2026-11-30.") from None

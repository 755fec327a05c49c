"""Readers of single fields of a request: a value of the right kind and range, or an InputError that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from planner.errors import InputError

MOST_USD_PER_GPU_HOUR = 10**6


def one_of(request: Mapping[str, Any], key: str, names: tuple[str, ...], *, path: str = "") -> str | None:
    """The text under ``key`` if it is one of ``names``; None when it is not stated. Raises InputError, as all here."""
    allowed = f"Use one of: {', '.join(names)}."
    name = text(request, key, path=path, remedy=allowed)
    if name is not None and name not in names:
        raise InputError(f"unknown {key}", field=path + key, value=name, remedy=allowed)
    return name


def text(
    source: Mapping[str, Any], key: str, *, path: str = "", required: bool = False, remedy: str = "Leave it out."
) -> str | None:
    """The text under ``key`` without the blanks around it; ``remedy`` says what to give instead of a wrong value."""
    value = source.get(key)
    if value is None:
        if required:
            raise InputError("is missing", field=path + key, remedy=remedy)
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError("must be a non-empty text", field=path + key, value=value, remedy=remedy)
    return value.strip()


def flag(source: Mapping[str, Any], key: str) -> bool:
    return bool(stated_flag(source, key))


def stated_flag(source: Mapping[str, Any], key: str) -> bool | None:
    value = source.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError("must be true or false", field=key, value=value, remedy="Or leave it out.")
    return value


def whole(
    source: Mapping[str, Any],
    key: str,
    *,
    default: int | None = None,
    path: str = "",
    least: int = 1,
    most: int = 10**9,
) -> int | None:
    value = source.get(key)
    if value is None:
        return default
    given = value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        remedy = f"Give one between {least} and {most}."
        raise InputError("must be a whole number", field=path + key, value=given, remedy=remedy)
    if not least <= value <= most:
        raise InputError(f"must be between {least} and {most}", field=path + key, value=given)
    return value


def number(
    source: Mapping[str, Any],
    key: str,
    *,
    path: str = "",
    low: float = 0.0,
    high: float = 1e9,
    above: bool = False,
    below: bool = False,
) -> float | None:
    """The number under ``key`` from ``low`` to ``high``; with ``above`` and ``below`` these two are left out."""
    value = source.get(key)
    if value is None:
        return None
    bounds = f"{'above' if above else 'at least'} {low:g} and {'below' if below else 'at most'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("must be a number", field=path + key, value=value, remedy=f"Give one that is {bounds}.")
    outside = not low <= value <= high  # also refuses NaN, and compares integers that no float holds
    if outside or (above and value == low) or (below and value == high):
        plain = f"must be between {low:g} and {high:g}" if not above and not below else f"must be {bounds}"
        raise InputError(plain, field=path + key, value=value)
    return float(value)


def money(value: object) -> Decimal:
    """A price per GPU-hour, which may be written as a text."""
    field, remedy = "usd_per_gpu_hour", f"Give dollars an hour, from 0 to below {MOST_USD_PER_GPU_HOUR}."
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError("must be a number", field=field, value=value, remedy=remedy)
    try:
        price = Decimal(str(value))
    except (InvalidOperation, ValueError):  # ValueError: an integer of more digits than Python writes
        raise InputError("must be a number", field=field, value=value, remedy=remedy) from None
    if not price.is_finite() or not 0 <= price < MOST_USD_PER_GPU_HOUR:
        raise InputError(f"must be between 0 and {MOST_USD_PER_GPU_HOUR}", field=field, value=value, remedy=remedy)
    return price


def can_be_written(value: object) -> bool:
    """Whether JSON can say ``value``: it has no infinite number and none that is none."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(can_be_written(each) for each in value.values())
    return not isinstance(value, (list, tuple)) or all(can_be_written(each) for each in value)

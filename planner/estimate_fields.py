"""Readers of single fields of a request: a value of the right kind and range, or an InputError that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from planner.errors import InputError


def one_of(request: Mapping[str, Any], key: str, names: tuple[str, ...]) -> str | None:
    """The text under ``key`` if it is one of ``names``; None when it is not stated. Raises InputError, as all here."""
    name = text(request, key)
    if name is not None and name not in names:
        raise InputError(f"unknown {key}", field=key, value=name, remedy=f"Use one of: {', '.join(names)}.")
    return name


def text(source: Mapping[str, Any], key: str, *, required: bool = False) -> str | None:
    value = source.get(key)
    if value is None:
        if required:
            raise InputError("is missing", field=key)
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError("must be a non-empty text", field=key, value=value)
    return value.strip()


def flag(source: Mapping[str, Any], key: str) -> bool:
    value = source.get(key, False)
    if not isinstance(value, bool):
        raise InputError("must be true or false", field=key, value=value)
    return value


def stated_flag(source: Mapping[str, Any], key: str) -> bool | None:
    return None if source.get(key) is None else flag(source, key)


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
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("must be a whole number", field=path + key, value=value)
    if not least <= value <= most:
        raise InputError(f"must be between {least} and {most}", field=path + key, value=value)
    return value


def number(source: Mapping[str, Any], key: str, *, path: str = "", low: float = 0.0, high: float = 1e9) -> float | None:
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("must be a number", field=path + key, value=value)
    found = float(value)
    if not low <= found <= high:  # also refuses NaN
        raise InputError(f"must be between {low:g} and {high:g}", field=path + key, value=value)
    return found


def money(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError("must be a number", field="usd_per_gpu_hour", value=value)
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        raise InputError("must be a number", field="usd_per_gpu_hour", value=value) from None
    if not price.is_finite() or not 0 <= price < Decimal(10) ** 6:
        raise InputError("must be between 0 and 1000000", field="usd_per_gpu_hour", value=value)
    return price

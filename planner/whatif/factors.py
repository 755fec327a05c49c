"""Factors of what-ifs: within bounds, and in words."""

from __future__ import annotations

from planner.errors import InputError
from planner.words import figure

MOST_FACTOR = 100.0


def checked_factor(value: float, field: str) -> float:
    """``value``; raises InputError at ``field`` unless it lies within 1/100 and 100."""
    if not 1 / MOST_FACTOR <= value <= MOST_FACTOR:
        raise InputError(f"must be between {1 / MOST_FACTOR:g} and {MOST_FACTOR:g}", field=field, value=value)
    return value


def percent(factor: float) -> str:
    """ "+30 %"."""
    change = 100 * (factor - 1)
    return f"{'+' if change >= 0 else ''}{figure(change)} %"

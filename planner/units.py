"""Unit constants and conversions. A GiB is 2^30 bytes; GPU bandwidths and prices use decimal units."""

from __future__ import annotations

from decimal import Decimal

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
HOURS_PER_YEAR = 8760
HOURS_PER_MONTH = Decimal(HOURS_PER_YEAR) / 12


def to_gib(size_bytes: float) -> float:
    """Convert bytes to GiB (2^30 bytes)."""
    return size_bytes / GIB

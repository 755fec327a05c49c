"""Unit constants. A GiB is 2^30 bytes; GPU bandwidths and prices use decimal units."""

from __future__ import annotations

from decimal import Decimal

MIB = 2**20
GIB = 2**30
HOURS_PER_YEAR = 8760
HOURS_PER_MONTH = Decimal(HOURS_PER_YEAR) / 12

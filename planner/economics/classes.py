"""What a workload pays of a pool's price: classes of service, as sites that bill by queue have them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from planner.errors import InputError


class Class(Protocol):
    """A price class: its factor holds in ``pool``, or everywhere when that is empty."""

    @property
    def name(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def factor(self) -> Decimal: ...


def factor_of(classes: Sequence[Class], name: str, pool: str) -> Decimal:
    """Share of the price of ``pool`` that class ``name`` pays; 1 without a class. The pool's own entry goes first.

    Raises InputError when the class is named and has no factor that holds in the pool.
    """
    if not name:
        return Decimal(1)
    fitting = [entry for entry in classes if entry.name == name and entry.pool in ("", pool)]
    if not fitting:
        known = ", ".join(sorted({entry.name for entry in classes})) or "none yet"
        raise InputError(
            f"has no price in pool {pool}", field="price_class", value=name,
            remedy=f"Add it to price_classes; known: {known}.",
        )  # fmt: skip
    return max(fitting, key=lambda entry: entry.pool != "").factor

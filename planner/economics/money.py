"""Exact money: rounding by largest remainder, so that parts always add up to their total."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

CENT = Decimal("0.01")
PRICE_STEP = Decimal("0.0001")  # prices per GPU-hour are kept to a hundredth of a cent


def money(value: float | int | str | Decimal, step: Decimal = CENT) -> Decimal:
    """Round ``value`` to ``step``, half to even. A float goes through its shortest decimal form."""
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    return exact.quantize(step, rounding=ROUND_HALF_EVEN)


def split_exactly(total: Decimal, weights: Sequence[Decimal], step: Decimal = CENT) -> tuple[Decimal, ...]:
    """Divide ``total`` by ``weights`` in units of ``step``; the shares add up to ``total`` rounded to ``step``.

    Largest-remainder (Hamilton) rounding: every share is rounded down, the units left over go to the largest
    remainders, earlier entries first. Raises ValueError for negative weights or when all are zero and the total is not.
    """
    if any(weight < 0 for weight in weights):
        raise ValueError("weights must not be negative")
    target = money(total, step)
    scale = sum(weights, Decimal(0))
    if scale == 0:
        if target != 0:
            raise ValueError("cannot divide a total over weights that are all zero")
        return tuple(Decimal(0).quantize(step) for _ in weights)
    exact = [target * weight / scale for weight in weights]
    floors = [value.quantize(step, rounding=ROUND_FLOOR) for value in exact]
    left = int((target - sum(floors, Decimal(0))) / step)
    order = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[:left]:
        floors[i] += step
    return tuple(floors)


def round_parts(parts: Sequence[tuple[str, Decimal]], step: Decimal = CENT) -> tuple[tuple[str, Decimal], ...]:
    """Round labelled amounts to ``step`` such that they add up to their rounded sum."""
    shares = split_exactly(sum((amount for _, amount in parts), Decimal(0)), [amount for _, amount in parts], step)
    return tuple((label, share) for (label, _), share in zip(parts, shares, strict=True))

"""Evidence of a number: how we know it. Ordered; a derived figure takes the weakest of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

Z80 = 1.281552
"""80 % of a normal distribution lie within so many standard deviations."""


class Evidence(StrEnum):
    """From strongest to weakest. EMULATED stands outside the order: it never counts as knowledge of hardware."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    SILICON = "silicon"
    EXTRAPOLATED = "extrapolated"
    ROOFLINE = "roofline"
    EMULATED = "emulated"


_ORDER = {evidence: rank for rank, evidence in enumerate(Evidence)}


def weakest(evidences: Iterable[Evidence]) -> Evidence:
    """Return the weakest evidence of ``evidences``; raises ValueError when there is none."""
    return max(evidences, key=_ORDER.__getitem__)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 80 % interval, in the unit of the value."""

    value: float
    low: float
    high: float

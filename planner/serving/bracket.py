"""Where to look next for the largest load within limits, by what was reached at the loads tried.

``ratio`` is the worst value / limit of a run: above 1 it breaks the SLO. It rises with the load, here taken to do so as
a power of it: a straight line in logarithms, which is true near the limit and is why few runs are needed.
"""

from __future__ import annotations

import math

UP, DOWN = (1.12, 2.0), (0.25, 0.92)
"""The least and the most by which a load is raised or lowered while nothing is known on the other side."""

NEAR = 1.2
"""The most by which the first load is raised where it was known to be near; then the square of it, and so on."""

WITHOUT_LIMIT = 2.0
_BEYOND = 1.1  # aims past the limit, so that the next run lies on its other side
_STEEP = 0.7  # a queue that grows without bound says no more than that
_EDGE = 0.15  # of the gap, in logarithms: as near to an end as a guess may be
_SETTLED_GAP = 1.2


def higher(load: float, ratio: float | None, most: float = UP[1]) -> float:
    """The load to try after ``load`` was carried and nothing is known to be too much, ``most`` times that at most;
    ``ratio`` None without limits.
    """
    if ratio is None:
        return load * WITHOUT_LIMIT
    return load * min(max(_BEYOND * max(ratio, 1e-9) ** -0.4, UP[0]), most)  # queues grow faster than their load


def lower(load: float, ratio: float) -> float:
    """The load to try after ``load`` was too much and nothing is known to be carried."""
    return load * min(max((_BEYOND * ratio) ** -0.5, DOWN[0]), DOWN[1])


def between(low: float, low_ratio: float, high: float, high_ratio: float) -> float:
    """Where the limit should lie between a load that is carried and one that is not."""
    return low * (high / low) ** min(max(_share(low_ratio, high_ratio), _EDGE), 1.0 - _EDGE)


def settled(low: float, low_ratio: float, high: float, high_ratio: float, tolerance: float) -> bool:
    """Whether no more than ``tolerance`` (a share) can be gained on ``low``: the ends are that close, or are close
    enough for the line between them to say so.
    """
    if high - low <= tolerance * high:
        return True
    return high <= _SETTLED_GAP * low and math.log(high / low) * _share(low_ratio, high_ratio) <= 0.5 * tolerance


def _share(low_ratio: float, high_ratio: float) -> float:
    """How much of the way from the lower to the higher load the limit lies, in logarithms."""
    below = min(max(-math.log(max(low_ratio, 1e-9)), 0.0), _STEEP)
    above = min(max(math.log(max(high_ratio, 1e-9)), 1e-6), _STEEP)
    return below / (below + above)

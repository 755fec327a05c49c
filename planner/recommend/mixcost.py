"""What a mix of candidates costs against one candidate alone: whole replicas, prices and people, nothing simulated.

A month of a mix is the sum over its parts of replicas x (GPUs, engine operations, licence, electricity of one replica),
and once for each engine the people that it takes: who runs two engines pays for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from planner.economics.types import GPU_BILL, OPERATIONS, PEOPLE
from planner.evidence import Interval
from planner.placement.problem import replicas_needed
from planner.plan_types import Candidate
from planner.recommend.costing import Change
from planner.recommend.preference import engine_of
from planner.recommend.verdict import capacity_factors, slices

_EPSILON = 1e-9
_BY_GPU_PRICE = (GPU_BILL, OPERATIONS)  # parts of a bill that move with the price of the GPU
_SLICES = {1: 20, 2: 20, 3: 8}  # by independent errors of prediction; more of them: _FEW
_FEW = 5


@dataclass(frozen=True, slots=True)
class Unit:
    """One replica of a candidate: ``share`` of the demand within the SLO, and money a month."""

    candidate: Candidate
    engine: str
    share: float
    gpu_usd: float  # moves with the price of the GPU
    other_usd: float
    people_usd: float  # once for the engine, however many replicas

    @property
    def error(self) -> tuple[str, str]:
        """Whose errors of prediction it shares: those of its engine on its GPU."""
        return self.engine, self.candidate.gpu

    def usd(self, change: Change) -> float:
        """One replica a month under ``change``."""
        moved = change.gpu in ("", self.candidate.gpu)
        return self.gpu_usd * (change.gpu_price_factor if moved else 1.0) + self.other_usd


Counted = tuple[Sequence[Unit], Sequence[int]]
"""Units, and the replicas of each."""


def unit_of(candidate: Candidate) -> Unit:
    """A replica of ``candidate`` by its bill. Raises ValueError for a candidate without one."""
    if candidate.cost is None or candidate.replicas < 1:
        raise ValueError(f"{candidate.id} has no bill")
    parts = [(label, float(usd)) for label, usd in candidate.cost.parts]
    people = sum(usd for label, usd in parts if label == PEOPLE)
    gpus = sum(usd for label, usd in parts if label.startswith(_BY_GPU_PRICE))
    other = sum(usd for _, usd in parts) - people - gpus
    count = candidate.replicas
    return Unit(candidate, engine_of(candidate), candidate.replica_share, gpus / count, other / count, people)


def month_usd(units: Sequence[Unit], counts: Sequence[int], change: Change | None = None) -> float:
    """A month of ``counts`` replicas of each unit."""
    change = change or Change()
    people: dict[str, float] = {}
    for unit in units:
        people[unit.engine] = max(unit.people_usd, people.get(unit.engine, 0.0))
    return sum(people.values()) + sum(n * unit.usd(change) for unit, n in zip(units, counts, strict=True))


def after_loss(shares: Sequence[float], counts: Sequence[int]) -> float:
    """Share of the demand that is carried when the largest replica in use is lost."""
    able = sum(share * n for share, n in zip(shares, counts, strict=True))
    return able - max(share for share, n in zip(shares, counts, strict=True) if n)


def adapted(
    units: Sequence[Unit], counts: Sequence[int], spare: bool, change: Change, factors: Sequence[float] = ()
) -> tuple[int, ...]:
    """``counts`` changed until they serve the changed demand and no replica is left over.

    ``factors`` are what a replica of each unit really carries over what is predicted. The unit that carries most for
    its money is added first, the one that carries least goes first; one replica of each stays.
    """
    shares = [u.share * f / change.load_factor for u, f in zip(units, factors or (1.0,) * len(units), strict=True)]
    dear = sorted(range(len(units)), key=lambda i: -units[i].usd(change) / shares[i])
    found = list(counts)

    def left() -> float:
        able = after_loss(shares, found) if spare else sum(s * n for s, n in zip(shares, found, strict=True))
        return able - 1.0

    while (short := -left()) > _EPSILON:
        found[dear[-1]] += max(1, math.ceil(short / shares[dear[-1]] - _EPSILON))
    for i in dear:
        found[i] -= max(min(found[i] - 1, math.floor(left() / shares[i] + _EPSILON)), 0)
    return tuple(found)


def mix_usd(
    units: Sequence[Unit], counts: Sequence[int], spare: bool, change: Change, factors: Sequence[float] = ()
) -> float:
    """A month of the mix as ``adapted`` to ``change``."""
    return month_usd(units, adapted(units, counts, spare, change, factors), change)


def alone_usd(unit: Unit, spare: bool, change: Change) -> float:
    """A month of so many replicas of one unit as serve the changed demand."""
    return month_usd((unit,), (replicas_needed(unit.share / change.load_factor, spare),), change)


def cheapest(units: Iterable[Unit], spare: bool, change: Change) -> Unit | None:
    """The unit that serves the demand alone for least; of equals the one that carries more. None without units."""
    return min(units, key=lambda u: (alone_usd(u, spare, change), -u.share, u.candidate.id), default=None)


def best_pair(
    first: Sequence[Unit], second: Sequence[Unit], spare: bool
) -> tuple[tuple[Unit, Unit], tuple[int, int]] | None:
    """The cheapest mix of one unit of ``first`` and one of ``second``, at least one replica of each."""
    best: tuple[float, tuple[Unit, Unit], tuple[int, int]] | None = None
    for one, other in product(first, second):
        reserve = max(one.share, other.share) if spare else 0.0
        for count in range(1, replicas_needed(one.share, spare) + 1):
            more = max(1, math.ceil((1 + reserve - count * one.share) / other.share - _EPSILON))
            usd = month_usd((one, other), (count, more))
            if best is None or usd < best[0] - _EPSILON:
                best = usd, (one, other), (count, more)
    return None if best is None else best[1:]


def saving_of(mix: Counted, rival: Counted, spare: bool) -> Interval:
    """(rival - mix) / rival with its 80 % interval, above 0 where the mix is cheaper.

    What a replica carries errs alike for all candidates of one engine on one GPU, and independently between such
    groups; each group's error is cut into equal slices of its log-normal, and both sides are priced with the whole
    replicas that they would then need.
    """
    everyone = {unit.candidate.id: unit for units, _ in (mix, rival) for unit in units}
    errors = list(dict.fromkeys(unit.error for unit in everyone.values()))
    deviations = slices(_SLICES.get(len(errors), _FEW))
    drawn = {key: capacity_factors(unit.candidate, deviations) for key, unit in everyone.items()}

    def cost(side: Counted, at: tuple[int, ...]) -> float:
        place = dict(zip(errors, at, strict=True))
        factors = [drawn[unit.candidate.id][place[unit.error]] for unit in side[0]]
        return mix_usd(*side, spare, Change(), factors)

    points = []
    for at in product(range(len(deviations)), repeat=len(errors)):
        theirs = cost(rival, at)
        points.append((theirs - cost(mix, at)) / theirs)
    points.sort()
    ours, theirs = (mix_usd(*side, spare, Change()) for side in (mix, rival))
    value, tenth = (theirs - ours) / theirs, len(points) // 10
    return Interval(value, min(value, points[tenth]), max(value, points[-1 - tenth]))

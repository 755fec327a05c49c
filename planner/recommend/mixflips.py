"""From which load and which GPU price on a mix is no longer cheaper than one engine alone, or begins to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from planner.mix_types import MixFlip
from planner.placement.sizing import demand_per_s
from planner.plan_types import PlanRequest, PlanWorkload
from planner.recommend.costing import Change, gpu_price
from planner.recommend.flips import EQUAL, first_flip, grid, load_change, price_change
from planner.recommend.mixcost import Counted, Unit, alone_usd, cheapest, mix_usd
from planner.words import ENGINE_LABEL, article, figure

LOAD_RANGE, PRICE_RANGE = 30.0, 5.0
"""How far, as a factor either way, load and prices are searched."""

_MIX, _ALONE = "mix", "alone"


def flips_against(
    mix: Counted, rival: Counted, own: Sequence[Unit], workload: PlanWorkload, request: PlanRequest
) -> tuple[MixFlip, ...]:
    """Flips of ``mix`` against one engine alone by load and GPU price: ``rival`` as it serves today, or whichever of
    ``own`` (all units of that engine) serves the changed demand for less.

    At every value both sides have the whole replicas that they then need, at least one of each of their parts.
    """
    spare = workload.n_plus_1

    def wins(change: Change) -> str | None:
        theirs = mix_usd(*rival, spare, change)
        alone = cheapest(own, spare, change)
        if alone is not None:
            theirs = min(theirs, alone_usd(alone, spare, change))
        ours = mix_usd(*mix, spare, change)
        if abs(ours - theirs) <= EQUAL * max(ours, theirs):
            return None
        return _MIX if ours < theirs else _ALONE

    engine = rival[0][0].engine
    rate = demand_per_s(workload)
    name, unit, today = ("request rate", "req/s", rate) if rate is not None else ("concurrency", "users", 0.0)
    today = today or float(workload.load.concurrency)
    found = [_flip(name, unit, today, LOAD_RANGE, partial(load_change, today), wins, engine)]
    for gpu in sorted({item.candidate.gpu for item in (*mix[0], *rival[0])}):
        price = gpu_price(request, gpu)
        if price > 0:
            change = partial(price_change, price, gpu)
            unit = f"{request.currency}/GPU-hour"
            found.append(_flip(f"{gpu} price", unit, price, PRICE_RANGE, change, wins, engine))
    return tuple(found)


def _flip(
    parameter: str,
    unit: str,
    today: float,
    reach: float,
    change: Callable[[float], Change],
    wins: Callable[[Change], str | None],
    engine: str,
) -> MixFlip:
    low, high = today / reach, today * reach
    winner = wins(Change())
    sides = (grid(today, low), grid(today, high))
    met = [value for side in sides if (value := first_flip(side, lambda v: wins(change(v)), winner)) is not None]
    value = min(met, key=lambda v: max(v / today, today / v), default=None)
    alone = f"{ENGINE_LABEL[engine]} alone"
    if winner is None:
        sentence = f"The mix and {alone} cost the same; no {parameter} was searched."
    elif value is None:
        sentence = f"No {parameter} between {figure(low)} and {figure(high)} {unit} changes that."
    else:
        side = "Below" if value < today else "From"
        better = alone if winner == _MIX else "the mix"
        sentence = f"{side} {article(parameter)} of {figure(value)} {unit} {better} is cheaper."
    return MixFlip(parameter, unit, today, value, (low, high), sentence)

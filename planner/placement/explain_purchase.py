"""Why nothing more may be bought: which limit binds, and by how much it must be raised."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.placement.fleet import NodeClass, bins_of, fits_shape
from planner.placement.greedy import node_price, power_kw, rack_units
from planner.placement.model import Counts
from planner.placement.problem import Choice, Problem
from planner.words import figure


@dataclass(frozen=True, slots=True)
class Binding:
    """One limit that stops a purchase: the words for it, and what would have to be allowed instead."""

    reason: str
    relaxation: str


def binding_limit(problem: Problem, counts: Counts, choices: tuple[Choice, ...], share: float) -> Binding | None:
    """What keeps the missing ``share`` of a workload from being bought; None where nothing may be bought at all.

    Of all kinds of node and candidates the one whose limits need the smallest raise is named.
    """
    found: list[tuple[float, int, Binding]] = []
    for choice in choices:
        missing = max(1, math.ceil(share * choice.needed - 1e-4))
        for k in choice.classes:
            group = problem.classes[k]
            if group.purchase:
                found.append(_raise(problem, counts, choice, group, missing))
    return min(found, key=lambda item: item[:2])[2] if found else None


def _raise(
    problem: Problem, counts: Counts, choice: Choice, group: NodeClass, missing: int
) -> tuple[float, int, Binding]:
    """(relative raise, order, words) for ``missing`` more replicas of ``choice`` on new nodes of ``group``."""
    nodes = _nodes_for(choice, group, missing)
    limits = problem.request.limits
    usd = None if limits is None or limits.usd_per_hour is None else float(limits.usd_per_hour)
    kw = None if limits is None else limits.power_kw
    units = None if limits is None or limits.rack_units is None else float(limits.rack_units)
    rows = [
        ("budget", "USD an hour", usd, node_price),
        ("power limit", "kW", kw, power_kw),
        ("rack limit", "rack units", units, rack_units),
    ]
    wanted, words, changes = 0.0, [], []
    for name, unit, limit, of in rows:
        used = sum(of(problem.classes[i]) * count for i, count in counts.bought.items())
        after = used + of(group) * nodes
        if limit is not None and after > limit + 1e-9:
            wanted += (after - limit) / max(limit, 1e-9)
            words.append(f"the {name} of {figure(limit)} {unit} binds ({figure(used)} are taken)")
            changes.append(f"the {name} to {figure(_up(after))} {unit}")
    bought = counts.bought.get(group.index, 0)
    if group.buy_limit is not None and bought + nodes > group.buy_limit:
        wanted += (bought + nodes - group.buy_limit) / max(group.buy_limit, 1)
        words.append(f"only {group.buy_limit} of {group.pattern.pool or group.pattern.name} may be bought")
        changes.append(f"their number to {bought + nodes}")
    kind = f"{nodes} more node{'s' if nodes > 1 else ''} of {group.pattern.gpus} {group.pattern.gpu}"
    if not words:
        return 0.0, group.index, Binding(f"{kind} would hold them", f"Buy {kind}.")
    return (
        wanted,
        group.index,
        Binding(f"{kind} would hold them, but {' and '.join(words)}", f"Raise {' and '.join(changes)}."),
    )


def _nodes_for(choice: Choice, group: NodeClass, missing: int) -> int:
    pattern = group.pattern
    if choice.gpus > pattern.gpus:
        return missing * math.ceil(choice.gpus / pattern.gpus)
    each = sum(len(item.free) // min(choice.gpus, item.size) for item in bins_of(pattern, 0))
    if choice.gpus > group.bin_size and fits_shape(pattern, choice.gpus, 1):
        each = pattern.gpus // choice.gpus
    return math.ceil(missing / max(each, 1))


def _up(value: float) -> float:
    """Three significant figures, never below ``value``: the raise must be enough."""
    if value <= 0:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / step - 1e-9) * step

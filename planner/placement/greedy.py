"""Greedy plans: the fallback when time runs out, the start of the programme, and the baselines it must beat."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from planner.placement.fleet import NodeClass, Room
from planner.placement.model import Counts
from planner.placement.problem import Choice, Option, Problem, price_of

Order = Literal["best_fit", "first_fit_decreasing"]


@dataclass(frozen=True, slots=True)
class GreedyPlan:
    """Counts of a greedy plan with its hourly cost (GPUs of bought nodes included)."""

    counts: Counts
    usd_per_hour: float
    short: dict[int, int]  # workload -> replicas that found no place


class _Filler:
    """Rooms of all classes while workloads are placed one after the other."""

    def __init__(self, problem: Problem, first_fit: bool) -> None:
        self.problem = problem
        self.first_fit = first_fit
        self.rooms = {group.index: Room(group) for group in problem.classes}
        self.bought: dict[int, int] = defaultdict(int)
        self.replicas: dict[tuple[int, int], int] = defaultdict(int)
        self.domains: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def place(self, choice: Choice, limit_per_domain: int) -> bool:
        """Place one replica on the cheapest class with room; False when none has."""
        groups = sorted(
            (self.problem.classes[k] for k in choice.classes),
            key=lambda g: (g.purchase, self._price(choice, g), g.index),
        )
        for group in groups:
            counted = self.domains[choice.workload]
            if counted[group.domain] >= limit_per_domain:
                continue
            if self._take(choice, group):
                counted[group.domain] += 1
                self.replicas[choice.index, group.index] += 1
                return True
        return False

    def _price(self, choice: Choice, group: NodeClass) -> float:
        return choice.gpus * float(group.pattern.price.usd_per_gpu_hour) + choice.extra_usd_per_hour

    def _take(self, choice: Choice, group: NodeClass) -> bool:
        if self.rooms[group.index].take(choice.gpus, first_fit=self.first_fit) is not None:
            return True
        if not group.purchase or not self._may_buy(group, math.ceil(choice.gpus / group.pattern.gpus)):
            return False
        for _ in range(math.ceil(choice.gpus / group.pattern.gpus)):
            self.rooms[group.index].add_node(group.pattern, self.bought[group.index])
            self.bought[group.index] += 1
        return self.rooms[group.index].take(choice.gpus, first_fit=self.first_fit) is not None

    def _may_buy(self, group: NodeClass, more: int) -> bool:
        if group.buy_limit is not None and self.bought[group.index] + more > group.buy_limit:
            return False
        limits = self.problem.request.limits
        if limits is None:
            return True
        totals = [(limits.usd_per_hour, node_price), (limits.power_kw, power_kw), (limits.rack_units, rack_units)]
        for limit, of in totals:
            used = sum(of(self.problem.classes[k]) * count for k, count in self.bought.items()) + of(group) * more
            if limit is not None and used > float(limit) + 1e-9:
                return False
        return True


def greedy(problem: Problem, order: Order = "best_fit") -> GreedyPlan:
    """Serve workloads one after the other, each with its cheapest option that still finds room.

    ``best_fit``: by priority, then the larger bill first; replicas go into the bin with least room to spare.
    ``first_fit_decreasing``: by GPUs asked for, largest first; replicas go onto the first node that has room.
    A workload that finds no complete place takes what there is of the choice that serves most of it. Every engine gets
    whole GPUs: sharing one is left to the programme.
    """
    filler = _Filler(problem, first_fit=order == "first_fit_decreasing")
    by_workload: dict[int, list[Option]] = {}
    for workload in range(len(problem.workloads)):
        own = [choice for choice in problem.choices_of(workload) if choice.sharers == 1]
        options = [Option(workload, ((c.index, c.needed),)) for c in own]
        by_workload[workload] = sorted(options, key=lambda o: (_cost(problem, o), o.counts))
    short: dict[int, int] = {}
    unserved: dict[int, float] = {}
    for workload in _sequence(problem, by_workload, order):
        missing, share = _serve(filler, by_workload[workload])
        unserved[workload] = share
        if missing:
            short[workload] = missing
    counts = Counts(dict(filler.replicas), {k: v for k, v in filler.bought.items() if v}, unserved)
    return GreedyPlan(counts, hourly(problem, counts), short)


def hourly(problem: Problem, counts: Counts) -> float:
    """USD an hour of a plan by counts: GPUs placed, shared ones once, operations and electricity, and nodes bought."""
    usd = sum(
        count * problem.usd_per_hour(problem.choices[index], problem.classes[k])
        for (index, k), count in counts.replicas.items()
    )
    for (k, _), count in problem.hosts(counts.replicas).items():
        if not problem.classes[k].purchase:
            usd += count * float(problem.classes[k].pattern.price.usd_per_gpu_hour)
    return usd + sum(count * node_price(problem.classes[k]) for k, count in counts.bought.items())


def _serve(filler: _Filler, options: list[Option]) -> tuple[int, float]:
    """Place the first option that fits whole, else the one that serves most; (replicas missing, share unserved)."""
    best: tuple[float, Option] | None = None
    for option in options:
        placed = _try(filler, option, keep=False)
        share = placed / option.replicas
        if placed == option.replicas:
            _try(filler, option, keep=True)
            return 0, 0.0
        if share > 0 and (best is None or share > best[0] + 1e-12):
            best = (share, option)
    if best is None:
        return (options[0].replicas if options else 1), 1.0
    placed = _try(filler, best[1], keep=True)
    return best[1].replicas - placed, 1 - placed / best[1].replicas


def _try(filler: _Filler, option: Option, *, keep: bool) -> int:
    (index, count), *_ = option.counts
    choice = filler.problem.choices[index]
    spread = filler.problem.workloads[choice.workload].spread
    limit = math.ceil(count / 2) if spread else count
    if not keep:
        saved = ({k: filler.rooms[k].copy() for k in choice.classes}, dict(filler.bought), dict(filler.replicas))
    placed = 0
    while placed < count and filler.place(choice, limit):
        placed += 1
    if not keep:
        filler.rooms.update(saved[0])
        filler.bought = defaultdict(int, saved[1])
        filler.replicas = defaultdict(int, saved[2])
        filler.domains.pop(choice.workload, None)
    return placed


def _cost(problem: Problem, option: Option) -> float:
    return sum(count * price_of(problem.choices[index], problem.classes) for index, count in option.counts)


def _sequence(problem: Problem, options: dict[int, list[Option]], order: Order) -> list[int]:
    def gpus(workload: int) -> int:
        first = options[workload][0] if options[workload] else None
        return sum(count * problem.choices[index].gpus for index, count in first.counts) if first else 0

    def bill(workload: int) -> float:
        return _cost(problem, options[workload][0]) if options[workload] else 0.0

    numbers = range(len(problem.workloads))
    if order == "first_fit_decreasing":
        return sorted(numbers, key=lambda w: (-problem.workloads[w].priority, -gpus(w), w))
    return sorted(numbers, key=lambda w: (-problem.workloads[w].priority, -bill(w), w))


def node_price(group: NodeClass) -> float:
    """USD an hour of one node of a class."""
    return group.pattern.gpus * float(group.pattern.price.usd_per_gpu_hour)


def power_kw(group: NodeClass) -> float:
    """Provisioned kW of one node of a purchase class; 0 where it is not stated."""
    return group.power_kw or 0.0


def rack_units(group: NodeClass) -> float:
    """Rack units of one node of a purchase class; 0 where they are not stated."""
    return float(group.rack_units or 0)

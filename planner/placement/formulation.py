"""The integer programme of a placement as columns and rows: workload x candidate x class of nodes -> replicas.

Columns: x (option chosen), n (replicas of a choice on a class), s (share of a workload left unserved), b (nodes
bought), y (choice in use, only for a freely split workload that needs a spare), k (replicas that stay where they are).

Packing is exact in the aggregate when the replica sizes on a class divide one another (1, 2, 4, 8): then replicas fit
iff for every size s the GPUs of all replicas of at least s do not exceed the sum over bins of floor(free / s) x s
(largest first wastes nothing that the bound does not count). Otherwise bin patterns are enumerated.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from planner.placement.fleet import NodeClass, bins_of
from planner.placement.problem import Choice, Crowd, Problem

MOVE_SHARE = 0.002  # a move may cost this share of the replica's hourly price: it decides between equal plans only
SHARE_TIE = 1e-6  # USD an hour: between equal plans the one with fewer neighbours on a GPU wins


class Formulation:
    """A problem's columns (cost in USD an hour, 0..``upper``, whole or not) and its rows (low, high, factor by column).

    ``n`` by (choice, class), ``s`` by workload, ``b`` by class and ``spend`` (all nodes bought, USD an hour; None where
    none may be) say which column stands for what. No limit is infinity, which HiGHS takes as it is.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []
        self.rows: list[tuple[float, float, dict[int, float]]] = []
        self.n: dict[tuple[int, int], int] = {}
        self.s: dict[int, int] = {}
        self.b: dict[int, int] = {}
        self.spend: int | None = None
        self._x: dict[int, int] = {}
        self._hosts: dict[tuple[int, Crowd], int] = {}
        for choice in problem.choices:
            for k in choice.classes:
                cost = problem.usd_per_hour(choice, problem.classes[k]) + SHARE_TIE * (choice.sharers - 1)
                self.n[choice.index, k] = self._column(cost, float(choice.needed))
        for group in problem.classes:
            if group.purchase:
                price = group.pattern.gpus * float(group.pattern.price.usd_per_gpu_hour)
                self.b[group.index] = self._column(price, float(group.buy_limit or 10**6))
        self._shared_rows()
        for workload in range(len(problem.workloads)):
            self.s[workload] = self._column(0.0, 1.0, integer=False)
            if workload in problem.covers:
                self._cover_rows(workload)
            else:
                self._option_rows(workload)
            if problem.workloads[workload].spread:
                self._spread_rows(workload)
        for group in problem.classes:
            self._capacity_rows(group)
        self._purchase_rows()
        self._keep_rows()

    def _column(self, cost: float, upper: float, integer: bool = True) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def _row(self, low: float, high: float, terms: dict[int, float]) -> None:
        if terms:
            self.rows.append((low, high, terms))

    def _option_rows(self, workload: int) -> None:
        """At most one option; its replicas stand somewhere or are missing, and what is missing counts as unserved."""
        problem = self._problem
        own = [(i, option) for i, option in enumerate(problem.options) if option.workload == workload]
        for i, _ in own:
            self._x[i] = self._column(0.0, 1.0)
        self._row(-math.inf, 1.0, {self._x[i]: 1.0 for i, _ in own})
        unserved = {self.s[workload]: 1.0}
        for i, _ in own:
            unserved[self._x[i]] = 1.0
        for choice in problem.choices_of(workload):
            short = self._column(0.0, float(choice.needed), integer=False)
            terms = {self.n[choice.index, k]: 1.0 for k in choice.classes}
            terms[short] = 1.0
            for i, option in own:
                count = dict(option.counts).get(choice.index)
                if count:
                    terms[self._x[i]] = -float(count)
            self._row(0.0, 0.0, terms)
            unserved[short] = -1.0 / choice.needed
        self._row(1.0, math.inf, unserved)

    def _cover_rows(self, workload: int) -> None:
        """Any mix whose shares add up to the demand; with a spare, also after the loss of any one replica in use."""
        problem = self._problem
        terms = {self.s[workload]: 1.0}
        for choice in problem.choices_of(workload):
            for k in choice.classes:
                terms[self.n[choice.index, k]] = choice.share
        self._row(1.0, math.inf, terms)
        if not problem.workloads[workload].n_plus_1:
            return
        for choice in problem.choices_of(workload):
            used = self._column(0.0, 1.0)
            own = {self.n[choice.index, k]: 1.0 for k in choice.classes}
            self._row(-math.inf, 0.0, {**own, used: -float(choice.needed)})
            self._row(1.0, math.inf, {**terms, used: -choice.share, self.s[workload]: 1.0 + choice.share})

    def _shared_rows(self) -> None:
        """A shared GPU is paid once and holds as many engines as it has shares, no two of one workload."""
        problem = self._problem
        groups: dict[tuple[int, Crowd], list[Choice]] = {}
        for choice in problem.choices:
            if choice.sharers > 1:
                for k in choice.classes:
                    groups.setdefault((k, problem.crowd_of(choice)), []).append(choice)
        for (k, crowd), members in groups.items():
            group = problem.classes[k]
            price = 0.0 if group.purchase else float(group.pattern.price.usd_per_gpu_hour)
            host = self._column(price, float(sum(choice.needed for choice in members)))
            self._hosts[k, crowd] = host
            self._row(-math.inf, 0.0, {**{self.n[c.index, k]: 1.0 for c in members}, host: -float(crowd[0])})
            for workload in {choice.workload for choice in members}:
                own = {self.n[c.index, k]: 1.0 for c in members if c.workload == workload}
                self._row(-math.inf, 0.0, {**own, host: -1.0})

    def _spread_rows(self, workload: int) -> None:
        """No failure domain holds more than half of the replicas, rounded up."""
        problem = self._problem
        own = problem.choices_of(workload)
        domains = sorted({problem.classes[k].domain for choice in own for k in choice.classes})
        for domain in domains:
            inside = {self.n[c.index, k]: 1.0 for c in own for k in c.classes if problem.classes[k].domain == domain}
            if workload in problem.covers:
                total = {self.n[c.index, k]: -0.5 for c in own for k in c.classes}
                self._row(-math.inf, 0.5, {column: total[column] + inside.get(column, 0.0) for column in total})
                continue
            allowed = {
                self._x[i]: -float(math.ceil(option.replicas / 2))
                for i, option in enumerate(problem.options)
                if option.workload == workload
            }
            self._row(-math.inf, 0.0, {**inside, **allowed})

    def _capacity_rows(self, group: NodeClass) -> None:
        everyone = [choice for choice in self._problem.choices if group.index in choice.classes]
        if not everyone:
            return
        here = [choice for choice in everyone if choice.sharers == 1]
        sizes = sorted({min(choice.gpus, group.bin_size) for choice in here} | {1})
        if all(large % small == 0 for small, large in pairwise(sizes)):
            self._nested_rows(group, here, sizes)
        else:
            self._pattern_rows(group, here, sizes)
        self._whole_node_row(group, here)

    def _nested_rows(self, group: NodeClass, here: list[Choice], sizes: list[int]) -> None:
        shared = {column: 1.0 for (k, _), column in self._hosts.items() if k == group.index}
        for size in sizes:
            terms = {self.n[c.index, group.index]: float(c.gpus) for c in here if min(c.gpus, group.bin_size) >= size}
            if size == 1:
                terms |= shared
            if group.purchase:
                per_node = sum(len(item.free) // size * size for item in bins_of(group.pattern, 0))
                terms[self.b[group.index]] = -float(per_node)
                self._row(-math.inf, 0.0, terms)
            else:
                self._row(-math.inf, float(group.capacity(size)), terms)

    def _pattern_rows(self, group: NodeClass, here: list[Choice], sizes: list[int]) -> None:
        if group.purchase:
            per_node = Counter(len(item.free) for item in bins_of(group.pattern, 0))
        else:
            per_node = Counter(len(item.free) for item in group.bins)
        held: dict[int, dict[int, float]] = {size: {} for size in sizes}
        for free, count in sorted(per_node.items()):
            columns = {}
            for pattern in _patterns(free, tuple(size for size in sizes if size > 1)):
                column = self._column(0.0, 1e6 if group.purchase else float(count))
                columns[column] = 1.0
                for size, number in pattern.items():
                    held[size][column] = float(number)
            if group.purchase:
                columns[self.b[group.index]] = -float(count)
                self._row(-math.inf, 0.0, columns)
            else:
                self._row(-math.inf, float(count), columns)
        for size in sizes:
            terms = {
                self.n[c.index, group.index]: float(c.gpus // size) for c in here if min(c.gpus, group.bin_size) == size
            }
            if size == 1:
                terms |= {column: 1.0 for (k, _), column in self._hosts.items() if k == group.index}
            terms |= {column: -held_here for column, held_here in held[size].items()}
            self._row(-math.inf, 0.0, terms)

    def _whole_node_row(self, group: NodeClass, here: list[Choice]) -> None:
        """Replicas that span bins need whole nodes (or whole bins of one): their nodes are counted apart."""
        terms = {
            self.n[c.index, group.index]: float(max(1, c.gpus // group.pattern.gpus))
            for c in here
            if c.gpus > group.bin_size
        }
        if not terms:
            return
        if group.purchase:
            self._row(-math.inf, 0.0, {**terms, self.b[group.index]: -1.0})
        else:
            self._row(-math.inf, float(group.whole_nodes()), terms)

    def _purchase_rows(self) -> None:
        if not self.b:
            return
        self.spend = self._column(0.0, math.inf, integer=False)
        self._row(0.0, 0.0, {**{column: self.cost[column] for column in self.b.values()}, self.spend: -1.0})
        limits = self._problem.request.limits
        if limits is None:
            return
        groups = [self._problem.classes[k] for k in self.b]
        if limits.usd_per_hour is not None:
            price = {self.b[g.index]: self.cost[self.b[g.index]] for g in groups}
            self._row(-math.inf, float(limits.usd_per_hour), price)
        if limits.power_kw is not None:
            power = {self.b[g.index]: g.power_kw for g in groups if g.power_kw is not None}
            self._row(-math.inf, limits.power_kw, power)
        if limits.rack_units is not None:
            units = {self.b[g.index]: float(g.rack_units) for g in groups if g.rack_units is not None}
            self._row(-math.inf, float(limits.rack_units), units)

    def _keep_rows(self) -> None:
        """A replica that stays in its class is worth a little: between equal plans the one with fewer moves wins."""
        problem = self._problem
        by_id = {choice.candidate.id: choice for choice in problem.choices}
        class_of = {node: group.index for group in problem.classes for node in group.nodes}
        node_of = {node.name: i for i, node in enumerate(problem.request.nodes)}
        today: Counter[tuple[int, int]] = Counter()
        seen: set[tuple[str, int]] = set()
        for placed in problem.request.current:
            if (placed.candidate_id, placed.replica) in seen:
                continue
            seen.add((placed.candidate_id, placed.replica))
            choice = by_id.get(placed.candidate_id)
            k = class_of.get(node_of.get(placed.node, -1))
            if choice is not None and k is not None and k in choice.classes:
                today[choice.index, k] += 1
        for (index, k), count in sorted(today.items()):
            choice = problem.choices[index]
            worth = (
                MOVE_SHARE / choice.sharers * (choice.gpus * float(problem.classes[k].pattern.price.usd_per_gpu_hour))
            )
            kept = self._column(-worth, float(count), integer=False)
            self._row(-math.inf, 0.0, {kept: 1.0, self.n[index, k]: -1.0})


def _patterns(free: int, sizes: tuple[int, ...]) -> list[Counter[int]]:
    """Maximal multisets of ``sizes`` that fit into ``free`` GPUs; what is left is filled with single GPUs."""
    found: list[Counter[int]] = []

    def extend(position: int, left: int, chosen: Counter[int]) -> None:
        if position < 0:
            full = Counter(chosen)
            if left:
                full[1] = left
            found.append(full)
            return
        size = sizes[position]
        for count in range(left // size, -1, -1):
            extend(position - 1, left - count * size, chosen + Counter({size: count}))

    extend(len(sizes) - 1, free, Counter())
    return found

"""From a request and its candidates to a placement problem: demands, options and the classes that may hold them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import combinations

from planner.economics.types import ELECTRICITY
from planner.placement.fleet import NodeClass, fits_shape, group_nodes
from planner.placement.siteenergy import electricity_at
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload
from planner.units import HOURS_PER_MONTH

COVER_FROM_REPLICAS = 13  # from here a workload may split freely: rounding to whole replicas matters little
MIX_SAVING = 0.03  # a second configuration must save this share of the bill, or be needed because a pool is too small
MIX_CANDIDATES = 5  # two-candidate mixes are formed among this many cheapest candidates of a workload
_EPSILON = 1e-9
Crowd = tuple[int, str]  # shares of a GPU, tenant
_Purchase = tuple[PlanNode, int | None, float | None, int | None, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate with what the programme needs of it. ``needed`` replicas serve the whole demand, spare included."""

    index: int
    workload: int
    candidate: Candidate
    engine: str
    gpus: int
    share: float  # of the demand, carried by one replica
    needed: int
    extra_usd_per_hour: float
    classes: tuple[int, ...]
    sharers: int = 1  # engines on the GPU, this one included
    site_usd_per_hour: tuple[tuple[int, float], ...] = ()  # class, what its site's electricity differs from the mean


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve a workload in full: replicas by choice."""

    workload: int
    counts: tuple[tuple[int, int], ...]  # choice index, replicas

    @property
    def replicas(self) -> int:
        """Replicas of all choices."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that the greedy, the programme and the checker's callers share."""

    request: PlanRequest
    workloads: tuple[PlanWorkload, ...]
    choices: tuple[Choice, ...]
    options: tuple[Option, ...]  # of the workloads that are not covered freely
    covers: frozenset[int]  # workloads served by any mix that adds up to the demand
    classes: tuple[NodeClass, ...]

    def choices_of(self, workload: int) -> tuple[Choice, ...]:
        """Choices of a workload, in the order of the candidates."""
        return tuple(choice for choice in self.choices if choice.workload == workload)

    def usd_per_hour(self, choice: Choice, group: NodeClass) -> float:
        """What one replica on ``group`` adds to the objective; GPUs of a purchase are paid with the node.

        A shared GPU is paid whole, once, by those who share it: see ``hosts``.
        """
        paid_apart = group.purchase or choice.sharers > 1
        gpu = 0.0 if paid_apart else choice.gpus * float(group.pattern.price.usd_per_gpu_hour)
        return gpu + choice.extra_usd_per_hour + dict(choice.site_usd_per_hour).get(group.index, 0.0)

    def crowd_of(self, choice: Choice) -> Crowd:
        """Who may share a GPU with ``choice``: engines with the same share, of one tenant."""
        return choice.sharers, self.workloads[choice.workload].tenant

    def hosts(self, replicas: Mapping[tuple[int, int], int]) -> dict[tuple[int, Crowd], int]:
        """Shared GPUs that ``replicas`` by (choice, class) need: (class, crowd) -> GPUs.

        A GPU takes as many engines as its crowd has shares, no two of one workload: one GPU lost is one replica lost.
        """
        engines: Counter[tuple[int, Crowd]] = Counter()
        of_one: Counter[tuple[int, Crowd, int]] = Counter()
        for (index, k), count in replicas.items():
            choice = self.choices[index]
            if choice.sharers > 1 and count:
                key = k, self.crowd_of(choice)
                engines[key] += count
                of_one[(*key, choice.workload)] += count
        return {
            key: max(math.ceil(count / key[1][0]), *(n for (k, crowd, _), n in of_one.items() if (k, crowd) == key))
            for key, count in engines.items()
        }


def replicas_needed(share: float, spare: bool) -> int:
    """Replicas that carry the whole demand when each carries ``share`` of it, one more when ``spare``."""
    return max(1, math.ceil(1 / share - _EPSILON)) + (1 if spare else 0)


def may_run(workload: PlanWorkload, engine: str, candidate: Candidate, node: PlanNode) -> bool:
    """Site, tenant, engine, GPU and shape: whether a replica of ``candidate`` may stand on ``node``."""
    return (
        candidate.gpu == node.gpu
        and engine in node.allowed_engines
        and engine in workload.allowed_engines
        and workload.site in ("", node.site)
        and node.tenant in ("", workload.tenant)
        and candidate.gpus_per_replica >= node.min_replica_gpus
        and (candidate.sharers == 1 or may_share(node))
        and fits_shape(node, candidate.gpus_per_replica, candidate.max_nvlink_domain_needed)
    )


def may_share(node: PlanNode) -> bool:
    """Whether several engines may stand on one GPU of ``node``: Kubernetes and Slurm hand out whole GPUs."""
    return node.orchestrator == "none" and not node.slice_of


def build(request: PlanRequest, candidates: tuple[Candidate, ...]) -> Problem:
    """State the problem. Left out: candidates that are not ok, that no class may hold, or that others always match."""
    spread = any(workload.spread for workload in request.workloads)
    classes = _classes(request, spread)
    index_of = {workload.name: i for i, workload in enumerate(request.workloads)}
    choices: list[Choice] = []
    for candidate in candidates:
        if candidate.status != "ok" or candidate.settings is None or candidate.replica_share <= 0:
            continue
        if candidate.workload not in index_of:
            continue
        number = index_of[candidate.workload]
        workload, engine = request.workloads[number], candidate.settings.engine.value
        allowed = tuple(k.index for k in classes if may_run(workload, engine, candidate, k.pattern))
        if not allowed:
            continue
        choices.append(
            Choice(
                index=len(choices),
                workload=number,
                candidate=candidate,
                engine=engine,
                gpus=candidate.gpus_per_replica,
                share=candidate.replica_share,
                needed=replicas_needed(candidate.replica_share, workload.n_plus_1),
                extra_usd_per_hour=float(candidate.replica_extra_usd_per_hour),
                classes=allowed,
                sharers=candidate.sharers,
                site_usd_per_hour=_site_electricity(request, workload, candidate, classes, allowed),
            )
        )
    kept = {item.candidate_id for item in request.current}
    choices = _renumbered([c for c in choices if c.candidate.id in kept or not _dominated(c, choices)])
    covers: set[int] = set()
    options: list[Option] = []
    for number, workload in enumerate(request.workloads):
        shared = [choice for choice in choices if choice.workload == number and choice.sharers > 1]
        options += [Option(number, ((choice.index, choice.needed),)) for choice in shared]
        own = [choice for choice in choices if choice.workload == number and choice.sharers == 1]
        if own and not shared and min(choice.needed for choice in own) >= COVER_FROM_REPLICAS:
            covers.add(number)
            continue
        options += [Option(number, ((choice.index, choice.needed),)) for choice in own]
        options += _mixes(number, workload, own, classes)
    return Problem(request, request.workloads, tuple(choices), tuple(options), frozenset(covers), classes)


def _site_electricity(
    request: PlanRequest,
    workload: PlanWorkload,
    candidate: Candidate,
    classes: tuple[NodeClass, ...],
    allowed: tuple[int, ...],
) -> tuple[tuple[int, float], ...]:
    """By class: electricity of one replica there less the mean that its extra cost holds; empty where none differs."""
    if candidate.watts_per_gpu is None or candidate.cost is None or not request.site_energy:
        return ()
    held = dict(candidate.cost.parts).get(ELECTRICITY, Decimal(0))
    mean = float(held / HOURS_PER_MONTH) / max(candidate.replicas, 1)
    busy = Decimal(str(workload.hours_per_month)) / HOURS_PER_MONTH
    found = []
    for k in allowed:
        node = classes[k].pattern
        gpus = candidate.gpus_per_replica * busy
        there = electricity_at(request, workload, candidate.gpu, candidate.watts_per_gpu, gpus, node.site)
        amount = 0.0 if there is None or node.price.holds_electricity else float(there)
        found.append((k, amount - mean))
    return tuple(found) if any(abs(usd) > 1e-6 for _, usd in found) else ()


def _dominated(choice: Choice, choices: list[Choice]) -> bool:
    """Whether smaller replicas of another choice can always stand in for it: same places, no less carried, no dearer.

    Where n replicas of b GPUs stand, n x b / a replicas of a GPUs fit when a divides b; they carry at least as much
    when a carries no less per GPU, and cost no more when a costs no more per GPU. So leaving b out loses nothing.
    """
    return choice.sharers == 1 and any(
        other.workload == choice.workload
        and other.sharers == 1
        and other.index != choice.index
        and choice.gpus % other.gpus == 0
        and set(choice.classes) <= set(other.classes)
        and other.share * choice.gpus >= choice.share * other.gpus
        and other.extra_usd_per_hour * choice.gpus <= choice.extra_usd_per_hour * other.gpus
        and (
            other.gpus < choice.gpus
            or other.share > choice.share
            or other.extra_usd_per_hour < choice.extra_usd_per_hour
            or other.index < choice.index
        )
        for other in choices
    )


def _renumbered(choices: list[Choice]) -> list[Choice]:
    return [replace(choice, index=index) for index, choice in enumerate(choices)]


def price_of(choice: Choice, classes: tuple[NodeClass, ...]) -> float:
    """USD an hour of one replica on the cheapest class that may hold it, its GPUs or its share of one included."""
    cheapest = min(float(classes[k].pattern.price.usd_per_gpu_hour) for k in choice.classes)
    return choice.gpus / choice.sharers * cheapest + choice.extra_usd_per_hour


def _mixes(number: int, workload: PlanWorkload, own: list[Choice], classes: tuple[NodeClass, ...]) -> list[Option]:
    """Two-candidate mixes of the cheapest choices: every split that serves the demand without a replica to spare.

    Mixes that are only a little cheaper than the best single candidate are left out; dearer ones stay, for the case
    that no pool holds the whole workload.
    """
    cheapest = sorted(own, key=lambda c: (price_of(c, classes) / c.share, c.index))[:MIX_CANDIDATES]
    alone = min((price_of(c, classes) * c.needed for c in own), default=0.0)
    found = []
    for first, second in combinations(cheapest, 2):
        for count in range(1, first.needed):
            reserve = max(first.share, second.share) if workload.n_plus_1 else 0.0
            left = 1 + reserve - count * first.share
            if left <= _EPSILON:
                break
            other = max(1, math.ceil(left / second.share - _EPSILON))
            cost = count * price_of(first, classes) + other * price_of(second, classes)
            if alone * (1 - MIX_SAVING) < cost < alone - _EPSILON:
                continue
            if other < second.needed or count < first.needed:
                found.append(Option(number, ((first.index, count), (second.index, other))))
    return found


def _classes(request: PlanRequest, spread: bool) -> tuple[NodeClass, ...]:
    """Owned classes, then what may be bought. ``purchase`` mode leaves the owned nodes out.

    Left out too: nodes of an orchestrator that the request may not use.
    """
    usable = tuple(
        node if node.orchestrator in request.orchestrators else replace(node, state="maintenance")
        for node in request.nodes
    )
    owned: tuple[NodeClass, ...] = ()
    if request.mode != "purchase":
        owned = group_nodes(usable, frozenset({"active"}), by_failure_domain=spread)
    if request.mode == "owned":
        return owned
    domains = [f"new {i}" for i in range(2)] if spread else [""]
    planned = group_nodes(usable, frozenset({"planned"}), by_failure_domain=spread)
    bought: list[_Purchase] = [
        (g.pattern, len(g.nodes), *_planned_needs(g.pattern, request), g.domain, g.nodes) for g in planned
    ]
    for option in (option for option in request.purchase_options if option.max_count != 0):
        terms = (option.node, option.max_count, option.power_kw, option.rack_units)
        bought += [(*terms, domain, ()) for domain in domains]
    if not bought:
        kinds: dict[tuple, PlanNode] = {}
        for node in (node for node in usable if not node.slice_of):
            kinds.setdefault((node.site, node.gpu, node.gpus, node.nvlink_domain, node.price.usd_per_gpu_hour), node)
        bought = [(node, None, None, None, domain, ()) for node in kinds.values() for domain in domains]
    return owned + tuple(
        NodeClass(
            len(owned) + i, replace(pattern, busy_gpus=(), slices=()), members, (), domain, True, limit, power, units
        )
        for i, (pattern, limit, power, units, domain, members) in enumerate(bought)
    )


def _planned_needs(pattern: PlanNode, request: PlanRequest) -> tuple[float | None, int | None]:
    """Power in kW and rack units of a planned node: those of the purchase option of its kind, where there is one."""
    kind = (pattern.gpu, pattern.gpus)
    same = next((o for o in request.purchase_options if (o.node.gpu, o.node.gpus) == kind), None)
    return (None, None) if same is None else (same.power_kw, same.rack_units)

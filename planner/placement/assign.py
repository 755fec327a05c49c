"""From replicas per class to concrete nodes and GPU indexes, leaving the least stranded and moving the least."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.placement.fleet import NodeClass, Room
from planner.placement.model import Counts
from planner.placement.problem import Choice, Crowd, Problem
from planner.plan_types import Placement, PlanNode


@dataclass(frozen=True, slots=True)
class Assigned:
    """Concrete placements, the nodes bought for them, replicas that found no bin after all, and kept replicas."""

    placements: tuple[Placement, ...]
    purchased: tuple[PlanNode, ...]
    missed: Counter[int]  # choice index -> replicas
    moves: int


_Parts = tuple[tuple[int, tuple[int, ...]], ...]  # (node, GPU indexes)


@dataclass(frozen=True, slots=True)
class _Today:
    choice: int
    replica: int
    parts: _Parts


def assign(problem: Problem, counts: Counts) -> Assigned:
    """Largest replicas first, each into the tightest bin; replicas that run today stay where they can."""
    nodes = list(problem.request.nodes)
    today = _today(problem)
    placed: dict[int, list[tuple[_Parts, int | None]]] = defaultdict(list)
    missed: Counter[int] = Counter()
    purchased: list[PlanNode] = []
    kept = 0
    for group in problem.classes:
        wanted = Counter({i: n for (i, k), n in counts.replicas.items() if k == group.index and n})
        if group.purchase and counts.bought.get(group.index):
            room = Room(group)
            for number in range(counts.bought[group.index]):
                node = _new_node(problem, group, purchased, number)
                nodes.append(node)
                purchased.append(node)
                room.add_node(node, len(nodes) - 1)
        else:
            room = Room(group)
        if not wanted:
            continue
        staying = [item for item in today if item.parts[0][0] in group.nodes and wanted[item.choice]]
        result = _fill(problem, room, wanted, staying)
        while result[1] and staying:  # what stays may fragment the class: let the smallest go first
            staying = _without_smallest(problem, staying)
            result = _fill(problem, room, wanted, staying)
        for index, parts, replica in result[0]:
            placed[index].append((parts, replica))
        missed += result[1]
        kept += result[2]
    return Assigned(_placements(problem, placed, nodes), tuple(purchased), missed, len(today) - kept)


def _fill(
    problem: Problem, room: Room, wanted: Counter[int], staying: list[_Today]
) -> tuple[list[tuple[int, _Parts, int | None]], Counter[int], int]:
    room = room.copy()
    left = Counter(wanted)
    done: list[tuple[int, _Parts, int | None]] = []
    kept = 0
    for item in staying:
        if problem.choices[item.choice].sharers == 1 and left[item.choice] and _take_all(room, item.parts):
            left[item.choice] -= 1
            kept += 1
            done.append((item.choice, item.parts, item.replica))
    missed: Counter[int] = Counter()
    whole = [index for index in left if problem.choices[index].sharers == 1]
    for index in sorted(whole, key=lambda i: (-problem.choices[i].gpus, i)):
        for number in range(left[index]):
            parts = room.take(problem.choices[index].gpus)
            if parts is None:
                missed[index] = left[index] - number
                break
            done.append((index, parts, None))
    for crowd in sorted({problem.crowd_of(problem.choices[i]) for i in left if problem.choices[i].sharers > 1}):
        kept += _fill_shared(problem, room, crowd, left, staying, done, missed)
    return done, missed, kept


def _fill_shared(
    problem: Problem,
    room: Room,
    crowd: Crowd,
    left: Counter[int],
    staying: list[_Today],
    done: list[tuple[int, _Parts, int | None]],
    missed: Counter[int],
) -> int:
    """Engines that share GPUs: those that stay first, the others dealt to the emptiest GPU without their workload."""

    def of_crowd(index: int) -> bool:
        return problem.choices[index].sharers > 1 and problem.crowd_of(problem.choices[index]) == crowd

    wanted = {(index, 0): count for index, count in left.items() if of_crowd(index) and count}
    number = sum(problem.hosts(wanted).values())
    hosts: dict[tuple[int, int], list[Choice]] = {}
    kept = 0
    for item in (item for item in staying if of_crowd(item.choice) and left[item.choice]):
        (node, (gpu, *_)), choice = item.parts[0], problem.choices[item.choice]
        guests = hosts.get((node, gpu))
        if guests is None and (len(hosts) == number or not room.take_exact(node, (gpu,))):
            continue
        guests = hosts.setdefault((node, gpu), [])
        if len(guests) < crowd[0] and all(guest.workload != choice.workload for guest in guests):
            guests.append(choice)
            left[item.choice] -= 1
            kept += 1
            done.append((item.choice, item.parts, item.replica))
    while len(hosts) < number and (taken := room.take(1)) is not None:
        hosts[taken[0][0], taken[0][1][0]] = []
    by_workload: Counter[int] = Counter()
    for index in (index for index in left if of_crowd(index)):
        by_workload[problem.choices[index].workload] += left[index]
    for index in sorted(
        (index for index in left if of_crowd(index)),
        key=lambda i: (-by_workload[problem.choices[i].workload], problem.choices[i].workload, i),
    ):
        choice = problem.choices[index]
        for _ in range(left[index]):
            free = [
                (len(guests), key)
                for key, guests in hosts.items()
                if len(guests) < crowd[0] and all(guest.workload != choice.workload for guest in guests)
            ]
            if not free:
                missed[index] += 1
                continue
            _, (node, gpu) = min(free)
            hosts[node, gpu].append(choice)
            done.append((index, ((node, (gpu,)),), None))
    return kept


def _take_all(room: Room, parts: _Parts) -> bool:
    if len(parts) == 1:
        return room.take_exact(*parts[0])
    trial = room.copy()
    if not all(trial.take_exact(node, indexes) for node, indexes in parts):
        return False
    for node, indexes in parts:
        room.take_exact(node, indexes)
    return True


def _without_smallest(problem: Problem, staying: list[_Today]) -> list[_Today]:
    smallest = min(problem.choices[item.choice].gpus for item in staying)
    position = max(i for i, item in enumerate(staying) if problem.choices[item.choice].gpus == smallest)
    return staying[:position] + staying[position + 1 :]


def _today(problem: Problem) -> list[_Today]:
    by_id = {choice.candidate.id: choice.index for choice in problem.choices}
    node_of = {node.name: i for i, node in enumerate(problem.request.nodes)}
    parts: dict[tuple[str, int], list[tuple[int, tuple[int, ...]]]] = {}
    for item in problem.request.current:
        if item.node in node_of:
            parts.setdefault((item.candidate_id, item.replica), []).append((node_of[item.node], item.gpu_indexes))
    return [_Today(by_id.get(name, -1), replica, tuple(found)) for (name, replica), found in parts.items()]


def _new_node(problem: Problem, group: NodeClass, bought: list[PlanNode], number: int) -> PlanNode:
    """The ``number``-th node bought of a class: a planned node of the request where there is one, else a new name."""
    if number < len(group.nodes):
        return problem.request.nodes[group.nodes[number]]
    taken = {node.name for node in (*problem.request.nodes, *bought)}
    serial = next(i for i in range(1, len(taken) + 2) if f"{group.pattern.name}-new-{i}" not in taken)
    domain = group.domain or group.pattern.failure_domain
    return replace(group.pattern, name=f"{group.pattern.name}-new-{serial}", state="planned", failure_domain=domain)


def _placements(
    problem: Problem, placed: dict[int, list[tuple[_Parts, int | None]]], nodes: list[PlanNode]
) -> tuple[Placement, ...]:
    """Concrete placements; a replica that stays keeps its number, others take the numbers left, by node name."""
    found = []
    for index in sorted(placed):
        candidate = problem.choices[index].candidate
        taken = {replica for _, replica in placed[index] if replica is not None}
        numbers = (i for i in range(len(placed[index]) + len(taken)) if i not in taken)
        ordered = sorted(placed[index], key=lambda entry: (nodes[entry[0][0][0]].name, entry[0][0][1]))
        numbered = [(next(numbers) if replica is None else replica, parts) for parts, replica in ordered]
        for replica, parts in sorted(numbered):
            for node, indexes in parts:
                where = nodes[node].name, tuple(sorted(indexes))
                found.append(Placement(candidate.workload, candidate.id, replica, *where, candidate.sharers))
    return _slotted(found, problem.request.current)


def _slotted(placements: list[Placement], current: Iterable[Placement]) -> tuple[Placement, ...]:
    """Give the engines on each shared GPU slots of their own; what runs today keeps its slot."""
    today = {replace(item, slot=0): item.slot for item in current if item.sharers > 1}
    taken: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    slots: dict[Placement, int] = {}
    for item in sorted((p for p in placements if p.sharers > 1), key=lambda p: (p not in today, placements.index(p))):
        used = taken[item.node, item.gpu_indexes]
        wanted = today.get(item)
        slot = wanted if wanted is not None and wanted not in used else next(i for i in range(64) if i not in used)
        used.add(slot)
        slots[item] = slot
    found = [replace(item, slot=slots.get(item, 0)) for item in placements]
    return tuple(found)

"""Why a workload, or part of it, found no place, and the least change that would give it one."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.placement.assign import assign
from planner.placement.explain_purchase import binding_limit
from planner.placement.fleet import Room, fits_shape
from planner.placement.model import Counts
from planner.placement.problem import Choice, Problem, may_run, may_share, price_of
from planner.plan_types import Candidate, PlanNode, PlanWorkload, Unplaced
from planner.words import ENGINE_LABEL, OWNER_LABEL


def explain(problem: Problem, counts: Counts, candidates: tuple[Candidate, ...]) -> tuple[Unplaced, ...]:
    """One entry per workload that is not fully served: replicas missing, binding constraint, least relaxation."""
    found = []
    for number, workload in enumerate(problem.workloads):
        share = counts.unserved.get(number, 0.0)
        if share <= 1e-6:
            continue
        own = problem.choices_of(number)
        if not own:
            found.append(_nowhere(problem, workload, candidates))
        else:
            found.append(_no_room(problem, counts, number, own, share))
    return tuple(found)


def _nowhere(problem: Problem, workload: PlanWorkload, candidates: tuple[Candidate, ...]) -> Unplaced:
    """No candidate may stand on any node: find out whether the model, the SLO or a rule of the fleet forbids it."""
    own = [candidate for candidate in candidates if candidate.workload == workload.name]
    usable = [candidate for candidate in own if candidate.status == "ok"]
    if not usable:
        why = next((candidate.reasons[0] for candidate in own if candidate.reasons), "no candidate was made")
        why = why.rstrip(".")
        kinds = sorted({candidate.status for candidate in own})
        return Unplaced(
            workload.name,
            1,
            f"no engine can serve it on these GPUs ({', '.join(kinds) or 'no GPU at hand'}): {why}",
            "Allow another precision or engine, relax the SLO, or add a GPU type that can hold the model.",
        )
    replicas = min(max(1, math.ceil(1 / c.replica_share - 1e-9)) for c in usable)
    for candidate in usable:
        reason = _first_rule(problem, workload, candidate)
        if reason is not None:
            return Unplaced(workload.name, replicas, *reason)
    gpus = sorted({candidate.gpu for candidate in usable})
    return Unplaced(
        workload.name, replicas, f"no node with {' or '.join(gpus)} is in use", f"Add a node with {gpus[0]}."
    )


def _first_rule(problem: Problem, workload: PlanWorkload, candidate: Candidate) -> tuple[str, str] | None:
    engine = candidate.settings.engine.value if candidate.settings else ""
    request = problem.request
    bought = [option.node for option in request.purchase_options if request.mode != "owned"]
    nodes = [node for node in (*request.nodes, *bought) if node.gpu == candidate.gpu]
    states = ("active",) if request.mode == "owned" else ("active", "planned")
    rules = [
        (lambda n: n.state in states, "every node with {gpu} is in maintenance or only planned", "Return {node}."),
        (
            lambda n: n.orchestrator in request.orchestrators,
            "the nodes with {gpu} belong to {owner}, which this plan may not use",
            "Let the plan use the nodes of {owner}.",
        ),
        (
            lambda n: workload.site in ("", n.site),
            "no node with {gpu} at site {site}",
            "Allow site {other}.",
        ),
        (lambda n: n.tenant in ("", workload.tenant), "{gpu} belongs to another tenant", "Share {node}."),
        (
            lambda n: engine in n.allowed_engines,
            "the nodes with {gpu} do not allow {engine}",
            "Allow {engine} on {node}.",
        ),
        (
            lambda n: candidate.gpus_per_replica >= n.min_replica_gpus,
            "the nodes with {gpu} are fenced for replicas of {fence} or more GPUs",
            "Let replicas of {gpus} GPU(s) onto {node}.",
        ),
        (
            lambda n: candidate.sharers == 1 or may_share(n),
            "no node with {gpu} lets several engines share a GPU",
            "Use whole GPUs.",
        ),
        (
            lambda n: fits_shape(n, candidate.gpus_per_replica, candidate.max_nvlink_domain_needed),
            "no NVLink domain or set of whole nodes of {gpu} holds a replica of {gpus} GPUs",
            "Use fewer GPUs per replica, or pipeline parallelism over whole nodes.",
        ),
    ]
    for holds, reason, remedy in rules:
        left = [node for node in nodes if holds(node)]
        if nodes and not left:
            words = {
                "gpu": candidate.gpu,
                "site": workload.site,
                "other": nodes[0].site,
                "node": nodes[0].name,
                "engine": ENGINE_LABEL.get(engine, engine),
                "gpus": candidate.gpus_per_replica,
                "owner": OWNER_LABEL.get(nodes[0].orchestrator, nodes[0].orchestrator),
                "fence": nodes[0].min_replica_gpus,
            }
            return reason.format(**words), remedy.format(**words)
        nodes = left
    return None


def _no_room(problem: Problem, counts: Counts, number: int, own: tuple[Choice, ...], share: float) -> Unplaced:
    """The fleet is full: say what is free, and how little would do."""
    workload = problem.workloads[number]
    free = _free_nodes(problem, counts)
    placed = sum(count for (index, _), count in counts.replicas.items() if problem.choices[index].workload == number)
    chosen = next(
        (
            problem.choices[i]
            for (i, _), n in sorted(counts.replicas.items())
            if n and problem.choices[i].workload == number
        ),
        None,
    )
    choice = chosen or min(own, key=lambda c: (c.sharers > 1, price_of(c, problem.classes) * c.needed, c.index))
    missing = max(1, math.ceil(share * choice.needed - 1e-4))
    gpus_free = sum(free.get(k, (0, 0))[0] for k in choice.classes)
    largest = max((free.get(k, (0, 0))[1] for k in choice.classes), default=0)
    replica = f"{choice.gpus} {choice.candidate.gpu} ({ENGINE_LABEL.get(choice.engine, choice.engine)})"
    if gpus_free >= choice.gpus > largest:
        reason = (
            f"{missing} of {placed + missing} replicas of {replica} find no room: {gpus_free} GPUs are free, "
            f"but at most {largest} of them together in one NVLink domain"
        )
    else:
        reason = f"{missing} of {placed + missing} replicas of {replica} find no room: {gpus_free} such GPUs are free"
    reason += _reserved_words(problem, choice)
    limit = binding_limit(problem, counts, own, share)
    if limit is not None and not (workload.n_plus_1 and missing == 1):
        return Unplaced(workload.name, missing, f"{reason}; {limit.reason}", limit.relaxation)
    return Unplaced(workload.name, missing, reason, _least_relaxation(problem, counts, workload, choice, missing))


def _reserved_words(problem: Problem, choice: Choice) -> str:
    """GPUs that others hold by name, on nodes where the replica might stand; empty where none is."""
    workload = problem.workloads[choice.workload]
    held: dict[str, int] = {}
    for node in problem.request.nodes:
        if node.reserved_for and node.state == "active" and _may(workload, choice, node):
            held[node.reserved_for] = held.get(node.reserved_for, 0) + len(node.busy_gpus)
    if not any(held.values()):
        return ""
    return "; " + ", ".join(f"{count} more are held for {name}" for name, count in sorted(held.items()) if count)


def _least_relaxation(problem: Problem, counts: Counts, workload: PlanWorkload, choice: Choice, missing: int) -> str:
    """The first rule whose lifting alone gives room for all missing replicas, else the GPUs to add."""
    if workload.n_plus_1 and missing == 1:
        return "Drop the N+1 spare, or add " + _gpus(choice, missing) + "."
    usable = problem.request.orchestrators
    lifted = [
        ("Return the nodes in maintenance", lambda w, n: replace(n, state="active") if n.state == "maintenance" else n),
        (
            f"Allow {workload.name} at every site",
            lambda w, n: replace(n, site=w.site) if w.site else n,
        ),
        ("Share the nodes of other tenants", lambda w, n: replace(n, tenant="")),
        (
            "Let smaller replicas onto the fenced nodes",
            lambda w, n: replace(n, min_replica_gpus=1),
        ),
        (
            "Let the plan use the nodes of every orchestrator",
            lambda w, n: replace(n, orchestrator="none") if n.orchestrator not in usable else n,
        ),
        (
            f"Allow {ENGINE_LABEL.get(choice.engine, choice.engine)} on every node",
            lambda w, n: replace(n, allowed_engines=(choice.engine,)),
        ),
    ]
    taken = _used_by_node(problem, counts)
    for sentence, change in lifted:
        room = 0
        for index, node in enumerate(problem.request.nodes):
            changed = change(workload, node)
            if changed.state != "active" or changed.orchestrator not in (*usable, "none"):
                continue
            if not _may(workload, choice, changed):
                continue
            free = max(0, node.gpus - len(node.busy_gpus) - taken.get(index, 0))
            room += free // choice.gpus
        if room >= missing:
            return sentence + "."
    lower = [w.name for w in problem.workloads if w.priority < workload.priority]
    tail = "" if lower else " Or relax its SLO or shed part of the load."
    return f"Add {_gpus(choice, missing)}.{tail}"


def _gpus(choice: Choice, missing: int) -> str:
    return f"{missing * choice.gpus} {choice.candidate.gpu}"


def _may(workload: PlanWorkload, choice: Choice, node: PlanNode) -> bool:
    return may_run(workload, choice.engine, choice.candidate, node)


def _free_nodes(problem: Problem, counts: Counts) -> dict[int, tuple[int, int]]:
    """Free GPUs and the largest free block of each class once the plan stands (largest replicas first, best fit)."""
    found = {}
    for group in problem.classes:
        room = Room(group)
        here = [
            (problem.choices[i].gpus, n)
            for (i, k), n in counts.replicas.items()
            if k == group.index and problem.choices[i].sharers == 1
        ]
        here += [(1, n) for (k, _), n in problem.hosts(counts.replicas).items() if k == group.index]
        for gpus, count in sorted(here, reverse=True):
            for _ in range(count):
                room.take(gpus)
        left = [len(free) for free in room.free_bins().values()]
        found[group.index] = (sum(left), max(left, default=0))
    return found


def _used_by_node(problem: Problem, counts: Counts) -> dict[int, int]:
    node_of = {node.name: i for i, node in enumerate(problem.request.nodes)}
    used: dict[int, set[int]] = {}
    for item in assign(problem, counts).placements:
        if item.node in node_of:
            used.setdefault(node_of[item.node], set()).update(item.gpu_indexes)
    return {node: len(indexes) for node, indexes in used.items()}

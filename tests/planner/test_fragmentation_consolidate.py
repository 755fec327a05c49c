"""Consolidation: fewer stranded GPUs by moves that keep every rule."""

from __future__ import annotations

from fleet_samples import H100, candidate, node, workload

from planner.fragmentation import WorkloadShape
from planner.fragmentation.consolidate import consolidate
from planner.plan_types import Placement

EIGHT = WorkloadShape("eight", {H100: 8}, replicas=1)
ONE = WorkloadShape("one", {H100: 1}, replicas=1)
MADE = candidate("one", 0.5)


def placed(replica: int, where: str, *indexes: int) -> Placement:
    return Placement("one", MADE.id, replica, where, indexes)


def test_two_half_empty_nodes_become_one_whole() -> None:
    nodes = [node("a"), node("b")]
    current = (placed(0, "a", 0), placed(1, "a", 1), placed(2, "b", 5))
    found = consolidate(nodes, current, (MADE,), (workload("one"),), (EIGHT, ONE))
    assert [(m.replica, m.from_node, m.to_node, m.to_gpu_indexes) for m in found.moves] == [(2, "b", "a", (2,))]
    assert found.moves[0].minutes == 2.5
    assert found.before.stranded_gpus == (6 + 7) / 2
    assert found.after.stranded_gpus == 5 / 2
    assert found.after.free_gpus == found.before.free_gpus


def test_nothing_moves_when_nothing_is_gained() -> None:
    nodes = [node("a"), node("b")]
    found = consolidate(nodes, (placed(0, "a", 0),), (MADE,), (workload("one"),), (EIGHT, ONE))
    assert found.moves == ()
    assert found.before == found.after


def test_rules_of_nodes_and_workloads_hold() -> None:
    for change in (
        {"tenant": "bank"},
        {"site": "west"},
        {"allowed_engines": ("tensorrt_llm",)},
        {"state": "maintenance"},
    ):
        nodes = [node("a", **change), node("b")]
        current = (placed(0, "a", 0), placed(1, "a", 1), placed(2, "b", 5))
        found = consolidate(nodes, current, (MADE,), (workload("one", site="east"),), (EIGHT, ONE))
        assert all(move.to_node != "a" for move in found.moves)


def test_move_limit_and_unknown_candidates() -> None:
    nodes = [node("a"), node("b")]
    current = (placed(0, "a", 0), placed(1, "a", 1), placed(2, "b", 5))
    assert consolidate(nodes, current, (MADE,), (), (EIGHT,), max_moves=0).moves == ()
    assert consolidate(nodes, current, (), (), (EIGHT,)).moves == ()

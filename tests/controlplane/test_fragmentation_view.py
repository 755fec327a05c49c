"""Fragmentation on a plan's page: every state, both pictures, the moves and what they disturb."""

from __future__ import annotations

from dataclasses import replace

from django.template.loader import render_to_string

from controlplane.dashboard.fragmentview import fragmentation
from planner.jsonio import to_json
from planner.plan_types import Consolidation, Move, StrandedReport
from tests.controlplane import plan_answer

BEFORE = StrandedReport(10, 4.5, {"a": 3.0, "b": 1.5}, 4, {"0": 4, "1": 6}, {"1g.10gb": 3}, 356.0, 79.0)
AFTER = StrandedReport(6, 1.0, {"b": 1.0}, 6, {"4": 6}, {}, 79.0)
MOVES = tuple(Move("chat", "chat/x", i, "a", "b", (i, i + 1), 2.5) for i in range(2))


def test_all_states_with_moves_and_their_disturbance() -> None:
    answer = replace(
        plan_answer.plan_result(),
        stranded_before=BEFORE,
        stranded_after=AFTER,
        consolidation=Consolidation(MOVES, BEFORE, AFTER),
    )
    found = fragmentation(to_json(answer))
    assert [state.title for state in found.states] == ["Today", "This plan", "Today, tidied up"]
    assert found.nodes[0] == ("a", (3.0, 0.0, 0.0))
    assert (found.minutes, round(found.surge_gpu_hours, 4)) == (5.0, round(2 * 2 * 2.5 / 60, 4))
    assert [column.name for column in found.shapes.columns] == ["State", "none fits", "up to 1 GPU", "up to 4 GPUs"]
    assert found.shapes.rows[0] == ("Today", 4, 6, 0)
    assert found.by_node is not None
    assert found.by_node.rows[0] == ("a", 3.0, 0.0, 0.0)
    text = render_to_string("components/fragmentation.html", {"fragmentation": found})
    for words in ("Today, tidied up", "3 × 1g.10gb", "356", "5 minutes one after the other", "0.167 GPU-hours"):
        assert words in text


def test_plan_without_moves_or_stranded_gpus_has_no_empty_pictures() -> None:
    empty = StrandedReport(0, 0.0)
    answer = replace(plan_answer.plan_result(), stranded_before=empty, stranded_after=empty, consolidation=None)
    found = fragmentation(to_json(answer))
    assert found.by_node is None
    assert not found.tidy
    assert "Moves" not in render_to_string("components/fragmentation.html", {"fragmentation": found})

"""Field cases O: what people who place engines reported, and what a plan answers."""

from __future__ import annotations

import pytest
from fleet_samples import L40S, candidate, node, request, workload
from placement_samples import solved, used_gpus

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, support
from planner.evidence import Evidence
from planner.export import TARGETS
from planner.placement.candidates import candidates
from planner.placement.fleet import fits_shape
from planner.plan import make_plan
from planner.plan_types import Candidate


def test_o2_no_data_is_a_state_and_never_the_least_choice() -> None:
    unknown = Candidate("w/vllm/L40S/tp1pp1ep1dp1/bf16", "w", L40S, None, "no_data", ("nothing was measured",))
    result = solved([node("a"), node("l", gpu=L40S)], [workload("w")], [unknown, candidate("w", 0.5)])
    assert {p.node for p in result.placements} == {"a"}
    alone = solved([node("l", gpu=L40S)], [workload("w")], [unknown])
    assert alone.status == "infeasible"
    assert "nothing was measured" in alone.unplaced[0].reason


def test_o3_surplus_stays_out_by_kind_of_gpu() -> None:
    nodes = [node("a", gpus=4), node("l", gpu=L40S, gpus=2)]
    result = solved(nodes, [workload("w"), workload("v")], [candidate("w", 0.1), candidate("v", 0.25, gpu=L40S)])
    assert used_gpus(result) == 6
    assert {u.workload: u.replicas for u in result.unplaced} == {"w": 6, "v": 2}


def test_o4_two_gpus_on_two_nodes_are_no_pair() -> None:
    nodes = [node("a", gpus=2, busy_gpus=(0,)), node("b", gpus=2, busy_gpus=(1,))]
    result = solved(nodes, [workload("w")], [candidate("w", 1.0, gpus=2)])
    assert "at most 1 of them together" in result.unplaced[0].reason


@pytest.mark.parametrize(("gpus", "pp"), [(12, 1), (12, 3), (6, 1)])
def test_o7_no_engine_on_part_of_a_second_node(gpus: int, pp: int) -> None:
    nodes = [node("a", gpus=4 if gpus == 6 else 8), node("b", gpus=4 if gpus == 6 else 8)]
    assert solved(nodes, [workload("w")], [candidate("w", 1.0, gpus=gpus, pp=pp)]).status == "infeasible"


def test_o9_eight_gpus_of_596_gib_are_too_few_and_how_many_it_takes_is_said() -> None:
    """GLM-5.2-FP8 (some 850 GiB as loaded) on nodes of 596 GiB: no engine within one, an instance over two."""
    nodes = [node(f"n{i}", gpu_memory_gib=596 / 8) for i in range(4)]
    asked = request(nodes, [workload("w", model="zai-org/GLM-5.2-FP8")])
    found = candidates(asked.workloads[0], asked)
    within = [c for c in found if c.gpus_per_replica <= 8]
    assert within
    assert all(c.status == "infeasible" for c in within)
    assert any("weights alone" in reason for c in within for reason in c.reasons)
    plan = make_plan(asked)
    assert {
        (p.workload, len({q.node for q in plan.placements if q.replica == p.replica})) for p in plan.placements
    } == {("w", 2)}
    alone = make_plan(request(nodes[:1], list(asked.workloads)))
    assert alone.status == "infeasible"
    assert "replicas of 16" in alone.unplaced[0].reason
    assert "8 such GPUs are free" in alone.unplaced[0].reason


def test_o9_model_larger_than_a_node_is_said_to_need_several() -> None:
    asked = request([node(f"n{i}") for i in range(4)], [workload("w", model="deepseek-ai/DeepSeek-R1")])
    found = candidates(asked.workloads[0], asked)
    one = [c for c in found if c.gpus_per_replica <= 8 and c.settings is not None]
    assert one
    assert all(c.status != "ok" for c in one)
    several = [c for c in found if c.status == "ok"]
    assert several
    assert all(c.gpus_per_replica > 8 for c in several)


def test_o10_a_node_has_one_kind_of_card_and_the_smallest_of_a_pool_binds() -> None:
    nodes = [node("a", gpu_memory_gib=79.0), node("b", gpu_memory_gib=30.0)]
    asked = request(nodes, [workload("w", model="Qwen/Qwen3-32B")])
    found = candidates(asked.workloads[0], asked)
    single = [c for c in found if c.gpus_per_replica == 1]
    assert not any(c.status == "ok" for c in single)


def test_o10_cards_of_32_and_20_gb_are_no_group_of_three() -> None:
    """32 + 20 + 20 GB: three ranks fail the head rule; of two the smaller card binds, and 12 GB would lie idle."""
    nodes = [node("a", gpus=1, gpu_memory_gib=31.5), node("b", gpus=2, gpu_memory_gib=19.5)]
    asked = request(nodes, [workload("w", model="Qwen/Qwen2.5-14B-Instruct")])
    found = {c.gpus_per_replica: c for c in candidates(asked.workloads[0], asked) if c.settings is not None}
    assert 3 not in found
    two = [c for c in candidates(asked.workloads[0], asked) if c.gpus_per_replica == 2 and c.status == "ok"]
    assert two
    assert all(c.memory is not None and c.memory.total_gib == 19.5 for c in two)
    plan = make_plan(asked)
    assert {p.node for p in plan.placements} <= {"b"}


@pytest.mark.parametrize("tp", [3, 7])
def test_o11_tensor_parallel_divides_the_heads(tp: int) -> None:
    answer = support(
        get_model("meta-llama/Llama-3.1-70B-Instruct"),
        get_gpu("A100-SXM4-80GB"),
        EngineSettings(EngineName.VLLM, tp=tp),
    )
    assert not answer.ok
    assert str(tp) in " ".join(answer.reasons)
    assert not fits_shape(node("a", gpus=2), tp, tp)


def test_o13_every_figure_of_a_plan_is_tagged_and_the_plan_names_its_planner() -> None:
    plan = make_plan(request([node("a", gpus=2)], [workload("w", model="Qwen/Qwen3-0.6B")]))
    assert plan.model_version
    assert all(isinstance(c.evidence, Evidence) for c in plan.candidates if c.status == "ok")
    assert all(c.replica_rate_80 is not None for c in plan.candidates if c.status == "ok")


def test_o20_existing_machines_and_slurm_are_targets() -> None:
    assert {"commands", "systemd", "compose", "slurm", "kubernetes", "owners"} <= set(TARGETS)

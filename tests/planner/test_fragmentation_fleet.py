"""Stranded GPUs: the FGD expectation over the workload mix."""

from __future__ import annotations

import pytest
from fleet_samples import H100, L40S, node, request, workload

from planner.catalog import get_gpu
from planner.fragmentation import WorkloadShape, stranded
from planner.placement.devices import with_slices
from planner.plan_types import GpuSlice, Placement

ONE = WorkloadShape("one", {H100: 1}, replicas=3)
FOUR = WorkloadShape("four", {H100: 4}, replicas=1)


def test_free_gpus_that_a_shape_cannot_take_are_stranded_in_proportion_to_it() -> None:
    nodes = [node("a", busy_gpus=(0, 1, 2, 3, 4)), node("b")]
    report = stranded(nodes, (), (ONE, FOUR))
    assert report.free_gpus == 11
    assert report.by_node == {"a": pytest.approx(3 * 1 / 4)}
    assert report.stranded_gpus == pytest.approx(0.75)
    assert report.largest_free_block == 8
    assert report.free_by_shape == {"1": 3, "4": 8}


def test_two_single_gpus_on_two_nodes_are_stranded_for_a_pair() -> None:
    nodes = [node("a", gpus=2, busy_gpus=(0,)), node("b", gpus=2, busy_gpus=(0,))]
    pair = WorkloadShape("pair", {H100: 2}, replicas=1)
    report = stranded(nodes, (), (pair,))
    assert report.stranded_gpus == 2.0
    assert report.largest_free_block == 1
    assert report.free_by_shape == {"0": 2}


def test_nvlink_domains_and_placements_count() -> None:
    nodes = [node("a", nvlink_domain=4)]
    eight = WorkloadShape("eight", {H100: 8}, replicas=1)
    assert stranded(nodes, (), (eight,)).stranded_gpus == 8.0
    placed = (Placement("one", "one/x", 0, "a", (0, 1)),)
    report = stranded(nodes, placed, (FOUR,))
    assert report.free_gpus == 6
    assert report.stranded_gpus == 2.0


def test_a_gpu_type_that_no_workload_uses_is_stranded_whole() -> None:
    assert stranded([node("l", gpu=L40S, gpus=4)], (), (ONE,)).stranded_gpus == 4.0


def test_other_tenants_sites_and_maintenance() -> None:
    nodes = [node("t", tenant="bank"), node("m", state="maintenance"), node("w", site="west")]
    shape = WorkloadShape("one", {H100: 1}, replicas=1, site="west")
    report = stranded(nodes, (), (shape,))
    assert report.free_gpus == 16
    assert report.by_node == {"t": 8.0}


def test_without_a_mix_nothing_is_called_stranded() -> None:
    assert stranded([node("a")], (), ()).stranded_gpus == 0.0


def test_slices_count_by_their_part_under_their_node_and_fences_strand() -> None:
    slices = tuple(GpuSlice(0, "1g.10gb") for _ in range(7))
    asked = request([node("a", gpus=2, slices=slices), node("b", gpus=4, min_replica_gpus=4)], [workload("one")])
    report = stranded(with_slices(asked).nodes, (), (ONE,))
    assert report.free_slices == {"1g.10gb": 7}
    assert report.free_gpus == 5
    assert report.by_node == {"a": pytest.approx(1.0), "b": 4.0}
    sliced = WorkloadShape("small", {f"{H100}-MIG-1g.10gb": 1, H100: 1}, replicas=1)
    assert stranded(with_slices(asked).nodes, (), (sliced,)).by_node == {"b": 4.0}


def test_memory_of_stranded_and_half_used_gpus_is_told() -> None:
    shared = (Placement("one", "one/x", 0, "a", (0,), 4), Placement("two", "two/x", 0, "a", (0,), 4, 1))
    report = stranded([node("a", gpus=2)], shared, (FOUR,))
    assert report.stranded_gpus == 1.0
    assert report.memory_stranded_gib == pytest.approx(get_gpu(H100).total_gib)
    assert report.memory_unused_gib == pytest.approx(get_gpu(H100).total_gib / 2)

"""Slices, shared GPUs, fences and owners: placed as their rules say, and checked from the plan alone."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from fleet_samples import H100, candidate, node, request, settings, workload
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from planner.catalog import get_gpu, get_model, slice_name
from planner.errors import InputError
from planner.placement.candidates import candidates
from planner.placement.check import check
from planner.placement.devices import restored, usd_per_hour, with_slices
from planner.placement.disaggregation import deployed
from planner.placement.solver import solve
from planner.plan_types import GpuSlice, Placement, PlanRequest, PlanResult, StrandedReport
from planner.recommend.curves import candidate_curve
from planner.serving.types import Lengths, Load, SloTarget

SEVENTHS = tuple(GpuSlice(0, "1g.10gb", f"MIG-{i}") for i in range(7))
SLICE = slice_name(H100, "1g.10gb")


def shared(name: str, sharers: int, share: float = 1.0, **other):
    whole = candidate(name, share, suffix=f"s{sharers}", sharers=sharers, **other)
    return replace(whole, settings=replace(settings(), gpu_memory_utilization=int(92 / sharers) / 100))


def planned(nodes, workloads, candidates, **other) -> tuple[PlanRequest, PlanResult]:
    """Solve on slices as ``make_plan`` does and wrap for the checker."""
    asked = request(nodes, workloads, **other)
    result = solve(with_slices(asked), tuple(candidates))
    placements = restored(result.placements, asked)
    by_name = {n.name: n for n in (*asked.nodes, *result.purchased_nodes)}
    usd = sum((usd_per_hour(item, by_name[item.node]) for item in placements), Decimal(0))
    empty = StrandedReport(0, 0.0)
    plan = PlanResult(
        "t", "test", result.status, result.objective_usd_per_hour, result.bound_usd_per_hour, result.gap, 0.0,
        tuple(candidates), (), placements, result.unplaced, usd, Decimal(0), empty, empty,
        moves=result.moves, purchased_nodes=result.purchased_nodes,
    )  # fmt: skip
    return asked, plan


def kept(asked: PlanRequest, plan: PlanResult) -> PlanResult:
    assert check(asked, plan) == []
    return plan


def test_engines_take_slices_at_their_part_of_the_price() -> None:
    nodes = [node("a", gpus=2, usd="7.0000", slices=SEVENTHS)]
    names = [f"w{i}" for i in range(3)]
    made = [candidate(name, 1.0, gpu=SLICE) for name in names] + [candidate(name, 1.0) for name in names]
    plan = kept(*planned(nodes, [workload(name) for name in names], made))
    assert plan.usd_per_hour == Decimal("3.0000")
    assert {(p.node, p.gpu_indexes, p.slice_profile) for p in plan.placements} == {("a", (0,), "1g.10gb")}
    assert len({p.slice_uuid for p in plan.placements}) == 3


def test_partitioned_gpu_is_no_whole_gpu_and_held_slices_are_left_alone() -> None:
    held = tuple(replace(item, busy=i > 0) for i, item in enumerate(SEVENTHS))
    nodes = [node("a", gpus=1, slices=held)]
    plan = kept(*planned(nodes, [workload("w")], [candidate("w", 1.0)]))
    assert plan.status == "infeasible"
    made = [candidate("w", 0.5, gpu=SLICE)]
    plan = kept(*planned(nodes, [workload("w")], made))
    assert [p.slice_index for p in plan.placements] == [0]
    assert plan.unplaced[0].replicas == 1


def test_no_engine_spans_slices() -> None:
    plan = kept(*planned([node("a", slices=SEVENTHS)], [workload("w")], [candidate("w", 1.0, gpu=SLICE, gpus=2)]))
    assert plan.status == "infeasible"


def test_what_runs_on_a_slice_stays_there() -> None:
    nodes = [node("a", gpus=2, slices=SEVENTHS)]
    made = [candidate("w", 0.5, gpu=SLICE)]
    here = Placement("w", made[0].id, 0, "a", (0,), slice_profile="1g.10gb", slice_index=4, slice_uuid="MIG-4")
    plan = kept(*planned(nodes, [workload("w")], made, current=(here,)))
    assert plan.moves == 0
    assert here in plan.placements


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ((GpuSlice(0, "5g.10gb"),), "no such MIG profile"),
        ((GpuSlice(8, "1g.10gb"),), "GPUs 0 to 7"),
        (tuple(GpuSlice(0, "4g.40gb") for _ in range(2)), "more compute slices"),
    ],
)
def test_slices_that_cannot_be_are_refused_with_their_field(slices, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        with_slices(request([node("a", slices=slices)], [workload("w")]))
    assert caught.value.field == "nodes[0].slices"


def test_tiny_workloads_share_a_gpu_where_that_saves_one() -> None:
    names = [f"w{i}" for i in range(5)]
    made = [candidate(name, 4.0) for name in names] + [shared(name, 4) for name in names]
    plan = kept(*planned([node("a")], [workload(name) for name in names], made))
    assert len({p.gpu_indexes for p in plan.placements}) == 2
    alone = kept(*planned([node("a")], [workload("w0")], [made[0], made[5]]))
    assert alone.placements[0].sharers == 1


def test_a_spare_never_shares_the_gpu_of_its_twin() -> None:
    names = [f"w{i}" for i in range(4)]
    asked = [workload(name, n_plus_1=True) for name in names]
    plan = kept(*planned([node("a")], asked, [shared(name, 4) for name in names]))
    assert len({p.gpu_indexes for p in plan.placements}) == 2
    assert not plan.unplaced


def test_tenants_and_orchestrators_do_not_share() -> None:
    asked = [workload("w0", tenant="bank"), workload("w1", tenant="shop")]
    plan = kept(*planned([node("a")], asked, [shared("w0", 2), shared("w1", 2)]))
    assert len({p.gpu_indexes for p in plan.placements}) == 2
    nodes = [node("k", orchestrator="kubernetes")]
    plan = kept(*planned(nodes, [workload("w0"), workload("w1")], [shared("w0", 2), shared("w1", 2)]))
    assert plan.status == "infeasible"
    assert "lets several engines share a GPU" in plan.unplaced[0].reason


def test_shares_that_run_today_stay() -> None:
    made = [shared("w0", 2), shared("w1", 2)]
    current = tuple(Placement(f"w{i}", made[i].id, 0, "a", (5,), 2, i) for i in range(2))
    plan = kept(*planned([node("a")], [workload("w0"), workload("w1")], made, current=current))
    assert set(plan.placements) == set(current)
    assert plan.moves == 0


def test_checker_finds_what_is_wrong_with_devices() -> None:
    nodes = [node("a", gpus=2, slices=SEVENTHS[:2]), node("b", gpus=2, min_replica_gpus=2)]
    made = (candidate("w", 1.0, gpu=SLICE), shared("v", 2), candidate("u", 1.0))
    asked, plan = planned(nodes, [workload("w"), workload("v"), workload("u")], made)
    kept(asked, plan)
    on_slice = {"slice_profile": "1g.10gb", "slice_index": 1}
    wrong = (
        Placement("w", made[0].id, 0, "a", (0,), **on_slice),
        Placement("w", made[0].id, 1, "a", (0,), **on_slice),
        Placement("w", made[0].id, 2, "a", (1,), slice_profile="1g.10gb", slice_index=5),
        Placement("v", made[1].id, 0, "a", (1,), 2),
        Placement("v", made[1].id, 1, "a", (1,), 2),
        Placement("u", made[2].id, 0, "a", (1,)),
        Placement("u", made[2].id, 1, "a", (0,)),
        Placement("u", made[2].id, 2, "b", (0,)),
    )
    found = " | ".join(check(asked, replace(plan, placements=wrong)))
    for words in (
        "slice 1 of a is used 2 times",
        "a has no slice 5",
        "two replicas of one workload share it",
        "shares a GPU of a that another has whole",
        "GPU 0 of a is cut into slices",
        "b is fenced for replicas of 2 or more GPUs",
    ):
        assert words in found


def test_fence_keeps_small_replicas_off_large_nodes() -> None:
    """Case O6: small jobs starve the class of 8 GPUs; the fence keeps it whole, and says so."""
    nodes = [node("big", min_replica_gpus=8), node("small", gpus=2)]
    made = [candidate("one", 0.25), candidate("eight", 1.0, gpus=8)]
    plan = kept(*planned(nodes, [workload("one"), workload("eight")], made))
    assert {p.node for p in plan.placements if p.workload == "one"} == {"small"}
    assert {p.node for p in plan.placements if p.workload == "eight"} == {"big"}
    assert plan.unplaced[0].replicas == 2
    plan = kept(*planned(nodes, [workload("one")], made[:1]))
    assert plan.unplaced[0].relaxation == "Let smaller replicas onto the fenced nodes."
    plan = kept(*planned(nodes[:1], [workload("one")], made[:1]))
    assert "fenced for replicas of 8 or more GPUs" in plan.unplaced[0].reason


def test_nodes_of_an_orchestrator_that_may_not_be_used_are_left_out_and_named() -> None:
    nodes = [node("k", orchestrator="kubernetes", cluster="prod")]
    plan = kept(*planned(nodes, [workload("w")], [candidate("w", 1.0)], orchestrators=("none", "slurm")))
    assert plan.status == "infeasible"
    assert "belong to Kubernetes, which this plan may not use" in plan.unplaced[0].reason
    nodes.append(node("bare", gpus=1))
    plan = kept(*planned(nodes, [workload("w")], [candidate("w", 0.5)], orchestrators=("none",)))
    assert {p.node for p in plan.placements} == {"bare"}
    assert plan.unplaced[0].relaxation == "Let the plan use the nodes of every orchestrator."


def test_replica_over_nodes_stays_in_one_cluster() -> None:
    nodes = [node(f"n{i}", orchestrator="slurm", cluster=cluster) for i, cluster in enumerate(("x", "y", "y"))]
    plan = kept(*planned(nodes, [workload("w")], [candidate("w", 1.0, gpus=16, pp=2)]))
    assert {p.node for p in plan.placements} == {"n1", "n2"}


def test_reservations_are_named_when_there_is_no_room() -> None:
    nodes = [node("a", busy_gpus=(0, 1, 2, 3, 4, 5), reserved_for="training")]
    plan = kept(*planned(nodes, [workload("w")], [candidate("w", 0.25)]))
    assert "6 more are held for training" in plan.unplaced[0].reason


fleets = st.lists(
    st.tuples(
        st.integers(1, 3),  # GPUs
        st.integers(0, 7),  # slices on GPU 0
        st.sampled_from(["none", "none", "kubernetes"]),
        st.sampled_from([1, 1, 2]),  # fence
        st.booleans(),  # a GPU held by others
    ),
    min_size=1,
    max_size=3,
)
demands = st.lists(
    st.tuples(
        st.sets(st.sampled_from(["whole", "pair", "slice", "half", "quarter"]), min_size=1),
        st.booleans(),
        st.sampled_from(["", "bank"]),
        st.sampled_from([0.4, 1.0]),
    ),
    min_size=1,
    max_size=5,
)


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets, demands)
def test_every_plan_with_devices_passes_the_checker_and_moves_nothing_when_planned_again(fleet, wanted) -> None:
    nodes = [
        node(
            f"n{i}",
            gpus=gpus,
            slices=SEVENTHS[:count],
            orchestrator=owner,
            min_replica_gpus=fence,
            busy_gpus=(gpus - 1,) if held and gpus > 1 else (),
        )
        for i, (gpus, count, owner, fence, held) in enumerate(fleet)
    ]
    asked, made = [], []
    for i, (kinds, spare, tenant, share) in enumerate(wanted):
        name = f"w{i}"
        asked.append(workload(name, n_plus_1=spare, tenant=tenant))
        ways = {
            "whole": candidate(name, 3 * share),
            "pair": candidate(name, 2 * share, gpus=2),
            "slice": candidate(name, share, gpu=SLICE),
            "half": shared(name, 2, max(share, 1.0)),
            "quarter": shared(name, 4, max(share, 1.0)),
        }
        made += [ways[kind] for kind in sorted(kinds)]
    first, plan = planned(nodes, asked, made, time_limit_s=5.0)
    kept(first, plan)
    assert plan.bound_usd_per_hour <= plan.objective_usd_per_hour
    again, second = planned(nodes, asked, made, time_limit_s=5.0, current=plan.placements)
    kept(again, second)
    assert second.objective_usd_per_hour <= plan.objective_usd_per_hour + Decimal("0.0002")


def test_what_is_drawn_of_a_shared_engine_is_what_was_sized() -> None:
    """Curves and flips rebuild a candidate: on its share of the GPU, not as if it had the whole."""
    small = {
        "model": "Qwen/Qwen3-0.6B",
        "load": Load("open", rate_per_s=0.5),
        "input_tokens": Lengths("fixed", value=200),
        "output_tokens": Lengths("fixed", value=50),
        "slo": (SloTarget("ttft", "p90", 2000.0),),
    }
    asked = request([node("a")], [workload("w", **small), workload("v", **small)])
    own = [c for c in candidates(asked.workloads[0], asked) if c.status == "ok" and c.gpus_per_replica == 1]
    shared_one = next(c for c in own if c.sharers > 1)
    made = deployed(shared_one, get_model(small["model"]), get_gpu(H100), asked)
    alone = deployed(replace(shared_one, sharers=1), get_model(small["model"]), get_gpu(H100), asked)
    assert made.memory == shared_one.memory
    assert made.step.decode_ms(64, 1000.0) > 1.5 * alone.step.decode_ms(64, 1000.0)
    curve = candidate_curve(shared_one, asked.workloads[0], asked)
    at_knee = next(point for point in curve.points if point.rate_per_s == pytest.approx(curve.knee))
    assert at_knee.performance.ttft_ms.mean >= made.step.mixed_ms(200, 0, 0.0)

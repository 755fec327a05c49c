"""Whatever the fleet, a plan keeps every rule, and is no worse than the greedy plan that starts it."""

from __future__ import annotations

from dataclasses import replace

from fleet_samples import H100, L40S, candidate, node, request, workload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placement_samples import as_plan

from planner.placement.check import check
from planner.placement.greedy import greedy
from planner.placement.model import unserved_shares
from planner.placement.problem import build
from planner.placement.solver import solve

nodes = st.builds(
    lambda i, gpu, gpus, halves, busy, site, tenant, rack, state, engines: node(
        f"n{i}",
        gpu=gpu,
        gpus=gpus,
        usd="1.0000" if gpu == L40S else "2.0000",
        nvlink_domain=max(1, gpus // 2) if halves else gpus,
        busy_gpus=tuple(range(min(busy, gpus))),
        site=site,
        tenant=tenant,
        failure_domain=rack,
        state=state,
        allowed_engines=engines,
    ),
    st.integers(0, 99),
    st.sampled_from([H100, L40S]),
    st.sampled_from([1, 2, 4, 6, 8]),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["east", "west"]),
    st.sampled_from(["", "", "bank"]),
    st.sampled_from(["r1", "r2", "r3"]),
    st.sampled_from(["active", "active", "active", "maintenance", "planned"]),
    st.sampled_from([("vllm", "tensorrt_llm"), ("vllm",)]),
)

shapes = st.tuples(
    st.sampled_from([0.05, 0.2, 0.34, 0.6, 1.3]),
    st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (8, 2), (16, 2)]),
    st.sampled_from([H100, L40S]),
    st.sampled_from(["vllm", "tensorrt_llm"]),
)

works = st.tuples(
    st.lists(shapes, min_size=1, max_size=4, unique_by=lambda s: (s[1], s[2], s[3])),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "east"]),
    st.sampled_from(["", "bank"]),
    st.integers(1, 3),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(nodes, min_size=1, max_size=6, unique_by=lambda n: n.name),
    st.lists(works, min_size=1, max_size=4),
    st.sampled_from(["owned", "owned_plus_purchase", "purchase"]),
)
def test_every_plan_passes_the_checker(fleet, asked, mode) -> None:
    items, made = [], []
    for i, (options, spare, spread, site, tenant, priority) in enumerate(asked):
        items.append(workload(f"w{i}", n_plus_1=spare, spread=spread, site=site, tenant=tenant, priority=priority))
        made += [
            candidate(f"w{i}", share, gpus=gpus, pp=pp, gpu=gpu, engine=engine)
            for share, (gpus, pp), gpu, engine in options
        ]
    wanted = request(fleet, items, mode=mode, time_limit_s=5.0)
    result = solve(wanted, tuple(made))
    plan = as_plan(wanted, result, made)
    assert check(wanted, plan) == []
    assert result.bound_usd_per_hour <= result.objective_usd_per_hour
    problem = build(wanted, tuple(made))
    start = greedy(problem)
    if not start.short and mode != "owned_plus_purchase":
        assert not result.unplaced
        assert float(result.objective_usd_per_hour) <= start.usd_per_hour + 1e-3
        complete = [rule for rule in result.baselines if not rule.unplaced_replicas]
        assert all(result.objective_usd_per_hour <= rule.usd_per_hour for rule in complete)
    shares = unserved_shares(problem, start.counts.replicas)
    assert all(0 <= share <= 1 for share in shares.values())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(works, min_size=1, max_size=3), st.integers(2, 5))
def test_a_plan_that_is_planned_again_moves_nothing(asked, count) -> None:
    fleet = [node(f"n{i}", gpu=(H100, L40S)[i % 2]) for i in range(count)]
    items, made = [], []
    for i, (options, spare, *_, priority) in enumerate(asked):
        items.append(workload(f"w{i}", n_plus_1=spare, priority=priority))
        made += [
            candidate(f"w{i}", share, gpus=gpus, pp=pp, gpu=gpu, engine=engine)
            for share, (gpus, pp), gpu, engine in options
        ]
    wanted = request(fleet, items, time_limit_s=5.0)
    first = solve(wanted, tuple(made))
    again = solve(replace(wanted, current=first.placements), tuple(made))
    assert again.moves == 0
    assert set(again.placements) >= set(first.placements)

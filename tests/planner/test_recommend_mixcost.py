"""What mixes of candidates cost: whole replicas, people of each engine, savings with their bands."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from fleet_samples import H100, L40S, candidate, node, request, workload
from hypothesis import given
from hypothesis import strategies as st

from planner.economics.types import CostBreakdown
from planner.evidence import Interval
from planner.plan_types import Candidate
from planner.recommend.costing import Change
from planner.recommend.mixcost import (
    Unit,
    adapted,
    after_loss,
    alone_usd,
    best_pair,
    cheapest,
    mix_usd,
    month_usd,
    saving_of,
    unit_of,
)  # fmt: skip
from planner.recommend.mixflips import flips_against
from planner.serving.types import Load


def priced(
    share: float,
    usd: float,
    *,
    gpu: str = H100,
    engine: str = "vllm",
    people: str = "0",
    replicas: int = 1,
    spread: float = 0.0,
) -> Candidate:
    """A candidate of which one replica costs ``usd`` a month beside ``people`` of its engine."""
    gpus = Decimal(str(usd)) * replicas
    parts = (("GPUs, carried load", gpus), ("people", Decimal(people)))
    bill = sum(amount for _, amount in parts)
    cost = CostBreakdown(bill, parts, None, None, None, None, Decimal(730))
    band = Interval(10 * share, 10 * share * (1 - spread), 10 * share * (1 + spread))
    made = candidate("w", share, gpu=gpu, engine=engine, cost=cost, replicas=replicas, replica_rate_80=band)
    return replace(made, replica_rate_per_s=10 * share)


def unit(share: float, usd: float, **other) -> Unit:
    return unit_of(priced(share, usd, **other))


units = st.builds(unit, st.floats(0.02, 0.9), st.floats(1.0, 50.0), gpu=st.sampled_from((H100, L40S)))


def test_a_replica_is_priced_by_the_bill_of_its_candidate() -> None:
    found = unit(0.3, 100.0, people="40", replicas=4)
    assert (found.gpu_usd, found.other_usd, found.people_usd) == (100.0, 0.0, 40.0)
    assert month_usd((found,), (3,)) == 340.0
    assert month_usd((found,), (3,), Change(gpu_price_factor=2.0, gpu=H100)) == 640.0
    assert month_usd((found,), (3,), Change(gpu_price_factor=2.0, gpu=L40S)) == 340.0


def test_two_engines_pay_the_people_of_both() -> None:
    first = unit(0.5, 10.0, people="7")
    assert month_usd((first, unit(0.5, 10.0, engine="tensorrt_llm", people="5")), (1, 1)) == 32.0
    assert month_usd((first, unit(0.5, 10.0, gpu=L40S, people="7")), (1, 1)) == 27.0


@given(units, units, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.floats(0.2, 5.0))
def test_adapted_replicas_serve_the_changed_demand_with_none_to_spare(first, second, a, b, spare, load) -> None:
    pair, change = (first, second), Change(load_factor=load)
    found = adapted(pair, (a, b), spare, change)
    shares = [item.share / load for item in pair]

    def left(counts) -> float:
        able = sum(s * n for s, n in zip(shares, counts, strict=True))
        return (after_loss(shares, counts) if spare else able) - 1

    assert min(found) >= 1
    assert left(found) > -1e-6
    for i in range(2):
        fewer = [n - (j == i) for j, n in enumerate(found)]
        assert fewer[i] == 0 or left(fewer) < 1e-6


@given(units, st.booleans(), st.floats(0.2, 5.0))
def test_a_mix_of_one_costs_what_that_one_costs(only, spare, load) -> None:
    change = Change(load_factor=load)
    assert mix_usd((only,), (1,), spare, change) == pytest.approx(alone_usd(only, spare, change))


@given(st.lists(units, min_size=1, max_size=3), st.lists(units, min_size=1, max_size=3), st.booleans())
def test_the_best_pair_is_the_cheapest_that_serves_all(first, second, spare) -> None:
    pair, counts = best_pair(first, second, spare)
    shares = [item.share for item in pair]
    able = after_loss(shares, counts) if spare else sum(s * n for s, n in zip(shares, counts, strict=True))
    assert able >= 1 - 1e-6
    for one in first:
        for other in second:
            balanced = adapted((one, other), (1, 1), spare, Change())
            assert month_usd(pair, counts) <= month_usd((one, other), balanced) + 1e-6
    assert best_pair(first, [], spare) is None


def test_saving_holds_its_value_and_shares_the_error_of_one_engine() -> None:
    ours, theirs = unit(0.010, 10.0, spread=0.3), unit(0.010, 10.0, gpu=L40S, spread=0.3)
    other = unit(0.008, 10.0, engine="tensorrt_llm", gpu=L40S, spread=0.1)
    same = saving_of(((ours,), (100,)), ((ours,), (100,)), False)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    hybrid = saving_of(((ours, other), (60, 50)), ((theirs,), (100,)), False)
    assert hybrid.low < hybrid.value < hybrid.high
    assert hybrid.value == pytest.approx(1 - 110 / 100)
    surer = saving_of(((ours, other), (60, 50)), ((ours,), (100,)), False)
    assert surer.high - surer.low < hybrid.high - hybrid.low


def test_flips_name_the_load_and_the_price_from_which_one_engine_alone_is_cheaper() -> None:
    large, small = unit(0.6, 100.0), unit(0.45, 60.0, gpu=L40S, engine="tensorrt_llm")
    nodes = [node("a"), node("b", gpu=L40S, usd="1.0000")]
    work = workload("w", load=Load("open", rate_per_s=10.0))
    found = flips_against(((large, small), (1, 1)), ((large,), (2,)), (large,), work, request(nodes, [work]))
    by_name = {flip.parameter: flip for flip in found}
    assert set(by_name) == {"request rate", f"{H100} price", f"{L40S} price"}
    assert by_name["request rate"].value == pytest.approx(10.5, rel=1e-3)  # the mix needs a third replica then
    assert by_name["request rate"].sentence == "From a request rate of 10.5 req/s vLLM alone is cheaper."
    assert by_name[f"{L40S} price"].value == pytest.approx(100 / 60, rel=1e-3)
    assert "vLLM alone is cheaper" in by_name[f"{L40S} price"].sentence


def test_the_cheapest_alone_depends_on_the_load() -> None:
    large, small = unit(1.0, 100.0), unit(0.3, 35.0)
    assert cheapest((large, small), False, Change()) is large
    assert cheapest((large, small), False, Change(load_factor=0.3)) is small
    assert cheapest((), False, Change()) is None


def test_a_candidate_without_a_bill_is_refused() -> None:
    with pytest.raises(ValueError, match="no bill"):
        unit_of(candidate("w", 0.5))

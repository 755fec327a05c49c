"""Units of prefill and decode pools as candidates: sized by role, placed whole, paid by role, checked."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import product
from pathlib import Path

import pytest
from fleet_samples import L40S, candidate, node, request, unit_candidate, workload

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings
from planner.engines.disaggregation import role_settings
from planner.errors import InputError
from planner.fleet_file import parse_fleet
from planner.jsonio import from_json, to_json
from planner.memory import ledger
from planner.placement.candidates import candidates
from planner.placement.check import check
from planner.placement.disaggregation import deployed, disaggregated_candidates
from planner.placement.pools import Asked, best_unit, gpus_needed, may_gain, unit_size
from planner.plan import make_plan
from planner.plan_types import Candidate, Placement
from planner.recommend.curves import TIMELINE_SAMPLES, candidate_curve
from planner.serving import Instance
from planner.serving.disaggregated import Disaggregated
from planner.serving.kv_transfer import link_within_node
from planner.serving.types import Lengths, Load, SloTarget
from planner.steptime import build
from planner.words import place_words

SLO = (SloTarget("ttft", "p99", 2000.0), SloTarget("tpot", "p99", 15.0))


def chat(**other):
    values = {
        "load": Load("open", rate_per_s=20.0, requests=300),
        "input_tokens": Lengths("fixed", value=4000),
        "output_tokens": Lengths("fixed", value=200),
        "slo": SLO,
    } | other
    return workload("chat", **values)


@pytest.fixture(scope="module")
def asked():
    return request([node("a"), node("b")], [chat()], disaggregate=True)


@pytest.fixture(scope="module")
def aggregated(asked):
    return candidates(asked.workloads[0], asked)


@pytest.fixture(scope="module")
def units(asked, aggregated):
    return disaggregated_candidates(asked.workloads[0], asked, aggregated)


def test_each_engine_gets_its_best_unit_sized_by_role(units, aggregated) -> None:
    """Case O3: roles differ. Each pool has its own shape, settings and use."""
    assert {unit.settings.engine.value for unit in units} == {"vllm", "tensorrt_llm"}
    for unit in units:
        pools = unit.disagg
        assert pools is not None
        assert unit.status == "ok"
        assert unit.gpus_per_replica == pools.prefill.gpus + pools.decode.gpus <= 8
        assert pools.prefill.memory.fits
        assert pools.decode.memory.fits
        assert pools.prefill.settings.max_model_len < pools.decode.settings.max_model_len
        assert 0.2 < pools.prefill.utilisation <= 1
        best = max(
            c.replica_rate_per_s / c.gpus_per_replica
            for c in aggregated
            if c.status == "ok" and c.settings and c.settings.engine is unit.settings.engine
        )
        assert unit.replica_rate_per_s / unit.gpus_per_replica > 0.8 * best


def test_the_unit_keeps_both_limits_at_the_planned_load(units) -> None:
    for unit in units:
        assert unit.performance.ttft_ms.p99 <= 2000.0
        assert unit.performance.tpot_ms.p99 <= 15.0


def test_the_bill_is_split_by_role(units) -> None:
    """Case C1: each pool's part by its GPUs, over the tokens that it makes; nothing is left over."""
    for unit in units:
        pools, cost = unit.disagg, unit.cost
        assert pools.prefill.usd_per_month + pools.decode.usd_per_month == cost.usd_per_month
        share = pools.prefill.gpus / unit.gpus_per_replica
        assert float(pools.prefill.usd_per_month / cost.usd_per_month) == pytest.approx(share, abs=1e-3)
        whole = pools.prefill.usd_per_mtok * cost.mtok_input_per_month
        whole += pools.decode.usd_per_mtok * cost.mtok_output_per_month
        assert float(whole) == pytest.approx(float(cost.usd_per_month), rel=1e-4)
        assert cost.usd_per_mtok_input is not None
        assert cost.usd_per_mtok_output is not None


def test_units_are_named_and_survive_json(units, asked) -> None:
    for unit in units:
        again = from_json(Candidate, to_json(unit))
        assert again == unit
        assert "prefill" in place_words(unit.id)
        assert "decode" in place_words(unit.id)
        made = deployed(unit, get_model(unit_workload(asked).model), gpu_spec(), asked)
        assert made.gpus == unit.gpus_per_replica


def unit_workload(asked):
    return asked.workloads[0]


def gpu_spec():
    return get_gpu("H100-SXM5-80GB")


@pytest.mark.parametrize(
    "other",
    [
        {"slo": (SloTarget("ttft", "p99", 2000.0),)},
        {"slo": (SloTarget("tpot", "p99", 15.0),)},
        {"slo": ()},
        {"load": Load("closed", concurrency=8)},
        {"load": Load("offline", requests=100)},
    ],
)
def test_units_are_tried_only_where_both_phases_have_limits_and_requests_arrive(other) -> None:
    assert may_gain(chat(), get_model("Qwen/Qwen3-8B"))
    assert not may_gain(chat(**other), get_model("Qwen/Qwen3-8B"))


def test_nothing_is_tried_where_the_bound_cannot_beat_what_there_is(asked, aggregated) -> None:
    strong = [replace(c, replica_rate_per_s=1e6) for c in aggregated]
    assert disaggregated_candidates(asked.workloads[0], asked, strong) == ()
    off = replace(asked, disaggregate=False)
    assert disaggregated_candidates(asked.workloads[0], off, aggregated) == ()


def test_gpus_over_pcie_carry_caches_too_but_never_claim_nvlink() -> None:
    asked = request([node("a", gpu=L40S, nvlink_domain=1)], [chat(slo=(SLO[0], SloTarget("tpot", "p99", 40.0)))])
    found = disaggregated_candidates(asked.workloads[0], asked, ())
    assert all(unit.disagg.link == "pcie" for unit in found)


def test_a_plan_places_a_unit_whole_and_passes_the_checker(asked) -> None:
    result = make_plan(asked)
    assert check(asked, result) == []
    chosen = {placement.candidate_id for placement in result.placements}
    made = [c for c in result.candidates if c.id in chosen and c.disagg is not None]
    assert made, "a unit is the cheapest here"
    for placement in result.placements:
        if placement.candidate_id == made[0].id:
            assert len(placement.gpu_indexes) == made[0].gpus_per_replica
    assert result.verdicts[0].chosen in chosen


@pytest.fixture
def placed(asked):
    unit = replace(unit_candidate("chat", 1.0), cost=None)
    result = make_plan(replace(asked, disaggregate=False))
    placement = Placement("chat", unit.id, 0, "a", tuple(range(8)))
    return asked, replace(
        result, candidates=(unit,), placements=(placement,), usd_per_hour=Decimal("16.0000"), unplaced=()
    )


def broken(placed, **pools):
    asked, result = placed
    unit = result.candidates[0]
    return check(asked, replace(result, candidates=(replace(unit, disagg=replace(unit.disagg, **pools)),)))


def test_the_checker_sees_what_is_wrong_with_a_unit(placed) -> None:
    asked, result = placed
    assert check(asked, result) == []
    pools = result.candidates[0].disagg
    fewer = replace(pools.prefill, instances=1)
    assert any("do not add up to its GPUs" in text for text in broken(placed, prefill=fewer))
    full = replace(pools.decode, memory=replace(pools.decode.memory, fits=False))
    assert any("decode instances do not fit" in text for text in broken(placed, decode=full))
    other = replace(pools.decode, settings=replace(pools.decode.settings, kv_cache_dtype="fp8"))
    assert any("differ in kv_cache_dtype" in text for text in broken(placed, decode=other))
    assert any("sized for 900.0 GB/s" in text for text in broken(placed, link="network", link_gb_s=900.0))
    halves = replace(result, placements=tuple(
        Placement("chat", result.candidates[0].id, 0, name, tuple(range(4))) for name in ("a", "b")
    ))  # fmt: skip
    assert any("placed over 2 nodes" in text for text in check(asked, halves))


def test_an_aggregated_candidate_has_no_pools() -> None:
    assert candidate("chat", 1.0).disagg is None


def test_a_fleet_file_can_leave_units_out() -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "fleet.yaml").read_text(encoding="utf-8")
    assert parse_fleet(text).disaggregate
    assert not parse_fleet(text + "\ndisaggregate: false\n").disaggregate
    with pytest.raises(InputError, match="disaggregate"):
        parse_fleet(text + "\ndisaggregate: maybe\n")


@pytest.mark.parametrize(("rate", "limit"), [(12.0, 15.0), (30.0, 25.0)])
def test_the_search_needs_no_more_gpus_than_trying_every_unit(rate: float, limit: float) -> None:
    work = chat(load=Load("open", rate_per_s=rate, requests=200), slo=(SLO[0], SloTarget("tpot", "p99", limit)))
    model, gpu = get_model(work.model), gpu_spec()
    asked = Asked(work, model, gpu, EngineSettings(EngineName.VLLM), 4000, 4200, (), 0)
    link = link_within_node(gpu, 4, 8)
    shapes = [(1, 1, 1, 1), (2, 1, 1, 1)]
    found = best_unit(asked, shapes, range(2, 5), lambda _: link, 0.0)
    assert found is not None
    best = gpus_needed(found[1].share, found[0].gpus, False)
    made = {}
    for role in ("prefill", "decode"):
        for tp, *_ in shapes:
            resolved = role_settings(
                EngineSettings(EngineName.VLLM, tp=tp), model, gpu, role, expected_len=4200, longest_prompt=4000
            )
            made[role, tp] = Instance(model, resolved, ledger(model, gpu, resolved), build(model, gpu, resolved))
    least = best
    for first, second, x, y in product((1, 2), (1, 2), (1, 2, 3), (1, 2, 3)):
        if x * first + y * second <= 4:
            unit = Disaggregated(made["prefill", first], made["decode", second], x, y, link)
            sized = unit_size(unit, work, 0)
            if sized.share > 0:
                least = min(least, gpus_needed(sized.share, unit.gpus, False))
    assert best <= least + 1


def test_a_unit_has_a_curve_that_passes_its_knee(units, asked) -> None:
    curve = candidate_curve(units[0], asked.workloads[0], asked)
    assert curve.axis == "rate"
    assert curve.timeline is None, "of one engine"
    line = curve.unit_timeline
    assert line is not None
    assert 2 <= line.transferring.size == line.prefill.t_s.size == line.decode.t_s.size <= TIMELINE_SAMPLES
    assert max(line.prefill.waiting.max(), line.decode.waiting.max()) > 0, "twice the knee makes a queue"
    assert curve.burst_per_s == pytest.approx(2 * curve.knee)
    assert curve.knee == units[0].replica_rate_per_s
    assert curve.points[0].meets_slo
    assert not curve.points[-1].meets_slo
    ttft = [point.performance.ttft_ms.p99 for point in curve.points]
    assert ttft[-1] > 2 * ttft[0]


def test_nodes_of_one_gpu_hold_no_unit_and_stop_nothing(asked) -> None:
    alone = request([node("one", gpus=1)], asked.workloads)
    assert disaggregated_candidates(asked.workloads[0], alone, ()) == ()

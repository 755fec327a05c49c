"""A plan from end to end on real models and step times: complete, checked, deterministic, cancellable."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
import yaml
from fleet_samples import H100, L40S, node, request, workload

from planner.cli_plan import as_text, table
from planner.economics.types import EnergyPrice
from planner.errors import CancelledError, InputError, UnknownGpuError, UnknownModelError
from planner.jsonio import from_json, to_json
from planner.placement.check import check
from planner.plan import make_plan
from planner.plan_types import ApiPrice, PlanRequest, PlanResult
from planner.serving.types import Lengths, Load, SloTarget

SLO = (SloTarget("ttft", "p99", 1500.0), SloTarget("tpot", "mean", 50.0))


def small_request() -> PlanRequest:
    nodes = [
        node("a", gpus=2),
        node("b", gpus=2, busy_gpus=(0,)),
        node("c", gpu=L40S, gpus=2, usd="1.0000", nvlink_domain=1),
    ]
    asked = [
        workload("chat", slo=SLO, load=Load("open", rate_per_s=8.0), revisions_per_month=4.0, mean_load_share=0.5),
        workload("search", model="BAAI/bge-m3", kind="embed", input_tokens=Lengths("fixed", value=512)),
        workload("huge", model="meta-llama/Meta-Llama-3.1-405B", load=Load("closed", concurrency=8)),
        workload("night", load=Load("offline", requests=2_000_000), kind="batch", priority=1),
    ]
    api = ApiPrice("chat", Decimal("0.05"), Decimal("0.20"))
    return request(nodes, asked, energy=EnergyPrice(Decimal("0.12")), api_prices=(api,))


@pytest.fixture(scope="module")
def planned() -> tuple[PlanRequest, PlanResult, list[tuple[float, str]]]:
    steps: list[tuple[float, str]] = []
    asked = small_request()
    return asked, make_plan(asked, lambda share, text: steps.append((share, text))), steps


def test_plan_passes_the_independent_checker(planned) -> None:
    asked, plan, _ = planned
    assert check(asked, plan) == []
    assert plan.status == "optimal"
    assert plan.bound_usd_per_hour <= plan.objective_usd_per_hour


def test_every_candidate_has_a_state_and_its_reason(planned) -> None:
    _, plan, _ = planned
    states = {candidate.status for candidate in plan.candidates}
    assert {"ok", "infeasible", "unsupported"} <= states
    for candidate in plan.candidates:
        if candidate.status == "ok":
            assert candidate.performance is not None
            assert candidate.cost is not None
            assert candidate.replicas >= 1
            assert candidate.replica_share > 0
        else:
            assert candidate.reasons
            assert candidate.performance is None
            assert candidate.cost is None
    assert len({candidate.id for candidate in plan.candidates}) == len(plan.candidates)


def test_bills_add_up_and_inherit_the_band(planned) -> None:
    _, plan, _ = planned
    for candidate in plan.candidates:
        cost = candidate.cost
        if cost is None:
            continue
        assert sum(usd for _, usd in cost.parts) == cost.usd_per_month
        if cost.usd_per_mtok_output_80 is not None:
            low, high = cost.usd_per_mtok_output_80
            assert low <= cost.usd_per_mtok_output <= high


def test_what_fits_nowhere_is_left_out_with_its_reason(planned) -> None:
    _, plan, _ = planned
    left_out = {item.workload: item for item in plan.unplaced}
    assert "huge" in left_out
    assert "memory" in left_out["huge"].reason or "weights" in left_out["huge"].reason.lower()
    assert next(v for v in plan.verdicts if v.workload == "huge").chosen is None


def test_embedding_is_served_in_one_pass_by_the_engine_that_can(planned) -> None:
    _, plan, _ = planned
    ok = [c for c in plan.candidates if c.workload == "search" and c.status == "ok"]
    assert {c.settings.engine.value for c in ok} == {"vllm"}
    assert all(c.cost.usd_per_mtok_output is None and c.performance.tpot_ms is None for c in ok)
    verdict = next(v for v in plan.verdicts if v.workload == "search")
    assert "only engine" in verdict.sentence


def test_verdict_quotes_figures_and_flip_points(planned) -> None:
    _, plan, _ = planned
    verdict = next(v for v in plan.verdicts if v.workload == "chat")
    assert verdict.chosen.startswith("chat/")
    assert verdict.runner_up.split("/")[1] != verdict.engine
    assert verdict.margin.low <= verdict.margin.value <= verdict.margin.high
    parameters = {flip.parameter for flip in verdict.flip_points}
    assert {"request rate", "input length", "output length", "electricity price", "number of revisions"} <= parameters
    assert f"{H100} price" in parameters
    for flip in verdict.flip_points:
        assert flip.value is None or flip.searched[0] <= flip.value <= flip.searched[1]
        assert flip.sentence
    assert any("requests/s within the SLO" in reason for reason in verdict.reasons)


def test_break_even_against_the_api_is_in_bill_and_words(planned) -> None:
    _, plan, _ = planned
    chosen = next(c for c in plan.candidates if c.id == next(v for v in plan.verdicts if v.workload == "chat").chosen)
    share = chosen.cost.break_even_utilisation
    capacity = chosen.replica_rate_per_s * chosen.replicas * 3600 / 1e6 * (1024 * 0.05 + 256 * 0.20)
    price = 1.0 if chosen.gpu == L40S else 2.0
    assert float(share) == pytest.approx(price * chosen.gpus / chosen.sharers / capacity, rel=0.001)
    reasons = next(v for v in plan.verdicts if v.workload == "chat").reasons
    assert any("reak-even" in reason for reason in reasons)
    assert all(c.cost.break_even_utilisation is None for c in plan.candidates if c.cost and c.workload == "night")


def test_progress_names_workload_and_gpu_and_never_falls(planned) -> None:
    _, _, steps = planned
    shares = [share for share, _ in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert any(text.startswith("Sizing chat on H100-SXM5-80GB: 1 of 8") for _, text in steps)


def test_fragmentation_idle_and_placed_money(planned) -> None:
    asked, plan, _ = planned
    free_before = sum(n.gpus - len(n.busy_gpus) for n in asked.nodes)
    used = len({(p.node, index) for p in plan.placements for index in p.gpu_indexes})
    assert plan.stranded_before.free_gpus == free_before
    assert plan.stranded_after.free_gpus == free_before - used
    everything = sum((n.gpus - len(n.busy_gpus)) * n.price.usd_per_gpu_hour for n in asked.nodes)
    assert plan.usd_per_hour + plan.idle_usd_per_hour == everything


def test_rules_of_thumb_are_judged(planned) -> None:
    _, plan, _ = planned
    rules = {rule.id: rule for rule in plan.rules}
    assert set(rules) == {"ttft", "density", "fp8", "kv", "builds", "agility", "portability", "hybrid"}
    assert rules["portability"].verdict == "not_testable"
    assert rules["builds"].verdict == "refuted"
    assert rules["agility"].verdict == "mixed"
    assert all(rule.sentence for rule in plan.rules)


def test_router_configuration_has_every_endpoint(planned) -> None:
    _, plan, _ = planned
    config = yaml.safe_load(plan.router_config)
    endpoints = {(p.candidate_id, p.replica) for p in plan.placements}
    assert len(config["model_list"]) == len(endpoints)
    bases = [entry["litellm_params"]["api_base"] for entry in config["model_list"]]
    assert len(set(bases)) == len(bases)
    entry = config["model_list"][0]
    assert set(entry) == {"model_name", "litellm_params", "model_info"}
    assert entry["litellm_params"]["model"].startswith("openai/")
    modes = {e["model_name"]: e["model_info"]["mode"] for e in config["model_list"]}
    assert modes["search"] == "embedding"


def test_json_round_trip(planned) -> None:
    asked, plan, _ = planned
    assert from_json(PlanResult, json.loads(json.dumps(to_json(plan)))) == plan
    assert from_json(PlanRequest, json.loads(json.dumps(to_json(asked)))) == asked


def test_text_shows_placement_verdict_and_rules(planned) -> None:
    asked, plan, _ = planned
    text = as_text(asked, plan)
    for words in ("Plan test: optimal", "Left out", "huge", "Rules of thumb", "Simpler rules"):
        assert words in text


def test_same_request_gives_the_same_plan(planned) -> None:
    asked, plan, _ = planned
    again = make_plan(asked)
    assert replace(again, solve_s=plan.solve_s) == plan


def test_cancel_stops_at_the_next_step() -> None:
    calls = []

    def cancel() -> bool:
        calls.append(1)
        return len(calls) > 1

    with pytest.raises(CancelledError):
        make_plan(small_request(), should_cancel=cancel)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"workloads": ()}, InputError, "workloads"),
        ({"nodes": ()}, InputError, "nodes"),
        ({"nodes": (node("a"), node("a"))}, InputError, "nodes.name"),
        ({"nodes": (node("a", gpus=2, busy_gpus=(2,)),)}, InputError, "nodes[0].busy_gpus"),
        ({"nodes": (node("a", gpu="H900"),)}, UnknownGpuError, None),
        ({"workloads": (workload("w", model="nobody/nothing"),)}, UnknownModelError, None),
        ({"workloads": (workload("w", load=Load("open")),)}, InputError, "workloads[0].load.rate_per_s"),
        ({"workloads": (workload("w", mean_load_share=0.0),)}, InputError, "workloads[0].mean_load_share"),
        (
            {"workloads": (workload("w", slo=(SloTarget("ttft", "p99", 0.0),)),)},
            InputError,
            "workloads[0].slo[0].limit_ms",
        ),
    ],
)
def test_senseless_request_names_the_field(change, error, field) -> None:
    with pytest.raises(error) as caught:
        make_plan(replace(small_request(), **change))
    assert field is None or caught.value.field == field


def test_table_aligns_numbers_right() -> None:
    text = table(("name", "n"), [("a", "5"), ("bb", "10")])
    assert text.splitlines()[2:] == ["a      5", "bb    10"]

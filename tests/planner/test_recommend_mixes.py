"""A workload on two configurations is predicted as one service, held against each engine alone, and exported so."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
import yaml
from fleet_samples import H100, node, request, workload

from planner.catalog import get_model
from planner.cli_plan import as_text
from planner.evidence import Interval
from planner.export import deployment_files, endpoints
from planner.jsonio import from_json, to_json
from planner.mix_types import MixRival
from planner.placement.candidates import gpu_of_nodes
from planner.placement.check import check
from planner.placement.disaggregation import deployed
from planner.placement.sizing import at_planned_load
from planner.plan import make_plan
from planner.plan_types import Candidate, PlanRequest, PlanResult
from planner.recommend.bill import bill, prices
from planner.recommend.mixcost import unit_of
from planner.recommend.mixes import _outcome, _people_words
from planner.recommend.mixsplit import Part, best_split
from planner.serving.types import Lengths, Load, SloTarget

A100 = "A100-SXM4-80GB"
SLO = (SloTarget("ttft", "p99", 1500.0), SloTarget("tpot", "mean", 50.0))
STATS = ("p50", "p90", "p95", "p99")


def asked() -> PlanRequest:
    """Neither pool holds all of "chat"; "search" fits one replica."""
    nodes = [node("a", gpus=2, usd="2.5000"), node("b", gpu=A100, gpus=3, usd="1.3000")]
    works = [
        workload("chat", slo=SLO, load=Load("open", rate_per_s=54.0)),
        workload("search", model="BAAI/bge-m3", kind="embed", input_tokens=Lengths("fixed", value=256), site="west"),
        workload("small", slo=SLO, load=Load("open", rate_per_s=1.0)),
    ]
    return request(nodes, works, disaggregate=False)


@pytest.fixture(scope="module")
def planned() -> tuple[PlanRequest, PlanResult]:
    wanted = asked()
    return wanted, make_plan(wanted)


def chat_mix(plan: PlanResult):
    return next(mix for mix in plan.mixes if mix.workload == "chat")


def test_what_is_placed_on_two_candidates_is_one_mix(planned) -> None:
    wanted, plan = planned
    assert check(wanted, plan) == []
    mix = chat_mix(plan)
    placed = {(p.candidate_id, p.replica) for p in plan.placements if p.workload == "chat"}
    assert mix.placed
    assert {part.candidate_id: part.replicas for part in mix.parts} == {
        key: sum(1 for candidate, _ in placed if candidate == key) for key in {candidate for candidate, _ in placed}
    }
    assert len(mix.parts) > 1


def test_capacities_and_shares_add_up(planned) -> None:
    _, plan = planned
    mix = chat_mix(plan)
    by_id = {candidate.id: candidate for candidate in plan.candidates}
    for part in mix.parts:
        assert part.capacity_share == pytest.approx(part.replicas * by_id[part.candidate_id].replica_share)
        assert part.share <= part.capacity_share / mix.carried + 1e-6
    able = sum(part.capacity_share for part in mix.parts)
    assert sum(part.share for part in mix.parts) == pytest.approx(1.0)
    assert mix.carried == pytest.approx(min(1.0, able))
    largest = max(by_id[part.candidate_id].replica_share for part in mix.parts)
    assert mix.after_loss == pytest.approx(able - largest)
    assert sum(part.performance.req_per_s for part in mix.parts) == pytest.approx(mix.performance.req_per_s)


def test_the_whole_lies_between_its_parts_and_meets_the_slo(planned) -> None:
    _, plan = planned
    mix = chat_mix(plan)
    for kind in ("ttft_ms", "tpot_ms", "e2e_ms"):
        whole = getattr(mix.performance, kind)
        for stat in STATS:
            own = [getattr(getattr(part.performance, kind), stat) for part in mix.parts]
            assert min(own) * (1 - 1e-9) <= getattr(whole, stat) <= max(own) * (1 + 1e-9)
    assert mix.slo_use is not None
    assert mix.slo_use <= min(1.0, mix.slo_use_by_capacity)
    band = mix.performance.ttft_ms_80
    assert band.low <= band.value == mix.performance.ttft_ms.p50 <= band.high


def test_money_of_the_mix_adds_up_and_is_per_token_of_the_whole(planned) -> None:
    _, plan = planned
    mix = chat_mix(plan)
    chat = next(c for c in plan.candidates if c.workload == "chat" and c.cost is not None)
    assert sum(part.usd_per_month for part in mix.parts) == mix.usd_per_month
    hourly = sum(part.gpus * (Decimal("2.5") if part.gpu == H100 else Decimal("1.3")) for part in mix.parts)
    assert mix.usd_per_month == (hourly * 730).quantize(Decimal("0.01"))
    tokens = chat.cost.mtok_output_per_month * Decimal(str(mix.carried))
    assert mix.usd_per_mtok_output == (mix.usd_per_month / tokens).quantize(Decimal("0.000001"))
    low, high = mix.usd_per_mtok_output_80
    assert low <= mix.usd_per_mtok_output <= high


def test_every_engine_alone_is_a_rival_or_says_why_not(planned) -> None:
    _, plan = planned
    mix = chat_mix(plan)
    alone = {row.engine: row for row in plan.engine_plans}
    assert [row.engine for row in plan.engine_plans] == ["", "vllm", "tensorrt_llm"]
    for rival in mix.rivals:
        assert (rival.saving is None) == bool(rival.reason)
        assert rival.carried == pytest.approx(1.0) if rival.saving is not None else rival.carried <= 1.0
        left_out = {item.workload for item in alone[rival.engine].unplaced}
        if rival.saving is not None:
            assert rival.saving.low <= rival.saving.value <= rival.saving.high
            assert f"{'vLLM' if rival.engine == 'vllm' else 'TensorRT-LLM'} alone" in mix.sentence
            assert "chat" not in left_out
            assert rival.performance.req_per_s == pytest.approx(mix.performance.req_per_s, rel=0.1)
            assert {flip.parameter for flip in rival.flips} >= {"request rate"}
    verdict = next(v for v in plan.verdicts if v.workload == "chat")
    assert verdict.sentence == mix.sentence


def test_people_of_a_second_engine_are_named(planned) -> None:
    _, plan = planned
    assert "second engine" not in chat_mix(plan).sentence
    units = [unit_of(c) for c in plan.candidates if c.workload == "small" and c.status == "ok" and c.sharers == 1]
    first, second = (next(u for u in units if u.engine == engine) for engine in ("vllm", "tensorrt_llm"))
    paid = [replace(first, people_usd=320.0), replace(second, people_usd=400.0)]
    assert _people_words(paid, "$") == " $320 of its month are the people of a second engine."
    assert _people_words([paid[0], paid[0]], "$") == ""


def test_what_finds_no_room_is_said_with_the_share_carried() -> None:
    wanted = asked()
    more = replace(wanted.workloads[0], load=Load("open", rate_per_s=120.0))
    plan = make_plan(replace(wanted, workloads=(more,)))
    mix = chat_mix(plan)
    assert mix.placed
    assert mix.carried < 0.99
    assert mix.sentence.startswith(f"What finds room carries {100 * mix.carried:.0f} % of the demand.")
    for rival in mix.rivals:
        assert 0 < rival.carried <= mix.carried + 1e-6
        assert f"alone carries {100 * rival.carried:.0f} % of it here" in rival.reason
    carried_per_s = 120.0 * mix.carried
    assert mix.performance.req_per_s == pytest.approx(carried_per_s, rel=0.08)


def test_a_spare_holds_over_all_parts() -> None:
    wanted = asked()
    spared = replace(wanted.workloads[0], load=Load("open", rate_per_s=34.0), n_plus_1=True)
    plan = make_plan(replace(wanted, workloads=(spared,)))
    assert not plan.unplaced
    mix = chat_mix(plan)
    assert mix.placed
    assert mix.after_loss >= 1 - 1e-6
    total = 1.0
    for lost in mix.parts:
        rest = total - lost.share / lost.replicas
        for part in mix.parts:
            left = (part.replicas - (part is lost)) / part.replicas
            assert part.share * left / rest <= part.capacity_share * left + 1e-6


def test_outcomes() -> None:
    def rival(low: float, value: float, high: float) -> MixRival:
        return MixRival("vllm", (("w/vllm", 2),), 1.0, saving=Interval(value, low, high))

    clear, dear, unsure = rival(0.1, 0.2, 0.3), rival(-0.4, -0.2, -0.1), rival(-0.1, 0.1, 0.3)
    assert _outcome((clear, clear), 1.0) == "confirmed"
    assert _outcome((clear, dear), 1.0) == "refuted"
    assert _outcome((clear, unsure), 1.0) == "unsettled"
    nowhere, in_part = MixRival("vllm", reason="None."), MixRival("vllm", (("w/vllm", 1),), 0.6, reason="Part.")
    assert _outcome((clear, nowhere), 1.0) == "confirmed"
    assert _outcome((nowhere, nowhere), 1.0) == "confirmed"
    assert _outcome((nowhere, in_part), 1.0) == "unsettled"
    assert _outcome((nowhere, nowhere), 0.8) == "unsettled"


def test_a_workload_that_one_replica_serves_has_a_hybrid_to_compare(planned) -> None:
    _, plan = planned
    mix = next((m for m in plan.mixes if m.workload == "small"), None)
    assert mix is not None
    assert not mix.placed
    assert {part.engine for part in mix.parts} == {"vllm", "tensorrt_llm"}
    assert "which the plan does not take" in mix.sentence
    assert "search" not in {m.workload for m in plan.mixes}


def test_no_engine_alone_is_cheaper_at_the_same_service(planned) -> None:
    asked, plan = planned
    both, *alone = plan.engine_plans
    assert both.objective_usd_per_hour == plan.objective_usd_per_hour
    billed = bill(asked, plan)
    assert both.usd_per_month == plan.usd_per_month == billed.usd_per_month
    assert plan.usd_per_mtok_output == prices(billed.rows)[1]
    for row in alone:
        assert row.served_share <= both.served_share + 1e-9
        if row.saving is not None:
            assert row.objective_usd_per_hour >= both.objective_usd_per_hour - Decimal("0.0001")
            assert row.saving.low <= row.saving.value <= row.saving.high
        assert any(item.workload == "search" for item in row.unplaced)
        if row.engine == "tensorrt_llm":
            assert all(item.reason for item in row.unplaced)


def test_the_router_sends_each_part_its_share(planned) -> None:
    _, plan = planned
    mix = chat_mix(plan)
    entries = [e for e in yaml.safe_load(plan.router_config)["model_list"] if e["model_name"] == "chat"]
    total = sum(entry["litellm_params"]["weight"] for entry in entries)
    for part in mix.parts:
        own = [e for e in entries if e["model_info"]["id"].startswith(f"{part.candidate_id}#")]
        assert len(own) == part.replicas
        assert sum(e["litellm_params"]["weight"] for e in own) / total == pytest.approx(part.share, abs=1e-4)


def test_kubernetes_weighs_the_configurations_of_a_mix(planned) -> None:
    wanted, plan = planned
    mix = chat_mix(plan)
    by_part = [e for e in endpoints(wanted, plan) if e.workload == "chat"]
    assert {e.part for e in by_part} == {1, 2}
    documents = list(yaml.safe_load_all(deployment_files(wanted, plan, "kubernetes")["chat.yaml"]))
    route = next(d for d in documents if d["kind"] == "HTTPRoute")
    backends = route["spec"]["rules"][0]["backendRefs"]
    services = {d["metadata"]["name"]: d["spec"]["selector"] for d in documents if d["kind"] == "Service"}
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in documents if d["kind"] == "Deployment"]
    assert [b["name"] for b in backends] == list(services)
    for backend, part in zip(backends, mix.parts, strict=True):
        assert backend["weight"] / sum(b["weight"] for b in backends) == pytest.approx(part.share, abs=2e-4)
        assert sum(services[backend["name"]].items() <= labels.items() for labels in pods) == part.replicas
    alike = list(yaml.safe_load_all(deployment_files(wanted, plan, "kubernetes")["small.yaml"]))
    assert [d["kind"] for d in alike if d["kind"] in ("Service", "HTTPRoute")] == ["Service"]


def test_text_shows_the_mix_and_each_engine_alone(planned) -> None:
    wanted, plan = planned
    mix, text = chat_mix(plan), as_text(wanted, plan)
    assert f"Served as one: {mix.sentence}" in text
    for part in mix.parts:
        assert f"{part.replicas} x {part.candidate_id.removeprefix('chat/')}" in text
        assert f"{100 * part.share:.1f} %" in text
    lines = [line for line in text.splitlines() if line.startswith(("As chosen", "vLLM alone", "TensorRT-LLM alone"))]
    assert len(lines) == 3 + 2  # of the fleet, and of the mix
    assert f"{plan.engine_plans[0].usd_per_month:,.0f}" in lines[0]


def test_json_round_trip(planned) -> None:
    _, plan = planned
    assert from_json(PlanResult, json.loads(json.dumps(to_json(plan)))) == plan


def part_of(plan: PlanResult, wanted: PlanRequest, candidate: Candidate, replicas: int) -> Part:
    made = deployed(candidate, get_model("Qwen/Qwen3-8B"), gpu_of_nodes(candidate.gpu, wanted.nodes), wanted)
    return Part(candidate, made, replicas, candidate.replica_share * replicas)


@pytest.mark.parametrize(
    "load",
    [Load("open", rate_per_s=20.0), Load("closed", concurrency=48), Load("offline", requests=600)],
    ids=lambda load: load.kind,
)
def test_a_mix_of_one_part_is_that_part(planned, load: Load) -> None:
    wanted, plan = planned
    chosen = next(c for c in plan.candidates if c.id == f"chat/vllm/{H100}/tp1pp1ep1dp1/as-config")
    work = workload("chat", slo=() if load.kind == "offline" else SLO, load=load)
    part = replace(part_of(plan, wanted, chosen, 2), capacity=1.3)
    found = best_split(work, [part], 0)
    own = at_planned_load(part.made, work, work.output_tokens, 2, 0)
    assert found.shares == (1.0,)
    assert found.kind == "capacity"
    assert found.whole.req_per_s == own.req_per_s
    assert found.whole.output_tok_per_s_80 == own.output_tok_per_s_80
    for kind in ("ttft_ms", "tpot_ms", "e2e_ms"):
        mixed, alone = getattr(found.whole, kind), getattr(own, kind)
        assert [getattr(mixed, s) for s in STATS] == pytest.approx([getattr(alone, s) for s in STATS], rel=1e-9)


def test_users_who_wait_ask_the_faster_part_more_often(planned) -> None:
    wanted, plan = planned
    fast, slow = (
        part_of(plan, wanted, next(c for c in plan.candidates if c.id == f"chat/vllm/{gpu}/tp1pp1ep1dp1/as-config"), 1)
        for gpu in (H100, A100)
    )
    work = workload("chat", slo=(), load=Load("closed", concurrency=32))
    found = best_split(work, [replace(fast, capacity=0.5), replace(slow, capacity=0.5)], 0)
    assert found.shares[0] > 0.55
    assert sum(found.shares) == pytest.approx(1.0)


def test_a_split_by_latency_must_hold_after_any_loss(planned) -> None:
    wanted, plan = planned
    fast, slow = (
        part_of(plan, wanted, next(c for c in plan.candidates if c.id == f"chat/vllm/{gpu}/tp1pp1ep1dp1/as-config"), 2)
        for gpu in (H100, A100)
    )
    roomy = [replace(fast, capacity=1.5), replace(slow, capacity=1.5)]
    work = workload("chat", slo=(SloTarget("e2e", "p90", 20_000.0),), load=Load("open", rate_per_s=8.0))
    free = best_split(work, roomy, 0)
    assert free.kind == "latency"
    assert free.shares[0] > 0.5
    assert free.slo_use < free.slo_use_by_capacity
    tight = [replace(fast, capacity=0.75), replace(slow, capacity=0.75)]
    kept = best_split(replace(work, n_plus_1=True), tight, 0)
    spared = kept.shares[0] / (1 - kept.shares[1] / 2)
    assert spared <= 0.75 + 1e-6

"""Candidates: states with reasons, tuned engines, shapes that nodes can hold, and cases from the field."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from fleet_samples import H100, L40S, node, request, settings, workload

from planner.catalog import get_model
from planner.economics import OperationsCosts, RentalInputs, gpu_hour_price
from planner.engines.types import EngineName, EngineSettings
from planner.errors import InputError
from planner.evidence import Evidence
from planner.placement.candidates import candidates
from planner.placement.encoder import largest_encoder_load, simulate_encoder
from planner.placement.shapes import adapter_notes, base_settings, parallel_shapes, variants
from planner.placement.sizing import demand_per_s, per_replica_load
from planner.placement.solver import solve
from planner.serving.types import Lengths, Load, SloTarget
from planner.steptime.types import FrontEnd, StepModel, StepTables

SLO = (SloTarget("ttft", "p99", 1500.0), SloTarget("tpot", "mean", 50.0))


def made(nodes, work, **other):
    return candidates(work, request(nodes, [work], **other))


def ok(found):
    return [candidate for candidate in found if candidate.status == "ok"]


@pytest.fixture(scope="module")
def chat():
    work = workload("chat", slo=SLO, load=Load("open", rate_per_s=30.0), n_plus_1=True)
    return work, made([node("a", gpus=4)], work)


def test_both_engines_meet_the_slo_at_the_planned_load(chat) -> None:
    work, found = chat
    assert {c.settings.engine.value for c in ok(found)} == {"vllm", "tensorrt_llm"}
    for candidate in ok(found):
        for target in work.slo:
            reached = getattr(getattr(candidate.performance, f"{target.metric}_ms"), target.stat)
            assert reached <= target.limit_ms * 1.02


def test_replicas_carry_the_demand_with_one_to_spare(chat) -> None:
    work, found = chat
    for candidate in ok(found):
        assert (candidate.replicas - 1) * candidate.replica_share >= 1 - 1e-9
        assert (candidate.replicas - 2) * candidate.replica_share < 1
        assert candidate.replica_share == pytest.approx(candidate.replica_rate_per_s / work.load.rate_per_s)


def test_throughput_is_that_of_all_replicas(chat) -> None:
    work, found = chat
    expected = work.load.rate_per_s * work.output_tokens.expected
    for candidate in ok(found):
        assert candidate.performance.output_tok_per_s == pytest.approx(expected, rel=0.15)
        assert candidate.tok_s_per_gpu == pytest.approx(candidate.performance.output_tok_per_s / candidate.gpus)


def test_tuned_meets_tuned_with_equal_prefix_caching() -> None:
    work = workload("w")
    for engine in EngineName:
        base = base_settings(work, engine, "as-config", (1, 1, 1, 1))
        tried = variants(base, offline=False)
        assert len(tried) >= 3
        assert {v.enable_prefix_caching for v in (base, *tried)} == {None}
        assert all(v.engine is engine and v.precision == base.precision for v in tried)


def test_tuning_never_carries_less_than_the_defaults(chat, monkeypatch) -> None:
    work, found = chat
    monkeypatch.setattr("planner.placement.candidates.variants", lambda settings, *, offline: ())
    plain = {c.id: c for c in ok(made([node("a", gpus=4)], work))}
    for candidate in ok(found):
        assert candidate.replica_rate_per_s >= plain[candidate.id].replica_rate_per_s * 0.9


def test_latency_limit_that_nothing_meets_is_infeasible_with_the_figure() -> None:
    found = made([node("a", gpus=1)], workload("w", slo=(SloTarget("tpot", "mean", 0.5),)))
    assert not ok(found)
    reasons = [reason for c in found for reason in c.reasons]
    assert any("TPOT mean is" in reason and "ms even alone, the limit is" in reason for reason in reasons)


def test_unsupported_gpu_is_a_state_with_its_reason_once() -> None:
    found = made([node("m", gpu="MI300X", gpus=8)], workload("w"))
    refused = [c for c in found if c.status == "unsupported"]
    assert len(refused) == 1
    assert "NVIDIA" in refused[0].reasons[0]
    assert {c.settings.engine.value for c in ok(found)} == {"vllm"}


def test_unknown_speed_is_no_data_not_a_minimum() -> None:
    """A GPU without datasheet rates has no roofline: the candidate says so and has no rate."""
    found = made([node("g", gpu="GB10-DGX-Spark", gpus=1)], workload("w"))
    states = {c.status for c in found if "/vllm/" in c.id}
    assert states <= {"no_data", "ok"}
    for candidate in found:
        if candidate.status == "no_data":
            assert candidate.replica_rate_per_s == 0.0
            assert candidate.reasons


def test_model_larger_than_a_node_needs_several_whole_nodes() -> None:
    work = workload("w", model="zai-org/GLM-5.2-FP8", load=Load("open", rate_per_s=0.5))
    found = made([node("a"), node("b")], work)
    assert ok(found)
    assert all(c.gpus_per_replica % 8 == 0 and c.gpus_per_replica > 8 for c in ok(found))
    too_large = [c for c in found if c.status == "infeasible" and c.gpus_per_replica == 8]
    assert any("weights" in reason for c in too_large for reason in c.reasons)
    two = solve(request([node("a"), node("b")], [work]), found)
    assert {p.node for p in two.placements} == {"a", "b"}


def test_one_model_that_fits_one_node_is_not_spread_over_two() -> None:
    found = made([node("a", gpus=2), node("b", gpus=2)], workload("w"))
    assert max(c.gpus_per_replica for c in ok(found)) == 2


def test_odd_gpu_counts_use_stages_or_fewer_gpus() -> None:
    model = get_model("meta-llama/Llama-3.1-70B-Instruct")
    shapes = parallel_shapes(model, [node("a", gpus=3)])
    assert (3, 1, 1, 1) not in shapes
    assert (1, 3, 1, 1) in shapes
    assert (2, 1, 1, 1) in shapes


def test_mixture_models_try_expert_and_data_parallel_attention() -> None:
    shapes = parallel_shapes(get_model("deepseek-ai/DeepSeek-V3"), [node("a")])
    assert {(8, 1, 8, 1), (1, 1, 8, 8), (8, 2, 1, 1)} <= set(shapes)
    assert (1, 1, 8, 8) not in parallel_shapes(get_model("Qwen/Qwen3-8B"), [node("a")])


def test_price_per_gpu_counts_once() -> None:
    """1.35296 USD an hour, one GPU: the monthly bill is price x 730 x GPUs, hourly stays hourly."""
    price = gpu_hour_price(RentalInputs(Decimal("1.3530")))
    work = workload("w", load=Load("open", rate_per_s=0.5))
    found = ok(made([node("a", gpus=1, price=price)], work))
    cost = found[0].cost
    gpus_bill = sum(usd for label, usd in cost.parts if label.startswith("GPUs"))
    assert gpus_bill == (Decimal("1.3530") * 730 * found[0].gpus).quantize(Decimal("0.01"))
    assert cost.gpu_hours_per_month == 730 * found[0].gpus


def test_own_price_changes_the_answer() -> None:
    work = workload("w", load=Load("open", rate_per_s=2.0), slo=SLO)
    cheap = min(ok(made([node("a", gpus=1, usd="1.0000")], work)), key=lambda c: c.cost.usd_per_month)
    dear = min(ok(made([node("a", gpus=1, usd="3.0000")], work)), key=lambda c: c.cost.usd_per_month)
    assert dear.cost.usd_per_month == 3 * cheap.cost.usd_per_month


def test_revisions_and_licences_reach_the_bill_and_the_objective() -> None:
    operations = OperationsCosts(licence_usd_per_gpu_year=(("tensorrt_llm", Decimal(4500)),))
    work = workload("w", load=Load("open", rate_per_s=2.0), revisions_per_month=10.0)
    found = ok(made([node("a", gpus=1)], work, operations=operations))
    by_engine = {c.settings.engine.value: c for c in found}
    assert "engine licence" in dict(by_engine["tensorrt_llm"].cost.parts)
    assert "engine licence" not in dict(by_engine["vllm"].cost.parts)
    assert by_engine["tensorrt_llm"].replica_extra_usd_per_hour > by_engine["vllm"].replica_extra_usd_per_hour > 0


def test_demand_of_each_kind_of_load() -> None:
    assert demand_per_s(workload("w", load=Load("open", rate_per_s=7.0))) == 7.0
    assert demand_per_s(workload("w", load=Load("closed", concurrency=7))) is None
    offline = workload("w", load=Load("offline", requests=7_200_000), hours_per_month=200.0)
    assert demand_per_s(offline) == pytest.approx(10.0)
    trace = workload("w", load=Load("open", arrival="trace", times_s=tuple(float(i) for i in range(101))))
    assert demand_per_s(trace) == pytest.approx(1.0)
    assert demand_per_s(replace(trace, load=per_replica_load(trace, 4))) == pytest.approx(0.25)


def test_offline_batch_is_sized_to_finish_in_its_hours() -> None:
    work = workload("night", load=Load("offline", requests=3_000_000), hours_per_month=10.0)
    found = ok(made([node("a", gpus=1)], work))
    for candidate in found:
        hours = 3_000_000 / (candidate.replicas * candidate.replica_rate_per_s) / 3600
        assert hours <= 10.0
        assert candidate.cost.mtok_output_per_month == pytest.approx(
            Decimal(3_000_000 * 256) / 10**6, rel=Decimal("0.001")
        )


def test_gpus_are_not_mixed_in_one_replica() -> None:
    found = made([node("a", gpus=1), node("c", gpu=L40S, gpus=1, nvlink_domain=1)], workload("w"))
    assert {c.gpu for c in ok(found)} == {H100, L40S}
    assert {c.gpus_per_replica for c in ok(found)} == {1}


# -- one-pass models ---------------------------------------------------------------------------------------------------


def encoder_step(ms_per_token: float = 0.01) -> StepModel:
    tokens = np.array([1.0, 100_000.0])
    flat = np.zeros((2, 2))
    tables = StepTables(
        tokens, tokens * ms_per_token, tokens, np.zeros(2), tokens, tokens, flat, tokens, tokens, flat, 0.0, np.zeros(0)
    )
    return StepModel(tables, FrontEnd(0.0, 0.0, 0.0, 0.0), Evidence.SILICON)


def encoder_settings():
    return replace(settings(), max_num_batched_tokens=4096, max_num_seqs=8)


def test_encoder_alone_takes_the_time_of_its_step() -> None:
    load = Load("closed", concurrency=1, requests=20)
    found = simulate_encoder(encoder_step(), encoder_settings(), load, Lengths("fixed", value=500))
    assert found.e2e_ms.p50 == pytest.approx(5.0)
    assert found.req_per_s == pytest.approx(200.0)
    assert found.tpot_ms is None


def test_encoder_batches_up_to_its_token_budget() -> None:
    offline = Load("offline", requests=800)
    found = simulate_encoder(encoder_step(), encoder_settings(), offline, Lengths("fixed", value=1000))
    assert found.mean_batch == pytest.approx(4.0)
    assert found.req_per_s == pytest.approx(100.0)


def test_encoder_load_grows_with_the_limit() -> None:
    load = Load("open", rate_per_s=1.0)
    rates = []
    for limit in (11.0, 30.0, 200.0):
        target = (SloTarget("e2e", "p99", limit),)
        largest = largest_encoder_load(
            encoder_step(), encoder_settings(), load, Lengths("fixed", value=1000), slo=target
        )
        rates.append(largest.rate_per_s)
        assert largest.result is None or largest.result.e2e_ms.p99 <= limit
    assert rates == sorted(rates)
    assert rates[-1] <= 100.0


def test_encoder_refuses_a_prompt_beyond_its_budget() -> None:
    with pytest.raises(InputError, match="token budget"):
        simulate_encoder(encoder_step(), encoder_settings(), Load("offline", requests=3), Lengths("fixed", value=5000))


def test_adapters_reserve_slots() -> None:
    few, many = (workload("w", adapters=count, adapter_rank=32) for count in (20, 40))
    found = [base_settings(work, EngineName.VLLM, "fp8", (2, 1, 1, 1)) for work in (few, many)]
    assert found[0] == EngineSettings(EngineName.VLLM, tp=2, precision="fp8", max_loras=20, max_lora_rank=32)
    assert found[1].max_loras == 32
    assert not adapter_notes(few)
    assert "40 adapters share 32 slots" in adapter_notes(many)[0]


def test_sessions_are_sized_on_both_engines() -> None:
    """TensorRT-LLM takes no prompt above its token budget by default: it was left out of every plan of uneven sessions
    since the longest ones drawn passed the longest expected.
    """
    load = Load("closed", concurrency=300, turns=Lengths("uniform", low=2, high=14), think_s=20.0, shared_tokens=400)
    users = workload(
        "chat",
        load=load,
        input_tokens=Lengths("uniform", low=50, high=800),
        output_tokens=Lengths("uniform", low=100, high=500),
        slo=(SloTarget("ttft", "p90", 800.0), SloTarget("tpot", "mean", 40.0)),
    )
    found = candidates(users, request([node("a", gpus=1)], [users]))
    whole = {c.settings.engine.value: c for c in found if c.status == "ok" and c.sharers == 1}
    assert set(whole) == {"vllm", "tensorrt_llm"}
    for c in whole.values():
        assert 100 < c.replica_share * load.concurrency < 600
        assert c.performance.ttft_ms.p90 <= 800.0

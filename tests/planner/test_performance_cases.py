"""What people reported of performance predictions (cases P), as far as it can be computed. Others: test_estimate,
test_serving_sizing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_samples import fixed, policy, step_model, tables, uniform

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.errors import InputError
from planner.estimate import estimate
from planner.evidence import Evidence, weakest
from planner.fleet_file import load_fleet_file
from planner.memory import ledger
from planner.placement.candidates import candidates
from planner.plan_types import PlanRequest
from planner.serving import Instance, Lengths, Load, SloTarget, largest_load, simulate
from planner.serving import state as k
from planner.serving.arrivals import request_set
from planner.serving.engine import InstanceRules, InstanceRun
from planner.steptime import build
from planner.steptime.types import FrontEnd, StepModel

CHAT: dict[str, Any] = {"load": {"kind": "closed", "concurrency": 16}, "input_tokens": 1000, "output_tokens": 300}


def asked(**changes: Any) -> dict[str, Any]:
    """An estimate of chat-like requests."""
    return estimate({"engine": "vllm", **CHAT, **changes})


def instance(name: str = "Qwen/Qwen3-8B", gpu: str = "H200", **changes: Any) -> Instance:
    """A vLLM instance with hand-made step times."""
    model, card = get_model(name), get_gpu(gpu)
    resolved = resolve(EngineSettings(EngineName.VLLM, **changes), model, card, expected_len=4096)
    step = StepModel(tables(), FrontEnd(0.0, 0.0, 0.0, 0.0), Evidence.SILICON)
    return Instance(model, resolved, ledger(model, card, resolved), step)


def test_p3_what_is_known_less_well_has_the_wider_band() -> None:
    """P3: an A100 and a PCIe A10 are not predicted as an H100 is; the answer says so in evidence and interval."""
    hopper = asked(model="Qwen/Qwen3-32B", gpu="H100", tp=4)
    older = asked(model="Qwen/Qwen3-32B", gpu="A10", tp=4, max_model_len=4096)
    assert (hopper["evidence"], older["evidence"]) == ("silicon", "roofline")

    def width(answer: dict[str, Any]) -> float:
        low, high = answer["perf"]["interval80"]["ttft_ms"]
        return high / low

    assert width(older) > 1.2 * width(hopper)
    assert width(older) > 1.45 / 0.55  # at least the 45 % either way that was reported


@settings(max_examples=12, deadline=None)
@given(limit=st.floats(8.0, 40.0), stat=st.sampled_from(["p50", "p90", "p99"]))
def test_p5_a_load_that_is_named_keeps_the_limit_it_was_given(limit: float, stat: Any) -> None:
    """P5: the TPOT limit is kept by what is simulated at the load found, or nothing is promised."""
    slo = (SloTarget("tpot", stat, limit),)
    found = largest_load(instance(), Load("open", rate_per_s=1), uniform(200, 1800), uniform(50, 350), slo=slo)
    if found.result is None:
        assert found.rate_per_s == 0.0
        return
    assert found.result.tpot_ms is not None
    assert getattr(found.result.tpot_ms, stat) <= limit
    assert found.result.goodput_per_s is not None


def test_p7_evidence_is_of_each_operator_and_the_weakest_counts() -> None:
    """P7: not a majority of operators decides what a prediction rests on."""
    model, gpu = get_model("Qwen/Qwen3-8B"), get_gpu("A100-SXM4-80GB")
    resolved = resolve(EngineSettings(EngineName.VLLM, precision="fp8"), model, gpu, expected_len=4096)
    step = build(model, gpu, resolved)
    assert set(step.operators.values()) > {Evidence.ROOFLINE}, "some are measured, one is not"
    assert step.evidence is weakest(step.operators.values()) is Evidence.ROOFLINE


@pytest.mark.parametrize("version", ["0.5.4", "0.9.1", "9.9.9"])
def test_p9_p10_a_version_whose_rules_were_not_verified_is_said(version: str) -> None:
    """P9, P10: the rules are bound to versions; another one is predicted by the nearest and says so."""
    other = asked(model="Qwen/Qwen3-8B", gpu="H100", engine_version=version)
    assert any(version in reason and "verified" in reason for reason in other["reasons"])
    known = asked(model="Qwen/Qwen3-8B", gpu="H100", engine_version="0.24.0")
    assert not any("verified" in reason for reason in known["reasons"])


@pytest.mark.parametrize("version", ["0.5.4", "9.9.9"])
def test_p10_no_version_is_at_silicon_evidence_of_which_no_run_was_scored_and_no_source_read(version: str) -> None:
    other = asked(model="Qwen/Qwen3-8B", gpu="H100", engine_version=version)
    known = asked(model="Qwen/Qwen3-8B", gpu="H100", engine_version="0.9.1")
    assert (other["evidence"], known["evidence"]) == ("extrapolated", "silicon")


def test_p11_an_estimate_near_saturation_says_so_and_how_busy_it_is() -> None:
    what = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "input_tokens": 1000, "output_tokens": 200}
    offline = asked(**what, load={"kind": "offline", "requests": 2000})["perf"]["req_per_s"]
    near, far = (asked(**what, load={"kind": "open", "rate_per_s": offline * share}) for share in (1.1, 0.3))
    said = [reason for reason in near["reasons"] if "Near saturation" in reason or "grows without bound" in reason]
    assert len(said) == 1
    assert not any("saturation" in reason for reason in far["reasons"])
    width = [answer["perf"]["interval80"]["ttft_ms"][1] / answer["perf"]["ttft_ms"]["p50"] for answer in (near, far)]
    assert width[0] > 2.0 * width[1]


@pytest.mark.parametrize("load_share", [0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("spread", ["fixed", "geometric"])
def test_p12_queueing_of_one_seat_is_that_of_queueing_theory(load_share: float, spread: str) -> None:
    """P12: waiting time of M/D/1 and M/G/1 (Pollaczek-Khinchine), above half the capacity as below."""
    step = step_model()
    rules = InstanceRules(policy(seqs=1, ahead=0), 50_000, extra_step=False)
    rng = np.random.default_rng(1)
    lengths = fixed(100)
    if spread == "geometric":
        lengths = Lengths("samples", samples=tuple(rng.geometric(1 / 100, 20_000).tolist()))

    def times(load: Load) -> tuple[np.ndarray, np.ndarray]:
        requests = request_set(load, fixed(64), lengths, seed=5, block_tokens=16)
        engine = InstanceRun(step, rules, record_rows=requests.size)
        engine.give(requests)
        engine.run()
        records = engine.drain()
        return records[:, k.R_TTFT], records[:, k.R_E2E]

    alone = times(Load("closed", concurrency=1, requests=20_000))
    service = alone[1]
    rate_per_ms = load_share / service.mean()
    busy = Load("open", rate_per_s=1000 * rate_per_ms, requests=60_000)
    waited = times(busy)[0].mean() - alone[0].mean()
    expected = rate_per_ms * (service**2).mean() / (2 * (1 - load_share))
    assert waited == pytest.approx(expected, rel=0.12)


def test_p13_no_fixed_share_of_the_peak_is_used() -> None:
    """P13: the share of the peak FLOPS depends on the step: .55 and .30 for all prompts and decodes miss."""
    model, gpu = get_model("meta-llama/Meta-Llama-3.1-8B"), get_gpu("H100")
    step = build(model, gpu, resolve(EngineSettings(EngineName.VLLM), model, gpu, expected_len=16_384))
    peak = 989.5e12

    def share(tokens: int, ms: float) -> float:
        return 2 * model.total_params * tokens / (ms / 1000) / peak

    prompts = [share(tokens, step.mixed_ms(tokens, 0, 0.0)) for tokens in (64, 512, 8192)]
    decodes = [share(batch, step.decode_ms(batch, 1000.0)) for batch in (1, 32, 256)]
    assert prompts[0] < 0.3 < 0.45 < prompts[2] < 1
    assert decodes[0] < 0.01
    assert decodes[0] < decodes[1] < decodes[2] < prompts[2]


def test_p16_a_limit_without_its_unit_is_refused(tmp_path: Any) -> None:
    """P16: times carry their unit in the name; a bare "ttft_p99: 0.8" is not taken for ms."""
    text = (
        "pools: [{name: a, gpu: H200, gpus: 8, nvlink_domain: 8, count: 1, price: 2.5}]\n"
        "workloads: [{name: c, model: Qwen/Qwen3-8B, load: {rate_per_s: 1}, input_tokens: 100, output_tokens: 10,"
        " slo: {%s: 0.8}}]\n"
    )
    path = tmp_path / "fleet.yaml"
    path.write_text(text % "ttft_p99_ms")
    assert load_fleet_file(path).workloads[0].slo[0].limit_ms == 0.8
    path.write_text(text % "ttft_p99")
    with pytest.raises(InputError, match="ttft_p99"):
        load_fleet_file(path)
    perf = asked(model="Qwen/Qwen3-8B", gpu="H200")["perf"]
    assert {"ttft_ms", "tpot_ms", "e2e_ms", "output_tok_per_s"} <= set(perf)


def test_p17_the_pool_is_the_engines_own_not_a_default() -> None:
    """P17, M43: with a million blocks an 8B on a 4090 would never queue; its own pool holds some twenty requests."""
    request = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "RTX 4090", "max_model_len": 8192}
    load = {"load": {"kind": "closed", "concurrency": 64}, "input_tokens": 2000, "output_tokens": 500}
    answer = asked(**request, **load)
    assert 20_000 < answer["memory"]["kv_tokens"] < 80_000
    small = instance("meta-llama/Meta-Llama-3.1-8B", "RTX 4090", max_model_len=8192)
    endless = replace(small, memory=replace(small.memory, kv_tokens=16_000_000, kv_blocks=1_000_000))
    run = Load("closed", concurrency=64, requests=400)
    own, default = (simulate(i, run, fixed(2000), fixed(500)) for i in (small, endless))
    assert own.ttft_ms is not None
    assert default.ttft_ms is not None
    assert own.tpot_ms is not None
    assert default.tpot_ms is not None
    assert default.ttft_ms.mean < 0.4 * own.ttft_ms.mean
    assert default.tpot_ms.mean > 1.2 * own.tpot_ms.mean


# NVIDIA/TensorRT-LLM issue 5929, TensorRT-LLM 0.21.0rc2, 8 GPUs, one client, 8192 tokens in and 600 out: median TTFT
# and ITL in ms by expert parallelism
P20_MEASURED = {
    ("deepseek-ai/DeepSeek-R1", "H200", "fp8"): {1: (515.8, 14.53), 4: (370.1, 11.59), 8: (352.8, 11.78)},
    ("nvidia/DeepSeek-R1-0528-FP4", "B200", "fp4"): {1: (394.1, 7.14), 4: (390.1, 6.97), 8: (448.1, 7.17)},
}


def p20_answer(model: str, gpu: str, precision: str, ep: int) -> dict[str, Any]:
    """The estimate of one of the runs of P20."""
    return asked(
        engine="tensorrt_llm", engine_version="0.21.0rc2", model=model, gpu=gpu, precision=precision, tp=8, ep=ep,
        load={"kind": "closed", "concurrency": 1}, input_tokens=8192, output_tokens=600,
    )  # fmt: skip


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_p20_a_new_gpu_is_ranked_by_metric_and_only_where_the_bands_part(ep: int) -> None:
    """P20: FP4 on B200 decodes faster than FP8 on H200 and, with EP, takes longer to the first token. Prompts of 8192
    tokens on B200 took twice what the operator tables give in that version; so no order of TTFT may be claimed.
    """
    hopper, blackwell = P20_MEASURED
    answers = [p20_answer(*hopper, ep), p20_answer(*blackwell, ep)]
    assert all(any("outside the versions whose rules were verified" in r for r in a["reasons"]) for a in answers)
    for metric, column in (("ttft_ms", 0), ("tpot_ms", 1)):
        (low_h, high_h), (low_b, high_b) = (a["perf"]["interval80"][metric] for a in answers)
        slower_on_b200 = P20_MEASURED[blackwell][ep][column] > P20_MEASURED[hopper][ep][column]
        assert not (low_b > high_h and not slower_on_b200)
        assert not (low_h > high_b and slower_on_b200)
    first_low, first_high = answers[1]["perf"]["interval80"]["ttft_ms"]
    assert first_low <= P20_MEASURED[blackwell][ep][0] <= first_high
    assert first_high > answers[0]["perf"]["interval80"]["ttft_ms"][0]  # the bands overlap: nothing is claimed


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_p20_first_tokens_on_hopper_by_how_its_experts_are_split(ep: int) -> None:
    """P20: prompts take half as long again where each expert is sliced over all GPUs (EP 1)."""
    hopper = next(iter(P20_MEASURED))
    measured, _ = P20_MEASURED[hopper][ep]
    assert p20_answer(*hopper, ep)["perf"]["ttft_ms"]["p50"] == pytest.approx(measured, rel=0.06)


def test_p22_engines_are_compared_with_equal_caching_and_what_they_run_with_is_kept(tmp_path: Any) -> None:
    """P22: both engines are tuned, neither gets a prefix cache that the other lacks, and the settings stand in the
    candidate.
    """
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "pools: [{name: a, gpu: H200, gpus: 2, nvlink_domain: 2, count: 1, price: 2.5}]\n"
        "workloads: [{name: c, model: Qwen/Qwen3-8B, load: {rate_per_s: 10}, input_tokens: {low: 200, high: 1800},"
        " output_tokens: 200, slo: {ttft_p90_ms: 500, tpot_p90_ms: 25}}]\n"
    )
    request: PlanRequest = load_fleet_file(path)
    found = [c for c in candidates(request.workloads[0], request) if c.status == "ok"]
    kept = {c.settings.engine: c.settings for c in found if c.settings is not None}
    assert set(kept) == set(EngineName)
    assert len({one.enable_prefix_caching for one in kept.values()}) == 1
    for one in kept.values():
        assert one.version
        assert one.max_num_batched_tokens > 0
        assert one.max_num_seqs > 0


def test_p23_an_fp8_checkpoint_on_a_gpu_without_fp8_is_stored_not_computed_in_it() -> None:
    """P23: half the weights, no FP8 arithmetic on an A100 with vLLM; TensorRT-LLM has no kernels for it."""
    half = asked(model="Qwen/Qwen3-8B", gpu="A100-SXM4-80GB", precision="fp8", input_tokens=8000, output_tokens=16)
    full = asked(model="Qwen/Qwen3-8B", gpu="A100-SXM4-80GB", precision="bf16", input_tokens=8000, output_tokens=16)
    assert any("weight-only" in reason for reason in half["reasons"])
    assert half["memory"]["weights_gib"] < 0.6 * full["memory"]["weights_gib"]
    assert half["perf"]["ttft_ms"]["mean"] > 0.9 * full["perf"]["ttft_ms"]["mean"]
    refused = asked(model="Qwen/Qwen3-8B", gpu="A100-SXM4-80GB", precision="fp8", engine="tensorrt_llm")
    assert refused["status"] == "unsupported"
    assert refused["perf"] is None


def test_o14_two_limits_memory_and_time_are_told_apart() -> None:
    """O14: an instance is full when its KV pool is (k1) or when its steps take too long (k2); the smaller counts."""
    slo = (SloTarget("ttft", "p90", 1500.0), SloTarget("tpot", "p50", 11.0))
    found = {}
    for share in (0.92, 0.16):
        made = instance(gpu_memory_utilization=share, max_model_len=8192)
        made = replace(made, step=build(made.model, get_gpu("H200"), made.resolved))
        most = largest_load(made, Load("closed"), fixed(1024), fixed(256), slo=slo)
        found[share] = made.memory.kv_tokens / 1280, most
    pool, most = found[0.92]
    assert most.binding == "tpot p50"
    assert most.concurrency < 0.5 * pool
    small, fewer = found[0.16]
    assert fewer.binding == "throughput", "more clients only wait for blocks"
    assert fewer.concurrency == pytest.approx(small, rel=0.05)
    assert fewer.concurrency < most.concurrency

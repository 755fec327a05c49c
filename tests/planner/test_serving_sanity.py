"""What holds for every load, by hypothesis; more of it in test_serving_kernel (nothing lost, one prefill at least)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, step_model, trt_rules, uniform, vllm_rules

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.memory import ledger
from planner.serving import Instance, Lengths, Load, SloTarget, simulate
from planner.serving.arrivals import request_set
from planner.serving.engine import InstanceRules
from planner.serving.simulator import run_requests
from planner.serving.types import SimResult
from planner.steptime.types import StepModel

SLO = (SloTarget("ttft", "p90", 600.0), SloTarget("tpot", "p90", 14.0))
INPUTS = st.builds(uniform, st.integers(64, 400), st.integers(400, 1500))
OUTPUTS = st.builds(uniform, st.integers(20, 100), st.integers(100, 400))
ENGINES = st.booleans()


def rules_of(trt: bool) -> InstanceRules:
    """One engine's rules or the other's."""
    return trt_rules() if trt else vllm_rules()


def served(load: Load, inputs: Lengths, outputs: Lengths, trt: bool, step: StepModel, seed: int = 0) -> SimResult:
    """A drawn load on one instance."""
    rules = rules_of(trt)
    requests = request_set(load, inputs, outputs, seed=seed, block_tokens=rules.policy.block_tokens)
    return run_requests(step, rules, requests, slo=SLO)


@settings(max_examples=20, deadline=None)
@given(inputs=INPUTS, outputs=OUTPUTS, trt=ENGINES, beyond=st.floats(1.15, 4.0))
@example(inputs=uniform(64, 400), outputs=uniform(51, 141), trt=False, beyond=1.15625)
@example(inputs=uniform(64, 400), outputs=uniform(20, 393), trt=False, beyond=1.5)
def test_more_load_never_raises_goodput_past_the_knee(
    inputs: Lengths, outputs: Lengths, trt: bool, beyond: float
) -> None:
    """Past the knee, where a tenth of what is offered no longer meets the SLO, more load gives no more goodput.

    The knee is looked for: a pool that preempts serves a queue of everything slower than a load it can just hold.
    """
    step = step_model(REAL_FRONT_END)
    queued = served(Load("offline", requests=800), inputs, outputs, trt, step).req_per_s
    rates = [share * queued for share in (0.5, 0.8, 1.0, 1.1, 1.2, 1.35, 1.5, 1.5 * beyond, 3.0 * beyond)]
    good = [
        served(Load("open", rate_per_s=rate, requests=2500), inputs, outputs, trt, step).goodput_per_s or 0.0
        for rate in rates
    ]
    knee = next(at for at, rate in enumerate(rates) if good[at] < 0.9 * rate)
    assert max(good[knee:]) <= 1.02 * max(good[: knee + 1])


@settings(max_examples=30, deadline=None)
@given(
    inputs=INPUTS,
    outputs=OUTPUTS,
    trt=ENGINES,
    load=st.one_of(
        st.builds(lambda n: Load("closed", concurrency=n, requests=4 * n + 20), st.integers(1, 200)),
        st.builds(lambda r: Load("open", rate_per_s=r, requests=600), st.floats(0.5, 60.0)),
        st.just(Load("offline", requests=500)),
    ),
)
def test_throughput_stays_below_the_roofline(inputs: Lengths, outputs: Lengths, trt: bool, load: Load) -> None:
    """No token is computed faster than a matrix product of one token (19.5 us), no step faster than the weights."""
    found = served(load, inputs, outputs, trt, step_model())
    assert found.total_tok_per_s <= 1000.0 / 0.0195
    assert found.output_tok_per_s <= 1000.0 / 4.5 * rules_of(trt).policy.max_seqs
    assert found.utilisation <= 1.0
    assert 0.0 <= found.mean_kv_used <= 1.0


@settings(max_examples=25, deadline=None)
@given(
    inputs=INPUTS, outputs=OUTPUTS, trt=ENGINES, clients=st.integers(1, 120), faster=st.floats(1.1, 4.0),
)  # fmt: skip
def test_more_bandwidth_never_lasts_longer(
    inputs: Lengths, outputs: Lengths, trt: bool, clients: int, faster: float
) -> None:
    load = Load("closed", concurrency=clients, requests=5 * clients + 20)
    slow = served(load, inputs, outputs, trt, step_model())
    fast = served(load, inputs, outputs, trt, step_model(bandwidth=faster))
    assert fast.duration_s <= 1.002 * slow.duration_s  # the order of admissions may differ by a request
    assert fast.req_per_s >= 0.998 * slow.req_per_s


@settings(max_examples=25, deadline=None)
@given(inputs=INPUTS, outputs=OUTPUTS, trt=ENGINES, clients=st.integers(1, 60), think=st.floats(0.0, 5.0))
def test_concurrency_is_throughput_times_time(
    inputs: Lengths, outputs: Lengths, trt: bool, clients: int, think: float
) -> None:
    """Little's law of a closed loop: N = X (R + Z); the ends of the run, where not all clients ask, cost a little."""
    load = Load("closed", concurrency=clients, requests=60 * clients, think_s=think)
    step = step_model()
    found = served(load, inputs, outputs, trt, step)
    assert found.e2e_ms is not None
    per_request_s = found.e2e_ms.mean / 1000.0 + think
    assert found.req_per_s * per_request_s == pytest.approx(clients, rel=0.15)


MODEL, GPU = get_model("Qwen/Qwen3-8B"), get_gpu("H200")


@settings(max_examples=20, deadline=None)
@given(
    inputs=INPUTS, outputs=OUTPUTS, engine=st.sampled_from(list(EngineName)), turns=st.integers(1, 5),
    seed=st.integers(0, 100), replicas=st.integers(1, 3),
)  # fmt: skip
def test_total_tokens_are_input_and_output(
    inputs: Lengths, outputs: Lengths, engine: EngineName, turns: int, seed: int, replicas: int
) -> None:
    resolved = resolve(EngineSettings(engine), MODEL, GPU, expected_len=16_384)
    instance = Instance(MODEL, resolved, ledger(MODEL, GPU, resolved), step_model(REAL_FRONT_END))
    load = Load("closed", concurrency=7, requests=100)
    if turns > 1:
        load = replace(load, turns=Lengths("fixed", value=turns), think_s=0.5)
    found = simulate(instance, load, inputs, outputs, seed=seed, replicas=replicas)
    assert found.completed == found.requests, "no request is lost"
    prompts = found.total_tok_per_s - found.output_tok_per_s
    assert prompts >= found.req_per_s * inputs.low * (1 - 1e-9)
    assert found.output_tok_per_s >= found.req_per_s * outputs.low * (1 - 1e-9)
    assert found.output_tok_per_s <= found.req_per_s * outputs.high * (1 + 1e-9)
    assert 0.0 <= found.prefix_hit < 1.0
    assert (found.prefix_hit > 0.0) == (turns > 1)

"""The kernel against the plain reference scheduler, to the microsecond, and what must hold for any load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_scheduler import ReferenceScheduler
from serving_samples import REAL_FRONT_END, fixed, policy, step_model, trt_rules, uniform, vllm_rules

from planner.errors import InfeasibleError
from planner.serving import state as k
from planner.serving.arrivals import RequestSet, request_set
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.types import Lengths, Load
from planner.steptime.types import FrontEnd

LENGTHS = st.one_of(
    st.integers(1, 300).map(fixed),
    st.tuples(st.integers(1, 100), st.integers(100, 300)).map(lambda pair: uniform(*pair)),
)
LOADS = st.builds(
    Load,
    kind=st.sampled_from(["closed", "open", "offline"]),
    concurrency=st.sampled_from([1, 3, 16, 64]),
    rate_per_s=st.sampled_from([1.0, 20.0, 200.0]),
    arrival=st.sampled_from(["poisson", "constant", "gamma", "onoff"]),
    requests=st.sampled_from([1, 5, 40, 90]),
    prefix_hit=st.sampled_from([0.0, 0.5, 1.0]),
)
FRONTS = st.builds(
    FrontEnd,
    request_ms=st.sampled_from([0.0, 7.0]),
    request_ms_per_1k_tokens=st.sampled_from([0.0, 2.0]),
    response_ms=st.sampled_from([0.0, 4.0]),
    turnaround_ms=st.sampled_from([0.0, 3.0]),
    request_serial_ms=st.sampled_from([0.0, 0.7]),
    chunk_ms=st.sampled_from([0.0, 0.09, 3.0]),
    merge_below=st.sampled_from([0, 4, 128]),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> InstanceRules:
    """Schedulers of either kind, tight and roomy pools."""
    block = draw(st.sampled_from([1, 4, 16, 32]))
    trt = draw(st.booleans())
    chunked = not trt or draw(st.booleans())
    rules = policy(
        budget=draw(st.sampled_from([64, 256, 1024])) if chunked else 2048,
        seqs=draw(st.sampled_from([2, 4, 8, 32])),
        block=block,
        chunked=chunked,
        reserve=trt and draw(st.booleans()),
        full_prompt=draw(st.booleans()),
        ahead=draw(st.sampled_from([0, 1])),
        multiple=block if trt else 1,
        cached_in_budget=trt and not chunked,
        caching=draw(st.booleans()),
        partial_first=not trt and draw(st.booleans()),
    )
    pool = -(-600 // block) + draw(st.sampled_from([0, 1, 5, 40, 400]))
    return InstanceRules(rules, pool, extra_step=trt and rules.steps_ahead > 0)


def run(step, rules: InstanceRules, requests: RequestSet) -> tuple[InstanceRun, np.ndarray]:
    """Simulate to the end; the instance and its records."""
    engine = InstanceRun(step, rules, record_rows=requests.size)
    engine.give(requests)
    engine.run()
    return engine, engine.drain()


def ordered(rows: np.ndarray) -> np.ndarray:
    """Rows by time of completion; requests that end in the same step have no order."""
    ends = np.round(rows[:, 0] + rows[:, 2], 4)
    return rows[np.lexsort((rows[:, 4], rows[:, 3], np.round(rows[:, 0], 4), ends))]


@settings(max_examples=150, deadline=None)
@given(rules=rule_sets(), front=FRONTS, load=LOADS, inputs=LENGTHS, outputs=LENGTHS, seed=st.integers(0, 1000))
def test_kernel_equals_the_plain_scheduler(
    rules: InstanceRules, front: FrontEnd, load: Load, inputs: Lengths, outputs: Lengths, seed: int
) -> None:
    step = step_model(front)
    requests = request_set(load, inputs, outputs, seed=seed, block_tokens=rules.policy.block_tokens)
    reference = ReferenceScheduler(step, rules, requests)
    reference.run()
    engine, records = run(step, rules, requests)
    expected = np.array(
        [
            (r.sent, r.first + front.response_ms - r.sent, r.done_at + front.response_ms - r.sent, r.prompt, r.output)
            for r in reference.finished
        ]
    )
    records = records[:, : k.R_HIT]
    assert records.shape == expected.shape
    np.testing.assert_allclose(ordered(records), ordered(expected), atol=1e-3, rtol=0)
    assert engine.ints[k.I_PREEMPTIONS] == reference.preemptions
    assert engine.ints[k.I_FREE] == rules.pool_blocks
    assert engine.floats[k.F_PREFILLED] == pytest.approx(reference.prefilled)


@settings(max_examples=40, deadline=None)
@given(load=LOADS, inputs=LENGTHS, outputs=LENGTHS, seed=st.integers(0, 1000), trt=st.booleans())
def test_nothing_is_lost_and_nothing_ends_before_it_came(
    load: Load, inputs: Lengths, outputs: Lengths, seed: int, trt: bool
) -> None:
    rules = trt_rules() if trt else vllm_rules(pool_blocks=60)
    step = step_model(REAL_FRONT_END)
    requests = request_set(load, inputs, outputs, seed=seed, block_tokens=rules.policy.block_tokens)
    _, records = run(step, rules, requests)
    assert records.shape[0] == requests.size
    assert records[:, k.R_INPUT].sum() == requests.inputs.sum()
    assert records[:, k.R_OUTPUT].sum() == requests.outputs.sum()
    alone = np.array([step.mixed_ms(int(n), 0, 0.0) for n in records[:, k.R_INPUT] * (1 - load.prefix_hit)])
    shortest = step.mixed_ms(1, 0, 0.0)
    assert (records[:, k.R_TTFT] >= np.maximum(shortest, np.where(load.prefix_hit > 0, 0.0, alone)) - 1e-6).all()
    assert (records[:, k.R_E2E] >= records[:, k.R_TTFT] - 1e-6).all()


def test_same_seed_same_bits() -> None:
    load = Load("open", rate_per_s=12, arrival="gamma", cv=2.0, requests=3000)
    runs = []
    for _ in range(2):
        requests = request_set(load, uniform(100, 1500), uniform(20, 400), seed=7, block_tokens=16)
        runs.append(run(step_model(REAL_FRONT_END), vllm_rules(), requests)[1])
    assert runs[0].tobytes() == runs[1].tobytes()


def test_a_run_that_stops_and_goes_on_gives_the_same_records() -> None:
    load = Load("open", rate_per_s=15, requests=800)
    requests = request_set(load, uniform(100, 1500), uniform(20, 400), seed=3, block_tokens=16)
    _, whole = run(step_model(), vllm_rules(), requests)
    engine = InstanceRun(step_model(), vllm_rules(), record_rows=requests.size)
    engine.give(requests)
    for until in range(100, 60_000, 170):
        engine.run(float(until))
    engine.run()
    np.testing.assert_allclose(engine.drain(), whole, atol=1e-6, rtol=0)


def test_little_law() -> None:
    load = Load("open", rate_per_s=10, requests=4000)
    requests = request_set(load, uniform(100, 1500), uniform(20, 400), seed=5, block_tokens=16)
    engine, records = run(step_model(), vllm_rules(), requests)
    span_ms = float((records[:, k.R_SEND] + records[:, k.R_E2E]).max())
    in_system = records[:, k.R_E2E].sum() / span_ms  # lambda x W
    # the batch counts steps planned ahead, so waiting for the next step is the difference
    running = engine.floats[k.F_BATCH_MS] / span_ms
    waiting = records.shape[0] / span_ms * 15.0
    assert running == pytest.approx(in_system, abs=waiting)


def test_closed_loop_concurrency_by_little_law() -> None:
    load = Load("closed", concurrency=24, requests=2400)
    requests = request_set(load, uniform(100, 900), uniform(50, 300), seed=5, block_tokens=16)
    _, records = run(step_model(REAL_FRONT_END), vllm_rules(), requests)
    span_ms = float((records[:, k.R_SEND] + records[:, k.R_E2E]).max())
    assert records[:, k.R_E2E].sum() / span_ms == pytest.approx(24, rel=0.03)


def test_more_bandwidth_is_never_slower() -> None:
    load = Load("open", rate_per_s=10, requests=1500)
    requests = request_set(load, uniform(100, 1500), uniform(20, 400), seed=5, block_tokens=16)
    means = [run(step_model(bandwidth=b), vllm_rules(), requests)[1][:, k.R_E2E].mean() for b in (0.5, 1.0, 2.0, 4.0)]
    assert means == sorted(means, reverse=True)


def test_throughput_stays_below_the_roofline() -> None:
    """H19: 1,024 clients on KV for 68 requests must not give the throughput of 1,024."""
    step = step_model()
    tokens = 68 * 1280
    load = Load("closed", concurrency=1024, requests=2048)
    requests = request_set(load, fixed(1024), fixed(256), seed=0, block_tokens=16)
    engine, records = run(step, vllm_rules(pool_blocks=tokens // 16, seqs=1024), requests)
    seconds = float((records[:, k.R_SEND] + records[:, k.R_E2E]).max()) / 1000.0
    rate = records[:, k.R_OUTPUT].sum() / seconds
    assert engine.floats[k.F_BATCH_MS] / engine.floats[k.F_BUSY_MS] < 70
    assert rate < 80 / (step.decode_ms(80, 1152.0) / 1000.0)  # no more than a pool full of decodes at full speed
    prefill_s_per_request = step.mixed_ms(8192, 0, 0.0) / 8 / 1000.0
    assert rate < 256 / prefill_s_per_request


def test_a_small_cut_of_the_pool_is_a_cliff() -> None:
    """H18: near the need of the load, a few percent of blocks turn into preemptions and a far higher TTFT."""
    load = Load("closed", concurrency=32, requests=400)
    requests = request_set(load, uniform(600, 1000), uniform(200, 300), seed=1, block_tokens=16)
    peak = 32 * 1000 // 16

    def outcome(blocks: int) -> tuple[int, float]:
        engine, records = run(step_model(), vllm_rules(pool_blocks=blocks), requests)
        return int(engine.ints[k.I_PREEMPTIONS]), float(np.percentile(records[:, k.R_TTFT], 90))

    roomy, tight = outcome(int(peak * 1.3)), outcome(int(peak * 0.85))
    assert roomy[0] == 0
    assert tight[1] > 2 * roomy[1] or tight[0] > 20


def test_preemptions_signal_missing_capacity() -> None:
    """H20: 1000/5000 at 128 clients on 299,584 KV tokens preempts; a watermark eases it, and enough KV ends it."""
    load = Load("closed", concurrency=128, requests=512)
    requests = request_set(load, fixed(1000), fixed(5000), seed=1, block_tokens=16)
    short, _ = run(step_model(), vllm_rules(pool_blocks=299_584 // 16), requests)
    enough, _ = run(step_model(), vllm_rules(pool_blocks=128 * 6016 // 16), requests)
    marked, _ = run(step_model(), vllm_rules(pool_blocks=299_584 // 16, watermark=0.02), requests)  # type: ignore[arg-type]
    assert enough.ints[k.I_PREEMPTIONS] == 0
    assert short.ints[k.I_PREEMPTIONS] > 300
    assert marked.ints[k.I_PREEMPTIONS] < short.ints[k.I_PREEMPTIONS]


def test_no_evict_reserves_the_output_and_never_preempts() -> None:
    """A pool of three full requests runs three at a time, although thirty prompts would fit."""
    rules = trt_rules(pool_blocks=3 * 8)
    load = Load("offline", requests=30)
    requests = request_set(load, fixed(16), fixed(240), seed=0, block_tokens=32)
    engine, records = run(step_model(), rules, requests)
    assert engine.ints[k.I_PREEMPTIONS] == 0
    batch = engine.floats[k.F_BATCH_MS] / engine.floats[k.F_BUSY_MS]
    assert 2.5 < batch <= 3.1
    assert np.unique(np.round(records[:, k.R_E2E], 3)).size >= 10


def test_an_overlapped_finish_costs_one_more_step() -> None:
    load = Load("closed", concurrency=1, requests=2)
    requests = request_set(load, fixed(64), fixed(10), seed=0, block_tokens=32)
    step = step_model()
    _, plain = run(step, vllm_rules(block=32), requests)
    _, overlapped = run(step, trt_rules(), requests)
    decode = step.decode_ms(1, 70.0)
    assert overlapped[1, k.R_TTFT] - plain[1, k.R_TTFT] == pytest.approx(decode, rel=0.05)
    assert overlapped[0, k.R_E2E] == pytest.approx(plain[0, k.R_E2E])


def test_the_next_request_of_a_closed_loop_misses_the_step_already_planned() -> None:
    load = Load("closed", concurrency=2, requests=40)
    requests = request_set(load, fixed(512), uniform(40, 80), seed=0, block_tokens=16)
    ahead = run(step_model(), vllm_rules(ahead=1), requests)[1]
    waits = run(step_model(), vllm_rules(ahead=0), requests)[1]
    decode = step_model().decode_ms(1, 550.0)
    assert ahead[10:, k.R_TTFT].mean() - waits[10:, k.R_TTFT].mean() == pytest.approx(decode, rel=0.25)


@pytest.mark.parametrize(("prompt", "rules"), [(9000, trt_rules()), (700, vllm_rules(pool_blocks=40))])
def test_a_request_that_can_never_run_is_refused_with_the_remedy(prompt: int, rules: InstanceRules) -> None:
    requests = request_set(Load("offline", requests=3), fixed(prompt), fixed(10), seed=0, block_tokens=16)
    engine = InstanceRun(step_model(), rules, record_rows=3)
    with pytest.raises(InfeasibleError, match="tokens"):
        engine.give(requests)


def test_pipeline_stages_raise_throughput_not_the_speed_of_one() -> None:
    one = request_set(Load("closed", concurrency=1, requests=4), fixed(512), fixed(100), seed=0, block_tokens=16)
    many = request_set(Load("closed", concurrency=128, requests=512), fixed(512), fixed(100), seed=0, block_tokens=16)

    def span(requests: RequestSet, pp: int) -> float:
        rules = InstanceRules(policy(), 50_000, extra_step=False, pp=pp)
        _, records = run(step_model(pp=pp), rules, requests)
        return float((records[:, k.R_SEND] + records[:, k.R_E2E]).max())

    assert span(one, 2) == pytest.approx(span(one, 1), rel=0.01)
    assert span(many, 2) < 0.8 * span(many, 1)

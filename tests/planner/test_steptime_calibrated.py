"""Correction by probes, clock, host time and front end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import get_gpu, get_model
from planner.errors import InputError
from planner.evidence import Evidence
from planner.plan_types import CalibrationFactor
from planner.steptime import build
from planner.steptime.__main__ import main
from planner.steptime.calibrated import fit, matching
from planner.steptime.clock import slowdown
from planner.steptime.front_end import front_end, host_time, rank_time, version_tuple
from tests.planner.steptime_samples import H200, settings, step

FACTOR = CalibrationFactor("vllm", H200, "", "", 0, 1.1, 5.0, 4, 0.03, "probe 1")


def test_a_calibrated_step_is_longer_by_the_factor_and_says_so() -> None:
    plain = step("Qwen/Qwen3-8B", H200)
    model, gpu = get_model("Qwen/Qwen3-8B"), get_gpu(H200)
    corrected = build(model, gpu, settings("Qwen/Qwen3-8B", H200), calibrations=(FACTOR,))
    assert corrected.evidence is Evidence.CALIBRATED
    assert corrected.decode_ms(32, 1024) == pytest.approx(1.1 * plain.decode_ms(32, 1024))
    assert corrected.front_end.request_ms == pytest.approx(plain.front_end.request_ms + 5.0)
    assert corrected.factors == {"calibration": 1.1, "calibration_log_sd": 0.03}
    other = build(model, gpu, settings("Qwen/Qwen3-8B", H200, "tensorrt_llm"), calibrations=(FACTOR,))
    assert other.evidence is Evidence.SILICON


def test_the_most_specific_factor_wins() -> None:
    exact = replace(FACTOR, model="Qwen/Qwen3-8B", precision="bf16", tp=1, step_factor=1.2)
    wrong = replace(exact, tp=2, step_factor=1.3)
    key = {"engine": "vllm", "gpu": H200, "model": "Qwen/Qwen3-8B", "precision": "bf16", "tp": 1}
    assert matching((FACTOR, wrong, exact), **key) is exact
    assert matching((wrong,), **key) is None
    more = replace(FACTOR, samples=9)
    assert matching((FACTOR, more), **key) is more


@given(st.floats(0.5, 2.0), st.lists(st.floats(0.5, 200.0), min_size=1, max_size=12))
def test_a_constant_ratio_is_found_again(ratio: float, predicted: list[float]) -> None:
    factor = fit([(value, value * ratio) for value in predicted], engine="vllm", source="probe")
    assert factor.step_factor == pytest.approx(ratio, rel=1e-9)
    assert factor.samples == len(predicted)
    assert factor.residual_log_sd == pytest.approx(0.1 if len(predicted) == 1 else 0.0, abs=1e-6)


def test_fit_withstands_a_broken_run_and_reports_the_spread() -> None:
    pairs = [(10.0, 11.0), (10.0, 11.5), (10.0, 10.5), (10.0, 900.0)]
    factor = fit(pairs, ttft_pairs=[(50.0, 58.0), (60.0, 66.0), (70.0, 75.0)])
    assert factor.step_factor == pytest.approx(1.1)
    assert factor.samples == 3
    assert 0.03 < factor.residual_log_sd < 0.06
    assert factor.ttft_extra_ms == 6.0
    with pytest.raises(InputError, match="no usable pair"):
        fit([(0.0, 3.0), (1.0, 99.0)])


def test_a_factor_of_zero_is_refused() -> None:
    broken = replace(FACTOR, step_factor=0.0)
    with pytest.raises(InputError, match="must be positive"):
        build(get_model("Qwen/Qwen3-8B"), get_gpu(H200), settings("Qwen/Qwen3-8B", H200), calibrations=(broken,))


def test_only_compute_bound_work_slows_with_the_clock() -> None:
    """An H200 at its 700 W limit: full prefill steps 3-9 % longer than the tables, decode within 2 %."""
    factors = slowdown(get_gpu(H200), np.array([0.05, 0.3, 0.7, 0.9]))
    assert factors[:2].tolist() == [1.0, 1.0]
    assert np.all((factors[2:] > 1.03) & (factors[2:] < 1.09))
    assert slowdown(get_gpu("L4"), np.array([0.9]))[0] == 1.0


def test_engines_that_plan_no_step_ahead_pay_host_time_in_every_step() -> None:
    resolved = settings("Qwen/Qwen3-8B", H200)
    assert resolved.async_scheduling
    ahead = host_time(resolved)
    behind = host_time(replace(resolved, async_scheduling=False))
    oldest = host_time(replace(resolved, async_scheduling=False, version="0.6.3"))
    assert ahead.fixed_ms < behind.fixed_ms < oldest.fixed_ms
    assert version_tuple("1.3.0rc20") == (1, 3, 0)
    assert version_tuple("v0.24.0+cu130") == (0, 24, 0)


def test_the_front_end_is_a_queue_with_a_cost_for_every_token() -> None:
    delays = front_end(settings("Qwen/Qwen3-8B", H200))
    # 256 streams at 18.5 ms a step: measured gaps of 21.9 ms, so the front end is the slower one
    assert 18.5 < 256 * delays.chunk_ms < 25.0
    # later runs, which closed loops go by: 256 streams are sent a token each in 14.4 to 17.3 ms
    assert delays.loop is not None
    assert 14.0 < delays.loop.step_ms + 256 * delays.loop.large_step_chunk_ms < 17.5
    assert delays.request_serial_ms < delays.request_ms
    lone_prompt_extra = delays.request_ms + delays.response_ms + 2.048 * delays.request_ms_per_1k_tokens
    assert 11.0 < lone_prompt_extra < 19.0


def test_host_work_beside_the_kernels_is_a_floor() -> None:
    small = step("Qwen/Qwen3-0.6B", H200)
    # measured by the engine: 1.73 ms at one stream, 2.76 at 64, 3.95 at 128 and 10.77 at 512; a lone prompt of 1024
    # tokens some 15 ms. (32 streams take longer than 64 do, 2.95 ms in three runs: cause not found.)
    assert small.decode_ms(1, 1100) == pytest.approx(1.73, rel=0.03)
    assert small.decode_ms(64, 256) == pytest.approx(2.76, rel=0.05)
    assert small.decode_ms(128, 256) == pytest.approx(3.95, rel=0.05)
    assert small.decode_ms(512, 256) == pytest.approx(10.77, rel=0.05)
    assert small.mixed_ms(1024, 0, 1) == pytest.approx(15.0, rel=0.1)
    assert small.mixed_ms(256, 0, 1) < 8.0  # within the captured sizes
    large = step("Qwen/Qwen3-8B", H200)
    without = replace(large, tables=replace(large.tables, host_ms=0.0, host_ms_per_sequence=0.0, launch_ms=0.0))
    assert large.decode_ms(32, 1024) == without.decode_ms(32, 1024)
    assert large.mixed_ms(4096, 8, 1024) == without.mixed_ms(4096, 8, 1024)


def test_the_command_prints_times_and_refuses_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Qwen/Qwen3-8B", "L4", "--tp", "2"]) == 0
    shown = capsys.readouterr().out
    assert "evidence roofline" in shown
    assert "prompt alone" in shown
    assert main(["Qwen/Qwen3-8B", "no-such-card"]) == 2
    assert "no-such-card" in capsys.readouterr().err


def test_speculation_costs_verification_and_drafting() -> None:
    plain = step("Qwen/Qwen3-8B", H200)
    drafted = step("Qwen/Qwen3-8B", H200, speculative_tokens=3, speculative_acceptance=2.0)
    assert plain.decode_ms(1, 1024) * 1.05 < drafted.decode_ms(1, 1024) < plain.decode_ms(1, 1024) * 1.7
    assert drafted.decode_ms(256, 1024) > plain.decode_ms(256, 1024) * 1.4
    assert drafted.mixed_ms(2048, 0, 0.0) == pytest.approx(plain.mixed_ms(2048, 0, 0.0))


def test_eager_execution_is_launch_bound_at_small_batches() -> None:
    plain, slow = (step("Qwen/Qwen3-8B", H200, enforce_eager=eager) for eager in (False, True))
    assert slow.decode_ms(1, 1024) > 2 * plain.decode_ms(1, 1024)
    assert slow.mixed_ms(8192, 0, 0.0) == pytest.approx(plain.mixed_ms(8192, 0, 0.0))
    assert slow.evidence is Evidence.EXTRAPOLATED
    assert slow.tables.graph_sizes.size == 0


def test_a_hand_over_that_leaves_the_node_takes_longer() -> None:
    inside = step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=4, pp=2)
    across = step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=8, pp=2)
    alone = step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=8)
    base = step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=4)
    near = inside.mixed_ms(8192, 0, 0.0) - base.mixed_ms(8192, 0, 0.0)
    far = across.mixed_ms(8192, 0, 0.0) - alone.mixed_ms(8192, 0, 0.0)
    assert 0.0 < near < far


def test_ranks_that_agree_in_python_add_host_time() -> None:
    """TensorRT-LLM 1.0, Llama-3.1-8B on eight H100: 1.9 ms above the kernels at 64 streams, nothing on one GPU."""
    resolved = settings("Qwen/Qwen3-8B", H200, "tensorrt_llm")
    early = replace(resolved, version="1.0.0rc3", tp=8)
    added = rank_time(early)
    assert added.fixed_ms + 64 * added.per_sequence_ms == pytest.approx(2.1, abs=0.3)
    assert added.up_to == 64
    assert rank_time(replace(early, tp=1)).fixed_ms == 0.0
    assert rank_time(replace(early, version="1.3.0rc20")).fixed_ms == 0.0

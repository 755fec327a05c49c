"""The roofline and the geometry of a step: what must hold for any GPU and any load."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from planner.catalog import get_gpu, list_gpus
from planner.engines.types import EngineName
from planner.errors import UnsupportedError
from planner.evidence import Evidence
from planner.steptime import build
from planner.steptime.build import source_for
from planner.steptime.database import open_database, versions
from planner.steptime.efficiency import efficiency, family
from planner.steptime.graph import AllReduceOp, AttentionOp, ElementwiseOp, GemmOp, MoeOp, WeightFormat
from planner.steptime.roofline import RooflineSource
from planner.steptime.sources import monotone, prefill_shape, windowed_context
from tests.planner.steptime_samples import settings, step

BF16 = WeightFormat("bf16", 16.0, "bf16")
A10 = get_gpu("A10")
sizes = st.integers(min_value=64, max_value=16384)


@given(n=sizes, k=sizes, rows=st.integers(1, 32768))
def test_a_gemm_never_beats_the_data_sheet(n: int, k: int, rows: int) -> None:
    source = RooflineSource(A10, "vllm")
    ms = source.rows(GemmOp("g", n, k, BF16), np.array([float(rows)])).ms[0]
    assert A10.mem_bw_gb_s is not None
    assert A10.bf16_tflops is not None
    assert ms >= 2.0 * n * k / (A10.mem_bw_gb_s * 1e6)
    assert ms >= 2.0 * rows * n * k / (A10.bf16_tflops * 1e9)


@hypothesis_settings(max_examples=40)
@given(
    faster=st.floats(1.0, 8.0),
    batch=st.integers(1, 512),
    kv=st.integers(16, 65536),
    window=st.one_of(st.none(), st.integers(64, 8192)),
)
def test_more_bandwidth_never_slows_anything(faster: float, batch: int, kv: int, window: int | None) -> None:
    assert A10.mem_bw_gb_s is not None
    slow, fast = (
        RooflineSource(replace(A10, mem_bw_gb_s=A10.mem_bw_gb_s * factor), "vllm") for factor in (1.0, faster)
    )
    rows, length = np.array([float(batch)]), np.array([float(kv)])
    mixer = AttentionOp(32, 8, 128, 128, window, qk_norm=False, kv_dtype="bf16")
    assert fast.decode(mixer, rows, length).ms <= slow.decode(mixer, rows, length).ms
    assert fast.prefill(mixer, rows, length).ms <= slow.prefill(mixer, rows, length).ms
    for op in (
        GemmOp("g", 4096, 4096, BF16),
        ElementwiseOp(4096),
        MoeOp(2048, 768, 8, 128, True, 1, 1, 1, BF16),
        AllReduceOp(4096, 4),
    ):
        assert fast.rows(op, rows).ms <= slow.rows(op, rows).ms


@pytest.mark.parametrize("gpu", ["A10", "L4", "A30", "H100-PCIe-80GB", "H100-NVL-94GB", "RTX-4090", "MI300X", "Gaudi3"])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"])
def test_every_card_with_a_data_sheet_has_monotone_step_times(gpu: str, model: str) -> None:
    built = step(model, gpu)
    assert built.evidence is Evidence.ROOFLINE
    tables = built.tables
    for values in (tables.shared_ms, tables.head_ms, tables.prefill_ms, tables.decode_ms):
        assert np.all(np.isfinite(values))
        assert np.all(values > 0)
        for axis in range(values.ndim):
            assert np.all(np.diff(values, axis=axis) >= -1e-9)


def test_tables_of_measured_operators_are_monotone_too() -> None:
    tables = step("Qwen/Qwen3-30B-A3B", "H200-SXM-141GB", "tensorrt_llm").tables
    for values in (tables.shared_ms, tables.head_ms, tables.prefill_ms, tables.decode_ms):
        for axis in range(values.ndim):
            assert np.all(np.diff(values, axis=axis) >= -1e-9)


def test_roofline_is_near_the_measured_operators_where_both_exist() -> None:
    """The constants were fitted there: a decode and a prefill step within 15 %."""
    for gpu in ("H100-SXM5-80GB", "A100-SXM4-80GB", "L40S", "B200-SXM"):
        card = get_gpu(gpu)
        measured = step("meta-llama/Llama-3.1-8B-Instruct", gpu)
        analytic = build(*_model_on(replace(card, aic_system=None)), settings("meta-llama/Llama-3.1-8B-Instruct", gpu))
        assert measured.evidence is Evidence.SILICON
        assert analytic.evidence is Evidence.ROOFLINE
        assert analytic.decode_ms(32, 2048) == pytest.approx(measured.decode_ms(32, 2048), rel=0.15)
        assert analytic.mixed_ms(4096, 0, 0.0) == pytest.approx(measured.mixed_ms(4096, 0, 0.0), rel=0.15)


def _model_on(gpu):  # type: ignore[no-untyped-def]
    from planner.catalog import get_model

    return get_model("meta-llama/Llama-3.1-8B-Instruct"), gpu


def test_a_card_without_bandwidth_is_refused_with_the_reason() -> None:
    card = replace(A10, name="Mystery", mem_bw_gb_s=None, aic_system=None)
    with pytest.raises(UnsupportedError, match="memory bandwidth of this GPU is unknown"):
        build(*_model_on(card), settings("meta-llama/Llama-3.1-8B-Instruct", "A10"))


def test_a_card_without_arithmetic_rates_is_refused_with_the_reason() -> None:
    card = replace(A10, name="Mystery", bf16_tflops=None, fp16_tflops=None, aic_system=None)
    with pytest.raises(UnsupportedError, match="no 16-bit arithmetic rate"):
        build(*_model_on(card), settings("meta-llama/Llama-3.1-8B-Instruct", "A10"))


def test_every_card_of_the_catalogue_has_a_family_with_a_source() -> None:
    for name in list_gpus():
        card = get_gpu(name if isinstance(name, str) else name.name)
        found = efficiency(card, "vllm")
        assert found.source
        assert 0.0 < found.gemm_flops["bf16"] < 1.0, family(card)


def test_power_limits_the_card_of_the_same_peak() -> None:
    sxm, pcie = (efficiency(get_gpu(name), "vllm") for name in ("A100-SXM4-80GB", "A100-PCIe-80GB"))
    assert pcie.gemm_flops["bf16"] < sxm.gemm_flops["bf16"]


@given(tokens=st.integers(1, 32768), context=st.floats(1.0, 200_000.0))
def test_a_prefill_point_keeps_its_tokens_and_keys(tokens: int, context: float) -> None:
    prompts, each, past = prefill_shape(float(tokens), context)
    assert prompts * each == pytest.approx(tokens)
    assert past + (each + 1) / 2 == pytest.approx(max(context, 1.0), rel=1e-6)


@given(tokens=st.integers(1, 20000), past=st.integers(0, 20000), window=st.integers(1, 8192))
def test_windowed_keys_are_the_mean_of_the_clipped_positions(tokens: int, past: int, window: int) -> None:
    exact = np.minimum(np.arange(past + 1, past + tokens + 1), window).mean()
    found = windowed_context(float(tokens), past + (tokens + 1) / 2, window)
    assert found == pytest.approx(exact, rel=0.02, abs=0.6)


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=20))
def test_monotone_never_raises_a_value_and_keeps_rising_ones(values: list[float]) -> None:
    ms = np.array(values)
    smooth = monotone(ms)
    assert np.all(np.diff(smooth) >= 0)
    assert np.all(smooth <= ms)
    assert np.array_equal(monotone(np.sort(ms)), np.sort(ms))


def test_without_the_operator_package_the_roofline_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wheels do not exist for every platform."""
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", None)
    card = replace(get_gpu("H200-SXM-141GB"), name="H200 without operators")
    for cached in (source_for, open_database, versions):
        cached.cache_clear()
    try:
        assert isinstance(source_for(card, EngineName.VLLM), RooflineSource)
    finally:
        for cached in (source_for, open_database, versions):
            cached.cache_clear()


@pytest.mark.parametrize("stored", ["fp8", "int4"])
def test_marlin_on_a100_reads_narrow_weights_fast_and_multiplies_slowly(stored: str) -> None:
    """Faster than 16-bit weights for few rows; 141 TFLOPS, three fifths of torch's rate, for many (vLLM pull 2497)."""
    source = source_for(get_gpu("A100-SXM-80GB"), EngineName.VLLM)
    rows = np.array([1.0, 16.0, 8192.0])
    wide, narrow = (
        source.rows(GemmOp("g", 18432, 73728, weight), rows).ms
        for weight in (BF16, WeightFormat(stored, {"fp8": 8.0, "int4": 4.25}[stored], "bf16"))
    )
    assert narrow[0] < 0.8 * wide[0]
    assert narrow[1] < 0.8 * wide[1]
    assert 2.0 * 8192 * 18432 * 73728 / narrow[2] / 1e9 == pytest.approx(141.0, rel=0.1)
    assert narrow[2] > 1.5 * wide[2]


def test_kernels_that_widen_weights_keep_up_elsewhere() -> None:
    """TensorRT-LLM's on A100, where they were measured, and Marlin on cards with little tensor throughput."""
    rows, int4 = np.array([8192.0]), WeightFormat("int4", 4.25, "bf16")
    for gpu, engine in (("A100-SXM-80GB", EngineName.TENSORRT_LLM), ("A10", EngineName.VLLM), ("T4", EngineName.VLLM)):
        source = source_for(get_gpu(gpu), engine)
        wide, narrow = (source.rows(GemmOp("g", 8192, 8192, weight), rows).ms[0] for weight in (BF16, int4))
        assert narrow == pytest.approx(wide, rel=0.1), gpu


def test_eight_bits_to_widen_are_read_faster_than_four() -> None:
    """A kernel widens half as many weights in a byte of 8-bit ones (operators of a100_sxm: 0.71 against 0.58)."""
    source, one = source_for(get_gpu("A100-SXM-80GB"), EngineName.VLLM), np.array([1.0])
    for stored, bits, share in (("fp8", 8.0, 0.71), ("int4", 4.0, 0.58)):
        taken = source.rows(GemmOp("g", 18432, 73728, WeightFormat(stored, bits, "bf16")), one).ms[0]
        assert 18432 * 73728 * bits / 8 / taken / 2.039e9 == pytest.approx(share, rel=0.1), stored


@pytest.mark.parametrize(("rows", "ms"), [(32, 0.667), (128, 0.999), (512, 2.215), (2048, 5.678), (8192, 18.999)])
def test_marlin_experts_on_a100_last_as_measured(rows: int, ms: float) -> None:
    """Operators of a100_sxm (``sglang_marlin_moe``, power law 1.01): 128 experts of 1,536, 8 used, hidden 4,096."""
    source = source_for(get_gpu("A100-SXM-80GB"), EngineName.VLLM)
    experts = MoeOp(4096, 1536, 8, 128, gated=True, tp=1, ep=1, dp=1, weight=WeightFormat("int4", 4.25, "bf16"))
    assert source.rows(experts, np.array([float(rows)])).ms[0] == pytest.approx(ms, rel=0.15)

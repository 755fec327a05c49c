"""Step times from measured operators: reproduction, composition, substitution and evidence."""

from __future__ import annotations

import socket
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import get_gpu, get_model
from planner.engines.types import EngineName
from planner.evidence import Evidence
from planner.steptime.build import source_for
from planner.steptime.database import NoOperatorDataError, open_database
from planner.steptime.graph import AllReduceOp, AttentionOp, GemmOp, MlaOp, MoeOp, WeightFormat, build_graph
from planner.steptime.silicon_attention import decode_grid, geometry
from planner.steptime.silicon_mla import mla_decode, mla_prefill
from planner.steptime.silicon_moe import as_padded, moe_rows
from tests.planner.steptime_samples import H100, H200, kernels_ms, settings, step

pytest.importorskip("aiconfigurator_core")

BF16 = WeightFormat("bf16", 16.0, "bf16")
SPARSE = "deepseek-ai/DeepSeek-V3.2"


def attention(heads: int, kv_heads: int, head_dim: int = 128, window: int | None = None) -> AttentionOp:
    return AttentionOp(heads, kv_heads, head_dim, head_dim, window, qk_norm=False, kv_dtype="bf16")


@pytest.mark.parametrize(("batch", "expected_ms"), [(1, 5.076), (8, 5.336), (32, 6.682), (64, 8.310), (128, 11.20)])
def test_composed_decode_equals_the_compiled_engine(batch: int, expected_ms: float) -> None:
    """Qwen3-8B bf16, KV 1152: the package's own compiled model on the same tables (its numbers, run once)."""
    assert kernels_ms(step("Qwen/Qwen3-8B", H200), batch, 1152.0) == pytest.approx(expected_ms, rel=0.03)


@pytest.mark.parametrize(("tokens", "expected_ms"), [(128, 7.2), (512, 12.6), (2048, 42.3), (4096, 91.2)])
def test_composed_prefill_equals_the_compiled_engine_up_to_the_clock(tokens: int, expected_ms: float) -> None:
    ms = step("Qwen/Qwen3-8B", H200).mixed_ms(tokens, 0, 0.0)
    assert expected_ms * 0.97 < ms < expected_ms * 1.10


@pytest.mark.parametrize(("clients", "itl_ms"), [(1, 5.234), (8, 5.634), (32, 6.732), (64, 8.245), (128, 11.669)])
def test_decode_steps_agree_with_a_real_engine(clients: int, itl_ms: float) -> None:
    """Median gap between tokens of vLLM 0.24.0 with Qwen3-8B bf16 on an H200, prompts of 1024 and answers of 256
    tokens."""
    assert step("Qwen/Qwen3-8B", H200).decode_ms(clients, 1152.0) == pytest.approx(itl_ms, rel=0.04)


@pytest.mark.parametrize(
    ("engine", "batch", "kv", "expected_ms"),
    [
        ("vllm", 1, 1024, 15.80),
        ("vllm", 8, 8192, 18.44),
        ("vllm", 32, 16384, 30.09),
        ("tensorrt_llm", 1, 1024, 15.88),
        ("tensorrt_llm", 8, 8192, 19.10),
        ("tensorrt_llm", 32, 16384, 29.80),
    ],
)
def test_an_architecture_without_a_name_is_composed_and_stays_silicon(
    engine: str, batch: int, kv: int, expected_ms: float
) -> None:
    """Gemma-3-27B: 52 window layers, 10 full ones, 32/16 heads; numbers composed by hand from the same operators."""
    gemma = step("google/gemma-3-27b-it", H200, engine)
    assert gemma.evidence is Evidence.SILICON
    assert kernels_ms(gemma, batch, float(kv)) == pytest.approx(expected_ms, rel=0.07)


def test_window_layers_do_not_grow_with_the_context() -> None:
    tables = step("google/gemma-3-27b-it", H200).tables
    row = list(tables.decode_batch).index(32)
    ms = dict(zip(tables.decode_kv.tolist(), tables.decode_ms[row].tolist(), strict=True))
    full = step("Qwen/Qwen3-32B", H200).tables
    grown = dict(zip(full.decode_kv.tolist(), full.decode_ms[row].tolist(), strict=True))
    assert ms[32768.0] / ms[1024.0] < 0.5 * grown[32768.0] / grown[1024.0]


def test_odd_kv_heads_run_as_more_sequences_of_fewer_heads() -> None:
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    found = geometry(database, attention(40, 10), True)
    assert (found.heads, found.kv_heads, found.fold) == (8, 2, 5)
    mha = decode_grid(database, attention(32, 32), (8.0,), (4096.0,))
    folded = decode_grid(database, attention(8, 8), (32.0,), (4096.0,))
    assert mha.ms[0, 0] == folded.ms[0, 0]
    assert mha.ms[0, 0] == pytest.approx(0.135, rel=0.05)  # the direct rows say 0.196, TensorRT-LLM's table 0.131


def test_beyond_the_grid_decode_grows_with_the_keys_read_and_is_marked() -> None:
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    timed = decode_grid(database, attention(32, 8), (128.0, 256.0), (1024.0, 4096.0, 65536.0))
    assert timed.in_range is not None
    assert timed.in_range.tolist() == [4096.0, 1024.0]
    assert timed.ms[1, 1] == pytest.approx(2 * timed.ms[0, 1], rel=0.01)
    assert timed.ms[1, 2] == pytest.approx(16 * timed.ms[1, 1], rel=0.15)


def test_the_range_reaches_the_step_model() -> None:
    model = step("Qwen/Qwen3-8B", H200)
    assert model.max_decode_kv_in_range is not None
    limits = dict(zip(model.tables.decode_batch.tolist(), model.max_decode_kv_in_range.tolist(), strict=True))
    assert limits[256.0] == 1024.0
    assert limits[8.0] == 65536.0


def test_head_sizes_that_were_not_measured_lower_the_evidence() -> None:
    phi = step("microsoft/Phi-3-mini-4k-instruct", H200)
    assert phi.evidence is Evidence.EXTRAPOLATED
    assert any("head size 96" in note for note in phi.notes)


def test_launch_bound_fp8_block_rows_are_exchanged() -> None:
    """A 4096 x 4096 GEMM at one row: vLLM's table says 61 us, TensorRT-LLM's of the same GPU 11-14."""
    source = source_for(get_gpu(H200), settings("Qwen/Qwen3-8B", H200).engine)
    op = GemmOp("o", 4096, 4096, WeightFormat("fp8_block", 8.0, "fp8"))
    timed = source.rows(op, np.array([1.0, 64.0]))
    assert timed.evidence is Evidence.EXTRAPOLATED
    assert timed.ms[0] < 0.016
    block = step("Qwen/Qwen3-32B-FP8", H200)
    tensor = step("Qwen/Qwen3-32B", H200, precision="fp8")
    assert block.decode_ms(32, 1024) < 1.2 * tensor.decode_ms(32, 1024)


def test_implausibly_slow_experts_are_exchanged() -> None:
    """FP8 experts of vLLM on Hopper take three times their 16-bit rows in the tables."""
    model = step("Qwen/Qwen3-30B-A3B", H200, precision="fp8")
    assert model.operators["moe"] is Evidence.EXTRAPOLATED
    assert model.decode_ms(32, 1024) < step("Qwen/Qwen3-30B-A3B", H200).decode_ms(32, 1024)


def test_rows_that_are_slow_only_at_many_tokens_are_exchanged_there() -> None:
    """TensorRT-LLM's NVFP4 rows for DeepSeek-V3 on 8 B200 take twice vLLM's once arithmetic counts."""
    op = MoeOp(7168, 2048, 8, 256, True, 8, 1, 1, WeightFormat("fp4", 4.5, "fp4"))
    rows = (1.0, 8.0, 8192.0)
    trt, vllm = open_database("b200_sxm", "tensorrt_llm"), open_database("b200_sxm", "vllm")
    assert trt is not None
    assert vllm is not None
    timed, other = moe_rows(trt, op, rows), moe_rows(vllm, op, rows)
    assert timed.ms[2] == pytest.approx(other.ms[2])
    assert timed.ms[0] < 0.97 * other.ms[0]  # few tokens: its own launch and weight reads stay
    assert timed.evidence is Evidence.EXTRAPOLATED
    assert "many tokens" in timed.notes[-1]


def test_rows_that_whole_prompts_were_seen_to_take_are_not_exchanged() -> None:
    """TensorRT-LLM multiplies slices of block-scaled FP8 experts (TP 8) half as fast as whole ones (EP 8) on H200."""
    sliced = MoeOp(7168, 2048, 8, 256, True, 8, 1, 1, WeightFormat("fp8_block", 8.0, "fp8"))
    trt, vllm = open_database("h200_sxm", "tensorrt_llm"), open_database("h200_sxm", "vllm")
    assert trt is not None
    assert vllm is not None
    timed = moe_rows(trt, sliced, (8192.0,))
    assert timed.evidence is Evidence.SILICON
    assert timed.ms[0] > 1.8 * moe_rows(trt, replace(sliced, tp=1, ep=8), (8192.0,)).ms[0]
    assert timed.ms[0] > 1.8 * moe_rows(vllm, sliced, (8192.0,)).ms[0]


def test_a_kernel_asked_for_by_name_lends_its_arithmetic_rate() -> None:
    """Marlin reads MXFP4 weights as fast as Triton's kernel on Hopper and multiplies padded widths half as fast."""
    mxfp4 = WeightFormat("mxfp4", 4.25, "bf16")
    default = MoeOp(2880, 2880, 4, 128, True, 2, 1, 1, mxfp4)
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    rows = (1.0, 32.0, 8192.0)
    ratio = moe_rows(database, replace(default, kernel="marlin"), rows).ms / moe_rows(database, default, rows).ms
    assert ratio[:2] == pytest.approx([1.0, 1.0])
    assert 1.5 < ratio[2] < 2.2


@pytest.mark.parametrize(("tp", "inner"), [(1, 2944), (2, 1536), (4, 768), (8, 384)])
def test_marlin_multiplies_the_widths_it_pads_mxfp4_experts_to(tp: int, inner: int) -> None:
    """vLLM pads the inner width of a rank to 128 and the hidden size to 256."""
    op = MoeOp(2880, 2880, 4, 128, True, tp, 1, 1, WeightFormat("mxfp4", 4.25, "bf16"), kernel="marlin")
    run = as_padded(op)
    assert (run.hidden, run.intermediate / tp) == (3072, inner)
    assert as_padded(replace(op, kernel="")) == replace(op, kernel="")
    assert as_padded(replace(op, weight=BF16)).hidden == 2880


def test_a_kernel_measured_with_this_shape_has_its_own_rows() -> None:
    fp4 = WeightFormat("fp4", 4.5, "fp4")
    op = MoeOp(7168, 2048, 8, 256, True, 8, 1, 1, fp4)
    database = open_database("b200_sxm", "tensorrt_llm")
    assert database is not None
    rows = (1.0, 64.0, 8192.0)
    asked = moe_rows(database, replace(op, kernel="trtllm"), rows)
    assert asked.evidence is Evidence.SILICON
    assert asked.ms[2] < moe_rows(database, op, rows).ms[2]
    named = moe_rows(database, replace(op, kernel="cutlass"), rows)  # TensorRT-LLM's default, as without a name
    assert named.ms == pytest.approx(moe_rows(database, op, rows).ms)


def test_a_kernel_measured_in_another_mode_lends_its_rows_for_few_tokens() -> None:
    """TensorRT-LLM's own kernel is in the tables in NVFP4 only; DeepSeek-R1 in FP8 runs it too."""
    database = open_database("b200_sxm", "tensorrt_llm")
    assert database is not None
    rows = (1.0, 64.0, 1024.0, 8192.0)
    fp8 = MoeOp(7168, 2048, 8, 256, True, 8, 1, 1, WeightFormat("fp8_block", 8.0, "fp8"))
    own = moe_rows(database, fp8, rows)
    asked = moe_rows(database, replace(fp8, kernel="trtllm"), rows)
    narrow = moe_rows(database, replace(fp8, kernel="trtllm", weight=WeightFormat("fp4", 4.5, "fp4")), rows)
    assert asked.ms[:2] == pytest.approx(narrow.ms[:2] * 8.0 / 4.5)
    assert asked.ms[2:] == pytest.approx(own.ms[2:])
    assert asked.ms[0] < 0.5 * own.ms[0]
    assert asked.evidence is Evidence.EXTRAPOLATED
    assert "nvfp4" in asked.notes[-1]


def test_a_fresh_expert_shape_is_scaled_from_its_neighbour_and_says_so() -> None:
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    op = MoeOp(4096, 1408, 8, 128, True, 1, 1, 1, BF16)
    timed = moe_rows(database, op, (1.0, 64.0, 4096.0))
    near = moe_rows(database, MoeOp(4096, 1536, 8, 128, True, 1, 1, 1, BF16), (1.0, 64.0, 4096.0))
    assert timed.evidence is Evidence.EXTRAPOLATED
    assert "4096x1536" in timed.notes[0]
    assert np.all(timed.ms < near.ms)
    with pytest.raises(NoOperatorDataError, match="no bfloat16 expert rows"):
        moe_rows(database, MoeOp(64, 64, 1, 4, True, 1, 1, 1, BF16), (1.0,))


def test_outliers_in_a_table_do_not_spread() -> None:
    """TensorRT-LLM's Mixtral rows on H100 at 96 tokens are twice those at 128."""
    database = open_database("h100_sxm", "tensorrt_llm")
    assert database is not None
    ms = moe_rows(database, MoeOp(4096, 14336, 2, 8, True, 2, 1, 1, BF16), (64.0, 96.0, 128.0, 256.0, 1024.0)).ms
    assert np.all(np.diff(ms) >= 0)
    assert ms[1] < 0.6


def test_an_all_reduce_of_a_few_values_takes_the_latency_of_the_smallest_measured() -> None:
    """MiniMax sums two squares a token over the ranks; below 128 elements the package goes on in a line to nothing."""
    source = source_for(get_gpu("B200"), EngineName.VLLM)
    few = source.rows(AllReduceOp(4, 4), np.array([1.0, 8.0, 32.0, 512.0])).ms
    assert few[:3] == pytest.approx(np.full(3, few[2]))
    assert few[2] < few[3] < 1.2 * few[2]


def test_pcie_all_reduce_rows_that_crossed_the_host_give_way_to_the_link() -> None:
    model = step("meta-llama/Llama-3.1-70B-Instruct", "L40S", "tensorrt_llm", tp=8, precision="fp8")
    assert any("all-reduce over 8 GPUs by roofline" in note for note in model.notes)
    assert model.operators["all_reduce"] is Evidence.ROOFLINE


def test_operators_that_are_missing_fall_to_the_roofline_one_by_one() -> None:
    awq = step("meta-llama/Llama-3.1-8B-Instruct", H100, precision="int4")
    assert awq.operators["attention"] is Evidence.SILICON
    assert awq.operators["gemm"] is Evidence.ROOFLINE
    assert awq.evidence is Evidence.ROOFLINE
    assert awq.decode_ms(1, 1024) < 0.8 * step("meta-llama/Llama-3.1-8B-Instruct", H100).decode_ms(1, 1024)
    # measured with vLLM 0.24.0: 4.52 ms a token in AWQ at one client where bf16 takes 5.2
    measured = step("Qwen/Qwen3-8B", H200, precision="int4").decode_ms(1, 1152)
    assert measured == pytest.approx(4.52, rel=0.05)


@pytest.mark.parametrize(
    ("model", "families"),
    [
        ("deepseek-ai/DeepSeek-R1", {"gemm", "moe", "mla", "glue"}),
        ("deepseek-ai/DeepSeek-V3.2", {"gemm", "moe", "mla", "glue"}),
        ("Qwen/Qwen3.5-35B-A3B", {"gemm", "moe", "attention", "state", "glue"}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"gemm", "moe", "attention", "state", "glue"}),
        ("openai/gpt-oss-120b", {"gemm", "moe", "attention", "glue"}),
    ],
)
def test_latent_attention_recurrent_state_and_experts_are_measured(model: str, families: set[str]) -> None:
    built = step(model, H200)
    assert set(built.operators) == families
    assert built.evidence in (Evidence.SILICON, Evidence.EXTRAPOLATED)


@pytest.mark.parametrize(
    ("model", "held"),
    [
        ("deepseek-ai/DeepSeek-R1", {"mla_a", "mla_q_b", "o"}),
        ("deepseek-ai/DeepSeek-V3.2", {"mla_a", "mla_q_b", "o", "mla_index", "other"}),
    ],
)
def test_latent_projections_are_counted_once(model: str, held: set[str]) -> None:
    graph = build_graph(get_model(model), settings(model, H200, tp=8), get_gpu(H200))
    inside = {gemm.name for mixer in graph.mixers for gemm in mixer.projections}  # type: ignore[union-attr]
    outside = {op.name for op in graph.tokens if isinstance(op, GemmOp)}
    assert inside == held
    assert inside.isdisjoint(outside)


def test_short_prompts_of_sparse_attention_are_freed_of_host_launches() -> None:
    """vLLM's prompt rows take 1.5 ms a layer from one token to a thousand; the same work decoding takes a tenth."""
    (op,) = build_graph(get_model(SPARSE), settings(SPARSE, H200, tp=8), get_gpu(H200)).mixers
    assert isinstance(op, MlaOp)
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    one = replace(op, count=1.0)
    few = mla_prefill(database, one, (16.0, 128.0, 8192.0), (64.0, 4096.0))
    decoding = mla_decode(database, one, (16.0, 128.0), (64.0, 4096.0))
    assert few.ms[:2] == pytest.approx(decoding.ms, rel=0.05)
    assert few.ms[0, 0] < 0.3
    assert few.evidence is Evidence.EXTRAPOLATED
    assert any("host launches" in note for note in few.notes)


@pytest.mark.parametrize("past", [8192.0, 24576.0])
def test_sparse_attention_over_past_tokens_comes_from_whole_prompts(past: float) -> None:
    """8,192 new tokens after ``past`` take what prompts of past + 8,192 and of past differ by."""
    (op,) = build_graph(get_model(SPARSE), settings(SPARSE, H200, tp=8), get_gpu(H200)).mixers
    assert isinstance(op, MlaOp)
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    one = replace(op, count=1.0)
    whole = [mla_prefill(database, one, (size,), ((size + 1) / 2,)).ms[0, 0] for size in (past, past + 8192.0)]
    chunk = mla_prefill(database, one, (8192.0,), (past + 8193.0 / 2,)).ms[0, 0]
    assert chunk == pytest.approx(whole[1] - whole[0], rel=0.02)


def test_sparse_attention_grows_on_beyond_the_longest_prompt_measured() -> None:
    (op,) = build_graph(get_model(SPARSE), settings(SPARSE, H200, tp=8), get_gpu(H200)).mixers
    assert isinstance(op, MlaOp)
    database = open_database("h200_sxm", "vllm")
    assert database is not None
    one = replace(op, count=1.0)
    pasts = np.array([24576.0, 40960.0, 65536.0, 122880.0])
    ms = mla_prefill(database, one, (8192.0,), tuple((pasts + 4096.5).tolist())).ms[0]
    slopes = np.diff(ms) / np.diff(pasts)
    assert slopes == pytest.approx(np.full(3, slopes[2]), rel=0.3)
    assert slopes[1] == pytest.approx(slopes[2], rel=0.01)
    assert slopes[2] > 0.0


def test_parallelism_shortens_the_step_and_pays_for_it() -> None:
    one, four = (step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=tp) for tp in (1, 4))
    assert one.decode_ms(32, 2048) / 4 < four.decode_ms(32, 2048) < one.decode_ms(32, 2048) / 2
    staged = step("meta-llama/Llama-3.1-70B-Instruct", H200, tp=4, pp=2)
    assert four.decode_ms(32, 2048) < staged.decode_ms(32, 2048) < 1.1 * four.decode_ms(32, 2048)
    assert staged.tables.pp == 2


def test_nothing_reaches_for_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    database = open_database("b200_sxm", "vllm")
    assert database is not None
    assert step("mistralai/Mistral-7B-Instruct-v0.3", "B200-SXM").evidence is Evidence.SILICON


def test_encoders_attend_to_the_whole_prompt() -> None:
    source = source_for(get_gpu(H200), settings("Qwen/Qwen3-8B", H200).engine)
    axes = np.array([8192.0]), np.array([4096.5])
    forward = source.prefill(attention(16, 16, 64), *axes).ms[0, 0]
    both_ways = source.prefill(replace(attention(16, 16, 64), causal=False), *axes).ms[0, 0]
    assert both_ways == pytest.approx(2 * forward, rel=0.25)


def test_prompts_beyond_the_graphs_wait_for_their_launches() -> None:
    """DeepSeek-R1 in FP4 on 8 B200: TensorRT-LLM launches a prompt of 1024 tokens in 132 ms, its kernels take 30."""
    with_experts = step("deepseek-ai/DeepSeek-R1", "B200-SXM-180GB", "tensorrt_llm", tp=8, precision="fp4")
    assert with_experts.mixed_ms(1024, 0, 1.0) == pytest.approx(132.0, rel=0.15)
    assert with_experts.decode_ms(8, 1024.0) < 15.0  # decode steps are captured
    pieces = step(
        "deepseek-ai/DeepSeek-R1", "B200-SXM-180GB", "tensorrt_llm", tp=8, precision="fp4", piecewise_cuda_graphs=True
    )
    assert pieces.mixed_ms(1024, 0, 1.0) < 50.0
    dense = step("Qwen/Qwen3-0.6B", H200)
    assert dense.mixed_ms(1024, 0, 1.0) == pytest.approx(16.0, rel=0.1)
    assert dense.mixed_ms(256, 0, 1.0) < 10.0  # a captured size


@pytest.mark.parametrize(
    ("gpu", "version", "precision", "kernel", "expected_ms"),
    [
        ("B200-SXM-180GB", "1.1.0rc2", "fp4", "TRTLLM", 77.0),
        ("B200-SXM-180GB", "1.1.0rc2", "as-config", "DEEPGEMM", 132.0),
        ("H200-SXM-141GB", "1.1.0rc2", "as-config", "CUTLASS", 190.0),
        ("B200-SXM-180GB", "1.2.0rc6", "fp4", "TRTLLM", 132.0),
    ],
)
def test_launches_of_a_prompt_by_version(
    gpu: str, version: str, precision: str, kernel: str, expected_ms: float
) -> None:
    """DeepSeek-R1 on 8 GPUs, public rows: a prompt of 1024 tokens outlasts its kernels by these launches."""
    model = "deepseek-ai/DeepSeek-R1"
    options = {"tp": 8, "ep": 8, "version": version, "precision": precision, "moe_backend": kernel}
    found = step(model, gpu, "tensorrt_llm", **options)
    assert found.mixed_ms(1024, 0, 1.0) == pytest.approx(expected_ms, rel=0.1)
    drafting = step(model, gpu, "tensorrt_llm", speculative_tokens=3, **options)
    assert drafting.tables.launch_ms == pytest.approx(found.tables.launch_ms * 64 / 61)


def test_bands_are_made_of_the_residuals_of_like_runs() -> None:
    assert step("Qwen/Qwen3-8B", H200).engine == "vllm"
    assert step("Qwen/Qwen3-8B", H200, version="0.24.0").engine == "vllm, as measured"
    assert step("Qwen/Qwen3-8B", H200, version="0.18.0").engine == "vllm"  # another version than the operators'
    assert step("openai/gpt-oss-120b", H200, version="0.24.0").engine == "vllm"  # experts: no such run of ours
    launch = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    assert step("openai/gpt-oss-120b", H200, **launch).engine == "vllm, settings stated"

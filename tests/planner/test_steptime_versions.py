"""Kernels and host of older engine versions, and the floor that memory puts under decode attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import get_gpu, get_model
from planner.engines.types import EngineName
from planner.steptime.build import source_for
from planner.steptime.graph import AttentionOp, GemmOp, MoeOp, TransferOp, WeightFormat, build_graph
from planner.steptime.roofline import rank_imbalance
from planner.steptime.tables import TOKENS, sample
from tests.planner.steptime_samples import H100, settings, step

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def test_versions_before_the_pytorch_back_end_run_engines_without_overlap() -> None:
    old = settings(LLAMA_8B, H100, "tensorrt_llm", version="0.14.0")
    new = settings(LLAMA_8B, H100, "tensorrt_llm", version="1.0.0")
    assert (old.trt_backend, old.async_scheduling) == ("tensorrt", False)
    assert (new.trt_backend, new.async_scheduling) == ("pytorch", True)


def test_the_engine_back_end_of_a_later_version_does_not_overlap_either() -> None:
    built = settings(LLAMA_8B, H100, "tensorrt_llm", version="1.0.0", trt_backend="tensorrt")
    assert not built.async_scheduling


@pytest.mark.parametrize(("model", "least", "most"), [(LLAMA_70B, 1.35, 1.41), ("mistralai/Mixtral-8x7B-v0.1", 1, 1)])
def test_old_decode_kernels_lag_for_wide_groups_only(model: str, least: float, most: float) -> None:
    old, new = (step(model, H100, "tensorrt_llm", version=v, tp=4).tables.decode_ms for v in ("0.14.0", "1.0.0"))
    assert least <= float(np.median(old / new)) <= most


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S"])
@pytest.mark.parametrize("engine", list(EngineName))
def test_decode_attention_reads_its_cache_from_memory(gpu: str, engine: EngineName) -> None:
    spec = get_gpu(gpu)
    op = AttentionOp(32, 8, 128, 128, None, qk_norm=False, kv_dtype="bf16")
    batch, kv = np.array([8.0, 64.0, 512.0]), np.array([512.0, 4096.0, 65536.0])
    timed = source_for(spec, engine).decode(op, batch, kv)
    read = batch[:, None] * kv[None, :] * 8 * 256 * 2
    assert spec.mem_bw_gb_s is not None
    assert (timed.ms >= read / (spec.mem_bw_gb_s * 1e6)).all()


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S"])
@pytest.mark.parametrize("engine", list(EngineName))
def test_one_token_reads_its_weights_from_memory(gpu: str, engine: EngineName) -> None:
    """A benchmark that repeats a layer finds it in the L2 cache: one token's experts at 2.5 times the bandwidth of an
    L40S."""
    spec, one = get_gpu(gpu), np.array([1.0])
    assert spec.mem_bw_gb_s is not None
    wide = WeightFormat("bf16", 16.0, "bf16")
    experts = source_for(spec, engine).rows(MoeOp(2048, 768, 8, 128, True, 1, 1, 1, wide), one).ms[0]
    assert experts >= 8 * 3 * 2048 * 768 * 2 / (spec.mem_bw_gb_s * 1e6)
    matrix = source_for(spec, engine).rows(GemmOp("o", 4096, 4096, wide), one).ms[0]
    assert matrix > 4096 * 4096 * 2 / (spec.mem_bw_gb_s * 1e6)


def test_the_busiest_expert_rank_holds_more_than_the_mean() -> None:
    """Measured rows with power-law routing over balanced ones: 1.15, 1.4 and 1.7 over 2, 4 and 8 ranks of 128
    experts."""
    assert rank_imbalance(128, 1) == 1.0
    assert [rank_imbalance(128, ranks) for ranks in (2, 4, 8)] == pytest.approx([1.15, 1.4, 1.7], abs=0.08)
    assert rank_imbalance(8, 8) <= 8.0
    assert rank_imbalance(64, 64) > rank_imbalance(256, 64) > rank_imbalance(256, 8)


def test_attention_dp_gathers_every_token_under_tensorrt_llm_and_sends_it_to_its_experts_under_vllm() -> None:
    model, gpu = get_model("Qwen/Qwen3-30B-A3B"), get_gpu("H200-SXM-141GB")
    sent = {}
    for engine in ("vllm", "tensorrt_llm"):
        graph = build_graph(model, settings(model.model_id, gpu.name, engine, dp=16, ep=16), gpu)
        sent[engine] = next(op for op in graph.tokens if isinstance(op, TransferOp) and op.kind == "all_to_all").values
    assert sent["tensorrt_llm"] == 16 * model.hidden
    assert sent["vllm"] == 8 * model.hidden  # its eight experts


@pytest.mark.parametrize(("pp", "each_ms"), [(2, 0.021), (4, 0.033), (8, 0.057)])
def test_pipeline_stages_of_the_pytorch_back_end_do_not_hide_the_host(pp: int, each_ms: float) -> None:
    """Each stage's loop walks over its own sequences and over those of all micro-batches."""
    one, staged = (step(LLAMA_8B, H100, "tensorrt_llm", version="1.0.0", pp=stages) for stages in (1, pp))
    longer = staged.tables.head_ms - one.tables.head_ms
    assert np.diff(longer).min() > 0
    assert longer[-1] == pytest.approx(each_ms * pp * staged.tables.head_seqs[-1], rel=0.05)
    later = step(LLAMA_8B, H100, "tensorrt_llm", version="1.2.0", pp=pp)
    assert (later.tables.head_ms - one.tables.head_ms)[-1] < 0.5 * longer[-1]


MIXED = (2048, 64, 2048.0)
"""A prompt's chunk beside 64 decodes."""


def test_decodes_beside_a_prompt_fill_a_tile_each_under_flash_attention_2() -> None:
    """Where a prompt shares their step, every head of a decode takes 64 query rows of prefill attention."""
    model = step("Qwen/Qwen3-14B", "A100-SXM-80GB", version="0.11.0")
    apart = replace(model, tables=replace(model.tables, mixed_rows=0.0))
    tables = model.tables
    decode = tables.decode_ms[np.searchsorted(tables.decode_batch, 64), np.searchsorted(tables.decode_kv, 2048)]
    rows, keys = np.searchsorted(tables.prefill_tokens, 64 * 64), np.searchsorted(tables.prefill_context, 2048)
    tiles = tables.prefill_ms[rows, keys]
    assert tiles > 2.0 * decode
    assert model.mixed_ms(*MIXED) == pytest.approx(apart.mixed_ms(*MIXED) + tiles - decode)
    assert model.decode_ms(64, 2048.0) == apart.decode_ms(64, 2048.0)


def test_a_decode_that_memory_bounds_costs_no_more_beside_a_prompt() -> None:
    """As many K/V heads as query heads: a tile's arithmetic hides behind the reading of its keys."""
    model = step("meta-llama/Llama-2-13b-hf", "L4", version="0.11.0", tp=2)
    apart = replace(model, tables=replace(model.tables, mixed_rows=0.0))
    assert model.tables.mixed_rows == 64.0
    assert model.mixed_ms(2048, 64, 2048.0) == pytest.approx(apart.mixed_ms(2048, 64, 2048.0), rel=0.02)


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "options"),
    [
        (LLAMA_8B, H100, "vllm", {"version": "0.11.0"}),  # version 3 packs heads
        (LLAMA_8B, "B200-SXM", "vllm", {"version": "0.24.0"}),  # FlashInfer
        (LLAMA_8B, "A100-SXM-80GB", "vllm", {"version": "0.7.3"}),  # V0 runs prompts and decodes apart
        (LLAMA_8B, "L40S", "vllm", {"version": "0.24.0", "kv_cache_dtype": "fp8"}),
        (LLAMA_8B, "A100-SXM-80GB", "tensorrt_llm", {"version": "1.0.0"}),
        ("deepseek-ai/DeepSeek-V2-Lite", "A100-SXM-80GB", "vllm", {"version": "0.11.0"}),  # latent attention
    ],
)
def test_other_kernels_keep_decodes_apart(model: str, gpu: str, engine: str, options: dict[str, str]) -> None:
    assert step(model, gpu, engine, **options).tables.mixed_rows == 0.0


@pytest.mark.parametrize(
    ("model", "version", "up_to"),
    [
        ("deepseek-ai/DeepSeek-R1", "0.11.0", 0),
        ("deepseek-ai/DeepSeek-R1", "0.11.1", 256),
        ("moonshotai/Kimi-K2.5", "0.11.1", 0),
        ("moonshotai/Kimi-K2.5", "0.16.0", 256),
    ],
)
def test_shared_experts_run_beside_the_routed_ones_in_small_steps(model: str, version: str, up_to: int) -> None:
    """vLLM's second stream; Marlin's experts (Kimi's INT4) left it unused at first."""
    resolved = settings(model, "H200", version=version, tp=8)
    graph = build_graph(get_model(model), resolved, get_gpu("H200"))
    assert graph.beside_up_to == up_to
    assert {op.name for op in graph.beside if isinstance(op, GemmOp)} == {"shared_gate_up", "shared_down"}
    source = source_for(get_gpu("H200"), EngineName.VLLM)
    apart = sample(replace(graph, beside_up_to=0), source, get_gpu("H200")).shared_ms
    saved = apart - sample(graph, source, get_gpu("H200")).shared_ms
    alone = sum((source.rows(op, TOKENS).ms for op in graph.beside), np.zeros_like(TOKENS))
    small = up_to >= TOKENS
    assert (saved[~small] == 0.0).all()
    assert (saved[small] > 0.2 * alone[small]).all()
    assert (saved[small] < alone[small]).all(), "their weights are read all the same"


def test_ranks_that_exchange_tokens_hide_no_shared_experts() -> None:
    model = "deepseek-ai/DeepSeek-R1"
    resolved = settings(model, "H200", version="0.24.0", tp=1, dp=8, ep=8)
    assert build_graph(get_model(model), resolved, get_gpu("H200")).beside_up_to == 0

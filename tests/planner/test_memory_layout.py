"""How the KV pool is cut: layer groups, pages, latent and recurrent layers (cases H), and what always holds.

Not computed, and why: H9 (better packing: 1,489,675 to 2,237,978 tokens) names neither model nor settings; how packing
changes with the version is tested on known models.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_samples import account, answer, attention_layers, gpu, h100, pool_of, synthetic, trtllm, vllm

from planner.catalog import get_model
from planner.engines import resolve
from planner.errors import UnsupportedError
from planner.memory import kv_layout, kv_tokens_from_gib, ledger, preemption_cliff
from planner.models.spec import ModelSpec
from planner.units import GIB

GPT_OSS_120B = "openai/gpt-oss-120b"


def test_h1_sliding_layers_cost_what_full_ones_do_per_block() -> None:
    """5.38 GiB are 78,384 tokens of 73,728 bytes: no half for the sliding layers, in either engine."""
    asked = {"model": GPT_OSS_120B, "gpu": "H100-SXM5-80GB", "max_model_len": 16_384}
    tokens = [
        pool_of(gib, **asked, engine="vllm", engine_version="0.11.0", gpu_memory_utilization=0.9)["memory"]["kv_tokens"]
        for gib in (5.3751, 5.3849)
    ]
    assert tokens[0] <= 78_384 <= tokens[1]
    model = get_model(GPT_OSS_120B)
    layout = kv_layout(model, resolve(vllm("0.11.0", max_model_len=16_384), model, h100()))
    assert layout.block_bytes * len(layout.groups) / layout.block_tokens == 73_728
    whole = kv_layout(model, resolve(trtllm(max_model_len=16_384), model, h100()))
    assert whole.block_bytes / 32 == 73_728


def test_h4_a_short_prompt_holds_a_large_share_of_a_small_hybrid_pool() -> None:
    """Two to three requests fit where one of 12 tokens holds a third: reported of 7,808-token pages, here 784."""
    model = get_model("Qwen/Qwen3.5-27B")
    resolved = resolve(vllm("0.24.0", max_model_len=32_768, max_num_seqs=64), model, h100())
    layout = kv_layout(model, resolved)
    assert layout.block_tokens == 784
    blocks = int(1.0 * GIB // layout.block_bytes)
    assert layout.blocks_for(12) / blocks == pytest.approx(0.329, abs=0.03)
    assert 2 <= blocks // layout.blocks_for(12) <= 3


def test_h6_linear_layers_are_not_charged_as_attention() -> None:
    """24 gated delta nets and 8 attention layers: the cache grows by that of 8 layers, the rest is one state."""
    model = get_model("Qwen/Qwen3.5-9B")
    layout = kv_layout(model, resolve(vllm("0.24.0", max_model_len=262_144), model, h100()))
    layers = {kind: sum(group.layers for group in layout.groups if group.kind == kind) for kind in ("full", "state")}
    assert layers == {"full": 8, "state": 24}
    block = layout.block_tokens
    growth = layout.blocks_for(100 * block) - layout.blocks_for(block)
    assert growth == 99
    per_token = growth * layout.block_bytes / (99 * block)
    assert per_token == pytest.approx(8 * 4 * 256 * 2 * 2, rel=0.01)
    got = answer(model="Qwen/Qwen3.5-9B", engine="vllm", gpu="H100", max_model_len=32_768)["memory"]
    used = got["kv_gib"] / got["max_concurrency"]
    assert 1.0 < used < 1.2, "32 layers of attention would take 4 GiB"


@pytest.mark.parametrize(
    ("groups", "length", "waste"),
    [
        ((attention_layers(13), attention_layers(13, window=4096)), 8192, 0.25),
        ((attention_layers(9), attention_layers(27, window=32_768)), 131_072, 0.5625),
    ],
    ids=["gemma-2", "ministral"],
)
def test_h7_waste_of_keeping_what_a_window_drops(groups: tuple, length: int, waste: float) -> None:
    model = synthetic(*groups)
    resolved = resolve(vllm("0.19.0", max_model_len=length, max_num_batched_tokens=64, max_num_seqs=64), model, h100())
    layout = kv_layout(model, resolved)
    as_if_full = len(layout.groups) * -(-length // layout.block_tokens)
    assert 1 - layout.blocks_for(length) / as_if_full == pytest.approx(waste, abs=0.01)


def test_h10_a_single_latent_head_prefers_data_parallelism() -> None:
    """Eight B200: 7.7 times the KV with eight ranks of data parallelism as with tensor parallelism of eight."""
    asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "gpu": "B200", "engine": "vllm", "max_model_len": 1_048_576}
    split, copies = (answer(**asked, ep=8, **{kind: 8}) for kind in ("tp", "dp"))
    ratio = 8 * copies["memory"]["kv_tokens"] / split["memory"]["kv_tokens"]
    assert ratio == pytest.approx(7.7, abs=0.3)
    assert any("data parallelism saves memory" in reason for reason in split["reasons"])
    assert not any("data parallelism saves memory" in reason for reason in copies["reasons"])


def test_h13_only_attention_layers_hold_a_cache() -> None:
    model = get_model("Qwen/Qwen3.5-27B")
    resolved = resolve(vllm("0.24.0", max_model_len=262_144), model, h100())
    layout = kv_layout(model, resolved)
    attention = next(group for group in layout.groups if group.kind == "full")
    cache = 262_144 / attention.block_tokens * layout.page_bytes * attention.layers
    assert cache / 2**20 == pytest.approx(16_384, rel=0.001)
    # 48 layers of 48 x 128 x 128 fp32 and 10,240 x 3 16-bit values.
    assert layout.state_bytes_per_seq == 48 * (786_432 * 4 + 30_720 * 2)


@pytest.mark.parametrize(
    ("length", "budget", "kv_gib", "blocks", "tokens", "concurrency"),
    [(912_128, 8192, 7.0070, 7236, 1_009_661, 1.11), (121_344, 16_384, 7.7127, 7965, 150_992, 1.24)],
)
def test_h11_a_pool_of_compressed_latents_to_the_token(
    length: int, budget: int, kv_gib: float, blocks: int, tokens: int, concurrency: float
) -> None:
    """vllm-project/vllm#51041, DeepSeek V4 Flash on two H20: 7.01 GiB held a million tokens, 7.71 GiB of its revision
    150,992. The layouts are equal: what a step of twice the tokens may leave in windows and compressors does not grow
    with the context, and weighs more at 121,344 tokens than at 912,128.
    """
    model = get_model("deepseek-ai/DeepSeek-V4-Flash")
    settings = vllm("0.26.0", tp=2, max_model_len=length, max_num_batched_tokens=budget, speculative_tokens=1)
    got = kv_tokens_from_gib(model, resolve(settings, model, gpu("H20-96GB")), kv_gib)
    assert got[:2] == (blocks, tokens)
    assert got[2] == pytest.approx(concurrency, abs=0.005)


def test_h11_a_running_request_keeps_little_of_what_its_prompt_passed_through() -> None:
    """Of 8,192 tokens: 32 blocks of latents, 3 of each window group, 3 and 17 of states; counted: 3,000."""
    model = get_model("deepseek-ai/DeepSeek-V4-Flash")
    resolved = resolve(vllm("0.26.0", dp=4, ep=4, max_model_len=8192), model, gpu("B300"))
    layout = kv_layout(model, resolved)
    assert layout.running_for(8192) == 32 + 2 * 3 + 3 + 17
    assert layout.blocks_for(8192) > 2900
    got = ledger(model, gpu("B300"), resolved)
    assert got.running_tokens == int(got.kv_blocks / 58 * 8192)
    cliff = preemption_cliff(model, resolved, got, input_tokens=4000, output_tokens=1000)
    assert cliff.safe_sequences == (got.kv_blocks - 1) // layout.running_for(5000)
    assert account("google/gemma-3-27b-it", h100(), vllm("0.24.0")).running_tokens == 0


def test_h11_what_a_longer_step_costs_is_seen_in_the_answer() -> None:
    """27 requests of a million tokens on a B300 (reported 27.08), and a fourth of them with steps of 65,536 tokens."""
    asked = {
        "model": "deepseek-ai/DeepSeek-V4-Flash", "gpu": "B300", "engine": "vllm", "engine_version": "0.26.0", "dp": 4,
        "ep": 4, "max_model_len": 1_048_576,
    }  # fmt: skip
    short, long = (answer(**asked, max_num_batched_tokens=budget)["memory"] for budget in (8192, 65_536))
    assert short["max_concurrency"] == pytest.approx(27.08, rel=0.1)
    assert 3.5 < short["max_concurrency"] / long["max_concurrency"] < 4.5
    assert long["kv_gib"] > 0.9 * short["kv_gib"]


def test_h16_latent_cost_per_token() -> None:
    """GLM-4.7-Flash: 47 layers of 512 + 64 values in 16 bits, whole on every rank."""
    for tp in (1, 2):
        got = answer(model="zai-org/GLM-4.7-Flash", max_model_len=8192, tp=tp)["memory"]
        assert got["kv_blocks"] == pytest.approx(got["kv_gib"] * GIB / (16 * 54_144), rel=1e-4)


def test_h7_layers_that_see_images_only_keep_images_only() -> None:
    """Llama 3.2 Vision, 43 tokens of text and 6,193 of image: all tokens in all layers would waste 79.6 %."""
    model = get_model("meta-llama/Llama-3.2-11B-Vision-Instruct")
    layout = kv_layout(model, resolve(vllm("0.24.0", max_model_len=8192), model, h100()))
    layers = {kind: sum(group.layers for group in layout.groups if group.kind == kind) for kind in ("full", "cross")}
    assert layers == {"full": 32, "cross": 8}
    text, image = 43, 6193
    groups = tuple(replace(group, window=image) if group.kind == "cross" else group for group in layout.groups)
    held = replace(layout, groups=groups).blocks_for(text)
    as_if_full = len(groups) * -(-(text + image) // layout.block_tokens)
    assert 1 - held / as_if_full == pytest.approx(0.796, abs=0.003)


def test_chunks_are_given_back_by_the_releases_that_do() -> None:
    """envs.py of the releases: 0.10.1 to 0.13 keep Llama 4's chunks, as before 0.10; sliding windows since 0.9.1."""
    scout, gemma = get_model("meta-llama/Llama-4-Scout-17B-16E-Instruct"), get_model("google/gemma-3-27b-it")

    def kinds(model: ModelSpec, version: str) -> int:
        return len(kv_layout(model, resolve(vllm(version, tp=8), model, h100())).groups)

    chunked = {version: kinds(scout, version) for version in ("0.9.2", "0.10.0", "0.10.1", "0.13.0", "0.14.0")}
    assert chunked == {"0.9.2": 1, "0.10.0": 4, "0.10.1": 1, "0.13.0": 1, "0.14.0": 4}
    sliding = {version: kinds(gemma, version) for version in ("0.8.5", "0.9.0", "0.9.1", "0.24.0")}
    assert sliding == {"0.8.5": 1, "0.9.0": 1, "0.9.1": 7, "0.24.0": 7}


def test_sparse_latent_attention_caches_its_indexer_too() -> None:
    model = get_model("deepseek-ai/DeepSeek-V3.2")
    resolved = resolve(vllm("0.24.0", tp=8, kv_cache_dtype="fp8"), model, gpu("H200"))
    layout = kv_layout(model, resolved)
    assert layout.block_tokens == 64
    assert layout.block_bytes / layout.block_tokens / 61 == 656 + 128 + 4


@pytest.mark.parametrize(
    ("row", "model", "changes", "version", "kv_gib", "concurrency"),
    [
        ("kv027", "Qwen/Qwen3.5-27B", {"max_model_len": 8192, "max_num_seqs": 256}, "0.29.0", 31.24, 38.35),
        (
            "kv061",
            "nvidia/Qwen3.6-35B-A3B-NVFP4",
            {"max_model_len": 131_072, "max_num_seqs": 1, "kv_cache_dtype": "fp8", "max_num_batched_tokens": 8192},
            "0.24.0",
            5.98,
            4.33,
        ),
    ],
)
def test_recurrent_hybrids_as_logged(
    row: str, model: str, changes: dict, version: str, kv_gib: float, concurrency: float
) -> None:
    spec = get_model(model)
    resolved = resolve(vllm(version, **changes), spec, gpu("RTX-PRO-6000-Blackwell-Server"))
    got = kv_tokens_from_gib(spec, resolved, kv_gib)
    assert got[2] == pytest.approx(concurrency, abs=0.006), row


@pytest.mark.parametrize(("row", "kv_gib", "tokens"), [("kv060", 11.054, 623_873), ("kv059", 11.025, 622_408)])
def test_speculation_lengthens_state_and_adds_a_layer(row: str, kv_gib: float, tokens: int) -> None:
    # Two 3090s, 262,144 tokens, 8-bit cache, three speculative tokens: 426 and 425 blocks of 17 layers, 179 a request.
    model = get_model("Qwen/Qwen3.5-27B")
    settings = vllm("0.24.0", tp=2, max_model_len=262_144, kv_cache_dtype="fp8", max_num_seqs=2, speculative_tokens=3)
    resolved = resolve(settings, model, gpu("RTX-3090"))
    layout = kv_layout(model, resolved)
    assert (layout.slots, layout.block_tokens, layout.blocks_for(262_144)) == (17, 1600, 179)
    assert kv_tokens_from_gib(model, resolved, kv_gib)[1] == tokens, row


def test_windows_count_both_steps_in_flight() -> None:
    # kv039: eight H100, 262,144 tokens, six padding layers; 26.588 requests of 49.18 GiB.
    model = get_model("XiaomiMiMo/MiMo-V2-Flash")
    changes = {"tp": 8, "ep": 8, "max_model_len": 262_144, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    resolved = resolve(vllm("0.28.0", **changes), model, h100())
    layout = kv_layout(model, resolved)
    assert layout.padding_layers == 6
    low = kv_tokens_from_gib(model, resolved, 49.175)
    high = kv_tokens_from_gib(model, resolved, 49.185)
    assert low[1] <= 6_969_972 <= high[1]


def test_one_state_block_without_prefix_caching() -> None:
    # kv092: 184 blocks of 8.82 GiB, 1.08 requests of 131,072 tokens; 256 sequences were refused.
    model = get_model("Qwen/Qwen3.5-27B")
    settings = vllm("0.24.0", precision="int4", max_model_len=131_072, enable_prefix_caching=False)
    resolved = resolve(settings, model, gpu("L40S"))
    assert kv_tokens_from_gib(model, resolved, 8.82)[:2] == (184, 141_036)


def test_recurrent_models_need_a_state_block_for_each_running_sequence() -> None:
    # Reported: a 27B hybrid in fp8 on one H100 at 0.95 has 856 state blocks; 1024 sequences are refused, 512 start.
    refused = account("Qwen/Qwen3.5-27B", h100(), vllm("0.22.1", precision="fp8", gpu_memory_utilization=0.95))
    assert not refused.fits
    assert refused.binding == "state"
    assert refused.kv_blocks == pytest.approx(856, rel=0.05)
    lower = vllm("0.22.1", precision="fp8", gpu_memory_utilization=0.95, max_num_seqs=512)
    assert account("Qwen/Qwen3.5-27B", h100(), lower).fits
    older = vllm("0.18.0", precision="fp8", gpu_memory_utilization=0.95)
    assert account("Qwen/Qwen3.5-27B", h100(), older).fits


def test_group_size_follows_the_version() -> None:
    model = synthetic(attention_layers(10), attention_layers(14, window=1024))
    sizes = {}
    for version in ("0.10.2", "0.12.0", "0.18.0"):
        sizes[version] = kv_layout(model, resolve(vllm(version), model, h100())).slots
    assert sizes == {"0.10.2": 10, "0.12.0": 10, "0.18.0": 14}


def test_padding_layers_are_counted() -> None:
    model = get_model("google/gemma-3-27b-it")
    layout = kv_layout(model, resolve(vllm("0.19.0"), model, h100()))
    assert len(layout.groups) * layout.slots == 70
    assert layout.padding_layers == 8


def test_smaller_pages_get_larger_blocks() -> None:
    model = synthetic(attention_layers(8, kv_heads=4), attention_layers(8, kv_heads=8, window=512))
    layout = kv_layout(model, resolve(vllm("0.19.0"), model, h100()))
    assert {(group.kind, group.block_tokens) for group in layout.groups} == {("full", 32), ("sliding", 16)}


def test_pages_that_cannot_be_made_equal_are_refused_by_old_versions() -> None:
    model = synthetic(attention_layers(8, kv_heads=3), attention_layers(8, kv_heads=8, window=512))
    with pytest.raises(UnsupportedError):
        kv_layout(model, resolve(vllm("0.12.0"), model, h100()))


def test_in_flight_tokens_double_with_asynchronous_scheduling() -> None:
    model = synthetic(attention_layers(4), attention_layers(4, window=1024))
    before = kv_layout(model, resolve(vllm("0.25.1", max_model_len=100_000), model, h100()))
    after = kv_layout(model, resolve(vllm("0.28.0", max_model_len=100_000), model, h100()))
    assert after.blocks_for(100_000) - before.blocks_for(100_000) == 8192 / 16


def test_encoders_keep_no_cache() -> None:
    got = account("BAAI/bge-m3", h100(), vllm("0.24.0"))
    assert got.fits
    assert (got.kv_blocks, got.kv_tokens) == (0, 0)
    assert "no KV cache" in got.sentence


KINDS = st.sampled_from(["full", "sliding", "chunked"])


@settings(max_examples=60, deadline=None)
@given(
    full=st.integers(1, 24),
    other=st.integers(0, 24),
    window=st.integers(16, 8192),
    kind=KINDS,
    heads=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    version=st.sampled_from(["0.10.2", "0.12.0", "0.19.0", "0.24.0", "0.33.0"]),
    length=st.integers(1, 100_000),
    blocks=st.integers(0, 5000),
)
def test_layout_invariants(
    full: int, other: int, window: int, kind: str, heads: int, tp: int, version: str, length: int, blocks: int
) -> None:
    layers = [attention_layers(full, kv_heads=heads)]
    if other:
        layers.append(
            attention_layers(other, kv_heads=heads, window=window, kind="chunked" if kind == "chunked" else "sliding")
        )
    model = synthetic(*layers)
    layout = kv_layout(model, resolve(vllm(version, tp=tp, max_model_len=100_000), model, h100()))
    assert sum(group.layers for group in layout.groups) == full + other
    assert len(layout.groups) * layout.slots - layout.padding_layers == full + other
    assert 0.0 <= layout.padded_share < 1.0
    assert layout.blocks_for(length) <= layout.blocks_for(length + 1)
    longest = layout.longest_for(blocks, 100_000)
    assert longest == 0 or layout.blocks_for(longest) <= blocks
    assert longest == 100_000 or layout.blocks_for(longest + 1) > blocks


@settings(max_examples=40, deadline=None)
@given(total=st.floats(20, 300), share=st.floats(0.3, 0.98), tp=st.sampled_from([1, 2, 4, 8]), others=st.floats(0, 15))
def test_ledger_parts_add_up(total: float, share: float, tp: int, others: float) -> None:
    got = account(
        "meta-llama/Llama-3.1-8B-Instruct",
        h100(),
        vllm("0.19.0", tp=tp, gpu_memory_utilization=share, max_model_len=8192),
        total_gib=total,
        used_by_others_gib=others,
    )
    parts = got.weights_gib + got.activation_gib + got.non_torch_gib + got.lora_gib + got.kv_gib
    assert parts == pytest.approx(got.budget_gib)
    assert got.fits == (not got.reasons)
    assert got.kv_blocks * got.block_tokens * got.kv_bytes_per_token <= max(0.0, got.kv_gib) * GIB * 1.000001
    if got.fits:
        assert got.largest_model_len >= 8192
        assert got.margin_gib >= 0

"""KV transfer between roles: what moves, held against published logs, and how its time depends on the link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.engines.disaggregation import keeps_hybrid_flag, refusals, role_settings
from planner.serving.kv_transfer import KvShipment, kv_shipment, link_across_nodes, link_within_node
from planner.units import MIB

H100 = get_gpu("H100-SXM5-80GB")
NVLINK = link_within_node(H100, 8, 8)


def shipment(model: str, engine: str = "vllm", tp: tuple[int, int] = (1, 1), **other) -> KvShipment:
    spec = get_model(model)
    first, second = (
        resolve(EngineSettings(EngineName(engine), tp=n, **other), spec, H100, expected_len=16384) for n in tp
    )
    return kv_shipment(spec, first, second)


def tokens(*counts: int) -> np.ndarray:
    return np.array(counts, dtype=np.int64)


def test_descriptors_and_bytes_are_those_of_a_published_log() -> None:
    """vLLM issue 34054: 40,064 descriptors and 313.0 MiB a rank; 5,000 tokens of Qwen3-32B over four ranks."""
    found = shipment("Qwen/Qwen3-32B", tp=(4, 4))
    assert found.descriptors(tokens(5000))[0] == 40_064
    assert found.bytes_in(tokens(5000))[0] / MIB == pytest.approx(313.0, abs=0.05)
    assert 129 <= found.post_ms(tokens(5000), NVLINK)[0] <= 135  # posted in 129 ms there


def test_larger_blocks_need_fewer_descriptors_for_the_same_bytes() -> None:
    small, large = (shipment("Qwen/Qwen3-32B", block_tokens=size) for size in (16, 64))
    assert small.descriptors(tokens(8192))[0] == 4 * large.descriptors(tokens(8192))[0]
    assert small.bytes_in(tokens(8192))[0] == large.bytes_in(tokens(8192))[0]


def test_a_latent_cache_goes_whole_to_every_decode_rank() -> None:
    one = shipment("deepseek-ai/DeepSeek-V3", tp=(8, 1), block_tokens=64)
    eight = shipment("deepseek-ai/DeepSeek-V3", tp=(8, 8), block_tokens=64)
    assert one.bytes_in(tokens(4096))[0] == eight.bytes_in(tokens(4096))[0]
    assert one.bytes_in(tokens(4096))[0] == 61 * (512 + 64) * 2 * 4096  # 61 layers, bf16


def test_heads_are_split_over_the_decode_ranks_and_leave_the_prefill_ranks_together() -> None:
    narrow, wide = (shipment("meta-llama/Llama-3.1-70B-Instruct", tp=(1, n)) for n in (1, 4))
    assert wide.bytes_in(tokens(4096))[0] == narrow.bytes_in(tokens(4096))[0] / 4
    # one prefill GPU still sends all of it
    assert wide.wire_ms(tokens(4096), NVLINK)[0] == pytest.approx(narrow.wire_ms(tokens(4096), NVLINK)[0])


def test_windows_send_their_window_and_tensorrt_llm_every_layer_in_full() -> None:
    vllm, trt = (shipment("google/gemma-3-27b-it", engine) for engine in ("vllm", "tensorrt_llm"))
    growth = vllm.bytes_in(tokens(8192, 16384))
    full_layers = 10 / 62
    assert growth[1] - growth[0] < 1.4 * full_layers * 8192 * 62 * 16 * 128 * 2 * 2
    assert trt.bytes_in(tokens(8192))[0] == 62 * 16 * 128 * 2 * 2 * 8192
    assert trt.descriptors(tokens(8192))[0] == 1


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 16_000),
    more=st.integers(0, 2_000),
    gb_s=st.floats(1.0, 900.0),
    factor=st.floats(1.0, 50.0),
    engine=st.sampled_from(["vllm", "tensorrt_llm"]),
)
def test_transfer_never_gets_slower_on_a_faster_link_nor_faster_with_more_tokens(
    length: int, more: int, gb_s: float, factor: float, engine: str
) -> None:
    found = shipment("meta-llama/Llama-3.1-8B-Instruct", engine)
    slow, fast = (replace(link_across_nodes(gb_s), gb_s=rate) for rate in (gb_s, gb_s * factor))
    assert found.transfer_ms(length, fast) <= found.transfer_ms(length, slow) + 1e-9
    assert found.transfer_ms(length, slow) <= found.transfer_ms(length + more, slow) + 1e-9


def test_gpus_beyond_one_domain_of_a_node_talk_over_pcie() -> None:
    assert NVLINK.kind == "nvlink"
    assert link_within_node(get_gpu("L40S"), 4, 1).kind == "pcie"
    assert link_across_nodes(50.0).bytes_per_ms == pytest.approx(45e6)


def roles(model: str, engine: str = "vllm", **other):
    spec, asked = get_model(model), EngineSettings(EngineName(engine), **other)
    return [
        role_settings(asked, spec, H100, role, expected_len=9000, longest_prompt=8500) for role in ("prefill", "decode")
    ]


def test_roles_differ_where_the_engines_differ() -> None:
    prefill, decode = roles("meta-llama/Llama-3.1-8B-Instruct")
    assert (prefill.block_tokens, decode.block_tokens) == (64, 64)
    assert prefill.max_model_len == 8512
    assert decode.max_model_len == 9024
    prefill, decode = roles("meta-llama/Llama-3.1-8B-Instruct", "tensorrt_llm")
    assert not prefill.async_scheduling
    assert decode.async_scheduling
    assert prefill.max_num_batched_tokens == 8512  # a whole prompt in a step: its chunked prefill is off


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {"kv_cache_dtype": "fp8"}, "same KV-cache precision"),
        ("meta-llama/Llama-3.1-8B-Instruct", {"version": "0.23.0"}, "same version"),
        ("meta-llama/Llama-3.1-8B-Instruct", {"pp": 2}, "no caches between pipeline stages"),
    ],
)
def test_what_cannot_exchange_caches_is_refused_in_words(model: str, change: dict, words: str) -> None:
    prefill, decode = roles(model)
    reasons = refusals(get_model(model), H100, prefill, replace(decode, **change))
    assert any(words in reason for reason in reasons)


def test_versions_decide_on_hybrid_caches() -> None:
    spec = get_model("google/gemma-3-27b-it")
    for version, refused, flag in (("0.17.1", True, True), ("0.19.0", False, True), ("0.24.0", False, False)):
        prefill, decode = roles("google/gemma-3-27b-it", version=version)
        assert bool(refusals(spec, H100, prefill, decode)) is refused
        assert keeps_hybrid_flag(spec, decode) is flag
    assert any(
        "encoder" in r.lower() or "generate" in r for r in refusals(get_model("BAAI/bge-m3"), H100, *[decode] * 2)
    )

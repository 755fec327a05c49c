"""The formula of the pool, and what is not left to a guess (cases M33 to M48)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_samples import account, answer, gpu, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import resolve
from planner.errors import UnknownModelError
from planner.memory import kv_tokens_from_gib, memory_report
from planner.memory.vllm_terms import multimodal_budget_tokens
from planner.units import GIB

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def test_m33_fit_and_probe_check_use_one_formula() -> None:
    for settings in (vllm(max_model_len=8192), trtllm(max_model_len=8192), vllm("0.24.0", max_model_len=8192)):
        for name in (LLAMA_8B, "google/gemma-3-27b-it", "openai/gpt-oss-20b"):
            model = get_model(name)
            got = account(model, h100(), settings)
            checked = kv_tokens_from_gib(model, resolve(settings, model, h100()), got.kv_gib)
            assert checked == (got.kv_blocks, got.kv_tokens, got.max_concurrency)


def test_m34_an_unknown_model_is_an_error_not_a_guess() -> None:
    with pytest.raises(UnknownModelError):
        account("nobody/has-this-model", h100(), vllm())
    got = answer(model="nobody/has-this-model")
    assert (got["status"], got["memory"]) == ("error", None)
    assert "nobody/has-this-model" in got["reasons"][0]


def test_m35_tensorrt_llm_caps_concurrency_at_whole_32_token_blocks() -> None:
    """Beyond what the pool holds reserved, requests queue: no more is delivered, and the report says so."""
    asked = {"model": LLAMA_8B, "gpu": "H100", "engine": "tensorrt_llm", "max_model_len": 1024, "max_num_seqs": 512}
    lengths = {"input_tokens": 700, "output_tokens": 300, "kv_cache_max_tokens": 40 * 1024}
    got = answer(**asked, **lengths)["memory"]
    assert (got["block_tokens"], got["kv_blocks"], got["max_concurrency"]) == (32, 1280, 40.0)
    full, over = (
        answer(**asked, **lengths, load={"kind": "closed", "concurrency": users, "requests": 480})["perf"]
        for users in (40, 160)
    )
    assert over["req_per_s"] == pytest.approx(full["req_per_s"], rel=0.05)
    assert over["ttft_ms"]["p50"] > 5 * full["ttft_ms"]["p50"]
    assert over["preemptions"] == 0
    settings = trtllm(max_model_len=1024, max_num_seqs=512, kv_cache_max_tokens=40 * 1024)
    said = memory_report(
        get_model(LLAMA_8B), gpu("H100"), settings, input_tokens=700, output_tokens=300, concurrency=160
    )
    assert said.cliff is not None
    assert said.cliff.safe_sequences == 40
    assert "expect queueing" in said.cliff.sentence


def test_m37_heads_are_replicated_beyond_their_number() -> None:
    model = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    four, eight = (answer(model=model, tp=tp, max_model_len=8192) for tp in (4, 8))
    per_token = [got["memory"]["kv_gib"] / got["memory"]["kv_tokens"] for got in (four, eight)]
    assert per_token[1] == pytest.approx(per_token[0], rel=1e-4)
    assert per_token[0] * GIB == pytest.approx(48 * 1 * 128 * 2 * 2, rel=1e-4)
    assert any("4 K/V heads over 8 ranks" in reason for reason in eight["reasons"])


def test_m38_planned_length_stands_in_for_the_maximum() -> None:
    model = get_model("Qwen/Qwen3-8B")
    resolved = resolve(vllm("0.24.0"), model, h100(), expected_len=1280)
    assert resolved.max_model_len == 1280
    assert "planned" in resolved.origin["max_model_len"]
    planned = answer(model="Qwen/Qwen3-8B", input_tokens=1000, output_tokens=280)["memory"]
    whole = answer(model="Qwen/Qwen3-8B")["memory"]
    assert planned["max_concurrency"] == pytest.approx(whole["max_concurrency"] * 40_960 / 1280, rel=1e-3)


def test_m39_sliding_layers_do_not_grow_with_the_context() -> None:
    """Estimated elsewhere: 139 GB; used: about 32 GB, with 85,000 of 128,000 tokens in an 8-bit cache."""
    asked = {"model": "google/gemma-3-27b-it", "gpu": "A100-80GB", "engine": "vllm", "kv_cache_dtype": "fp8"}
    used = {}
    for length in (85_000, 128_000):
        got = answer(**asked, precision="int8", max_model_len=length, max_num_seqs=1, max_num_batched_tokens=512)[
            "memory"
        ]
        rest = got["weights_gib"] + got["activation_gib"] + got["non_torch_gib"]
        used[length] = (rest + got["kv_gib"] / got["max_concurrency"]) * GIB / 1e9
    assert used[85_000] == pytest.approx(32.0, rel=0.1)
    assert used[128_000] < 38.0
    # 10 of 62 layers grow, 16 heads of 128 in 8 bits
    assert used[128_000] - used[85_000] == pytest.approx(43_000 * 10 * 16 * 128 * 2 / 1e9, rel=0.05)


def test_m40_a_shard_above_the_card_is_refused() -> None:
    over = answer(model="deepseek-ai/DeepSeek-R1", gpu="H100", engine="vllm", tp=4, max_model_len=8192)
    assert over["status"] == "infeasible"
    assert over["memory"]["weights_gib"] > 80
    assert over["memory"]["largest_model_len"] == 0
    assert any("The weights alone" in reason for reason in over["reasons"])
    ten = answer(model="deepseek-ai/DeepSeek-R1", gpu="H100", engine="vllm", tp=10, max_model_len=8192)
    assert ten["status"] == "unsupported"
    fits = answer(model="deepseek-ai/DeepSeek-R1", gpu="H100", engine="vllm", tp=8, pp=2, max_model_len=8192)
    assert fits["status"] == "ok"
    assert fits["memory"]["weights_gib"] < 45
    taken = answer(model=LLAMA_8B, gpu="RTX 4090", engine="vllm", max_model_len=8192, used_by_others_gib=4.0)
    assert taken["status"] == "infeasible"
    assert any("Only 19.55 of 23.55 GiB are free" in reason for reason in taken["reasons"])


def test_m41_m42_reasons_state_need_and_allowance_in_one_unit() -> None:
    got = account("Qwen/Qwen3-8B", gpu("L4", total_gib=22.0), vllm("0.24.0", max_model_len=40_960))
    assert not got.fits
    need, have = 40_960 / 16 * 2.25 / 1024, got.kv_gib
    assert f"{need:.2f} GiB" in got.reasons[0]
    assert f"{have:.2f} GiB" in got.reasons[0]
    busy = account("Qwen/Qwen3-0.6B", gpu("L4", total_gib=22.0), vllm("0.24.0"), used_by_others_gib=5.0)
    assert "17.00 of 22.00 GiB are free" in busy.reasons[0]


def test_m43_a_value_equal_to_the_default_counts_as_set() -> None:
    got = memory_report(get_model(LLAMA_8B), h100(), vllm("0.24.0", max_num_seqs=1024, max_model_len=8192))
    assert got.resolved is not None
    assert got.resolved.origin["max_num_seqs"] == "user"
    assert got.ledger is not None
    assert got.ledger.kv_blocks == pytest.approx(17_600 * 57 / 34.4, rel=0.02), "counted, not a million"


@pytest.mark.parametrize(("items", "budget"), [(2, 32_768), (11, 180_224)])
def test_m45_multimodal_items_raise_the_encoder_budget(items: int, budget: int) -> None:
    """16,384 tokens an item: an image and a video; ten images and a video."""
    name = "Qwen/Qwen2.5-VL-72B-Instruct"
    model = get_model(name)
    resolved = resolve(vllm("0.24.0", tp=2, max_model_len=32_768, mm_items_per_prompt=items), model, h100())
    assert multimodal_budget_tokens(model, resolved) == budget
    asked = {"model": name, "precision": "int4", "tp": 2, "max_model_len": 32_768}
    one, several = (answer(**asked, mm_items_per_prompt=count)["memory"]["activation_gib"] for count in (1, items))
    assert several - one == pytest.approx((budget - 16_384) * model.hidden * 2 / GIB, rel=1e-3)


def test_m46_adapter_slots_come_out_of_the_pool() -> None:
    none = account(LLAMA_8B, h100(), vllm(max_model_len=8192))
    small = account(LLAMA_8B, h100(), vllm(max_model_len=8192, max_loras=4, max_lora_rank=16))
    large = account(LLAMA_8B, h100(), vllm(max_model_len=8192, max_loras=4, max_lora_rank=64))
    assert none.lora_gib == 0.0
    assert large.lora_gib == pytest.approx(4 * small.lora_gib)
    assert none.kv_gib - large.kv_gib == pytest.approx(large.lora_gib)
    # Rank 16 of all linear layers of this model is 41.9 million parameters.
    assert small.lora_gib == pytest.approx(4 * 41_943_040 * 2 / GIB, rel=0.01)


def test_m47_logprobs_need_room_that_profiling_never_saw() -> None:
    name = "Qwen/Qwen3-32B"
    safe = vllm("0.24.0", max_model_len=2048, max_num_seqs=512, max_num_batched_tokens=1024)
    none = account(name, h100(), safe)
    some = account(name, h100(), replace(safe, logprobs=20))
    assert none.logprobs_gib == 0.0
    assert some.logprobs_gib == pytest.approx(512 * 151_936 * 4 / GIB, rel=1e-3)
    assert some.kv_gib == none.kv_gib  # it lies outside the budget
    prompts = account(name, h100(), replace(safe, max_num_batched_tokens=8192, prompt_logprobs=True))
    assert prompts.logprobs_gib > 5.0
    tight = account(name, h100(), replace(safe, gpu_memory_utilization=0.97, logprobs=20))
    assert account(name, h100(), replace(safe, gpu_memory_utilization=0.97)).fits
    assert not tight.fits
    assert tight.binding == "logprobs"
    assert "forbid" in tight.reasons[0]


@pytest.mark.parametrize(("version", "graphs_counted"), [("0.19.0", False), ("0.21.0", True)])
def test_g5_every_term_is_shown_and_they_add_up(version: str, graphs_counted: bool) -> None:
    """G5: what an offer needs before there is a machine: each term, tokens and requests of a given context."""
    asked = {"gpu": "H100-SXM5-80GB", "gpu_memory_gib": 79.19, "engine": "vllm", "engine_version": version}
    got = answer(model="Qwen/Qwen2.5-14B-Instruct", gpu_memory_utilization=0.9, max_model_len=8192, **asked)["memory"]
    parts = ["weights_gib", "activation_gib", "non_torch_gib", "kv_gib"] + (["graph_gib"] if graphs_counted else [])
    assert sum(got[part] for part in parts) == pytest.approx(0.9 * 79.19, abs=1e-3)
    assert got["graph_gib"] > 1.0
    assert got["max_concurrency"] == pytest.approx(got["kv_blocks"] * 16 / 8192, rel=1e-3)
    assert got["kv_tokens"] == pytest.approx(got["kv_blocks"] * 16, rel=1e-3)
    assert got["interval80"]["kv_gib"][0] < got["kv_gib"] < got["interval80"]["kv_gib"][1]


def test_m48_head_size_comes_from_the_nested_language_config() -> None:
    got = account("google/gemma-3-27b-it", h100(), vllm(max_model_len=8192, gpu_memory_utilization=0.95))
    assert got.max_concurrency == pytest.approx(4.46, rel=0.02)

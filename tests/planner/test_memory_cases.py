"""What people reported about memory planning, each as a computation with its right answer (cases M and H).

Layout cases (H1 to H16) are in test_memory_layout.py, the preemption cliff (H18, H20) in test_memory_cliff.py, waste of
paging (H7) in test_fragmentation_kv.py, the simulator under preemption (H19) in test_memory_preemption.py.

Not computed, and why:
* H9 (better packing: 1,489,675 to 2,237,978 tokens) names neither model nor settings; how packing changes with the
  version is tested on known models instead.
* H11 (27.08 to 7.73 full requests after a model's revision) names a family, not the two configurations.
* M27 (graphs of 4.7 to 16.9 GiB on eight MI355X) gives no cause to compute from: the ledger says that its figure was
  never measured there, and widens the interval.
* M22 gives no driver versions: the memory that the driver reports is an input, and what it moves is tested.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_samples import (
    account,
    attention_layers,
    gpu,
    h100,
    latent_layers,
    state_layers,
    synthetic,
    trtllm,
    vllm,
)

from planner.catalog import get_model
from planner.engines import EngineName, command_line, config_files, resolve
from planner.errors import InputError, UnknownModelError
from planner.evidence import Evidence
from planner.memory import advise, fewer_sequences, kv_layout, kv_tokens_from_gib, largest_context
from planner.memory.vllm_terms import multimodal_budget_tokens
from planner.units import GIB

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def test_m1_largest_context_is_searched_over_the_layer_kinds() -> None:
    # 24 KiB a token in the layers that grow: 1,048,576 tokens need 24 GiB; the sliding layers stay small.
    model = synthetic(attention_layers(6), attention_layers(6, window=4096))
    resolved = resolve(vllm("0.24.0", max_model_len=1_048_576), model, h100())
    layout = kv_layout(model, resolved)
    need = layout.blocks_for(1_048_576) * layout.block_bytes / GIB
    assert need == pytest.approx(24.0, rel=0.02)
    blocks = int(9.97 * GIB // layout.block_bytes)
    longest = layout.longest_for(blocks, 1_048_576)
    assert layout.blocks_for(longest) <= blocks < layout.blocks_for(longest + 1)
    # Dividing the pool by all layers' bytes would halve the answer.
    assert longest > 1.9 * (9.97 * GIB / (2 * 24 * 1024))


def test_m2_tokens_in_the_pool_decide_not_gib() -> None:
    settings = vllm(max_model_len=4096, gpu_memory_utilization=0.9)
    roomy = account(LLAMA_8B, h100(), settings)
    block_gib = 2.0 / 1024
    used = roomy.budget_gib - roomy.kv_gib
    tight = account(LLAMA_8B, h100(), settings, total_gib=(used + 229.5 * block_gib) / 0.9)
    assert tight.kv_blocks == 229
    assert tight.kv_gib > 0
    assert not tight.fits
    assert tight.binding == "kv"
    assert tight.largest_model_len == 229 * 16
    assert "3,664" in tight.reasons[0]


def test_m4_the_length_asked_for_reaches_the_command_line() -> None:
    model = get_model(LLAMA_70B)
    resolved = resolve(vllm(tp=2, max_model_len=20_000), model, h100())
    arguments = command_line(resolved, "/models/llama", "llama", 8000)
    assert arguments[arguments.index("--max-model-len") + 1] == "20000"
    unset = resolve(vllm(tp=2), model, h100())
    assert unset.max_model_len == 131_072
    assert unset.origin["max_model_len"].startswith("model configuration")


def test_m5_cache_from_kv_heads_not_hidden_size() -> None:
    got = account("Qwen/Qwen2.5-1.5B-Instruct", gpu("RTX-4090", total_gib=15.6), vllm("0.11.0", max_model_len=4096))
    assert got.kv_bytes_per_token == pytest.approx(28 * 2 * 2 * 128 * 2, rel=1e-6)
    assert got.fits


def test_m7_activation_counts_so_the_70b_fails_on_one_h100() -> None:
    refused = account(LLAMA_70B, h100(79.18), vllm("0.16.0", precision="fp8", max_model_len=16_000))
    assert refused.kv_gib == pytest.approx(-1.44, abs=0.1)
    assert not refused.fits
    assert refused.binding == "activation"
    settings = vllm("0.16.0", precision="fp8", max_model_len=16_000, gpu_memory_utilization=0.95)
    assert not account(LLAMA_70B, h100(79.18), settings).fits


@pytest.mark.parametrize(
    ("changes", "weights", "tokens"),
    [
        ({}, 14.99, 476_016),
        ({"kv_cache_dtype": "fp8"}, 14.99, 952_032),
        ({"precision": "fp8"}, 8.49, 529_248),
        ({"precision": "fp32"}, 29.98, 175_296),
    ],
)
def test_m8_types_are_not_ignored(changes: dict[str, str], weights: float, tokens: int) -> None:
    got = account(LLAMA_8B, h100(), vllm(gpu_memory_utilization=0.95, max_model_len=8192, **changes))
    assert got.weights_gib == pytest.approx(weights, abs=0.01)
    assert got.kv_tokens == pytest.approx(tokens, rel=0.001)


@pytest.mark.parametrize(("version", "weights"), [("0.10.2", 65.97), ("0.14.1", 64.38)])
def test_mxfp4_experts_are_padded_as_the_kernel_of_the_version_wants(version: str, weights: float) -> None:
    """vllm-project/vllm#23278 and #33155: one H100, "Model loading took" with "Using Marlin backend" and "Triton"."""
    got = account("openai/gpt-oss-120b", h100(), vllm(version, max_model_len=8192))
    assert got.weights_gib == pytest.approx(weights, abs=0.05)


def test_m9_activation_is_keyed_by_version() -> None:
    before = account("Qwen/Qwen3-14B", h100(), vllm("0.16.0", max_model_len=8192))
    after = account("Qwen/Qwen3-14B", h100(), vllm("0.17.0", max_model_len=8192))
    assert before.activation_gib == pytest.approx(5.64, abs=0.03)
    assert after.activation_gib == pytest.approx(2.23, abs=0.03)


def test_m11_pipeline_stages_are_not_equal() -> None:
    whole = account("Qwen/Qwen3-8B", h100(), vllm(max_model_len=8192)).weights_gib
    fullest = account("Qwen/Qwen3-8B", h100(), vllm(max_model_len=8192, pp=3)).weights_gib
    assert fullest / (whole / 3) == pytest.approx(1.072, abs=0.02)


def test_m12_multimodal_activation_is_its_own_term() -> None:
    got = account(
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503", h100(), vllm(gpu_memory_utilization=0.95, max_model_len=8192)
    )
    assert got.kv_gib == pytest.approx(28.20, abs=0.2)
    assert got.evidence is Evidence.EXTRAPOLATED


def test_m13_activation_is_the_share_of_the_rank() -> None:
    alone = account("codellama/CodeLlama-34b-Instruct-hf", h100(), vllm(max_model_len=8192))
    split = account("codellama/CodeLlama-34b-Instruct-hf", h100(), vllm(max_model_len=8192, tp=4))
    assert split.activation_gib < alone.activation_gib


def test_m14_graphs_take_gibibytes_on_large_models() -> None:
    got = account("Qwen/Qwen3-32B", h100(), vllm("0.24.0", max_model_len=8192))
    assert 1.5 <= got.graph_gib <= 1.9
    assert not got.graph_in_budget
    assert any("outside gpu_memory_utilization" in note for note in got.notes)


def test_m17_recurrent_state_is_counted_beside_the_cache() -> None:
    model = get_model("ibm-granite/granite-4.0-h-small")
    got = account(model, h100(), vllm("0.24.0", max_model_len=8192, tp=2))
    assert got.state_bytes_per_seq > 1e6
    layout = kv_layout(model, resolve(vllm("0.24.0", max_model_len=8192, tp=2), model, h100()))
    kinds = {group.kind for group in layout.groups}
    assert kinds == {"state", "full"}
    assert layout.blocks_for(1) > sum(1 for group in layout.groups if group.kind == "full")


def test_m19_gate_asks_for_one_sequence_and_shows_the_rest_as_capacity() -> None:
    model = get_model("Qwen/Qwen2.5-7B-Instruct")
    settings = vllm("0.24.0", max_model_len=32_768)
    resolved = resolve(settings, model, gpu("A40"))
    got = account(model, gpu("A40"), settings)
    assert resolved.max_num_seqs == 256
    assert got.fits
    assert 1 < got.max_concurrency < resolved.max_num_seqs


@pytest.mark.parametrize(("name", "budget", "sequences"), [("H100", 8192, 1024), ("A100-80GB", 2048, 256)])
def test_m20_defaults_depend_on_the_gpu(name: str, budget: int, sequences: int) -> None:
    resolved = resolve(vllm("0.24.0"), get_model(LLAMA_8B), gpu(name))
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (budget, sequences)


def test_m21_fewer_sequences_are_offered_when_the_sampler_takes_too_much() -> None:
    settings = vllm("0.16.0", max_model_len=30_000)
    assert not account("Qwen/Qwen3-32B", h100(), settings).fits
    remedies = {remedy.field: remedy.value for remedy in advise(get_model("Qwen/Qwen3-32B"), h100(), settings)}
    assert int(remedies["max_num_seqs"]) <= 512
    changed = replace(settings, max_num_seqs=int(remedies["max_num_seqs"]))
    assert account("Qwen/Qwen3-32B", h100(), changed).fits


def test_m22_memory_as_the_driver_reports_it_moves_the_pool() -> None:
    before = account(LLAMA_8B, h100(), vllm(max_model_len=8192))
    after = account(LLAMA_8B, h100(), vllm(max_model_len=8192), total_gib=79.19 - 0.6)
    assert before.kv_gib - after.kv_gib == pytest.approx(0.54, abs=0.01)


def test_m23_utilisation_is_of_the_total_and_others_count() -> None:
    second = vllm("0.11.0", gpu_memory_utilization=0.20, precision="int4", max_model_len=4096)
    got = account("Qwen/Qwen3-14B", gpu("A100-80GB", total_gib=79.15), second, used_by_others_gib=68.01)
    assert not got.fits
    assert got.binding == "total"
    assert "refuses to start" in got.reasons[0]
    card = gpu("L40S", total_gib=44.4)
    first_gib = 0.2 * 44.4
    tiny = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    for share, fits in ((0.2, False), (0.3, True)):
        # Versions of that time took the other process's memory for their own.
        settings = vllm("0.8.5", gpu_memory_utilization=share, max_model_len=2048)
        assert account(tiny, card, settings, used_by_others_gib=first_gib).fits is fits
    later = vllm("0.11.0", gpu_memory_utilization=0.2, max_model_len=2048)
    assert account(tiny, card, later, used_by_others_gib=first_gib).fits


def test_m24_the_engine_takes_its_share_whatever_the_router_planned() -> None:
    card = gpu("RTX-PRO-6000-Blackwell-Server", total_gib=94.97)
    settings = vllm("0.24.0", tp=2, gpu_memory_utilization=0.95, max_model_len=8192)
    got = account("google/gemma-3-27b-it", card, settings, used_by_others_gib=94.97 - 79.12)
    assert got.budget_gib == pytest.approx(90.22, abs=0.01)
    assert not got.fits
    assert "79.12" in got.reasons[0]


def test_m25_unified_memory_is_one_pool() -> None:
    spark = gpu("GB10-DGX-Spark", total_gib=119.0)
    settings = vllm("0.24.0", gpu_memory_utilization=0.70, max_model_len=8192)
    got = account("google/gemma-4-26B-A4B", spark, settings)
    assert got.budget_gib == pytest.approx(83.3, abs=0.1)
    assert any("share one memory" in note for note in got.notes)
    busy = account("google/gemma-4-26B-A4B", spark, settings, used_by_others_gib=40.0)
    assert not busy.fits


def test_m26_a_pool_that_fits_may_still_die_in_graph_capture() -> None:
    model = "Qwen/Qwen3-32B"
    lean = vllm("0.24.0", gpu_memory_utilization=0.993, max_model_len=2048, max_num_batched_tokens=1024)
    got = account(model, gpu("H100"), replace(lean, max_num_seqs=512))
    assert got.kv_gib > 0
    assert not got.fits
    assert got.binding == "graphs"
    assert account(model, gpu("H100"), replace(lean, max_num_seqs=512, gpu_memory_utilization=0.95)).fits


def test_m28_the_same_share_gives_less_after_graphs_are_counted() -> None:
    model = get_model("Qwen/Qwen2.5-14B-Instruct")
    old = account(model, h100(), vllm("0.19.0", gpu_memory_utilization=0.82, max_model_len=8192, max_num_seqs=256))
    new = account(model, h100(), vllm("0.21.0", gpu_memory_utilization=0.82, max_model_len=8192, max_num_seqs=256))
    assert (old.kv_gib - new.kv_gib) / 79.19 == pytest.approx(0.0152, abs=0.003)


def test_m29_blocks_and_concurrency_of_an_old_start_up() -> None:
    model = get_model(LLAMA_8B)
    resolved = resolve(vllm("0.6.4", tp=2, max_model_len=40_000), model, gpu("V100-SXM2-16GB"))
    blocks, _, concurrency = kv_tokens_from_gib(model, resolved, 3852 / 1024 + 1e-6)
    assert blocks == 3852
    assert concurrency == pytest.approx(1.54, abs=0.005)


def test_m31_tensorrt_llm_the_smallest_limit_wins() -> None:
    model = get_model("meta-llama/Llama-2-7b-hf")
    resolved = resolve(trtllm(max_model_len=4096), model, gpu("A100-80GB"))
    blocks, tokens, _ = kv_tokens_from_gib(model, resolved, 69_524_783_104 / GIB)
    assert tokens == 132_608
    assert blocks == 132_608 // 32
    free = account(model, gpu("A100-80GB"), trtllm(max_model_len=4096))
    assert free.kv_tokens > 100_000
    capped = account(model, gpu("A100-80GB"), trtllm(max_model_len=4096, kv_cache_max_tokens=50_000))
    assert capped.kv_tokens == 50_000 // 32 * 32


def test_m32_share_of_total_against_share_of_free() -> None:
    card = gpu("B200-SXM", total_gib=179.0)
    of_total = account(LLAMA_70B, card, vllm("0.24.0", gpu_memory_utilization=0.92, max_model_len=8192))
    of_free = account(LLAMA_70B, card, trtllm(free_gpu_memory_fraction=0.92, max_model_len=8192, max_num_seqs=256))
    assert of_total.kv_gib == pytest.approx(0.92 * 179 - of_total.weights_gib, abs=3.0)
    assert of_free.kv_gib == pytest.approx(0.92 * (179 - of_free.weights_gib), abs=4.0)
    assert of_free.kv_gib > of_total.kv_gib


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


def test_m35_tensorrt_llm_caps_concurrency_at_whole_32_token_blocks() -> None:
    got = account(LLAMA_8B, h100(), trtllm(max_model_len=1000))
    assert got.block_tokens == 32
    assert got.blocks_per_request == 32
    assert got.max_concurrency == pytest.approx(got.kv_blocks / 32)


def test_m37_heads_are_replicated_beyond_their_number() -> None:
    model = "Qwen/Qwen3-30B-A3B"
    four = account(model, h100(), vllm(tp=4, max_model_len=8192))
    eight = account(model, h100(), vllm(tp=8, max_model_len=8192))
    assert eight.kv_bytes_per_token == four.kv_bytes_per_token


def test_m38_planned_length_stands_in_for_the_maximum() -> None:
    model = get_model("Qwen/Qwen3-8B")
    resolved = resolve(vllm("0.24.0"), model, h100(), expected_len=1280)
    assert resolved.max_model_len == 1280
    assert "planned" in resolved.origin["max_model_len"]


def test_m39_sliding_layers_do_not_grow_with_the_context() -> None:
    model = get_model("google/gemma-3-27b-it")
    resolved = resolve(vllm("0.24.0", kv_cache_dtype="fp8", max_model_len=85_000), model, h100())
    layout = kv_layout(model, resolved)
    assert layout.blocks_for(85_000) * layout.block_bytes / GIB < 8.0
    grow = layout.blocks_for(128_000) - layout.blocks_for(85_000)
    assert grow == pytest.approx((128_000 - 85_000) / 16, abs=1)


def test_m40_a_shard_above_the_card_is_refused() -> None:
    got = account("deepseek-ai/DeepSeek-V3", h100(), vllm("0.24.0", tp=4, max_model_len=8192))
    assert got.weights_gib > got.total_gib
    assert not got.fits
    assert got.binding == "weights"
    assert got.largest_model_len == 0


def test_m41_m42_reasons_state_need_and_allowance_in_one_unit() -> None:
    got = account("Qwen/Qwen3-8B", gpu("L4", total_gib=22.0), vllm("0.24.0", max_model_len=40_960))
    assert not got.fits
    need, have = 40_960 / 16 * 2.25 / 1024, got.kv_gib
    assert f"{need:.2f} GiB" in got.reasons[0]
    assert f"{have:.2f} GiB" in got.reasons[0]
    busy = account("Qwen/Qwen3-0.6B", gpu("L4", total_gib=22.0), vllm("0.24.0"), used_by_others_gib=5.0)
    assert "17.00 of 22.00 GiB are free" in busy.reasons[0]


def test_m43_a_value_equal_to_the_default_counts_as_set() -> None:
    resolved = resolve(vllm("0.24.0", max_num_seqs=1024), get_model(LLAMA_8B), h100())
    assert resolved.origin["max_num_seqs"] == "user"


def test_m45_multimodal_items_raise_the_encoder_budget() -> None:
    model = get_model("Qwen/Qwen2.5-VL-7B-Instruct")
    one = resolve(vllm("0.24.0", max_model_len=32_768), model, h100())
    ten = resolve(vllm("0.24.0", max_model_len=32_768, mm_items_per_prompt=10), model, h100())
    assert multimodal_budget_tokens(model, one) == 16_384
    assert multimodal_budget_tokens(model, ten) == 163_840
    assert account(model, h100(), vllm("0.24.0", max_model_len=32_768)).activation_gib < (
        account(model, h100(), vllm("0.24.0", max_model_len=32_768, mm_items_per_prompt=10)).activation_gib
    )


def test_m46_adapter_slots_come_out_of_the_pool() -> None:
    none = account(LLAMA_8B, h100(), vllm(max_model_len=8192))
    small = account(LLAMA_8B, h100(), vllm(max_model_len=8192, max_loras=4, max_lora_rank=16))
    large = account(LLAMA_8B, h100(), vllm(max_model_len=8192, max_loras=4, max_lora_rank=64))
    assert none.lora_gib == 0.0
    assert large.lora_gib == pytest.approx(4 * small.lora_gib)
    assert none.kv_gib - large.kv_gib == pytest.approx(large.lora_gib)
    # Rank 16 of all linear layers of this model is 41.9 million parameters.
    assert small.lora_gib == pytest.approx(4 * 41_943_040 * 2 / GIB, rel=0.01)


def test_m48_head_size_comes_from_the_nested_language_config() -> None:
    got = account("google/gemma-3-27b-it", h100(), vllm(max_model_len=8192, gpu_memory_utilization=0.95))
    assert got.max_concurrency == pytest.approx(4.46, rel=0.02)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"total_gib": 0.0}, "gpu_memory_gib"),
        ({"total_gib": -3.0}, "gpu_memory_gib"),
        ({"used_by_others_gib": 99.0}, "used_by_others_gib"),
    ],
)
def test_absurd_sizes_name_their_field(options: dict[str, float], field: str) -> None:
    with pytest.raises(InputError) as caught:
        account(LLAMA_8B, h100(), vllm(), **options)
    assert caught.value.field == field


def test_largest_context_is_where_the_engine_still_starts() -> None:
    model = get_model("Qwen/Qwen3-32B")
    settings = vllm("0.24.0")
    longest = largest_context(model, h100(), settings)
    assert account(model, h100(), replace(settings, max_model_len=longest)).fits
    assert (
        longest == model.max_position or not account(model, h100(), replace(settings, max_model_len=longest + 16)).fits
    )


def test_every_remedy_makes_it_fit() -> None:
    model = get_model(LLAMA_70B)
    for engine in EngineName:
        settings = vllm("0.24.0", tp=2) if engine is EngineName.VLLM else trtllm(tp=2)
        assert not account(model, h100(), settings).fits
        remedies = advise(model, h100(), settings)
        assert remedies
        for remedy in remedies:
            changes = {remedy.field: remedy.value}
            if remedy.field == "max_num_batched_tokens":
                changes["max_num_seqs"] = min(settings.max_num_seqs or int(remedy.value), int(remedy.value))
            assert account(model, h100(), replace(settings, **changes)).fits, remedy


def test_sequences_are_lowered_until_a_default_starts() -> None:
    model = get_model("Qwen/Qwen3.5-35B-A3B")
    settings = trtllm(max_model_len=8192)
    assert not account(model, gpu("H200"), settings).fits
    lowered = fewer_sequences(model, gpu("H200"), settings)
    assert lowered.max_num_seqs in (256, 512, 1024)
    assert account(model, gpu("H200"), lowered).fits
    assert not account(model, gpu("H200"), replace(lowered, max_num_seqs=2 * int(lowered.max_num_seqs or 0))).fits
    fine = vllm("0.24.0", max_model_len=8192)
    assert fewer_sequences(get_model(LLAMA_8B), h100(), fine) is fine
    hopeless = vllm("0.24.0", max_model_len=8192)
    assert fewer_sequences(get_model(LLAMA_70B), h100(), hopeless) is hopeless


def test_m14_the_longest_context_of_a_latent_cache() -> None:
    # 36 layers of a latent of 256 + 64 in 16 bits: 23,040 bytes a token on every rank.
    model = synthetic(latent_layers(36, rank=256))
    resolved = resolve(vllm("0.24.0", tp=2, max_model_len=1_048_576), model, gpu("H100-NVL-94GB"))
    layout = kv_layout(model, resolved)
    block = layout.block_bytes / GIB
    assert layout.blocks_for(1_048_576) * block == pytest.approx(22.5, abs=0.005)
    longest = [layout.longest_for(int(gib // block), 1_048_576) for gib in (17.385, 17.395)]
    assert longest[0] <= 810_208 <= longest[1]


def test_m14_the_overhead_of_a_large_model_is_no_flat_figure() -> None:
    got = account(LLAMA_70B, gpu("H100-NVL-94GB"), vllm("0.19.0", tp=2, max_model_len=8192))
    overhead = got.activation_gib + got.non_torch_gib + got.graph_gib
    assert 4.5 < overhead < 7.0
    assert 1.5 <= got.graph_gib <= 2.5


def test_m27_graphs_on_other_vendors_are_not_called_known() -> None:
    got = account("moonshotai/Kimi-K3", gpu("MI355X"), vllm("0.24.0", tp=8, max_model_len=8192))
    assert got.evidence is Evidence.EXTRAPOLATED
    assert any("never" in note or "4.7 to 16.9" in note for note in got.notes)
    assert got.kv_gib_80 is not None
    assert got.kv_gib_80.high - got.kv_gib_80.low > 1.0


def test_m31_a_limit_in_bytes_and_a_host_cache() -> None:
    card, name = gpu("A100-80GB"), "meta-llama/Llama-2-7b-hf"
    plain = account(name, card, trtllm(max_model_len=4096))
    assert plain.pool_limit == "free_gpu_memory_fraction"
    both = account(name, card, trtllm(max_model_len=4096, kv_cache_max_gpu_gib=20.0, kv_cache_max_tokens=50_000))
    assert both.pool_limit == "max_gpu_total_bytes"  # 20 GiB are 40,960 tokens of 512 KiB
    assert both.kv_tokens == 40_960
    fewer = account(name, card, trtllm(max_model_len=4096, kv_cache_max_gpu_gib=20.0, kv_cache_max_tokens=30_000))
    assert fewer.pool_limit == "max_tokens"
    assert fewer.kv_tokens == 30_000 // 32 * 32
    hosted = account(name, card, trtllm(max_model_len=4096, kv_cache_host_gib=8.0))
    assert hosted.kv_tokens == plain.kv_tokens
    assert hosted.host_kv_tokens == 8 * 2048
    files = config_files(resolve(trtllm(kv_cache_max_gpu_gib=20.0, kv_cache_host_gib=8.0), get_model(name), card))
    assert "max_gpu_total_bytes: 21474836480" in files["llm-api.yaml"]
    assert "host_cache_size: 8589934592" in files["llm-api.yaml"]


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


def test_h12_a_linear_and_latent_hybrid_is_told_to_cut_the_token_budget() -> None:
    model = synthetic(state_layers(20), latent_layers(7), vocab=163_840, hidden=2304)
    card = gpu("RTX-3090", total_gib=9.0)  # a share of it, so that a few layers stand for the whole model
    wide = vllm(
        "0.24.0", tp=2, max_model_len=120_000, max_num_batched_tokens=64_000, max_num_seqs=16,
        gpu_memory_utilization=0.4,
    )  # fmt: skip
    got = account(model, card, wide)
    assert not got.fits
    remedies = {remedy.field: remedy.value for remedy in advise(model, card, wide)}
    budget = int(remedies["max_num_batched_tokens"])
    assert budget < 64_000
    assert account(model, card, replace(wide, max_num_batched_tokens=budget)).fits


def test_an_interval_that_holds_the_need_says_so() -> None:
    settings = vllm("0.24.0", max_model_len=4096)
    roomy = account(LLAMA_8B, h100(), settings)
    used = roomy.budget_gib - roomy.kv_gib
    tight = account(LLAMA_8B, h100(), settings, total_gib=(used + 0.55) / 0.92)
    assert tight.fits
    assert "it may not start" in tight.sentence
    assert "it may not start" not in roomy.sentence

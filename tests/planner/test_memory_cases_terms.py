"""What a start-up takes and what is left for the cache, each case as reported with its right answer (M1 to M17).

Those of sharing, versions and engines (M19 to M32) are in test_memory_cases_sharing.py, of the formula (M33 to M48) in
test_memory_cases_formula.py, layouts (H1 to H16) in test_memory_layout.py, the preemption cliff (H18, H20) in
test_memory_cliff.py, waste of paging (H7) in test_fragmentation_kv.py, the simulator under preemption (H19) in
test_memory_preemption.py. ``answer`` and ``pool_of`` ask the estimate contract.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_samples import account, answer, config_file, gpu, h100, pool_of, vllm

from planner.catalog import get_model
from planner.engines import command_line, resolve
from planner.memory import memory_report

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
SCOUT = "meta-llama/Llama-4-Scout-17B-16E-Instruct"


@pytest.mark.parametrize(
    ("version", "fits", "longest"),
    [
        ("0.10.2", False, 435_584),  # every layer keeps all: 48 x 512 bytes a token on each of eight ranks
        ("0.13.0", False, 435_584),
        ("0.24.0", True, 1_693_232),  # 36 of 48 layers attend to chunks of 8,192 and give the rest back
    ],
)
def test_m1_the_longest_context_is_searched_over_the_layer_kinds(version: str, fits: bool, longest: int) -> None:
    asked = {"model": SCOUT, "gpu": "H100-SXM5-80GB", "engine": "vllm", "engine_version": version, "tp": 8}
    got = pool_of(9.9701, gpu_memory_utilization=0.9, max_model_len=1_048_576, **asked)
    memory = got["memory"]
    assert (got["status"] == "ok") is fits
    assert memory["largest_model_len"] == pytest.approx(longest, abs=16)
    assert (memory["largest_model_len"] > 3.5 * 9.97 * 2**30 / 24_576) is fits, "not the pool by all layers' bytes"
    if not fits:
        assert "1,048,576 tokens needs 24.00 GiB of KV cache, 9.97 GiB are available" in got["reasons"][0]
        assert f"the longest that fits is {memory['largest_model_len']:,} tokens" in got["reasons"][0]
        assert answer(**{**asked, "max_model_len": 400_000, "gpu_memory_utilization": 0.9})["status"] == "ok"


def test_m2_tokens_in_the_pool_decide_not_gib() -> None:
    tight = pool_of(229.5 / 512, model=LLAMA_8B, gpu_memory_utilization=0.9, max_model_len=4096)
    assert tight["status"] == "infeasible"
    assert (tight["memory"]["kv_blocks"], tight["memory"]["kv_tokens"]) == (229, 3664)
    assert tight["memory"]["kv_gib"] > 0
    assert tight["memory"]["largest_model_len"] == 3664
    assert "the longest that fits is 3,664 tokens" in tight["reasons"][0]
    enough = pool_of(256.5 / 512, model=LLAMA_8B, gpu_memory_utilization=0.9, max_model_len=4096)
    assert (enough["status"], enough["memory"]["kv_blocks"]) == ("ok", 256)


def test_m4_the_length_asked_for_reaches_the_command_line() -> None:
    model = get_model(LLAMA_70B)
    resolved = resolve(vllm(tp=2, max_model_len=20_000), model, h100())
    arguments = command_line(resolved, "/models/llama", "llama", 8000)
    assert arguments[arguments.index("--max-model-len") + 1] == "20000"
    unset = resolve(vllm(tp=2), model, h100())
    assert unset.max_model_len == 131_072
    assert unset.origin["max_model_len"].startswith("model configuration")


def test_m5_concurrency_from_kv_heads_not_hidden_size() -> None:
    """28 layers, 2 of 12 heads hold keys: 28,672 bytes a token; by the hidden size of 1,536 it would be six times."""
    model = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    got = answer(model=model, gpu="T4", gpu_memory_gib=15.6, engine="vllm", precision="fp16", max_model_len=4096)
    memory = got["memory"]
    assert got["status"] == "ok"
    assert memory["kv_blocks"] == int(memory["kv_gib"] * 2**30 // (16 * 28_672))
    assert memory["max_concurrency"] == pytest.approx(memory["kv_gib"] * 2**30 / 28_672 / 4096, rel=1e-3)
    assert memory["max_concurrency"] > 5 * memory["kv_gib"] * 2**30 / (28 * 2 * 1536 * 2) / 4096


@pytest.mark.parametrize("version", ["0.14.1", "0.16.0"])
@pytest.mark.parametrize(("share", "kv_gib"), [(0.9, -1.44), (0.95, 2.52)])
def test_m7_activation_counts_so_the_70b_fails_on_one_h100(version: str, share: float, kv_gib: float) -> None:
    asked = {"model": LLAMA_70B, "precision": "fp8", "max_model_len": 16_000, "gpu_memory_utilization": share}
    got = answer(gpu="H100-SXM5-80GB", gpu_memory_gib=79.18, engine="vllm", engine_version=version, **asked)
    assert got["status"] == "infeasible"
    assert got["memory"]["kv_gib"] == pytest.approx(kv_gib, abs=0.05)
    assert got["memory"]["activation_gib"] == pytest.approx(4.84, abs=0.02)
    assert got["perf"] is None


def test_m7_where_the_sampler_is_not_known_a_start_is_not_promised() -> None:
    """0.11.0 has two samplers: with FlashInfer's 16,000 tokens fit at 0.95, with the other one they do not."""
    settings = vllm("0.11.0", precision="fp8", max_model_len=16_000, gpu_memory_utilization=0.95)
    got = memory_report(get_model(LLAMA_70B), h100(79.18), settings).ledger
    assert got is not None
    assert "it may not start" in got.sentence
    assert any("Without FlashInfer" in note for note in got.notes)


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
    got = answer(model=LLAMA_8B, gpu_memory_utilization=0.95, max_model_len=8192, **changes)["memory"]
    assert got["weights_gib"] == pytest.approx(weights, abs=0.01)
    assert got["kv_tokens"] == pytest.approx(tokens, rel=0.001)


@pytest.mark.parametrize(("version", "weights"), [("0.10.2", 65.97), ("0.14.1", 64.38)])
def test_mxfp4_experts_are_padded_as_the_kernel_of_the_version_wants(version: str, weights: float) -> None:
    """vllm-project/vllm#23278 and #33155: one H100, "Model loading took" with "Using Marlin backend" and "Triton"."""
    got = account("openai/gpt-oss-120b", h100(), vllm(version, max_model_len=8192))
    assert got.weights_gib == pytest.approx(weights, abs=0.05)


@pytest.mark.parametrize(("version", "activation"), [("0.16.0", 5.64), ("0.17.0", 2.23)])
def test_m9_activation_is_keyed_by_version(version: str, activation: float) -> None:
    got = answer(
        model="Qwen/Qwen3-14B", gpu="H100-SXM5-80GB", engine="vllm", engine_version=version, max_model_len=8192
    )
    assert got["memory"]["activation_gib"] == pytest.approx(activation, abs=0.01)


def test_m11_pipeline_stages_are_not_equal() -> None:
    """An equal split of Qwen3-8B over three stages is 7.2 % short of the stage that holds the embedding or the head."""
    whole, fullest = (
        answer(model="Qwen/Qwen3-8B", max_model_len=8192, pp=stages)["memory"]["weights_gib"] for stages in (1, 3)
    )
    assert 1 - whole / 3 / fullest == pytest.approx(0.072, abs=0.001)


def test_m12_multimodal_activation_is_its_own_term() -> None:
    """Logged: 28.20 GiB and 184,832 tokens; planners without the term were 3.38 GiB off."""
    name = "mistralai/Mistral-Small-3.1-24B-Instruct-2503"
    got = answer(model=name, gpu_memory_utilization=0.95, max_model_len=8192)
    assert got["memory"]["kv_gib"] == pytest.approx(28.20, abs=0.1)
    assert got["memory"]["kv_tokens"] == pytest.approx(184_832, rel=0.003)
    assert got["evidence"] == "extrapolated"


def test_m13_activation_is_the_share_of_the_rank() -> None:
    alone, split = (
        answer(model="codellama/CodeLlama-34b-Instruct-hf", max_model_len=8192, tp=tp)["memory"]["activation_gib"]
        for tp in (1, 4)
    )
    assert split < 0.5 * alone


def test_m14_graphs_take_gibibytes_on_large_models() -> None:
    got = account("Qwen/Qwen3-32B", h100(), vllm("0.24.0", max_model_len=8192))
    assert 1.5 <= got.graph_gib <= 1.9
    assert not got.graph_in_budget
    assert any("outside gpu_memory_utilization" in note for note in got.notes)


def test_m14_the_overhead_of_a_large_model_is_no_flat_figure() -> None:
    got = account(LLAMA_70B, gpu("H100-NVL-94GB"), vllm("0.19.0", tp=2, max_model_len=8192))
    overhead = got.activation_gib + got.non_torch_gib + got.graph_gib
    assert 4.5 < overhead < 7.0
    assert 1.5 <= got.graph_gib <= 2.5


def test_m14_the_longest_context_of_a_latent_cache(tmp_path: Path) -> None:
    """36 layers of a latent of 256 + 64 in 16 bits: 23,040 bytes a token on every rank, 22.5 GiB for 1,048,576."""
    model = config_file(
        tmp_path, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_hidden_layers=36,
        hidden_size=4096, vocab_size=131_072, num_attention_heads=32, num_key_value_heads=32, intermediate_size=12_288,
        moe_intermediate_size=2048, n_routed_experts=128, num_experts_per_tok=4, n_shared_experts=1,
        first_k_dense_replace=0, moe_layer_freq=1, q_lora_rank=1024, kv_lora_rank=256, qk_nope_head_dim=64,
        qk_rope_head_dim=64, v_head_dim=128, max_position_embeddings=1_048_576, tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )  # fmt: skip
    asked = {"model": model, "gpu": "H100-NVL-94GB", "engine": "vllm", "tp": 2, "gpu_memory_utilization": 0.9}
    found = [pool_of(gib, max_model_len=1_048_576, **asked) for gib in (17.3851, 17.3949)]
    assert all("needs 22.50 GiB of KV cache, 17.39 GiB are available" in " ".join(got["reasons"]) for got in found)
    longest = [got["memory"]["largest_model_len"] for got in found]
    assert longest[0] <= 810_208 <= longest[1]


def test_m17_recurrent_state_beside_the_cache_asks_for_a_second_gpu(tmp_path: Path) -> None:
    """Nemotron-Nano-9B-v2 (its published shape) on an A10: 27 layers keep a state for each of 256 sequences."""
    model = config_file(
        tmp_path, architectures=["NemotronHForCausalLM"], model_type="nemotron_h", num_hidden_layers=56,
        hidden_size=4480, intermediate_size=15_680, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        vocab_size=131_072, ssm_state_size=128, conv_kernel=4, n_groups=8, mamba_num_heads=128, mamba_head_dim=80,
        hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", torch_dtype="bfloat16",
        max_position_embeddings=131_072, tie_word_embeddings=False, mlp_hidden_act="relu2",
    )  # fmt: skip
    asked = {"model": model, "gpu": "A10", "engine": "vllm", "engine_version": "0.24.0"}
    one, two = (answer(max_model_len=8192, tp=tp, **asked) for tp in (1, 2))
    assert one["memory"]["kv_gib"] > 1.0, "attention's cache alone would fit"
    assert one["status"] == "infeasible"
    assert "state blocks of the pool" in one["reasons"][0]
    assert "2 GPUs (tensor parallelism of 2) would fit." in one["reasons"]
    assert two["status"] == "ok"
    assert answer(tp=1, **asked)["status"] == "infeasible", "nor does its full context of 131,072 tokens"


def test_h12_a_linear_and_latent_hybrid_is_told_to_cut_the_token_budget() -> None:
    """Kimi-Linear-48B in 4 bits on two 3090s, 120,000 tokens, steps of 64,000: logged 2.30 GiB; OOM in prefill."""
    asked = {
        "model": "moonshotai/Kimi-Linear-48B-A3B-Instruct", "gpu": "RTX-3090", "engine": "vllm", "tp": 2,
        "engine_version": "0.11.1", "precision": "int4", "max_model_len": 120_000, "max_num_seqs": 8,
        "gpu_memory_utilization": 0.95,
    }  # fmt: skip
    wide, narrow = (answer(**asked, max_num_batched_tokens=budget)["memory"] for budget in (64_000, 4096))
    low, high = wide["interval80"]["kv_gib"]
    assert low < 2.30 < high
    assert wide["kv_gib"] == pytest.approx(2.30, abs=0.25)
    assert wide["activation_gib"] > 6.0, "a third of the card"
    assert narrow["kv_gib"] > wide["kv_gib"] + 5.0
    short = answer(**{**asked, "gpu_memory_utilization": 0.85}, max_num_batched_tokens=64_000)
    assert short["status"] == "infeasible"
    assert any("token budget of 8,192 per step would fit" in reason for reason in short["reasons"])

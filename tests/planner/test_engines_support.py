"""What an engine can run, and what it changes without saying so."""

from __future__ import annotations

import pytest
from memory_samples import gpu, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import support

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"


def reasons(model: str, name: str, settings) -> str:
    return " ".join(support(get_model(model), gpu(name), settings).reasons)


@pytest.mark.parametrize("tp", [3, 7])
def test_o11_tensor_parallelism_must_divide_the_heads(tp: int) -> None:
    for settings in (vllm("0.24.0", tp=tp), trtllm(tp=tp)):
        got = support(get_model(LLAMA_70B), gpu("A100-80GB"), settings)
        assert not got.ok
        assert f"Tensor parallelism of {tp} does not divide the 64 attention heads" in got.reasons[0]
        assert "pipeline parallelism" in got.reasons[0]
    assert support(get_model(LLAMA_70B), gpu("A100-80GB"), vllm("0.24.0", tp=4)).ok


def test_heads_held_by_several_ranks_are_a_warning() -> None:
    got = support(get_model("Qwen/Qwen3-30B-A3B"), h100(), vllm("0.24.0", tp=8))
    assert got.ok
    assert any("held by 2 ranks" in warning for warning in got.warnings)


def test_latent_cache_is_replicated() -> None:
    got = support(get_model("deepseek-ai/DeepSeek-V3"), gpu("H200"), vllm("0.24.0", tp=8))
    assert got.ok
    assert any("data parallelism saves memory" in warning for warning in got.warnings)


def test_sparse_latent_attention_needs_hopper_in_vllm() -> None:
    """vLLM issue 41525: eight A800 end with "No valid attention backend found" for GLM-5.1 and DeepSeek V4."""
    for model in ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5.1", "deepseek-ai/DeepSeek-V4-Flash"):
        for name in ("A100-SXM4-80GB", "L40S"):
            assert f"(Hopper) or later; {name} has" in reasons(model, name, vllm("0.24.0", tp=8))
        for name in ("H200", "B200"):
            assert not reasons(model, name, vllm("0.24.0", tp=8))
    assert not reasons("deepseek-ai/DeepSeek-V3", "A100-SXM4-80GB", vllm("0.24.0", tp=8))


@pytest.mark.parametrize("name", ["MI300X", "Gaudi3"])
def test_tensorrt_llm_is_for_nvidia(name: str) -> None:
    assert "NVIDIA GPUs only" in reasons(LLAMA_8B, name, trtllm())
    assert not reasons(LLAMA_8B, "MI300X", vllm("0.24.0"))


@pytest.mark.parametrize("name", ["T4", "V100-SXM2-16GB"])
def test_tensorrt_llm_needs_ampere(name: str) -> None:
    assert "compute capability 8.0" in reasons(LLAMA_8B, name, trtllm())


def test_p23_fp8_without_fp8_cores_is_weight_only() -> None:
    got = support(get_model("Qwen/Qwen3-32B-FP8"), gpu("A100-80GB"), vllm("0.24.0"))
    assert got.ok
    assert any("weight-only" in warning for warning in got.warnings)
    assert "no fp8_block kernels" in reasons("Qwen/Qwen3-32B-FP8", "A100-80GB", trtllm())
    assert not any(
        "weight-only" in w for w in support(get_model("Qwen/Qwen3-32B-FP8"), h100(), vllm("0.24.0")).warnings
    )


def test_fp4_needs_blackwell_or_falls_back() -> None:
    model = "nvidia/Qwen3-235B-A22B-NVFP4"
    assert support(get_model(model), gpu("B200"), vllm("0.24.0", tp=4)).warnings == ()
    hopper = support(get_model(model), h100(), vllm("0.24.0", tp=4))
    assert hopper.ok
    assert any("fp4" in warning for warning in hopper.warnings)
    assert reasons(model, "H100", trtllm(version="1.2.0", tp=4))
    assert not reasons(model, "H100", trtllm(version="1.3.0rc20", tp=4))


def test_eight_bit_cache_on_old_cards_is_storage_only() -> None:
    got = support(get_model(LLAMA_8B), gpu("A100-80GB"), vllm("0.24.0", kv_cache_dtype="fp8"))
    assert got.ok
    assert any("memory only" in warning for warning in got.warnings)


def test_embedding_models_are_for_vllm() -> None:
    assert support(get_model("BAAI/bge-m3"), h100(), vllm("0.24.0")).ok
    assert not support(get_model("BAAI/bge-m3"), h100(), trtllm()).ok


def test_expert_parallelism_is_what_the_engine_makes_of_it() -> None:
    model = "Qwen/Qwen3-30B-A3B"
    assert support(get_model(model), h100(), vllm("0.24.0", tp=2, dp=2, ep=4)).ok
    assert "tp x dp = 4, not 2" in reasons(model, "H100", vllm("0.24.0", tp=2, dp=2, ep=2))
    assert support(get_model(model), h100(), trtllm(tp=4, ep=2)).ok
    assert "without experts" in reasons(LLAMA_8B, "H100", vllm("0.24.0", tp=2, ep=2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (vllm("0.24.0", max_model_len=200_000), "exceeds the 131072 positions"),
        (vllm("0.24.0", max_num_seqs=4096, max_num_batched_tokens=1024), "greater than or equal to max_num_seqs"),
        (vllm("0.24.0", max_loras=2, max_lora_rank=24), "max_lora_rank 24"),
        (trtllm(free_gpu_memory_fraction=1.0), "below 1"),
        (trtllm(version="1.3.0rc21", trt_backend="tensorrt"), "removed after 1.3.0rc20"),
        (vllm("0.24.0", pp=99), "99 pipeline stages"),
    ],
)
def test_reasons_against(settings, words: str) -> None:
    assert words in reasons(LLAMA_8B, "H100", settings)


def test_unverified_versions_are_said_to_be() -> None:
    got = support(get_model(LLAMA_8B), h100(), vllm("0.8.5"))
    assert got.ok
    assert "outside the versions" in got.warnings[0]


def test_prompts_beyond_the_token_budget_are_refused_by_tensorrt_llm() -> None:
    got = support(get_model(LLAMA_8B), h100(), trtllm())
    assert any("prompts above max_num_tokens (8192) are refused" in warning for warning in got.warnings)
    assert support(get_model(LLAMA_8B), h100(), trtllm(max_model_len=8192)).warnings == ()


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("Qwen/Qwen3.5-35B-A3B", "1.2.0", "does not list"),
        ("Qwen/Qwen3.5-35B-A3B", "1.3.0rc20", ""),
        ("google/gemma-2-9b-it", "1.3.0rc20", "not among the architectures"),
        ("deepseek-ai/DeepSeek-V2-Lite", "1.3.0rc20", "AutoDeploy"),
        ("openai/gpt-oss-20b", "1.1.0", ""),
    ],
)
def test_architectures_of_tensorrt_llm_by_version(model: str, version: str, words: str) -> None:
    got = reasons(model, "H200", trtllm(version=version))
    assert words in got
    assert bool(got) is bool(words)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (vllm("0.24.0", free_gpu_memory_fraction=0.5), "free_gpu_memory_fraction is a setting of TensorRT-LLM"),
        (vllm("0.24.0", trt_backend="tensorrt"), "trt_backend is a setting of TensorRT-LLM"),
        (vllm("0.24.0", capacity_policy="MAX_UTILIZATION"), "capacity_policy is a setting of TensorRT-LLM"),
        (vllm("0.24.0", attention_dp_wait_iters=50), "attention_dp_wait_iters is a setting of TensorRT-LLM"),
        (trtllm(gpu_memory_utilization=0.5), "gpu_memory_utilization is a setting of vLLM"),
        (vllm("0.24.0", moe_backend="marlin"), "moe_backend changes nothing: the model has no experts"),
        (trtllm(even_expert_routing=True), "even_expert_routing changes nothing: the model has no experts"),
    ],
)
def test_a_setting_that_changes_nothing_is_said(settings, named: str) -> None:
    got = support(get_model(LLAMA_8B), h100(), settings)
    assert got.ok
    assert sum(named in warning for warning in got.warnings) == 1


def test_settings_of_the_engine_itself_are_no_warning() -> None:
    for model, settings in (
        (LLAMA_8B, vllm("0.24.0", gpu_memory_utilization=0.5)),
        (
            LLAMA_8B,
            trtllm(free_gpu_memory_fraction=0.5, capacity_policy="MAX_UTILIZATION", attention_dp_wait_iters=9, dp=2),
        ),
        ("Qwen/Qwen3-30B-A3B", vllm("0.24.0", moe_backend="triton", even_expert_routing=True)),
    ):
        assert not any("changes nothing" in warning for warning in support(get_model(model), h100(), settings).warnings)

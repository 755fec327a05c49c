"""What an engine cannot run on a device before, or from, some version: said with the reason, and before any number."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.estimate import estimate

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SMALL = "Qwen/Qwen3-0.6B"
RTX = "RTX-PRO-6000-Blackwell-Server"
SPARSE = {"model": "deepseek-ai/DeepSeek-V3.2", "gpu": RTX, "engine": "vllm", "tp": 16, "max_model_len": 4096}


def asked(**fields: Any) -> dict[str, Any]:
    return estimate({"model": LLAMA, "gpu": "H100", "engine": "vllm", "max_model_len": 2048, **fields})


def refused(answer: dict[str, Any], words: str) -> None:
    assert answer["status"] == "unsupported", answer["reasons"]
    assert any(words in reason for reason in answer["reasons"]), answer["reasons"]
    assert answer["memory"] is None


def test_sparse_latent_attention_came_to_compute_capability_12_with_vllm_0_24() -> None:
    """vllm-project/vllm issue 31936 (RTX PRO 6000, "No valid attention backend found") and pull request 43477."""
    refused(estimate({**SPARSE, "engine_version": "0.23.0"}), "it came with 0.24.0")
    assert estimate({**SPARSE, "engine_version": "0.24.0"})["status"] == "ok"
    dense = estimate({**SPARSE, "model": "deepseek-ai/DeepSeek-V3", "engine_version": "0.23.0"})
    assert not any("sparse latent" in reason for reason in dense["reasons"])


def test_its_cache_is_fp8_there_whatever_is_left_open() -> None:
    """``FLASHINFER_MLA_SPARSE_SM120`` stores "auto" as packed FP8 and refuses 16 bits."""
    left_open = estimate(SPARSE)["memory"]["kv_tokens"]
    assert left_open == estimate({**SPARSE, "kv_cache_dtype": "fp8"})["memory"]["kv_tokens"]
    refused(estimate({**SPARSE, "kv_cache_dtype": "bf16"}), "in FP8 only, not in bf16")


@pytest.mark.parametrize("version", ["1.0.0", "1.3.0rc20", "1.4.0"])
def test_int8_activations_are_not_in_tensorrt_llms_pytorch_back_end(version: str) -> None:
    """NVIDIA/TensorRT-LLM issue 6988: "Unsupported quantization_config" for a W8A8 checkpoint."""
    refused(asked(engine="tensorrt_llm", engine_version=version, precision="int8"), "no INT8 W8A8")


def test_int8_engines_are_built() -> None:
    for more in ({"trt_backend": "tensorrt"}, {"engine_version": "0.16.0"}):
        assert asked(engine="tensorrt_llm", precision="int8", **more)["status"] == "ok"
    assert asked(precision="int8")["status"] == "ok"


@pytest.mark.parametrize(
    ("model", "version", "precision", "words"),
    [
        (SMALL, "0.30.0", "fp8", "no FP8 weights on CPUs (since 0.31.0)"),
        ("Qwen/Qwen3-8B-FP8", "0.20.2", "as-config", "no block-scaled FP8 weights on CPUs (since 0.21.0)"),
        (SMALL, "0.32.0", "fp4", "no NVFP4 weights on CPUs"),
        (SMALL, "0.32.0", "mxfp4", "MXFP4 on CPUs for experts alone"),
    ],
)
def test_narrow_weights_that_vllm_has_no_kernel_for_on_cpus(
    model: str, version: str, precision: str, words: str
) -> None:
    refused(asked(model=model, gpu="CPU-host", engine_version=version, precision=precision), words)


def test_fp8_on_cpus_says_what_the_cpu_needs() -> None:
    answer = asked(model=SMALL, gpu="CPU-host", engine_version="0.32.0", precision="fp8")
    assert answer["status"] == "ok"
    assert any("AMX" in reason for reason in answer["reasons"])
    whole = asked(model=SMALL, gpu="CPU-host", engine_version="0.32.0", precision="int8")
    assert any("no INT8 rate" in reason for reason in whole["reasons"])
    assert not any("tensor cores" in reason for reason in whole["reasons"])


def test_an_fp8_cache_came_to_cpus_with_vllm_0_21() -> None:
    """Before, ``platforms/cpu.py`` ends with "not compatible with FP8 KV cache" where prompts are chunked."""
    cpu = {"model": SMALL, "gpu": "CPU-host", "kv_cache_dtype": "fp8"}
    refused(asked(**cpu, engine_version="0.20.2"), "no FP8 KV cache on CPUs")
    later = asked(**cpu, engine_version="0.21.0")
    assert later["status"] == "ok"
    assert any("AVX-512 or AMX" in reason for reason in later["reasons"])


def test_nvfp4_caches_need_data_centre_blackwell_and_a_vllm_that_knows_them() -> None:
    for engine in ("vllm", "tensorrt_llm"):
        refused(asked(engine=engine, kv_cache_dtype="fp4"), "needs data-centre Blackwell")
    refused(asked(gpu="B200", kv_cache_dtype="fp4", engine_version="0.19.1"), "it came with 0.20.2")
    assert asked(gpu="B200", kv_cache_dtype="fp4")["status"] == "ok"


def test_recurrent_state_is_called_by_its_name() -> None:
    """Qwen3.5-4B under TensorRT-LLM's 2,048 sequences: 100 GiB of "activation" are state but for two."""
    hybrid = {"model": "Qwen/Qwen3.5-4B", "engine": "tensorrt_llm", "max_model_len": 8192}
    roomy = asked(**{**hybrid, "gpu": "H200"})
    (told,) = (reason for reason in roomy["reasons"] if reason.startswith("Recurrent state for 2,048 sequences"))
    assert float(told.split("takes ")[1].split(" GiB")[0]) == pytest.approx(
        roomy["memory"]["activation_gib"] - 1.9, abs=1.5
    )
    assert "counted with activation" in told
    short = asked(**{**hybrid, "gpu": "L40S"})
    assert short["status"] == "infeasible"
    assert "recurrent state of 2,048 sequences" in short["reasons"][0]
    assert not any("Recurrent state" in reason for reason in asked(**{**hybrid, "engine": "vllm"})["reasons"])


@pytest.mark.parametrize("field", ["batch_wait_iters", "attention_dp_wait_iters", "piecewise_cuda_graphs"])
def test_settings_of_tensorrt_llm_do_not_reach_a_resolved_vllm(field: str) -> None:
    settings = EngineSettings(
        EngineName.VLLM, batch_wait_iters=9, attention_dp_wait_iters=9, piecewise_cuda_graphs=True
    )
    assert not getattr(resolve(settings, get_model(LLAMA), get_gpu("H100")), field)

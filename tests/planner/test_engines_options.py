"""Options that take only some values: refused by name, cut aloud, or carried into memory and command."""

from typing import Any

import pytest

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, command_line, resolve, support
from planner.engines.options import moe_backends
from planner.errors import InputError
from planner.estimate import estimate
from planner.memory import ledger
from planner.serving.simulator import instance_rules

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GPT_OSS = "openai/gpt-oss-20b"


def asked(**fields: Any) -> dict[str, Any]:
    return estimate({"model": LLAMA, "gpu": "H100", "engine": "vllm", "max_model_len": 4096, **fields})


@pytest.mark.parametrize(
    ("fields", "field", "remedy"),
    [
        ({"moe_backend": "nonsense"}, "moe_backend", "flashinfer_trtllm"),
        ({"moe_backend": "triton", "engine_version": "0.16.0"}, "moe_backend", "marlin"),
        ({"moe_backend": "flydsl", "engine_version": "0.23.0"}, "moe_backend", "triton"),
        ({"moe_backend": "trtllm", "engine": "tensorrt_llm"}, "moe_backend", "TRTLLM"),
        ({"moe_backend": "WIDEEP", "engine": "tensorrt_llm", "engine_version": "1.4.0"}, "moe_backend", "CUTEDSL"),
        ({"block_tokens": 24}, "block_tokens", "multiple of 16"),
        ({"block_tokens": 48, "engine_version": "0.17.1"}, "block_tokens", "16, 32, 64, 128, 256"),
        ({"block_tokens": 256, "engine_version": "0.11.0"}, "block_tokens", "16, 32, 64, 128."),
        ({"block_tokens": 48, "engine": "tensorrt_llm"}, "block_tokens", "power of two"),
        ({"kv_cache_max_tokens": 15}, "kv_cache_max_tokens", "16 tokens or more"),
        ({"engine_version": "latest"}, "engine_version", "0.24.0"),
    ],
)
def test_a_value_that_the_engine_refuses_is_named_before_any_number(
    fields: dict[str, Any], field: str, remedy: str
) -> None:
    answer = asked(**fields)
    assert answer["status"] == "error"
    assert answer["memory"] is None
    (reason,) = answer["reasons"]
    assert reason.startswith(f"{field}: ")
    assert str(fields[field]) in reason
    assert remedy in reason


@pytest.mark.parametrize(
    "fields",
    [
        {"block_tokens": 48},
        {"block_tokens": 64, "engine": "tensorrt_llm"},
        {"model": GPT_OSS, "moe_backend": "Flashinfer-TRTLLM"},
        {"model": GPT_OSS, "moe_backend": "marlin", "engine_version": "0.16.0"},
        {"model": GPT_OSS, "moe_backend": "CUTLASS", "engine": "tensorrt_llm"},
    ],
)
def test_a_value_that_the_engine_takes_is_answered(fields: dict[str, Any]) -> None:
    assert asked(**fields)["status"] == "ok"


def test_names_come_and_go_with_versions() -> None:
    assert moe_backends(EngineName.VLLM, "0.16.0") == ()
    assert "marlin" in moe_backends(EngineName.VLLM, "0.17.1")
    assert "flashinfer_moe_ep_mega_cutedsl" in moe_backends(EngineName.VLLM, "0.30.0")
    assert "flashinfer_moe_ep_mega_cutedsl" not in moe_backends(EngineName.VLLM, "0.33.0")
    assert "TRITON" not in moe_backends(EngineName.TENSORRT_LLM, "1.0.0")


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "block"),
    [
        ("vllm", "deepseek-ai/DeepSeek-V3.2", "B200", 32),
        ("tensorrt_llm", "deepseek-ai/DeepSeek-V3", "H100", 32),
    ],
)
def test_latent_attention_has_blocks_of_its_own(engine: str, model: str, gpu: str, block: int) -> None:
    with pytest.raises(InputError, match=r"block_tokens.*64"):
        support(get_model(model), get_gpu(gpu), EngineSettings(EngineName(engine), tp=8, block_tokens=block))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_cudagraph_capture_size": 3}, "cut to 2"),
        ({"max_cudagraph_capture_size": 64, "enforce_eager": True}, "changes nothing"),
        ({"max_cudagraph_capture_size": 4096, "engine": "tensorrt_llm"}, "cut to 2,048"),
        ({"model": GPT_OSS, "moe_backend": "marlin", "engine_version": "0.16.0"}, "VLLM_MXFP4_USE_MARLIN"),
    ],
)
def test_what_is_cut_or_cannot_be_said_is_told(fields: dict[str, Any], said: str) -> None:
    answer = asked(**fields)
    assert answer["status"] == "ok"
    assert any(said in reason for reason in answer["reasons"])


def test_a_largest_graph_that_is_captured_as_asked_needs_no_word() -> None:
    assert not any("max_cudagraph" in reason for reason in asked(max_cudagraph_capture_size=256)["reasons"])


def test_kernels_of_blackwell_are_refused_on_hopper() -> None:
    answer = asked(model=GPT_OSS, engine="tensorrt_llm", moe_backend="TRTLLM")
    assert answer["status"] == "unsupported"
    assert "moe_backend TRTLLM" in answer["reasons"][0]


@pytest.mark.parametrize(
    ("version", "tokens", "status", "longest"),
    [
        ("0.19.0", 3664, "infeasible", 3664),
        ("0.24.0", 3664, "infeasible", 3664),  # M2: 229 blocks of 16
        ("0.24.0", 4096, "ok", 4096),
        ("0.32.0", 4096, "infeasible", 4080),  # one block is the pool's own
        ("0.32.0", 4112, "ok", 4096),
    ],
)
def test_a_stated_pool_decides_whether_a_request_fits(version: str, tokens: int, status: str, longest: int) -> None:
    answer = asked(engine_version=version, kv_cache_max_tokens=tokens)
    assert answer["status"] == status
    assert answer["memory"]["kv_blocks"] == tokens // 16
    assert answer["memory"]["largest_model_len"] == longest
    if status == "infeasible":
        told = "starts all the same" if version == "0.19.0" else "raise it, or lower max_model_len"
        assert told in answer["reasons"][0]


def test_a_pool_larger_than_the_memory_is_refused_with_the_largest() -> None:
    free = asked()["memory"]["kv_blocks"] * 16
    assert asked(kv_cache_max_tokens=free)["status"] == "ok"
    answer = asked(kv_cache_max_tokens=free + 16)
    assert answer["status"] == "infeasible"
    assert f"lower it to {free:,}" in answer["reasons"][0]


def test_a_stated_pool_reaches_the_command_and_layers_of_several_kinds_are_refused() -> None:
    model, gpu = get_model(LLAMA), get_gpu("H100")
    settings = EngineSettings(EngineName.VLLM, max_model_len=4096, kv_cache_max_tokens=100_000)
    line = command_line(resolve(settings, model, gpu), "/m", "m", 8000)
    assert line[line.index("--num-gpu-blocks-override") + 1] == "6250"
    assert line[line.index("--block-size") + 1] == "16"
    plain = command_line(resolve(EngineSettings(EngineName.VLLM), model, gpu), "/m", "m", 8000)
    assert "--num-gpu-blocks-override" not in plain
    for name in (GPT_OSS, "google/gemma-3-27b-it"):
        answer = asked(model=name, kv_cache_max_tokens=100_000)
        assert answer["status"] == "unsupported"
        assert any("kv_cache_max_tokens" in reason for reason in answer["reasons"])


@pytest.mark.parametrize("engine", ["vllm", "tensorrt_llm"])
def test_the_ledger_alone_caps_the_pool_that_is_simulated(engine: str) -> None:
    """A simulated pool is the ledger's: a stated limit is in it once, whole blocks of it."""
    model, gpu = get_model(LLAMA), get_gpu("H100")
    pools = []
    for limit in (None, 50_000):
        settings = EngineSettings(EngineName(engine), max_model_len=4096, kv_cache_max_tokens=limit)
        resolved = resolve(settings, model, gpu)
        memory = ledger(model, gpu, resolved)
        pools.append(instance_rules(resolved, memory).pool_blocks)
        assert pools[-1] == memory.kv_tokens // resolved.block_tokens - (engine == "vllm")
    assert pools[0] > pools[1] == 50_000 // resolved.block_tokens - (engine == "vllm")

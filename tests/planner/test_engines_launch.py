"""Command lines and files that make an engine run as planned, by version."""

from __future__ import annotations

import json

import pytest
import yaml
from memory_samples import gpu, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import command_line, config_files, resolve

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def line(settings, model: str = LLAMA, name: str = "H100") -> list[str]:
    spec = get_model(model)
    return command_line(resolve(settings, spec, gpu(name)), "/models/m", "m", 8123)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_vllm_writes_out_what_decides_capacity() -> None:
    arguments = line(vllm("0.24.0", tp=2, max_model_len=8192))
    assert arguments[:3] == ["vllm", "serve", "/models/m"]
    assert value(arguments, "--max-model-len") == "8192"
    assert value(arguments, "--gpu-memory-utilization") == "0.92"
    assert value(arguments, "--max-num-seqs") == "1024"
    assert value(arguments, "--max-num-batched-tokens") == "8192"
    assert value(arguments, "--tensor-parallel-size") == "2"
    assert value(arguments, "--port") == "8123"
    assert value(arguments, "--host") == "127.0.0.1"
    assert config_files(resolve(vllm("0.24.0"), get_model(LLAMA), h100())) == {}


def test_vllm_quantises_only_what_is_not_quantised_already() -> None:
    assert value(line(vllm("0.24.0", precision="fp8")), "--quantization") == "fp8"
    assert "--quantization" not in line(vllm("0.24.0"), "Qwen/Qwen3-32B-FP8")
    assert "--quantization" not in line(vllm("0.24.0", precision="fp8"), "Qwen/Qwen3-32B-FP8")
    assert value(line(vllm("0.24.0", precision="fp16")), "--dtype") == "float16"


def test_vllm_features() -> None:
    arguments = line(
        vllm(
            "0.24.0",
            max_loras=4,
            max_lora_rank=32,
            kv_cache_dtype="fp8",
            enable_prefix_caching=False,
            enforce_eager=True,
            speculative_tokens=2,
        )
    )
    assert value(arguments, "--max-lora-rank") == "32"
    assert value(arguments, "--kv-cache-dtype") == "fp8"
    assert "--no-enable-prefix-caching" in arguments
    assert "--enforce-eager" in arguments
    assert json.loads(value(arguments, "--speculative-config"))["num_speculative_tokens"] == 2
    moe = line(vllm("0.24.0", tp=2, dp=2, ep=4), "Qwen/Qwen3-30B-A3B")
    assert "--enable-expert-parallel" in moe
    assert value(moe, "--data-parallel-size") == "2"
    assert "--async-scheduling" in line(vllm("0.11.0", async_scheduling=True))
    assert "--no-async-scheduling" in line(vllm("0.24.0", async_scheduling=False))
    assert not any("async-scheduling" in argument for argument in moe)


def test_tensorrt_llm_by_version() -> None:
    new = line(trtllm(version="1.3.0rc20", tp=2, max_model_len=4096))
    assert new[:2] == ["trtllm-serve", "/models/m"]
    assert value(new, "--served_model_name") == "m"
    assert value(new, "--config").endswith("llm-api.yaml")
    old = line(trtllm(version="1.1.0", tp=2, max_model_len=4096))
    assert "--served_model_name" not in old
    assert value(old, "--extra_llm_api_options").endswith("llm-api.yaml")
    for arguments in (new, old):
        assert value(arguments, "--tp_size") == "2"
        assert value(arguments, "--max_seq_len") == "4096"
        assert value(arguments, "--host") == "127.0.0.1"
        assert all("-" not in flag[2:] for flag in arguments if flag.startswith("--"))


def test_tensorrt_llm_keys_are_in_one_place_only() -> None:
    settings = trtllm(kv_cache_dtype="fp8", kv_cache_max_tokens=50_000, capacity_policy="MAX_UTILIZATION", dp=2)
    resolved = resolve(settings, get_model(LLAMA), h100())
    options = yaml.safe_load(config_files(resolved)["llm-api.yaml"])
    assert options["kv_cache_config"]["dtype"] == "fp8"
    assert options["kv_cache_config"]["max_tokens"] == 50_000
    assert options["kv_cache_config"]["tokens_per_block"] == 32
    assert options["scheduler_config"] == {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    assert options["enable_attention_dp"] is True
    assert "attention_dp_config" not in options
    balanced = resolve(trtllm(dp=2, attention_dp_wait_iters=60), get_model(LLAMA), h100())
    ranks = yaml.safe_load(config_files(balanced)["llm-api.yaml"])["attention_dp_config"]
    assert ranks == {"enable_balance": True, "timeout_iters": 60, "batching_wait_iters": 0}
    flags = {flag.lstrip("-") for flag in command_line(resolved, "/m", "m", 1) if flag.startswith("--")}
    assert flags.isdisjoint(options)
    assert "free_gpu_memory_fraction" not in options["kv_cache_config"]
    assert not {"torch_compile_config", "batch_wait_timeout_iters"} & set(options)
    waiting = resolve(trtllm(batch_wait_iters=40, batch_wait_tokens_ratio=0.8), get_model(LLAMA), h100())
    batched = yaml.safe_load(config_files(waiting)["llm-api.yaml"])
    assert (batched["batch_wait_timeout_iters"], batched["batch_wait_max_tokens_ratio"]) == (40, 0.8)
    pieces = resolve(trtllm(piecewise_cuda_graphs=True, max_num_batched_tokens=1152), get_model(LLAMA), h100())
    compiled = yaml.safe_load(config_files(pieces)["llm-api.yaml"])["torch_compile_config"]
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1152]
    assert compiled == {"enable_piecewise_cuda_graph": True, "capture_num_tokens": sizes}
    graphs = {"batch_sizes": [*range(1, 33), 64, 128], "enable_padding": True}  # what step times take: no eager decodes
    assert options["cuda_graph_config"] == graphs
    eager = resolve(trtllm(enforce_eager=True), get_model(LLAMA), h100())
    assert yaml.safe_load(config_files(eager)["llm-api.yaml"])["cuda_graph_config"] is None


@pytest.mark.parametrize(
    ("model", "card", "asked", "launched"),
    [
        ("deepseek-ai/DeepSeek-R1", "B200", None, {"backend": "DEEPGEMM"}),
        ("deepseek-ai/DeepSeek-R1", "B200", "TRTLLM", {"backend": "TRTLLM"}),
        ("deepseek-ai/DeepSeek-R1", "H200", None, None),
        ("nvidia/DeepSeek-R1-0528-FP4", "B200", None, None),
    ],
)
def test_tensorrt_llm_is_asked_for_the_experts_kernel_that_its_default_lacks(
    model: str, card: str, asked: str | None, launched: dict[str, str] | None
) -> None:
    """CUTLASS, the default, has no block-scaled FP8 experts on data-centre Blackwell."""
    resolved = resolve(trtllm(tp=8, moe_backend=asked), get_model(model), gpu(card))
    assert yaml.safe_load(config_files(resolved)["llm-api.yaml"]).get("moe_config") == launched


def test_extra_arguments_come_last() -> None:
    resolved = resolve(vllm("0.24.0"), get_model(LLAMA), h100())
    arguments = command_line(resolved, "/m", "m", 1, extra=("--load-format", "dummy"))
    assert arguments[-2:] == ["--load-format", "dummy"]

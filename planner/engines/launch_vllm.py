"""``vllm serve`` for resolved settings, by version (``engine/arg_utils.py``, ``config/*.py``)."""

from __future__ import annotations

import json

from planner.engines.types import ResolvedSettings
from planner.engines.versions import at_least

DEFAULT_MAX_LOGPROBS = 20
_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def command_line(resolved: ResolvedSettings, model_path: str, served_name: str, port: int, host: str) -> list[str]:
    """Arguments of ``vllm serve``. What decides capacity is always written out, other flags where they differ."""
    user = {name for name, origin in resolved.origin.items() if origin == "user"}
    arguments = ["vllm", "serve", model_path, "--served-model-name", served_name, "--host", host, "--port", str(port)]
    arguments += _parallel(resolved)
    arguments += ["--max-model-len", str(resolved.max_model_len)]
    arguments += ["--gpu-memory-utilization", f"{resolved.gpu_memory_utilization:g}"]
    arguments += ["--max-num-seqs", str(resolved.max_num_seqs)]
    arguments += ["--max-num-batched-tokens", str(resolved.max_num_batched_tokens)]
    if "precision" in user:
        if resolved.precision in _DTYPE:
            arguments += ["--dtype", _DTYPE[resolved.precision]]
        elif resolved.precision == "fp8":
            arguments += ["--quantization", "fp8"]
    if "kv_cache_dtype" in user and resolved.kv_cache_dtype in ("fp8", "fp4"):
        arguments += ["--kv-cache-dtype", "fp8" if resolved.kv_cache_dtype == "fp8" else "nvfp4"]
    limit = resolved.kv_cache_max_tokens
    if "block_tokens" in user or limit is not None:
        arguments += ["--block-size", str(resolved.block_tokens)]
    if limit is not None:  # the engine counts blocks, so that their size is said too
        arguments += ["--num-gpu-blocks-override", str(limit // resolved.block_tokens)]
    arguments.append(_switch("enable-prefix-caching", resolved.enable_prefix_caching))
    if "enable_chunked_prefill" in user:
        arguments.append(_switch("enable-chunked-prefill", resolved.enable_chunked_prefill))
    if resolved.enforce_eager:
        arguments.append("--enforce-eager")
    if "cuda_graph_sizes" in user:
        capture = "--max-cudagraph-capture-size" if at_least(resolved.version, "0.13.0") else "--cuda-graph-sizes"
        arguments += [capture, str(resolved.cuda_graph_sizes[-1])]
    if "moe_backend" in user and resolved.moe_backend and at_least(resolved.version, "0.17.1"):
        arguments += ["--moe-backend", resolved.moe_backend]
    if resolved.watermark:
        arguments += ["--watermark", f"{resolved.watermark:g}"]
    if "async_scheduling" in user:
        arguments.append(_switch("async-scheduling", resolved.async_scheduling))
    arguments += _features(resolved)
    return arguments


def _parallel(resolved: ResolvedSettings) -> list[str]:
    arguments = ["--tensor-parallel-size", str(resolved.tp)]
    if resolved.pp > 1:
        arguments += ["--pipeline-parallel-size", str(resolved.pp)]
    if resolved.dp > 1:
        arguments += ["--data-parallel-size", str(resolved.dp)]
    if resolved.ep > 1:
        arguments.append("--enable-expert-parallel")
    return arguments


def _features(resolved: ResolvedSettings) -> list[str]:
    arguments: list[str] = []
    if resolved.max_loras:
        arguments += ["--enable-lora", "--max-loras", str(resolved.max_loras)]
        arguments += ["--max-lora-rank", str(resolved.max_lora_rank)]
    if resolved.speculative_tokens:
        speculation = {"method": "mtp", "num_speculative_tokens": resolved.speculative_tokens}
        arguments += ["--speculative-config", json.dumps(speculation)]
    if resolved.logprobs > DEFAULT_MAX_LOGPROBS:
        arguments += ["--max-logprobs", str(resolved.logprobs)]
    if resolved.mm_items_per_prompt:
        arguments += ["--limit-mm-per-prompt", json.dumps({"image": resolved.mm_items_per_prompt})]
    return arguments


def _switch(name: str, on: bool) -> str:
    return f"--{name}" if on else f"--no-{name}"

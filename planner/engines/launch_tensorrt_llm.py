"""``trtllm-serve`` for resolved settings, by version (``commands/serve.py``, ``llmapi/llm_args.py``).

Up to 1.3.0rc18 the YAML file silently overrides the command line, later the other way round; each key is written in one
place only, so the order does not matter. Short options (``--tp_size``) exist in every 1.x version.
"""

from __future__ import annotations

from typing import Any

import yaml

from planner.engines.types import ResolvedSettings
from planner.engines.versions import at_least
from planner.units import GIB

CONFIG_FILE = "llm-api.yaml"


def command_line(
    resolved: ResolvedSettings, model_path: str, served_name: str, port: int, host: str, config_dir: str
) -> list[str]:
    """Arguments of ``trtllm-serve``; the served name is a flag since 1.3.0rc7, before it the model's name counts."""
    arguments = ["trtllm-serve", model_path, "--host", host, "--port", str(port)]
    if resolved.trt_backend != "pytorch":
        arguments += ["--backend", resolved.trt_backend]
    arguments += ["--tp_size", str(resolved.tp * resolved.dp)]
    if resolved.pp > 1:
        arguments += ["--pp_size", str(resolved.pp)]
    if resolved.ep > 1:
        arguments += ["--ep_size", str(resolved.ep)]
    arguments += ["--max_batch_size", str(resolved.max_num_seqs)]
    arguments += ["--max_num_tokens", str(resolved.max_num_batched_tokens)]
    arguments += ["--max_seq_len", str(resolved.max_model_len)]
    arguments += ["--kv_cache_free_gpu_memory_fraction", f"{resolved.free_gpu_memory_fraction:g}"]
    if at_least(resolved.version, "1.3.0rc7"):
        arguments += ["--served_model_name", served_name]
    option = "--config" if at_least(resolved.version, "1.3.0") else "--extra_llm_api_options"
    return [*arguments, option, f"{config_dir.rstrip('/')}/{CONFIG_FILE}"]


def piecewise_sizes(max_tokens: int) -> list[int]:
    """Token counts captured piece by piece: powers of two up to 128, whole 256s, and the limit itself.

    The list of public launch scripts (SemiAnalysisAI/InferenceX); a step is padded to the next size.
    """
    small = [2**power for power in range(8) if 2**power <= max_tokens]
    return sorted({*small, *range(256, max_tokens + 1, 256), max_tokens})


def config_files(resolved: ResolvedSettings) -> dict[str, str]:
    """The YAML file of LLM-API options, by name."""
    cache: dict[str, Any] = {
        "enable_block_reuse": resolved.enable_prefix_caching,
        "dtype": {"fp8": "fp8", "fp4": "nvfp4"}.get(resolved.kv_cache_dtype, "auto"),
        "tokens_per_block": resolved.block_tokens,
    }
    if resolved.kv_cache_max_tokens is not None:
        cache["max_tokens"] = resolved.kv_cache_max_tokens
    if resolved.kv_cache_max_gpu_gib is not None:
        cache["max_gpu_total_bytes"] = int(resolved.kv_cache_max_gpu_gib * GIB)
    if resolved.kv_cache_host_gib is not None:
        cache["host_cache_size"] = int(resolved.kv_cache_host_gib * GIB)
    graphs: dict[str, Any] | None = None
    if resolved.cuda_graph_sizes:
        # off by default, where batches between two captured sizes run kernel by kernel; step times are of padded ones
        graphs = {"batch_sizes": list(resolved.cuda_graph_sizes), "enable_padding": True}
    options: dict[str, Any] = {
        "enable_chunked_prefill": resolved.enable_chunked_prefill,
        "kv_cache_config": cache,
        "scheduler_config": {"capacity_scheduler_policy": resolved.capacity_policy},
        "cuda_graph_config": graphs,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }
    if resolved.moe_backend:
        options["moe_config"] = {"backend": resolved.moe_backend}
    if resolved.piecewise_cuda_graphs:
        options["torch_compile_config"] = {
            "enable_piecewise_cuda_graph": True,
            "capture_num_tokens": piecewise_sizes(resolved.max_num_batched_tokens),
        }
    if not resolved.async_scheduling:
        options["disable_overlap_scheduler"] = True
    if resolved.dp > 1:
        options["enable_attention_dp"] = True
    if resolved.dp > 1 and resolved.attention_dp_wait_iters:
        options["attention_dp_config"] = {
            "enable_balance": True,
            "timeout_iters": resolved.attention_dp_wait_iters,
            "batching_wait_iters": 0,
        }
    if resolved.batch_wait_iters:
        options["batch_wait_timeout_iters"] = resolved.batch_wait_iters
        options["batch_wait_max_tokens_ratio"] = resolved.batch_wait_tokens_ratio
    if resolved.max_loras:
        options["lora_config"] = {"max_loras": resolved.max_loras, "max_lora_rank": resolved.max_lora_rank}
    if resolved.speculative_tokens:
        options["speculative_config"] = {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": resolved.speculative_tokens,
        }
    return {CONFIG_FILE: yaml.safe_dump(options, sort_keys=False, default_flow_style=None, width=120)}

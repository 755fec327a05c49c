"""Settings that a row's source publishes beside the row: launch commands, launch scripts, load-generator output.

- SemiAnalysisAI/InferenceX (Apache-2.0): ``benchmarks/**/*.sh`` of the rows' months (2025-10 to 2026-04), a script for
  each model, precision, GPU and engine; those of TensorRT-LLM are read in ``inferencex_tensorrt``.
- gpustack/gpustack (Apache-2.0): ``docs/performance-lab/*/*.md``, the serving command, kept in the rows' notes, and the
  load generator's output.
- ai-dynamo/aiconfigurator (Apache-2.0): the tool that deploys and measures, read in ``aiconfigurator_eval``.
- NVIDIA/TensorRT-LLM issue 4275: the engine's and the load generator's commands.

Facts only. A row of another source is read as it stands.
"""

from __future__ import annotations

import re
from typing import Any

from benchmarks.accuracy import aiconfigurator_eval, inferencex_tensorrt

INFERENCEX = "aic_silicon:inferencex"
GPUSTACK = "gpustack_performance_lab"
RTX_5090 = "trtllm_issue_4275_rtx5090"
# not --max_seq_len: TensorRT-LLM shortens the context by itself where the pool is too small
_FLAGS = {
    "--max-model-len": ("max_model_len", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "--max_num_tokens": ("max_num_batched_tokens", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max_batch_size": ("max_num_seqs", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--kv_cache_free_gpu_memory_fraction": ("free_gpu_memory_fraction", float),
}


def published(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    """What to add to the request of ``row``: fields of the estimate contract."""
    if row["source_id"] == INFERENCEX:
        return _inferencex(row, load)
    if row["source_id"] == GPUSTACK:
        return _gpustack(row, load)
    if row["source_id"] == aiconfigurator_eval.SOURCE:
        return aiconfigurator_eval.settings(row, load)
    if row["source_id"] == RTX_5090:
        # inference-benchmarker --max-vus 800: above capacity the requests under way are the users
        users = {"load": {"kind": "closed", "concurrency": 800}} if "above_capacity" in row["quality"] else {}
        return {"max_num_seqs": 2048, **users}
    return {}


def _inferencex(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    clients = int(load.get("concurrency", 0))
    prompt = int(float(row["isl"]))
    model, blackwell = row["model"].lower(), not row["gpu"].startswith("H")
    if row["engine"] == "tensorrt_llm":
        return inferencex_tensorrt.settings(row, load)
    found: dict[str, Any]
    if "llama" in model:
        found = {
            **_image(row),
            "async_scheduling": True,
            "gpu_memory_utilization": 0.9,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512 if blackwell else clients,
        }
        # The scripts ask for an FP8 cache everywhere, but on H100 the runs wait for room at 32 and 64 clients as with
        # twice the bytes a token: read as the engine behaved.
        return found if row["gpu"].startswith("H100") else {**found, "kv_cache_dtype": "fp8"}
    if "gpt-oss" in model:
        found = {
            **_image(row),
            "gpu_memory_utilization": 0.9,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512 if blackwell else clients,
            "max_cudagraph_capture_size": 2048,
            "async_scheduling": True,
        }
        return found if blackwell else {**found, "moe_backend": "marlin"}
    if "minimax" in model and blackwell and row["date"] >= "2026-04-03":
        return {
            "kv_cache_dtype": "fp8",
            "gpu_memory_utilization": 0.9,
            "max_num_batched_tokens": 2 * prompt,
            "max_cudagraph_capture_size": 2048,
            "load": {**load, "stream_interval": 20},
        }
    if "minimax" in model:
        return {"gpu_memory_utilization": 0.95, "block_tokens": 32}
    if "kimi" in model:
        found = {"max_num_seqs": clients, "gpu_memory_utilization": 0.9 if row["precision"] == "fp4" else 0.95}
        if row["precision"] == "fp4" and row["date"] >= "2026-04-20":
            found.update(
                kv_cache_dtype="fp8",
                max_num_batched_tokens=2 * prompt,
                max_cudagraph_capture_size=2048,
                load={**load, "stream_interval": 20},
            )
        return found
    return {}


def _image(row: dict[str, str]) -> dict[str, str]:
    """The vLLM of a row that does not say: the images of ``70b-tmpl.yml`` and ``gptoss-tmpl.yml`` at its date."""
    if row["engine_version"]:
        return {}
    return {"engine_version": "0.10.2"} if row["date"] < "2025-11-04" else {"engine_version": "0.11.2"}


def _gpustack(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    """The flags of the serving command. Runs of 100 ShareGPT prompts say ``Maximum request concurrency: 4``."""
    command = row["notes"].rpartition("cmd: ")[2]
    found: dict[str, Any] = {}
    for flag, (name, kind) in _FLAGS.items():
        match = re.search(rf"{flag}[ =]([0-9.]+)", command)
        if match:
            found[name] = kind(match.group(1))
    if "--async-scheduling" in command and row["pp"] in ("", "1"):  # 0.10 and 0.11 refuse it with pipeline stages
        found["async_scheduling"] = True
    if "--enable-expert-parallel" in command:
        found["ep"] = int(row["tp"])
    if row["dataset"] == "ShareGPT" and row["num_prompts"] == "100":
        found["load"] = {**load, "concurrency": 4}
    return found

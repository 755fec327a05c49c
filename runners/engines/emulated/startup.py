"""Start-up of an emulated engine: the lines the real one would log, each marked, over ``load_s`` seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from runners.engines.emulated.spec import EmulationSpec

MARK = "[emulated]"


def announce(spec: EmulationSpec) -> None:
    """Say first what this is."""
    say(
        f"EMULATED ENGINE: acts as {spec.acts_as} {spec.version} on {spec.gpu}. No GPU is used; "
        "every time comes from the planner's step tables."
    )


def say(text: str) -> None:
    """One log line with the mark."""
    print(f"{time.strftime('%m-%d %H:%M:%S')} {text} {MARK}", flush=True)


async def load(spec: EmulationSpec) -> None:
    """Log the phases of loading; for ever silent after the weights when told to hang."""
    lines = list(_vllm_lines(spec) if spec.acts_as == "vllm" else _tensorrt_lines(spec))
    for number, (line, ends_weights) in enumerate(lines):
        say(line)
        await asyncio.sleep(spec.load_s / len(lines) if number < len(lines) - 1 else 0)
        if ends_weights and spec.faults.hang_in_loading:
            await asyncio.Event().wait()


def _vllm_lines(spec: EmulationSpec) -> Iterator[tuple[str, bool]]:
    facts, limits = spec.startup, spec.limits
    tokens = facts.kv_tokens or limits.kv_blocks * limits.block_tokens
    concurrency = facts.max_concurrency or tokens / limits.max_model_len
    yield f"INFO Initializing a V1 LLM engine (v{spec.version}) with config: emulated", False
    yield f"INFO Using max model len {limits.max_model_len}", False
    yield f"INFO Model loading took {facts.weights_gib or 0.0:.2f} GiB memory and {spec.load_s / 4:.2f} seconds", True
    yield f"INFO torch.compile took {spec.load_s / 4:.2f} s in total", False
    yield f"INFO Available KV cache memory: {facts.kv_gib or 0.0:.2f} GiB", False
    yield f"INFO GPU KV cache size: {tokens:,} tokens", False
    yield f"INFO Maximum concurrency for {limits.max_model_len:,} tokens per request: {concurrency:.2f}x", False
    yield f"INFO Graph capturing finished in {spec.load_s / 4:.0f} secs, took {facts.graph_gib or 0.0:.2f} GiB", False
    yield f"INFO init engine (profile, create kv cache, warmup model) took {spec.load_s:.2f} s", False


def _tensorrt_lines(spec: EmulationSpec) -> Iterator[tuple[str, bool]]:
    facts, limits = spec.startup, spec.limits
    tokens = facts.kv_tokens or limits.kv_blocks * limits.block_tokens
    yield f"[TRT-LLM] [I] TensorRT-LLM version: {spec.version}", False
    yield f"[TRT-LLM] [I] Use {facts.weights_gib or 0.0:.2f} GB for model weights.", False
    yield f"[TRT-LLM] [I] Model init total -- {spec.load_s / 2:.2f}s", True
    yield f"[TRT-LLM] [I] Number of tokens per block: {limits.block_tokens}.", False
    yield "[TRT-LLM] [I] [Autotuner] Autotuning process starts ...", False
    yield "[TRT-LLM] [I] [Autotuner] Autotuning process ends", False
    yield (
        f"[TRT-LLM] [I] max_seq_len={limits.max_model_len}, max_num_requests={limits.max_num_seqs}, "
        f"max_num_tokens={limits.max_num_batched_tokens}, max_batch_size={limits.max_num_seqs}",
        False,
    )
    gib = facts.kv_gib or 0.0
    yield (
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {gib:.2f} GiB for max tokens in paged KV cache ({tokens}).",
        False,
    )

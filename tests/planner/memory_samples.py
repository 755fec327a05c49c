"""Hand-made GPUs and models for the memory and engine tests; sizes are those of real hardware and checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.catalog import get_gpu, get_model
from planner.catalog.types import GpuSpec
from planner.engines import EngineName, EngineSettings, resolve
from planner.estimate import estimate
from planner.memory import MemoryLedger, ledger
from planner.models.spec import (
    Attention,
    Ffn,
    LayerGroup,
    Linear,
    Mla,
    ModelSpec,
    Quantization,
    RecurrentState,
    Shard,
)


def gpu(name: str, **changes: object) -> GpuSpec:
    """A catalogue GPU with ``changes``."""
    return replace(get_gpu(name), **changes)  # type: ignore[arg-type]


def h100(total_gib: float = 79.19) -> GpuSpec:
    """The H100 of the measured vectors."""
    return gpu("H100-SXM5-80GB", total_gib=total_gib)


def vllm(version: str = "0.19.0", **changes: object) -> EngineSettings:
    """vLLM settings."""
    return EngineSettings(EngineName.VLLM, version=version, **changes)  # type: ignore[arg-type]


def trtllm(**changes: object) -> EngineSettings:
    """TensorRT-LLM settings."""
    return EngineSettings(EngineName.TENSORRT_LLM, **changes)  # type: ignore[arg-type]


def account(model: ModelSpec | str, device: GpuSpec, settings: EngineSettings, **options: float) -> MemoryLedger:
    """The ledger of a catalogue id or spec."""
    spec = get_model(model) if isinstance(model, str) else model
    return ledger(spec, device, resolve(settings, spec, device), **options)


def synthetic(*groups: LayerGroup, vocab: int = 32_000, hidden: int = 2048, max_position: int = 1 << 20) -> ModelSpec:
    """A bf16 model of ``groups``, in that order."""
    order = tuple(index for index, group in enumerate(groups) for _ in range(group.count))
    return ModelSpec(
        model_id="synthetic",
        architecture="LlamaForCausalLM",
        model_type="llama",
        task="generate",
        hidden=hidden,
        vocab=vocab,
        max_position=max_position,
        dtype="bf16",
        groups=groups,
        layer_order=order,
        embedding=Linear("embed", vocab, hidden, Shard.VOCAB),
        lm_head=Linear("lm_head", vocab, hidden, Shard.VOCAB),
        tied_embeddings=False,
        quantization=Quantization("none", "bf16", 16.0, 16),
    )


def attention_layers(
    count: int, kv_heads: int = 8, head_dim: int = 128, window: int | None = None, kind: str = "sliding"
) -> LayerGroup:
    """Attention layers with a small feed-forward part."""
    mixer = Attention(kind if window else "full", 32, kv_heads, head_dim, head_dim, window)  # type: ignore[arg-type]
    weights = (Linear("gate_up", 2 * 4096, 2048, Shard.COLUMN), Linear("down", 2048, 4096, Shard.ROW))
    return LayerGroup(count, mixer, Ffn(4096, True), weights)


def latent_layers(count: int, rank: int = 512, rope: int = 64) -> LayerGroup:
    """Layers of multi-head latent attention."""
    return LayerGroup(count, Mla(16, rank, None, 128, rope, 128), Ffn(4096, True), ())


def state_layers(count: int, conv: int = 30_720, state: int = 786_432) -> LayerGroup:
    """Recurrent layers: by default 16-bit convolution and 32-bit state of a gated delta net."""
    return LayerGroup(count, RecurrentState("gdn", conv, state), Ffn(4096, True), ())


def answer(**request: object) -> dict[str, Any]:
    """What the estimate contract answers to ``request``, by default of vLLM 0.19.0 on the H100 of the vectors."""
    card = {"gpu": "H100-SXM5-80GB", "gpu_memory_gib": 79.19} if "gpu" not in request else {}
    version = {"engine": "vllm", "engine_version": "0.19.0"} if "engine" not in request else {}
    return estimate({**version, **card, **request})


def pool_of(gib: float, **request: object) -> dict[str, Any]:
    """``answer`` of a GPU whose memory leaves ``gib`` GiB for the KV pool; ``request`` names the share of memory."""
    share = request.get("gpu_memory_utilization")
    assert isinstance(share, float)
    whole = answer(**{"gpu_memory_gib": 79.19, **request})
    total = float(str(request.get("gpu_memory_gib", 79.19))) + (gib - whole["memory"]["kv_gib"]) / share
    return answer(**{**request, "gpu_memory_gib": total})


def config_file(folder: Path, **config: object) -> str:
    """The path of a config.json of ``config``, as a user uploads it."""
    path = folder / "config.json"
    path.write_text(json.dumps(config), "utf-8")
    return str(path)

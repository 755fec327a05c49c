"""What the engines do when prefill and decode run on instances of their own, by version.

vLLM: ``NixlConnector`` (docs/features/nixl_connector_usage.md, nixl_connector_compatibility.md). Version, model, cache
precision and attention back end must match, tensor parallelism may differ; no pipeline stages on the pulling side
(issue 52913); sliding windows keep their small caches since 0.18 (pull 35758, on request) and by default since 0.22
(pull 41847). TensorRT-LLM: ``cache_transceiver_config`` and ``trtllm-serve disaggregated``
(docs/source/features/disagg-serving.md): decoder-only, the same cache in each layer, context servers without the
overlap scheduler; adapters are marked untested in its feature matrix.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from planner.catalog.types import GpuSpec
from planner.engines import model_traits as mt
from planner.engines import resolve
from planner.engines.types import DEFAULT_VERSION, EngineName, EngineSettings, ResolvedSettings
from planner.engines.versions import at_least
from planner.engines.vllm import block_tokens
from planner.models.spec import Attention, ModelSpec

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = ("prefill", "decode")

NIXL_FROM = "0.11.0"
NIXL_HYBRID_FROM = "0.18.0"
NIXL_HYBRID_DEFAULT_FROM = "0.22.0"
TRANSFER_BLOCK_TOKENS = 64
"""vLLM's blocks of 16 tokens cost four times the descriptors; 64 is what every attention back end takes."""


def role_settings(
    settings: EngineSettings,
    model: ModelSpec,
    gpu: GpuSpec,
    role: Role,
    *,
    expected_len: int | None,
    longest_prompt: int | None,
) -> ResolvedSettings:
    """``settings`` as the engine resolves them in ``role``.

    Prefill needs room for a prompt and one token; without chunked prefill a step must hold the longest prompt. Raises
    InputError as ``resolve`` does.
    """
    version = settings.version or DEFAULT_VERSION[settings.engine]
    if role == "prefill" and longest_prompt is not None:
        expected_len = longest_prompt + 1
    if settings.engine is EngineName.VLLM:
        if settings.block_tokens is None and not mt.is_recurrent(model):
            block = max(TRANSFER_BLOCK_TOKENS, block_tokens(version, model, gpu)[0])
            settings = replace(settings, block_tokens=block)
        return resolve(settings, model, gpu, expected_len=expected_len)
    resolved = resolve(settings, model, gpu, expected_len=expected_len)
    if role == "decode":
        return resolved
    origin = {**resolved.origin, "async_scheduling": "context servers run without the overlap scheduler"}
    resolved = replace(resolved, async_scheduling=False, origin=origin)
    if not resolved.enable_chunked_prefill and (longest_prompt or 0) > resolved.max_num_batched_tokens:
        origin["max_num_batched_tokens"] = "longest prompt, chunked prefill off"
        needed = math.ceil((longest_prompt or 0) / 64) * 64
        resolved = replace(resolved, max_num_batched_tokens=needed, origin=origin)
    return resolved


def refusals(model: ModelSpec, gpu: GpuSpec, prefill: ResolvedSettings, decode: ResolvedSettings) -> tuple[str, ...]:
    """Why the engine cannot serve ``model`` with these two roles, in words; empty when it can."""
    found = []
    for field, words in (("engine", "engine"), ("version", "version"), ("kv_cache_dtype", "KV-cache precision")):
        first, second = getattr(prefill, field), getattr(decode, field)
        if first != second:
            found.append(f"Both roles need the same {words} to exchange caches, not {first} and {second}.")
    if model.task != "generate":
        found.append("A model that does not generate has no decode phase.")
    if gpu.vendor != "nvidia":
        found.append(f"KV transfer is modelled for NVIDIA GPUs only; {gpu.name} is {gpu.vendor}.")
    if any(isinstance(g.mixer, Attention) and g.mixer.kind == "cross" for g in model.groups):
        found.append("Encoder-decoder models cannot be disaggregated.")
    if decode.engine is EngineName.VLLM:
        return (*found, *_vllm(model, prefill, decode))
    return (*found, *_tensorrt_llm(model, prefill, decode))


def _vllm(model: ModelSpec, prefill: ResolvedSettings, decode: ResolvedSettings) -> list[str]:
    found = []
    version = decode.version
    if not at_least(version, NIXL_FROM):
        found.append(f"NixlConnector is modelled from vLLM {NIXL_FROM} on, not for {version}.")
    if prefill.pp > 1 or decode.pp > 1:
        found.append("NixlConnector moves no caches between pipeline stages; use tensor parallelism.")
    if prefill.block_tokens != decode.block_tokens:
        found.append("Both roles need the same block size here.")
    if mt.is_recurrent(model) and prefill.tp != decode.tp:
        found.append("Recurrent layers need the same tensor parallelism in both roles.")
    if is_hybrid(model) and not at_least(version, NIXL_HYBRID_FROM):
        found.append(
            f"Before vLLM {NIXL_HYBRID_FROM} the connector turns the hybrid KV cache off, so that window layers cost as"
            " much as full ones."
        )
    return found


def _tensorrt_llm(model: ModelSpec, prefill: ResolvedSettings, decode: ResolvedSettings) -> list[str]:
    found = []
    if {prefill.trt_backend, decode.trt_backend} != {"pytorch"}:
        found.append("Disaggregated serving is modelled for the PyTorch back end.")
    heads = {(g.mixer.kv_heads, g.mixer.head_dim) for g in model.groups if isinstance(g.mixer, Attention)}
    if mt.is_recurrent(model) or len(heads) > 1:
        found.append("TensorRT-LLM exchanges only caches that are equal in every layer.")
    if prefill.max_loras or decode.max_loras:
        found.append("TensorRT-LLM marks adapters with disaggregated serving as untested.")
    return found


def is_hybrid(model: ModelSpec) -> bool:
    """Whether layers keep caches of different kinds: full beside windows, chunks or recurrent states."""
    kinds = {g.mixer.kind if isinstance(g.mixer, Attention) else type(g.mixer).__name__ for g in model.groups}
    return len(kinds - {"NoneType", "encoder"}) > 1


def keeps_hybrid_flag(model: ModelSpec, resolved: ResolvedSettings) -> bool:
    """Whether vLLM must be told to keep its hybrid KV cache in spite of the connector."""
    return (
        resolved.engine is EngineName.VLLM
        and is_hybrid(model)
        and not at_least(resolved.version, NIXL_HYBRID_DEFAULT_FROM)
    )

"""How an engine cuts its KV pool into blocks: layer groups, pages, padding, blocks per request.

vLLM (``v1/core/kv_cache_utils.py``, ``v1/kv_cache_interface.py``): every block of the pool serves one *group* of
layers. Layers of one kind are split into groups of equal size, kinds whose page is smaller get a larger block,
recurrent layers are padded to the attention page. TensorRT-LLM (``_torch/pyexecutor/resource_manager.py``): one pool,
every attention layer counted as full, bytes per token times tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.errors import UnsupportedError
from planner.memory.kv_layout_types import KvGroup, KvLayout
from planner.memory.kv_layout_v4 import is_windowed_latent, windowed_latent_layout
from planner.models.sharding import stage_groups
from planner.models.spec import Attention, LayerGroup, Mla, ModelSpec, RecurrentState

KV_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of one cached element; fp4 has one 8-bit scale for 16 elements."""

FP8_DS_MLA_TOKEN_BYTES = 656
"""One token of sparse latent attention in vLLM's fp8 format: 512 fp8 + 4 fp32 scales + 64 bf16."""

INDEXER_SCALE_BYTES = 4
MAMBA_BLOCK_ALIGNMENT = 16
CONVOLUTION_WINDOW = 3  # past tokens that a recurrent layer's convolution keeps


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers that share one cache specification. ``token_bytes`` per token and layer on one rank."""

    kind: str
    token_bytes: float
    window: int | None
    state_bytes: float = 0.0


def element_bytes(resolved: ResolvedSettings) -> float:
    """Bytes of one cached element under ``resolved``."""
    return KV_BYTES[resolved.kv_cache_dtype]


def token_bytes(mixer: Attention | Mla, resolved: ResolvedSettings) -> float:
    """Bytes that one token of one layer takes on one tensor-parallel rank.

    K/V heads are divided by TP, never below one; a latent is held whole by every rank.
    """
    size = element_bytes(resolved)
    if isinstance(mixer, Mla):
        latent = (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * size
        if mixer.index_head_dim is None:
            return latent
        if resolved.kv_cache_dtype == "fp8" and resolved.engine is EngineName.VLLM:
            latent = FP8_DS_MLA_TOKEN_BYTES
        return latent + mixer.index_head_dim + INDEXER_SCALE_BYTES
    heads = max(1, math.ceil(mixer.kv_heads / resolved.tp))
    return heads * (mixer.head_dim + mixer.v_head_dim) * size


def state_bytes(mixer: RecurrentState, tp: int, speculative_tokens: int = 0) -> float:
    """Bytes of one layer's recurrent state for one sequence on one rank.

    Speculation lengthens the convolution's window by its tokens; the kernels of all known models are four wide.
    """
    convolution = mixer.conv_elements * (CONVOLUTION_WINDOW + speculative_tokens) / CONVOLUTION_WINDOW
    return (convolution * mixer.conv_dtype_bytes + mixer.state_elements * mixer.state_dtype_bytes) / tp


def kv_layout(model: ModelSpec, resolved: ResolvedSettings, *, stage: int | None = None) -> KvLayout:
    """The pool as ``resolved.engine`` lays it out, on one rank of pipeline stage ``stage`` (None: the fullest stage).

    Raises UnsupportedError where vLLM itself refuses (pages that cannot be made equal).
    """
    if stage is None:
        layouts = [kv_layout(model, resolved, stage=each) for each in range(resolved.pp)]
        return max(layouts, key=lambda layout: layout.block_bytes)
    held = stage_groups(model, resolved.pp, stage)
    if resolved.engine is EngineName.VLLM and is_windowed_latent(model):
        drafts = bool(resolved.speculative_tokens) and stage == resolved.pp - 1
        return windowed_latent_layout(model, resolved, held, in_flight_tokens(resolved), drafts=drafts)
    counts = _kinds(model, resolved, held, last=stage == resolved.pp - 1)
    if resolved.engine is EngineName.TENSORRT_LLM:
        return _trtllm_layout(counts, resolved)
    return _vllm_layout(counts, resolved)


def has_window_freed(kind: str, resolved: ResolvedSettings) -> bool:
    """Whether vLLM gives back the blocks that a layer of ``kind`` no longer attends to, beside layers that keep all.

    Sliding windows since 0.9.1 (``disable_hybrid_kv_cache_manager``); chunks in 0.10.0, then again since 0.14.0:
    between them "there is a latency regression" turned it off (``VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE``,
    pull requests 21761 and 29627). Without it all layers are one group that keeps every token.
    """
    if kind == "sliding":
        return at_least(resolved.version, "0.9.1")
    if kind == "chunked":
        return at_least(resolved.version, "0.14.0") or resolved.version.startswith("0.10.0")
    return True


def _kinds(model: ModelSpec, resolved: ResolvedSettings, stage: dict[int, int], *, last: bool) -> Counter[_Kind]:
    counts: Counter[_Kind] = Counter()
    mixed = any(isinstance(group.mixer, Attention) and group.mixer.kind == "full" for group in model.groups)

    def add(group: LayerGroup, layers: int) -> None:
        mixer = group.mixer
        if isinstance(mixer, RecurrentState):
            counts[_Kind("state", 0.0, None, state_bytes(mixer, resolved.tp, resolved.speculative_tokens))] += layers
        elif isinstance(mixer, Mla):
            counts[_Kind("full", token_bytes(mixer, resolved), None)] += layers
        elif isinstance(mixer, Attention) and mixer.kind != "encoder":
            kind = mixer.kind if has_window_freed(mixer.kind, resolved) or not mixed else "full"
            window = mixer.window if kind in ("sliding", "chunked", "cross") else None
            counts[_Kind(kind, token_bytes(mixer, resolved), window)] += layers

    for index, layers in stage.items():
        add(model.groups[index], layers)
    if resolved.speculative_tokens and last:
        for group in model.mtp_groups:
            add(group, group.count)
    return counts


def _trtllm_layout(counts: Counter[_Kind], resolved: ResolvedSettings) -> KvLayout:
    per_token = sum(kind.token_bytes * layers for kind, layers in counts.items())
    states = sum(kind.state_bytes * layers for kind, layers in counts.items())
    attention_layers = sum(layers for kind, layers in counts.items() if kind.kind != "state")
    groups = (KvGroup("full", attention_layers, resolved.block_tokens),) if attention_layers else ()
    block_bytes = per_token * resolved.block_tokens
    return KvLayout(groups, attention_layers, block_bytes / max(1, attention_layers), block_bytes, 0, states, 0, 0, 0.0)


def in_flight_tokens(resolved: ResolvedSettings) -> int:
    """New tokens that may be in flight at once: the token budget, times the two steps of asynchronous scheduling since
    vLLM 0.28."""
    steps = 2 if at_least(resolved.version, "0.28.0") and resolved.async_scheduling else 1
    return resolved.max_num_batched_tokens * steps


def _vllm_layout(counts: Counter[_Kind], resolved: ResolvedSettings) -> KvLayout:
    pending = in_flight_tokens(resolved)
    state_per_seq = sum(kind.state_bytes * layers for kind, layers in counts.items())
    if not counts:
        return KvLayout((), 0, 0.0, 0.0, 0, 0.0, pending, 0, 0.0)
    shape_kinds = {(kind.kind, kind.window) for kind in counts}
    if len(shape_kinds) == 1 and next(iter(shape_kinds))[0] != "state":
        return _uniform_layout(counts, resolved, pending)
    blocks, page = _equal_pages(counts, resolved)
    slots = _group_size(list(counts.values()), resolved.version)
    groups: list[KvGroup] = []
    padding = 0
    for kind, layers in counts.items():
        number = math.ceil(layers / slots)
        padding += number * slots - layers
        for index in range(number):
            share = len(range(index, layers, number))
            groups.append(KvGroup(kind.kind, share, blocks[kind], kind.window))
    used = sum(
        (kind.state_bytes if kind.kind == "state" else kind.token_bytes * blocks[kind]) * layers
        for kind, layers in counts.items()
    )
    total_slots = len(groups) * slots
    return KvLayout(
        tuple(groups),
        slots,
        page,
        page * slots,
        _state_blocks(resolved),
        state_per_seq,
        pending,
        padding,
        1.0 - used / (total_slots * page),
    )


def _uniform_layout(counts: Counter[_Kind], resolved: ResolvedSettings, pending: int) -> KvLayout:
    """All layers of one kind: one group, whatever the sizes of their pages."""
    kind = next(iter(counts))
    layers = sum(counts.values())
    block_bytes = sum(each.token_bytes * resolved.block_tokens * number for each, number in counts.items())
    group = KvGroup(kind.kind, layers, resolved.block_tokens, kind.window)
    return KvLayout((group,), layers, block_bytes / layers, block_bytes, 0, 0.0, pending, 0, 0.0)


def _state_blocks(resolved: ResolvedSettings) -> int:
    """Blocks of a recurrent group per sequence: 1, or 2 when states are kept at block borders for prefix caching; one
    more for each speculative token."""
    return (2 if resolved.enable_prefix_caching else 1) + resolved.speculative_tokens


def _equal_pages(counts: Counter[_Kind], resolved: ResolvedSettings) -> tuple[dict[_Kind, int], float]:
    """Block size in tokens of each kind, and the page that all share."""
    attention = [kind for kind in counts if kind.kind != "state"]
    states = [kind.state_bytes for kind in counts if kind.kind == "state"]
    base = resolved.block_tokens
    if states and attention:
        per_token = max(kind.token_bytes for kind in attention)
        aligned = MAMBA_BLOCK_ALIGNMENT * math.ceil(max(states) / (MAMBA_BLOCK_ALIGNMENT * per_token))
        base = max(base, aligned)
    if not attention:
        return dict.fromkeys(counts, resolved.max_model_len), max(states)
    page = max(kind.token_bytes for kind in attention) * base
    blocks: dict[_Kind, int] = {}
    for kind in counts:
        if kind.kind == "state":
            blocks[kind] = base
            continue
        ratio = page / (kind.token_bytes * base)
        if ratio != int(ratio) and not at_least(resolved.version, "0.20.0"):
            raise UnsupportedError(
                f"vLLM {resolved.version} cannot make the KV pages of this model's layer kinds equal "
                f"({kind.token_bytes * base:.0f} and {page:.0f} bytes)",
                field="model",
                remedy="Use a later version, which pads them.",
            )
        blocks[kind] = base * max(1, int(ratio))
    return blocks, page


def _group_size(layer_counts: list[int], version: str) -> int:
    """Layers per group: the smallest count of any kind, or the largest where padding costs little."""
    smallest, largest = min(layer_counts), max(layer_counts)
    if at_least(version, "0.18.0"):
        tolerance = 1.5
    elif at_least(version, "0.12.0"):
        tolerance = 1.25
    else:
        return smallest
    return largest if largest < smallest * tolerance else smallest

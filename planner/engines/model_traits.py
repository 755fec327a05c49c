"""Properties of a model that the engines branch on."""

from __future__ import annotations

from planner.models.spec import Attention, Mla, ModelSpec, RecurrentState


def is_mla(model: ModelSpec) -> bool:
    """Whether any layer uses multi-head latent attention."""
    return any(isinstance(group.mixer, Mla) for group in model.groups)


def is_sparse_mla(model: ModelSpec) -> bool:
    """Whether the latent attention is sparse: an indexer picks the tokens (DeepSeek V3.2, GLM-5)."""
    return any(isinstance(group.mixer, Mla) and group.mixer.index_head_dim for group in model.groups)


def is_recurrent(model: ModelSpec) -> bool:
    """Whether any layer keeps a recurrent state instead of a KV cache."""
    return any(isinstance(group.mixer, RecurrentState) for group in model.groups)


def has_one_cache_kind(model: ModelSpec) -> bool:
    """Whether all layers keep the same kind of cache, so that one block of vLLM's pool serves them all."""
    kinds = {
        (group.mixer.kind, group.mixer.window) if isinstance(group.mixer, Attention) else type(group.mixer).__name__
        for group in model.groups
        if group.mixer is not None
    }
    return len(kinds) <= 1 and not is_recurrent(model) and not model.model_type.startswith("deepseek_v4")


def is_encoder_only(model: ModelSpec) -> bool:
    """Whether the model attends in both directions only, and so keeps no KV cache."""
    mixers = [group.mixer for group in model.groups if group.mixer is not None]
    return bool(mixers) and all(isinstance(m, Attention) and m.kind == "encoder" for m in mixers)


def is_moe(model: ModelSpec) -> bool:
    """Whether any layer routes tokens to experts."""
    return any(group.ffn is not None and group.ffn.experts > 0 for group in model.groups)


def query_heads(model: ModelSpec) -> int:
    """Attention heads that tensor parallelism has to divide; 0 when no layer attends."""
    return max((g.mixer.heads for g in model.groups if isinstance(g.mixer, Attention | Mla)), default=0)


def kv_heads(model: ModelSpec) -> int:
    """Largest count of K/V heads over the attention layers; 1 for latent attention, 0 without attention."""
    counts = [g.mixer.kv_heads for g in model.groups if isinstance(g.mixer, Attention)]
    if any(isinstance(g.mixer, Mla) for g in model.groups):
        counts.append(1)
    return max(counts, default=0)


def experts(model: ModelSpec) -> int:
    """Largest count of routed experts in a layer; 0 for a dense model."""
    return max((g.ffn.experts for g in model.groups if g.ffn is not None), default=0)

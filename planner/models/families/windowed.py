"""Models whose layers differ in window, head count or head size: Llama 4, Gemma 4, MiMo V2, Step 3.7, MiniMax M3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, Moe, attention_linears, dense_ffn, moe_ffn, norm
from planner.models.families.decoder import HEADS, KV_HEADS, POSITIONS, head_dim, kv_heads, layer_count, plain_draft
from planner.models.families.moe import experts_of
from planner.models.fields import Fields
from planner.models.spec import Attention, Ffn, Linear, Shard


def _flags(fields: Fields, key: str, layers: int) -> list[int]:
    """A 0/1 list with one entry per layer; raises InputError otherwise."""
    flags = fields.ints(key, high=1)
    if len(flags) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name(key), value=len(flags))
    return flags


def _kinds(fields: Fields, layers: int) -> list[str]:
    kinds = fields.texts("layer_types")
    if len(kinds) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name("layer_types"), value=len(kinds))
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown:
        raise InputError("unknown kind of layer", field=fields.name("layer_types"), value=unknown[0])
    return kinds


def llama4(fields: Fields) -> Draft:
    """Llama 4: chunked attention but for every fourth layer, experts in each ``interleave_moe_layer_step``-th."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    kv = kv_heads(fields, heads, "")
    dim = head_dim(fields, hidden, heads)
    chunk = fields.optional_int("attention_chunk_size")
    positions = fields.integer(*POSITIONS)
    interval = fields.integer("no_rope_layer_interval", default=4, high=1000)
    rope = fields.ints("no_rope_layers", high=1) or [int((index + 1) % interval != 0) for index in range(layers)]
    if len(rope) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name("no_rope_layers"), value=len(rope))
    experts, per_token = experts_of(fields)
    width = fields.integer("intermediate_size")
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=width,
            shared=width,
            prefix="feed_forward",
            router="router",
            shared_prefix="shared_expert",
        ),
    )
    step = fields.integer("interleave_moe_layer_step", default=1, high=1000)
    dense = dense_ffn(hidden, fields.integer("intermediate_size_mlp"), prefix="feed_forward") if step > 1 else routed
    bias = fields.flag("attention_bias", default=False)
    stack = []
    for index in range(layers):
        chunked = bool(rope[index]) and chunk is not None and chunk < positions
        kind: Literal["chunked", "full"] = "chunked" if chunked else "full"
        attention = Attention(kind, heads, kv, dim, dim, chunk if chunked else None)
        block = routed if (index + 1) % step == 0 else dense
        parts = attention_linears(attention, hidden, qkv_bias=bias, o_bias=bias)
        stack.append(Layer(attention, block[0], (norm(hidden, 2), *parts, *block[1])))
    return plain_draft(fields, hidden, stack)


def gemma4(fields: Fields) -> Draft:
    """Gemma 4: sliding layers with their own heads, full layers whose K and V share one projection, optional experts.

    The last ``num_kv_shared_layers`` layers read the K/V of earlier ones; ``hidden_size_per_layer_input`` > 0 gives
    every layer an embedding of its own.
    """
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    kinds = _kinds(fields, layers)
    shared_from = layers - fields.integer("num_kv_shared_layers", default=0, low=0, high=layers)
    per_layer = fields.integer("hidden_size_per_layer_input", default=0, low=0)
    width = fields.integer("intermediate_size")
    wide = fields.flag("use_double_wide_mlp", default=False)
    stack = []
    for index, kind in enumerate(kinds):
        reads = index >= shared_from
        attention, parts = _gemma4_attention(fields, hidden, kind == "sliding_attention", reads)
        ffn, dense = dense_ffn(hidden, width * (2 if wide and reads else 1))
        linears = [norm(hidden, 4), norm(1, module="layer_scalar"), *parts, *dense]
        if fields.flag("enable_moe_block", default=False):
            ffn, routed = _gemma4_experts(fields, hidden)
            ffn = replace(ffn, intermediate=width)
            linears += routed
        if per_layer:
            linears += [
                Linear("other", per_layer, hidden, Shard.REPLICATED, module="per_layer_input_gate"),
                Linear("other", hidden, per_layer, Shard.REPLICATED, module="per_layer_projection"),
                norm(hidden, module="post_per_layer_input_norm"),
            ]
        stack.append(Layer(attention, ffn, tuple(linears)))
    draft = plain_draft(fields, hidden, stack, tied=True)
    if per_layer:
        rows = fields.integer("vocab_size_per_layer_input", default=draft.vocab)
        draft.extra += [
            Linear("embed", rows, layers * per_layer, Shard.VOCAB, module="embed_tokens_per_layer"),
            Linear("other", layers * per_layer, hidden, Shard.REPLICATED, module="per_layer_model_projection"),
            norm(per_layer, module="per_layer_projection_norm"),
        ]
    return draft


def _gemma4_attention(fields: Fields, hidden: int, sliding: bool, reads: bool) -> tuple[Attention, list[Linear]]:
    heads = fields.integer(*HEADS, high=10**5)
    keys = KV_HEADS if sliding else ("num_global_key_value_heads", *KV_HEADS)
    kv = fields.integer(*keys, high=heads)
    if heads % kv:
        raise InputError("must divide the number of attention heads", field=fields.name(keys[0]), value=kv)
    dim = (
        fields.integer("head_dim", high=10**5) if sliding else fields.integer("global_head_dim", "head_dim", high=10**5)
    )
    window = fields.integer("sliding_window") if sliding else None
    attention = Attention("sliding" if sliding else "full", heads, kv, dim, dim, window, True, cached=not reads)
    bias = fields.flag("attention_bias", default=False)
    same = fields.flag("attention_k_eq_v", default=False) and not sliding
    parts = attention_linears(attention, hidden, qkv_bias=bias, o_bias=bias, qk_norm="head", shared_kv=same)
    return attention, [part for part in parts if not (reads and part.role == "kv")]


def _gemma4_experts(fields: Fields, hidden: int) -> tuple[Ffn, list[Linear]]:
    experts = fields.integer("num_experts", high=10**5)
    per_token = fields.integer("top_k_experts", "num_experts_per_tok", high=experts)
    width = fields.integer("moe_intermediate_size", "expert_intermediate_size")
    ffn, linears = moe_ffn(
        hidden, Moe(experts=experts, per_token=per_token, intermediate=width, prefix="", router="router")
    )
    extra = [norm(hidden, 4, module="moe_norms"), norm(experts, module="router.per_expert_scale")]
    return ffn, [replace(linear, module=linear.module.replace("|.", "|").lstrip(".")) for linear in linears] + extra


def mimo_v2(fields: Fields) -> Draft:
    """MiMo V2: sliding layers have their own head counts, values are narrower than keys, dense first layer."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    sliding = _flags(fields, "hybrid_layer_pattern", layers)
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=width,
            shared=width * fields.integer("n_shared_experts", default=0, low=0, high=1000),
            correction_bias=True,
        ),
    )
    sparse = _flags(fields, "moe_layer_freq", layers)
    dense = dense_ffn(hidden, fields.integer("intermediate_size")) if 0 in sparse else routed
    made = {flag: _mimo_attention(fields, hidden, bool(flag)) for flag in set(sliding)}
    stack = []
    for index in range(layers):
        attention, parts = made[sliding[index]]
        block = routed if sparse[index] else dense
        stack.append(Layer(attention, block[0], (norm(hidden, 2), *parts, *block[1])))
    return plain_draft(fields, hidden, stack)


def _mimo_attention(fields: Fields, hidden: int, sliding: bool) -> tuple[Attention, list[Linear]]:
    def size(key: str) -> int:
        return fields.integer(f"swa_{key}", key, high=10**5) if sliding else fields.integer(key, high=10**5)

    heads, kv = size("num_attention_heads"), size("num_key_value_heads")
    if heads % kv:
        raise InputError("must divide the number of attention heads", field=fields.name(KV_HEADS[0]), value=kv)
    window = fields.integer("sliding_window", "sliding_window_size") if sliding else None
    attention = Attention("sliding" if sliding else "full", heads, kv, size("head_dim"), size("v_head_dim"), window)
    parts = attention_linears(attention, hidden, qkv_bias=fields.flag("attention_bias", default=False))
    if fields.flag(f"add_{'swa' if sliding else 'full'}_attention_sink_bias", default=False):
        parts.append(Linear("norm", heads, 1, Shard.REPLICATED, module="self_attn.attention_sink_bias"))
    return attention, parts


def step3p7(fields: Fields) -> Draft:
    """Step 3.7: sliding and full layers, a gate per head, routed experts beside one shared."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    sliding_heads = fields.integer("num_sliding_attention_heads", default=heads, high=10**5)
    dim = head_dim(fields, hidden, heads)
    experts, per_token = experts_of(fields)
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("moe_intermediate_size"),
            shared=fields.integer("share_expert_dim", default=0, low=0),
            correction_bias=fields.flag("use_moe_router_bias", default=True),
            shared_prefix="share_expert",
        ),
    )
    first = fields.integer("first_k_dense_replace", default=0, low=0)
    dense = dense_ffn(hidden, fields.integer("intermediate_size")) if first else routed
    stack = []
    for index, kind in enumerate(_kinds(fields, layers)):
        sliding = kind == "sliding_attention"
        count = sliding_heads if sliding else heads
        kv = kv_heads(fields, count, "")
        window = fields.integer("sliding_window") if sliding else None
        attention = Attention("sliding" if sliding else "full", count, kv, dim, dim, window, True)
        parts = attention_linears(attention, hidden, qk_norm="head")
        parts.append(Linear("other", count, hidden, Shard.COLUMN, module="self_attn.g_proj"))
        block = dense if index < first else routed
        stack.append(Layer(attention, block[0], (norm(hidden, 2), *parts, *block[1])))
    draft = plain_draft(fields, hidden, stack)
    if not fields.has("num_sliding_attention_heads"):
        draft.notes.append("config.json states no head count for sliding layers; that of full layers is used.")
    return draft


def minimax_m3(fields: Fields) -> Draft:
    """MiniMax M3: block-sparse attention with an indexer after the first layers, routed experts beside a shared one."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    kv = kv_heads(fields, heads, "")
    dim = head_dim(fields, hidden, heads)
    sparse = fields.child("sparse_attention_config")
    if sparse is not None and sparse.flag("use_sparse_attention", default=True):
        indexed = _flags(sparse, "sparse_attention_freq", layers)
        index_dim, index_heads = (
            sparse.integer("sparse_index_dim"),
            sparse.integer("sparse_num_index_heads", high=10**5),
        )
    else:
        indexed, index_dim, index_heads = [0] * layers, 1, 1
    experts, per_token = experts_of(fields)
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("moe_intermediate_size", "intermediate_size"),
            shared=fields.integer("shared_intermediate_size", default=0, low=0),
            correction_bias=fields.flag("use_routing_bias", default=True),
            prefix="block_sparse_moe",
        ),
    )
    frequency = _flags(fields, "moe_layer_freq", layers)
    dense = dense_ffn(hidden, fields.integer("dense_intermediate_size")) if 0 in frequency else routed
    stack = []
    for index in range(layers):
        key = index_dim if indexed[index] else None
        attention = Attention("full", heads, kv, dim, dim, qk_norm=True, index_head_dim=key)
        parts = attention_linears(attention, hidden, qk_norm="head")
        if indexed[index]:
            parts += [
                Linear("mla_index", index_heads * index_dim, hidden, Shard.REPLICATED, module="self_attn.index_q_proj"),
                Linear("mla_index", index_dim, hidden, Shard.REPLICATED, module="self_attn.index_k_proj"),
                norm(index_dim, 2, module="self_attn.index_norm"),
            ]
        block = routed if frequency[index] else dense
        stack.append(Layer(attention, block[0], (norm(hidden, 2), *parts, *block[1])))
    return plain_draft(fields, hidden, stack)


WINDOWED: dict[str, Callable[[Fields], Draft]] = {
    "llama4_text": llama4,
    "gemma4_text": gemma4,
    "mimo_v2_flash": mimo_v2,
    "step3p7": step3p7,
    "step3p7_text": step3p7,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
}

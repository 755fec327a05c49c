"""Hybrid models: softmax attention in some layers, a recurrent state in the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, Moe, attention_linears, dense_ffn, moe_ffn, norm
from planner.models.families.decoder import (
    HEADS,
    LAYERS,
    POSITIONS,
    head_dim,
    kv_heads,
    layer_count,
    mtp_layer,
    plain_draft,
)
from planner.models.families.mla import mla_linears, mla_of
from planner.models.families.moe import experts_of
from planner.models.families.recurrent import gated_delta_net, kimi_delta_attention, mamba1, mamba2, rwkv5, state_bytes
from planner.models.fields import LARGEST_LAYERS, Fields
from planner.models.spec import Attention, Ffn, Linear, Mla, RecurrentState, Shard

Block = tuple[Ffn, list[Linear]]


def _types(fields: Fields, key: str, layers: int, known: set[str]) -> list[str]:
    """Layer kinds under ``key``: one of ``known`` for each layer; raises InputError otherwise."""
    kinds = fields.texts(key)
    if len(kinds) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name(key), value=len(kinds))
    unknown = sorted(set(kinds) - known)
    if unknown:
        raise InputError(f"unknown kind of layer; known: {sorted(known)}", field=fields.name(key), value=unknown[0])
    return kinds


def _attention(fields: Fields, hidden: int) -> Attention:
    heads = fields.integer(*HEADS, high=10**5)
    kv = kv_heads(fields, heads, "heads")
    dim = head_dim(fields, hidden, heads)
    return Attention("full", heads, kv, dim, dim)


def qwen3_hybrid(fields: Fields) -> Draft:
    """Qwen3-Next and Qwen3.5: gated delta nets with a gated full attention every fourth layer, dense or routed."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    if fields.has("layer_types"):
        kinds = _types(fields, "layer_types", layers, {"linear_attention", "full_attention"})
    else:
        every = fields.integer("full_attention_interval")
        kinds = ["linear_attention" if (index + 1) % every else "full_attention" for index in range(layers)]
    attention = replace(_attention(fields, hidden), qk_norm=True)
    gated = fields.flag("attn_output_gate", default=True)
    full = attention_linears(attention, hidden, qk_norm="head", gated=gated)
    state, linear = gated_delta_net(fields, hidden) if "linear_attention" in kinds else (None, [])
    block = _qwen_block(fields, hidden)
    stack = []
    for kind in kinds:
        mixer, parts = (attention, full) if kind == "full_attention" else (state, linear)
        stack.append(Layer(mixer, block[0], (norm(hidden, 2), *parts, *block[1])))
    draft = plain_draft(fields, hidden, stack)
    heads = fields.integer("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, low=0, high=64)
    like = Layer(attention, block[0], (norm(hidden, 2), *full, *block[1]))
    draft.mtp = [mtp_layer(like, hidden)] * heads
    return draft


def _qwen_block(fields: Fields, hidden: int) -> Block:
    if not fields.has("num_experts"):
        return dense_ffn(hidden, fields.integer("intermediate_size"))
    experts, per_token = experts_of(fields)
    shared = fields.integer("shared_expert_intermediate_size", default=0, low=0)
    return moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("moe_intermediate_size"),
            shared=shared,
            shared_gate=shared > 0,
            shared_prefix="shared_expert",
        ),
    )


def kimi_linear(fields: Fields) -> Draft:
    """Kimi Linear and K3: delta attention, every fourth layer latent attention; K3's experts work in a latent space."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    config = fields.child("linear_attn_config")
    if config is None:
        raise InputError("is missing from the model's configuration", field=fields.name("linear_attn_config"))
    full = set(config.ints("full_attn_layers"))
    state, delta = kimi_delta_attention(fields, hidden)
    mla = mla_of(fields)
    latent = mla_linears(mla, hidden, output_gate=fields.flag("mla_use_output_gate", default=False))
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    narrow = fields.integer("routed_expert_hidden_size", default=0, low=0)
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=width,
            shared=width * fields.integer("num_shared_experts", default=0, low=0, high=1000),
            correction_bias=True,
            latent=narrow,
        ),
    )
    first = fields.integer("first_k_dense_replace", default=0, low=0)
    dense = dense_ffn(hidden, fields.integer("intermediate_size")) if first else routed
    stack = []
    for index in range(layers):
        mixer: Mla | RecurrentState = mla if index + 1 in full else state  # the lists count from one
        parts = latent if index + 1 in full else delta
        block = dense if index < first else routed
        stack.append(Layer(mixer, block[0], (norm(hidden, 2), *parts, *block[1])))
    draft = plain_draft(fields, hidden, stack)
    if narrow:
        draft.notes.append("Latent projections of the experts and output gates are sized by their field names.")
    return draft


_NEMOTRON_KINDS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h(fields: Fields) -> Draft:
    """Nemotron-H and Nemotron 3: every layer is one block, a Mamba 2 mixer, attention, experts or a dense MLP."""
    hidden = fields.integer("hidden_size")
    kinds = _nemotron_kinds(fields)
    builders: dict[str, Callable[[], Layer]] = {
        "mamba": lambda: _nemotron_mamba(fields, hidden),
        "attention": lambda: _nemotron_attention(fields, hidden),
        "moe": lambda: _nemotron_moe(fields, hidden),
        "mlp": lambda: _nemotron_mlp(fields, hidden),
    }
    made = {kind: builders[kind]() for kind in set(kinds)}
    draft = plain_draft(fields, hidden, [made[kind] for kind in kinds])
    draft.layer_path = "backbone.layers.{}"
    heads = fields.integer("num_nextn_predict_layers", default=0, low=0, high=64)
    if heads:
        parts = [kind for kind in ("attention", "moe") if kind in made]
        one = [made[kind] for kind in parts]
        one[0] = mtp_layer(one[0], hidden)
        draft.mtp = one * heads
        draft.mtp_layers = heads
    return draft


def _nemotron_kinds(fields: Fields) -> list[str]:
    if fields.has("layers_block_type"):
        layers = len(fields.texts("layers_block_type"))
        stated = fields.optional_int(*LAYERS, high=LARGEST_LAYERS)
        if not 0 < layers <= LARGEST_LAYERS or (stated is not None and stated != layers):
            raise InputError("must name every layer", field=fields.name("layers_block_type"), value=layers)
        return _types(fields, "layers_block_type", layers, set(_NEMOTRON_KINDS.values()))
    layers = layer_count(fields)
    pattern = fields.text("hybrid_override_pattern")
    if len(pattern) != layers or set(pattern) - set(_NEMOTRON_KINDS):
        raise InputError(
            f"must have {layers} characters of {''.join(_NEMOTRON_KINDS)}",
            field=fields.name("hybrid_override_pattern"),
            value=pattern,
        )
    return [_NEMOTRON_KINDS[char] for char in pattern]


def _nemotron_mamba(fields: Fields, hidden: int) -> Layer:
    state, linears = mamba2(
        hidden,
        heads=fields.integer("mamba_num_heads", high=10**5),
        head_dim=fields.integer("mamba_head_dim", high=10**5),
        state_size=fields.integer("ssm_state_size", high=10**5),
        groups=fields.integer("n_groups", high=10**5),
        kernel=fields.integer("conv_kernel", high=1000),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias", default=False),
        bytes_per_state=state_bytes(fields, "mamba_ssm_cache_dtype"),
        prefix="mixer",
    )
    return Layer(state, None, (norm(hidden), *linears))


def _nemotron_attention(fields: Fields, hidden: int) -> Layer:
    heads = fields.integer(*HEADS, high=10**5)
    dim = fields.optional_int("attention_head_dim", "head_dim", high=10**5) or head_dim(fields, hidden, heads)
    attention = Attention("full", heads, kv_heads(fields, heads, ""), dim, dim)
    return Layer(attention, None, (norm(hidden), *attention_linears(attention, hidden, prefix="mixer")))


def _nemotron_moe(fields: Fields, hidden: int) -> Layer:
    experts, per_token = experts_of(fields)
    ffn, linears = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("moe_intermediate_size"),
            shared=fields.integer("moe_shared_expert_intermediate_size", default=0, low=0),
            gated=False,
            correction_bias=True,
            latent=fields.integer("moe_latent_size", default=0, low=0),
            prefix="mixer",
        ),
    )
    return Layer(None, ffn, (norm(hidden), *linears))


def _nemotron_mlp(fields: Fields, hidden: int) -> Layer:
    ffn, linears = dense_ffn(hidden, fields.integer("intermediate_size"), gated=False, prefix="mixer")
    return Layer(None, ffn, (norm(hidden), *linears))


def granite_hybrid(fields: Fields) -> Draft:
    """Granite 4.0 H: Mamba 2 or attention, then routed experts beside a shared MLP in every layer."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    key = "layers_block_type" if fields.has("layers_block_type") else "layer_types"
    kinds = _types(fields, key, layers, {"mamba", "attention", "linear_attention", "full_attention"})
    heads = fields.integer("mamba_n_heads", high=10**5)
    inner = fields.integer("mamba_expand", high=1000) * hidden
    if inner % heads:
        raise InputError("must divide the inner width", field=fields.name("mamba_n_heads"), value=heads)
    state, mamba = mamba2(
        hidden,
        heads=heads,
        head_dim=inner // heads,
        state_size=fields.integer("mamba_d_state", high=10**5),
        groups=fields.integer("mamba_n_groups", high=10**5),
        kernel=fields.integer("mamba_d_conv", high=1000),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        bytes_per_state=4,
        prefix="mamba",
    )
    attention = _attention(fields, hidden)
    shared = fields.integer("shared_intermediate_size")
    if fields.integer("num_local_experts", default=0, low=0):
        experts, per_token = experts_of(fields)
        block = moe_ffn(
            hidden,
            Moe(
                experts=experts,
                per_token=per_token,
                intermediate=fields.integer("intermediate_size"),
                shared=shared,
                prefix="block_sparse_moe",
                router="router",
            ),
        )
    else:
        block = dense_ffn(hidden, shared, prefix="shared_mlp")
    stack = []
    for kind in kinds:
        recurrent = kind in ("mamba", "linear_attention")
        parts = mamba if recurrent else attention_linears(attention, hidden)
        stack.append(Layer(state if recurrent else attention, block[0], (norm(hidden, 2), *parts, *block[1])))
    return plain_draft(fields, hidden, stack)


def jamba(fields: Fields) -> Draft:
    """Jamba: Mamba 1 with attention every ``attn_layer_period`` layers, experts every ``expert_layer_period``."""
    hidden = fields.integer("hidden_size")
    experts, per_token = experts_of(fields)
    width = fields.integer("intermediate_size")
    routed = moe_ffn(
        hidden, Moe(experts=experts, per_token=per_token, intermediate=width, prefix="feed_forward", router="router")
    )
    dense = dense_ffn(hidden, width, prefix="feed_forward")
    attention = _attention(fields, hidden)
    state, mamba = mamba1(fields, hidden)
    attention_every, attention_first = _period(fields, "attn_layer")
    expert_every, expert_first = _period(fields, "expert_layer")
    stack = []
    for index in range(layer_count(fields)):
        full = index % attention_every == attention_first
        parts = attention_linears(attention, hidden) if full else mamba
        block = routed if experts > 1 and index % expert_every == expert_first else dense
        stack.append(Layer(attention if full else state, block[0], (norm(hidden, 2), *parts, *block[1])))
    return plain_draft(fields, hidden, stack)


def _period(fields: Fields, name: str) -> tuple[int, int]:
    every = fields.integer(f"{name}_period", high=LARGEST_LAYERS)
    return every, fields.integer(f"{name}_offset", low=0, high=every - 1)


def rwkv(fields: Fields) -> Draft:
    """RWKV 5: time mixing and channel mixing in every layer, layer norms with bias."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    state, mixing = rwkv5(fields, hidden)
    width = fields.integer("intermediate_size", default=int(hidden * 3.5) // 32 * 32)
    channel = [
        Linear("gate_up", width, hidden, Shard.COLUMN, module="feed_forward.key"),
        Linear("other", hidden, hidden, Shard.REPLICATED, module="feed_forward.receptance"),
        Linear("down", hidden, width, Shard.ROW, module="feed_forward.value"),
        norm(hidden, 2, module="feed_forward.time_mix"),
    ]
    layer = Layer(state, Ffn(width, gated=False), (norm(hidden, 2, bias=True), *mixing, *channel))
    return Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=fields.integer("context_length", *POSITIONS),
        layers=[layer] * layers,
        tied=fields.flag("tie_word_embeddings", default=False),
        extra=[norm(hidden, 2, bias=True, module="ln_out")],
        layer_path="rwkv.blocks.{}",
    )


HYBRID: dict[str, Callable[[Fields], Draft]] = {
    "qwen3_next": qwen3_hybrid,
    "qwen3_5_text": qwen3_hybrid,
    "qwen3_5_moe_text": qwen3_hybrid,
    "kimi_linear": kimi_linear,
    "nemotron_h": nemotron_h,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "rwkv5": rwkv,
}

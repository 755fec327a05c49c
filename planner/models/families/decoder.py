"""Transformer decoders built from one recipe: attention, then a dense or routed feed-forward block in each layer.

``Traits`` says how a family differs from Llama; the tables of ``dense.py`` and ``moe.py`` hold one row per family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, Moe, attention_linears, dense_ffn, moe_ffn, norm
from planner.models.fields import LARGEST_LAYERS, Fields, divide
from planner.models.spec import Attention, Ffn, Linear, Shard

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "n_ctx")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("vocab_size", "padded_vocab_size")


@dataclass(frozen=True, slots=True)
class Traits:
    """How a family differs from Llama. None for a bias: the config's ``attention_bias`` or ``mlp_bias`` decides.

    ``kv_default``: what an absent number of KV heads means in the family's own configuration class ("heads", or "" when
    it must be stated). ``windows(fields, layers)``: the sliding window of each layer, None for full attention;
    ``routed(fields, layers)``: the routed block of each layer, None for a dense one.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    qk_norm_switch: bool = False  # only where the config says ``use_qk_norm``
    tied: bool = False
    kv_default: str = ""
    head_bias: bool = False
    learned_positions: int | None = None  # extra rows of a learned position table; None: rotary or none
    intermediate_factor: int = 0  # intermediate = factor x hidden when the config leaves it out
    final_norm: bool = True
    embedding_norm: bool = False
    sinks: bool = False
    windows: Callable[[Fields, int], list[int | None]] | None = None
    routed: Callable[[Fields, int], list[Moe | None]] | None = None
    mtp: tuple[str, ...] = ()


def head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """``head_dim`` of the config, or hidden / heads; InputError when that leaves a remainder."""
    stated = fields.optional_int("head_dim", high=10**5)
    return stated or divide(fields, HEADS[0], hidden, heads, "hidden size by heads")


def kv_heads(fields: Fields, heads: int, traits_default: str) -> int:
    """Number of KV heads; it must divide the number of query heads."""
    value = fields.integer(*KV_HEADS, default=heads) if traits_default == "heads" else fields.integer(*KV_HEADS)
    if value > heads or heads % value:
        raise InputError("must divide the number of attention heads", field=fields.name(KV_HEADS[0]), value=value)
    return value


def layer_count(fields: Fields) -> int:
    """Number of layers, at most 2000."""
    return fields.integer(*LAYERS, high=LARGEST_LAYERS)


def windows_by_type(fields: Fields, layers: int) -> list[int | None]:
    """The window of each layer from ``layer_types``; raises InputError when its length is not the number of layers."""
    types = fields.texts("layer_types")
    if not types:
        return [None] * layers
    if len(types) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name("layer_types"), value=len(types))
    if "sliding_attention" not in types:
        return [None] * layers
    window = fields.integer("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in types]


def build(fields: Fields, traits: Traits) -> Draft:
    """Build a model of the family that ``traits`` describes."""
    hidden = fields.integer(*HIDDEN)
    layers = layer_count(fields)
    heads = fields.integer(*HEADS, high=10**5)
    kv = kv_heads(fields, heads, traits.kv_default)
    dim = head_dim(fields, hidden, heads)
    positions = fields.integer(*POSITIONS)
    attention_bias = fields.flag("attention_bias", "use_bias", "use_qkv_bias", "bias", default=False)
    mlp_bias = fields.flag("mlp_bias", "use_bias", "bias", default=False)
    qkv_bias = attention_bias if traits.qkv_bias is None else traits.qkv_bias
    o_bias = attention_bias if traits.o_bias is None else traits.o_bias
    windows = traits.windows(fields, layers) if traits.windows else [None] * layers
    routed: list[Moe | None] = traits.routed(fields, layers) if traits.routed else [None] * layers
    intermediate = _intermediate(fields, hidden, traits) if None in routed else 0
    qk_norm = traits.qk_norm
    if traits.qk_norm_switch and not fields.flag("use_qk_norm", default=False):
        qk_norm = ""

    stack = []
    for window, moe in zip(windows, routed, strict=True):
        limited = window is not None and window < positions
        attention = Attention(
            "sliding" if limited else "full", heads, kv, dim, dim, window if limited else None, bool(qk_norm)
        )
        linears = [norm(hidden, traits.norms, bias=traits.norm_bias)] if traits.norms else []
        linears += attention_linears(attention, hidden, qkv_bias=qkv_bias, o_bias=o_bias, qk_norm=qk_norm)
        if traits.sinks:
            linears.append(Linear("norm", heads, 1, Shard.REPLICATED, module="self_attn.sinks"))
        ffn, ffn_linears = feed_forward(
            hidden, moe, intermediate, traits.gated, mlp_bias if traits.mlp_bias is None else traits.mlp_bias
        )
        stack.append(Layer(attention, ffn, (*linears, *ffn_linears)))

    draft = Draft(
        hidden=hidden,
        vocab=fields.integer(*VOCAB),
        max_position=positions,
        layers=stack,
        tied=fields.flag("tie_word_embeddings", default=traits.tied),
    )
    if traits.final_norm:
        draft.extra.append(norm(hidden, bias=traits.norm_bias, module="model.norm"))
    if traits.embedding_norm:
        draft.extra.append(norm(hidden, bias=traits.norm_bias, module="embedding_norm"))
    if traits.head_bias:
        draft.extra.append(Linear("other", draft.vocab, 1, Shard.VOCAB, module="lm_head.bias"))
    if traits.learned_positions is not None:
        rows = positions + traits.learned_positions
        draft.extra.append(Linear("embed", rows, hidden, Shard.REPLICATED, module="embed_positions"))
    extra_layers = fields.optional_int(*traits.mtp, low=0, high=64) if traits.mtp else 0
    if extra_layers:
        draft.mtp = [mtp_layer(stack[-1], hidden)] * extra_layers
    return draft


def feed_forward(hidden: int, moe: Moe | None, intermediate: int, gated: bool, bias: bool) -> tuple[Ffn, list[Linear]]:
    """The dense block, or the routed one when ``moe`` is given."""
    if moe is None:
        return dense_ffn(hidden, intermediate, gated=gated, bias=bias)
    return moe_ffn(hidden, moe)


def plain_draft(fields: Fields, hidden: int, layers: list[Layer], *, tied: bool = False) -> Draft:
    """``layers`` between an embedding and a last norm, under the usual names of the configuration."""
    return Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=fields.integer(*POSITIONS),
        layers=layers,
        tied=fields.flag("tie_word_embeddings", default=tied),
        extra=[norm(hidden, module="model.norm")],
    )


def mtp_layer(like: Layer, hidden: int) -> Layer:
    """A multi-token-prediction layer: one decoder layer, the projection of two hidden states, and three norms."""
    projection = Linear("other", hidden, 2 * hidden, Shard.REPLICATED, module="eh_proj")
    return Layer(like.mixer, like.ffn, (*like.linears, projection, norm(hidden, 3, module="mtp_norm")))


def _intermediate(fields: Fields, hidden: int, traits: Traits) -> int:
    if traits.intermediate_factor:
        return fields.integer(*INTERMEDIATE, default=traits.intermediate_factor * hidden)
    return fields.integer(*INTERMEDIATE)

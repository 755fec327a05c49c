"""Weight matrices of the building blocks that model families share.

Sizes follow the checkpoint, merged as the engines merge them for one GEMM: K with V, gate with up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.models.spec import (
    Attention,
    Ffn,
    LayerGroup,
    Linear,
    Mla,
    RecurrentState,
    Shard,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as a family describes it."""

    mixer: Attention | Mla | RecurrentState | None
    ffn: Ffn | None
    linears: tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts of one layer, their router, and ``shared`` intermediate width that every token passes.

    ``correction_bias`` is a per-expert routing bias outside the router's product; ``shared_gate`` a scalar gate of the
    shared expert; ``latent`` > 0 lets experts work in a narrower space with projections in and out.
    """

    experts: int
    per_token: int
    intermediate: int
    shared: int = 0
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    shared_gate: bool = False
    latent: int = 0
    prefix: str = "mlp"
    router: str = "gate"
    shared_prefix: str = "shared_experts"


@dataclass(slots=True)
class Draft:
    """A model before quantisation is applied. ``layer_path``: the checkpoint's prefix of a layer, ``{}`` its index."""

    hidden: int
    vocab: int
    max_position: int
    layers: list[Layer]
    tied: bool
    lm_head: bool = True
    embedding: Linear | None = None
    extra: list[Linear] = field(default_factory=list)
    mtp: list[Layer] = field(default_factory=list)
    mtp_layers: int | None = None  # predicted tokens; None: one for each of ``mtp``
    task: str = "generate"
    layer_path: str = "model.layers.{}"
    notes: list[str] = field(default_factory=list)


def norm(n: int, copies: int = 1, *, bias: bool = False, module: str = "norm") -> Linear:
    """``copies`` normalisation vectors of ``n`` elements."""
    return Linear("norm", n, 1, Shard.REPLICATED, copies, bias=bias, module=module)


def attention_linears(
    attention: Attention,
    hidden: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: str = "",
    shared_kv: bool = False,
    gated: bool = False,
    prefix: str = "self_attn",
) -> list[Linear]:
    """Q, K+V, output projections of softmax attention, and its query/key norms.

    ``qk_norm``: "" none, "head" one vector of head_dim each, "all" one over all heads. ``shared_kv``: V reuses K's
    weights.
    ``gated``: the Q projection also makes an output gate of the same width.
    """
    q_width = attention.heads * attention.head_dim
    v_out = attention.heads * attention.v_head_dim
    kv_width = attention.kv_heads * (attention.head_dim + (0 if shared_kv else attention.v_head_dim))
    linears = [
        Linear(
            "q",
            q_width + (v_out if gated else 0),
            hidden,
            Shard.COLUMN,
            bias=qkv_bias,
            module=f"{prefix}.q_proj|{prefix}.qkv_proj",
        ),
        Linear(
            "kv",
            kv_width,
            hidden,
            Shard.KV_COLUMN,
            bias=qkv_bias,
            module=f"{prefix}.k_proj|{prefix}.v_proj|{prefix}.qkv_proj",
        ),
        Linear("o", hidden, v_out, Shard.ROW, bias=o_bias, module=f"{prefix}.o_proj"),
    ]
    if qk_norm == "head":
        linears.append(norm(attention.head_dim, 2, module=f"{prefix}.qk_norm"))
    elif qk_norm == "all":
        linears.append(norm(q_width, module=f"{prefix}.q_norm"))
        linears.append(norm(attention.kv_heads * attention.head_dim, module=f"{prefix}.k_norm"))
    return linears


def dense_ffn(
    hidden: int, intermediate: int, *, gated: bool = True, bias: bool = False, prefix: str = "mlp"
) -> tuple[Ffn, list[Linear]]:
    """A feed-forward block: gate+up (or up alone) and down."""
    width = intermediate * (2 if gated else 1)
    up = f"{prefix}.gate_proj|{prefix}.up_proj|{prefix}.gate_up_proj"
    return Ffn(intermediate, gated), [
        Linear("gate_up", width, hidden, Shard.COLUMN, bias=bias, module=up),
        Linear("down", hidden, intermediate, Shard.ROW, bias=bias, module=f"{prefix}.down_proj"),
    ]


def moe_ffn(hidden: int, moe: Moe) -> tuple[Ffn, list[Linear]]:
    """Routed experts, their router, and what every token passes beside them."""
    factor = 2 if moe.gated else 1
    width = moe.latent or hidden
    up = "|".join(f"{moe.prefix}.experts.*.{part}" for part in ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3"))
    down = f"{moe.prefix}.experts.*.down_proj|{moe.prefix}.experts.*.w2"
    linears = [
        Linear(
            "router", moe.experts, hidden, Shard.REPLICATED, bias=moe.router_bias, module=f"{moe.prefix}.{moe.router}"
        ),
        Linear(
            "expert_gate_up",
            factor * moe.intermediate,
            width,
            Shard.EXPERT,
            moe.experts,
            bias=moe.expert_bias,
            module=up,
        ),
        Linear("expert_down", width, moe.intermediate, Shard.EXPERT, moe.experts, bias=moe.expert_bias, module=down),
    ]
    if moe.correction_bias:
        linears.append(
            Linear(
                "norm", moe.experts, 1, Shard.REPLICATED, module=f"{moe.prefix}.{moe.router}.e_score_correction_bias"
            )
        )
    if moe.latent:
        linears.append(Linear("latent", moe.latent, hidden, Shard.REPLICATED, module=f"{moe.prefix}.fc1_latent_proj"))
        linears.append(Linear("latent", hidden, moe.latent, Shard.REPLICATED, module=f"{moe.prefix}.fc2_latent_proj"))
    if moe.shared:
        path = f"{moe.prefix}.{moe.shared_prefix}"
        linears.append(
            Linear(
                "shared_gate_up",
                factor * moe.shared,
                hidden,
                Shard.COLUMN,
                module=f"{path}.gate_proj|{path}.up_proj|{path}.gate_up_proj",
            )
        )
        linears.append(Linear("shared_down", hidden, moe.shared, Shard.ROW, module=f"{path}.down_proj"))
    if moe.shared_gate:
        linears.append(Linear("router", 1, hidden, Shard.REPLICATED, module=f"{moe.prefix}.shared_expert_gate"))
    return Ffn(moe.shared, moe.gated, moe.experts, moe.per_token, moe.intermediate, moe.shared), linears


def group_layers(layers: Iterable[Layer]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Collect equal layers into groups (in order of first appearance) and give the group index of each layer."""
    index: dict[Layer, int] = {}
    counts: list[int] = []
    order: list[int] = []
    for layer in layers:
        position = index.setdefault(layer, len(index))
        if position == len(counts):
            counts.append(0)
        counts[position] += 1
        order.append(position)
    groups = tuple(
        LayerGroup(count, layer.mixer, layer.ffn, layer.linears) for layer, count in zip(index, counts, strict=True)
    )
    return groups, tuple(order)

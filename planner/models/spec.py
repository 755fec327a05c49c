"""What the planner knows of a model: layers, attention, experts, weights and quantisation.

A model is a list of *layer groups*: ``count`` equal layers each. The order of the groups is not the order of layers in
the network; ``ModelSpec.layer_order`` gives that (index into ``groups`` per layer), which pipeline splits need.
Sizes are those of the whole model; dividing by TP, PP and EP is up to the caller (``planner.models.sharding``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Shard(StrEnum):
    """How an engine splits a weight over tensor-parallel ranks."""

    COLUMN = "column"  # output features divided by TP
    KV_COLUMN = "kv_column"  # output features of K/V heads: divided by min(TP, kv_heads), replicated beyond
    ROW = "row"  # input features divided by TP
    EXPERT = "expert"  # divided by EP over experts, or by TP inside each expert
    VOCAB = "vocab"  # vocabulary rows divided by TP
    REPLICATED = "replicated"


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix (or embedding, norm when ``k`` is 1), ``copies`` times in one layer.

    ``n`` output and ``k`` input features of the full model; ``role`` is a stable short name ("q", "kv", "o", "gate_up",
    "down", "expert_gate_up", "expert_down", "shared_gate_up", "shared_down", "router", "embed", "lm_head", "norm",
    "mla_q_a", "mla_q_b", "mla_kv_a", "mla_kv_b", "mla_index", "o_a", "latent", "state_in", "state_out", "conv",
    "other").
    """

    role: str
    n: int
    k: int
    shard: Shard
    copies: int = 1
    bias: bool = False
    quantised: bool = False
    module: str = ""  # checkpoint modules it stands for, relative to the layer (alternatives joined by "|")
    precision: str = ""  # where it differs from ``Quantization.precision`` (mixed checkpoints); empty: as the model

    @property
    def params(self) -> int:
        """Number of parameters, bias included."""
        return self.copies * (self.n * self.k + (self.n if self.bias else 0))


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with a KV cache: full, sliding-window or chunked; also cross and encoder attention."""

    kind: Literal["full", "sliding", "chunked", "cross", "encoder"]
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None  # tokens; the chunk length when kind is "chunked"
    qk_norm: bool = False
    cached: bool = True  # False: the layer reads the K/V of an earlier one and keeps none of its own
    index_head_dim: int | None = None  # block-sparse attention's indexer key, cached beside K and V


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: the cache holds one latent per token, replicated on each TP rank."""

    heads: int
    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_head_dim: int | None = None  # sparse attention's indexer key, cached beside the latent
    index_topk: int | None = None
    window: int | None = None  # latents of the last tokens kept whole (DeepSeek V4); None: of every token
    compress_ratio: int | None = None  # with a window: older tokens keep one latent per this many; None: none


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Linear attention, SSM or RNN layer: a state of fixed size per sequence instead of a KV cache.

    ``conv_elements`` and ``state_elements`` per layer and sequence, whole model (TP divides both).
    """

    kind: str  # "gdn", "kda", "mamba1", "mamba2", "rwkv", "lightning"
    conv_elements: int
    state_elements: int
    heads: int = 0
    head_dim: int = 0
    state_dtype_bytes: int = 4
    conv_dtype_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Ffn:
    """Feed-forward part of a layer. ``experts == 0`` means dense."""

    intermediate: int
    gated: bool
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """``count`` equal layers. ``mixer`` is None for a layer that is only a feed-forward block, ``ffn`` for one
    without.
    """

    count: int
    mixer: Attention | Mla | RecurrentState | None
    ffn: Ffn | None
    linears: tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint (or an online option) stores its quantised linears.

    ``precision`` is the planner's word: bf16, fp16, fp32, fp8, fp8_block, int8, int4, fp4 (nvfp4), mxfp4.
    ``weight_bits`` of stored weights; ``scale_bits_per_weight`` their scales spread over the weights;
    ``activation_bits`` 16 for weight-only methods. ``ignored`` are the module patterns left in ``ModelSpec.dtype``.
    """

    method: str  # "none", "fp8", "compressed-tensors", "modelopt", "awq", "gptq", "mxfp4", "bitsandbytes", ...
    precision: str
    weight_bits: float
    activation_bits: int
    scale_bits_per_weight: float = 0.0
    group_size: int | None = None
    ignored: tuple[str, ...] = ()
    kv_cache_dtype: str | None = None  # what the checkpoint asks for: "fp8" or None
    per_role_bits: tuple[
        tuple[str, float], ...
    ] = ()  # precisions (Linear.precision) and their stored bits, with scales


@dataclass(frozen=True, slots=True)
class VisionEncoder:
    """A multimodal tower: its weights and what one item may cost in language tokens."""

    params: int
    max_tokens_per_item: int | None = None
    hidden: int | None = None


SAME_SHAPE = "whose configuration is used."
"""How the note of a name ends that only says which model's configuration was read for it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, as far as memory and speed are concerned. Built by ``planner.models.parse``."""

    model_id: str
    architecture: str
    model_type: str
    task: Literal["generate", "embed", "classify"]
    hidden: int
    vocab: int
    max_position: int
    dtype: Literal["bf16", "fp16", "fp32"]
    groups: tuple[LayerGroup, ...]
    layer_order: tuple[int, ...]
    embedding: Linear
    lm_head: Linear | None  # None when there is no head (embedding models)
    tied_embeddings: bool
    quantization: Quantization
    vision: VisionEncoder | None = None
    extra_linears: tuple[Linear, ...] = ()  # outside the layers: final norm, position embedding, MTP heads
    mtp_layers: int = 0
    mtp_groups: tuple[LayerGroup, ...] = ()  # multi-token-prediction layers, loaded only for speculative decoding
    rope_cache_elements: int = 0  # cosine/sine tables that engines keep beside the weights, on every rank
    notes: tuple[str, ...] = ()
    config: dict = field(default_factory=dict, compare=False, repr=False)
    """The raw config.json, for engines that need the file itself."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the figures rest on that the files do not say: ``notes`` without where the configuration is from."""
        return tuple(note for note in self.notes if not note.endswith(SAME_SHAPE))

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_order)

    @property
    def total_params(self) -> int:
        """Parameters of the whole model, vision tower included, tied embeddings once, MTP layers left out."""
        body = sum(group.count * sum(linear.params for linear in group.linears) for group in self.groups)
        ends = self.embedding.params + sum(linear.params for linear in self.extra_linears)
        if self.lm_head is not None and not self.tied_embeddings:
            ends += self.lm_head.params
        return body + ends + (self.vision.params if self.vision else 0)

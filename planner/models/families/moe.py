"""Mixture-of-experts decoder families with ordinary attention: one row of ``Traits`` each."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InputError
from planner.models.blocks import Moe
from planner.models.families.decoder import Traits, windows_by_type
from planner.models.fields import Fields

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_topk", "num_experts_per_token", "moe_k")


def experts_of(fields: Fields) -> tuple[int, int]:
    """(experts, experts per token); InputError when a token would pass more experts than there are."""
    experts = fields.integer(*EXPERTS, high=10**5)
    per_token = fields.integer(*PER_TOKEN, high=10**5)
    if per_token > experts:
        raise InputError(f"must not exceed the {experts} experts", field=fields.name(PER_TOKEN[0]), value=per_token)
    return experts, per_token


def _mixtral(fields: Fields, layers: int) -> list[Moe | None]:
    experts, per_token = experts_of(fields)
    moe = Moe(experts, per_token, fields.integer("intermediate_size"), prefix="block_sparse_moe")
    return [moe] * layers


def _qwen_moe(fields: Fields, layers: int) -> list[Moe | None]:
    """Qwen: routed unless in ``mlp_only_layers`` or off ``decoder_sparse_step``; Qwen2 has a gated shared expert."""
    experts, per_token = experts_of(fields)
    shared = fields.integer("shared_expert_intermediate_size", default=0, low=0)
    moe = Moe(
        experts,
        per_token,
        fields.integer("moe_intermediate_size"),
        shared=shared,
        shared_gate=shared > 0,
        shared_prefix="shared_expert",
    )
    dense = set(fields.ints("mlp_only_layers"))
    step = fields.integer("decoder_sparse_step", default=1)
    return [None if index in dense or (index + 1) % step else moe for index in range(layers)]


def _gpt_oss(fields: Fields, layers: int) -> list[Moe | None]:
    experts, per_token = experts_of(fields)
    moe = Moe(
        experts, per_token, fields.integer("intermediate_size"), expert_bias=True, router_bias=True, router="router"
    )
    return [moe] * layers


def _minimax_m2(fields: Fields, layers: int) -> list[Moe | None]:
    experts, per_token = experts_of(fields)
    moe = Moe(
        experts,
        per_token,
        fields.integer("intermediate_size"),
        shared=fields.integer("shared_intermediate_size", default=0, low=0),
        correction_bias=fields.flag("use_routing_bias", default=True),
        prefix="block_sparse_moe",
    )
    return [moe] * layers


def _every_layer(fields: Fields, layers: int) -> list[Moe | None]:
    """Experts of ``intermediate_size`` in every layer (OLMoE, Phi-3.5-MoE, Granite MoE)."""
    experts, per_token = experts_of(fields)
    return [Moe(experts, per_token, fields.integer("intermediate_size"))] * layers


def _ernie_moe(fields: Fields, layers: int) -> list[Moe | None]:
    """Experts in each ``moe_layer_interval``-th layer between a first and a last one."""
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    shared = width * fields.integer("moe_num_shared_experts", default=0, low=0, high=1000)
    moe = Moe(experts, per_token, width, shared=shared, correction_bias=True)
    every = fields.integer("moe_layer_interval", default=1)
    first = fields.integer("moe_layer_start_index", default=0, low=0)
    last = fields.integer("moe_layer_end_index", default=layers - 1, low=-1)
    end = layers - 1 if last < 0 else last
    return [moe if first <= index <= end and (index + 1) % every == 0 else None for index in range(layers)]


def _glm4_moe(fields: Fields, layers: int) -> list[Moe | None]:
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    moe = Moe(
        experts,
        per_token,
        width,
        shared=width * fields.integer("n_shared_experts", default=0, low=0, high=1000),
        correction_bias=True,
    )
    first = fields.integer("first_k_dense_replace", default=0, low=0)
    return [None if index < first else moe for index in range(layers)]


_GLM = Traits(
    o_bias=False,
    mlp_bias=False,
    qk_norm="head",
    qk_norm_switch=True,
    routed=_glm4_moe,
    mtp=("num_nextn_predict_layers",),
)

MOE: dict[str, Traits] = {
    "mixtral": Traits(qkv_bias=False, o_bias=False, routed=_mixtral, kv_default=""),
    "qwen2_moe": Traits(qkv_bias=True, o_bias=False, mlp_bias=False, routed=_qwen_moe),
    "qwen3_moe": Traits(mlp_bias=False, qk_norm="head", routed=_qwen_moe),
    "qwen3_vl_moe_text": Traits(mlp_bias=False, qk_norm="head", routed=_qwen_moe),
    "gpt_oss": Traits(qkv_bias=True, o_bias=True, sinks=True, windows=windows_by_type, routed=_gpt_oss),
    "minimax_m2": Traits(qkv_bias=False, o_bias=False, qk_norm="all", routed=_minimax_m2),
    "glm4_moe": _GLM,
    "glm4v_moe_text": _GLM,
    "dots1": replace(_GLM, o_bias=None, qk_norm_switch=False),
    "olmoe": Traits(qk_norm="all", routed=_every_layer, kv_default="heads"),
    "phimoe": Traits(norm_bias=True, routed=_every_layer, head_bias=True),
    "granitemoe": Traits(routed=_every_layer, kv_default="heads"),
    "ernie4_5_moe": Traits(tied=True, routed=_ernie_moe),
}

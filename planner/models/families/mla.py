"""Multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2, GLM-5."""

from __future__ import annotations

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, Moe, dense_ffn, moe_ffn, norm
from planner.models.families.decoder import HEADS, POSITIONS, layer_count, mtp_layer
from planner.models.families.moe import experts_of
from planner.models.fields import Fields
from planner.models.spec import Ffn, Linear, Mla, Shard


def mla_of(fields: Fields, *, indexed: bool = False) -> Mla:
    """The attention that a DeepSeek-like configuration describes."""
    return Mla(
        heads=fields.integer(*HEADS, high=10**5),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        q_lora_rank=fields.optional_int("q_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
        index_head_dim=fields.integer("index_head_dim") if indexed else None,
        index_topk=fields.integer("index_topk") if indexed else None,
    )


def mla_linears(mla: Mla, hidden: int, *, output_gate: bool = False, prefix: str = "self_attn") -> list[Linear]:
    """Projections of latent attention; the down-projections are on every TP rank."""
    query = mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    value = mla.heads * mla.v_head_dim
    linears = []
    if mla.q_lora_rank is None:
        linears.append(Linear("q", query, hidden, Shard.COLUMN, module=f"{prefix}.q_proj"))
    else:
        rank = mla.q_lora_rank
        linears.append(Linear("mla_q_a", rank, hidden, Shard.REPLICATED, module=f"{prefix}.q_a_proj"))
        linears.append(norm(rank, module=f"{prefix}.q_a_layernorm"))
        linears.append(Linear("mla_q_b", query, rank, Shard.COLUMN, module=f"{prefix}.q_b_proj"))
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    linears += [
        Linear("mla_kv_a", latent, hidden, Shard.REPLICATED, module=f"{prefix}.kv_a_proj_with_mqa"),
        norm(mla.kv_lora_rank, module=f"{prefix}.kv_a_layernorm"),
        Linear(
            "mla_kv_b",
            mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            mla.kv_lora_rank,
            Shard.COLUMN,
            module=f"{prefix}.kv_b_proj",
        ),
        Linear("o", hidden, value, Shard.ROW, module=f"{prefix}.o_proj"),
    ]
    if output_gate:
        linears.append(Linear("q", value, hidden, Shard.COLUMN, module=f"{prefix}.g_proj"))
    return linears


def indexer_linears(fields: Fields, hidden: int, q_rank: int) -> list[Linear]:
    """The lightning indexer of sparse attention: query and key projections, head weights, key norm."""
    heads, dim = fields.integer("index_n_heads", high=10**5), fields.integer("index_head_dim", high=10**5)
    return [
        Linear("mla_index", heads * dim, q_rank, Shard.REPLICATED, module="self_attn.indexer.wq_b"),
        Linear("mla_index", dim, hidden, Shard.REPLICATED, module="self_attn.indexer.wk"),
        Linear("other", heads, hidden, Shard.REPLICATED, module="self_attn.indexer.weights_proj"),
        norm(dim, bias=True, module="self_attn.indexer.k_norm"),
    ]


def deepseek(fields: Fields) -> Draft:
    """DeepSeek V2/V3/V3.2 and what shares their layout: dense first layers, then routed and shared experts."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    routed = moe_ffn(
        hidden,
        Moe(
            experts=experts,
            per_token=per_token,
            intermediate=width,
            shared=width * fields.integer("n_shared_experts", default=0, low=0, high=1000),
            correction_bias=fields.text("topk_method") == "noaux_tc",
        ),
    )
    first = fields.integer("first_k_dense_replace", default=0, low=0)
    every = fields.integer("moe_layer_freq", default=1)
    dense = dense_ffn(hidden, fields.integer("intermediate_size")) if first or every > 1 else None
    indexers = _indexers(fields, layers)
    stack = []
    for index in range(layers):
        mla = mla_of(fields, indexed=indexers[index])
        linears = [norm(hidden, 2), *mla_linears(mla, hidden)]
        if indexers[index]:
            linears += indexer_linears(fields, hidden, fields.integer("q_lora_rank"))
        block: tuple[Ffn, list[Linear]] = routed
        if dense is not None and (index < first or index % every):
            block = dense
        stack.append(Layer(mla, block[0], (*linears, *block[1])))
    draft = Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=fields.integer(*POSITIONS),
        layers=stack,
        tied=fields.flag("tie_word_embeddings", default=False),
        extra=[norm(hidden, module="model.norm")],
    )
    draft.mtp = [mtp_layer(stack[-1], hidden)] * fields.integer("num_nextn_predict_layers", default=0, low=0, high=64)
    return draft


def _indexers(fields: Fields, layers: int) -> list[bool]:
    """Which layers own an indexer; "shared" ones reuse the selection of an earlier layer."""
    if not fields.has("index_topk"):
        return [False] * layers
    types = fields.texts("indexer_types")
    if not types:
        return [True] * layers
    if len(types) != layers:
        raise InputError(f"must name {layers} layers", field=fields.name("indexer_types"), value=len(types))
    return [kind == "full" for kind in types]


MLA = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "kimi_k2": deepseek,
    "glm_moe_dsa": deepseek,
    "glm4_moe_lite": deepseek,
}

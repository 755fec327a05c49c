"""DeepSeek V4: one shared K/V head, compressed sparse attention, hyper-connections, hash-routed first layers.

Layout as in the reference implementation of Hugging Face transformers (``deepseek_v4``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InputError
from planner.models.blocks import Draft, Layer, Moe, moe_ffn, norm
from planner.models.families.decoder import HEADS, POSITIONS, layer_count, mtp_layer
from planner.models.families.moe import experts_of
from planner.models.fields import Fields, divide
from planner.models.spec import Linear, Mla, Shard

_SPARSE_RATIO = 4
"""The compression ratio of layers that also select entries with an indexer."""


def deepseek_v4(fields: Fields) -> Draft:
    """Build DeepSeek V4 from its configuration; ``compress_ratios`` 0 means a sliding window alone."""
    hidden = fields.integer("hidden_size")
    layers = layer_count(fields)
    experts, per_token = experts_of(fields)
    width = fields.integer("moe_intermediate_size")
    hashed = fields.integer("num_hash_layers", default=0, low=0)
    ratios = fields.ints("compress_ratios", high=10**6)
    if len(ratios) < layers:
        raise InputError(f"must name {layers} layers", field=fields.name("compress_ratios"), value=len(ratios))
    precision = _expert_precision(fields)
    stack = []
    for index in range(layers):
        mixer, linears = _attention(fields, hidden, ratios[index])
        ffn, ffn_linears = moe_ffn(
            hidden,
            Moe(
                experts=experts,
                per_token=per_token,
                intermediate=width,
                shared=width * fields.integer("n_shared_experts", default=0, low=0, high=1000),
                correction_bias=index >= hashed,
                prefix="ffn",
            ),
        )
        ffn_linears = [
            replace(linear, precision=precision) if linear.shard is Shard.EXPERT else linear for linear in ffn_linears
        ]
        parts = (norm(hidden, 2), *linears, *ffn_linears, *_hyper_connection(fields, hidden, 2))
        stack.append(Layer(mixer, ffn, parts))
    multiple = fields.integer("hc_mult", default=1, high=64)
    head = [norm(hidden, module="norm")]
    if multiple > 1:
        head.append(Linear("other", multiple, multiple * hidden, Shard.REPLICATED, bias=True, module="hc_head"))
    draft = Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=fields.integer(*POSITIONS),
        layers=stack,
        tied=fields.flag("tie_word_embeddings", default=False),
        extra=head,
        layer_path="layers.{}",
    )
    draft.mtp = [mtp_layer(stack[-1], hidden)] * fields.integer("num_nextn_predict_layers", default=0, low=0, high=64)
    return draft


def _expert_precision(fields: Fields) -> str:
    kind = fields.text("expert_dtype")
    if kind not in ("", "fp4", "fp8"):
        raise InputError("must be fp4 or fp8", field=fields.name("expert_dtype"), value=kind)
    return "mxfp4" if kind == "fp4" else ""


def _attention(fields: Fields, hidden: int, ratio: int) -> tuple[Mla, list[Linear]]:
    heads = fields.integer(*HEADS, high=10**5)
    dim = fields.integer("head_dim", high=10**5)
    rope = fields.integer("qk_rope_head_dim", high=dim)
    q_rank = fields.integer("q_lora_rank")
    groups, o_rank = fields.integer("o_groups", high=10**5), fields.integer("o_lora_rank")
    sparse = ratio == _SPARSE_RATIO
    index_dim = fields.integer("index_head_dim", high=10**5) if sparse else None
    mixer = Mla(
        heads=heads,
        kv_lora_rank=dim - rope,
        q_lora_rank=q_rank,
        qk_nope_head_dim=dim - rope,
        qk_rope_head_dim=rope,
        v_head_dim=dim,
        index_head_dim=index_dim,
        index_topk=fields.integer("index_topk") if sparse else None,
        window=fields.integer("sliding_window"),
        compress_ratio=ratio or None,
    )
    group_width = divide(fields, "o_groups", heads * dim, groups, "attention width by output groups")
    linears = [
        Linear("mla_q_a", q_rank, hidden, Shard.REPLICATED, module="attn.wq_a"),
        Linear("mla_q_b", heads * dim, q_rank, Shard.COLUMN, module="attn.wq_b"),
        Linear("mla_kv_a", dim, hidden, Shard.REPLICATED, module="attn.wkv"),
        Linear("o_a", groups * o_rank, group_width, Shard.COLUMN, module="attn.wo_a"),
        Linear("o", hidden, groups * o_rank, Shard.ROW, module="attn.wo_b"),
        norm(q_rank, module="attn.q_norm"),
        norm(dim, module="attn.kv_norm"),
        Linear("norm", heads, 1, Shard.REPLICATED, module="attn.attn_sink"),
    ]
    if ratio:
        linears += _compressor(hidden, dim * (2 if sparse else 1), dim, ratio, "attn.compressor")
    if sparse and index_dim is not None:
        index_heads = fields.integer("index_n_heads", high=10**5)
        linears += [
            Linear("mla_index", index_heads * index_dim, q_rank, Shard.REPLICATED, module="attn.indexer.wq_b"),
            Linear("other", index_heads, hidden, Shard.REPLICATED, module="attn.indexer.weights_proj"),
            *_compressor(hidden, 2 * index_dim, index_dim, ratio, "attn.indexer.compressor"),
        ]
    return mixer, linears


def _compressor(hidden: int, width: int, dim: int, ratio: int, module: str) -> list[Linear]:
    """Key/value and gate projections, position bias and norm of a compressor."""
    return [
        Linear("other", 2 * width, hidden, Shard.REPLICATED, module=f"{module}.wkv_gate"),
        Linear("norm", ratio * width, 1, Shard.REPLICATED, module=f"{module}.ape"),
        norm(dim, module=f"{module}.norm"),
    ]


def _hyper_connection(fields: Fields, hidden: int, copies: int) -> list[Linear]:
    """Mixing weights of ``hc_mult`` residual streams: (2 + m) m outputs from m x hidden."""
    multiple = fields.integer("hc_mult", default=1, high=64)
    if multiple == 1:
        return []
    outputs = (2 + multiple) * multiple
    return [
        Linear("other", outputs, multiple * hidden, Shard.REPLICATED, copies, bias=True, module="hc"),
        Linear("norm", 3, 1, Shard.REPLICATED, copies, module="hc_scale"),
    ]


DEEPSEEK_V4 = {"deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4}

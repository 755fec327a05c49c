"""Encoders that embed or classify: BERT, RoBERTa, XLM-RoBERTa."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.errors import UnsupportedError
from planner.models.blocks import Draft, Layer, attention_linears, dense_ffn, norm
from planner.models.families.decoder import HEADS, head_dim, layer_count
from planner.models.fields import Fields
from planner.models.spec import Attention, Linear, Shard


def bert(fields: Fields, *, padding: int = 0) -> Draft:
    """BERT-like encoder; ``padding`` positions at the start of the table hold no token (2 in RoBERTa).

    The head follows the architecture's name: a pooler for ``...Model``, a classifier for
    ``...ForSequenceClassification``. Raises UnsupportedError for other heads.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer(*HEADS, high=10**5)
    dim = head_dim(fields, hidden, heads)
    attention = Attention("encoder", heads, heads, dim, dim)
    parts = attention_linears(attention, hidden, qkv_bias=True, o_bias=True, prefix="attention")
    ffn, mlp = dense_ffn(hidden, fields.integer("intermediate_size"), gated=False, bias=True, prefix="intermediate")
    layer = Layer(attention, ffn, (norm(hidden, 2, bias=True), *parts, *mlp))
    rows = fields.integer("max_position_embeddings")
    types = fields.integer("type_vocab_size", default=2, low=0)
    extra = [
        Linear("embed", rows, hidden, Shard.REPLICATED, module="embeddings.position_embeddings"),
        norm(hidden, bias=True, module="embeddings.LayerNorm"),
    ]
    if types:
        extra.append(Linear("embed", types, hidden, Shard.REPLICATED, module="embeddings.token_type_embeddings"))
    names = fields.texts("architectures")
    head = names[0] if names else "Model"
    if head.endswith("ForSequenceClassification"):
        task = "classify"
        labels = labels_of(fields)
        extra.append(Linear("other", hidden, hidden, Shard.REPLICATED, bias=True, module="classifier.dense"))
        extra.append(Linear("other", labels, hidden, Shard.REPLICATED, bias=True, module="classifier.out_proj"))
    elif head.endswith("Model"):
        task = "embed"
        extra.append(Linear("other", hidden, hidden, Shard.REPLICATED, bias=True, module="pooler.dense"))
    else:
        raise UnsupportedError(
            "encoders serve as embedding (…Model) or classification (…ForSequenceClassification) models",
            field="architectures",
            value=head,
        )
    return Draft(
        hidden=hidden,
        vocab=fields.integer("vocab_size"),
        max_position=max(rows - padding, 1),
        layers=[layer] * layer_count(fields),
        tied=False,
        lm_head=False,
        extra=extra,
        task=task,
        layer_path="encoder.layer.{}",
    )


def labels_of(fields: Fields) -> int:
    """Classes that a classifier tells apart: ``num_labels``, else as many as ``id2label`` names, else one."""
    labels = fields.child("id2label")
    named = len(labels.data) if labels is not None and labels.data else 1
    return fields.integer("num_labels", default=named, high=10**6)


ENCODERS: dict[str, Callable[[Fields], Draft]] = {
    "bert": bert,
    "roberta": partial(bert, padding=2),
    "xlm-roberta": partial(bert, padding=2),
}

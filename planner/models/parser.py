"""config.json -> ModelSpec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from planner.errors import InputError, UnsupportedError
from planner.models.blocks import group_layers
from planner.models.families import DEFAULTS, FAMILIES, LEAVES_OUT_DEFAULTS, NESTED_DEFAULTS
from planner.models.families.encoders import labels_of
from planner.models.fields import Fields
from planner.models.marking import Marker, relabel, relabelled, settle
from planner.models.quantization import parse_quantization
from planner.models.rope import rope_cache_elements
from planner.models.spec import Linear, ModelSpec, Shard
from planner.models.vision import vision_of

_DTYPES = {
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "torch.float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "torch.float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
}


_BODIES = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "Gemma2Model"})
"""Decoders without a head: vLLM's pooling models (docs/models/pooling_models)."""


_NAMED_PRECISIONS = {
    "nvfp4": "fp4",
    "fp4": "fp4",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "w8a8": "int8",
}


def parse(config: dict[str, Any], *, model_id: str, quant_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """Build the specification of a model from its configuration alone.

    ``quant_config`` is ModelOpt's hf_quant_config.json, if the checkpoint has one. Dimensions of a multimodal model's
    language part come from its nested configuration only. Raises InputError naming a field that is missing, malformed
    or absurd, UnsupportedError for an architecture or quantisation method that is not known.
    """
    if not isinstance(config, Mapping):
        raise InputError("must be an object", field="config", value=config)
    if quant_config is not None and not isinstance(quant_config, Mapping):
        raise InputError("must be an object", field="hf_quant_config", value=quant_config)
    root = Fields(config)
    architecture = _architecture(root)
    nested = root.child("text_config", "language_config", "llm_config")
    language = nested or root
    family = _family(root, language, architecture)
    language.defaults = DEFAULTS.get(family, {})
    if nested is not None and root.text("model_type") in LEAVES_OUT_DEFAULTS:
        language.defaults = {**language.defaults, **_left_out(nested, family)}
    draft = FAMILIES[family](language)
    if nested is not None:
        draft.tied = root.flag("tie_word_embeddings", default=draft.tied) or draft.tied
    if draft.task == "generate" and "embedding" in _words(model_id):
        draft.task, draft.lm_head, draft.tied = "embed", False, False
        draft.notes.append("Served as an embedding model, as its name says: without the language-model head.")
    elif draft.task == "generate" and architecture in _BODIES:
        draft.task, draft.lm_head, draft.tied = "embed", False, False
        draft.notes.append(f"Served as an embedding model, as {architecture} has no language-model head.")
    elif draft.task == "generate" and architecture.endswith("ForSequenceClassification"):
        draft.task, draft.lm_head, draft.tied = "classify", False, False
        labels = labels_of(root)
        draft.extra.append(Linear("other", labels, draft.hidden, Shard.REPLICATED, module="score"))
    scheme = parse_quantization(root, language, quant_config)
    marker = Marker(scheme)
    layers = [marker.layer(layer, draft.layer_path.format(index)) for index, layer in enumerate(draft.layers)]
    mtp = [marker.layer(layer, draft.layer_path.format(len(layers) + i)) for i, layer in enumerate(draft.mtp)]
    quantization = settle(scheme, [(1, linear) for layer in layers for linear in layer.linears])
    former = scheme.quantization.precision
    if quantization.precision != former:
        layers = [relabel(layer, former, quantization.precision) for layer in layers]
        mtp = [relabel(layer, former, quantization.precision) for layer in mtp]
    groups, order = group_layers(layers)
    embedding = draft.embedding or Linear("embed", draft.vocab, draft.hidden, Shard.VOCAB, module="model.embed_tokens")
    head = Linear("lm_head", draft.vocab, draft.hidden, Shard.VOCAB, module="lm_head") if draft.lm_head else None
    if head is not None and not draft.tied:
        head = relabelled(marker.linear(head), former, quantization.precision)
    vision, vision_note = vision_of(root, draft.hidden)
    notes = [*draft.notes, *filter(None, [vision_note])]
    if language.used_defaults:
        notes.append(
            "Not in config.json, taken from the model library's defaults: " + ", ".join(language.used_defaults) + "."
        )
    promised = precision_in_name(model_id)
    if promised and scheme.quantization.method == "none":
        notes.append(f"The name promises {promised}, but the configuration holds no quantisation; none is assumed.")
    dtype, dtype_note = _dtype(root, language)
    if dtype_note:
        notes.append(dtype_note)
    return ModelSpec(
        model_id=model_id,
        architecture=architecture or family,
        model_type=root.text("model_type", default=family),
        task=cast(Literal["generate", "embed", "classify"], draft.task),
        hidden=draft.hidden,
        vocab=draft.vocab,
        max_position=draft.max_position,
        dtype=dtype,
        groups=groups,
        layer_order=order,
        embedding=embedding,
        lm_head=head,
        tied_embeddings=draft.tied,
        quantization=quantization,
        vision=vision,
        extra_linears=tuple(draft.extra),
        mtp_layers=len(mtp) if draft.mtp_layers is None else draft.mtp_layers,
        mtp_groups=group_layers(mtp)[0],
        rope_cache_elements=rope_cache_elements(language, groups, draft.max_position),
        notes=tuple(notes),
        config=dict(config),
    )


def _left_out(nested: Fields, family: str) -> dict[str, object]:
    """What a nested part leaves to its class, which states no size at all; {} for a part that states some: what that
    lacks is missing.
    """
    if any(key in nested.data for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")):
        return {}
    return {key: value for key, value in NESTED_DEFAULTS.get(family, {}).items() if key not in nested.data}


def _words(model_id: str) -> set[str]:
    return set(re.split(r"[-_/.]", model_id.lower()))


def precision_in_name(model_id: str) -> str:
    """The planner's word for a quantisation that a model's name states ("-FP8", "-AWQ", "-NVFP4"), else ""."""
    words = _words(model_id)
    for word, precision in _NAMED_PRECISIONS.items():
        if word in words:
            return precision
    return ""


def _architecture(root: Fields) -> str:
    names = root.texts("architectures")
    return names[0] if names else ""


def _family(root: Fields, language: Fields, architecture: str) -> str:
    """Key of ``FAMILIES``: the language part's model_type, else the root's, else the architecture's name."""
    if any(word in architecture.lower() for word in ("eagle", "medusa", "mlpspeculator", "draftmodel")):
        raise UnsupportedError(
            "this is a draft for speculative decoding, not a model",
            field="architectures",
            value=architecture,
            remedy="Plan the model that it drafts for, with speculation.",
        )
    seen = []
    for fields in (language, root):
        kind = fields.text("model_type")
        if kind:
            seen.append(kind)
            if kind in FAMILIES:
                return kind
    if architecture in FAMILIES:
        return architecture
    if not seen and not architecture:
        raise InputError("is missing", field="architectures", remedy="Give the model's complete config.json.")
    raise UnsupportedError(
        "this architecture is not known",
        field="architectures" if architecture else "model_type",
        value=architecture or seen[0],
        remedy=f"Known model types: {', '.join(sorted(FAMILIES))}.",
    )


def _dtype(root: Fields, language: Fields) -> tuple[Literal["bf16", "fp16", "fp32"], str]:
    """Type of unquantised weights; a float32 checkpoint is loaded as bfloat16 unless told otherwise, as engines do."""
    for fields in (root, language):
        name = fields.text("dtype", "torch_dtype")
        if name:
            if name not in _DTYPES:
                raise InputError("unknown data type", field=fields.name("torch_dtype"), value=name)
            found = _DTYPES[name]
            if found == "fp32":
                return "bf16", "The checkpoint is stored in float32; engines load it as bfloat16."
            return cast(Literal["bf16", "fp16", "fp32"], found), ""
    return "bf16", "config.json states no data type; bfloat16 is assumed, as engines do."

"""``model.safetensors.index.json`` beside a config.json: whether the files hold the weights that are counted.

Only ``metadata.total_size`` (bytes of all tensors) is read: an engine loads less where the files also hold layers that
predict further tokens, a head that is tied, or scales of scales.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import InputError
from planner.models.sharding import DTYPE_BITS, linear_bits, total_weights_bytes
from planner.models.spec import ModelSpec

NAME = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 48 * 2**20  # those of a trillion parameters in small blocks reach 20 MiB
NEAR = 0.02
NESTED_SCALE_BITS = 32 / 64 - (8 / 64 + 32 / 64 / 256)
"""What bitsandbytes saves a weight by storing the scales of 64 weights in 8 bits, with one scale for 256 of them."""


@dataclass(frozen=True, slots=True)
class WeightCheck:
    """Bytes stored and counted (loaded, and those of prediction layers), whether they agree, and a sentence."""

    stored: int
    loaded: float
    predicting: float
    agrees: bool
    sentence: str


def stored_bytes(data: bytes) -> int:
    """``metadata.total_size`` of an index. Raises InputError where it is not there."""
    if len(data) > LARGEST_INDEX_BYTES:
        raise InputError(f"is larger than {LARGEST_INDEX_BYTES // 2**20} MiB", field=NAME, remedy="Give the index, not a file of weights.")  # fmt: skip # noqa: E501
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError("is not valid JSON", field=NAME, remedy="Give the index, not a file of weights.") from None
    metadata = value.get("metadata") if isinstance(value, dict) else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**53 or total != int(total):
        remedy = "It is a whole number of bytes; leave the index out where its writer did not give it."
        raise InputError("is missing or no number of bytes", field=f"{NAME}: metadata.total_size", remedy=remedy)
    return int(total)


def check_weights(spec: ModelSpec, stored: int) -> WeightCheck:
    """Compare ``stored`` bytes with those that the configuration means."""
    loaded = total_weights_bytes(spec)
    predicting = sum(
        group.count * linear.params * linear_bits(spec, linear) / 8
        for group in spec.mtp_groups
        for linear in group.linears
    )
    told, counted = f"{stored / 1e9:.2f} GB of weights are stored", f"{loaded / 1e9:.2f} GB are counted"
    for value, why in _meanings(spec, loaded, predicting):
        if abs(stored / value - 1) <= NEAR:
            return WeightCheck(stored, loaded, predicting, True, f"{told}, {counted}{why}.")
    wrong = (
        f"{told} but {counted} ({stored / loaded - 1:+.0%}): the configuration is not of these files, its"
        " quantization_config is missing or wrong, or the files hold parts that are not counted. Memory figures of this"
        " model are in doubt by that much."
    )
    return WeightCheck(stored, loaded, predicting, False, wrong)


def _meanings(spec: ModelSpec, loaded: float, predicting: float) -> Iterator[tuple[float, str]]:
    """Bytes that files of this model may hold, each with what an engine does not load of them."""
    yield loaded, ""
    head = spec.lm_head.params * DTYPE_BITS[spec.dtype] / 8 if spec.lm_head is not None else 0.0
    if predicting:
        for copies in (0, 1, 2):  # prediction layers with an embedding and a head of their own, or without
            why = ": the rest predicts further tokens and is loaded with speculation only"
            yield loaded + predicting + copies * head, why
    if spec.tied_embeddings:
        yield loaded + head, ": the head is stored too but tied to the embedding"
    if spec.quantization.precision in ("bf16", "fp16"):
        yield 2 * loaded, ": the files hold 32 bits a weight, and engines load 16"
    if spec.quantization.method == "bitsandbytes":
        narrow = sum(g.count * sum(x.params for x in g.linears if x.quantised) for g in spec.groups)
        yield loaded - narrow * NESTED_SCALE_BITS / 8, ": scales are stored in 8 bits and loaded in 32"

"""Precision other than the checkpoint's: casts and online quantisation, as the engines do them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import InputError
from planner.models.marking import QUANTISABLE
from planner.models.quantization import NONE, STORED_BITS
from planner.models.spec import LayerGroup, Linear, ModelSpec, Quantization

PRECISIONS = ("as-config", "bf16", "fp16", "fp32", "fp8", "int8", "int4", "fp4", "mxfp4")

_ACTIVATION_BITS = {"fp8": 8, "fp8_block": 8, "int8": 8, "int4": 16, "fp4": 4, "mxfp4": 16}
_GROUP = {"int4": 128, "fp4": 16, "mxfp4": 32}


def with_precision(spec: ModelSpec, precision: str) -> ModelSpec:
    """``spec`` as it would be loaded at ``precision``.

    "as-config" leaves it alone; bf16, fp16 and fp32 give the plain checkpoint of the same shape. fp8, int8, int4, fp4
    and mxfp4 quantise every linear of the layers, experts included; embedding, head, routers, norms and convolutions
    stay (vLLM ``--quantization fp8``; AWQ and ModelOpt exports ignore lm_head). A checkpoint that has that precision
    already is returned as it is. Raises InputError for an unknown word.
    """
    if precision not in PRECISIONS:
        raise InputError(
            "unknown precision", field="precision", value=precision, remedy=f"Use one of: {', '.join(PRECISIONS)}."
        )
    quantization = spec.quantization
    stored = quantization.precision if quantization.method != "none" else spec.dtype
    if precision in ("as-config", stored) or (precision == "fp8" and stored == "fp8_block"):
        return spec
    if precision in ("bf16", "fp16", "fp32"):
        if quantization.method == "none":
            return replace(spec, dtype=precision)  # type: ignore[arg-type]
        return _unquantised(spec, precision)
    if quantization.method != "none":
        spec = _unquantised(spec, spec.dtype)
    bits = float(int(STORED_BITS[precision]))
    online = Quantization(
        "online" if precision == "fp8" else "assumed",
        precision,
        bits,
        _ACTIVATION_BITS[precision],
        STORED_BITS[precision] - bits,
        _GROUP.get(precision),
        kv_cache_dtype=quantization.kv_cache_dtype,
    )
    note = (
        "Linears are quantised to fp8 while loading."
        if precision == "fp8"
        else f"A checkpoint quantised to {precision} is assumed: all linears of the layers, not embedding and head."
    )
    spec = _map_linears(spec, lambda linear: replace(linear, quantised=_quantises(linear), precision=""))
    return replace(spec, quantization=online, notes=(*spec.notes, note))


def _unquantised(spec: ModelSpec, dtype: str) -> ModelSpec:
    """The same shapes in a plain type: the checkpoint this one was quantised from."""
    note = f"The unquantised ({dtype}) checkpoint of the same shape is assumed."
    plain = _map_linears(spec, lambda linear: replace(linear, quantised=False, precision=""))
    head = plain.lm_head and replace(plain.lm_head, quantised=False, precision="")
    return replace(plain, dtype=dtype, lm_head=head, quantization=NONE, notes=(*spec.notes, note))  # type: ignore[arg-type]


def _quantises(linear: Linear) -> bool:
    return linear.role in QUANTISABLE and linear.role != "lm_head"


def _map_linears(spec: ModelSpec, change: Callable[[Linear], Linear]) -> ModelSpec:
    def group(old: LayerGroup) -> LayerGroup:
        return replace(old, linears=tuple(change(linear) for linear in old.linears))

    return replace(
        spec, groups=tuple(group(old) for old in spec.groups), mtp_groups=tuple(group(old) for old in spec.mtp_groups)
    )

"""What the name of a checkpoint says: the quantisation that it states, and file formats that are not planned."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Stated:
    """A name without its last part, and the precision that this part states (the planner's word).

    ``activation_bits`` where it differs from what the precision usually has.
    """

    plain: str
    precision: str
    activation_bits: int | None = None


_ENDINGS = (
    (r"fp8(-dynamic|-block|-static|-kv)?", "fp8", None),
    (r"(quantized\.|int8-)?w8a8", "int8", None),
    (r"(quantized\.)?w8a16|gptq-(int8|8bit)", "int8", 16),
    (r"awq(-int4|-4bit)?|int4-awq|gptq(-int4|-4bit)?|(quantized\.)?w4a16|int4-autoround", "int4", None),
    (r"nvfp4a16", "fp4", 16),
    (r"nvfp4|fp4", "fp4", None),
    (r"mxfp4(-preview)?", "mxfp4", None),
    (r"bf16", "bf16", None),
)
"""How checkpoints end their names that keep another one's weights in another precision; the shape is that one's."""

_READERS = tuple(
    (re.compile(rf"[-_](?:{pattern})$", re.IGNORECASE), precision, bits) for pattern, precision, bits in _ENDINGS
)

_FORMATS = (
    (
        r"gguf|ggml|(i1|imat)[-_.]?(q\d|iq\d)\w*|i?q\d_(k|k_[sml]|0|1)",
        "GGUF files are llama.cpp's: vLLM reads them through an experimental plug-in alone, TensorRT-LLM not at all",
    ),
    (r"mlx", "MLX files run on Apple's processors only"),
    (
        r"bnb|bitsandbytes",
        "bitsandbytes checkpoints have kernels in vLLM alone, whose speed is not known here",
    ),
    (r"exl2|exl3|\d(\.\d+)?bpw", "EXL2 and EXL3 files are ExLlama's: neither engine reads them"),
    (r"onnx", "ONNX files are read by neither engine"),
    (r"openvino|ov", "OpenVINO files are Intel's: neither engine reads them"),
    (r"coreml", "Core ML files run on Apple's processors only"),
    (r"lora|qlora|adapter", "this is an adapter, not a model"),
)
"""Words of a name that say that the checkpoint is in a format, or of a kind, that is not planned.

vLLM's documentation, features/quantization: ``gguf.md`` (a plug-in since 2026, "highly experimental"), ``README.md``.
"""

_FOREIGN = tuple((re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", re.IGNORECASE), why) for words, why in _FORMATS)

REMEDY = "Name the safetensors repository that it was made from, or that one's FP8, AWQ or NVFP4 export."


def stated_quantisation(name: str) -> Stated | None:
    """What the end of ``name`` states about precision; None when it states nothing."""
    for pattern, precision, bits in _READERS:
        found = pattern.search(name)
        if found is not None:
            return Stated(name[: found.start()], precision, bits)
    return None


def foreign_format(name: str) -> str:
    """Why the checkpoint that ``name`` names is not planned, by its file format; "" when nothing speaks against it."""
    for pattern, why in _FOREIGN:
        if pattern.search(name):
            return why
    return ""


def refuse_format(name: str) -> None:
    """Raise UnsupportedError when ``name`` names a file format that is not planned."""
    why = foreign_format(name)
    if why:
        remedy = "Name the model that it is for, and state adapters as such." if "adapter" in why else REMEDY
        raise UnsupportedError(why, field="model", value=name, remedy=remedy)

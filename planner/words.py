"""Engines, shapes and signed figures as sentences state them."""

from __future__ import annotations

import re

ENGINE_LABEL = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM"}
_SHAPE = re.compile(r"tp(\d+)pp(\d+)ep(\d+)dp(\d+)")


def place_words(candidate_id: str) -> str:
    """GPU, parallelism and changed precision of a candidate by its id: "H100-SXM5-80GB (TP 4, EP 4, FP8)".

    Parallelism of one is left out but for TP, a precision left as the checkpoint has it as well.
    """
    gpu, shape, precision = candidate_id.split("/")[-3:]
    found = _SHAPE.fullmatch(shape)
    parts = [shape]
    if found:
        sizes = zip(("TP", "PP", "EP", "DP"), found.groups(), strict=True)
        parts = [f"{name} {size}" for name, size in sizes if name == "TP" or size != "1"]
    if precision != "as-config":
        parts.append(precision.upper())
    return f"{gpu} ({', '.join(parts)})"


def whole(value: float, *, sign: bool = False) -> str:
    """A figure without decimals and with a true minus; ``sign`` puts a plus before positive ones. Never "-0"."""
    number = round(value)
    return f"{number:+,}".replace("-", "−") if sign and number else f"{number:,}".replace("-", "−")

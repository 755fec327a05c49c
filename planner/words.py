"""Engines, shapes and signed figures as sentences state them."""

from __future__ import annotations

import math
import re

ENGINE_LABEL = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM"}
OWNER_LABEL = {"none": "nobody", "kubernetes": "Kubernetes", "slurm": "Slurm"}
_SHAPE = re.compile(r"tp(\d+)pp(\d+)ep(\d+)dp(\d+)(?:s(\d+))?")


def place_words(candidate_id: str) -> str:
    """GPU, parallelism and changed precision of a candidate by its id: "H100-SXM5-80GB (TP 4, EP 4, FP8)".

    Parallelism of one is left out but for TP, a precision left as the checkpoint has it as well.
    """
    gpu, shape, precision = candidate_id.split("/")[-3:]
    found = _SHAPE.fullmatch(shape)
    parts = [shape]
    if found:
        *groups, sharers = found.groups()
        sizes = zip(("TP", "PP", "EP", "DP"), groups, strict=True)
        parts = [f"{name} {size}" for name, size in sizes if name == "TP" or size != "1"]
        parts += [f"1/{sharers} of a GPU"] if sharers else []
    if precision != "as-config":
        parts.append(precision.upper())
    return f"{gpu} ({', '.join(parts)})"


def figure(value: float) -> str:
    """At most three significant figures, thousands separated, never an exponent: 28,400; 5.32; 0.003."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    text = f"{round(value, 2 - size):,.{max(0, 2 - size)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def article(words: str) -> str:
    """``words`` behind "a" or "an", also before names spelt out: an H100 price, an L40S price, a B200 price."""
    spelt = not words[1:2].islower()
    vowel = words[0].upper() in ("AEFHILMNORSX" if spelt else "AEIOU")
    return f"{'an' if vowel else 'a'} {words}"


def whole(value: float, *, sign: bool = False) -> str:
    """A figure without decimals and with a true minus; ``sign`` puts a plus before positive ones. Never "-0"."""
    number = round(value)
    return f"{number:+,}".replace("-", "−") if sign and number else f"{number:,}".replace("-", "−")

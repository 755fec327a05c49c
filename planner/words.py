"""Engines, shapes and signed figures as sentences state them."""

from __future__ import annotations

import math
import re

ENGINE_LABEL = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM"}
POOL_LABEL = ("prefill", "decode")
OWNER_LABEL = {"none": "nobody", "kubernetes": "Kubernetes", "slurm": "Slurm"}
_SHAPE = re.compile(r"tp(\d+)pp(\d+)ep(\d+)dp(\d+)(?:s(\d+))?")
_POOL = re.compile(r"(\d+)x(tp\d+pp\d+ep\d+dp\d+)")


def place_words(candidate_id: str) -> str:
    """GPU, parallelism and changed precision of a candidate by its id: "H100-SXM5-80GB (TP 4, EP 4, FP8)".

    Parallelism of one is left out but for TP, a precision left as the checkpoint has it as well. Of a unit of two pools
    both are named: "H100-SXM5-80GB (prefill 2 × TP 2, decode 1 × TP 4)".
    """
    gpu, shape, precision = candidate_id.split("/")[-3:]
    pools = [_POOL.fullmatch(part) for part in shape.split("-")]
    parts = _shape_words(shape)
    if len(pools) == len(POOL_LABEL) and all(pools):
        counts = [(found[1], _shape_words(found[2])) for found in pools if found]
        named = zip(POOL_LABEL, counts, strict=True)
        parts = [f"{label} {count} × {' '.join(words)}" for label, (count, words) in named]
    if precision != "as-config":
        parts.append(precision.upper())
    return f"{gpu} ({', '.join(parts)})"


def _shape_words(shape: str) -> list[str]:
    found = _SHAPE.fullmatch(shape)
    if found is None:
        return [shape]
    *groups, sharers = found.groups()
    sizes = zip(("TP", "PP", "EP", "DP"), groups, strict=True)
    parts = [f"{name} {size}" for name, size in sizes if name == "TP" or size != "1"]
    return parts + ([f"1/{sharers} of a GPU"] if sharers else [])


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

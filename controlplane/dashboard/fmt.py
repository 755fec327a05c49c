"""Numbers and times as people read them: three significant figures, a unit, and the exact value for hovering."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from planner.economics.currency import BASE, symbol

Number = int | float | Decimal

ENGINE_LABELS = {
    "vllm": "vLLM",
    "vllm_cpu": "vLLM (CPU)",
    "tensorrt_llm": "TensorRT-LLM",
    "emulated": "Emulated engine",
    "hybrid": "Both engines",
}
EVIDENCE_LABELS = {
    "measured": "Measured",
    "calibrated": "Calibrated",
    "silicon": "Silicon",
    "extrapolated": "Extrapolated",
    "roofline": "Roofline",
    "emulated": "Emulated",
}
METRIC_WORDS = {
    "output_tok_per_s": "Output",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "req_per_s": "Requests",
    "weights_gib": "Weights",
    "kv_gib": "KV cache",
    "kv_tokens": "KV tokens",
    "kv_blocks": "KV blocks",
    "graph_gib": "CUDA graphs",
    "activation_gib": "Activation",
    "max_model_len": "Context",
    "max_concurrency": "Full-length requests",
}
EVIDENCE_MEANING = {
    "measured": "Read from a probe of the running engine, or from the engine's own log.",
    "calibrated": "A prediction corrected by factors fitted from probes of this engine, GPU and model.",
    "silicon": "Composed of operator times measured on this GPU, inside the measured range.",
    "extrapolated": "Composed of measured operator times, some of them outside the measured range.",
    "roofline": "Computed from the GPU's peak rates and bandwidth; no measurement of this combination.",
    "emulated": "Made by the emulated engine. It says nothing about hardware and calibrates nothing.",
}


def as_float(value: Any) -> float | None:
    """``value`` as a finite float; None for None, empty text and anything that is no number."""
    if value is None or isinstance(value, bool) or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def sig(value: Any, figures: int = 3, *, strip: bool = True) -> str:
    """At most ``figures`` significant figures, thousands separated, no exponent: 5355.2 -> 5,360; 0.4137 -> 0.414.

    Whole numbers lose their decimals unless ``strip`` is False: 38.0 -> 38, else 38.0.
    """
    number = as_float(value)
    if number is None:
        return "–"
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    rounded = round(number, figures - 1 - magnitude)
    decimals = max(0, figures - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{decimals}f}"
    if strip and "." in text and number.is_integer():
        text = text.split(".")[0]
    return text.replace("-", "−")


def exact(value: Any) -> str:
    """The value in full, thousands separated, up to six decimals."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    number = as_float(value)
    if number is None:
        return "no data"
    return f"{number:,.6f}".rstrip("0").rstrip(".")


_currency: ContextVar[str] = ContextVar("currency", default=BASE)
"""In which the amounts of the page at hand are; each request starts with dollars."""


def use_currency(code: str | None = None) -> None:
    """Amounts of this request are in ``code`` from here on; in dollars without one."""
    _currency.set(code or BASE)


@contextmanager
def in_currency(code: str | None) -> Iterator[None]:
    """Amounts are in ``code`` while it lasts; in dollars without one."""
    token = _currency.set(code or BASE)
    try:
        yield
    finally:
        _currency.reset(token)


def currency() -> str:
    """The code of the currency of the page at hand."""
    return _currency.get()


def sign() -> str:
    """What stands for it before an amount or in a heading: $, €, SU."""
    return symbol(currency()).strip()


def per(unit: str) -> str:
    """The unit of an amount for one ``unit``: $ / GPU-h."""
    return f"{sign()} / {unit}"


def money(value: Any, figures: int = 3, currency: str = "") -> str:
    """An amount: $0.414, $61.38, $1,230; in the currency of the page unless another is given. Tens show their cents."""
    number = as_float(value)
    if number is None:
        return "–"
    minus = "−" if number < 0 else ""
    mark = symbol(currency or _currency.get())
    body = sig(abs(number), figures)
    if "." in body and len(body.split(".")[1]) == 1:
        body = f"{abs(number):.2f}"
    return f"{minus}{mark}{body}"


def percent(share: Any, figures: int = 2) -> str:
    """A share as a percentage: 0.143 -> 14 %; what is less than half a hundredth of a per cent is none."""
    number = as_float(share)
    if number is None:
        return "–"
    return f"{sig(0 if abs(number) < 0.00005 else round(number * 100, 9), figures)} %"


def signed_percent(share: Any) -> str:
    """A deviation: +4 %, −12 %."""
    number = as_float(share)
    if number is None:
        return "–"
    rounded = round(number, 4)
    return "0 %" if rounded == 0 else f"{'+' if rounded > 0 else ''}{percent(rounded)}"


def band(low: Any, high: Any, kind: str = "") -> str:
    """A band in words: 17.9–20.1, $5.37–$6.96, 12–33 %, −6 to 8 %; "to" where a minus would read as a dash."""
    if kind == "usd":
        first, last = money(low), money(high)
    elif kind == "share":
        first, last = percent(low), percent(high)
    else:
        first, last = sig(low, strip=False), sig(high, strip=False)
    if kind == "share":
        first = first.removesuffix(" %")
    return f"{first} to {last}" if "−" in first + last else f"{first}–{last}"


def duration(seconds: Any) -> str:
    """A length of time: 850 ms, 12.3 s, 4 min 10 s, 3 h 20 min, 2 d 4 h."""
    number = as_float(seconds)
    if number is None:
        return "–"
    if number < 1:
        return f"{sig(number * 1000)} ms"
    if number < 60:
        return f"{sig(number)} s"
    whole = round(number)
    for size, unit, below, rest_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            first, rest = divmod(whole, size)
            rest //= below
            return f"{first:,} {unit}" + (f" {rest} {rest_unit}" if rest else "")
    return f"{whole} s"


def ago(moment: dt.datetime | None, now: dt.datetime) -> str:
    """How long before ``now``, in one unit: "12 s ago", "3 h ago"; "never" for None."""
    if moment is None:
        return "never"
    seconds = int((now - moment).total_seconds())
    if seconds < 2:
        return "just now"
    size, unit = next(
        (size, unit) for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= size
    )
    return f"{seconds // size} {unit} ago"


def engine_label(engine: str | None) -> str:
    """The engine's name as its makers write it."""
    return ENGINE_LABELS.get(engine or "", engine or "None")


def parallelism(settings: dict[str, Any] | None) -> str:
    """ "TP 4", "TP 2 · PP 2 · EP 8": only what differs from one, TP always."""
    if not settings:
        return "–"
    parts = [f"TP {settings.get('tp', 1)}"]
    parts += [f"{key.upper()} {settings[key]}" for key in ("pp", "ep", "dp") if (settings.get(key) or 1) > 1]
    return " · ".join(parts)


def shape(candidate: Mapping[str, Any] | None) -> str:
    """Parallelism of a candidate; of one with pools: "prefill 2 × TP 2, decode 1 × TP 4"."""
    pools = (candidate or {}).get("disagg")
    if not pools:
        return parallelism((candidate or {}).get("settings"))
    named = ((name, pools[name]) for name in ("prefill", "decode"))
    return ", ".join(f"{name} {pool['instances']} × {parallelism(pool['settings'])}" for name, pool in named)


JOB_WORDS = {
    "plan.compute": "Compute a plan",
    "plan.curves": "Draw load curves",
    "deployment.launch": "Launch an engine",
    "deployment.probe": "Probe an engine",
    "deployment.cancel_probe": "End a probe's load",
    "deployment.stop": "Stop an engine",
    "calibration.fit": "Fit a calibration",
    "node.discover": "Look into a host",
}


def job_words(kind: str) -> str:
    """What a job does, in words."""
    return JOB_WORDS.get(kind) or kind.replace(".", " ").replace("_", " ").capitalize()

"""Which weights a checkpoint's quantisation covers: names, wildcards and expressions against the modules of a model."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from planner.errors import InputError
from planner.models.blocks import Layer
from planner.models.quantization import STORED_BITS, Scheme
from planner.models.spec import Linear, Quantization

QUANTISABLE = frozenset(
    (
        *("q", "kv", "o", "o_a", "gate_up", "down", "lm_head", "state_in", "state_out", "latent"),
        *("expert_gate_up", "expert_down", "shared_gate_up", "shared_down"),
        *("mla_q_a", "mla_q_b", "mla_kv_a", "mla_kv_b", "mla_index"),
    )
)
"""Roles whose weights methods quantise unless told otherwise; norms, routers, embeddings and convolutions never are."""

_MOST_REPEATS = 4
_MOST_WILDCARDS = 2000


def settle(scheme: Scheme, linears: Sequence[tuple[int, Linear]]) -> Quantization:
    """The quantisation with the precision of most weights as its main one; ``linears`` are (times, marked linear)."""
    quantization = scheme.quantization
    shares: dict[str, int] = {}
    for times, linear in linears:
        if linear.quantised:
            name = linear.precision or quantization.precision
            shares[name] = shares.get(name, 0) + times * linear.params
    main = max(shares, key=shares.__getitem__, default=quantization.precision)
    if main == quantization.precision:
        return quantization
    bits = dict(quantization.per_role_bits).get(main, STORED_BITS[main])
    weight_bits = float(int(bits))
    own = (quantization.precision, quantization.weight_bits + quantization.scale_bits_per_weight)
    return replace(
        quantization,
        precision=main,
        weight_bits=weight_bits,
        scale_bits_per_weight=bits - weight_bits,
        activation_bits=dict(scheme.activations).get(main, 16),
        per_role_bits=tuple({**dict([own]), **dict(quantization.per_role_bits), main: bits}.items()),
    )


def relabelled(linear: Linear, former: str, main: str) -> Linear:
    """``linear`` with its precision written relative to the main precision ``main`` instead of ``former``."""
    if not linear.quantised:
        return linear
    own = linear.precision or former
    return replace(linear, precision="" if own == main else own)


def relabel(layer: Layer, former: str, main: str) -> Layer:
    """``relabelled`` for every linear of a layer."""
    return replace(layer, linears=tuple(relabelled(linear, former, main) for linear in layer.linears))


class ModuleMatcher:
    """Decides whether a module is named by a list of names, wildcards and ``re:`` expressions.

    A plain name stands for that module and everything under it, wherever it is nested ("model." or
    "model.language_model." in front does not matter).
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.names = {_tail(pattern) for pattern in patterns if not _special(pattern)}
        if sum(map(_special, patterns)) > _MOST_WILDCARDS:
            raise InputError(f"more than {_MOST_WILDCARDS} patterns with wildcards", field="quantization_config.ignore")
        self.expressions = [_compiled(pattern) for pattern in patterns if _special(pattern)]

    def matches(self, module: str) -> bool:
        """Whether ``module`` (a full name as in the checkpoint) is covered."""
        tail = _tail(module)
        parts = tail.split(".")
        if any(".".join(parts[:stop]) in self.names for stop in range(1, len(parts) + 1)):
            return True
        if any(part in self.names for part in parts):
            return True
        return any(expression.search(name) for expression in self.expressions for name in (module, tail))


def _special(pattern: str) -> bool:
    return pattern.startswith("re:") or any(char in pattern for char in "*?[")


def _tail(module: str) -> str:
    """``module`` from "layers." on, without the wrapper prefixes that differ between exporters."""
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "backbone.", "model."):
        if module.startswith(prefix):
            return module[len(prefix) :]
    return module


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression; one that could take exponential time is refused."""
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(_tail(pattern)).replace(r"\Z", r"(\..*)?\Z"))
    body = pattern[3:]
    if len(body) > 300 or len(re.findall(r"[*+{]", body)) > _MOST_REPEATS or re.search(r"\)[*+{]", body):
        raise InputError(
            f"the expression is too long, repeats a group, or has more than {_MOST_REPEATS} repeats",
            field="quantization_config.ignore",
            value=pattern,
        )
    try:
        return re.compile(body)
    except re.error as error:
        raise InputError(f"is no regular expression: {error}", field="quantization_config.ignore") from None


class Marker:
    """Applies a scheme to linears: which are quantised, and at which precision."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.active = scheme.quantization.method != "none"
        self.ignored = ModuleMatcher(scheme.quantization.ignored)
        self.by_precision: dict[str, ModuleMatcher] = {}
        for precision in {precision for _, precision in scheme.overrides}:
            names = tuple(name for name, found in scheme.overrides if found == precision)
            self.by_precision[precision] = ModuleMatcher(names)

    def layer(self, layer: Layer, path: str) -> Layer:
        """``layer`` with its linears marked; ``path`` is its full name in the checkpoint."""
        if not self.active:
            return layer
        return replace(layer, linears=tuple(self.linear(linear, path) for linear in layer.linears))

    def linear(self, linear: Linear, path: str = "") -> Linear:
        """``linear`` marked as quantised or left in the model's dtype."""
        if not self.active or linear.role not in QUANTISABLE:
            return linear
        names = [f"{path}.{part}" if path else part for part in linear.module.split("|")]
        for precision, matcher in self.by_precision.items():
            if any(matcher.matches(name) for name in names):
                other = "" if precision == self.scheme.quantization.precision else precision
                return replace(linear, quantised=True, precision=other)
        if self.scheme.listed_only or any(self.ignored.matches(name) for name in names):
            return replace(linear, precision="")
        return replace(linear, quantised=True)

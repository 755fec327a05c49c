"""What a source of operator times answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.evidence import Evidence
from planner.steptime.graph import Mixer, TokenOp

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timed:
    """Milliseconds of all ``count`` runs of one operator at the points asked for, and how they are known.

    ``in_range`` (decode attention only): per batch row, the longest mean KV that the source measured.
    """

    ms: F64
    evidence: Evidence
    notes: tuple[str, ...] = ()
    in_range: F64 | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the nodes of an instance.

    GB/s of one GPU, one direction, and the GPUs that one node (or NVLink domain) holds; None: the usual eight, or the
    GPU's whole NVLink domain.
    """

    network_gb_s: float = 50.0  # a 400 Gb/s port a GPU
    gpus_per_node: int | None = None


class OperatorSource(Protocol):
    """Times operators. All arrays are one-dimensional; results in milliseconds, ``count`` included."""

    def rows(self, op: TokenOp, rows: F64) -> Timed:
        """Operator that runs on ``rows`` tokens (or sequences, for the head)."""
        ...

    def prefill(self, op: Mixer, tokens: F64, context: F64) -> Timed:
        """Mixer on a grid: ``ms[i, j]`` for ``tokens[i]`` new tokens that attend to ``context[j]`` keys on average."""
        ...

    def decode(self, op: Mixer, batch: F64, kv: F64) -> Timed:
        """Mixer on a grid: ``ms[i, j]`` for ``batch[i]`` sequences of ``kv[j]`` tokens each."""
        ...


def prefill_shape(tokens: float, context: float) -> tuple[float, float, float]:
    """(prompts, new tokens each, past tokens each) of ``tokens`` new tokens that attend to ``context`` keys on average.

    One prompt of s tokens has a mean of (s + 1) / 2. More context than that means past tokens; less means several
    prompts.
    """
    lone = (tokens + 1) / 2
    if context >= lone:
        return 1.0, tokens, context - lone
    each = max(1.0, 2 * context - 1)
    return tokens / each, each, 0.0


def windowed_context(tokens: float, context: float, window: int | None) -> float:
    """Mean keys per new token when each sees at most ``window``: mean over the prompt of min(position, window)."""
    if window is None:
        return context
    _, each, past = prefill_shape(tokens, context)
    growing = min(max(window - past, 0.0), each)
    total = growing * past + growing * (growing + 1) / 2 + (each - growing) * window
    return total / each


def monotone(ms: F64) -> F64:
    """Measured times made non-decreasing along every axis by the running minimum from the large end.

    Disturbances of a measurement only add time (first calls, other work on the machine), so a time above that of a
    larger size is the disturbed one; a running maximum would spread it over all larger sizes.
    """
    for axis in range(ms.ndim):
        ms = np.flip(np.minimum.accumulate(np.flip(ms, axis), axis=axis), axis)
    return ms

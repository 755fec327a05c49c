"""What an option does to the sampled step times: speculation, eager execution, host time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.engines.types import ResolvedSettings
from planner.evidence import Evidence, weakest
from planner.steptime.sources import F64
from planner.steptime.tables import DECODE_BATCH, SEQUENCES, TOKENS, Sampled

_EAGER_MS_PER_LAYER = 0.35
"""Python and launch time of one decoder layer run operator by operator, about twenty kernels; assumed, not measured."""

_VERIFY_PER_TOKEN = 0.1
"""Longer decode attention per drafted token: the keys are read once, the arithmetic grows."""


def accepted_drafts(acceptance_rate: float, drafts: int) -> float:
    """Mean drafts accepted a step when each is accepted with ``acceptance_rate`` if all before it were.

    One token more comes from the model itself: (1 - a^(k + 1)) / (1 - a) a step in all (Leviathan, Kalman, Matias,
    "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1).

    >>> round(1 + accepted_drafts(0.8, 3), 3)
    2.952
    """
    return sum(acceptance_rate**position for position in range(1, drafts + 1))


def speculative(sampled: Sampled, drafts: int, layers: int) -> Sampled:
    """Times of a step that verifies ``drafts`` proposed tokens for each decoding sequence, drafting included.

    Batch b runs b (drafts + 1) tokens through the layers and the head. Each draft is one decoder layer and the head, as
    MTP and EAGLE heads are. The extra time is a function of the batch, so it is carried by the decode table.
    """
    wide = DECODE_BATCH * (drafts + 1)
    extra = _at(wide, TOKENS, sampled.shared_ms) - _at(DECODE_BATCH, TOKENS, sampled.shared_ms)
    extra += _at(wide, SEQUENCES, sampled.head_ms) - _at(DECODE_BATCH, SEQUENCES, sampled.head_ms)
    one_layer = _at(DECODE_BATCH, TOKENS, sampled.shared_ms) / layers
    extra += drafts * (one_layer + _at(DECODE_BATCH, SEQUENCES, sampled.head_ms))
    attention = sampled.decode_ms * (1.0 + _VERIFY_PER_TOKEN * drafts + drafts / layers)
    return replace(
        sampled,
        decode_ms=attention + extra[:, None],
        notes=(*sampled.notes, f"each of {drafts} drafts a step costs one decoder layer and the head"),
    )


def eager(sampled: Sampled, layers: int) -> Sampled:
    """Times without captured graphs: a step lasts at least as long as its launches."""
    floor = _EAGER_MS_PER_LAYER * layers
    return replace(
        sampled,
        shared_ms=np.maximum(sampled.shared_ms, floor),
        evidence=weakest((sampled.evidence, Evidence.EXTRAPOLATED)),
        notes=(*sampled.notes, f"without captured graphs a step takes at least {floor:.1f} ms of launches (assumed)"),
    )


def vary(sampled: Sampled, resolved: ResolvedSettings, layers: int) -> Sampled:
    """Apply what ``resolved`` asks for."""
    if resolved.enforce_eager:
        sampled = eager(sampled, layers)
    if resolved.speculative_tokens:
        sampled = speculative(sampled, resolved.speculative_tokens, layers)
    return sampled


def _at(points: F64, axis: F64, values: F64) -> F64:
    """Linear interpolation; linear growth beyond the last point."""
    inside = np.interp(points, axis, values)
    beyond = points > axis[-1]
    slope = (values[-1] - values[-2]) / (axis[-1] - axis[-2])
    return np.where(beyond, values[-1] + slope * (points - axis[-1]), inside)

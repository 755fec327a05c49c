"""Corrects step times by factors fitted from probes, and fits such factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log, sqrt

import numpy as np

from planner.calibration import CalibrationFactor
from planner.errors import InputError
from planner.evidence import Evidence
from planner.steptime.types import StepModel, scaled

_OUTLIER_LOG = log(4.0)
"""A pair that is off by more than four times is a broken run, not a calibration."""


def matching(
    calibrations: Iterable[CalibrationFactor], *, engine: str, gpu: str, model: str, precision: str, tp: int
) -> CalibrationFactor | None:
    """The most specific factor whose non-empty fields (0 for ``tp``) all match; ties go to the one with more
    samples."""
    best: tuple[int, int] | None = None
    chosen = None
    for factor in calibrations:
        wanted = (
            (factor.engine, engine),
            (factor.gpu, gpu),
            (factor.model, model),
            (factor.precision, precision),
            (factor.tp or "", tp),
        )
        if any(have and have != want for have, want in wanted):
            continue
        rank = (sum(1 for have, _ in wanted if have), factor.samples)
        if best is None or rank > best:
            best, chosen = rank, factor
    return chosen


def apply(step: StepModel, factor: CalibrationFactor) -> StepModel:
    """``step`` with every time multiplied by ``factor.step_factor`` and the front end lengthened by
    ``ttft_extra_ms``."""
    if not factor.step_factor > 0:
        raise InputError("a calibration factor must be positive", field="step_factor", value=factor.step_factor)
    scale = factor.step_factor
    front_end = replace(step.front_end, request_ms=max(0.0, step.front_end.request_ms + factor.ttft_extra_ms))
    note = f"corrected by {scale:.3f} from {factor.samples} probe samples ({factor.source})"
    return replace(
        step,
        tables=scaled(step.tables, scale),
        front_end=front_end,
        evidence=Evidence.CALIBRATED,
        notes=(*step.notes, note),
        factors={**step.factors, "calibration": scale, "calibration_log_sd": factor.residual_log_sd},
    )


def fit(
    pairs: Sequence[tuple[float, float]],
    *,
    engine: str = "",
    gpu: str = "",
    model: str = "",
    precision: str = "",
    tp: int = 0,
    ttft_pairs: Sequence[tuple[float, float]] = (),
    source: str = "",
) -> CalibrationFactor:
    """Fit a factor from (predicted, measured) step times (TPOT or ITL in ms).

    ``step_factor`` is the median of measured / predicted, robust to single runs; ``residual_log_sd`` the standard
    deviation of the logs around it (n - 1; 0.1 with a single pair, since one run says nothing of its own spread).
    ``ttft_pairs`` (predicted with the factor applied, measured) give ``ttft_extra_ms``, the median difference.
    Raises InputError without a usable pair.
    """
    ratios = [log(measured / predicted) for predicted, measured in pairs if predicted > 0 and measured > 0]
    ratios = [ratio for ratio in ratios if abs(ratio) <= _OUTLIER_LOG]
    if not ratios:
        raise InputError(
            "no usable pair of predicted and measured times", field="pairs", value=len(pairs),
            remedy="Give at least one probe run with a prediction within four times of the measurement.",
        )  # fmt: skip
    center = float(np.median(ratios))
    spread = 0.1 if len(ratios) == 1 else sqrt(sum((r - center) ** 2 for r in ratios) / (len(ratios) - 1))
    extra = float(np.median([measured - predicted for predicted, measured in ttft_pairs])) if ttft_pairs else 0.0
    return CalibrationFactor(
        engine=engine,
        gpu=gpu,
        model=model,
        precision=precision,
        tp=tp,
        step_factor=exp(center),
        ttft_extra_ms=extra,
        samples=len(ratios),
        residual_log_sd=spread,
        source=source,
    )

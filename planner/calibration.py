"""A correction fitted from probes. A leaf module: step times and plans both need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationFactor:
    """Measured / predicted for one key, fitted from probes. An empty field matches anything."""

    engine: str
    gpu: str
    model: str
    precision: str
    tp: int
    step_factor: float
    ttft_extra_ms: float
    samples: int
    residual_log_sd: float
    source: str  # which probe runs

"""80 % interval of the KV pool: how far the engines' own figures lay from the ledger on measured start-ups.

The half-width is the value that 80 % of the absolute residuals stay below (rank ceil(0.8 (n + 1)) of n, the conformal
quantile), from ``python -m benchmarks accuracy memory``, times ``widening``: the terms were fitted on the same rows, so
the residuals flatter them. Where nothing was fitted, a share of the terms that depend on the GPU and version is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.engines.types import EngineName, ResolvedSettings
from planner.evidence import Evidence, Interval

MAY_BE_MISSING = "The 80 % interval of the KV pool reaches 0 GiB: there may be no pool, and the engine may not start."


@dataclass(frozen=True, slots=True)
class Residual:
    """Residuals of one engine and evidence; GiB per GPU.

    ``quantile_gib`` of ``rows`` start-ups; ``unfitted_share`` of activation and memory outside torch is taken as
    unknown on top, where those were fitted on other hardware.
    """

    engine: EngineName
    evidence: Evidence
    rows: int
    quantile_gib: float
    widening: float
    unfitted_share: float
    source: str

    def half_width_gib(self, unfitted_gib: float) -> float:
        """Half the interval, for terms of ``unfitted_gib`` GiB."""
        return self.quantile_gib * self.widening + self.unfitted_share * unfitted_gib


RESIDUALS = (
    Residual(
        EngineName.VLLM, Evidence.CALIBRATED, 45, 0.061, 2.0, 0.0,
        "45 fully stated start-ups of vLLM 0.10 to 0.26 on A100, H100 and H200; worst 0.33",
    ),
    Residual(
        EngineName.VLLM, Evidence.EXTRAPOLATED, 7, 0.158, 2.0, 0.15,
        "7 start-ups of multimodal models and on RTX PRO 6000; the share is our judgement",
    ),
    Residual(
        EngineName.TENSORRT_LLM, Evidence.EXTRAPOLATED, 2, 0.5, 2.0, 0.15,
        "2 start-ups alone on their GPU (0.00 and 0.50 off), too few for a quantile; the worst stands for it",
    ),
)  # fmt: skip


def residual(engine: EngineName, evidence: Evidence) -> Residual:
    """The row for ``evidence``; one without a row of its own takes the engine's extrapolated one."""
    rows = {row.evidence: row for row in RESIDUALS if row.engine is engine}
    return rows.get(evidence, rows[Evidence.EXTRAPOLATED])


def kv_interval(
    resolved: ResolvedSettings,
    evidence: Evidence,
    kv_gib: float,
    share_gib: float | None = None,
    *,
    unfitted_gib: float = 0.0,
) -> Interval:
    """``kv_gib`` with its 80 % interval; ``unfitted_gib`` the terms that depend on GPU and version.

    ``share_gib`` is what the engine's share would give where a fixed limit below it sets ``kv_gib``: that limit is
    exact, the share is not.
    """
    half = residual(resolved.engine, evidence).half_width_gib(unfitted_gib)
    if share_gib is not None and kv_gib < share_gib:
        return Interval(kv_gib, min(kv_gib, share_gib - half), kv_gib)
    return Interval(kv_gib, kv_gib - half, kv_gib + half)


def of_pool(band: Interval) -> Interval:
    """``band`` ended at 0 GiB, below which there is no pool; as it is where the value itself is a shortage."""
    return band if band.value < 0 else replace(band, low=max(0.0, band.low))

"""Calibrations: how much slower or faster an engine really is than predicted, fitted from real probes.

All real probes of one kind (engine, version, GPU, model, precision, TP) are fitted together. Emulated ones never count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from django.db import transaction

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role
from controlplane.core.services import log_change, save_record
from controlplane.deployments import prediction
from controlplane.deployments.models import Calibration, Deployment, ProbeRun
from controlplane.workloads.services import model_spec
from planner.calibration import CalibrationFactor
from planner.engines.types import ResolvedSettings
from planner.errors import PlannerError, UnsupportedError
from planner.jsonio import from_json
from planner.serving.types import Performance
from runners.contracts import ProbeLoad, ProbeMetrics

ROUNDS = 3
MAX_PROBES = 20
Report = Callable[[float, str], None]


def fit_calibration(*, actor: Actor, probe: ProbeRun, report: Report = lambda share, step: None) -> Calibration:
    """Fit the correction for the kind of deployment that ``probe`` measured, and make it the active one.

    Raises UnsupportedError when the probe is emulated or measured no TPOT, PlannerError where nothing can be predicted.
    """
    access.require(actor, Role.PLANNER)
    if probe.emulated:
        raise UnsupportedError("an emulated probe calibrates nothing", field="probe", value=str(probe.pk))
    probes = similar_probes(probe)
    if not probes:
        raise UnsupportedError("the probe measured no time per output token", field="probe", value=str(probe.pk))
    factor = _fit(probes, report)
    resolved = from_json(ResolvedSettings, probe.deployment.settings, "settings")
    with transaction.atomic():
        key = _key(probe.deployment, resolved)
        for old in Calibration.objects.select_for_update().filter(**key, active=True):
            old.active = False
            save_record(old, actor=actor)
        row = Calibration(
            **key,
            step_factor=factor.step_factor,
            ttft_extra_ms=factor.ttft_extra_ms,
            samples=factor.samples,
            residual_log_sd=factor.residual_log_sd,
            source=factor.source,
        )
        return save_record(row, actor=actor)


def actives_like(calibration: Calibration) -> list[int]:
    """Keys of the calibrations in use for the same kind of deployment: none or one."""
    return list(Calibration.objects.filter(**_same(calibration), active=True).values_list("pk", flat=True))


def _same(calibration: Calibration) -> dict[str, Any]:
    names = ("engine", "engine_version", "gpu", "model", "precision", "tp")
    return {name: getattr(calibration, name) for name in names}


def set_active(
    *, actor: Actor, calibration: Calibration, active: bool, expected_version: int | None = None
) -> Calibration:
    """Use a calibration, or no longer; the other one of the same kind gives way. Takes a planner."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        if active:
            Calibration.objects.filter(**_same(calibration), active=True).exclude(pk=calibration.pk).update(
                active=False
            )
        calibration.active = active
        save_record(calibration, actor=actor, expected_version=expected_version)
        log_change(calibration, ChangeLog.Action.ACT, actor=actor, after={"active": active})
    return calibration


def similar_probes(probe: ProbeRun) -> list[ProbeRun]:
    """Real, finished probes of the same kind of deployment, newest first, with a measured TPOT."""
    resolved = from_json(ResolvedSettings, probe.deployment.settings, "settings")
    key = _key(probe.deployment, resolved)
    rows = ProbeRun.objects.filter(
        state=ProbeRun.State.DONE,
        emulated=False,
        deployment__emulated=False,
        deployment__model_ref=probe.deployment.model_ref,
        deployment__node__node_type__gpu_model__name=key["gpu"],
    ).select_related("deployment__node__node_type__gpu_model")
    found = []
    for row in rows.order_by("-finished_at")[: MAX_PROBES * 5]:
        other = from_json(ResolvedSettings, row.deployment.settings, "settings")
        if _key(row.deployment, other) == key and _measured(row).tpot_ms.get("mean"):
            found.append(row)
    return found[:MAX_PROBES]


def _fit(probes: list[ProbeRun], report: Report) -> CalibrationFactor:
    """Step factor by repeated simulation (waiting makes TPOT not quite linear in it), then what is left of TTFT."""
    from planner.steptime import calibrated

    subject = prediction.subject(probes[0].deployment)
    base = CalibrationFactor(
        engine=subject.resolved.engine.value,
        gpu=subject.gpu.name,
        model=subject.model.model_id,
        precision=subject.resolved.precision,
        tp=subject.resolved.tp,
        step_factor=1.0,
        ttft_extra_ms=0.0,
        samples=len(probes),
        residual_log_sd=0.1,
        source="probes " + ", ".join(str(row.pk)[:8] for row in probes),
    )
    factor = base
    for turn in range(ROUNDS):
        report(turn / ROUNDS, f"Fitting the step time, round {turn + 1} of {ROUNDS}")
        pairs = _pairs(probes, factor)
        # A roofline may be off by any factor: centre first, so that only runs unlike the others are dropped.
        centre = float(np.exp(np.median([np.log(measured / predicted) for predicted, measured in pairs])))
        fitted = calibrated.fit([(predicted * centre, measured) for predicted, measured in pairs])
        factor = replace(
            factor,
            step_factor=factor.step_factor * centre * fitted.step_factor,
            samples=fitted.samples,
            residual_log_sd=fitted.residual_log_sd,
        )
    report(1.0, "Fitting the time to the first token")
    extra = [_measured(row).ttft_ms["p50"] - _ttft(_predict(row, factor)) for row in probes if _measured(row).ttft_ms]
    return replace(factor, ttft_extra_ms=float(np.median(extra)) if extra else 0.0)


def _pairs(probes: list[ProbeRun], factor: CalibrationFactor) -> list[tuple[float, float]]:
    pairs = []
    for row in probes:
        expected = _predict(row, factor)
        if expected.tpot_ms is not None and expected.tpot_ms.mean > 0:
            pairs.append((expected.tpot_ms.mean, _measured(row).tpot_ms["mean"]))
    if not pairs:
        raise PlannerError("no probe can be predicted", field="probes", value=len(probes))
    return pairs


def _predict(row: ProbeRun, factor: CalibrationFactor) -> Performance:
    return prediction.predict_probe(row.deployment, from_json(ProbeLoad, row.load, "load"), (factor,))


def _ttft(expected: Performance) -> float:
    return expected.ttft_ms.p50 if expected.ttft_ms else 0.0


def _measured(row: ProbeRun) -> ProbeMetrics:
    return from_json(ProbeMetrics, row.metrics, "metrics")


def _key(deployment: Deployment, resolved: ResolvedSettings) -> dict:
    """What makes two deployments the same for a calibration; the model as the planner names it."""
    return {
        "engine": resolved.engine.value,
        "engine_version": deployment.engine_version,
        "gpu": deployment.node.node_type.gpu_model.name,
        "model": model_spec(deployment.model_ref).model_id,
        "precision": resolved.precision,
        "tp": resolved.tp,
    }

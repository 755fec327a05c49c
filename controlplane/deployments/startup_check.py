"""What an engine said of its memory when it became ready, held against the ledger that let it start."""

from __future__ import annotations

from django.db import transaction

from controlplane.deployments import prediction
from controlplane.deployments.models import Deployment, Engine, Validation
from planner.errors import PlannerError
from planner.evidence import Interval
from planner.jsonio import from_json
from planner.memory import kv_tokens_from_gib
from runners.contracts import StartupFacts

METRICS = (("weights_gib", "GiB"), ("kv_gib", "GiB"), ("kv_tokens", "tokens"), ("max_model_len", "tokens"))
WEIGHTS_BAND = 0.01
"""Weights are predicted within 1 %: the worst of 49 measured start-ups lay 0.8 % off."""
LAST_DIGIT_GIB = 0.005
"""Both engines print their weights to a hundredth of a GiB: what they said may be half of one off."""


def check_startup(deployment: Deployment) -> list[Validation]:
    """One Validation for each fact that the engine stated; repeating it replaces them.

    The ledger is that of the fit check before the launch. A context other than the one asked for lies outside. On CPUs
    the engine sizes its cache by a rule of its own, which the ledger does not model: no prediction.
    """
    if not deployment.startup:
        return []
    said = from_json(StartupFacts, deployment.startup, "startup")
    bands, evidence = _predicted(deployment)
    rows = []
    for metric, unit in METRICS:
        measured = getattr(said, metric)
        if measured is None:
            continue
        band = bands.get(metric)
        whose = {"deployment": deployment, "emulated": deployment.emulated}
        rows.append(Validation.of(metric, unit, float(measured), band, evidence if band else "", **whose))
    with transaction.atomic():
        deployment.validations.filter(probe=None).delete()
        Validation.objects.bulk_create(rows)
    return rows


def _predicted(deployment: Deployment) -> tuple[dict[str, Interval], str]:
    try:
        what = prediction.subject(deployment)
    except PlannerError:
        return {}, ""
    asked = float(what.resolved.max_model_len)
    bands = {"max_model_len": Interval(asked, asked, asked)}
    memory = what.ledger
    if deployment.engine == Engine.VLLM_CPU:
        return bands, memory.evidence.value
    weights = memory.weights_gib
    width = max(weights * WEIGHTS_BAND, LAST_DIGIT_GIB)
    bands["weights_gib"] = Interval(weights, max(0.0, weights - width), weights + width)
    if memory.kv_gib_80 is not None:
        bands["kv_gib"] = memory.kv_gib_80
        low, high = (
            float(kv_tokens_from_gib(what.model, what.resolved, max(0.0, gib))[1])
            for gib in (memory.kv_gib_80.low, memory.kv_gib_80.high)
        )
        bands["kv_tokens"] = Interval(float(memory.kv_tokens), low, high)
    return bands, memory.evidence.value

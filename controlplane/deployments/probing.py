"""Probes: what to measure, what was predicted for it, and whether the two agree."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role
from controlplane.core.services import log_change, save_record
from controlplane.deployments import prediction
from controlplane.deployments.models import Deployment, ProbeRun, Validation
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.workloads.services import lengths_of
from planner.errors import InputError, PlannerError
from planner.evidence import Interval
from planner.jsonio import from_json, to_json
from planner.serving.types import Percentiles, Performance
from runners.contracts import Observation, ProbeLoad, ProbeMetrics, node_queue

MAX_REQUESTS = 100_000
MAX_TIMEOUT_S = 86_400
ENDPOINTS = ("completions", "chat", "embeddings")
LIMITED = ("ttft", "tpot", "e2e")
METRICS = (("output_tok_per_s", "tok/s"), ("ttft_ms", "ms"), ("tpot_ms", "ms"))


def probe_deployment(
    *, actor: Actor, deployment: Deployment, load: dict[str, Any] | ProbeLoad | None = None
) -> ProbeRun:
    """Measure a ready deployment under ``load`` (a runners ProbeLoad; None: the planned load). Takes an operator.

    The prediction for exactly this load is stored before it runs. Raises ValidationError.
    """
    access.require(actor, Role.OPERATOR, deployment.node.site)
    if deployment.state != Deployment.State.READY or deployment.host is None:
        raise ValidationError(
            f"{deployment} is {deployment.get_state_display().lower()}; only a ready one can be probed."
        )
    try:
        wanted = load if isinstance(load, ProbeLoad) else from_json(ProbeLoad, load, "load") if load else None
    except InputError as error:
        raise ValidationError({"load": str(error)}) from error
    wanted = wanted or planned_load(deployment)
    _check_load(wanted, deployment)
    row = predicted_probe(deployment, wanted)
    with transaction.atomic():
        Deployment.objects.select_for_update().get(pk=deployment.pk)
        _check_alone(deployment)
        save_record(row, actor=actor)
        submit_probe(actor=actor, probe=row)
    return row


def _check_alone(deployment: Deployment) -> None:
    """Two loads at once measure each other: raises ValidationError while another probe waits or runs."""
    if deployment.probes.filter(state__in=[ProbeRun.State.PENDING, ProbeRun.State.RUNNING]).exists():
        raise ValidationError(f"{deployment} is being probed already. Wait for that probe to end, or cancel its job.")


def predicted_probe(deployment: Deployment, load: ProbeLoad) -> ProbeRun:
    """A probe of ``load``, not yet stored, with what is predicted of it, or why nothing is."""
    row = ProbeRun(deployment=deployment, load=to_json(load), emulated=deployment.emulated)
    try:
        row.prediction = to_json(prediction.predict_probe(deployment, load))
    except PlannerError as error:
        row.no_prediction_reason = str(error)
    return row


def submit_probe(*, actor: Actor, probe: ProbeRun) -> None:
    """Send a stored probe to the host on which its engine runs; the caller has checked role and state."""
    deployment = probe.deployment
    if deployment.host is None:
        raise ValidationError(f"{deployment} runs on no host; start it first.")
    wanted = from_json(ProbeLoad, probe.load, "load")
    with transaction.atomic():
        probe.emulated = deployment.emulated
        probe.job = submit_job(
            actor=actor,
            kind="deployment.probe",
            payload={"deployment": str(deployment.pk), "probe": str(probe.pk)},
            queue=node_queue(deployment.host.slug),
            deadline=dt.timedelta(seconds=wanted.timeout_s) + dt.timedelta(minutes=30),
        )
        probe.save(update_fields={"job", "emulated"})
        log_change(deployment, ChangeLog.Action.ACT, actor=actor, after={"probe": str(probe.pk)})


def planned_load(deployment: Deployment) -> ProbeLoad:
    """The share of its workload's demand that one replica carries, for about a minute; a small load without one."""
    workload = deployment.workload
    if workload is None:
        return ProbeLoad(input_tokens=256, output_tokens=64, concurrency=4, requests=24, warmup_requests=2)
    tokens_in = max(1, round(lengths_of(workload, "input").expected))
    tokens_out = max(1, round(lengths_of(workload, "output").expected))
    replicas = max(1, int((deployment.prediction or {}).get("replicas") or 1))
    if workload.load_kind == workload.LoadKind.OPEN:
        rate = workload.rate_per_s / replicas
        requests = int(min(max(rate * 60, 20), 2000))
        return ProbeLoad(tokens_in, tokens_out, concurrency=0, requests=requests, rate_per_s=rate, warmup_requests=2)
    users = max(1, round((workload.concurrency or 32) / replicas))
    return ProbeLoad(tokens_in, tokens_out, concurrency=users, requests=min(users * 6, 2000), warmup_requests=2)


def start_probe(job: Job) -> None:
    """The worker has begun."""
    ProbeRun.objects.filter(job=job, state=ProbeRun.State.PENDING).update(
        state=ProbeRun.State.RUNNING, started_at=timezone.now()
    )


def store_probe(job: Job, observation: Observation) -> dict[str, Any]:
    """Keep what was measured and hold it against the prediction; returns the job's result."""
    probe = ProbeRun.objects.select_related("deployment__node").filter(job=job).first()
    if probe is None or observation.metrics is None:
        return {"verdict": "The probe is no longer recorded."}
    probe.metrics = to_json(observation.metrics)
    probe.emulated = probe.emulated or observation.emulated
    probe.state = ProbeRun.State.DONE
    probe.started_at = probe.started_at or job.started_at
    probe.finished_at = timezone.now()
    probe.save()
    rows = validate_probe(probe)
    if not probe.emulated and probe.prediction is not None:
        submit_job(actor=job.created_by, kind="calibration.fit", payload={"probe": str(probe.pk)})
    return {"probe": str(probe.pk), "verdicts": {row.metric: row.verdict for row in rows}}


def validate_probe(probe: ProbeRun) -> list[Validation]:
    """Hold each measured number against the predicted one and its 80 % band; repeating it replaces the rows."""
    measured = from_json(ProbeMetrics, probe.metrics, "metrics")
    expected = from_json(Performance, probe.prediction, "prediction") if probe.prediction else None
    values = {
        "output_tok_per_s": measured.output_tok_per_s,
        "ttft_ms": measured.ttft_ms.get("p50"),
        "tpot_ms": measured.tpot_ms.get("p50"),
    }
    rows = []
    with transaction.atomic():
        probe.validations.all().delete()
        for metric, unit in METRICS:
            value = values[metric]
            if value is None:
                continue
            band = _band(expected, metric)
            evidence = str(expected.evidence) if expected else ""
            whose = {"deployment_id": probe.deployment_id, "probe": probe, "emulated": probe.emulated}
            rows.append(Validation.of(metric, unit, value, band, evidence, **whose))
        Validation.objects.bulk_create(rows)
    return rows


def _band(expected: Performance | None, metric: str) -> Interval | None:
    """The predicted median (throughput: mean) with its band."""
    if expected is None:
        return None
    if metric == "output_tok_per_s":
        return expected.output_tok_per_s_80
    point: Percentiles | None = getattr(expected, metric)
    band: Interval | None = getattr(expected, f"{metric}_80")
    return band if point is not None else None


def _check_load(load: ProbeLoad, deployment: Deployment) -> None:
    errors: dict[str, str] = {}
    if load.rate_per_s <= 0 and load.concurrency < 1:
        errors["concurrency"] = "Give a rate above 0 or at least 1 user."
    if not 1 <= load.requests <= MAX_REQUESTS:
        errors["requests"] = f"Give 1 to {MAX_REQUESTS:,} requests."
    if load.input_tokens < 1 or load.output_tokens < 1:
        errors["input_tokens"] = "Requests have at least 1 token in and 1 out."
    limit = int((deployment.settings or {}).get("max_model_len") or 0)
    mean = load.input_tokens + load.output_tokens
    if limit and mean > limit:
        errors["output_tokens"] = f"A request of {mean:,} tokens is longer than the deployment's context of {limit:,}."
    if load.mix and (problem := _mix_problem(load, limit)):
        errors["mix"] = problem
    shortest = min([load.input_tokens, *(pair[0] for pair in load.mix)])
    if not 0 <= load.shared_tokens < max(shortest, 1):
        errors["shared_tokens"] = f"Prompts of {shortest:,} tokens share 0 to {max(shortest, 1) - 1:,} of them."
    if not 1 <= load.shared_prefixes <= MAX_REQUESTS:
        errors["shared_prefixes"] = f"Give 1 to {MAX_REQUESTS:,} shared beginnings."
    if load.input_sd < 0 or load.output_sd < 0:
        errors["input_sd"] = "A spread cannot be negative."
    if not 0 <= load.warmup_requests <= MAX_REQUESTS:
        errors["warmup_requests"] = f"Give 0 to {MAX_REQUESTS:,} requests."
    if not 0 <= load.seed < 2**32:
        errors["seed"] = "Give a whole number from 0 to 4,294,967,295."
    if not 0 < load.timeout_s <= MAX_TIMEOUT_S:
        errors["timeout_s"] = f"Give at most {MAX_TIMEOUT_S:,} seconds, and more than 0."
    if load.endpoint not in ENDPOINTS:
        errors["endpoint"] = f"Use one of: {', '.join(ENDPOINTS)}."
    if not (load.slo_ms.keys() <= set(LIMITED) and all(limit > 0 for limit in load.slo_ms.values())):
        errors["slo_ms"] = f"Give limits above 0 ms of {', '.join(LIMITED)}."
    if errors:
        raise ValidationError({"load": [f"{name}: {text}" for name, text in errors.items()]})


def _mix_problem(load: ProbeLoad, limit: int) -> str:
    """What is wrong with a mixture of lengths, in one sentence; empty when it is sound. ``limit`` of context, or 0."""
    if any(min(pair) <= 0 for pair in load.mix):
        return "Give at least 1 token in, 1 token out and more than 0 percent of each."
    if abs(sum(percent for _, _, percent in load.mix) - 100) >= 0.01:
        return "The percentages of a mixture of lengths must add up to 100."
    for at, (tokens_in, tokens_out, _) in enumerate(load.mix, 1):
        if limit and tokens_in + tokens_out > limit:
            return (
                f"Requests of entry {at} ({tokens_in:,} in, {tokens_out:,} out) are longer than the deployment's "
                f"context of {limit:,}."
            )
    means = [sum(pair[side] * pair[2] for pair in load.mix) / 100 for side in (0, 1)]
    if abs(means[0] - load.input_tokens) > 1 or abs(means[1] - load.output_tokens) > 1:
        return f"Its means are {means[0]:,.0f} in and {means[1]:,.0f} out; state them as input and output tokens."
    return ""

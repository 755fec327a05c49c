"""Settling a verdict that is too close to call: one act makes the deployment, starts it, and probes it once ready."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.core.services import save_record
from controlplane.deployments import probing, services
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Gpu, Node
from controlplane.planning.models import Plan
from controlplane.planning.uploads import check_as_planned
from controlplane.workloads.models import Workload
from controlplane.workloads.services import lengths_of
from planner.words import ENGINE_LABEL
from runners.contracts import ProbeLoad

HELD = (Deployment.State.PENDING, *Deployment.LIVE)
PROBE_S = 120
MOST_REQUESTS = 4000


def candidate_to_probe(result: dict[str, Any], workload: str) -> dict[str, Any]:
    """The candidate whose probe narrows the wider band: the one that the verdict's probe names.

    Raises ValidationError for a verdict that needs no probe.
    """
    verdict: dict[str, Any] = next((v for v in result.get("verdicts", ()) if v["workload"] == workload), {})
    words = str(verdict.get("probe") or "")
    if not words:
        raise ValidationError(f"The verdict on {workload} is not too close to call; there is nothing to settle.")
    by_id = {c["id"]: c for c in result["candidates"]}
    pair = [by_id[key] for key in (verdict.get("runner_up"), verdict.get("chosen")) if key in by_id]
    able = [candidate for candidate in pair if candidate.get("settings")]
    if not able:
        raise ValidationError(f"The plan does not hold the candidate that a probe of {workload} would measure.")
    return next((c for c in able if ENGINE_LABEL[c["settings"]["engine"]] in words), able[-1])


def settle_verdict(*, actor: Actor, plan: Plan, workload: str) -> ProbeRun:
    """Deploy one replica of the candidate to probe on free GPUs, start it, and probe it when it is ready.

    The probe waits until then; it runs at the largest load predicted within the SLO. A node without a worker leaves the
    deployment to be started by hand. Takes an operator. Raises ValidationError when nothing needs settling, the
    workload is gone, its uploaded model is not as planned, or no node has room.
    """
    access.require(actor, Role.OPERATOR)
    candidate = candidate_to_probe(plan.result or {}, workload)
    record = Workload.objects.filter(name=workload).first()
    if record is None:
        raise ValidationError(f"The workload {workload} is no longer recorded.")
    if candidate.get("disagg"):
        raise ValidationError("Pools of prefill and decode are not deployed by one act; launch them from the plan.")
    model = services.planned_model(plan, workload, record)
    check_as_planned(plan, model)
    settings = candidate["settings"]
    with transaction.atomic():
        node, indexes = _room(candidate)
        row = Deployment(
            name=f"Probe: {workload} / {settings['engine']} ({plan})"[:150],
            plan=None,
            workload=record,
            candidate_id=candidate["id"],
            node=node,
            model_ref=model,
            planned_engine=settings["engine"],
            engine=settings["engine"],
            engine_version=settings["version"],
            gpu_indexes=indexes,
            settings=settings,
            prediction={key: candidate.get(key) for key in ("memory", "performance", "replicas", "evidence")},
        )
        save_record(row, actor=actor)
        probe = probing.predicted_probe(row, _load(record, candidate))
        save_record(probe, actor=actor)
    if services.worker_is_alive(node):
        services.launch_deployment(actor=actor, deployment=row)
    return probe


def _load(workload: Workload, candidate: dict[str, Any]) -> ProbeLoad:
    """The largest load of one replica for two minutes: a rate, or its share of the users."""
    tokens_in, tokens_out = (max(1, round(lengths_of(workload, side).expected)) for side in ("input", "output"))
    if workload.load_kind == workload.LoadKind.OPEN:
        rate = float(candidate["replica_rate_per_s"])
        requests = int(min(max(rate * PROBE_S, 20), MOST_REQUESTS))
        return ProbeLoad(tokens_in, tokens_out, concurrency=0, requests=requests, rate_per_s=rate, warmup_requests=2)
    users = max(1, round((workload.concurrency or 32) * min(1.0, float(candidate.get("replica_share") or 1.0))))
    return ProbeLoad(
        tokens_in, tokens_out, concurrency=users, requests=min(users * 8, MOST_REQUESTS), warmup_requests=2
    )


def _room(candidate: dict[str, Any]) -> tuple[Node, list[int]]:
    """A node of the candidate's GPU with enough free ones side by side; raises ValidationError when there is none."""
    need = int(candidate["gpus_per_replica"])
    rows = Node.objects.filter(state=Node.State.ACTIVE, node_type__gpu_model__name=candidate["gpu"])
    taken: dict[int, set[int]] = {}
    for node_id, indexes in Deployment.objects.filter(state__in=HELD).values_list("node_id", "gpu_indexes"):
        taken.setdefault(node_id, set()).update(indexes)
    for node_id, index in Gpu.objects.exclude(state=Gpu.State.OK).values_list("node_id", "index"):
        taken.setdefault(node_id, set()).add(index)
    nodes = list(rows.select_related("node_type__gpu_model", "site").order_by("name"))
    for node in sorted(nodes, key=lambda node: not services.worker_is_alive(node)):
        domain = max(1, node.node_type.nvlink_domain if node.node_type.nvlink_domain > 1 else node.node_type.gpus)
        for start in range(0, node.node_type.gpus, domain):
            free = [
                index
                for index in range(start, min(start + domain, node.node_type.gpus))
                if index not in taken.get(node.pk, set())
            ]
            if len(free) >= need:
                return node, free[:need]
    raise ValidationError(
        f"No active node has {need} free {candidate['gpu']} together; stop a deployment, or probe elsewhere by hand."
    )


def start_waiting_probes(deployment: Deployment) -> None:
    """Submit the probes that waited for the engine to be ready."""
    for probe in deployment.probes.filter(state=ProbeRun.State.PENDING, job__isnull=True):
        probing.submit_probe(actor=None, probe=probe)

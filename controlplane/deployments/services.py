"""Acts on deployments: made from a plan or by hand, launched, stopped. What nodes report is in reporting.py."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role
from controlplane.core.services import delete_record, log_change, save_record
from controlplane.deployments import prediction
from controlplane.deployments.models import Deployment, Engine
from controlplane.inventory.models import Node
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.planning.models import Plan
from controlplane.planning.uploads import check_as_planned
from controlplane.workloads.models import LlmModel, Workload
from controlplane.workloads.services import planner_model
from planner.catalog.models import model_name
from planner.engines.types import ResolvedSettings
from planner.errors import PlannerError
from planner.jsonio import from_json, to_json
from runners.contracts import EngineLaunch, node_queue

State = Deployment.State
STARTABLE = (State.PENDING, State.STOPPED, State.FAILED)
STOPPABLE = (State.LAUNCHING, State.LOADING, State.READY, State.FAILED)
WORKER_ALIVE = dt.timedelta(minutes=2)


def create_deployments(*, actor: Actor, plan: Plan) -> list[Deployment]:
    """One pending deployment for each replica of an approved plan; takes an operator. Repeating it adds nothing.

    Units of prefill and decode pools get none: what a plan exports starts them.
    """
    access.require(actor, Role.OPERATOR)
    result = plan.result or {}
    candidates = {item["id"]: item for item in result.get("candidates", [])}
    rows = plan.placements.select_related("workload", "node__node_type__gpu_model").order_by("pk")
    replicas: dict[tuple[str, str, int], list[Any]] = {}
    for row in rows:
        if row.node is not None:
            replicas.setdefault((row.workload_name, row.candidate_id, row.replica), []).append(row)
    made = []
    with transaction.atomic():
        held = set(plan.deployments.values_list("candidate_id", "replica"))
        for (name, candidate_id, replica), parts in replicas.items():
            candidate = candidates.get(candidate_id)
            if (candidate_id, replica) in held or not candidate or not candidate.get("settings"):
                continue
            if candidate.get("disagg"):
                continue
            made.append(_from_candidate(actor, plan, name, replica, parts, candidate))
    return made


def create_deployment(
    *,
    actor: Actor,
    node: Node,
    model_ref: str,
    engine: str,
    gpu_indexes: list[int] | None = None,
    options: dict[str, Any] | None = None,
    workload: Workload | None = None,
    name: str = "",
) -> Deployment:
    """A deployment by hand: ``engine`` vllm or tensorrt_llm with planner EngineSettings ``options``, on GPUs of a node.

    On a node of CPUs vllm means vLLM for CPUs. Takes an operator of the node's site. Raises ValidationError when the
    engine cannot serve the model there, with the reason.
    """
    access.require(actor, Role.OPERATOR, node.site)
    wanted = {**(options or {}), "engine": engine}
    tp = int(wanted.get("tp", 1)) * int(wanted.get("pp", 1)) * int(wanted.get("dp", 1))
    indexes = list(range(tp)) if gpu_indexes is None else sorted(set(gpu_indexes))
    if len(indexes) != tp:
        raise ValidationError({"gpu_indexes": f"{len(indexes)} GPUs are given, the settings need {tp}."})
    if any(not 0 <= index < node.node_type.gpus for index in indexes):
        raise ValidationError({"gpu_indexes": f"{node} has the GPUs 0 to {node.node_type.gpus - 1}."})
    try:
        kind = node.node_type.gpu_model
        resolved = prediction.resolve_settings(model_ref, kind.name, wanted, kind.memory_gib)
    except PlannerError as error:
        raise ValidationError({"settings": str(error)}) from error
    row = Deployment(
        name=(name or f"{model_ref.rsplit('/', 1)[-1]} on {node}")[:150],
        workload=workload,
        node=node,
        model_ref=model_ref,
        planned_engine=resolved.engine.value,
        engine=_real_engine(resolved.engine.value, node),
        engine_version=resolved.version,
        gpu_indexes=indexes,
        settings=to_json(resolved),
    )
    row.prediction = {**prediction.predicted_parts(row), "performance": None}
    return save_record(row, actor=actor)


def launch_deployment(*, actor: Actor, deployment: Deployment, emulated: bool = False) -> Job:
    """Start an engine: on the node's own worker, or ``emulated`` on the local one. Takes an operator of the site.

    Raises ValidationError, with the remedy, when it does not fit in memory, its GPUs are taken, it runs already, or no
    worker could run it.
    """
    access.require(actor, Role.OPERATOR, deployment.node.site)
    if deployment.state not in STARTABLE:
        raise ValidationError(f"{deployment} is {deployment.get_state_display().lower()}; stop it before starting it.")
    if deployment.plan is not None:
        check_as_planned(deployment.plan, deployment.model_ref)
    _check_fits(deployment)
    host = _host_for(deployment, emulated)
    try:
        material = prediction.emulation_of(deployment) if emulated else {}
    except PlannerError as error:
        raise ValidationError(f"{deployment} cannot be emulated: {error}") from error
    with transaction.atomic():
        _check_free(deployment)
        on_slice = bool(deployment.device.get("slice_profile"))
        if on_slice and not emulated and not deployment.device.get("slice_uuid"):
            raise ValidationError(f"The slice of {deployment} has no UUID; discover {deployment.node} first.")
        engine = Engine.EMULATED if emulated else _real_engine(deployment.planned_engine, deployment.node)
        port = _free_port(host, tried=deployment.port if deployment.state == State.FAILED else None)
        resolved = from_json(ResolvedSettings, deployment.settings, "settings")
        launch = EngineLaunch(
            engine=str(engine),
            version=resolved.version,
            model=_engine_model(deployment.model_ref, host),
            served_name=deployment.model_ref,
            port=port,
            gpu_indexes=() if on_slice else tuple(deployment.gpu_indexes),
            env={"CUDA_VISIBLE_DEVICES": deployment.device["slice_uuid"]} if on_slice else {},
            flags=prediction.engine_flags(resolved),
            stated=tuple(sorted(name for name, origin in resolved.origin.items() if origin == "user")),
            emulation=material,
        )
        job = submit_job(
            actor=actor,
            kind="deployment.launch",
            payload={"deployment": str(deployment.pk)},
            queue=node_queue(host.slug),
            deadline=dt.timedelta(seconds=launch.ready_timeout_s) + dt.timedelta(minutes=30),
        )
        values: dict[str, Any] = {
            "state": State.LAUNCHING, "reason": "", "remedy": "", "phase": "Waiting for the node's worker",
            "engine": str(engine), "emulated": emulated, "host": host, "port": port, "launch": to_json(launch),
            "job": job, "base_url": "", "pid": None, "command_line": [], "startup": None, "ready_at": None,
            "stopped_at": None, "updated_at": timezone.now(),
        }  # fmt: skip
        try:
            moved = Deployment.objects.filter(pk=deployment.pk, state__in=STARTABLE).update(**values)
        except IntegrityError as error:
            raise ValidationError(f"Port {port} was taken in this moment; start it again.") from error
        if not moved:
            raise ValidationError(f"{deployment} was started by someone else in this moment.")
        deployment.refresh_from_db()
        log_change(deployment, ChangeLog.Action.ACT, actor=actor, after={"launch": str(engine), "host": host.name})
    return job


def stop_deployment(*, actor: Actor, deployment: Deployment) -> Job | None:
    """Stop an engine and everything it started; None when nothing had been started. Takes an operator of the site."""
    access.require(actor, Role.OPERATOR, deployment.node.site)
    with transaction.atomic():
        if not Deployment.objects.select_for_update().filter(pk=deployment.pk):
            raise ValidationError(f"{deployment} was deleted in this moment.")
        deployment.refresh_from_db()  # as it is now: it may have been started or stopped since it was read
        if deployment.host is None or deployment.state in (State.PENDING, State.STOPPED):
            moved = Deployment.objects.filter(pk=deployment.pk, state=State.PENDING).update(state=State.STOPPED)
            if moved:
                deployment.refresh_from_db()
                log_change(deployment, ChangeLog.Action.ACT, actor=actor, after={"stop": True})
            return None
        moved = Deployment.objects.filter(pk=deployment.pk, state__in=STOPPABLE).update(
            state=State.STOPPING, phase="Waiting for the node's worker", updated_at=timezone.now()
        )
        if not moved:
            raise ValidationError(f"{deployment} is {deployment.get_state_display().lower()} already.")
        job = submit_job(
            actor=actor,
            kind="deployment.stop",
            payload={"deployment": str(deployment.pk)},
            queue=node_queue(deployment.host.slug),
        )
        deployment.job = job
        Deployment.objects.filter(pk=deployment.pk).update(job=job)
        deployment.refresh_from_db()
        log_change(deployment, ChangeLog.Action.ACT, actor=actor, after={"stop": True})
    return job


def delete_deployment(*, actor: Actor, deployment: Deployment) -> None:
    """Forget a deployment that does not run; its probes and validations go with it."""
    access.require(actor, Role.OPERATOR, deployment.node.site)
    if deployment.state in Deployment.LIVE:
        raise ValidationError(f"{deployment} is {deployment.get_state_display().lower()}; stop it first.")
    delete_record(deployment, actor=actor)


def worker_is_alive(node: Node) -> bool:
    """Whether the node's worker has shown a sign of life in the last two minutes."""
    seen = node.worker_last_seen_at
    return seen is not None and timezone.now() - seen < WORKER_ALIVE


def _from_candidate(
    actor: Actor, plan: Plan, name: str, replica: int, parts: list[Any], candidate: dict[str, Any]
) -> Deployment:
    first = parts[0]
    settings = candidate["settings"]
    row = Deployment(
        name=f"{name} / {settings['engine']} / {replica + 1} (plan {plan.number})"[:150],
        plan=plan,
        workload=first.workload,
        candidate_id=candidate["id"],
        replica=replica,
        node=first.node,
        model_ref=planned_model(plan, name, first.workload),
        planned_engine=settings["engine"],
        engine=_real_engine(settings["engine"], first.node),
        engine_version=settings["version"],
        gpu_indexes=list(first.gpu_indexes),
        device=dict(first.device),
        parts=[[part.node_name, list(part.gpu_indexes)] for part in parts] if len(parts) > 1 else [],
        settings=settings,
        prediction={
            "memory": candidate.get("memory"),
            "performance": candidate.get("performance"),
            "replicas": candidate.get("replicas"),
            "evidence": candidate.get("evidence"),
        },
    )
    return save_record(row, actor=actor)


def planned_model(plan: Plan, name: str, workload: Workload | None) -> str:
    """The model as the plan was computed with it; an uploaded one by its id, not by the path the planner saw."""
    asked = next((item["model"] for item in (plan.request or {}).get("workloads", []) if item["name"] == name), "")
    found = model_name(str(asked)) if asked else (workload.model_ref if workload else "")
    return found[:200]


def _real_engine(planned: str, node: Node) -> str:
    if node.node_type.gpu_model.vendor == "cpu" and planned == Engine.VLLM:
        return Engine.VLLM_CPU
    return planned


def _engine_model(model_ref: str, host: Node) -> str:
    """What the engine loads: the id, or the folder of an uploaded configuration when the host shares our disk."""
    if host.is_local and LlmModel.objects.filter(model_id=model_ref).exists():
        return planner_model(model_ref).removesuffix("/config.json")
    return model_ref


def _check_fits(deployment: Deployment) -> None:
    try:
        memory = prediction.subject(deployment).ledger
    except PlannerError as error:
        raise ValidationError(f"{deployment} cannot be checked for memory: {error}") from error
    if not memory.fits:
        reasons = "; ".join(reason.rstrip(".") for reason in memory.reasons)
        raise ValidationError(
            f"{deployment} does not fit: {reasons}. Plan it with more GPUs, a shorter context or a smaller precision."
        )


def _check_free(deployment: Deployment) -> None:
    wanted = set(deployment.gpu_indexes)
    others = Deployment.objects.filter(node=deployment.node, state__in=Deployment.LIVE).exclude(pk=deployment.pk)
    for other in others:
        shared = wanted & set(other.gpu_indexes)
        if shared and not _apart(deployment.device, other.device):
            which = ", ".join(map(str, sorted(shared)))
            raise ValidationError(f"GPU {which} of {deployment.node} is used by {other}; stop that first.")


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two engines may stand on one GPU: on different slices, or on different slots of equal shares."""
    if one.get("slice_profile") and other.get("slice_profile"):
        return one.get("slice_index") != other.get("slice_index")
    same = one.get("sharers", 1) == other.get("sharers", 1) > 1
    return same and one.get("slot") != other.get("slot")


def _host_for(deployment: Deployment, emulated: bool) -> Node:
    if emulated:
        local = Node.objects.filter(is_local=True).first()
        if local is None:
            raise ValidationError("No node is marked local, so nothing can be emulated; mark the host of this server.")
        return local
    if deployment.parts:
        nodes = ", ".join(part[0] for part in deployment.parts)
        raise ValidationError(
            f"{deployment} spans the nodes {nodes}; a worker starts engines on its own node only. Export it instead."
        )
    if deployment.node.orchestrator != Node.Orchestrator.NONE:
        owner = deployment.node.get_orchestrator_display()
        raise ValidationError(
            f"{deployment.node} belongs to {owner}, which starts what runs there; export the plan for {owner}, or "
            "start the deployment emulated."
        )
    if deployment.node.state != Node.State.ACTIVE:
        state = deployment.node.get_state_display().lower()
        raise ValidationError(f"{deployment.node} is {state}, not active; start it emulated, or change the node.")
    if deployment.node.worker_last_seen_at is None and not deployment.node.is_local:
        slug = deployment.node.slug
        raise ValidationError(
            f"The worker of {deployment.node} has never been seen. Start it there (TONNAGE_NODE_SLUG={slug} "
            "python -m runners worker), or start the deployment emulated."
        )
    return deployment.node


def _free_port(host: Node, tried: int | None) -> int:
    """The first port of ours that no live deployment of ``host`` has; after a failure on ``tried`` the next one on.

    What else listens on a node only its worker sees: each launch that it refuses moves on by one port.
    """
    first, last = django_settings.ENGINE_PORTS
    taken = set(
        Deployment.objects.filter(host=host, state__in=Deployment.LIVE, port__isnull=False).values_list(
            "port", flat=True
        )
    )
    free = [port for port in range(first, last + 1) if port not in taken]
    if not free:
        raise ValidationError(f"Every engine port of {host} ({first} to {last}) is in use; stop a deployment.")
    return next((port for port in free if tried is not None and port > tried), free[0])

"""Acts on scenarios and plans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.text import slugify

from controlplane.celery import PLAN_QUEUE
from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role, User
from controlplane.core.services import delete_record, log_change, save_record
from controlplane.inventory.models import Node, Site
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.planning.models import PlacementRow, Plan, Scenario, VerdictRow
from controlplane.workloads.models import Workload
from planner.jsonio import to_json
from planner.plan_types import PlanRequest, PlanResult


def save_scenario(
    *,
    actor: Actor,
    scenario: Scenario,
    sites: Iterable[Site] | None = None,
    workloads: Iterable[Workload] | None = None,
    expected_version: int | None = None,
) -> Scenario:
    """Create or change a scenario; ``sites`` and ``workloads`` replace the chosen ones when given. Takes a planner."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        if not scenario.slug:
            scenario.slug = slugify(scenario.name)[:60]
        save_record(scenario, actor=actor, expected_version=expected_version)
        for field, chosen in (("sites", sites), ("workloads", workloads)):
            if chosen is not None:
                _choose(scenario, field, chosen, actor)
    return scenario


def delete_scenario(*, actor: Actor, scenario: Scenario) -> None:
    """Delete a scenario and its plans; deployments made from them stay."""
    access.require(actor, Role.PLANNER)
    delete_record(scenario, actor=actor)


def compute_plan(*, actor: Actor, scenario: Scenario) -> Plan:
    """Submit a new plan of a scenario; its job computes it. Takes a planner."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        Scenario.objects.select_for_update().get(pk=scenario.pk)
        last = scenario.plans.aggregate(last=Max("number"))["last"] or 0
        plan = Plan(
            scenario=scenario,
            number=last + 1,
            state=Plan.State.COMPUTING,
            created_by=actor if isinstance(actor, User) else None,
        )
        save_record(plan, actor=actor)
        deadline = dt.timedelta(seconds=scenario.time_limit_s) + dt.timedelta(minutes=30)
        plan.job = submit_job(
            actor=actor, kind="plan.compute", payload={"plan": plan.pk}, queue=PLAN_QUEUE, deadline=deadline
        )
        plan.save(update_fields={"job"})
    return plan


def store_request(plan: Plan, request: PlanRequest) -> None:
    """Freeze what is asked."""
    Plan.objects.filter(pk=plan.pk).update(request=to_json(request))


def store_result(plan: Plan, result: PlanResult) -> dict[str, Any]:
    """Freeze the answer, with its placements and verdicts as rows; returns the job's result. Repeatable."""
    with transaction.atomic():
        plan.result = to_json(result)
        plan.state = Plan.State.READY
        plan.status = result.status
        plan.model_version = result.model_version[:40]
        plan.usd_per_hour = result.usd_per_hour
        plan.computed_at = timezone.now()
        plan.save()
        plan.placements.all().delete()
        plan.verdicts.all().delete()
        workloads = {row.name: row for row in Workload.objects.all()}
        nodes = {row.name: row for row in Node.objects.all()}
        PlacementRow.objects.bulk_create(
            PlacementRow(
                plan=plan,
                workload=workloads.get(item.workload),
                workload_name=item.workload,
                candidate_id=item.candidate_id,
                replica=item.replica,
                node=nodes.get(item.node),
                node_name=item.node,
                gpu_indexes=list(item.gpu_indexes),
            )
            for item in result.placements
        )
        VerdictRow.objects.bulk_create(
            VerdictRow(
                plan=plan,
                workload=workloads.get(item.workload),
                workload_name=item.workload,
                engine=item.engine or "",
                chosen=item.chosen or "",
                runner_up=item.runner_up or "",
                sentence=item.sentence,
                margin=item.margin.value if item.margin else None,
                margin_low=item.margin.low if item.margin else None,
                margin_high=item.margin.high if item.margin else None,
                too_close=item.too_close,
            )
            for item in result.verdicts
        )
    return {"plan": plan.pk, "status": result.status, "placements": len(result.placements)}


def fail_plan(plan_id: int) -> None:
    """The job ended without an answer; why, stands in the job."""
    Plan.objects.filter(pk=plan_id, state=Plan.State.COMPUTING).update(state=Plan.State.FAILED)


def approve_plan(*, actor: Actor, plan: Plan) -> Plan:
    """Accept a plan: its placements become deployments, an older approved plan is superseded. Takes an operator.

    Raises ValidationError when the plan is not ready. Approving twice changes nothing.
    """
    from controlplane.deployments.services import create_deployments

    access.require(actor, Role.OPERATOR)
    with transaction.atomic():
        moved = Plan.objects.filter(pk=plan.pk, state=Plan.State.READY).update(
            state=Plan.State.APPROVED,
            approved_by=actor if isinstance(actor, User) else None,
            approved_at=timezone.now(),
        )
        plan.refresh_from_db()
        if not moved:
            if plan.state == Plan.State.APPROVED:
                return plan
            raise ValidationError(
                f"Plan {plan} is {plan.get_state_display().lower()}; only a ready plan can be approved."
            )
        plan.scenario.plans.filter(state=Plan.State.APPROVED).exclude(pk=plan.pk).update(state=Plan.State.SUPERSEDED)
        log_change(plan, ChangeLog.Action.ACT, actor=actor, after={"state": plan.state})
        create_deployments(actor=actor, plan=plan)
    return plan


def cancel_plan(*, actor: Actor, plan: Plan) -> Job | None:
    """Stop computing a plan."""
    from controlplane.jobs.services import request_cancel

    return request_cancel(actor=actor, job=plan.job) if plan.job else None


def compare_plans(left: Plan, right: Plan) -> dict[str, Any]:
    """Two plans side by side: totals and, for each workload, what is chosen, its GPUs and its price."""
    for plan in (left, right):
        if plan.result is None:
            raise ValidationError(f"Plan {plan} has no result to compare.")
    rows = []
    sides = [_by_workload(left.result or {}), _by_workload(right.result or {})]
    for name in sorted({*sides[0], *sides[1]}):
        before, after = sides[0].get(name), sides[1].get(name)
        rows.append({"workload": name, "left": before, "right": after, "changed": before != after})
    totals = ("status", "usd_per_hour", "idle_usd_per_hour", "gap", "moves")
    return {
        "totals": {key: [(left.result or {}).get(key), (right.result or {}).get(key)] for key in totals},
        "workloads": rows,
    }


def _by_workload(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    candidates = {item["id"]: item for item in result.get("candidates", [])}
    found: dict[str, dict[str, Any]] = {}
    for verdict in result.get("verdicts", []):
        chosen = candidates.get(verdict.get("chosen") or "", {})
        cost = chosen.get("cost") or {}
        found[verdict["workload"]] = {
            "engine": verdict.get("engine"),
            "candidate": verdict.get("chosen"),
            "gpu": chosen.get("gpu"),
            "replicas": chosen.get("replicas", 0),
            "gpus": chosen.get("replicas", 0) * chosen.get("gpus_per_replica", 0),
            "usd_per_mtok_output": cost.get("usd_per_mtok_output"),
            "usd_per_mtok_output_80": cost.get("usd_per_mtok_output_80"),
            "evidence": chosen.get("evidence"),
            "usd_per_month": cost.get("usd_per_month"),
            "nodes": sorted({item["node"] for item in result["placements"] if item["workload"] == verdict["workload"]}),
        }
    return found


def _choose(scenario: Scenario, field: str, chosen: Iterable[Any], actor: Actor) -> None:
    manager = getattr(scenario, field)
    before = sorted(manager.values_list("name", flat=True))
    manager.set(chosen)
    after = sorted(manager.values_list("name", flat=True))
    if before != after:
        log_change(scenario, ChangeLog.Action.UPDATE, actor=actor, before={field: before}, after={field: after})

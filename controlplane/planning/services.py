"""Acts on scenarios and plans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max, Q
from django.utils import timezone
from django.utils.text import slugify

from controlplane.celery import PLAN_QUEUE
from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role, User
from controlplane.core.services import log_change, save_record
from controlplane.inventory.models import Node, Site
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.planning import uploads
from controlplane.planning.models import PlacementRow, Plan, Scenario, VerdictRow
from controlplane.workloads.models import Workload
from planner.jsonio import from_json, to_json
from planner.plan import check_request
from planner.plan_types import Placement, PlanRequest, PlanResult
from planner.whatif import Change, apply, as_json, words


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
        _free_name(scenario)
        save_record(scenario, actor=actor, expected_version=expected_version)
        for field, chosen in (("sites", sites), ("workloads", workloads)):
            if chosen is not None:
                _choose(scenario, field, chosen, actor)
        _check_named_workloads(scenario)
    return scenario


def _check_named_workloads(scenario: Scenario) -> None:
    """What an API price or a price class is for must be a workload of the scenario, else it would say nothing."""
    if not (scenario.api_prices or scenario.price_classes):
        return
    chosen = scenario.workloads.values_list("name", flat=True)
    known = list(chosen) or list(Workload.objects.values_list("name", flat=True))
    named = [("api_prices", f"[{i}].workload", row["workload"]) for i, row in enumerate(scenario.api_prices)]
    for i, row in enumerate(scenario.price_classes):
        named += [("price_classes", f"[{i}].workloads", name) for name in row.get("workloads", ())]
    for field, place, name in named:
        if name not in known:
            use = f"Name one of: {', '.join(known[:8])}" if known else "Describe the workload first"
            raise ValidationError(
                {field: f"{field}{place} is no workload of this scenario (got {name!r}). {use}; or leave it out."}
            )


def _free_name(scenario: Scenario) -> None:
    """A deleted scenario gives up its name; should its deletion be taken back, it returns under another."""
    taken = Scenario.everything.filter(discarded_at__isnull=False).exclude(pk=scenario.pk)
    for row in taken.filter(Q(name=scenario.name) | Q(slug=scenario.slug)):
        row.name, row.slug = f"{row.name[:80]} (deleted, {row.pk})", f"{row.slug[:45]}-deleted-{row.pk}"
        row.save(update_fields={"name", "slug"})


def compute_plan(*, actor: Actor, scenario: Scenario) -> Plan:
    """Submit a new plan of a scenario; its job computes it. Takes a planner."""
    access.require(actor, Role.PLANNER)
    return _start(actor, scenario)


def create_what_if(*, actor: Actor, base: Plan, changes: Sequence[Change], title: str = "") -> Plan:
    """A new plan of what ``base`` was asked, with ``changes``; its job computes it. Takes a planner.

    The changed question is frozen at once: what happens to the inventory meanwhile does not touch it. Raises
    ValidationError when the base was never asked or nothing is changed, InputError for a change that cannot be made.
    """
    access.require(actor, Role.PLANNER)
    if base.request is None:
        raise ValidationError(f"Plan {base} has not read fleet and workloads yet; wait for it.")
    if not changes:
        raise ValidationError("Nothing is changed; fill in at least one line.")
    changed = apply(from_json(PlanRequest, base.request), changes)
    named = (title.strip() or words(changes, changed.currency))[:300]
    asked = replace(changed, name=named)
    check_request(asked)
    extra = {"base": base, "changes": as_json(changes), "title": named, "request": to_json(asked)}
    extra |= {"model_digests": uploads.digests(asked)}
    return _start(actor, base.scenario, **extra)


def compute_again(*, actor: Actor, plan: Plan) -> Job:
    """Compute a plan anew whose job failed or was cancelled; returns its new job. Takes a planner.

    Raises ValidationError for a plan that has its answer, or waits for it.
    """
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        moved = Plan.objects.filter(pk=plan.pk, state=Plan.State.FAILED).update(state=Plan.State.COMPUTING)
        plan.refresh_from_db()
        if not moved:
            state = plan.get_state_display().lower()
            raise ValidationError(f"Plan {plan} is {state}; only a failed one is computed again in its place.")
        return _submit(actor, plan)


def _start(actor: Actor, scenario: Scenario, **values: Any) -> Plan:
    with transaction.atomic():
        Scenario.objects.select_for_update().get(pk=scenario.pk)
        last = Plan.everything.filter(scenario=scenario).aggregate(last=Max("number"))["last"] or 0
        plan = Plan(
            scenario=scenario,
            number=last + 1,
            state=Plan.State.COMPUTING,
            created_by=actor if isinstance(actor, User) else None,
            **values,
        )
        save_record(plan, actor=actor)
        _submit(actor, plan)
    return plan


def _submit(actor: Actor, plan: Plan) -> Job:
    """The job that computes ``plan``."""
    deadline = dt.timedelta(seconds=plan.scenario.time_limit_s) + dt.timedelta(minutes=30)
    plan.job = submit_job(
        actor=actor, kind="plan.compute", payload={"plan": plan.pk}, queue=PLAN_QUEUE, deadline=deadline
    )
    plan.save(update_fields={"job"})
    return plan.job


def store_request(plan: Plan, request: PlanRequest) -> None:
    """Freeze what is asked, and of uploaded models which content."""
    Plan.objects.filter(pk=plan.pk).update(request=to_json(request), model_digests=uploads.digests(request))


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
                device=device_of(item),
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


def device_of(item: Placement) -> dict[str, Any]:
    """What a placement holds of its GPU when that is not the whole; {} for whole GPUs."""
    if item.slice_profile:
        return {name: getattr(item, name) for name in ("slice_profile", "slice_index", "slice_uuid")}
    return {"sharers": item.sharers, "slot": item.slot} if item.sharers > 1 else {}


def fail_plan(plan_id: int) -> None:
    """The job ended without an answer; why, stands in the job."""
    Plan.objects.filter(pk=plan_id, state=Plan.State.COMPUTING).update(state=Plan.State.FAILED)


def approve_plan(*, actor: Actor, plan: Plan) -> Plan:
    """Accept a plan: its placements become deployments, an older approved plan is superseded. Takes an operator.

    Raises ValidationError when the plan is not ready, is a what-if, or names an uploaded model that has another content
    since. Approving twice changes nothing.
    """
    from controlplane.deployments.services import create_deployments

    access.require(actor, Role.OPERATOR)
    if plan.is_what_if:
        raise ValidationError(
            f"Plan {plan} is a what-if ({plan.title}); change fleet or workloads so and compute a plan to approve."
        )
    if plan.state == Plan.State.READY:
        uploads.check_as_planned(plan)
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


def _choose(scenario: Scenario, field: str, chosen: Iterable[Any], actor: Actor) -> None:
    manager = getattr(scenario, field)
    before = sorted(manager.values_list("name", flat=True))
    manager.set(chosen)
    after = sorted(manager.values_list("name", flat=True))
    if before != after:
        log_change(scenario, ChangeLog.Action.UPDATE, actor=actor, before={field: before}, after={field: after})

"""Deleting scenarios and plans, and taking that back: they are hidden first, and gone for good a day later."""

from __future__ import annotations

import datetime as dt

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, Role
from controlplane.core.services import log_change, snapshot
from controlplane.jobs.services import request_cancel
from controlplane.planning.models import Plan, Scenario

KEPT_FOR = dt.timedelta(days=1)


def delete_scenario(*, actor: Actor, scenario: Scenario) -> None:
    """Hide a scenario and its plans; deployments made from them stay. Takes a planner."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        _purge()
        now = timezone.now()
        for plan in scenario.plans.filter(state=Plan.State.COMPUTING).select_related("job"):
            _stop(actor, plan)
        scenario.plans.update(discarded_at=now)
        _hide(actor, scenario, now)


def restore_scenario(*, actor: Actor, pk: int) -> Scenario:
    """Show a deleted scenario again, with the plans that went with it. Takes a planner.

    It returns under another name when its own was taken meanwhile. Raises ValidationError when a day has passed.
    """
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        scenario = Scenario.everything.select_for_update().filter(pk=pk, discarded_at__isnull=False).first()
        if scenario is None:
            raise ValidationError("This scenario can no longer be restored.")
        Plan.everything.filter(scenario=scenario, discarded_at=scenario.discarded_at).update(discarded_at=None)
        _show(actor, scenario)
    return scenario


def delete_plan(*, actor: Actor, plan: Plan) -> None:
    """Hide a plan; what-ifs made from it stay. Takes a planner. Raises ValidationError for the plan in force."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        if plan.state == Plan.State.APPROVED:
            raise ValidationError(f"Plan {plan} is in force; approve another one first.")
        _purge()
        if plan.state == Plan.State.COMPUTING:
            _stop(actor, plan)
        _hide(actor, plan, timezone.now())


def restore_plan(*, actor: Actor, pk: int) -> Plan:
    """Show a deleted plan again. Takes a planner. Raises ValidationError when it, or its scenario, is gone."""
    access.require(actor, Role.PLANNER)
    with transaction.atomic():
        rows = Plan.everything.select_for_update(of=("self",)).select_related("scenario")
        plan = rows.filter(pk=pk, discarded_at__isnull=False).first()
        if plan is None:
            raise ValidationError("This plan can no longer be restored.")
        if plan.scenario.discarded_at is not None:
            raise ValidationError(f"The scenario {plan.scenario} was deleted; restore it first.")
        _show(actor, plan)
    return plan


def _stop(actor: Actor, plan: Plan) -> None:
    if plan.job is not None:
        request_cancel(actor=actor, job=plan.job)


def _hide(actor: Actor, record: Scenario | Plan, now: dt.datetime) -> None:
    before = snapshot(record)
    record.discarded_at = now
    type(record).everything.filter(pk=record.pk).update(discarded_at=now)
    log_change(record, ChangeLog.Action.DELETE, actor=actor, before=before)


def _show(actor: Actor, record: Scenario | Plan) -> None:
    record.discarded_at = None
    type(record).everything.filter(pk=record.pk).update(discarded_at=None)
    log_change(record, ChangeLog.Action.ACT, actor=actor, after={"restored": True})


def _purge() -> None:
    """Delete for good what was hidden longer than ``KEPT_FOR`` ago."""
    long_ago = timezone.now() - KEPT_FOR
    Plan.everything.filter(discarded_at__lt=long_ago).delete()
    Scenario.everything.filter(discarded_at__lt=long_ago).delete()

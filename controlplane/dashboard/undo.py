"""Toasts that offer to take the last act back: what it takes is kept in the session of who did it."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import reverse

from controlplane.dashboard.pages import actor
from controlplane.deployments import calibrating
from controlplane.deployments.models import Calibration
from controlplane.planning import discarding
from controlplane.workloads import services as workloads

SLOT = "undo"
MOST = 5
"""Acts of a session that can be taken back; older ones are forgotten."""
PREFIX = "undo-"


def offer(request: HttpRequest, text: str, kind: str, data: Any) -> None:
    """Say ``text`` with an Undo button; ``kind`` says of what, ``data`` what it takes."""
    token = secrets.token_hex(8)
    held = {**request.session.get(SLOT, {}), token: [kind, data]}
    request.session[SLOT] = dict(list(held.items())[-MOST:])
    messages.info(request, text, extra_tags=f"{PREFIX}{token}")


def take_back(request: HttpRequest, token: str) -> str:
    """Take one act back, say so, and return the page to show. Raises ValidationError where it can't be, once only."""
    held = dict(request.session.get(SLOT, {}))
    kind, data = held.pop(token, (None, None))
    if kind is None:
        raise ValidationError("This can no longer be undone: it was done in another session, or undone already.")
    if kind == "plan":
        plan = discarding.restore_plan(actor=actor(request), pk=data)
        done, path = f"{plan} is back.", reverse("dashboard:plan", args=[plan.pk])
    elif kind == "scenario":
        scenario = discarding.restore_scenario(actor=actor(request), pk=data)
        done, path = f"{scenario} and its plans are back.", reverse("dashboard:plans")
    elif kind == "workload":
        record = workloads.restore_workload(actor=actor(request), kept=data)
        done, path = f"{record.name} is back.", reverse("dashboard:workload", args=[record.slug])
    else:
        for pk, active in data:
            row = Calibration.objects.filter(pk=pk).first()
            if row is None:
                raise ValidationError("The calibration is no longer there.")
            calibrating.set_active(actor=actor(request), calibration=row, active=active)
        done, path = "The calibration is as it was.", reverse("dashboard:validation")
    request.session[SLOT] = held
    messages.info(request, done)
    return path

"""Store, delete and log: the one way in which records change, from page, API, import and admin alike."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any, TypeVar

import structlog
from django.core.exceptions import ValidationError
from django.db import models, transaction

from controlplane.core.access import Actor
from controlplane.core.models import ChangeLog, User
from planner.errors import as_written

M = TypeVar("M", bound=models.Model)
_SKIPPED = {"password", "digest", "version", "created_at", "updated_at"}
_LONG = 2000


class StaleVersionError(Exception):
    """The record was changed by someone else since it was read."""

    def __init__(self, current: int, expected: int) -> None:
        self.current = current
        self.expected = expected
        super().__init__(
            f"The record is at version {current}, you changed version {expected}. Read it again and repeat."
        )


def snapshot(record: models.Model) -> dict[str, Any]:
    """The fields of a record as JSON; long values are cut, secrets and packed data left out."""
    values: dict[str, Any] = {}
    for field in record._meta.concrete_fields:
        if field.name in _SKIPPED or isinstance(field, models.BinaryField):
            continue
        values[field.name] = _plain(field.value_from_object(record))
    return values


def save_record(record: M, *, actor: Actor, expected_version: int | None = None, checked: bool = False) -> M:
    """Check and store one record and log the change; raises ValidationError or StaleVersionError.

    ``expected_version`` is the version the caller read (If-Match); ``checked``: the caller has just run ``full_clean``.
    """
    with transaction.atomic():
        before = None
        if not record._state.adding:
            stored = type(record)._default_manager.select_for_update().filter(pk=record.pk).first()
            if stored is not None:
                before = snapshot(stored)
                current = getattr(stored, "version", None)
                if expected_version is not None and current is not None and current != expected_version:
                    raise StaleVersionError(current, expected_version)
                if current is not None:
                    record.version = current  # type: ignore[attr-defined]
        if not checked:
            record.full_clean()
        record.save()
        after = snapshot(record)
        if before is None:
            log_change(record, ChangeLog.Action.CREATE, actor=actor, after=after)
        elif before != after:
            changed = {name for name in after if before.get(name) != after[name]}
            log_change(
                record,
                ChangeLog.Action.UPDATE,
                actor=actor,
                before={name: before.get(name) for name in changed},
                after={name: after[name] for name in changed},
            )
    return record


def delete_record(record: models.Model, *, actor: Actor) -> None:
    """Delete one record and log it; raises ValidationError naming what still refers to it."""
    with transaction.atomic():
        before = snapshot(record)
        key, text = str(record.pk), str(record)
        try:
            record.delete()
        except models.ProtectedError as error:
            users = sorted({f"{item._meta.verbose_name} {item}" for item in error.protected_objects})
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise ValidationError(f"{text} is in use by {shown}; delete or change those first.") from error
        log_change(record, ChangeLog.Action.DELETE, actor=actor, before=before, key=key, text=text)


def log_change(
    record: models.Model,
    action: str,
    *,
    actor: Actor,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    key: str | None = None,
    text: str | None = None,
) -> ChangeLog:
    """Add one line to the change log, with the id of the request that is being served."""
    known = isinstance(actor, User)
    return ChangeLog.objects.create(
        actor=actor if known else None,
        actor_name=actor.get_username() if known and actor else "system",
        action=action,
        model=record._meta.label,
        object_id=(key or str(record.pk))[:64],
        object_repr=(text or str(record))[:200],
        before=before,
        after=after,
        request_id=str(structlog.contextvars.get_contextvars().get("request_id", ""))[:64],
    )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")  # 0.2 and 0.2000 are the same amount
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (dict, list)):
        text = as_written(value)
        return value if len(text) <= _LONG else f"{text[:_LONG]}…"
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"

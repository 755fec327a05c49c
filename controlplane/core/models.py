"""Base model, users, roles, tokens, change log and idempotency keys."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from controlplane.core.tables import CONTROL


class BaseModel(models.Model):
    """Every record: when it was made and changed, and a version that rises by one with each save (for If-Match)."""

    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        abstract = True

    typed_by_people: ClassVar[bool] = False  # its texts hold no control characters; what engines print may

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Check every field; a number must be finite (NaN passes every other comparison).

        A list or object that a form left empty is its default, which the column takes.
        """
        for field in self._meta.concrete_fields:
            empty = isinstance(field, models.JSONField) and getattr(self, field.attname) is None
            if empty and field.blank and not field.null:
                setattr(self, field.attname, field.get_default())
        super().clean_fields(exclude=exclude)
        skipped = exclude or ()
        for field in self._meta.concrete_fields:
            value = getattr(self, field.attname)
            if isinstance(value, float) and not math.isfinite(value) and field.name not in skipped:
                raise ValidationError({field.name: f"{value} is no finite number; give one, or leave it empty."})
            found = CONTROL.search(value) if self.typed_by_people and isinstance(value, str) else None
            if found and field.name not in skipped:
                code = f"U+{ord(found.group()):04X}"
                raise ValidationError({field.name: f"It holds the control character {code}; remove it."})

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store the record, one version higher than before."""
        if not self._state.adding:
            self.version += 1
            if (fields := kwargs.get("update_fields")) is not None:
                kwargs["update_fields"] = {*fields, "version", "updated_at"}
        super().save(*args, **kwargs)


class Role(models.TextChoices):
    """What a user may do; each role includes the ones before it."""

    VIEWER = "viewer", "Viewer"
    PLANNER = "planner", "Planner"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Administrator"


class User(AbstractUser):
    """A person or a machine account. ``role`` holds everywhere; ``SiteRole`` can raise it at one site."""

    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)

    class Meta(AbstractUser.Meta):
        constraints = [models.CheckConstraint(condition=Q(role__in=Role.values), name="core_user_role_known")]


class SiteRole(BaseModel):
    """A role that a user has at one site only."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="site_roles")
    site = models.ForeignKey("inventory.Site", on_delete=models.CASCADE, related_name="site_roles")
    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        ordering = ["user__username", "site__name"]
        constraints = [
            models.UniqueConstraint(fields=["user", "site"], name="core_siterole_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="core_siterole_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} at {self.site}"


class ApiToken(BaseModel):
    """A bearer token of the API. Only its SHA-256 is stored; the token itself is shown once."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    networks = models.JSONField(default=list, blank=True, help_text="Allowed source networks (CIDR); empty: any.")
    read_only = models.BooleanField(default=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="core_apitoken_name_once")]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class ChangeLog(models.Model):
    """Who changed what, when, from what, to what. Written by services, never changed."""

    class Action(models.TextChoices):
        """What happened to the record."""

        CREATE = "create", "Created"
        UPDATE = "update", "Changed"
        DELETE = "delete", "Deleted"
        ACT = "act", "Acted on"

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150, blank=True)
    action = models.CharField(max_length=8, choices=Action)
    model = models.CharField(max_length=64)
    object_id = models.CharField(max_length=64)
    object_repr = models.CharField(max_length=200)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = "change"
        verbose_name_plural = "change log"
        indexes = [models.Index(fields=["model", "object_id"], name="core_changelog_object")]
        constraints = [
            models.CheckConstraint(
                condition=Q(action__in=["create", "update", "delete", "act"]), name="core_changelog_action_known"
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_action_display()} {self.model} {self.object_repr}"


class IdempotencyKey(models.Model):
    """The answer once given to a request with this key, so that a repeated request changes nothing."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=300)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)  # None while the first request is still running
    body = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="core_idempotencykey_once")]

    def __str__(self) -> str:
        return self.key

"""Acts on users: made, changed, given roles at sites. Administrators only."""

from __future__ import annotations

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role, SiteRole, User
from controlplane.core.services import delete_record, save_record


def save_user(*, actor: Actor, user: User, password: str | None = None) -> User:
    """Create or change a user; ``password`` replaces theirs (a new user without one cannot sign in, only use tokens).

    Raises PermissionDenied, ValidationError (also for a weak password, and for taking away the last administrator).
    """
    access.require(actor, Role.ADMIN)
    if isinstance(actor, User) and not actor.is_superuser and user.is_superuser:
        raise ValidationError({"username": "Only a superuser may change a superuser."})
    if password is not None:
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise ValidationError({"password": error.messages}) from error
        user.set_password(password)
    elif user._state.adding:
        user.set_unusable_password()
    with transaction.atomic():
        save_record(user, actor=actor)
        _keep_an_administrator()
    return user


def delete_user(*, actor: Actor, user: User) -> None:
    """Delete a user with their tokens; what they did stays in the change log under their name."""
    access.require(actor, Role.ADMIN)
    if isinstance(actor, User) and not actor.is_superuser and user.is_superuser:
        raise ValidationError("Only a superuser may delete a superuser.")
    with transaction.atomic():
        delete_record(user, actor=actor)
        _keep_an_administrator()


def save_site_role(*, actor: Actor, role: SiteRole, expected_version: int | None = None) -> SiteRole:
    """Give or change a role at one site."""
    access.require(actor, Role.ADMIN)
    return save_record(role, actor=actor, expected_version=expected_version)


def delete_site_role(*, actor: Actor, role: SiteRole) -> None:
    """Take a role at one site away."""
    access.require(actor, Role.ADMIN)
    delete_record(role, actor=actor)


def _keep_an_administrator() -> None:
    users = User.objects.select_for_update().filter(is_active=True)
    if not any(user.is_superuser or user.role == Role.ADMIN for user in users):
        raise ValidationError("Nobody would be administrator any more; make somebody else one first.")

"""Who may do what. A role includes the ones before it; ``SiteRole`` raises it at one site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import PermissionDenied

from controlplane.core.models import Role, User

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    from controlplane.inventory.models import Site

ORDER = (Role.VIEWER, Role.PLANNER, Role.OPERATOR, Role.ADMIN)
Actor = User | None
"""Who acts; None is the system itself (scheduler, commands), which may do everything."""

_RANK = {role: rank for rank, role in enumerate(ORDER)}
_MAY = {
    Role.VIEWER: "see this",
    Role.PLANNER: "change workloads, scenarios and plans",
    Role.OPERATOR: "change the inventory, approve plans and run engines",
    Role.ADMIN: "manage users, and do everything else",
}


def role_at(actor: User | AnonymousUser | None, site: Site | None = None) -> Role | None:
    """The role of ``actor``, at ``site`` when one is given; None for nobody."""
    if actor is None or actor.is_superuser:
        return Role.ADMIN
    if not isinstance(actor, User) or not actor.is_active:
        return None
    role = Role(actor.role)
    if site is not None and site.pk:
        local = actor.site_roles.filter(site=site).values_list("role", flat=True).first()
        if local and _RANK[Role(local)] > _RANK[role]:
            return Role(local)
    return role


def has_role(actor: User | AnonymousUser | None, role: Role, site: Site | None = None) -> bool:
    """Whether ``actor`` has at least ``role``, at ``site`` when one is given."""
    held = role_at(actor)
    if site is not None and held is not None and _RANK[held] < _RANK[role]:
        held = role_at(actor, site)
    return held is not None and _RANK[held] >= _RANK[role]


def has_role_anywhere(actor: User | AnonymousUser | None, role: Role) -> bool:
    """Whether ``actor`` has at least ``role`` everywhere or at some site."""
    if has_role(actor, role) or not isinstance(actor, User) or not actor.is_active:
        return has_role(actor, role)
    return any(_RANK[Role(held)] >= _RANK[role] for held in actor.site_roles.values_list("role", flat=True))


def require(actor: User | AnonymousUser | None, role: Role, site: Site | None = None) -> None:
    """Raise PermissionDenied, saying which role is missing, unless ``actor`` has at least ``role``."""
    if has_role(actor, role, site):
        return
    held = role_at(actor, site)
    where = f" at {site}" if site is not None else ""
    who = f"Your role is {held.label.lower()}{where}" if held else "You are not logged in"
    raise PermissionDenied(f"{who}; to {_MAY[role]} takes the role {role.label.lower()}. Ask an administrator for it.")


def require_anywhere(actor: User | AnonymousUser | None, role: Role) -> None:
    """Raise PermissionDenied unless ``actor`` has at least ``role`` everywhere or at some site.

    For a refusal before anything is read; the act itself asks for the role at the site that it is about.
    """
    if not has_role_anywhere(actor, role):
        require(actor, role)

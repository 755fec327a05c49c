"""What every page shares: access, navigation, rendering, and acts that answer with a toast."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import reverse

from controlplane.core.access import has_role, has_role_anywhere, require, require_anywhere
from controlplane.core.models import Role, User
from controlplane.dashboard import fmt
from controlplane.inventory.models import Site
from planner.errors import PlannerError

View = Callable[..., HttpResponse]

NAVIGATION: tuple[tuple[str, str, str] | None, ...] = (
    ("home", "Home", "home"),
    ("fleet", "Fleet", "fleet"),
    ("workloads", "Workloads", "workloads"),
    ("memory", "Memory", "memory"),
    ("plans", "Plans", "plans"),
    ("deployments", "Deployments", "deployments"),
    ("validation", "Validation", "validation"),
    ("rules", "Rules of thumb", "rules"),
    ("jobs", "Jobs", "jobs"),
    None,
    ("help", "Help", "help"),
)
"""Route name, label and icon of each entry; None draws a line."""


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Entries of the side bar; the one whose path the page lies under is current."""
    entries: list[dict[str, Any]] = []
    for entry in NAVIGATION:
        if entry is None:
            entries.append({"rule": True})
            if has_role(request.user, Role.OPERATOR) and request.user.is_staff:
                entries.append({"url": reverse("admin:index"), "label": "Admin", "icon": "admin", "current": False})
            continue
        name, label, icon = entry
        url = reverse(f"dashboard:{name}")
        current = request.path == url if name == "home" else request.path.startswith(url)
        entries.append({"url": url, "label": label, "icon": icon, "current": current})
    return entries


def page(role: Role = Role.VIEWER, *, anywhere: bool = False) -> Callable[[View], View]:
    """A page for signed-in users of at least ``role``; ``anywhere``: at some site is enough, the act asks again."""

    def wrap(view: View) -> View:
        @login_required
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            (require_anywhere if anywhere else require)(actor(request), role)
            fmt.use_currency(settings.CURRENCY)
            return view(request, *args, **kwargs)

        return inner

    return wrap


def actor(request: HttpRequest) -> User:
    """Who is signed in; only for pages behind a sign-in."""
    return cast(User, request.user)


def act(view: View) -> View:
    """A POST that changes something and then shows a page; a refusal becomes a toast on the page it came from.

    The view returns the response to go to. The services it calls check the role themselves.
    """

    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            return view(request, *args, **kwargs)
        except (ValidationError, PlannerError, PermissionDenied) as error:
            messages.error(request, sentence(error))
            return redirect(back(request))

    return inner


def back(request: HttpRequest) -> str:
    """A local path to return to: the ``next`` field, else home."""
    path = request.POST.get("next", "")
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else reverse("dashboard:home")


def sentence(error: Exception) -> str:
    """The words of an error as one line."""
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    return str(error)


def may_do(request: HttpRequest, site: Site | None = None, *, anywhere: bool = False) -> dict[str, bool]:
    """Which acts to offer: by the user's role, at ``site`` when the page is about one, or at any site."""
    roles = {"plan": Role.PLANNER, "operate": Role.OPERATOR, "admin": Role.ADMIN}
    if anywhere:
        return {word: has_role_anywhere(request.user, role) for word, role in roles.items()}
    return {word: has_role(request.user, role, site) for word, role in roles.items()}


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    status: int = 200,
    *,
    site: Site | None = None,
) -> HttpResponse:
    """Render a page with where it is and what the user may do, at ``site`` when the page is about one."""
    may = may_do(request, site)
    return render(request, template, {"may": may, "here": request.get_full_path(), **(context or {})}, status=status)


def paginate(request: HttpRequest, rows: QuerySet[Any] | list[Any], size: int = 50) -> Page[Any]:
    """The page that ``?page=`` asks for; out of range gives the nearest."""
    return Paginator(rows, size).get_page(request.GET.get("page"))

"""Users, roles at sites, tokens, the change log, and who asks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

from controlplane.api.filters import by, choices, filters_of
from controlplane.api.paths import path_to
from controlplane.api.preconditions import with_etag
from controlplane.api.serializers import core as shapes
from controlplane.api.views.base import (
    ApiMixin,
    ChangeMixin,
    DeleteMixin,
    ReadViewSet,
    RecordViewSet,
    acting,
    actor_of,
)
from controlplane.core import access, accounts, tokens
from controlplane.core.models import ApiToken, ChangeLog, Role, SiteRole, User
from controlplane.inventory.models import Site


class UserViewSet(ChangeMixin, ReadViewSet):
    """Users; administrators only."""

    queryset = User.objects.all()
    serializer_class = shapes.UserSerializer
    related = ("password",)
    changing_role = Role.ADMIN
    filterset_class = filters_of(
        User,
        {"username": ["exact", "icontains"], "email": ["exact"], "is_active": ["exact"], "is_staff": ["exact"]},
        role=choices(Role),
    )
    search_fields = ("username", "email", "first_name", "last_name")
    ordering_fields = ("id", "username", "role", "last_login", "date_joined")

    def get_queryset(self) -> QuerySet[User]:
        """All users, for administrators."""
        access.require(actor_of(self.request), Role.ADMIN)
        return super().get_queryset().order_by("username")

    def _change(self, request: Request, *, partial: bool) -> Response:
        """Users carry no version: the last change counts."""
        serializer = self.get_serializer(self.get_object(), data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        return Response(self.shown(self.write(serializer, None)))

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service."""
        return accounts.save_user(actor=actor_of(self.request), user=record, password=related.get("password"))

    def delete_record(self, record: Any, given: Any) -> None:
        """Users carry no version."""
        with acting():
            accounts.delete_user(actor=actor_of(self.request), user=record)


class SiteRoleViewSet(RecordViewSet):
    """Roles that users have at single sites; administrators only."""

    queryset = SiteRole.objects.select_related("user", "site")
    serializer_class = shapes.SiteRoleSerializer
    filterset_class = filters_of(
        SiteRole, {}, user=by("username", User.objects.all()), site=by("slug", Site.objects.all()), role=choices(Role)
    )
    search_fields = ("user__username", "site__name")
    ordering_fields = ("id", "user__username", "site__name", "role")

    def get_queryset(self) -> QuerySet[SiteRole]:
        """All of them, for administrators."""
        access.require(actor_of(self.request), Role.ADMIN)
        return super().get_queryset()

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """By the service."""
        return accounts.save_site_role(actor=actor_of(self.request), role=record, expected_version=expected)

    def remove(self, record: Any) -> None:
        """By the service."""
        accounts.delete_site_role(actor=actor_of(self.request), role=record)


class TokenViewSet(DeleteMixin, ReadViewSet):
    """Your tokens (an administrator's view: everybody's). A token itself is shown once, when it is made."""

    queryset = ApiToken.objects.select_related("user")
    serializer_class = shapes.TokenSerializer
    filterset_class = filters_of(
        ApiToken,
        {
            "name": ["exact", "icontains"],
            "prefix": ["exact"],
            "read_only": ["exact"],
            "expires_at": ["gte", "lt"],
            "revoked_at": ["isnull"],
        },
        user=by("username", User.objects.all()),
    )
    search_fields = ("name", "prefix", "user__username")
    ordering_fields = ("id", "name", "expires_at", "last_used_at", "created_at")

    def get_queryset(self) -> QuerySet[ApiToken]:
        """Your own, or all for administrators."""
        rows, actor = super().get_queryset(), actor_of(self.request)
        return rows if access.has_role(actor, Role.ADMIN) else rows.filter(user=actor)

    @extend_schema(responses={201: shapes.NewTokenSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Make a token; the answer holds it, this once."""
        form = self.get_serializer(data=request.data)
        form.is_valid(raise_exception=True)
        values = dict(form.validated_data)
        actor = actor_of(request)
        made_with = request.auth if isinstance(request.auth, ApiToken) else None
        row, token = tokens.create_token(
            actor=actor,
            user=values.pop("user", actor),
            networks=tuple(values.pop("networks", ())),
            made_with=made_with,
            **values,
        )
        return _new_token(row, token, path_to(f"{self.basename}-detail", row.pk))

    def delete_record(self, record: Any, given: Any) -> None:
        """Revoke it: it ends at once and stays listed."""
        tokens.revoke_token(actor=actor_of(self.request), token=record)


class ProvisionView(ApiMixin, APIView):
    """A first token, for a name and a password."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = (ScopedRateThrottle,)
    throttle_scope = "provision"
    changes_nothing = True  # as far as idempotency keys go: there is no user to keep them for

    @extend_schema(
        request=shapes.ProvisionSerializer, responses={201: shapes.NewTokenSerializer}, auth=[], tags=["tokens"]
    )
    def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Make a token for a user who proves their password; failures count towards the lockout of the sign-in page."""
        form = shapes.ProvisionSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        values = dict(form.validated_data)
        name, password = values.pop("username"), values.pop("password")
        user = authenticate(request._request, username=name, password=password)
        if getattr(request._request, "axes_locked_out", False):
            request._request.axes_locked_out = False  # type: ignore[attr-defined] # answered here, as a problem
            raise Throttled(wait=settings.AXES_COOLOFF_TIME * 3600, detail="Too many failures; the account is locked.")
        if not isinstance(user, User):
            raise AuthenticationFailed("The name or the password is wrong.")
        row, token = tokens.create_token(actor=user, user=user, networks=tuple(values.pop("networks", ())), **values)
        return _new_token(row, token)


class ChangeViewSet(ReadViewSet):
    """Who changed what. Changes of users, roles and tokens are shown to administrators alone."""

    queryset = ChangeLog.objects.select_related("actor")
    serializer_class = shapes.ChangeSerializer
    filterset_class = filters_of(
        ChangeLog,
        {
            "at": ["gte", "lt"],
            "actor_name": ["exact"],
            "model": ["exact"],
            "object_id": ["exact"],
            "request_id": ["exact"],
        },
        actor=by("username", User.objects.all()),
        action=choices(ChangeLog.Action),
    )
    search_fields = ("object_repr", "actor_name")
    ordering_fields = ("id", "at", "model")

    def get_queryset(self) -> QuerySet[ChangeLog]:
        """All, or without those of accounts."""
        rows = super().get_queryset()
        if access.has_role(actor_of(self.request), Role.ADMIN):
            return rows
        return rows.exclude(Q(model__startswith="core."))


class MeView(ApiMixin, APIView):
    """Who asks."""

    @extend_schema(responses=shapes.MeSerializer)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Your name, role, roles at sites, and the token in use."""
        actor = actor_of(request)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        roles = {row.site.slug: row.role for row in actor.site_roles.select_related("site")}
        return Response(
            {
                "id": actor.pk,
                "username": actor.get_username(),
                "role": actor.role,
                "is_superuser": actor.is_superuser,
                "site_roles": roles,
                "token": token.name if token else None,
                "read_only": bool(token and token.read_only),
            }
        )


def _new_token(row: ApiToken, token: str, location: str = "") -> Response:
    data = {**shapes.TokenSerializer(row).data, "token": token}
    response = Response(data, status=status.HTTP_201_CREATED)
    response["Cache-Control"] = "no-store"
    if location:
        response["Location"] = location
    return with_etag(response, row)

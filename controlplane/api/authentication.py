"""Who asks: a token in the Authorization header, or the session of a signed-in browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.core.models import ApiToken, User
from controlplane.core.tokens import TokenError, check_token

if TYPE_CHECKING:
    from rest_framework.views import APIView

KEYWORDS = ("bearer", "token")


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer tng_...`` (or ``Token tng_...``)."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token's user; None without such a header; AuthenticationFailed says what is wrong with the token."""
        parts = get_authorization_header(request).split()
        if not parts or parts[0].decode("latin-1").lower() not in KEYWORDS:
            return None
        if len(parts) != 2:
            raise AuthenticationFailed("The Authorization header must hold one token.")
        try:
            row = check_token(parts[1].decode("ascii"), address=request.META.get("REMOTE_ADDR"))
        except UnicodeError:
            raise AuthenticationFailed("The token is unknown.") from None
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from error
        return row.user, row

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return 'Bearer realm="tonnage"'


class MayUse(BasePermission):
    """Somebody known; a read-only token reads. What a role may change is checked by the services."""

    message = "This token is read-only; use one that may write."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether to go on; without a user the answer becomes 401."""
        if not request.user or not request.user.is_authenticated:
            return False
        if not isinstance(request.auth, ApiToken) or not request.auth.read_only:
            return True
        return request.method in SAFE_METHODS or getattr(view, "changes_nothing", False)


class TokenScheme(OpenApiAuthenticationExtension):
    """The token in the OpenAPI document."""

    target_class = "controlplane.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """A bearer token."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "tng_<prefix>_<secret>"}

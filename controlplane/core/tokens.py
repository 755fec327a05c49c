"""API tokens: made, checked, revoked. The token is ``tng_<prefix>_<secret>``; only its SHA-256 is stored."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import secrets

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import ApiToken, ChangeLog, Role, User
from controlplane.core.services import log_change, save_record

SCHEME = "tng"
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_USE_NOTED_EVERY = dt.timedelta(minutes=1)


class TokenError(Exception):
    """The token cannot be used; the sentence says why, without telling strangers anything."""


def create_token(
    *,
    actor: Actor,
    user: User,
    name: str,
    expires_at: dt.datetime | None = None,
    networks: tuple[str, ...] = (),
    read_only: bool = False,
    made_with: ApiToken | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for ``user``; returns the row and the token itself, which is shown this once.

    ``made_with``: the token that the actor came with, if any; the new one may reach no further. Raises ValidationError
    (name taken, expiry in the past, malformed network), PermissionDenied.
    """
    if actor is not None and actor.pk != user.pk:
        access.require(actor, Role.ADMIN)
    if made_with is not None:
        _check_no_further(made_with, expires_at, networks)
    if expires_at is not None and expires_at <= timezone.now():
        raise ValidationError({"expires_at": "The expiry lies in the past; choose a later one, or none."})
    prefix, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    token = f"{SCHEME}_{prefix}_{secret}"
    row = ApiToken(
        user=user,
        name=name,
        prefix=prefix,
        digest=_digest(token),
        expires_at=expires_at,
        networks=[_network(text) for text in networks],
        read_only=read_only,
    )
    return save_record(row, actor=actor), token


def check_token(token: str, *, address: str | None) -> ApiToken:
    """The row of a valid token, used from ``address``; raises TokenError otherwise."""
    parts = token.split("_", 2)
    row = None
    if len(parts) == 3 and parts[0] == SCHEME:
        row = ApiToken.objects.select_related("user").filter(prefix=parts[1]).first()
    if row is None or not secrets.compare_digest(row.digest, _digest(token)):
        raise TokenError("The token is unknown.")
    now = timezone.now()
    if row.revoked_at is not None:
        raise TokenError(f"The token was revoked on {row.revoked_at:%Y-%m-%d}; make a new one.")
    if row.expires_at is not None and row.expires_at <= now:
        raise TokenError(f"The token expired on {row.expires_at:%Y-%m-%d}; make a new one.")
    if not row.user.is_active:
        raise TokenError("The token's user is disabled.")
    if row.networks and not _within(address, row.networks):
        raise TokenError(f"The token may not be used from {address or 'an unknown address'}.")
    if row.last_used_at is None or now - row.last_used_at > _USE_NOTED_EVERY:
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return row


def revoke_token(*, actor: Actor, token: ApiToken) -> ApiToken:
    """End a token at once; it stays listed. A user may revoke their own, an administrator any."""
    if actor is not None and actor.pk != token.user_id and not access.has_role(actor, Role.ADMIN):
        raise PermissionDenied("Only its owner or an administrator can revoke a token.")
    with transaction.atomic():
        changed = ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
        token.refresh_from_db()
        if changed:
            log_change(token, ChangeLog.Action.ACT, actor=actor, after={"revoked_at": str(token.revoked_at)})
    return token


def _check_no_further(made_with: ApiToken, expires_at: dt.datetime | None, networks: tuple[str, ...]) -> None:
    """A token that ends, or is tied to networks, makes only tokens that do and are."""
    if made_with.read_only:
        raise PermissionDenied("A read-only token makes no tokens.")
    if made_with.expires_at is not None and (expires_at is None or expires_at > made_with.expires_at):
        raise ValidationError(
            {"expires_at": f"The token you came with ends at {made_with.expires_at:%Y-%m-%d %H:%M} UTC; end no later."}
        )
    if made_with.networks:
        outer = [ipaddress.ip_network(text) for text in made_with.networks]
        inner = [ipaddress.ip_network(_network(text)) for text in networks]
        if not inner or not all(any(_inside(one, other) for other in outer) for one in inner):
            allowed = ", ".join(made_with.networks)
            raise ValidationError({"networks": f"The token you came with is tied to {allowed}; stay within."})


def _inside(inner: IpNetwork, outer: IpNetwork) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise ValidationError({"networks": f"{text!r} is not a network; write it like 10.0.0.0/8."}) from None


def _within(address: str | None, networks: list[str]) -> bool:
    try:
        source = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    return any(source in ipaddress.ip_network(network) for network in networks)

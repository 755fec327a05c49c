"""``Idempotency-Key``: a repeated request gets the first answer and changes nothing.

The key is stored in the transaction of the change itself: both are committed or neither. A second request with the same
key waits for the first at the unique key, then finds its answer. Only answers that changed something are kept; after a
refusal the key is free again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.problems import Fault, KeyReused, Malformed
from controlplane.core.models import IdempotencyKey, User

HEADER = "Idempotency-Key"
KEPT_HEADERS = ("Location", "ETag")
NEVER_KEPT = ("token",)


class _AlreadyKnownError(Exception):
    """The key is in the table."""


def run_once(act: Callable[..., Response], key: str, request: Request, *args: Any, **kwargs: Any) -> Response:
    """Answer as before when the key is known, else act and remember the answer. Raises KeyReused, Malformed."""
    if not 0 < len(key) <= 128 or not key.isprintable() or not key.isascii():
        raise Malformed(f"{HEADER} must have 1 to 128 printable ASCII characters, such as a UUID.")
    digest = _digest(request)
    if (answer := _known(request, key, digest)) is not None:
        return answer
    try:
        with transaction.atomic():
            row = _reserve(request, key, digest)
            response = act(request, *args, **kwargs)
            row.status, row.body = response.status_code, _kept(response)
            row.save(update_fields=["status", "body"])
    except _AlreadyKnownError:
        answer = _known(request, key, digest)
        if answer is None:
            raise Malformed(f"The first request with this {HEADER} was refused in this moment; repeat it.") from None
        return answer
    return response


def _user(request: Request) -> User:
    if not isinstance(request.user, User):
        raise TypeError("an anonymous request reached the idempotency keys")
    return request.user


def _reserve(request: Request, key: str, digest: str) -> IdempotencyKey:
    try:
        with transaction.atomic():
            return IdempotencyKey.objects.create(
                user=_user(request),
                key=key,
                method=request.method or "",
                path=request.path[:300],
                request_digest=digest,
            )
    except IntegrityError as error:
        raise _AlreadyKnownError from error


def _known(request: Request, key: str, digest: str) -> Response | None:
    row = IdempotencyKey.objects.filter(user=_user(request), key=key, status__isnull=False).first()
    if row is None:
        return None
    if row.request_digest != digest:
        fault = Fault(HEADER, f"It was used for {row.method} {row.path} with another body.", key, "Use a fresh key.")
        raise KeyReused(f"This {HEADER} was used for another request. Use a fresh key for each.", faults=(fault,))
    kept = row.body or {}
    return Response(kept.get("data"), row.status, headers={**kept.get("headers", {}), "Idempotency-Replayed": "true"})


def _kept(response: Response) -> dict[str, Any]:
    data = json.loads(JSONRenderer().render(response.data) or b"null")
    if isinstance(data, dict):
        data = {name: None if name in NEVER_KEPT else value for name, value in data.items()}
    return {"data": data, "headers": {name: response[name] for name in KEPT_HEADERS if name in response}}


def _digest(request: Request) -> str:
    """SHA-256 of method, path, query, version and body; a file by its content."""
    found = hashlib.sha256()
    for part in (request.method or "", request.get_full_path(), request.headers.get("If-Match", "")):
        found.update(part.encode("utf-8", "surrogatepass") + b"\n")
    data = request.data
    found.update(json.dumps(data, sort_keys=True, default=_file_digest).encode())
    return found.hexdigest()


def _file_digest(value: Any) -> str:
    if not isinstance(value, UploadedFile):
        return str(value)
    found = hashlib.sha256()
    for chunk in value.chunks():
        found.update(chunk)
    value.seek(0)
    return found.hexdigest()

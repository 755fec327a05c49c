"""Which version a change is made to: ``If-Match``, or ``version`` in the body; without either it is refused (428)."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.problems import Fault, Malformed, PreconditionRequired
from controlplane.core.services import StaleVersionError

_TAG = re.compile(r'(?:W/)?"?([0-9]{1,9})"?')
HOW = 'Send If-Match: "VERSION" (the ETag of a GET), or version in the body; If-Match: * changes whatever is there.'


def expected_version(request: Request, current: int, given: Any = None) -> int | None:
    """The version that the caller read; None when they wrote ``*``. ``given``: ``version`` of the body.

    With several tags, the current version when it is among them. Raises PreconditionRequired, Malformed.
    """
    header = request.headers.get("If-Match", "").strip()
    if header == "*":
        return None
    if header:
        tags = [_TAG.fullmatch(part.strip()) for part in header.split(",")]
        if not all(tags):
            raise Malformed(f'If-Match is {header[:60]!r}; write it like If-Match: "3".')
        versions = [int(tag.group(1)) for tag in tags if tag]
        return current if current in versions else versions[0]
    if given is None:
        raise PreconditionRequired(f"A change needs the version that it is made to. {HOW}")
    if isinstance(given, bool) or not isinstance(given, int):
        raise Malformed("version must be a whole number.", faults=(Fault("version", "It is no whole number.", given),))
    return given


def check_version(expected: int | None, current: int) -> None:
    """Raise StaleVersionError unless they agree; None agrees with any."""
    if expected is not None and expected != current:
        raise StaleVersionError(current, expected)


def with_etag(response: Response, record: Any) -> Response:
    """Add the record's version as the ETag."""
    version = getattr(record, "version", None)
    if version is not None:
        response["ETag"] = f'"{version}"'
    return response

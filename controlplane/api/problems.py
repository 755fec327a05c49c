"""Every error of the API in one form, RFC 9457 ``application/problem+json``: each fault with field, value, remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import InvalidOperation
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation, TooManyFilesSent
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError
from django.http import Http404
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions
from rest_framework.request import Empty
from rest_framework.response import Response

from controlplane.core.services import StaleVersionError
from controlplane.core.tables import TableError
from planner.errors import InputError, PlannerError, as_written

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"
URN = "urn:tonnage:problem:"
SECRET_FIELDS = frozenset({"password", "token"})
MAX_ERRORS = 200
SHOWN_CHARS = 80

TITLES = {
    "malformed": "The request cannot be read",
    "validation": "The request is not valid",
    "not-authenticated": "Authentication is needed",
    "permission-denied": "You may not do this",
    "not-found": "There is nothing here",
    "method-not-allowed": "The method does not apply here",
    "conflict": "The state does not allow this",
    "stale-version": "The record was changed meanwhile",
    "too-large": "The request is too large",
    "unsupported-media-type": "The content type is not understood here",
    "unsupported": "The planner cannot answer this",
    "idempotency-key-reused": "The idempotency key belongs to another request",
    "precondition-required": "The version is needed",
    "throttled": "Too many requests",
    "internal": "The server failed",
    "unavailable": "The database is busy",
}

REMEDIES = {
    "required": "Add the field.",
    "null": "Give a value, not null.",
    "blank": "Give a text that is not empty.",
    "unique": "Choose another value, or change the record that has it.",
    "unique_together": "Choose other values, or change the record that has them.",
    "invalid_choice": "Use one of the values that the schema lists.",
    "does_not_exist": "Name a record that exists.",
    "unknown": "Remove it, or correct its name.",
    "max_length": "Shorten it.",
    "max_value": "Use a smaller number.",
    "min_value": "Use a larger number.",
}
OTHERWISE = "Correct it and send the request again."


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. ``field`` is a dotted path, empty for the request as a whole; ``row`` of a file."""

    field: str
    message: str
    value: Any = None
    remedy: str = OTHERWISE
    row: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``errors``."""
        shown: dict[str, Any] = {"field": self.field, "value": self.value, "message": self.message}
        shown["remedy"] = self.remedy
        return shown if self.row is None else {**shown, "row": self.row}


@dataclass
class Answer:
    """A problem before it becomes a response."""

    status: int
    kind: str
    detail: str
    faults: list[Fault] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)


class Problem(exceptions.APIException):
    """A refusal with its own kind; raised by the API's own checks."""

    status_code = 400
    kind = "malformed"

    def __init__(self, detail: str, *, faults: tuple[Fault, ...] = (), headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.faults = list(faults)
        self.headers = headers or {}


class Malformed(Problem):
    """The body or a header cannot be read."""


class TooLarge(Problem):
    """The body is larger than this resource takes."""

    status_code = 413
    kind = "too-large"


class Conflict(Problem):
    """The state of the record does not allow the act."""

    status_code = 409
    kind = "conflict"


class PreconditionRequired(Problem):
    """A change without the version it is made to."""

    status_code = 428
    kind = "precondition-required"


class KeyReused(Problem):
    """An idempotency key with another request than its first."""

    status_code = 422
    kind = "idempotency-key-reused"


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """The exception handler of the API: any error becomes a problem; an unforeseen one is logged and says so."""
    request = context.get("request")
    answer = describe(error, _data(request))
    body = {
        "type": f"{URN}{answer.kind}",
        "title": TITLES[answer.kind],
        "status": answer.status,
        "detail": answer.detail,
        "instance": request.path if request is not None else "",
        "request_id": str(structlog.contextvars.get_contextvars().get("request_id", "")),
        "errors": [fault.to_json() for fault in answer.faults[:MAX_ERRORS]],
    }
    return Response(body, status=answer.status, headers=answer.headers, content_type=CONTENT_TYPE)


def describe(error: Exception, data: Any = None) -> Answer:
    """Which problem an exception is; ``data`` is the body, to show the value of a field that is wrong."""
    if isinstance(error, Problem):
        return Answer(error.status_code, error.kind, str(error.detail), error.faults, error.headers)
    if isinstance(error, exceptions.APIException):
        return _of_rest(error, data)
    if isinstance(error, DjangoValidationError):
        return _invalid(list(_django_faults(error, data)))
    if isinstance(error, TableError):
        faults = [Fault(item.field, item.message, item.value or None, row=item.row) for item in error.problems]
        return _invalid(faults, f"The file was refused, nothing of it is stored. {error}")
    if isinstance(error, PlannerError):
        status, kind = (400, "validation") if isinstance(error, InputError) else (422, "unsupported")
        fault = Fault(error.field, f"{error.message}.", shown(error.value), error.remedy or OTHERWISE)
        return Answer(status, kind, str(error), [fault])
    if isinstance(error, StaleVersionError):
        fault = Fault("version", f"The record is at version {error.current}.", error.expected, "Read it and repeat.")
        return Answer(412, "stale-version", str(error), [fault], {"ETag": f'"{error.current}"'})
    if isinstance(error, Http404):
        return Answer(404, "not-found", "There is no such record or path. Check the id; GET /api/v1/ lists the paths.")
    if isinstance(error, PermissionDenied):
        return Answer(403, "permission-denied", str(error) or "Your role does not allow this.")
    return _of_server(error)


def conflict_of(error: DjangoValidationError) -> Exception:
    """The refusal of an act: as a conflict when it is about the record's state, unchanged when about a field."""
    if hasattr(error, "error_dict"):
        return error
    return Conflict(" ".join(error.messages))


def shown(value: Any) -> Any:
    """A value short enough to repeat in an answer: a text as it is, a list or an object as its JSON."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else as_written(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def _of_rest(error: exceptions.APIException, data: Any) -> Answer:
    if isinstance(error, exceptions.ValidationError):
        return _invalid(list(_rest_faults(error.detail, data, ())))
    detail = str(error.detail)
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    if isinstance(error, (exceptions.NotAuthenticated, exceptions.AuthenticationFailed)):
        return Answer(401, "not-authenticated", f"{detail} Send Authorization: Bearer TOKEN.", headers=headers)
    if isinstance(error, exceptions.PermissionDenied):
        return Answer(403, "permission-denied", detail)
    if isinstance(error, exceptions.NotFound):
        return Answer(404, "not-found", detail)
    if isinstance(error, exceptions.MethodNotAllowed):
        return Answer(405, "method-not-allowed", f"{detail} The Allow header lists those that do.")
    if isinstance(error, exceptions.UnsupportedMediaType):
        return Answer(415, "unsupported-media-type", f"{detail} Send application/json unless the schema says more.")
    if isinstance(error, exceptions.Throttled):
        wait = str(int(getattr(error, "wait", None) or 1))
        return Answer(429, "throttled", f"{detail} Wait {wait} s.", headers={"Retry-After": wait})
    return Answer(error.status_code, "malformed" if error.status_code < 500 else "internal", detail)


def _of_server(error: Exception) -> Answer:
    if isinstance(error, RequestDataTooBig):
        return Answer(413, "too-large", "The body is too large. Send less at once.")
    if isinstance(error, (SuspiciousOperation, TooManyFilesSent, MultiPartParserError, UnicodeError)):
        return Answer(400, "malformed", f"The request cannot be read: {str(error)[:200]}")
    if isinstance(error, ProtectedError):
        return Answer(409, "conflict", "Other records use this one; delete or change those first.")
    if isinstance(error, IntegrityError):
        log.warning("integrity error", error=str(error))
        return Answer(409, "conflict", "Another request changed the same records in this moment. Read and repeat.")
    if isinstance(error, (DataError, OverflowError, InvalidOperation)):
        log.warning("data error", error=str(error))
        return Answer(400, "validation", "A value does not fit its column: a number too large, or a text too long.")
    if isinstance(error, OperationalError):
        log.warning("database unavailable", error=str(error))
        return Answer(
            503, "unavailable", "The database did not answer in time. Repeat it.", headers={"Retry-After": "2"}
        )
    log.exception("unforeseen error in the API", exc_info=error)
    return Answer(500, "internal", "The request failed for a reason that is ours. The server's log has the request id.")


def _invalid(faults: list[Fault], detail: str = "") -> Answer:
    first = faults[0] if faults else Fault("", "It is not valid.")
    where = f"{first.field}: " if first.field else ""
    more = f" And {len(faults) - 1} more." if len(faults) > 1 else ""
    return Answer(400, "validation", detail or f"{where}{first.message}{more}", faults)


def _rest_faults(detail: Any, data: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if isinstance(detail, dict):
        for key, item in detail.items():
            inner = () if key in ("non_field_errors", "__all__") else (key,)
            yield from _rest_faults(item, data, (*path, *inner))
    elif isinstance(detail, list):
        for index, item in enumerate(detail):
            inner = (index,) if isinstance(item, (dict, list)) else ()
            yield from _rest_faults(item, data, (*path, *inner))
    else:
        code = getattr(detail, "code", "invalid")
        yield Fault(_dotted(path), str(detail), _value(data, path), REMEDIES.get(code, OTHERWISE))


def _django_faults(error: DjangoValidationError, data: Any) -> Iterator[Fault]:
    items = error.error_dict.items() if hasattr(error, "error_dict") else [("", error.error_list)]
    for name, found in items:
        path: tuple[str | int, ...] = () if name in ("", "__all__") else (name,)
        for item in found:
            remedy = REMEDIES.get(str(item.code), OTHERWISE)
            for message in item.messages:
                yield Fault(_dotted(path), message, _value(data, path), remedy)


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _value(data: Any, path: tuple[str | int, ...]) -> Any:
    if not path or path[-1] in SECRET_FIELDS:
        return None
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return shown(data)


def _data(request: Any) -> Any:
    """The body, when it was read without fault; of a GET, and before a body is read, the query."""
    body = getattr(request, "_full_data", None)
    if request is not None and (request.method == "GET" or body is Empty):
        return request.query_params
    return body

"""The OpenAPI document: headers of changes, problems as the answer to every fault."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The version to change, as the ETag of a GET gives it, or *. Without it: version in the body, or 428.",
)
IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="A fresh key (such as a UUID) makes it safe to repeat the request: the first answer is given again.",
)
PROBLEM = {
    "type": "object",
    "description": "RFC 9457. Each of ``errors`` names the field, the value that was given, and what to do.",
    "required": ["type", "title", "status", "detail", "instance", "request_id", "errors"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "value", "message", "remedy"],
                "properties": {
                    "field": {"type": "string"},
                    "value": {},
                    "message": {"type": "string"},
                    "remedy": {"type": "string"},
                    "row": {"type": "integer"},
                },
            },
        },
    },
}
CHANGING = ("post", "put", "patch", "delete")


class ApiSchema(AutoSchema):
    """One operation."""

    def get_override_parameters(self) -> list[OpenApiParameter]:
        """Headers that apply to a change."""
        found = list(super().get_override_parameters())
        view = self.view
        if self.method.lower() not in CHANGING or getattr(view, "changes_nothing", False):
            return found
        versioned = self.method in ("PUT", "PATCH", "DELETE") and hasattr(view, "delete_record")
        return [*found, *([IF_MATCH] if versioned else []), IDEMPOTENCY]

    def get_tags(self) -> list[str]:
        """The first part of the path."""
        parts = [part for part in re.sub(r"^/api/v1/", "", self.path).split("/") if part]
        return [parts[0]] if parts else ["api"]


def add_problems(result: dict[str, Any], generator: Any, request: Any, public: Any) -> dict[str, Any]:
    """Every operation may answer with a problem."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result.get("paths", {}).values():
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"]["default"] = {"description": "What is wrong.", "content": content}
    return result

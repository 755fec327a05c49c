"""The OpenAPI document: headers of changes, problems as the answer to every fault."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

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

    def get_override_parameters(self) -> list[Any]:
        """Headers that apply to a change."""
        found = list(super().get_override_parameters())
        view = self.view
        if self.method.lower() not in CHANGING or getattr(view, "changes_nothing", False):
            return found
        versioned = self.method in ("PUT", "PATCH", "DELETE") and hasattr(view, "delete_record")
        return [*found, *([IF_MATCH] if versioned else []), IDEMPOTENCY]

    def get_request_serializer(self) -> Any:
        """For a bulk call: a list of the records, of changes, or of ids."""
        serializer = super().get_request_serializer()
        view: Any = self.view
        bulk = getattr(view, "action", "")
        if bulk == "bulk_create":
            return view.get_serializer(many=True)
        if bulk in ("bulk_update", "bulk_delete"):
            return _bulk_item(view.serializer_class, bulk)(many=True, partial=bulk == "bulk_update")
        return serializer

    def get_response_serializers(self) -> Any:
        """For a bulk call: the list of records as they are stored now."""
        view: Any = self.view
        bulk = getattr(view, "action", "")
        if bulk in ("bulk_create", "bulk_update"):
            return {201 if bulk == "bulk_create" else 200: view.get_serializer(many=True)}
        return super().get_response_serializers()

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False if getattr(self.view, "action", "").startswith("bulk_") else super()._is_list_view(serializer)

    def get_tags(self) -> list[str]:
        """The first part of the path."""
        parts = [part for part in re.sub(r"^/api/v1/", "", self.path).split("/") if part]
        return [parts[0]] if parts else ["api"]


@cache
def _bulk_item(serializer: type[serializers.Serializer], bulk: str) -> type[serializers.Serializer]:
    """One item of a bulk change or deletion: which record, at which version."""
    name = serializer.__name__.removesuffix("Serializer")
    keys = {"id": serializers.IntegerField(), "version": serializers.IntegerField(required=False)}
    if bulk == "bulk_update":
        return type(f"Bulk{name}Serializer", (serializer,), {**keys, "__doc__": f"{name} in a bulk change."})
    return type(f"Bulk{name}DeleteSerializer", (serializers.Serializer,), {**keys, "__doc__": "A record to delete."})


def add_problems(result: dict[str, Any], generator: Any, request: Any, public: Any) -> dict[str, Any]:
    """Every operation may answer with a problem."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result.get("paths", {}).values():
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"]["default"] = {"description": "What is wrong.", "content": content}
    return result

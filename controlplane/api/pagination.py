"""Pages of a list: ``limit`` and ``offset``."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request


class Pages(LimitOffsetPagination):
    """50 records unless ``limit`` (1 to 500) says otherwise; a malformed limit or offset is refused, not ignored."""

    default_limit = 50
    max_limit = 500
    largest_offset = 10**9

    def get_limit(self, request: Request) -> int:
        """``limit`` of the query."""
        return self._whole(request, "limit", self.default_limit, 1, self.max_limit)

    def get_offset(self, request: Request) -> int:
        """``offset`` of the query."""
        return self._whole(request, "offset", 0, 0, self.largest_offset)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """With the limits."""
        parameters = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == "limit":
                parameter["schema"].update(minimum=1, maximum=self.max_limit, default=self.default_limit)
            else:
                parameter["schema"].update(minimum=0, maximum=self.largest_offset, default=0)
        return parameters

    @staticmethod
    def _whole(request: Request, name: str, default: int, least: int, most: int) -> int:
        text = request.query_params.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
            raise ValidationError({name: f"Must be a whole number from {least:,} to {most:,}."})
        return int(text)

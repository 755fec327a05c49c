"""Typed, bounded reading of a Hugging Face config: every refusal names the field, the value and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from planner.errors import InputError

LARGEST_DIMENSION = 10**8
"""No width, vocabulary or context of a published model comes near; larger values are typing errors."""

LARGEST_LAYERS = 2000

_MISSING = object()


class Fields:
    """One object of a config, at dotted ``path``. ``defaults``: what the model library fills in for absent fields."""

    def __init__(self, data: Mapping[str, Any], path: str = "", defaults: Mapping[str, Any] | None = None) -> None:
        self.data = data
        self.path = path
        self.defaults = defaults or {}
        self.used_defaults: list[str] = []

    def name(self, key: str) -> str:
        """Dotted path of ``key``."""
        return f"{self.path}.{key}" if self.path else key

    def raw(self, *keys: str) -> Any:
        """First of ``keys`` that is present and not null, else its default, else None."""
        for key in keys:
            if self.data.get(key) is not None:
                return self.data[key]
        for key in keys:
            if self.defaults.get(key) is not None:
                if key not in self.used_defaults:
                    self.used_defaults.append(key)
                return self.defaults[key]
        return None

    def has(self, *keys: str) -> bool:
        """Whether one of ``keys`` is present and not null (defaults count)."""
        return self.raw(*keys) is not None

    def integer(self, *keys: str, default: Any = _MISSING, low: int = 1, high: int = LARGEST_DIMENSION) -> int:
        """Integer under the first present of ``keys``, in low..high; InputError when absent without ``default``."""
        value = self.raw(*keys)
        if value is None:
            if default is _MISSING:
                raise InputError(
                    "is missing from the model's configuration",
                    field=self.name(keys[0]),
                    remedy="Take the complete config.json of the model.",
                )
            return default
        return self.check_int(keys[0], value, low, high)

    def optional_int(self, *keys: str, low: int = 1, high: int = LARGEST_DIMENSION) -> int | None:
        """Integer under the first present of ``keys``, or None."""
        value = self.raw(*keys)
        return None if value is None else self.check_int(keys[0], value, low, high)

    def check_int(self, key: str, value: Any, low: int = 1, high: int = LARGEST_DIMENSION) -> int:
        """``value`` as an integer in low..high; a float counts when it is whole."""
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError("must be an integer", field=self.name(key), value=value)
        if not low <= value <= high:
            raise InputError(f"must lie in {low}..{high}", field=self.name(key), value=value)
        return value

    def flag(self, *keys: str, default: bool) -> bool:
        """Boolean under the first present of ``keys``."""
        value = self.raw(*keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError("must be true or false", field=self.name(keys[0]), value=value)
        return value

    def text(self, *keys: str, default: str = "") -> str:
        """String under the first present of ``keys``."""
        value = self.raw(*keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError("must be a text", field=self.name(keys[0]), value=value)
        return value

    def array(self, *keys: str) -> list[Any]:
        """List under the first present of ``keys``; empty when absent."""
        value = self.raw(*keys)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError("must be a list", field=self.name(keys[0]), value=value)
        return value

    def ints(self, key: str, *, low: int = 0, high: int = LARGEST_DIMENSION) -> list[int]:
        """List of integers under ``key``; empty when absent."""
        return [self.check_int(f"{key}[{i}]", item, low, high) for i, item in enumerate(self.array(key))]

    def texts(self, key: str) -> list[str]:
        """List of strings under ``key``; empty when absent."""
        items = self.array(key)
        for index, item in enumerate(items):
            if not isinstance(item, str):
                raise InputError("must be a text", field=self.name(f"{key}[{index}]"), value=item)
        return items

    def child(self, *keys: str, defaults: Mapping[str, Any] | None = None) -> Fields | None:
        """The nested object under the first present of ``keys``, or None; InputError when it is no object."""
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise InputError("must be an object", field=self.name(key), value=value)
            return Fields(value, self.name(key), defaults)
        return None


def divide(fields: Fields, key: str, whole: int, parts: int, what: str) -> int:
    """``whole / parts``; raises InputError on ``key`` when it leaves a remainder."""
    if whole % parts:
        raise InputError(f"does not divide: {what}", field=fields.name(key), value=f"{whole} / {parts}")
    return whole // parts

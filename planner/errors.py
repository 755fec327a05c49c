"""Errors of the planner. Every error names the field, the value and the remedy."""

from __future__ import annotations

import json


class PlannerError(ValueError):
    """Base of all planner errors; safe to show to a user.

    ``field`` is the dotted path of the input that is wrong, ``value`` what was given (shortened), ``remedy`` what to
    do about it.
    """

    def __init__(self, message: str, *, field: str = "", value: object = None, remedy: str = "") -> None:
        self.message = message
        self.field = field
        self.value = value
        self.remedy = remedy
        shown = "" if value is None else f" (got {_shorten(value)})"
        where = f"{field}: " if field else ""
        tail = f" {remedy}" if remedy else ""
        super().__init__(f"{where}{message}{shown}.{tail}")


class InputError(PlannerError):
    """The input is malformed, missing or absurd."""


class UnsupportedError(PlannerError):
    """The input is well formed, but the engine, GPU or data cannot serve it; a state, not a failure."""


class UnknownGpuError(InputError):
    """No GPU of that name or alias is in the catalogue."""


class UnknownModelError(InputError):
    """No model of that id is in the catalogue and no config.json is at that path."""


class InfeasibleError(PlannerError):
    """The request is well formed and supported, but does not fit."""


class CancelledError(PlannerError):
    """The caller asked to stop."""


def as_written(value: object) -> str:
    """A value as a configuration writes it: JSON, with a text in quotes; what JSON cannot say as Python does."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _shorten(value: object, limit: int = 80) -> str:
    text = as_written(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"

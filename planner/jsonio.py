"""Dataclasses to JSON and back, for the command line, the broker and the database.

``to_json`` gives plain dicts, lists, strings and numbers: Decimal becomes a string, NaN and infinity raise.
``from_json`` rebuilds a dataclass from such data by its annotations and names the path of whatever does not fit.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from planner.errors import InputError

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Convert ``value`` to JSON-able data; raises ValueError for NaN and infinity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, np.ndarray):
        return [to_json(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"not a finite number: {value}")
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, path: str = "") -> T:
    """Rebuild ``cls`` from ``data``; raises InputError naming the path of a missing, unknown or ill-typed field."""
    return typing.cast(T, _convert(cls, data, path or cls.__name__))


def _plain(kind: Any, data: Any) -> bool:
    """Whether ``data`` already is the ``kind`` of number or text asked for: true of nearly all that is read."""
    return type(data) is kind and (kind is str or kind is int or kind is bool or (kind is float and isfinite(data)))


@cache
def _form(kind: Any) -> tuple[bool, Any, tuple[Any, ...]]:
    """Whether an annotation is a dataclass, and its origin and arguments."""
    return dataclasses.is_dataclass(kind), typing.get_origin(kind), typing.get_args(kind)


def _convert(kind: Any, data: Any, path: str) -> Any:
    if kind is Any or _plain(kind, data):
        return data
    is_dataclass, origin, args = _form(kind)
    if is_dataclass:
        return _convert_dataclass(kind, data, path)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, data, path)
    if origin is typing.Literal:
        if data not in args:
            allowed = ", ".join(map(str, args))
            raise InputError("unknown value", field=path, value=data, remedy=f"Use one of: {allowed}.")
        return data
    if origin in (tuple, list):
        return _convert_sequence(origin, args, data, path)
    if origin is np.ndarray:
        return _convert_array(kind, data, path)
    if origin is dict or kind is dict:
        if not isinstance(data, dict):
            raise InputError("must be an object", field=path, value=data)
        return {key: _convert(args[1], item, f"{path}.{key}") for key, item in data.items()} if args else dict(data)
    return _convert_scalar(kind, data, path)


def _convert_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is Decimal:
        if isinstance(data, bool):
            raise InputError("must be a number", field=path, value=data)
        try:
            number = Decimal(str(data))
        except InvalidOperation:
            raise InputError("must be a number", field=path, value=data) from None
        if not number.is_finite():
            raise InputError("must be a finite number", field=path, value=data)
        return number
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in kind)
            raise InputError("unknown value", field=path, value=data, remedy=f"Use one of: {allowed}.") from None
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is float and isinstance(data, float) and not isfinite(data):
        raise InputError("must be a finite number", field=path, value=data)
    if kind is int and isinstance(data, bool):
        raise InputError("must be an integer", field=path, value=data)
    if kind is type(None) and data is None:
        return None
    if isinstance(kind, type) and isinstance(data, kind):
        return data
    raise InputError(f"must be {getattr(kind, '__name__', kind)}", field=path, value=data)


def _convert_array(kind: Any, data: Any, path: str) -> np.ndarray:
    """Nested lists to an array of the annotated number type; all numbers finite, all rows of one length."""
    number = typing.get_args(typing.get_args(kind)[1])[0]
    if not isinstance(data, (list, tuple)):
        raise InputError("must be a list", field=path, value=data)
    try:
        array = np.array(data)
        whole = np.can_cast(array.dtype, number, "same_kind") and array.dtype.kind in "if"
        if not (whole or array.size == 0) or not np.isfinite(array.astype(np.float64)).all():
            raise ValueError
    except ValueError:
        raise InputError("must hold finite numbers, in rows of one length", field=path) from None
    return array.astype(number)


def _convert_union(options: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in options:
        return None
    failure: InputError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, data, path)
        except InputError as error:
            failure = failure or error
    raise failure or InputError("must not be null", field=path)


def _convert_sequence(origin: Any, args: tuple[Any, ...], data: Any, path: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise InputError("must be a list", field=path, value=data)
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(data):
            raise InputError(f"must have {len(args)} items", field=path, value=data)
        return tuple(
            _convert(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(args, data, strict=True))
        )
    kind = args[0] if args else Any
    if all(_plain(kind, item) for item in data):
        return origin(data)
    return origin(_convert(kind, item, f"{path}[{i}]") for i, item in enumerate(data))


@cache
def _schema(kind: Any) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Types and fields of a dataclass by name, those that its constructor takes."""
    return typing.get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind) if f.init}


def _convert_dataclass(kind: Any, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise InputError("must be an object", field=path, value=data)
    hints, known = _schema(kind)
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise InputError("unknown field", field=f"{path}.{unknown[0]}", remedy=f"Known fields: {', '.join(known)}.")
    values = {}
    for name, spec in known.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{path}.{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise InputError("is missing", field=f"{path}.{name}")
    return kind(**values)

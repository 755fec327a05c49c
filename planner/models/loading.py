"""Reading a config.json that somebody else wrote: bounded in size and depth, strict JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from planner.errors import InputError

LARGEST_FILE_BYTES = 4 * 2**20
"""The largest published configuration (a mixed-precision checkpoint that lists every module) has 0.6 MB."""

DEEPEST_NESTING = 32


def load_config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object from ``path``.

    Raises InputError when the file is absent, too large, not UTF-8, not JSON, nested deeper than 32, has a key twice,
    holds NaN or infinity, or is no object.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise InputError("is not a file", field="path", value=str(path))
        with file.open("rb") as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read: {error}", field="path", value=str(path)) from None
    return parse_config_text(data, str(path))


def parse_config_text(data: bytes | str, name: str = "config.json") -> dict[str, Any]:
    """``load_config_file`` for text already in memory (an upload); ``name`` is used in messages."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > LARGEST_FILE_BYTES:
        raise InputError(
            f"is larger than {LARGEST_FILE_BYTES // 2**20} MiB",
            field=name,
            remedy="Give the model's config.json, not its weights or tokenizer.",
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", field=name, remedy="Give the model's config.json.") from None
    _check_depth(text, name)
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_bounded_int)
    except InputError as error:
        raise InputError(error.message, field=f"{name}: {error.field}" if error.field else name) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {error}", field=name) from None
    if not isinstance(value, dict):
        raise InputError("must hold one JSON object", field=name, value=value)
    return value


def _check_depth(text: str, name: str) -> None:
    """Refuse deep nesting before the recursive decoder sees it."""
    depth = 0
    inside = escaped = False
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "[{":
            depth += 1
            if depth > DEEPEST_NESTING:
                raise InputError(f"is nested deeper than {DEEPEST_NESTING} levels", field=name)
        elif char in "]}":
            depth -= 1


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InputError("the key stands twice", field=key, remedy="Remove one of the two.")
        result[key] = value
    return result


def _no_constant(text: str) -> dict[str, str]:
    """Refuse NaN; keep infinity (Mamba time-step limits hold it) in the strict-JSON form that transformers 5 writes."""
    if text == "NaN":
        raise InputError("NaN is no JSON number")
    return {"__float__": text}


def _bounded_int(text: str) -> int:
    if len(text) > 40:
        raise InputError("a number has more than 40 digits")
    return int(text)

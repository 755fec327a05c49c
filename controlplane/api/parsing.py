"""Reading a body that somebody else wrote: bounded, strict JSON; files as they are."""

from __future__ import annotations

import json
import math
from typing import IO, Any

from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.parsers import BaseParser, MultiPartParser

from controlplane.api.problems import Malformed, TooLarge

DEEPEST = 32
LONGEST_NUMBER = 40
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def read_body(stream: IO[bytes], limit: int) -> bytes:
    """The whole body; raises TooLarge without holding more than ``limit`` bytes."""
    body = stream.read(limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    return body


def too_large(limit: int) -> TooLarge:
    """The refusal, with the limit."""
    return TooLarge(f"The body may have {limit / 2**20:g} MiB here. Send less at once.")


def read_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN, no infinity, no key twice, no NUL, bounded depth and digits. Raises Malformed."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_key_twice,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except UnicodeDecodeError as error:
        raise Malformed(f"The body is not UTF-8 at byte {error.start}. Send it as UTF-8.") from error
    except RecursionError as error:
        raise Malformed(f"The JSON is nested deeper than {DEEPEST} levels. Flatten it.") from error
    except ValueError as error:
        raise Malformed(f"The body is not JSON: {error}. Correct it and send it again.") from error
    _check(value)
    return value


class JsonParser(BaseParser):
    """``application/json``."""

    media_type = "application/json"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        """The value."""
        limit = min(parser_context["view"].max_body_bytes, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        return read_json(read_body(stream, limit))


class _FileParser(BaseParser):
    """The body is one file; it becomes the field ``file``."""

    suffix = ""

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        """A dict with the file."""
        content = read_body(stream, parser_context["view"].max_body_bytes)
        return {"file": SimpleUploadedFile(f"body.{self.suffix}", content)}


class CsvParser(_FileParser):
    """``text/csv``."""

    media_type = "text/csv"
    suffix = "csv"


class XlsxParser(_FileParser):
    """An Excel workbook."""

    media_type = XLSX
    suffix = "xlsx"


FILE_PARSERS = (JsonParser, MultiPartParser, CsvParser, XlsxParser)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:60]!r} stands twice")
            seen.add(key)
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:LONGEST_NUMBER]} is too large a number")
    return number


def _bounded(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number has more than {LONGEST_NUMBER} digits")
    return int(text)


def _check(value: Any) -> None:
    """Depth, and strings that no database stores."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise Malformed(f"The JSON is nested deeper than {DEEPEST} levels. Flatten it.")
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                for key in item:
                    _check_text(key)
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
            elif isinstance(item, str):
                _check_text(item)
        level = deeper


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise Malformed("A text holds the character NUL. Remove it.")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise Malformed("A text holds half of a surrogate pair. Send whole characters.") from None

"""Reading a request trace that somebody else wrote: CSV or JSON lines, plain or gzip."""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.conf import settings

from controlplane.core.tables import RowProblem, TableError, refuse

TIME_NAMES = ("timestamp_s", "time_s", "arrival_s", "timestamp", "time")
INPUT_NAMES = ("input_tokens", "prompt_tokens", "input_length", "contexttokens", "input")
OUTPUT_NAMES = ("output_tokens", "completion_tokens", "output_length", "generatedtokens", "output")
MAX_TOKENS = 10_000_000
MAX_PROBLEMS = 20
YEAR_S = 366 * 86400.0


@dataclass(frozen=True, eq=False)
class ParsedTrace:
    """Equal-length arrays; ``times_s`` from the first request, ascending, None when the file has no times."""

    times_s: np.ndarray | None
    input_tokens: np.ndarray
    output_tokens: np.ndarray


def parse_trace(name: str, content: bytes) -> ParsedTrace:
    """Read a trace; raises TableError naming row, field, value and what to do. Sorts by time."""
    lowered = name.lower()
    data = _unpack(content) if content[:2] == b"\x1f\x8b" else content
    if len(data) > settings.TRACE_MAX_BYTES:
        raise refuse(f"It is larger than {settings.TRACE_MAX_BYTES // 2**20} MiB. Keep a representative part.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise refuse("It is not UTF-8 text here.", row=line) from error
    if not text.strip():
        raise refuse("It is empty.")
    if "\x00" in text:
        raise refuse("It holds NUL bytes, so it is no text file.")
    lines = _jsonl(text) if lowered.removesuffix(".gz").endswith((".jsonl", ".json")) else _csv(text)
    return _collect(lines)


def _unpack(content: bytes) -> bytes:
    """Decompress gzip without ever holding more than the limit."""
    decoder = zlib.decompressobj(wbits=31)
    try:
        data = decoder.decompress(content, settings.TRACE_MAX_BYTES + 1)
    except zlib.error as error:
        raise refuse(f"It is no valid gzip file: {error}.") from error
    if not decoder.eof and len(data) <= settings.TRACE_MAX_BYTES:
        raise refuse("The gzip file is cut short. Copy it again.")
    return data


def _csv(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        headers = [header.strip().lower() for header in reader.fieldnames or []]
        reader.fieldnames = headers
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise refuse(f"It is not valid CSV here: {error}.", row=reader.line_num) from error


def _jsonl(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise refuse("It is not JSON. Write one object a line.", row=number, value=line) from error
        if not isinstance(value, dict):
            raise refuse("It is no JSON object.", row=number, value=line)
        yield number, {str(key).strip().lower(): item for key, item in value.items()}


def _collect(lines: Iterator[tuple[int, dict[str, Any]]]) -> ParsedTrace:
    times: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    problems: list[RowProblem] = []
    names: tuple[str | None, str, str] | None = None
    for number, row in lines:
        names = names or _columns(row)
        if len(inputs) >= settings.TRACE_MAX_ROWS:
            raise refuse(f"It has more than {settings.TRACE_MAX_ROWS:,} requests. Keep a representative part.")
        try:
            if names[0]:
                times.append(_time(row.get(names[0]), number, names[0]))
            inputs.append(_tokens(row.get(names[1]), number, names[1]))
            outputs.append(_tokens(row.get(names[2]), number, names[2]))
        except TableError as error:
            problems += error.problems
            if len(problems) >= MAX_PROBLEMS:
                break
    if problems:
        raise TableError(problems)
    if not inputs or names is None:
        raise refuse("It has no requests.")
    return _sorted(times if names[0] else None, inputs, outputs)


def _sorted(times: list[float] | None, inputs: list[int], outputs: list[int]) -> ParsedTrace:
    tokens_in, tokens_out = np.asarray(inputs, dtype=np.int64), np.asarray(outputs, dtype=np.int64)
    if times is None:
        return ParsedTrace(None, tokens_in, tokens_out)
    moments = np.asarray(times, dtype=np.float64)
    order = np.argsort(moments, kind="stable")
    moments = moments[order] - moments[order[0]]
    span_s = float(moments[-1])
    if len(moments) > 1 and span_s > YEAR_S:
        raise refuse(
            f"Read as seconds, the times span {span_s / YEAR_S:,.0f} years. Divide milliseconds by 1000.",
            field="timestamp_s",
            value=f"{span_s:g}",
        )
    if len(moments) > 1 and span_s <= 0:
        raise refuse("Every request has the same time. Give times, or leave the column out.", field="timestamp_s")
    return ParsedTrace(moments, tokens_in[order], tokens_out[order])


def _columns(row: dict[str, Any]) -> tuple[str | None, str, str]:
    time = next((name for name in TIME_NAMES if name in row), None)
    for wrong in ("timestamp_ms", "time_ms", "arrival_ms", "timestamp_us", "timestamp_ns"):
        if wrong in row:
            raise refuse("Times must be seconds; convert the column and call it timestamp_s.", row=1, field=wrong)
    found = []
    for names in (INPUT_NAMES, OUTPUT_NAMES):
        column = next((name for name in names if name in row), None)
        if column is None:
            known = ", ".join(str(key) for key in row if key)[:200]
            raise refuse(f"The column {names[0]} is missing; found: {known}.", row=1, field=names[0])
        found.append(column)
    return time, found[0], found[1]


def _time(value: Any, row: int, field: str) -> float:
    number = _number(value, row, field)
    if number < 0:
        raise refuse(
            "A time cannot be negative; give seconds from the first request.", row=row, field=field, value=value
        )
    return number


def _tokens(value: Any, row: int, field: str) -> int:
    number = _number(value, row, field)
    if number < 1:
        raise refuse("A request has at least 1 token.", row=row, field=field, value=value)
    if number > MAX_TOKENS:
        raise refuse(
            f"More than {MAX_TOKENS:,} tokens in one request. Are these characters or bytes?",
            row=row,
            field=field,
            value=value,
        )
    if number != int(number):
        raise refuse("A number of tokens is whole.", row=row, field=field, value=value)
    return int(number)


def _number(value: Any, row: int, field: str) -> float:
    if value is None or value == "" or isinstance(value, bool):
        raise refuse("It is missing.", row=row, field=field, value="" if value is None else value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise refuse("It must be a number without a unit.", row=row, field=field, value=value) from None
    if not math.isfinite(number):
        raise refuse("It must be a finite number.", row=row, field=field, value=value)
    return number

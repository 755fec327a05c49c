"""Reading a request trace that somebody else wrote: CSV or JSON lines, plain or gzip.

Prefix blocks are read from Mooncake's ``hash_ids`` (kvcache-ai/Mooncake, FAST25-release/traces: ``timestamp`` in
milliseconds, ``input_length``, ``output_length``, one id for each block of 512 tokens, a begun one included) or from
``prefix_block_ids`` with spaces between them. In every other form the name of the times says seconds: a bare
``timestamp`` is seconds in some published traces and milliseconds in others.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from django.conf import settings

from controlplane.core.tables import RowProblem, TableError, refuse
from controlplane.workloads.rules import MAX_TOKENS
from planner.catalog.prefixes import BLOCK_SIZES, block_tokens_of

TIME_NAMES = ("timestamp_s", "time_s", "arrival_s")
MOONCAKE_TIME = "timestamp"
WITHOUT_UNIT = ("timestamp", "time", "arrival")
INPUT_NAMES = ("input_tokens", "prompt_tokens", "input_length", "contexttokens", "input")
OUTPUT_NAMES = ("output_tokens", "completion_tokens", "output_length", "generatedtokens", "output")
PREFIX_NAMES = ("hash_ids", "prefix_block_ids")
MAX_BLOCKS = 5_000_000
MAX_PROBLEMS = 20
YEAR_S = 366 * 86400.0


@dataclass(frozen=True, eq=False)
class ParsedTrace:
    """Equal-length arrays; ``times_s`` from the first request, ascending, None when the file has no times.

    ``blocks`` ids of the prefix blocks of each prompt, of ``block_tokens`` tokens; None when the file names none.
    """

    times_s: np.ndarray | None
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    blocks: list[np.ndarray] | None = None
    block_tokens: int = 0


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
    blocks: list[np.ndarray] = []
    held = 0
    problems: list[RowProblem] = []
    names: tuple[str | None, str, str] | None = None
    prefix: str | None = None
    for number, row in lines:
        if names is None:
            names, prefix = _columns(row), next((name for name in PREFIX_NAMES if name in row), None)
        if len(inputs) >= settings.TRACE_MAX_ROWS:
            raise refuse(f"It has more than {settings.TRACE_MAX_ROWS:,} requests. Keep a representative part.")
        try:
            if names[0]:
                times.append(_time(row.get(names[0]), number, names[0]))
            inputs.append(_tokens(row.get(names[1]), number, names[1]))
            outputs.append(_tokens(row.get(names[2]), number, names[2]))
            if prefix:
                blocks.append(_blocks(row.get(prefix), number, prefix))
                held += blocks[-1].size
        except TableError as error:
            problems += error.problems
            if len(problems) >= MAX_PROBLEMS:
                break
        if held > MAX_BLOCKS:
            raise refuse(f"It names more than {MAX_BLOCKS:,} prefix blocks. Keep a representative part.")
    if problems:
        raise TableError(problems)
    if not inputs or names is None:
        raise refuse("It has no requests.")
    if names[0] == MOONCAKE_TIME:
        times = [moment / 1000.0 for moment in times]
    parsed, order = _sorted(times if names[0] else None, inputs, outputs)
    return _with_prefixes(parsed, [blocks[i] for i in order], prefix) if prefix else parsed


def _with_prefixes(parsed: ParsedTrace, blocks: list[np.ndarray], field: str) -> ParsedTrace:
    size = block_tokens_of(parsed.input_tokens, np.array([own.size for own in blocks]))
    if size is None:
        known = ", ".join(str(each) for each in sorted(BLOCK_SIZES))
        raise refuse(
            f"The numbers of prefix blocks fit no block size for every prompt: {known} tokens were tried, the last"
            " block whole or begun.",
            field=field,
        )
    return replace(parsed, blocks=blocks, block_tokens=size)


def _blocks(value: Any, row: int, field: str) -> np.ndarray:
    """A list of whole numbers, or such numbers with spaces between them; empty for a prompt without a whole block."""
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list):
        raise refuse("The prefix blocks must be a list of whole numbers.", row=row, field=field, value=str(value)[:80])
    try:
        numbers = [int(item) if isinstance(item, str) else item for item in items]
    except ValueError:
        numbers = [None]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise refuse(
            "The prefix blocks must be whole numbers from 0 to 2^63 - 1.", row=row, field=field, value=str(value)[:80]
        )
    return np.array(numbers, dtype=np.int64)


def _sorted(times: list[float] | None, inputs: list[int], outputs: list[int]) -> tuple[ParsedTrace, np.ndarray]:
    """The requests by time, and which came where."""
    tokens_in, tokens_out = np.asarray(inputs, dtype=np.int64), np.asarray(outputs, dtype=np.int64)
    if times is None:
        return ParsedTrace(None, tokens_in, tokens_out), np.arange(tokens_in.size)
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
    return ParsedTrace(moments, tokens_in[order], tokens_out[order]), order


def _columns(row: dict[str, Any]) -> tuple[str | None, str, str]:
    time = next((name for name in TIME_NAMES if name in row), None)
    for wrong in ("timestamp_ms", "time_ms", "arrival_ms", "timestamp_us", "timestamp_ns"):
        if wrong in row:
            raise refuse("Times must be seconds; convert the column and call it timestamp_s.", row=1, field=wrong)
    if time is None and "hash_ids" in row and MOONCAKE_TIME in row:
        time = MOONCAKE_TIME
    for bare in WITHOUT_UNIT if time is None else ():
        if bare in row:
            raise refuse(
                "It does not say its unit. Call it timestamp_s, in seconds from the first request (ms / 1000).",
                row=1,
                field=bare,
                value=row[bare],
            )
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

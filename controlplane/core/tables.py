"""Tables that go in and out. Reading a CSV or XLSX file that somebody else wrote: bounded, strict, with the place of
each fault. Writing: cells that no spreadsheet takes for a formula.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import zipfile
from dataclasses import dataclass
from typing import Any

import tablib
from django.conf import settings

MAX_COLUMNS = 100
MAX_CELL_CHARS = 20_000
MAX_UNPACKED_BYTES = 100 * 2**20
FORMULA = tuple("=+-@\t\r")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that neither XML nor a workbook can hold."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One fault of a file: ``row`` as a spreadsheet counts it (the header is 1; 0: the whole file), and what to do."""

    row: int
    field: str
    value: str
    message: str

    def __str__(self) -> str:
        where = f"Row {self.row}" if self.row else "File"
        column = f", {self.field}" if self.field else ""
        shown = f" ({self.value!r})" if self.value else ""
        return f"{where}{column}{shown}: {self.message}"


class TableError(Exception):
    """The file was refused as a whole; nothing of it was stored."""

    def __init__(self, problems: list[RowProblem]) -> None:
        self.problems = problems
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")


def refuse(message: str, *, row: int = 0, field: str = "", value: object = "") -> TableError:
    """A TableError of one problem."""
    return TableError([RowProblem(row, field, str(value)[:80], message)])


def read_table(name: str, content: bytes) -> tablib.Dataset:
    """The rows of a .csv or .xlsx file as text (XLSX numbers and dates keep their type); raises TableError."""
    if len(content) > settings.IMPORT_MAX_BYTES:
        limit = settings.IMPORT_MAX_BYTES // 2**20
        raise refuse(f"It has {len(content) / 2**20:.1f} MiB; the limit is {limit} MiB. Split the file.")
    if not content.strip():
        raise refuse("It is empty. The first line must name the columns.")
    if name.lower().endswith(".xlsx"):
        return _checked(_xlsx_rows(content))
    if name.lower().endswith(".csv"):
        return _checked(_csv_rows(content))
    raise refuse(f"{name[-40:]!r} is neither .csv nor .xlsx. Save it as one of them.")


def _csv_rows(content: bytes) -> list[list[Any]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise refuse("It is not UTF-8 text here. Save the file as CSV with UTF-8.", row=line) from error
    if "\x00" in text:
        raise refuse("It holds NUL bytes, so it is no text file. Save it as CSV.")
    delimiter = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
    rows: list[list[Any]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
            _check_count(rows)
    except csv.Error as error:
        raise refuse(f"It is not valid CSV here: {error}. Check the quotes.", row=len(rows) + 1) from error
    return rows


def _xlsx_rows(content: bytes) -> list[list[Any]]:
    import openpyxl

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(item.file_size for item in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise refuse(f"It unpacks to {unpacked / 2**20:.0f} MiB; the limit is {MAX_UNPACKED_BYTES // 2**20} MiB.")
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        sheet = book.worksheets[0]
        rows: list[list[Any]] = []
        for values in sheet.iter_rows(values_only=True):
            row = [_cell(value) for value in values]
            if any(cell != "" for cell in row):
                rows.append(row)
            _check_count(rows)
        book.close()
    except TableError:
        raise
    except Exception as error:  # a broken workbook fails in many ways inside the reader
        raise refuse(f"It is no readable XLSX file: {str(error)[:200]}. Save it again, or as CSV.") from error
    width = max((len(row) for row in rows), default=0)
    while width and all(len(row) < width or row[width - 1] == "" for row in rows):
        width -= 1
    return [row[:width] + [""] * (width - len(row)) for row in rows]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dt.datetime) and value.time() == dt.time():
        return value.date()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _check_count(rows: list[list[Any]]) -> None:
    if len(rows) > settings.IMPORT_MAX_ROWS + 1:
        raise refuse(f"It has more than {settings.IMPORT_MAX_ROWS:,} rows. Split the file.")


def _checked(rows: list[list[Any]]) -> tablib.Dataset:
    """Equal columns in every row, each named once."""
    if not rows:
        raise refuse("It is empty. The first line must name the columns.")
    headers = [str(cell).strip().lower() for cell in rows[0]]
    if len(headers) > MAX_COLUMNS:
        raise refuse(f"It has {len(headers)} columns; at most {MAX_COLUMNS} are read.", row=1)
    for index, header in enumerate(headers):
        if not header:
            raise refuse(f"Column {index + 1} has no name.", row=1)
        if header in headers[:index]:
            raise refuse("The column stands twice. Remove one.", row=1, field=header)
    if len(rows) == 1:
        raise refuse("It has a header and no rows.")
    problems: list[RowProblem] = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(headers):
            problems.append(RowProblem(number, "", "", f"It has {len(row)} cells, the header {len(headers)}."))
        for header, cell in zip(headers, row, strict=False):
            if isinstance(cell, str) and len(cell) > MAX_CELL_CHARS:
                problems.append(RowProblem(number, header, cell[:40], f"It has over {MAX_CELL_CHARS:,} characters."))
    if problems:
        raise TableError(problems)
    return tablib.Dataset(*rows[1:], headers=headers)


def inert(cell: Any) -> Any:
    """``cell``; text that a spreadsheet would take for a formula made plain text, by an apostrophe before it.

    Text that only looks so made gets another apostrophe, so that ``as_typed`` gives back what was there; control
    characters, which no workbook can hold, become U+FFFD.
    """
    if not isinstance(cell, str):
        return cell
    cell = CONTROL.sub("\ufffd", cell)
    return f"'{cell}" if cell.lstrip("'")[:1] in FORMULA and cell else cell


def as_typed(cell: Any) -> Any:
    """What ``inert`` was given."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and cell.lstrip("'")[:1] in FORMULA else cell

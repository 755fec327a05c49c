"""Reading the catalogue's CSV files: typed cells, every refusal names file, row and column."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from importlib.resources.abc import Traversable

from planner.errors import InputError

DATA: Traversable = files("planner.catalog") / "data"


def read_csv(*path: str) -> list[dict[str, str]]:
    """Rows of a catalogue file (gzip when it ends so); raises InputError when it is missing or has no header."""
    source = DATA.joinpath(*path)
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise InputError(f"catalogue file cannot be read: {error}", field="/".join(path)) from None
    if path[-1].endswith(".gz"):
        raw = gzip.decompress(raw)
    rows = list(csv.DictReader(io.StringIO(raw.decode("utf-8"))))
    if not rows:
        raise InputError("catalogue file is empty", field="/".join(path))
    return rows


def number(row: dict[str, str], column: str, name: str) -> float | None:
    """Positive finite number in ``column``, None when blank."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError("must be a number", field=f"{name}.{column}", value=text) from None
    if not math.isfinite(value) or value <= 0:
        raise InputError("must be positive", field=f"{name}.{column}", value=text)
    return value


def whole(row: dict[str, str], column: str, name: str) -> int | None:
    """Positive whole number in ``column``, None when blank."""
    value = number(row, column, name)
    if value is not None and value != int(value):
        raise InputError("must be a whole number", field=f"{name}.{column}", value=value)
    return None if value is None else int(value)


def money(row: dict[str, str], column: str, name: str) -> Decimal | None:
    """Positive amount in ``column``, None when blank."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InputError("must be an amount", field=f"{name}.{column}", value=text) from None
    if not value.is_finite() or value <= 0:
        raise InputError("must be positive", field=f"{name}.{column}", value=text)
    return value


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A remedy that names the closest of ``known``, ignoring case and punctuation."""
    plain = {simplified(item): item for item in known}
    wanted = simplified(name)
    close = [key for key in plain if wanted and key.startswith(wanted)]
    close += [key for key in difflib.get_close_matches(wanted, plain, n=count, cutoff=0.5) if key not in close]
    close += [key for key in plain if wanted and wanted in key and key not in close]
    return (
        f"Did you mean {', '.join(plain[key] for key in close[:count])}?" if close else "See the list of known names."
    )


def simplified(name: str) -> str:
    """``name`` in lower case without punctuation: "H100 SXM5 80GB" and "h100-sxm5-80gb" are equal."""
    return "".join(char for char in name.lower() if char.isalnum())

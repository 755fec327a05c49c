"""A chart as the pages show it: a Plotly figure, and the same data as a table.

Figures are plain data until something asks for ``Chart.figure``: Plotly's own objects check every attribute, which
costs ten times what the rest of a page with twenty charts does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from controlplane.dashboard import fmt, palette

if TYPE_CHECKING:
    import plotly.graph_objects as go

Trace = dict[str, Any]
"""What Plotly draws, as its JSON has it."""

FONT = '-apple-system, "Segoe UI", Inter, Roboto, "Noto Sans", "Helvetica Neue", "Liberation Sans", Arial, sans-serif'

_AXIS = {
    "gridcolor": palette.GRID,
    "linecolor": palette.AXIS,
    "zerolinecolor": palette.AXIS,
    "zerolinewidth": 1,
    "tickcolor": palette.AXIS,
    "tickfont": {"color": palette.TEXT_2, "size": 12},
    "title": {"font": {"color": palette.TEXT_2, "size": 12}, "standoff": 8},
    "automargin": True,
    "separatethousands": True,
    "showline": False,
}

TEMPLATE: dict[str, Any] = {
    "layout": {
        "font": {"family": FONT, "size": 12, "color": palette.TEXT_2},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": list(palette.CATEGORIES),
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": palette.TEXT_2}},
        "hoverlabel": {
            "bgcolor": palette.SURFACE,
            "bordercolor": palette.AXIS,
            "font": {"family": FONT, "size": 12, "color": palette.TEXT},
            "align": "left",
        },
        "hovermode": "closest",
        "dragmode": False,
        "xaxis": {**_AXIS, "showgrid": False},
        "yaxis": {**_AXIS, "showgrid": True, "ticklabelstandoff": 4},
        "bargap": 0.28,
        "separators": ".,",
    }
}
"""The one look of every figure."""


@dataclass(frozen=True)
class Column:
    """One column of a chart's table. ``numeric`` aligns right and shows ``unit`` in the header."""

    name: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Chart:
    """A titled figure with its data. ``size`` short | normal | tall; ``note`` says what to read from it."""

    ident: str
    title: str
    traces: tuple[Trace, ...]
    layout: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    size: str = ""

    @cached_property
    def figure(self) -> go.Figure:
        """The figure as Plotly's own object; raises ValueError for an attribute that Plotly does not know."""
        import plotly.graph_objects as go

        return go.Figure(data=list(self.traces), layout=self.layout)

    @property
    def cells(self) -> list[list[tuple[bool, str, str]]]:
        """The table's cells as (numeric, text, exact value)."""
        return [
            [
                (
                    column.numeric,
                    fmt.sig(value, 4) if column.numeric else str(value),
                    "" if value is None else str(value),
                )
                for column, value in zip(self.columns, row, strict=True)
            ]
            for row in self.rows
        ]

    @property
    def alternative(self) -> str:
        """What the picture shows, in words: how many rows, and from where to where each quantity runs."""
        spans = [self._span(at, column) for at, column in enumerate(self.columns) if column.numeric]
        lines = "1 line" if len(self.rows) == 1 else f"{len(self.rows):,} lines"
        said = "; ".join(span for span in spans[:5] if span)
        return f"{self.title}: {lines}{f'; {said}' if said else ''}. The table holds the same data."

    def _span(self, at: int, column: Column) -> str:
        values = [value for row in self.rows if (value := fmt.as_float(row[at])) is not None]
        if not values:
            return ""
        low, high = fmt.sig(min(values)), fmt.sig(max(values))
        return f"{column.name} {low if low == high else f'{low} to {high}'} {column.unit}".strip()

    @property
    def payload(self) -> str:
        """The figure as JSON that is safe inside a script element, with the colours of the dark theme."""
        figure = {"data": [_plain(trace) for trace in self.traces], "layout": _plain(self.layout)}
        text = json.dumps({"figure": figure, "dark": palette.DARK}, separators=(",", ":"), allow_nan=False)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def layout(**changes: Any) -> dict[str, Any]:
    """Layout of a figure: the template and what differs from it."""
    return {"template": TEMPLATE, **changes}


def axis(title: str, unit: str = "", **changes: Any) -> dict[str, Any]:
    """An axis whose title carries the unit."""
    return {"title": {"text": f"{title} ({unit})" if unit else title}, **changes}


def make(
    ident: str,
    title: str,
    traces: Sequence[Trace],
    figure_layout: dict[str, Any],
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    *,
    note: str = "",
    size: str = "",
) -> Chart:
    """Build a chart; the table's rows go with ``columns``."""
    table = tuple(tuple(row) for row in rows)
    return Chart(ident, title, tuple(traces), layout(**figure_layout), tuple(columns), table, note=note, size=size)


def scatter(**options: Any) -> Trace:
    """Points or lines."""
    return {"type": "scatter", **options}


def bar(**options: Any) -> Trace:
    """Bars."""
    return {"type": "bar", **options}


def waterfall(**options: Any) -> Trace:
    """Parts that add up to a total."""
    return {"type": "waterfall", **options}


def _plain(value: Any) -> Any:
    """As JSON takes it: amounts and numpy's numbers as floats, what is no number as null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return fmt.as_float(value)


def log_axis(low: float, high: float, prefix: str = "") -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 (few decades) or at powers of ten (many); ``prefix`` before each."""
    first, last = math.floor(math.log10(max(low, 1e-9))), math.ceil(math.log10(max(high, 1e-9)))
    steps = (1, 2, 5) if high / max(low, 1e-9) <= 100 else (1,)
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return {"type": "log", "tickvals": values, "ticktext": [prefix + _tick(value) for value in values], "tickangle": 0}


def _tick(value: float) -> str:
    """As short as Plotly writes its own: 1,000 and 2,000 would touch in a narrow chart."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return fmt.sig(value, 2)


def marker_line(direction: str, at: float, colour: str) -> dict[str, Any]:
    """A dotted line across the plot at ``at`` on axis ``direction`` (x or y)."""
    other = "x" if direction == "y" else "y"
    return {
        "type": "line", f"{direction}0": at, f"{direction}1": at, f"{other}0": 0, f"{other}1": 1,
        f"{other}ref": "paper", f"{direction}ref": direction, "line": {"color": colour, "width": 1, "dash": "dot"},
    }  # fmt: skip


def edge_note(direction: str, at: float, text: str, colour: str) -> dict[str, Any]:
    """The words of a ``marker_line``, at the edge of the plot."""
    base = {"text": text, "showarrow": False, "font": {"color": colour, "size": 11}, "bgcolor": palette.SURFACE}
    if direction == "y":
        return {**base, "xref": "paper", "x": 0, "y": at, "xanchor": "left", "yanchor": "bottom", "xshift": 4}
    return {**base, "yref": "paper", "y": 1, "x": at, "xanchor": "left", "yanchor": "top", "xshift": 4}

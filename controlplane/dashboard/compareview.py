"""Plans side by side as the page shows them: figures with what they differ by, and the charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, log_axis, make, scatter
from controlplane.planning.comparing import Comparison, Difference, Line, Served
from controlplane.planning.models import Plan

SYMBOLS = ("circle", "diamond", "square", "cross")
"""Marker of each plan."""
LEGEND_CHARS = 32


@dataclass(frozen=True)
class Cell:
    """One figure of one plan: its text, its exact value, and by how much it is off the first plan's."""

    text: str
    exact: str
    change: str
    differs: bool


def names(plans: Sequence[Plan]) -> list[str]:
    """Short names for charts: the number, and what was changed."""
    return [f"#{plan.number} {plan.title}" if plan.title else str(plan) for plan in plans]


def total_rows(found: Comparison) -> list[tuple[Line, list[Cell]]]:
    """Each total with its cells."""
    grows = [bool((plan.result or {}).get("runways")) for plan in found.plans]
    return [
        (line, [_cell(line, value, grown) for value, grown in zip(line.values, grows, strict=True)])
        for line in found.totals
    ]


def _cell(line: Line, value: Any, grown: bool) -> Cell:
    first = line.values[0]
    if line.kind == "months" and value is None:
        return Cell("lasts 3 years" if grown else "no growth asked", "", "", value != first)
    return Cell(shown(line.kind, value), fmt.exact(value) if fmt.as_float(value) is not None else "",
                _change(line.kind, first, value), value != first)  # fmt: skip


def shown(kind: str, value: Any) -> str:
    """A total as text."""
    if value is None:
        return "–"
    if kind == "usd":
        return fmt.money(value)
    if kind == "share":
        return fmt.percent(value)
    if kind == "months":
        return "today" if value == 0 else f"month {value}"
    if kind == "count":
        return f"{value:,}"
    return fmt.sig(value) if kind == "number" else str(value)


def _change(kind: str, first: Any, value: Any) -> str:
    before, after = fmt.as_float(first), fmt.as_float(value)
    if before is None or after is None or before == after or kind in ("months", "text"):
        return ""
    if kind == "usd" and before:
        return fmt.signed_percent(after / before - 1)
    if kind == "share":
        points = fmt.sig(100 * (after - before), 2)
        return f"{'+' if after > before else ''}{points} points"
    return f"{'+' if after > before else ''}{fmt.sig(after - before)}"


def sections(found: Comparison) -> list[tuple[str, list[Difference]]]:
    """Lines of difference by section, in order."""
    grouped: dict[str, list[Difference]] = {}
    for entry in found.differences:
        grouped.setdefault(entry.section, []).append(entry)
    return list(grouped.items())


def charts(found: Comparison) -> list[Chart]:
    """Cost by workload, GPUs by kind, and the price of output with its band."""
    return [_cost(found), _gpus(found), _prices(found)]


def _cost(found: Comparison) -> Chart:
    """What each workload's GPUs cost in each plan, a bar for each plan."""
    lines = [
        (line.name, [float(cell.usd_per_hour) if cell else 0.0 for cell in line.cells]) for line in found.workloads
    ]
    idle = next(line.values for line in found.totals if line.key == "idle_usd_per_hour")
    note = "Owned GPUs left idle cost more on top; they stand in the table."
    hover = fmt.sign() + "%{x:.2f} / h"
    rows = [*lines, ("Owned GPUs left idle", [float(usd) for usd in idle])]
    columns = (Column("Workload", numeric=False), *(Column(label, fmt.per("h")) for label in names(found.plans)))
    traces = _by_plan(found, lines, hover)
    title = axis("Cost", f"{fmt.currency()} an hour", rangemode="tozero", showgrid=True)
    return _bars("compare-cost", "What the placed GPUs cost", traces, title, columns, rows, note=note)


def _gpus(found: Comparison) -> Chart:
    """GPUs of each kind in each plan, a bar for each plan."""
    counts = []
    for plan in found.plans:
        nodes = {n["name"]: n["gpu"] for n in (*(plan.request or {})["nodes"], *(plan.result or {})["purchased_nodes"])}
        used: Counter[str] = Counter()
        for item in (plan.result or {})["placements"]:
            used[nodes.get(item["node"], "?")] += len(item["gpu_indexes"])
        counts.append(used)
    rows = [(gpu, [used[gpu] for used in counts]) for gpu in sorted({gpu for used in counts for gpu in used})]
    columns = (Column("GPU", numeric=False), *(Column(label) for label in names(found.plans)))
    title = axis("GPUs", rangemode="tozero", showgrid=True)
    return _bars("compare-gpus", "GPUs placed", _by_plan(found, rows, "%{x} GPUs"), title, columns, rows)


def _prices(found: Comparison) -> Chart:
    """$ per million output tokens of each workload in each plan: a dot with its 80 % band."""
    labels = names(found.plans)
    traces = []
    lines = [line for line in found.workloads if any(c and c.usd_per_mtok_output for c in line.cells)]
    for at, label in enumerate(labels):
        points = [(line.name, line.cells[at]) for line in lines]
        kept = [(name, cell) for name, cell in points if cell and cell.usd_per_mtok_output]
        mid = [float(cell.usd_per_mtok_output or 0) for _, cell in kept]
        bands = [_band(cell) for _, cell in kept]
        traces.append(
            scatter(
                x=mid, y=[name for name, _ in kept], mode="markers", name=_short(label), orientation="h",
                marker={"color": _colour(at), "size": 9, "symbol": SYMBOLS[at]},
                error_x={
                    "type": "data", "symmetric": False, "thickness": 1.5, "width": 0,
                    "array": [high - x for x, (_, high) in zip(mid, bands, strict=True)],
                    "arrayminus": [x - low for x, (low, _) in zip(mid, bands, strict=True)],
                },
                hovertemplate="%{y}<br>" + fmt.sign() + "%{x:.3g} / M tok<extra></extra>",
            )
        )  # fmt: skip
    rows = [(line.name, *(part for cell in line.cells for part in _price_cells(cell))) for line in lines]
    columns: list[Column] = [Column("Workload", numeric=False)]
    for label in labels:
        columns += [Column(label, fmt.per("M tok")), Column("low"), Column("high")]
    ends = [end for line in lines for cell in line.cells if cell and cell.usd_per_mtok_output for end in _band(cell)]
    ends = ends or [1.0]
    figure_layout = {
        "scattermode": "group", "showlegend": True, "legend": {"traceorder": "normal"},
        "xaxis": axis(
            "Cost of output", f"{fmt.currency()} per million tokens", showgrid=True, **log_axis(min(ends), max(ends))
        ),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make("compare-price", "Price of output", traces, figure_layout, columns, rows, note="Whiskers hold 80 %.")


def _band(cell: Served) -> tuple[float, float]:
    mid = float(cell.usd_per_mtok_output or 0)
    return tuple(map(float, cell.usd_per_mtok_output_80)) if cell.usd_per_mtok_output_80 else (mid, mid)  # type: ignore[return-value]


def _price_cells(cell: Served | None) -> tuple[Any, Any, Any]:
    band = (cell.usd_per_mtok_output_80 if cell else None) or (None, None)
    return (cell.usd_per_mtok_output if cell else None, *band)


def _colour(at: int) -> str:
    return palette.CATEGORIES[at % len(palette.CATEGORIES)]


def _by_plan(found: Comparison, lines: Sequence[tuple[str, Sequence[float]]], hover: str) -> list[Any]:
    """A bar of every line for each plan, in the plan's colour."""
    return [
        bar(
            y=[name for name, _ in lines], x=[values[at] for _, values in lines], orientation="h", name=_short(label),
            marker={"color": _colour(at)}, hovertemplate=f"%{{y}}<br>{label}: {hover}<extra></extra>",
        )
        for at, label in enumerate(names(found.plans))
    ]  # fmt: skip


def _bars(
    ident: str,
    title: str,
    traces: list[Any],
    xaxis: dict[str, Any],
    columns: Sequence[Column],
    rows: Sequence[tuple[str, Sequence[float]]],
    note: str = "",
) -> Chart:
    figure_layout = {
        "barmode": "group", "showlegend": True, "legend": {"traceorder": "normal"}, "xaxis": xaxis,
        "yaxis": {"autorange": "reversed", "showgrid": False}, "bargap": 0.32, "bargroupgap": 0.06,
    }  # fmt: skip
    table = [(name, *values) for name, values in rows]
    return make(ident, title, traces, figure_layout, columns, table, note=note)


def _short(label: str) -> str:
    """A plan's name that leaves a legend on its lines."""
    return label if len(label) <= LEGEND_CHARS else f"{label[: LEGEND_CHARS - 1].rstrip()}…"

"""Figures of a verdict: where it flips, and what moves its cost; of a plan: when its pools are full."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, edge_note, log_axis, make, marker_line, scatter

ENGINES = ("vllm", "tensorrt_llm")
WIDTHS = {"vllm": 5, "tensorrt_llm": 2}
"""Where both cost the same the first shows on either side of the second."""


def flip(point: Mapping[str, Any], ident: str) -> Chart:
    """USD an hour of each engine's best candidate over one parameter; today's value and the flip are marked."""
    curve = list(point.get("curve") or ())
    unit = point.get("unit") or ""
    values = [float(at["value"]) for at in curve]
    log = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    traces = []
    for engine in ENGINES:
        costs, name = [at[f"{engine}_usd_per_hour"] for at in curve], fmt.engine_label(engine)
        traces.append(
            scatter(
                x=values, y=costs, mode="lines+markers", name=name, connectgaps=False,
                line={"color": palette.ENGINE[engine], "width": WIDTHS[engine]},
                marker={"size": WIDTHS[engine] + 2, "color": palette.ENGINE[engine]},
                hovertemplate=f"%{{x:.3g}} {unit}<br>{name}: {fmt.sign()}%{{y:,.2f}} / h<extra></extra>",
            )
        )  # fmt: skip
    rows = [(at["value"], at["vllm_usd_per_hour"], at["tensorrt_llm_usd_per_hour"]) for at in curve]

    def place(value: float) -> float:
        return math.log10(value) if log else value

    current, flips = float(point["current"]), point.get("value")
    shapes, notes = [], []
    if not log or current > 0:
        shapes.append(marker_line("x", current, palette.TEXT_3))
        now = edge_note("x", place(current), f"now {fmt.sig(current)}", palette.TEXT_2)
        notes.append({**now, "yanchor": "bottom", "xanchor": "auto", "xshift": 0})  # above the plot, over no line
    if flips is not None and (not log or float(flips) > 0):
        shapes.append(marker_line("x", float(flips), palette.ATTENTION))
        note = edge_note("x", place(float(flips)), f"flips {fmt.sig(flips)}", palette.ATTENTION)
        notes.append({**note, "y": 0, "yanchor": "bottom"})
    scale = log_axis(min(values), max(values)) if log else {"rangemode": "tozero"}
    costs = [cost for row in rows for cost in row[1:] if cost]
    wide = bool(costs) and max(costs) > 20 * min(costs)
    figure_layout = {
        "xaxis": {**scale, "title": {"text": unit}},
        "yaxis": axis("Cost", fmt.per("h"), tickprefix=fmt.sign(), **_cost_axis(costs, wide)),
        "shapes": shapes, "annotations": notes, "margin": {"t": 20, "b": 4},
    }  # fmt: skip
    columns = (
        Column(point["parameter"].capitalize(), unit),
        Column("vLLM", f"{fmt.currency()}/h"),
        Column("TensorRT-LLM", f"{fmt.currency()}/h"),
    )
    title = point["parameter"][:1].upper() + point["parameter"][1:]
    return make(ident, title, traces, figure_layout, columns, rows, note=point["sentence"], size="short")


def _cost_axis(costs: Sequence[float], wide: bool) -> dict[str, Any]:
    return log_axis(min(costs), max(costs), fmt.sign()) if wide else {"rangemode": "tozero"}


def tornado(rows_in: Sequence[Mapping[str, Any]], ident: str = "tornado") -> Chart:
    """What moves the chosen candidate's cost: each input at its low and its high, the others as planned."""
    rows_in = list(rows_in)
    names = [row["parameter"][:1].upper() + row["parameter"][1:] for row in rows_in]
    traces = []
    for end, colour in (("low", palette.CATEGORIES[0]), ("high", palette.CATEGORIES[1])):
        moves = [row[f"usd_per_hour_{end}"] - row["usd_per_hour"] for row in rows_in]
        traces.append(
            bar(
                y=names, x=moves, base=[row["usd_per_hour"] for row in rows_in], orientation="h", name=f"at its {end}",
                marker={"color": colour},
                text=[f"{fmt.sig(row[end])} {row['unit']}" for row in rows_in], textposition="none",
                hovertemplate="%{y} %{text}<br>" + fmt.sign() + "%{x:,.2f} / h<extra></extra>",
            )
        )  # fmt: skip
    base = rows_in[0]["usd_per_hour"] if rows_in else 0.0
    columns = (
        Column("Input", numeric=False), Column("Low"), Column("High"), Column("Unit", numeric=False),
        Column("Cost at low", f"{fmt.currency()}/h"), Column("Cost at high", f"{fmt.currency()}/h"),
    )  # fmt: skip
    rows = [
        (name, row["low"], row["high"], row["unit"], row["usd_per_hour_low"], row["usd_per_hour_high"])
        for name, row in zip(names, rows_in, strict=True)
    ]
    figure_layout = {
        "barmode": "overlay", "showlegend": True, "legend": {"traceorder": "normal", "y": 1.08},
        "xaxis": axis("Cost of the choice", f"{fmt.currency()} an hour", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "shapes": [marker_line("x", base, palette.TEXT_3)],
        "annotations": [
            {
                **edge_note("x", base, f"planned {fmt.money(base)}", palette.TEXT_2),
                "yanchor": "bottom", "xanchor": "auto",
            }
        ],
        "margin": {"t": 28},
    }  # fmt: skip
    note = "One at a time: what a replica carries over its 80 % band, load and prices by a fifth, revisions to twice."
    return make(ident, "What moves the cost", traces, figure_layout, columns, rows, note=note, size="medium")


def runway(months: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> Chart:
    """GPUs of one kind needed month by month against those at hand; when it is full, and when to order."""
    gpu = found["gpu"]
    steps = [month["month"] for month in months]
    needed = [month["gpus_needed"].get(gpu, 0) for month in months]
    hand = [month["gpus_at_hand"].get(gpu, 0) for month in months]
    traces = [
        scatter(
            x=steps, y=hand, mode="lines", name="at hand", line={"color": palette.TEXT_3, "width": 1.5, "shape": "hv"},
            hovertemplate="month %{x}: %{y:,} at hand<extra></extra>",
        ),
        scatter(
            x=steps, y=needed, mode="lines", name="needed", line={"color": palette.ACCENT, "width": 2, "shape": "hv"},
            fill="tozeroy", fillcolor=palette.ACCENT_BAND, hovertemplate="month %{x}: %{y:,} needed<extra></extra>",
        ),
    ]  # fmt: skip
    shapes, notes = [], []
    full, order = found["full_in_months"], found["order_in_months"]
    if full is not None:
        shapes.append(marker_line("x", full, palette.FAILED))
        notes.append(edge_note("x", full, f"full in month {full}", palette.FAILED))
    if order is not None and order != full:
        shapes.append(marker_line("x", order, palette.ATTENTION))
        word = "order now" if order <= 0 else f"order by month {fmt.sig(order)}"
        notes.append({**edge_note("x", order, word, palette.ATTENTION), "y": 0.86})
    figure_layout = {
        "xaxis": axis("Months from the plan", ""), "yaxis": axis("GPUs", "", rangemode="tozero"), "shapes": shapes,
        "annotations": notes, "showlegend": True, "legend": {"traceorder": "normal"}, "margin": {"t": 28},
    }  # fmt: skip
    columns = (Column("Month"), Column("Needed", "GPUs"), Column("At hand", "GPUs"))
    ident = "runway-" + "".join(c if c.isalnum() else "-" for c in gpu)
    rows = list(zip(steps, needed, hand, strict=True))
    return make(ident, gpu, traces, figure_layout, columns, rows, note=found["sentence"], size="medium")


def months_cost(months: Sequence[Mapping[str, Any]]) -> Chart:
    """What the GPUs needed cost month by month."""
    steps = [month["month"] for month in months]
    usd = [float(month["usd_per_month"]) for month in months]
    trace = bar(
        x=steps,
        y=usd,
        marker={"color": palette.ACCENT},
        hovertemplate="month %{x}<br>" + fmt.sign() + "%{y:,.0f}<extra></extra>",
    )
    figure_layout = {
        "xaxis": axis("Months from the plan", ""),
        "yaxis": axis("Cost", f"{fmt.currency()} a month", rangemode="tozero"),
    }  # fmt: skip
    columns = (Column("Month"), Column("Cost", f"{fmt.currency()} a month"))
    note = "The GPUs needed; those beyond what is at hand at the price of that month. Without people and operations."
    rows = list(zip(steps, usd, strict=True))
    return make("runway-cost", "What it costs", [trace], figure_layout, columns, rows, note=note, size="medium")

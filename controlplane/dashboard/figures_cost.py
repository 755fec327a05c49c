"""Figures of what things cost: prices part by part, bills, and break-even. Data in, a Chart out."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, edge_note, make, marker_line, scatter, waterfall
from planner.economics.types import PriceSheet

STEPS = 60


def price_waterfall(sheet: PriceSheet, ident: str, currency: str) -> Chart:
    """One GPU-hour, part by part, up to its price."""
    names = [_label(term.label) for term in sheet.terms] + ["GPU-hour"]
    values = [float(term.usd_per_gpu_hour) for term in sheet.terms] + [float(sheet.usd_per_gpu_hour)]
    trace = waterfall(
        x=names, y=values, measure=["relative"] * len(sheet.terms) + ["total"],
        text=[fmt.money(value, currency=currency) for value in values], textposition="outside",
        textfont={"color": palette.TEXT_2}, cliponaxis=False,
        increasing={"marker": {"color": palette.ACCENT}}, totals={"marker": {"color": palette.TEXT_3}},
        connector={"line": {"color": palette.AXIS, "width": 1}}, hovertemplate="%{x}<br>%{text}<extra></extra>",
    )  # fmt: skip
    rows = [(_label(t.label), t.usd_per_gpu_hour, t.formula, t.source) for t in sheet.terms]
    rows.append(("GPU-hour", sheet.usd_per_gpu_hour, "", sheet.source))
    columns = (
        Column("Part", numeric=False), Column("Price", f"{currency} / GPU-h"), Column("How", numeric=False),
        Column("Source", numeric=False),
    )  # fmt: skip
    layout = {"yaxis": axis("Price", f"{currency} / GPU-hour", rangemode="tozero"), "margin": {"t": 28}}
    title = f"{sheet.gpu} in {sheet.pool}, a GPU-hour" if sheet.pool else f"{sheet.gpu}, a GPU-hour"
    return make(ident, title, [trace], layout, columns, rows, size="short")


def node_stack(sheets: Sequence[PriceSheet], currency: str) -> Chart:
    """A node of each kind for an hour: its GPUs' price parts, stacked."""
    labels = list(dict.fromkeys(_kind(term.label) for sheet in sheets for term in sheet.terms))
    names = [f"{sheet.pool or sheet.gpu} ({sheet.gpus_per_node} × {sheet.gpu})" for sheet in sheets]
    amounts = {
        label: [
            float(
                sum((t.usd_per_gpu_hour for t in sheet.terms if _kind(t.label) == label), Decimal(0))
                * sheet.gpus_per_node
            )
            for sheet in sheets
        ]
        for label in labels
    }
    traces = [
        bar(
            y=names, x=amounts[label], orientation="h", name=_label(label),
            marker={"color": palette.CATEGORIES[at % len(palette.CATEGORIES)]},
            hovertemplate=f"%{{y}}<br>{_label(label)}: %{{x:,.2f}} {currency} / h<extra></extra>",
        )
        for at, label in enumerate(labels)
    ]  # fmt: skip
    rows = [
        (name, *(amounts[label][at] for label in labels), sum(amounts[label][at] for label in labels))
        for at, name in enumerate(names)
    ]
    columns = (
        Column("Node", numeric=False), *(Column(_label(label), f"{currency} / h") for label in labels),
        Column("Node", f"{currency} / h"),
    )  # fmt: skip
    layout = {
        "barmode": "stack", "showlegend": True, "legend": {"traceorder": "normal"},
        "xaxis": axis("A node for an hour", currency, rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make("node-cost", "What a node costs an hour", traces, layout, columns, rows)


def break_even(
    ident: str, title: str, full: float, other: float, unit: str, words: tuple[str, str], carried: float | None = None
) -> Chart:
    """Cost per ``unit`` against utilisation: ``full`` at full use, dearer below; ``other`` is paid per use.

    ``words`` name the two; ``carried`` marks today's utilisation. The lines cross at full / other.
    """
    shares = [0.05 + (1 - 0.05) * step / STEPS for step in range(STEPS + 1)]
    own = [full / share for share in shares]
    crossing = full / other if other > 0 else None
    traces = [
        scatter(
            x=shares, y=own, mode="lines", name=words[0], line={"color": palette.ACCENT, "width": 2},
            hovertemplate=f"{words[0]}<br>%{{x:.0%}} used<br>%{{y:.3f}} {unit}<extra></extra>",
        ),
        scatter(
            x=shares, y=[other] * len(shares), mode="lines", name=words[1],
            line={"color": palette.ATTENTION, "width": 2},
            hovertemplate=f"{words[1]}<br>%{{y:.3f}} {unit}<extra></extra>",
        ),
    ]  # fmt: skip
    shapes, notes = [], []
    if crossing is not None and crossing <= 1:
        shapes.append(marker_line("x", crossing, palette.TEXT_3))
        notes.append(edge_note("x", crossing, f"break-even {fmt.percent(crossing)}", palette.TEXT_2))
    if carried is not None and 0 < carried <= 1:
        shapes.append(marker_line("x", carried, palette.ACCENT))
        notes.append({**edge_note("x", carried, f"today {fmt.percent(carried)}", palette.ACCENT), "y": 0.88})
    ceiling = 1.15 * max(other, full) * 3
    layout = {
        "xaxis": axis("Utilisation", tickformat=".0%", range=[0, 1.02]),
        "yaxis": axis("Cost", unit, range=[0, ceiling]),
        "shapes": shapes, "annotations": notes, "showlegend": True,
    }  # fmt: skip
    columns = (Column("Utilisation", "%"), Column(words[0], unit), Column(words[1], unit))
    rows = [(100 * share, value, other) for share, value in list(zip(shares, own, strict=True))[:: STEPS // 12]]
    if crossing is None or crossing > 1:
        note = f"Cheaper even at full use: {words[1]}."
    else:
        note = f"Cheaper from {fmt.percent(crossing)} in use: {words[0].lower()}."
    return make(ident, title, traces, layout, columns, rows, note=note)


def tenants(rows: Sequence[tuple[str, Decimal, Decimal]], currency: str) -> Chart:
    """Each tenant's month: ``rows`` of (tenant, used, idle head-room)."""
    names = [name for name, _, _ in rows]
    traces = [
        bar(
            y=names, x=[float(row[at]) for row in rows], orientation="h", name=word, marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{word}: %{{x:,.2f}} {currency}<extra></extra>",
        )
        for at, word, colour in ((1, "Used", palette.ACCENT), (2, "Idle head-room", palette.MEMORY["free"]))
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "showlegend": True,
        "xaxis": axis("A month", currency, rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    columns = (Column("Tenant", numeric=False), Column("Used", currency), Column("Idle head-room", currency))
    return make("tenants", "What each tenant's month costs", traces, layout, columns, rows, size="short")


def _kind(label: str) -> str:
    """A rental without offers is on demand: one colour for both."""
    return "on demand" if label == "rental" else label


def _label(text: str) -> str:
    return text[:1].upper() + text[1:]

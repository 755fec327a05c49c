"""The figures of the pages: pure functions from plain data to a Chart, tested as data.

Candidates, ledgers and timelines are in the JSON form of ``planner.plan_types`` (see ``planner.jsonio.to_json``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import plotly.graph_objects as go

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, make

MEMORY_PARTS = (
    ("weights_gib", "weights", "Weights"),
    ("activation_gib", "activation", "Activation"),
    ("graph_gib", "graphs", "CUDA graphs"),
    ("non_torch_gib", "non-torch", "Outside PyTorch"),
    ("lora_gib", "lora", "Adapters"),
    ("kv_gib", "kv", "KV cache"),
)
"""Ledger field, colour key and word of each part of a GPU's memory, in the order in which they are drawn."""

COST_WORDS = {
    "gpu": "GPUs, carried load",
    "idle": "GPUs, idle",
    "engine_operations": "Engine operations",
    "licence": "Licence",
    "energy": "Energy",
}


def pareto(candidates: Iterable[Mapping[str, Any]], chosen: str | None = None, workload: str = "") -> Chart:
    """Throughput per GPU against interactivity of all feasible candidates; the frontier of each engine is joined."""
    usable = [c for c in candidates if c.get("status") == "ok" and c.get("tok_s_per_gpu") and c.get("settings")]
    columns = (
        Column("Engine", numeric=False), Column("GPU", numeric=False), Column("Parallelism", numeric=False),
        Column("Precision", numeric=False), Column("Interactivity", "tok/s/user"), Column("Throughput", "tok/s/GPU"),
        Column("Evidence", numeric=False),
    )  # fmt: skip
    traces: list[Any] = []
    rows = []
    labels = []
    by_engine = {
        engine: sorted((c for c in usable if c["settings"]["engine"] == engine), key=lambda c: c["tok_s_per_user"])
        for engine in ("vllm", "tensorrt_llm")
    }
    fronts = {
        engine: frontier([(c["tok_s_per_user"], c["tok_s_per_gpu"]) for c in points])
        for engine, points in by_engine.items()
        if points
    }
    for engine, points in by_engine.items():
        if not points:
            continue
        colour = palette.ENGINE[engine]
        front = fronts[engine]
        traces.append(
            go.Scatter(
                x=[x for x, _ in front], y=[y for _, y in front], mode="lines", hoverinfo="skip",
                line={"color": colour, "width": 1.5}, name=fmt.engine_label(engine),
            )
        )  # fmt: skip
        furthest = front[-1][0] >= max(other[-1][0] for other in fronts.values())
        labels.append(_label(*(front[-1] if furthest else front[0]), fmt.engine_label(engine), colour, right=furthest))
        traces.append(
            go.Scatter(
                x=[c["tok_s_per_user"] for c in points],
                y=[c["tok_s_per_gpu"] for c in points],
                mode="markers",
                name=fmt.engine_label(engine),
                marker={
                    "color": [colour if c["evidence"] != "roofline" else palette.SURFACE for c in points],
                    "opacity": 1,
                    "size": [13 if c["id"] == chosen else 8 for c in points],
                    "line": {"color": [palette.TEXT if c["id"] == chosen else colour for c in points], "width": 1.5},
                },
                text=[_candidate_words(c) for c in points],
                hovertemplate="%{text}<br>%{x:.3g} tok/s/user<br>%{y:,.0f} tok/s/GPU<extra></extra>",
            )
        )
        rows += [
            (
                fmt.engine_label(engine), c["gpu"], fmt.parallelism(c["settings"]), c["settings"]["precision"],
                c["tok_s_per_user"], c["tok_s_per_gpu"], c["evidence"],
            )
            for c in points
        ]  # fmt: skip
    figure_layout = {
        "xaxis": axis("Interactivity", "tok/s/user"),
        "yaxis": axis("Throughput", "tok/s/GPU", rangemode="tozero"),
        "annotations": labels,
        "margin": {"r": 72},
    }
    note = "Up and to the right is better. The ringed point is the choice; hollow points rest on the roofline alone."
    title = f"Throughput against interactivity: {workload}" if workload else "Throughput against interactivity"
    return make(f"pareto-{workload or 'all'}", title, traces, figure_layout, columns, rows, note=note)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both directions, from small x to large."""
    best: list[tuple[float, float]] = []
    top = float("-inf")
    for x, y in sorted(points, key=lambda p: (-p[0], -p[1])):
        if y > top:
            best.append((x, y))
            top = y
    return best[::-1]


def load_curve(
    points: Sequence[Mapping[str, float]],
    *,
    metric: str,
    unit: str,
    engine: str,
    limit: float | None = None,
    knee: float | None = None,
    ident: str = "load-curve",
) -> Chart:
    """``metric`` over the request rate: ``points`` of rate_per_s, value, low, high; the SLO and the knee are marked."""
    rates = [p["rate_per_s"] for p in points]
    colour, band = palette.ENGINE.get(engine, palette.ACCENT), palette.ENGINE_BAND.get(engine, palette.ACCENT_BAND)
    traces = [
        go.Scatter(
            x=rates + rates[::-1], y=[p["high"] for p in points] + [p["low"] for p in points][::-1], fill="toself",
            fillcolor=band, line={"width": 0}, hoverinfo="skip", mode="lines",
        ),
        go.Scatter(
            x=rates, y=[p["value"] for p in points], mode="lines+markers", line={"color": colour, "width": 2},
            marker={"size": 5, "color": colour}, hovertemplate=f"%{{x:.3g}} req/s<br>%{{y:,.3g}} {unit}<extra></extra>",
        ),
    ]  # fmt: skip
    shapes, notes = [], []
    if limit is not None:
        shapes.append(_line("y", limit, palette.FAILED))
        notes.append(_edge_note("y", limit, f"SLO {fmt.sig(limit)} {unit}", palette.FAILED))
    if knee is not None:
        shapes.append(_line("x", knee, palette.TEXT_3))
        notes.append(_edge_note("x", knee, f"knee {fmt.sig(knee)} req/s", palette.TEXT_2))
    columns = (Column("Rate", "req/s"), Column(metric, unit), Column("Low", unit), Column("High", unit))
    rows = [(p["rate_per_s"], p["value"], p["low"], p["high"]) for p in points]
    figure_layout = {
        "xaxis": axis("Request rate", "req/s", rangemode="tozero"),
        "yaxis": axis(metric, unit, rangemode="tozero"),
        "shapes": shapes,
        "annotations": notes,
    }
    return make(ident, f"{metric} over load", traces, figure_layout, columns, rows, note="The band holds 80 %.")


def memory_segments(ledger: Mapping[str, Any]) -> list[tuple[str, str, float, str]]:
    """Parts of one GPU's memory as (key, word, GiB, hover); what is left over comes last as free."""
    parts = []
    for name, key, word in MEMORY_PARTS:
        size = max(0.0, fmt.as_float(ledger.get(name)) or 0.0)
        if size > 0:
            parts.append((key, word, size, f"{word}: {fmt.sig(size)} GiB"))
    free = (fmt.as_float(ledger.get("total_gib")) or 0.0) - sum(size for _, _, size, _ in parts)
    if free > 0.005:
        parts.append(("free", "Left over", free, f"Left over, not used by the engine: {fmt.sig(free)} GiB"))
    return parts


def memory_stack(bars: Sequence[tuple[str, Mapping[str, Any]]], ident: str = "memory") -> Chart:
    """Memory of one GPU for each (label, ledger): a stacked horizontal bar with the card's size marked."""
    labels = [label for label, _ in bars]
    split = [memory_segments(ledger) for _, ledger in bars]
    keys = [(key, word) for _, key, word in MEMORY_PARTS] + [("free", "Left over")]
    traces = []
    for key, word in keys:
        sizes = [sum(size for k, _, size, _ in parts if k == key) for parts in split]
        if not any(sizes):
            continue
        traces.append(
            go.Bar(
                y=labels, x=sizes, orientation="h", name=word, marker={"color": palette.MEMORY[key], "line": {"width": 0}},
                hovertemplate=f"%{{y}}<br>{word}: %{{x:.2f}} GiB<extra></extra>",
            )
        )  # fmt: skip
    rows = [
        (label, *(sum(size for k, _, size, _ in parts if k == key) for key, _ in keys), ledger.get("total_gib"))
        for (label, ledger), parts in zip(bars, split, strict=True)
    ]
    columns = (Column("What", numeric=False), *(Column(word, "GiB") for _, word in keys), Column("Total", "GiB"))
    figure_layout = {
        "barmode": "stack",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "xaxis": axis("Memory of one GPU", "GiB", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    size = "short" if len(bars) <= 3 else ""
    return make(ident, "Memory of one GPU", traces, figure_layout, columns, rows, size=size)


def concurrency(points: Sequence[tuple[int, float]], planned: int) -> Chart:
    """Requests held at once against their length, both logarithmic: ``points`` of (tokens, requests)."""
    kept = [(length, held) for length, held in points if held > 0]
    line = {"color": palette.CATEGORIES[2], "width": 2}
    traces = [
        go.Scatter(
            x=[length for length, _ in kept], y=[held for _, held in kept], mode="lines+markers", line=line,
            marker={"size": 6, "color": palette.CATEGORIES[2]},
            hovertemplate="%{x:,} tokens each<br>%{y:,.3g} at once<extra></extra>",
        )
    ]  # fmt: skip
    held = [h for _, h in kept] or [1.0]
    lengths = [length for length, _ in kept] or [1]
    figure_layout = {
        "xaxis": axis("Length of each request", "tokens", **log_axis(min(lengths), max(lengths))),
        "yaxis": axis("Requests at once", **log_axis(min(held), max(held))),
        "shapes": [_line("x", planned, palette.TEXT_3)],
        "annotations": [_edge_note("x", math.log10(planned), "context set", palette.TEXT_2)] if kept else [],
    }
    columns = (Column("Length", "tokens"), Column("Requests at once"))
    note = "As the engine counts them: whole blocks, and windows and states where layers have them."
    return make("concurrency", "Requests that the KV cache holds", traces, figure_layout, columns, points, note=note)


def log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 (few decades) or at powers of ten (many)."""
    first, last = math.floor(math.log10(max(low, 1e-9))), math.ceil(math.log10(max(high, 1e-9)))
    steps = (1, 2, 5) if high / max(low, 1e-9) <= 100 else (1,)
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return {"type": "log", "tickvals": values, "ticktext": [fmt.sig(value, 2) for value in values], "tickangle": 0}


def cost_split(parts: Sequence[tuple[str, Decimal]], ident: str = "cost") -> Chart:
    """What a month costs, part by part, and the bill that they add up to."""
    rows = [(COST_WORDS.get(name, name.replace("_", " ").capitalize()), Decimal(value)) for name, value in parts]
    total = sum((value for _, value in rows), Decimal(0))
    names = [name for name, _ in rows] + ["Bill"]
    values = [float(value) for _, value in rows] + [float(total)]
    traces = [
        go.Waterfall(
            x=names, y=values, measure=["relative"] * len(rows) + ["total"], text=[fmt.money(v) for v in values],
            textposition="outside", textfont={"color": palette.TEXT_2}, cliponaxis=False,
            increasing={"marker": {"color": palette.ACCENT}}, decreasing={"marker": {"color": palette.OK}},
            totals={"marker": {"color": palette.TEXT_3}}, connector={"line": {"color": palette.AXIS, "width": 1}},
            hovertemplate="%{x}<br>$%{y:,.2f} a month<extra></extra>",
        )
    ]  # fmt: skip
    figure_layout = {
        "yaxis": axis("Cost", "USD a month", rangemode="tozero"),
        "xaxis": {"showgrid": False},
        "margin": {"t": 28},
    }
    columns = (Column("Part", numeric=False), Column("Cost", "USD a month"))
    return make(ident, "Where the money goes", traces, figure_layout, columns, [*rows, ("Bill", total)])


def predicted_measured(rows_in: Sequence[Mapping[str, Any]], *, metric: str, unit: str) -> Chart:
    """Measured against predicted with the 80 % band of each prediction; the diagonal is a perfect one."""
    rows = [r for r in rows_in if fmt.as_float(r.get("predicted")) and fmt.as_float(r.get("measured"))]
    traces: list[Any] = []
    values = [float(r[k]) for r in rows for k in ("predicted", "measured")]
    if values:
        low, high = min(values) / 1.4, max(values) * 1.4
        traces.append(
            go.Scatter(
                x=[low, high, high, low], y=[low * 0.85, high * 0.85, high * 1.15, low * 1.15], fill="toself",
                fillcolor=palette.ACCENT_BAND, line={"width": 0}, mode="lines", hoverinfo="skip",
            )
        )  # fmt: skip
        line = {"color": palette.AXIS, "width": 1}
        traces.append(go.Scatter(x=[low, high], y=[low, high], mode="lines", line=line, hoverinfo="skip"))
    for emulated in (False, True):
        part = [r for r in rows if bool(r.get("emulated")) is emulated]
        if not part:
            continue
        colours = [palette.ENGINE.get(r.get("engine", ""), palette.ACCENT) for r in part]
        mid = [float(r["predicted"]) for r in part]
        traces.append(
            go.Scatter(
                x=mid, y=[float(r["measured"]) for r in part], mode="markers",
                error_x={
                    "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": palette.AXIS,
                    "array": [max(0.0, (fmt.as_float(r.get("high")) or p) - p) for r, p in zip(part, mid, strict=True)],
                    "arrayminus": [max(0.0, p - (fmt.as_float(r.get("low")) or p)) for r, p in zip(part, mid, strict=True)],
                },
                marker={"color": colours, "size": 9, "symbol": "circle-x-open" if emulated else "circle"},
                text=[str(r.get("label", "")) for r in part],
                hovertemplate=f"%{{text}}<br>predicted %{{x:,.3g}} {unit}<br>measured %{{y:,.3g}} {unit}<extra></extra>",
            )
        )  # fmt: skip
    columns = (
        Column("What", numeric=False), Column("Predicted", unit), Column("Low", unit), Column("High", unit),
        Column("Measured", unit), Column("Emulated", numeric=False),
    )  # fmt: skip
    table = [
        (
            r.get("label", ""),
            r["predicted"],
            r.get("low"),
            r.get("high"),
            r["measured"],
            "yes" if r.get("emulated") else "",
        )
        for r in rows
    ]
    word = metric if metric.isupper() else metric.lower()
    log = bool(values) and max(values) / min(values) > 20
    kind = log_axis(min(values), max(values)) if log else {"rangemode": "tozero"}
    figure_layout = {
        "xaxis": axis(f"Predicted {word}", unit, showgrid=True, **kind),
        "yaxis": axis(f"Measured {word}", unit, **kind),
    }
    return make(f"scatter-{metric.lower()}", metric, traces, figure_layout, columns, table)


def length_distribution(samples: Sequence[int], *, ident: str, title: str, colour: str = palette.ACCENT) -> Chart:
    """Histogram of token counts on a logarithmic axis when they spread over more than a factor of 30."""
    values = np.asarray([s for s in samples if s >= 0], dtype=np.int64)
    if values.size == 0:
        return make(ident, title, [], {}, (Column("Tokens"), Column("Requests")), [])
    low, high = max(1, int(values.min())), max(2, int(values.max()))
    log = high / low > 30
    bins = min(40, max(4, int(np.sqrt(values.size)) * 2))
    edges = np.unique(np.round(np.geomspace(low, high + 1, bins + 1) if log else np.linspace(low, high + 1, bins + 1)))
    counts, edges = np.histogram(values, bins=edges)
    centres = np.sqrt(edges[:-1] * edges[1:]) if log else (edges[:-1] + edges[1:]) / 2
    shares = counts / values.size
    median, p99 = float(np.percentile(values, 50)), float(np.percentile(values, 99))
    traces = [
        go.Bar(
            x=centres.tolist(), y=(shares * 100).tolist(), width=np.diff(edges).tolist(),
            marker={"color": colour, "line": {"color": palette.SURFACE, "width": 0.5}},
            text=[f"{int(a):,} to {int(b) - 1:,} tokens" for a, b in zip(edges[:-1], edges[1:], strict=True)],
            hovertemplate="%{text}<br>%{y:.2g} % of requests<extra></extra>", textposition="none",
        )
    ]  # fmt: skip
    figure_layout = {
        "xaxis": axis("Tokens", **(log_axis(low, high) if log else {})),
        "yaxis": axis("Requests", "%", rangemode="tozero"),
        "bargap": 0,
    }
    rows = [
        (f"{int(a):,}–{int(b) - 1:,}", int(n), float(s) * 100)
        for a, b, n, s in zip(edges[:-1], edges[1:], counts, shares, strict=True)
    ]
    columns = (Column("Tokens", numeric=False), Column("Requests"), Column("Share", "%"))
    note = f"Median {fmt.sig(median)}, 99th percentile {fmt.sig(p99)}, mean {fmt.sig(values.mean())} tokens."
    return make(ident, title, traces, figure_layout, columns, rows, note=note, size="short")


def arrivals(times_s: Sequence[float], *, ident: str = "arrivals", title: str = "Arrivals", buckets: int = 60) -> Chart:
    """Request rate over time, in equal buckets, with the mean; bursts stand out above it."""
    times = np.asarray(times_s, dtype=np.float64)
    columns = (Column("From", "s"), Column("Requests"), Column("Rate", "req/s"))
    if times.size < 2 or times.max() <= times.min():
        return make(ident, title, [], {}, columns, [])
    start, end = float(times.min()), float(times.max())
    counts, edges = np.histogram(times, bins=buckets, range=(start, end))
    width = (end - start) / buckets
    rates = counts / width
    mean = times.size / (end - start)
    scale, unit = (60, "min") if end - start > 600 else (1, "s")
    x = ((edges[:-1] - start) / scale).tolist()
    traces = [
        go.Scatter(
            x=x, y=rates.tolist(), mode="lines", line={"color": palette.ACCENT, "width": 1.5, "shape": "hv"},
            fill="tozeroy", fillcolor=palette.ACCENT_BAND, hovertemplate=f"%{{x:.3g}} {unit}<br>%{{y:.3g}} req/s<extra></extra>",
        )
    ]  # fmt: skip
    figure_layout = {
        "xaxis": axis("Time", unit),
        "yaxis": axis("Rate", "req/s", rangemode="tozero"),
        "shapes": [_line("y", mean, palette.TEXT_3)],
        "annotations": [_edge_note("y", mean, f"mean {fmt.sig(mean)} req/s", palette.TEXT_2)],
    }
    peak = float(rates.max())
    note = f"Peak of {fmt.sig(peak)} req/s over {fmt.duration(width)}: {fmt.sig(peak / mean, 2)} times the mean."
    rows = [(float(e - start), int(n), float(r)) for e, n, r in zip(edges[:-1], counts, rates, strict=True)]
    return make(ident, title, traces, figure_layout, columns, rows, note=note, size="short")


def burst_timeline(timeline: Mapping[str, Sequence[float]], *, ident: str = "timeline") -> Chart:
    """Running and waiting requests and the share of KV in use over a simulated run."""
    t = list(timeline["t_s"])
    running, waiting = list(timeline["running"]), list(timeline["waiting"])
    kv = [100 * v for v in timeline["kv_used"]]
    traces = [
        _series(t, running, "running", palette.ACCENT, "y"),
        _series(t, waiting, "waiting", palette.ATTENTION, "y"),
        _series(t, kv, "KV in use", palette.CATEGORIES[2], "y2"),
    ]
    figure_layout = {
        "xaxis": axis("Time", "s", anchor="y2"),
        "yaxis": axis("Requests", domain=[0.42, 1], rangemode="tozero"),
        "yaxis2": axis("KV", "%", domain=[0, 0.32], range=[0, 100]),
        "showlegend": True,
    }
    columns = (Column("Time", "s"), Column("Running"), Column("Waiting"), Column("KV in use", "%"))
    rows = list(zip(t, running, waiting, kv, strict=True))
    return make(ident, "Load inside the engine", traces, figure_layout, columns, rows)


def kv_fragmentation(reports: Sequence[tuple[str, Mapping[str, float]]], *, ident: str = "kv-waste") -> Chart:
    """Share of allocated KV that holds live tokens, by how it is allocated: ``reports`` of (label, {live, part: share})."""
    parts = (
        ("live", "Live tokens", palette.CATEGORIES[2]),
        ("reserved", "Reserved, never used", palette.CATEGORIES[5]),
        ("last_block", "Rest of the last block", palette.CATEGORIES[1]),
        ("padding", "Padding", palette.CATEGORIES[3]),
    )
    labels = [label for label, _ in reports]
    traces = []
    for key, word, colour in parts:
        values = [100 * (fmt.as_float(report.get(key)) or 0.0) for _, report in reports]
        if any(values):
            traces.append(
                go.Bar(y=labels, x=values, orientation="h", name=word, marker={"color": colour},
                       hovertemplate=f"%{{y}}<br>{word}: %{{x:.3g}} %<extra></extra>")
            )  # fmt: skip
    columns = (Column("Allocation", numeric=False), *(Column(word, "%") for _, word, _ in parts))
    rows = [(label, *(100 * (fmt.as_float(r.get(k)) or 0.0) for k, _, _ in parts)) for label, r in reports]
    figure_layout = {
        "barmode": "stack", "showlegend": True, "legend": {"traceorder": "normal"},
        "xaxis": axis("Share of the KV memory allocated", "%", range=[0, 100], showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make(ident, "What the KV memory holds", traces, figure_layout, columns, rows, size="short")


def cost_by_workload(rows_in: Sequence[tuple[str, Any, Any]], *, ident: str = "cost-by-engine") -> Chart:
    """$ per million output tokens of each engine's best candidate: ``rows_in`` of (workload, vLLM, TensorRT-LLM)."""
    names = [name for name, _, _ in rows_in]
    traces = []
    for index, engine in ((1, "vllm"), (2, "tensorrt_llm")):
        values = [fmt.as_float(row[index]) for row in rows_in]
        if any(value is not None for value in values):
            traces.append(
                go.Bar(
                    y=names, x=values, orientation="h", name=fmt.engine_label(engine), marker={"color": palette.ENGINE[engine]},
                    text=["" if v is None else fmt.money(v) for v in values], textposition="outside", cliponaxis=False,
                    textfont={"color": palette.TEXT_2}, hovertemplate="%{y}<br>$%{x:.3f} / M tok<extra></extra>",
                )
            )  # fmt: skip
    columns = (Column("Workload", numeric=False), Column("vLLM", "USD / M tok"), Column("TensorRT-LLM", "USD / M tok"))
    figure_layout = {
        "barmode": "group", "showlegend": True, "bargap": 0.36, "bargroupgap": 0.08, "margin": {"r": 48},
        "xaxis": axis("Cost of output", "USD per million tokens", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make(ident, "Cost by engine", traces, figure_layout, columns, rows_in)


def _candidate_words(candidate: Mapping[str, Any]) -> str:
    settings = candidate["settings"]
    return (
        f"{fmt.engine_label(settings['engine'])}, {candidate['gpu']}<br>{fmt.parallelism(settings)}, "
        f"{settings['precision']}, {candidate['evidence']}"
    )


def _series(x: list[float], y: list[float], name: str, colour: str, yaxis: str) -> Any:
    return go.Scatter(
        x=x, y=y, name=name, mode="lines", line={"color": colour, "width": 1.5}, yaxis=yaxis,
        hovertemplate=f"%{{x:.4g}} s<br>{name}: %{{y:.4g}}<extra></extra>",
    )  # fmt: skip


def _label(x: float, y: float, text: str, colour: str, *, right: bool) -> dict[str, Any]:
    place = {"xanchor": "left", "xshift": 9} if right else {"xanchor": "center", "yanchor": "bottom", "yshift": 9}
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"color": colour, "size": 12}, **place}


def _line(direction: str, at: float, colour: str) -> dict[str, Any]:
    other = "x" if direction == "y" else "y"
    return {
        "type": "line", f"{direction}0": at, f"{direction}1": at, f"{other}0": 0, f"{other}1": 1,
        f"{other}ref": "paper", f"{direction}ref": direction, "line": {"color": colour, "width": 1, "dash": "dot"},
    }  # fmt: skip


def _edge_note(direction: str, at: float, text: str, colour: str) -> dict[str, Any]:
    base = {"text": text, "showarrow": False, "font": {"color": colour, "size": 11}, "bgcolor": palette.SURFACE}
    if direction == "y":
        return {**base, "xref": "paper", "x": 1, "y": at, "xanchor": "right", "yanchor": "bottom"}
    return {**base, "yref": "paper", "y": 1, "x": at, "xanchor": "left", "yanchor": "top", "xshift": 4}

"""Figures of demand and of what an engine does under it: lengths, arrivals, KV memory over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, edge_note, log_axis, make, marker_line, scatter


def concurrency(points: Sequence[tuple[int, float]], planned: int) -> Chart:
    """Requests held at once against their length, both logarithmic: ``points`` of (tokens, requests)."""
    kept = [(length, held) for length, held in points if held > 0]
    line = {"color": palette.CATEGORIES[2], "width": 2}
    traces = [
        scatter(
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
        "shapes": [marker_line("x", planned, palette.TEXT_3)],
        "annotations": [edge_note("x", math.log10(planned), "context set", palette.TEXT_2)] if kept else [],
    }
    columns = (Column("Length", "tokens"), Column("Requests at once"))
    note = "As the engine counts them: whole blocks, and windows and states where layers have them."
    return make("concurrency", "Requests that the KV cache holds", traces, figure_layout, columns, points, note=note)


def length_distribution(samples: Sequence[int], *, ident: str, title: str, colour: str = palette.ACCENT) -> Chart:
    """Histogram of token counts on a logarithmic axis when they spread over more than a factor of 30."""
    values = np.asarray([s for s in samples if s >= 0], dtype=np.int64)
    if values.size == 0:
        return make(ident, title, [], {}, (Column("Tokens"), Column("Requests")), [])
    low, high = max(1, int(values.min())), max(2, int(values.max()))
    if low == high:
        return _one_length(low, values.size, ident, title, colour)
    log = high / low > 30
    bins = min(40, max(4, int(np.sqrt(values.size)) * 2))
    edges = np.unique(np.round(np.geomspace(low, high + 1, bins + 1) if log else np.linspace(low, high + 1, bins + 1)))
    counts, edges = np.histogram(values, bins=edges)
    centres = np.sqrt(edges[:-1] * edges[1:]) if log else (edges[:-1] + edges[1:]) / 2
    shares = counts / values.size
    median, p99 = float(np.percentile(values, 50)), float(np.percentile(values, 99))
    traces = [
        bar(
            x=centres.tolist(), y=(shares * 100).tolist(), width=np.diff(edges).tolist(),
            marker={"color": colour, "line": {"color": palette.SURFACE, "width": 0.5}},
            text=[f"{int(a):,} to {int(b) - 1:,} tokens" for a, b in itertools.pairwise(edges)],
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


def _one_length(tokens: int, requests: int, ident: str, title: str, colour: str) -> Chart:
    one = bar(
        x=[tokens], y=[100], width=[tokens / 12], marker={"color": colour}, textposition="none",
        hovertemplate=f"{tokens:,} tokens<br>every request<extra></extra>",
    )  # fmt: skip
    figure_layout = {
        "xaxis": axis("Tokens", range=[0, tokens * 2]),
        "yaxis": axis("Requests", "%", range=[0, 105]),
    }
    columns = (Column("Tokens", numeric=False), Column("Requests"), Column("Share", "%"))
    note = f"Every request has {tokens:,} tokens."
    return make(
        ident, title, [one], figure_layout, columns, [(f"{tokens:,}", requests, 100.0)], note=note, size="short"
    )


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
        scatter(
            x=x, y=rates.tolist(), mode="lines", line={"color": palette.ACCENT, "width": 1.5, "shape": "hv"},
            fill="tozeroy", fillcolor=palette.ACCENT_BAND,
            hovertemplate=f"%{{x:.3g}} {unit}<br>%{{y:.3g}} req/s<extra></extra>",
        )
    ]  # fmt: skip
    figure_layout = {
        "xaxis": axis("Time", unit),
        "yaxis": axis("Rate", "req/s", rangemode="tozero"),
        "shapes": [marker_line("y", mean, palette.TEXT_3)],
        "annotations": [edge_note("y", mean, f"mean {fmt.sig(mean)} req/s", palette.TEXT_2)],
    }
    peak = float(rates.max())
    note = f"Peak of {fmt.sig(peak)} req/s over {fmt.duration(width)}: {fmt.sig(peak / mean, 2)} times the mean."
    rows = [(float(e - start), int(n), float(r)) for e, n, r in zip(edges[:-1], counts, rates, strict=True)]
    return make(ident, title, traces, figure_layout, columns, rows, note=note, size="short")


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def week(profile: Sequence[float], peak_per_s: float | None, *, ident: str = "week") -> Chart:
    """The demand of a week hour by hour, with its mean; in requests/s where the peak hour is known, else its share."""
    values = np.asarray(profile, dtype=np.float64)
    share = values / values.max()
    shown, unit = (share * peak_per_s, "req/s") if peak_per_s else (100 * share, "%")
    mean = float(shown.mean())
    hours = list(range(values.size))
    names = [f"{DAYS[hour // 24]} {hour % 24}:00" for hour in hours]
    traces = [
        scatter(
            x=hours, y=shown.tolist(), mode="lines", line={"color": palette.ACCENT, "width": 1.5, "shape": "hv"},
            fill="tozeroy", fillcolor=palette.ACCENT_BAND, customdata=names,
            hovertemplate=f"%{{customdata}}<br>%{{y:.3g}} {unit}<extra></extra>",
        )
    ]  # fmt: skip
    figure_layout = {
        "xaxis": axis("", "", tickvals=[24 * day + 12 for day in range(7)], ticktext=[day[:3] for day in DAYS]),
        "yaxis": axis("Demand", unit, rangemode="tozero"),
        "shapes": [marker_line("y", mean, palette.TEXT_3)],
        "annotations": [edge_note("y", mean, f"mean {fmt.sig(mean)} {unit}", palette.TEXT_2)],
    }
    top = int(values.argmax())
    note = f"Peak on {names[top]}; the mean is {fmt.sig(100 * float(share.mean()), 3)} % of it."
    columns = (Column("Hour"), Column("Demand", unit))
    rows = list(zip(names, (float(value) for value in shown), strict=True))
    return make(ident, "Hours of the week", traces, figure_layout, columns, rows, note=note, size="short")


def burst_timeline(
    timeline: Mapping[str, Sequence[float]],
    *,
    title: str = "A burst inside the engine",
    note: str = "",
    ident: str = "timeline",
    transferring: Sequence[float] | None = None,
    bursts_s: Sequence[tuple[float, float]] = (),
) -> Chart:
    """Running and waiting requests and the share of KV in use over a simulated run; ``bursts_s`` are shaded.

    ``transferring``: requests whose cache is on its way to this pool.
    """
    t = list(timeline["t_s"])
    running, waiting = list(timeline["running"]), list(timeline["waiting"])
    kv = [100 * v for v in timeline["kv_used"]]
    lines = [("Running", running, palette.ACCENT), ("Waiting", waiting, palette.ATTENTION)]
    if transferring is not None:
        lines.append(("In transfer", list(transferring), palette.CATEGORIES[3]))
    traces = [_series(t, values, word, colour, "y") for word, values, colour in lines]
    cache = _series(t, kv, "KV cache in use", palette.CATEGORIES[2], "y2", " %")
    traces.append({**cache, "showlegend": False})  # alone on its axis, which names it
    end = max(t)
    figure_layout = {
        "xaxis": axis("Time", "s", anchor="y2", range=[0, end], nticks=8),
        "yaxis": axis("Requests", domain=[0.42, 1], rangemode="tozero"),
        "yaxis2": axis("KV in use", "%", domain=[0, 0.32], range=[0, _ceiling(max(kv))]),
        "shapes": [
            {
                "type": "rect", "x0": start, "x1": min(stop, end), "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
                "fillcolor": palette.GRID, "opacity": 0.5, "line": {"width": 0},
            }
            for start, stop in bursts_s if start < end
        ],
        "showlegend": True,
    }  # fmt: skip
    columns = (
        Column("Time", "s"), *(Column(word, "requests") for word, _, _ in lines), Column("KV cache in use", "%"),
    )  # fmt: skip
    rows = list(zip(t, *(values for _, values, _ in lines), kv, strict=True))
    peaks = f"At most {max(running):,} run, {max(waiting):,} wait, {fmt.sig(max(kv), 2)} % of the KV cache is in use."
    return make(ident, title, traces, figure_layout, columns, rows, note=f"{note} {peaks}".strip())


def _ceiling(peak: float) -> float:
    """Top of an axis in per cent: 100, or less where a full axis would show a flat line."""
    return next((top for top in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if peak <= 0.9 * top), 100.0)


def kv_fragmentation(reports: Sequence[tuple[str, Mapping[str, float]]], *, ident: str = "kv-waste") -> Chart:
    """What the KV pool holds on average, by way of giving it out: ``reports`` of (label, shares by field)."""
    parts = (
        ("live_share", "Live", palette.CATEGORIES[2]),
        ("reserved_later_share", "Held for later", palette.CATEGORIES[4]),
        ("reserved_never_share", "Never used", palette.CATEGORIES[5]),
        ("last_block_share", "Last block", palette.CATEGORIES[1]),
        ("free_share", "Free", palette.MEMORY["free"]),
    )
    labels = [label for label, _ in reports]
    traces = []
    for key, word, colour in parts:
        values = [100 * (fmt.as_float(report.get(key)) or 0.0) for _, report in reports]
        if any(values):
            traces.append(
                bar(y=labels, x=values, orientation="h", name=word, marker={"color": colour},
                       hovertemplate=f"%{{y}}<br>{word}: %{{x:.3g}} %<extra></extra>")
            )  # fmt: skip
    columns = (Column("Allocation", numeric=False), *(Column(word, "%") for _, word, _ in parts))
    rows = [(label, *(100 * (fmt.as_float(r.get(k)) or 0.0) for k, _, _ in parts)) for label, r in reports]
    figure_layout = {
        "barmode": "stack", "showlegend": True, "legend": {"traceorder": "normal"},
        "xaxis": axis("Share of the KV pool", "%", range=[0, 100], showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make(ident, "What the KV pool holds", traces, figure_layout, columns, rows)


def _series(x: list[float], y: list[float], name: str, colour: str, yaxis: str, unit: str = "") -> Any:
    return scatter(
        x=x, y=y, name=name, mode="lines", yaxis=yaxis,
        line={"color": colour, "width": 1.5, "shape": "hv", "dash": "dot" if name == "Waiting" else "solid"},
        hovertemplate=f"%{{x:.4g}} s<br>{name}: %{{y:.4g}}{unit}<extra></extra>",
    )  # fmt: skip

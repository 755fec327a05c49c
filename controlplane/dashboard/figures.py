"""The figures of the pages: pure functions from plain data to a Chart, tested as data.

Candidates, ledgers and timelines are in the JSON form of ``planner.plan_types`` (see ``planner.jsonio.to_json``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, log_axis, make, scatter, waterfall

MEMORY_PARTS = (
    ("weights_gib", "weights", "Weights"),
    ("activation_gib", "activation", "Activation"),
    ("graph_gib", "graphs", "CUDA graphs"),
    ("non_torch_gib", "non-torch", "Outside PyTorch"),
    ("lora_gib", "lora", "Adapters"),
    ("kv_gib", "kv", "KV cache"),
)
"""Ledger field, colour key and word of each part of a GPU's memory, in the order in which they are drawn."""

EVIDENCE_SYMBOLS = {
    "measured": "circle", "calibrated": "circle-open-dot", "silicon": "circle-open", "extrapolated": "diamond-open",
    "roofline": "x-thin-open",
}  # fmt: skip
"""Marker of each evidence, as near to its mark elsewhere as the charts allow."""
EVIDENCE_WORDS = {
    "measured": "disc", "calibrated": "ring with dot", "silicon": "ring", "extrapolated": "diamond",
    "roofline": "cross",
}  # fmt: skip


def pareto(candidates: Iterable[Mapping[str, Any]], chosen: str | None = None, opens: str = "") -> Chart:
    """Throughput per GPU against interactivity of all feasible candidates; the frontier of each engine is joined.

    A point that is pressed opens ``opens`` and the candidate's id.
    """
    usable = [c for c in candidates if c.get("status") == "ok" and c.get("tok_s_per_gpu") and c.get("tok_s_per_user")]
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
            scatter(
                x=[x for x, _ in front], y=[y for _, y in front], mode="lines", hoverinfo="skip",
                line={"color": colour, "width": 1.5}, name=fmt.engine_label(engine),
            )
        )  # fmt: skip
        furthest = front[-1][0] >= max(other[-1][0] for other in fronts.values())
        at, ink = front[-1] if furthest else front[0], palette.ENGINE_TEXT[engine]
        labels.append(_label(*at, fmt.engine_label(engine), ink, right=furthest))
        traces.append(
            scatter(
                x=[c["tok_s_per_user"] for c in points],
                y=[c["tok_s_per_gpu"] for c in points],
                mode="markers",
                name=fmt.engine_label(engine),
                marker={
                    "color": [palette.TEXT if c["id"] == chosen else colour for c in points],
                    "symbol": [EVIDENCE_SYMBOLS.get(c["evidence"], "circle-open") for c in points],
                    "opacity": 1,
                    "size": [14 if c["id"] == chosen else 9 for c in points],
                    "line": {"width": [2.5 if c["id"] == chosen else 1.5 for c in points]},
                },
                text=[_candidate_words(c) for c in points],
                customdata=[f"{opens}{quote(c['id'])}" for c in points] if opens else None,
                hovertemplate="%{text}<br>%{x:.3g} tok/s/user<br>%{y:,.0f} tok/s/GPU<extra></extra>",
            )
        )
        rows += [
            (
                fmt.engine_label(engine), c["gpu"], fmt.shape(c), c["settings"]["precision"],
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
    known = [key for key in EVIDENCE_SYMBOLS if any(c["evidence"] == key for c in usable)]
    marks = ", ".join(f"{EVIDENCE_WORDS[key]} {fmt.EVIDENCE_LABELS[key].lower()}" for key in known)
    press = " Press a point for its load curves." if opens else ""
    note = f"Up and to the right is better; the large dark mark is the choice. Marks: {marks}.{press}"
    title = "Throughput against interactivity"
    return make("pareto", title, traces, figure_layout, columns, rows, note=note, size="tall")


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both directions, from small x to large."""
    best: list[tuple[float, float]] = []
    top = float("-inf")
    for x, y in sorted(points, key=lambda p: (-p[0], -p[1])):
        if y > top:
            best.append((x, y))
            top = y
    return best[::-1]


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


def ledgers(title: str, candidate: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """A candidate's bars for ``memory_stack``: one, or one for each role of a unit of pools."""
    pools = candidate.get("disagg")
    if not pools:
        return [(title, candidate["memory"])] if candidate.get("memory") else []
    whose = f"{title}, " if title else ""
    return [((whose + role).capitalize(), pools[role]["memory"]) for role in ("prefill", "decode")]


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
            bar(
                y=labels, x=sizes, orientation="h", name=word, marker={"color": palette.MEMORY[key]},
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


def cost_split(parts: Sequence[tuple[str, Decimal]], ident: str = "cost", *, note: str = "") -> Chart:
    """What a month costs, part by part, and the bill that they add up to."""
    rows = [(name[:1].upper() + name[1:], Decimal(value)) for name, value in parts]
    total = sum((value for _, value in rows), Decimal(0))
    names = [name.replace(" ", "<br>", 1) for name, _ in rows] + ["Bill"]
    values = [float(value) for _, value in rows] + [float(total)]
    traces = [
        waterfall(
            x=names, y=values, measure=["relative"] * len(rows) + ["total"], text=[fmt.money(v) for v in values],
            textposition="outside", textfont={"color": palette.TEXT_2}, cliponaxis=False,
            increasing={"marker": {"color": palette.ACCENT}}, decreasing={"marker": {"color": palette.OK}},
            totals={"marker": {"color": palette.TEXT_3}}, connector={"line": {"color": palette.AXIS, "width": 1}},
            hovertemplate="%{x}<br>" + fmt.sign() + "%{y:,.2f} a month<extra></extra>",
        )
    ]  # fmt: skip
    figure_layout = {
        "yaxis": axis("Cost", f"{fmt.currency()} a month", rangemode="tozero"),
        "xaxis": {"showgrid": False, "tickangle": 0},
        "margin": {"t": 28},
    }
    columns = (Column("Part", numeric=False), Column("Cost", f"{fmt.currency()} a month"))
    return make(ident, "Where the money goes", traces, figure_layout, columns, [*rows, ("Bill", total)], note=note)


def predicted_measured(rows_in: Sequence[Mapping[str, Any]], *, metric: str, unit: str) -> Chart:
    """Measured against predicted with the 80 % band of each prediction; the diagonal is a perfect one."""
    rows = [r for r in rows_in if fmt.as_float(r.get("predicted")) and fmt.as_float(r.get("measured"))]
    traces: list[Any] = []
    values = [float(r[k]) for r in rows for k in ("predicted", "measured")]
    log = bool(values) and max(values) / min(values) > 20
    if values:
        low, high = min(values) / 1.4 if log else 0.0, max(values) * 1.2
        traces.append(
            scatter(
                x=[low, high, high, low], y=[low * 0.85, high * 0.85, high * 1.15, low * 1.15], fill="toself",
                fillcolor=palette.ACCENT_BAND, line={"width": 0}, mode="lines", hoverinfo="skip",
            )
        )  # fmt: skip
        line = {"color": palette.AXIS, "width": 1}
        traces.append(scatter(x=[low, high], y=[low, high], mode="lines", line=line, hoverinfo="skip"))
    hover = f"%{{text}}<br>predicted %{{x:,.3g}} {unit}<br>measured %{{y:,.3g}} {unit}<extra></extra>"
    for emulated in (False, True):
        part = [r for r in rows if bool(r.get("emulated")) is emulated]
        if not part:
            continue
        colours = [palette.ENGINE.get(r.get("engine", ""), palette.ACCENT) for r in part]
        mid = [float(r["predicted"]) for r in part]
        bands = [_band(r) for r in part]
        traces.append(
            scatter(
                x=mid, y=[float(r["measured"]) for r in part], mode="markers",
                error_x={
                    "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": palette.AXIS,
                    "array": [high - p for p, (_, high) in zip(mid, bands, strict=True)],
                    "arrayminus": [p - low for p, (low, _) in zip(mid, bands, strict=True)],
                },
                marker={"color": colours, "size": 9, "symbol": "circle-x-open" if emulated else "circle"},
                text=[str(r.get("label", "")) for r in part],
                hovertemplate=hover,
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
    kind = log_axis(min(values), max(values)) if log else {"rangemode": "tozero"}
    figure_layout = {
        "xaxis": axis(f"Predicted {word}", unit, showgrid=True, **kind),
        "yaxis": axis(f"Measured {word}", unit, **kind),
    }
    return make(f"scatter-{metric.lower()}", metric, traces, figure_layout, columns, table, size="medium")


def cost_by_workload(rows_in: Sequence[tuple[str, Any, Any]], *, ident: str = "cost-by-engine") -> Chart:
    """$ per million output tokens of each engine's best candidate: ``rows_in`` of (workload, vLLM, TensorRT-LLM)."""
    names = [name for name, _, _ in rows_in]
    traces = []
    for index, engine in ((1, "vllm"), (2, "tensorrt_llm")):
        values = [fmt.as_float(row[index]) for row in rows_in]
        if any(value is not None for value in values):
            traces.append(
                bar(
                    y=names, x=values, orientation="h", name=fmt.engine_label(engine),
                    marker={"color": palette.ENGINE[engine]},
                    text=["" if v is None else fmt.money(v) for v in values], textposition="outside", cliponaxis=False,
                    textfont={"color": palette.TEXT_2},
                    hovertemplate="%{y}<br>" + fmt.sign() + "%{x:.3f} / M tok<extra></extra>",
                )
            )  # fmt: skip
    columns = (
        Column("Workload", numeric=False),
        Column("vLLM", f"{fmt.currency()} / M tok"),
        Column("TensorRT-LLM", f"{fmt.currency()} / M tok"),
    )
    figure_layout = {
        "barmode": "group", "showlegend": True, "bargap": 0.36, "bargroupgap": 0.08, "margin": {"r": 48},
        "xaxis": axis("Cost of output", f"{fmt.currency()} per million tokens", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return make(ident, "Cost by engine", traces, figure_layout, columns, rows_in)


def _band(row: Mapping[str, Any]) -> tuple[float, float]:
    """Low and high of a prediction, never on the wrong side of it."""
    mid = float(row["predicted"])
    low, high = fmt.as_float(row.get("low")), fmt.as_float(row.get("high"))
    return min(mid, mid if low is None else low), max(mid, mid if high is None else high)


def _candidate_words(candidate: Mapping[str, Any]) -> str:
    settings = candidate["settings"]
    return (
        f"{fmt.engine_label(settings['engine'])}, {candidate['gpu']}<br>{fmt.shape(candidate)}, "
        f"{settings['precision']}, {candidate['evidence']}"
    )


def _label(x: float, y: float, text: str, colour: str, *, right: bool) -> dict[str, Any]:
    place = {"xanchor": "left", "xshift": 9} if right else {"xanchor": "center", "yanchor": "bottom", "yshift": 9}
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"color": colour, "size": 12}, **place}

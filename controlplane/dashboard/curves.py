"""Load curves of a plan's candidates as charts: TTFT, TPOT, throughput and cost against load, and a burst's timeline.

The points are those that ``planning.curves`` keeps with the plan; nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import figures_load, fmt, palette, planrow
from controlplane.dashboard.chart import Chart, Column, axis, edge_note, log_axis, make, marker_line, scatter
from controlplane.dashboard.planrow import Json
from planner.recommend.curves import BURST_PERIOD_S, bursts_s

DASHES = ("solid", "dash")
AXES = {"rate": ("Request rate of one replica", "req/s"), "concurrency": ("Requests at once on one replica", "")}


@dataclass(frozen=True)
class Curve:
    """One candidate's kept curves. ``label`` names it where several are drawn together."""

    label: str
    candidate: Json
    points: Json

    @property
    def engine(self) -> str:
        """Its engine."""
        return planrow.engine_of(self.candidate) or ""

    def load_at(self, point: Json) -> float:
        """The load of one point on the axis."""
        return float(point["rate_per_s"] if self.points["axis"] == "rate" else point["concurrency"])


Reading = Callable[[Curve, Json], tuple[float, float, float] | None]


def charts(curves: Sequence[Curve], workload: Json) -> list[Chart]:
    """Charts of all curves together; the timeline is that of the first."""
    made = []
    for name, word in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E")):
        stat, limit = objective(workload, name)
        if name == "e2e" and limit is None:
            continue
        made.append(_chart(curves, f"load-{name}", f"{word} {stat}", "ms", _latency(name, stat), limit))
    made.append(_chart(curves, "load-tokens", "Throughput", "tok/s", _tokens))
    made.append(_chart(curves, "load-cost", "Cost", fmt.per("M tok"), _cost))
    return [chart for chart in made if chart.rows]


def timelines(curve: Curve, whose: str = "") -> list[Chart]:
    """Queue, batch and KV occupancy while bursts come and go, of an engine or of both pools of a unit, prefill first.

    None for one-pass models, and where none is kept. ``whose`` where several candidates are drawn.
    """
    engine, unit = curve.points.get("timeline"), curve.points.get("unit_timeline")
    rate = float(curve.points.get("burst_per_s") or 0.0)
    twice = "twice the knee" if curve.points.get("knee") else "twice what it can carry"
    said = (
        f"{whose or 'Simulated'}: {fmt.sig(rate)} requests/s, {twice}, in the shaded half of each "
        f"{BURST_PERIOD_S:.0f} s, and nothing in between."
    )
    shaded = bursts_s(rate)
    if engine and engine["t_s"]:
        ranks = int((curve.candidate.get("settings") or {}).get("dp") or 1)
        note = f"{said} Drawn is the first of {ranks} data-parallel ranks." if ranks > 1 else said
        return [figures_load.burst_timeline(engine, note=note, bursts_s=shaded)]
    if not unit:
        return []
    return [
        figures_load.burst_timeline(
            unit["prefill"], title="A burst in the prefill pool", ident="timeline-prefill", bursts_s=shaded,
            note=f"{said} Every request begins here{_instances(curve, 'prefill')}.",
        ),
        figures_load.burst_timeline(
            unit["decode"], title="A burst in the decode pool", ident="timeline-decode", bursts_s=shaded,
            transferring=unit["transferring"],
            note="The same run: a request waits here from the moment its KV cache has come from the prefill pool"
            f"{_instances(curve, 'decode')}.",
        ),
    ]  # fmt: skip


def _instances(curve: Curve, role: str) -> str:
    """How many instances the chart of a pool adds up; nothing for one."""
    count = int(((curve.candidate.get("disagg") or {}).get(role) or {}).get("instances", 1))
    return f"; {count} instances, added up" if count > 1 else ""


def no_timeline(curve: Curve) -> str:
    """Why there is no picture of a burst inside the engine; empty where there is one."""
    if curve.points.get("timeline") or curve.points.get("unit_timeline"):
        return ""
    if curve.candidate.get("disagg"):
        return (
            "No timeline of a burst: these curves were drawn before prefill and decode pools had one. "
            "A new plan of the scenario has it."
        )
    return "No timeline of a burst: a request is one pass, so nothing waits in a batch or holds a KV cache."


def objective(workload: Json, metric: str) -> tuple[str, float | None]:
    """The statistic and limit of the workload's objective on ``metric``; the median when it has none."""
    for target in workload.get("slo", ()):
        if target["metric"] == metric:
            return target["stat"], float(target["limit_ms"])
    return "p50", None


def _latency(name: str, stat: str) -> Reading:
    def read(curve: Curve, point: Json) -> tuple[float, float, float] | None:
        spread, band = point["performance"].get(f"{name}_ms"), point["performance"].get(f"{name}_ms_80")
        if not spread:
            return None
        value = float(spread[stat])
        if not band or band["value"] <= 0:
            return value, value, value
        return value, value * band["low"] / band["value"], value * band["high"] / band["value"]

    return read


def _tokens(curve: Curve, point: Json) -> tuple[float, float, float] | None:
    """Output tokens a second; of a one-pass model, which has none, all tokens."""
    found = point["performance"]
    band = found["output_tok_per_s_80"]
    if found["output_tok_per_s"] > 0 and found.get("tpot_ms"):
        return float(band["value"]), float(band["low"]), float(band["high"])
    total = float(found["total_tok_per_s"])
    share = (band["low"] / band["value"], band["high"] / band["value"]) if band["value"] else (1.0, 1.0)
    return total, total * share[0], total * share[1]


def _cost(curve: Curve, point: Json) -> tuple[float, float, float] | None:
    """USD an hour of one replica over its tokens: $/h / (tok/s x 3600) x 10^6."""
    tokens = _tokens(curve, point)
    if tokens is None or min(tokens) <= 0:
        return None
    hour = float(curve.points["usd_per_hour"])
    value, low, high = (hour / (rate * 3600) * 1e6 for rate in tokens)
    return value, high, low


def _chart(
    curves: Sequence[Curve], ident: str, metric: str, unit: str, read: Reading, limit: float | None = None
) -> Chart:
    traces: list[Any] = []
    shapes, notes, rows = [], [], []
    for at, curve in enumerate(curves):
        found = [(curve.load_at(p), read(curve, p), p) for p in curve.points["points"]]
        kept = [(load, value, point) for load, value, point in found if value is not None]
        if not kept:
            continue
        traces += _series(curve, kept, unit, at)
        rows += [
            (curve.label, load, value[0], value[1], value[2], "yes" if point["meets_slo"] else "no")
            for load, value, point in kept
        ]
        knee = curve.points.get("knee")
        if knee:
            colour = palette.ENGINE.get(curve.engine, palette.TEXT_3)
            shapes.append(marker_line("x", float(knee), colour))
            ink = palette.ENGINE_TEXT.get(curve.engine, palette.TEXT_2)
            notes.append({**edge_note("x", float(knee), f"knee {fmt.sig(knee)}", ink), "yshift": -16 * at})
    if limit is not None:
        shapes.append(marker_line("y", limit, palette.FAILED))
        notes.append(edge_note("y", limit, f"SLO {fmt.duration(limit / 1000)}", palette.FAILED))
    word, axis_unit = AXES[curves[0].points["axis"]] if curves else ("Load", "")
    tops = [float(row[4]) for row in rows]
    bottom = min((float(row[3]) for row in rows), default=1.0)
    log = unit == fmt.per("M tok") and bool(tops) and max(tops) > 10 * bottom
    loads = [float(row[1]) for row in rows]
    streams = bool(loads) and all(curve.points.get("knee") is None for curve in curves)  # in equal ratios
    figure_layout = {
        "xaxis": axis(word, axis_unit, **(log_axis(min(loads), max(loads)) if streams else {"rangemode": "tozero"})),
        "yaxis": axis(metric, unit, **(log_axis(bottom, max(tops)) if log else _linear(rows, limit))),
        "shapes": shapes, "annotations": notes, "margin": {"t": 28}, "showlegend": len(traces) > 2,
    }  # fmt: skip
    columns = (
        Column("Candidate", numeric=False), Column("Load", axis_unit), Column(metric, unit), Column("Low", unit),
        Column("High", unit), Column("Meets the SLO", numeric=False),
    )  # fmt: skip
    return make(ident, f"{metric} against load", traces, figure_layout, columns, rows, size="medium")


def _linear(rows: Sequence[Sequence[Any]], limit: float | None) -> dict[str, Any]:
    """From zero to a little above values and limit: a band that runs far off must not flatten what it is about."""
    values, highs = [float(row[2]) for row in rows], [float(row[4]) for row in rows]
    top = max([*(1.6 * value for value in values), 1.2 * (limit or 0.0)], default=1.0)
    return {"range": [0, top]} if max(highs, default=0.0) > top else {"rangemode": "tozero"}


def _series(curve: Curve, kept: list[tuple[float, Any, Json]], unit: str, at: int) -> list[Any]:
    loads = [load for load, _, _ in kept]
    colour = palette.ENGINE.get(curve.engine, palette.ACCENT)
    band = palette.ENGINE_BAND.get(curve.engine, palette.ACCENT_BAND)
    lows, highs = [value[1] for _, value, _ in kept], [value[2] for _, value, _ in kept]
    solid = [point["meets_slo"] for _, _, point in kept]
    return [
        scatter(
            x=loads + loads[::-1], y=highs + lows[::-1], fill="toself", fillcolor=band, line={"width": 0},
            hoverinfo="skip", mode="lines", showlegend=False,
        ),
        scatter(
            x=loads, y=[value[0] for _, value, _ in kept], mode="lines+markers", name=curve.label,
            line={"color": colour, "width": 2, "dash": DASHES[at % len(DASHES)]},
            marker={
                "size": 6, "color": [colour if ok else palette.SURFACE for ok in solid],
                "line": {"color": colour, "width": 1.5},
            },
            hovertemplate=f"{curve.label}<br>%{{x:.3g}}: %{{y:,.3g}} {unit}<extra></extra>",
        ),
    ]  # fmt: skip

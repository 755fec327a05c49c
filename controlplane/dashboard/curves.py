"""What one replica of a plan's candidate does as its load grows: simulated when the page is asked for it, then kept."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.cache import cache

from controlplane.dashboard import figures_load, planrow
from controlplane.dashboard.chart import Chart
from planner import catalog
from planner.engines.types import ResolvedSettings
from planner.jsonio import from_json, to_json
from planner.memory.types import MemoryLedger
from planner.plan_types import CalibrationFactor
from planner.serving import Instance, predict, simulate
from planner.serving.types import Lengths, Load
from planner.steptime import build

SHARES = (0.2, 0.4, 0.6, 0.75, 0.9, 1.0, 1.1)
"""Rates at which the curve is drawn, as shares of the largest load within the SLO."""

REQUESTS = 600
KEEP_S = 24 * 3600


def load_charts(plan_pk: int, request: planrow.Json, row: planrow.WorkloadRow) -> list[Chart]:
    """TTFT and TPOT over the rate with the SLO and the largest load marked, and the inside of the engine at that load.

    Empty when the workload has no open load or nothing serves it. Raises PlannerError.
    """
    candidate = row.chosen
    if candidate is None or not candidate.get("settings") or not candidate.get("replica_rate_per_s"):
        return []
    key = f"load-curve-1-{plan_pk}-{candidate['id']}".replace(" ", "_").replace("/", "-")
    points = cache.get(key)
    if points is None:
        points = _simulate(request, row, candidate)
        cache.set(key, points, KEEP_S)
    return _charts(points, row, candidate)


def _simulate(request: planrow.Json, row: planrow.WorkloadRow, candidate: planrow.Json) -> dict[str, Any]:
    model, gpu = catalog.get_model(row.workload["model"]), catalog.get_gpu(candidate["gpu"])
    resolved = from_json(ResolvedSettings, candidate["settings"], "settings")
    ledger = from_json(MemoryLedger, candidate["memory"], "memory")
    factors = [from_json(CalibrationFactor, item, "calibrations") for item in request.get("calibrations", ())]
    instance = Instance(model, resolved, ledger, build(model, gpu, resolved, calibrations=factors))
    demand = from_json(Load, row.workload["load"], "load")
    sides = [from_json(Lengths, row.workload[f"{side}_tokens"], f"{side}_tokens") for side in ("input", "output")]
    full = float(candidate["replica_rate_per_s"])
    arrival = "poisson" if demand.arrival == "trace" else demand.arrival

    def at(rate: float) -> Load:
        return dataclasses.replace(
            demand, kind="open", rate_per_s=rate, arrival=arrival, times_s=(), requests=REQUESTS, concurrency=0
        )

    series: dict[str, list[dict[str, float]]] = {"ttft": [], "tpot": []}
    for share in SHARES:
        reached = predict(instance, at(full * share), *sides)
        for name, spread, band in (
            ("ttft", reached.ttft_ms, reached.ttft_ms_80), ("tpot", reached.tpot_ms, reached.tpot_ms_80),
        ):  # fmt: skip
            if spread is None or band is None or band.value <= 0:
                continue
            value = getattr(spread, _objective(row, name)[0])
            low, high = value * band.low / band.value, value * band.high / band.value
            series[name].append({"rate_per_s": full * share, "value": value, "low": low, "high": high})
    run = simulate(instance, at(full), *sides, timeline=True)
    timeline = to_json(run.timeline) if run.timeline is not None else None
    return {**series, "timeline": timeline, "full": full}


def _objective(row: planrow.WorkloadRow, metric: str) -> tuple[str, float | None]:
    """The statistic and limit of the workload's objective on ``metric``; the median when it has none."""
    for target in row.workload.get("slo", ()):
        if target["metric"] == metric:
            return target["stat"], float(target["limit_ms"])
    return "p50", None


def _charts(points: dict[str, Any], row: planrow.WorkloadRow, candidate: planrow.Json) -> list[Chart]:
    engine = planrow.engine_of(candidate) or ""
    made = []
    for name, word in (("ttft", "TTFT"), ("tpot", "TPOT")):
        if not points[name]:
            continue
        stat, limit = _objective(row, name)
        chart = figures_load.load_curve(
            points[name], metric=f"{word} {stat}", unit="ms", engine=engine, limit=limit, knee=points["full"],
            ident=f"load-{name}",
        )  # fmt: skip
        made.append(chart)
    if points["timeline"] and points["timeline"]["t_s"]:
        made.append(figures_load.burst_timeline(points["timeline"]))
    return made

"""What one replica of a candidate does as its load grows past its knee, and the inside of its engines in a burst."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

import numpy as np

from planner.catalog import get_model
from planner.errors import InfeasibleError
from planner.models.spec import ModelSpec
from planner.placement.candidates import gpu_of_nodes
from planner.placement.disaggregation import deployed
from planner.placement.encoder import simulate_encoder
from planner.plan_types import Candidate, PlanRequest, PlanWorkload
from planner.recommend.costing import gpu_price
from planner.serving import Instance, predict, simulate
from planner.serving.arrivals import trace_at_rate
from planner.serving.disaggregated import Disaggregated, simulate_disaggregated
from planner.serving.disaggregated_sizing import predict_disaggregated
from planner.serving.metrics import slo_ratio
from planner.serving.predict import performance
from planner.serving.sessions import mean_prompt
from planner.serving.types import I64, CurvePoint, Lengths, Load, Performance, Timeline, UnitTimeline

SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.1, 1.2, 1.35, 1.5)
"""Loads at which the curve is computed, as shares of the largest load within the SLO (the knee)."""
REQUESTS = 600
OFFLINE_STREAMS = 512
BURST_PERIOD_S = 40.0
BURST_ON_SHARE = 0.5
BURST_PERIODS = 3
BURST_REQUESTS = 6000
TIMELINE_SAMPLES = 400
PAUSE_S = 0.5
"""An engine that is empty for longer is seen to be so in a timeline."""


@dataclass(frozen=True, eq=False)
class CandidateCurve:
    """Predictions for one replica from light load to beyond the knee.

    ``axis`` rate (requests/s offered) or concurrency (requests at once). ``knee`` is the largest load within the SLO,
    None where the workload is offline and knows none, and for a candidate that breaks the SLO at any load.
    ``usd_per_hour`` of one replica at the planned load, constant along the curve: a GPU costs the same idle and busy.
    ``timeline`` of a burst: arrivals at twice the knee's rate (or twice its users) for half of each
    ``BURST_PERIOD_S``; of a unit of prefill and decode pools ``unit_timeline``. Both None for one-pass models. Turns of
    sessions come in it as single requests with the mean prompt and the cached share that they have at the knee.
    """

    candidate_id: str
    axis: Literal["rate", "concurrency"]
    knee: float | None
    points: tuple[CurvePoint, ...]
    usd_per_hour: Decimal
    timeline: Timeline | None
    burst_per_s: float = 0.0  # arrivals while a burst lasts
    unit_timeline: UnitTimeline | None = None


def candidate_curve(
    candidate: Candidate,
    workload: PlanWorkload,
    request: PlanRequest,
    progress: Callable[[float], None] | None = None,
) -> CandidateCurve:
    """Simulate ``candidate`` at ``SHARES`` of what it carries; ``progress`` gets the share that is done.

    One that fits but breaks the SLO at any load is drawn over streams, as an offline workload is: how far off it is.
    Raises InfeasibleError for a candidate that serves nothing: unsupported, or too large for its GPUs.
    """
    if not can_be_drawn(candidate):
        reason = next(iter(candidate.reasons), "it is not feasible")
        raise InfeasibleError(f"there is no load to draw: {reason}", field="candidate", value=candidate.id)
    model = get_model(workload.model)
    gpu = gpu_of_nodes(candidate.gpu, request.nodes)
    made = deployed(candidate, model, gpu, request)
    knee, loads = _loads(candidate, workload)
    axis: Literal["rate", "concurrency"] = "rate" if loads[0].kind == "open" else "concurrency"
    points = []
    for at, load in enumerate(loads):
        found = _predicted(made, model, workload, load, request.seed)
        points.append(CurvePoint(load.rate_per_s, load.concurrency, _meets(found, workload), found))
        if progress is not None:
            progress((at + 1) / (len(loads) + 1))
    timeline: Timeline | UnitTimeline | None = None
    rate = 0.0
    if model.task == "generate":
        rate = knee if axis == "rate" and knee else max(point.performance.req_per_s for point in points)
        at_knee = min((point.performance for point in points), key=lambda found: abs(found.req_per_s - rate))
        timeline = _burst(made, workload, rate, at_knee.prefix_hit, request.seed)
    price = Decimal(str(gpu_price(request, candidate.gpu)))
    charged = Decimal(candidate.gpus_per_replica) / candidate.sharers
    usd = (charged * price + candidate.replica_extra_usd_per_hour).quantize(Decimal("0.0001"))
    return CandidateCurve(
        candidate.id, axis, knee, tuple(points), usd,
        timeline=timeline if isinstance(timeline, Timeline) else None,
        burst_per_s=rate / BURST_ON_SHARE,
        unit_timeline=timeline if isinstance(timeline, UnitTimeline) else None,
    )  # fmt: skip


def can_be_drawn(candidate: Candidate) -> bool:
    """Whether an engine of the candidate would start: it is supported and its memory suffices."""
    started = candidate.settings is not None and candidate.memory is not None and candidate.memory.fits
    return started and candidate.status in ("ok", "infeasible")


def _loads(candidate: Candidate, workload: PlanWorkload) -> tuple[float | None, list[Load]]:
    """The knee and the loads along the axis: rates (open), users (closed) or streams (offline)."""
    load = workload.load
    if candidate.status != "ok":
        return None, _streams(candidate, load)
    if load.kind == "open":
        knee = candidate.replica_rate_per_s
        if load.arrival == "trace":
            rates = [knee * share for share in SHARES]
            return knee, [replace(load, rate_per_s=r, times_s=trace_at_rate(load.times_s, r)) for r in rates]
        base = replace(load, requests=REQUESTS, concurrency=0)
        return knee, [replace(base, rate_per_s=knee * share) for share in SHARES]
    if load.kind == "closed":
        most = max(1.0, candidate.replica_share * load.concurrency)
        marks = sorted({max(1, round(most * share)) for share in SHARES})
        return most, [replace(load, concurrency=users, requests=max(REQUESTS, 2 * users)) for users in marks]
    return None, _streams(candidate, load)


def _streams(candidate: Candidate, load: Load) -> list[Load]:
    """One request at a time up to as many as the engine seats, in equal ratios."""
    seats = candidate.settings.max_num_seqs * candidate.settings.dp if candidate.settings else OFFLINE_STREAMS
    top = min(seats, OFFLINE_STREAMS)
    marks = sorted({max(1, round(top ** (i / (len(SHARES) - 1)))) for i in range(len(SHARES))})
    base = Load("closed", prefix_hit=load.prefix_hit)
    return [replace(base, concurrency=streams, requests=max(REQUESTS, 2 * streams)) for streams in marks]


def _predicted(
    made: Instance | Disaggregated, model: ModelSpec, workload: PlanWorkload, load: Load, seed: int
) -> Performance:
    sides = workload.input_tokens, workload.output_tokens
    if isinstance(made, Disaggregated):
        return predict_disaggregated(made, load, *sides, slo=workload.slo, seed=seed)[0]
    if model.task != "generate":
        found = simulate_encoder(made.step, made.resolved, load, workload.input_tokens, slo=workload.slo, seed=seed)
        return performance(found, made.step)
    return predict(made, load, *sides, slo=workload.slo, seed=seed)


def _meets(found: Performance, workload: PlanWorkload) -> bool:
    if found.saturated:
        return False
    return slo_ratio(workload.slo, found.ttft_ms, found.tpot_ms, found.tpot_ms, found.e2e_ms) <= 1.0


def bursts_s(burst_per_s: float) -> tuple[tuple[float, float], ...]:
    """From when to when requests come in the run of a timeline, in seconds of its time; the last burst may be cut."""
    if burst_per_s <= 0:
        return ()
    # the last of N requests comes at N / rate (``arrivals``), so that it alone would begin one more burst
    left = (_burst_requests(burst_per_s * BURST_ON_SHARE) - 1) / burst_per_s
    found: list[tuple[float, float]] = []
    on_s = BURST_ON_SHARE * BURST_PERIOD_S
    while left > 0:
        start = len(found) * BURST_PERIOD_S
        found.append((start, start + min(left, on_s)))
        left -= on_s
    return tuple(found)


def _burst_requests(rate: float) -> int:
    return min(BURST_REQUESTS, max(50, round(rate * BURST_PERIOD_S * BURST_PERIODS)))


def _burst(
    made: Instance | Disaggregated, workload: PlanWorkload, rate: float, cached: float, seed: int
) -> Timeline | UnitTimeline | None:
    """The inside of an instance, or of both pools of a unit, while requests come at ``rate`` on average.

    ``cached`` share of the prompts of sessions.
    """
    inputs, outputs = workload.input_tokens, workload.output_tokens
    sessions = workload.load.turns is not None
    if sessions:
        roles = (made,) if isinstance(made, Instance) else (made.prefill, made.decode)
        room = min(role.resolved.max_model_len for role in roles) - outputs.longest
        inputs = Lengths("fixed", value=max(1, min(round(mean_prompt(workload.load, inputs, outputs)), room)))
    load = Load(
        "open", rate_per_s=rate, arrival="onoff", on_share=BURST_ON_SHARE, period_s=BURST_PERIOD_S,
        requests=_burst_requests(rate), prefix_hit=cached if sessions else workload.load.prefix_hit,
    )  # fmt: skip
    if isinstance(made, Instance):
        line = simulate(made, load, inputs, outputs, seed=seed, timeline=True).timeline
        return None if line is None else _thinned(line)
    both = simulate_disaggregated(made, load, inputs, outputs, seed=seed, timeline=True)[1].timeline
    if both is None:
        return None
    kept = _kept(both.transferring.size)
    return UnitTimeline(_thinned(both.prefill), both.transferring[kept], _thinned(both.decode))


def _kept(samples: int) -> I64:
    """Which of as many samples are kept: at most ``TIMELINE_SAMPLES``, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, samples - 1, min(samples, TIMELINE_SAMPLES)).round().astype(np.int64))


def _thinned(line: Timeline) -> Timeline:
    """As ``_kept`` says, with the samples at which the engine ran empty: else it seems to work on through the pause."""
    emptied = (line.running[1:] + line.waiting[1:] == 0) & (line.running[:-1] > 0)
    last = np.flatnonzero(emptied & (np.diff(line.t_s, append=np.inf)[1:] > PAUSE_S)) + 1
    kept = np.union1d(_kept(line.t_s.size), last)
    return Timeline(line.t_s[kept], line.running[kept], line.waiting[kept], line.kv_used[kept], line.live_kv[kept])

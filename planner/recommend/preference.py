"""Which of two engines to take where their costs cannot be told apart, and why."""

from __future__ import annotations

from dataclasses import dataclass

from planner.economics.operations import operations_use
from planner.evidence import Evidence, Interval
from planner.plan_types import Candidate, PlanRequest, PlanWorkload

SAME = 0.005  # costs closer than half a percent are the same bill
NOISE = 0.001
"""Costs closer than a tenth of a percent cannot be told apart whatever the bands say: two engines on the same GPUs then
differ in electricity and start-ups alone, some percent of the bill that are themselves known to some percent.
"""

SLO_POINTS = 0.05  # a difference in the use of the tightest limit that counts
MORE_CARRIED = 0.05  # a difference in what the same bill carries that counts, where the bands tell it apart
REVISION_MINUTES = 1.0  # a difference in the time of one revision that counts


@dataclass(frozen=True, slots=True)
class Preference:
    """The candidate to take, and why: goes on after "vLLM because"."""

    candidate: Candidate
    because: str


def is_tie(margin: Interval) -> bool:
    """Whether the figures cannot tell two costs apart; ``margin`` is their difference as a share, with its 80 % band.

    So are costs within ``NOISE``; and the same bill (within ``SAME``) where the band reaches past it on both sides.
    """
    if abs(margin.value) <= NOISE:
        return True
    return abs(margin.value) < SAME and margin.low <= -SAME and margin.high >= SAME


def preferred(
    first: Candidate, second: Candidate, workload: PlanWorkload, request: PlanRequest, *, equal: bool = True
) -> Preference:
    """The candidate to take of two of different engines, the same whichever comes first.

    In this order: the engine that runs it today (``equal`` costs alone), stronger evidence, room within the SLO, what
    the same bill carries (``equal`` alone), minutes a revision takes, adapters, then vLLM, which more hardware runs.
    """
    found = _runs_today(first, second, workload, request) if equal else None
    found = found or _evidence(first, second) or _slo(first, second, workload)
    if found is None and equal:
        found = _carries_more(first, second)
    return found or _revisions(first, second, workload, request) or _portable(first, second, workload)


def slo_use(candidate: Candidate, workload: PlanWorkload) -> float | None:
    """Largest value / limit over the SLO targets at the planned load; None without SLO or figures."""
    performance = candidate.performance
    if performance is None or not workload.slo:
        return None
    found = []
    for target in workload.slo:
        values = {"ttft": performance.ttft_ms, "tpot": performance.tpot_ms, "e2e": performance.e2e_ms}.get(
            target.metric
        )
        if values is not None:
            found.append(getattr(values, target.stat) / target.limit_ms)
    return max(found, default=None)


def engine_of(candidate: Candidate) -> str:
    """Engine name of a candidate ("vllm", "tensorrt_llm"); its id says it when there are no settings."""
    if candidate.settings is not None:
        return candidate.settings.engine.value
    return candidate.id.removeprefix(candidate.workload + "/").split("/")[0]


def _runs_today(first: Candidate, second: Candidate, workload: PlanWorkload, request: PlanRequest) -> Preference | None:
    prefix = f"{workload.name}/"
    running = {
        item.candidate_id.removeprefix(prefix).split("/")[0]
        for item in request.current
        if item.workload == workload.name
    }
    able = [candidate for candidate in (first, second) if engine_of(candidate) in running]
    return Preference(able[0], "it runs there today") if len(able) == 1 else None


def _evidence(first: Candidate, second: Candidate) -> Preference | None:
    order = list(Evidence)
    if first.evidence is second.evidence:
        return None
    better = min((first, second), key=lambda candidate: order.index(candidate.evidence))
    return Preference(better, f"it is known from stronger evidence ({better.evidence.value})")


def _slo(first: Candidate, second: Candidate, workload: PlanWorkload) -> Preference | None:
    uses = slo_use(first, workload), slo_use(second, workload)
    if uses[0] is None or uses[1] is None or abs(uses[0] - uses[1]) <= SLO_POINTS:
        return None
    better, use = (first, uses[0]) if uses[0] < uses[1] else (second, uses[1])
    return Preference(better, f"it uses {use * 100:.0f} % of the tightest SLO limit")


def _carries_more(first: Candidate, second: Candidate) -> Preference | None:
    """All replicas together against each other; the band of the one that carries less must end below the other."""
    room = {c.id: c.replica_share * max(c.replicas, 1) for c in (first, second)}
    worse, better = sorted((first, second), key=lambda c: room[c.id])
    if room[worse.id] <= 0 or room[better.id] / room[worse.id] - 1 < MORE_CARRIED:
        return None
    band = worse.replica_rate_80
    reach = band.high / band.value if band is not None and band.value > 0 else 1.0
    if room[worse.id] * reach > room[better.id]:
        return None
    more = 100 * (room[better.id] / room[worse.id] - 1)
    return Preference(better, f"it could carry {more:.0f} % more on the same bill")


def _revisions(first: Candidate, second: Candidate, workload: PlanWorkload, request: PlanRequest) -> Preference | None:
    if workload.revisions_per_month <= 0:
        return None
    minutes = [_revision_minutes(candidate, request) for candidate in (first, second)]
    if minutes[0] is None or minutes[1] is None or abs(minutes[0] - minutes[1]) < REVISION_MINUTES:
        return None
    (quick, better), (slow, _) = sorted(zip(minutes, (first, second), strict=True), key=lambda pair: pair[0] or 0.0)
    times = "1 revision" if workload.revisions_per_month == 1 else f"{workload.revisions_per_month:g} revisions"
    return Preference(better, f"{times} a month take {quick:.3g} minutes each, not {slow:.3g}")


def _revision_minutes(candidate: Candidate, request: PlanRequest) -> float | None:
    """From the new model to the first healthy replica: build, where the engine builds, and start-up."""
    if candidate.settings is None:
        return None
    use = operations_use(
        candidate.settings.engine, candidate.settings.trt_backend, replicas=1, gpus_per_replica=1,
        revisions_per_month=1, costs=request.operations,
    )  # fmt: skip
    return float(use.build_gpu_hours + use.surge_gpu_hours) * 60


def _portable(first: Candidate, second: Candidate, workload: PlanWorkload) -> Preference:
    """vLLM loads and unloads adapters over its API (POST /v1/load_lora_adapter); trtllm-serve has no such route."""
    why = "it also runs on AMD and Intel"
    if workload.adapters:
        why = "adapters load and unload while it runs, and " + why
    return Preference(first if engine_of(first) == "vllm" else second, why)

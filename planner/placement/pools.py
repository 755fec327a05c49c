"""Which prefill and decode pools carry most of a workload within its SLO on a kind of GPU.

Shapes are ranked by a bound that needs no simulation: GPU-seconds of one prefill plus GPU-seconds of one answer at the
largest batch whose steps keep the TPOT limit. A unit cannot carry more per GPU than one over their sum; where that is
below what the best aggregated instance carries, nothing is tried. The pools' sizes balance the two rates; the unit is
then simulated as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from planner.calibration import CalibrationFactor
from planner.catalog.types import GpuSpec
from planner.engines import EngineSettings, support
from planner.engines.disaggregation import Role, refusals, role_settings
from planner.errors import PlannerError
from planner.memory import fewer_sequences, ledger
from planner.models.spec import ModelSpec
from planner.placement.problem import replicas_needed
from planner.placement.sizing import SIMULATED_REQUESTS, Size, demand_per_s, planned
from planner.plan_types import PlanWorkload
from planner.serving.arrivals import trace_at_rate
from planner.serving.disaggregated import PROXY_MS, Disaggregated, simulate_disaggregated
from planner.serving.disaggregated_sizing import largest_disaggregated_load
from planner.serving.instance import Instance
from planner.serving.kv_transfer import Link, kv_shipment
from planner.serving.metrics import slo_ratio
from planner.steptime import Fabric, build

SHAPE_PAIRS = 3
UNITS_PER_PAIR = 2
MOST_BUSY = 0.95
_WAITS = {"mean": 0.5, "p50": 0.35, "p90": 1.15, "p95": 1.5, "p99": 2.3}
"""Waiting time of a queue of equal services, as a multiple of service x busy / (1 - busy): half of it in the mean,
-ln(1 - q) / 2 at the quantile q (heavy traffic)."""

TPOT_ROOM = 0.95  # the percentile of TPOT lies above its mean by about this
MAX_BATCH = 4096


@dataclass(frozen=True)
class _Shape:
    """One role on one parallel shape: ``gpu_s`` GPU-seconds a request, ``rate_per_s`` of one instance at that.

    ``busy`` share of its time that it can work before its queue breaks the SLO.
    """

    instance: Instance
    gpu_s: float
    rate_per_s: float
    busy: float = 1.0


@dataclass(frozen=True)
class Asked:
    """What is looked for: the workload on one GPU type with one engine and precision."""

    workload: PlanWorkload
    model: ModelSpec
    gpu: GpuSpec
    settings: EngineSettings  # without a shape
    longest_prompt: int
    expected_len: int
    calibrations: tuple[CalibrationFactor, ...]
    seed: int
    fabric: Fabric = field(default_factory=Fabric)

    @property
    def tpot_ms(self) -> float:
        """The tightest limit between tokens."""
        return min(t.limit_ms for t in self.workload.slo if t.metric in ("tpot", "itl"))


def may_gain(workload: PlanWorkload, model: ModelSpec) -> bool:
    """Whether pools of their own could help at all: open arrivals, and limits on the first token and between tokens."""
    metrics = {target.metric for target in workload.slo}
    waits = "ttft" in metrics and bool(metrics & {"tpot", "itl"})
    return model.task == "generate" and workload.load.kind == "open" and workload.load.turns is None and waits


def best_unit(
    asked: Asked,
    shapes: Iterable[tuple[int, int, int, int]],
    sizes: Sequence[int],
    link: Callable[[int], Link],
    per_gpu_to_beat: float,
) -> tuple[Disaggregated, Size] | None:
    """The unit that serves the demand on the fewest GPUs, with what it carries; None when none beats the bound.

    ``shapes`` (tp, pp, ep, dp) of either role, ``sizes`` in GPUs that a unit may have, ``link`` by its GPUs;
    ``per_gpu_to_beat`` requests/s that the best aggregated instance carries per GPU.
    """
    most_gpus = max(sizes, default=0)
    flat = [shape for shape in shapes if shape[1] == 1 and shape[0] * shape[3] < most_gpus]
    prefills = [found for shape in flat if (found := _prefill(asked, shape, link(most_gpus))) is not None]
    decodes = [found for shape in flat if (found := _decode(asked, shape, link(most_gpus))) is not None]
    pairs = [
        (first, second)
        for first in prefills
        for second in decodes
        if 1 / (first.gpu_s + second.gpu_s) > per_gpu_to_beat
        and first.instance.resolved.gpus + second.instance.resolved.gpus <= most_gpus
        and not refusals(asked.model, asked.gpu, first.instance.resolved, second.instance.resolved)
    ]
    pairs.sort(key=lambda pair: pair[0].gpu_s + pair[1].gpu_s)
    best: tuple[Disaggregated, Size] | None = None
    for first, second in pairs[:SHAPE_PAIRS]:
        for counts in _counts(asked, first, second, sizes):
            gpus = counts[0] * first.instance.resolved.gpus + counts[1] * second.instance.resolved.gpus
            unit = Disaggregated(first.instance, second.instance, *counts, link=link(gpus))
            sized = _sized(asked, unit, best)
            if sized is not None and sized.share > 0:
                best = unit, sized
    return best


def gpus_needed(share: float, gpus: int, spare: bool) -> int:
    """GPUs that serve the whole demand with units of ``gpus`` GPUs that carry ``share`` of it each."""
    return replicas_needed(share, spare) * gpus


def _made(asked: Asked, role: Role, shape: tuple[int, int, int, int]) -> Instance | None:
    tp, pp, ep, dp = shape
    settings = replace(asked.settings, tp=tp, pp=pp, ep=ep, dp=dp)
    if not support(asked.model, asked.gpu, settings).ok:
        return None
    settings = fewer_sequences(asked.model, asked.gpu, settings, expected_len=asked.expected_len)
    resolved = role_settings(
        settings,
        asked.model,
        asked.gpu,
        role,
        expected_len=asked.expected_len,
        longest_prompt=asked.longest_prompt,
    )
    memory = ledger(asked.model, asked.gpu, resolved)
    if not memory.fits:
        return None
    step = build(asked.model, asked.gpu, resolved, calibrations=asked.calibrations, fabric=asked.fabric)
    return Instance(asked.model, resolved, memory, step)


def _prefill(asked: Asked, shape: tuple[int, int, int, int], link: Link) -> _Shape | None:
    """Time of one prompt, and how busy an instance may be with the others for the limits on the first token."""
    try:
        made = _made(asked, "prefill", shape)
    except PlannerError:
        return None
    if made is None:
        return None
    workload = asked.workload
    tokens = max(1, round(workload.input_tokens.expected * (1 - workload.load.prefix_hit)))
    budget = made.resolved.max_num_batched_tokens
    chunks = math.ceil(tokens / budget) if made.resolved.enable_chunked_prefill else 1
    alone = chunks * made.step.mixed_ms(math.ceil(tokens / chunks), 0, 0.0)
    after = PROXY_MS + _transfer_ms(asked, made, link)
    busy = MOST_BUSY
    for target in workload.slo:
        if target.metric == "ttft":
            room = (target.limit_ms - after - alone) / alone
            if room <= 0:
                return None
            busy = min(busy, 1.0 / (1.0 + _WAITS[target.stat] / room))
    rate = 1000.0 * made.resolved.dp / alone
    return _Shape(made, made.resolved.gpus / rate, rate, busy)


def _decode(asked: Asked, shape: tuple[int, int, int, int], link: Link) -> _Shape | None:
    """The largest batch whose steps, with the stalls of those who join, keep the limit between tokens."""
    try:
        made = _made(asked, "decode", shape)
        if made is None:
            return None
        post_ms = _post_ms(asked, made, link)
    except PlannerError:
        return None
    outputs = asked.workload.output_tokens.expected
    kv = asked.workload.input_tokens.expected + outputs / 2
    seats = min(made.resolved.max_num_seqs, int(made.memory.kv_tokens / (kv + outputs / 2)), MAX_BATCH)
    limit = asked.tpot_ms * TPOT_ROOM

    def step_ms(batch: int) -> float:
        return made.step.decode_ms(batch, kv) + post_ms * batch / outputs

    if seats < 1 or step_ms(1) > limit:
        return None
    low, high = 1, seats
    while low < high:
        middle = (low + high + 1) // 2
        if step_ms(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    rate = 1000.0 * low * made.resolved.dp / (outputs * step_ms(low))
    return _Shape(made, made.resolved.gpus / rate, rate)


def _transfer_ms(asked: Asked, made: Instance, link: Link) -> float:
    shipment = kv_shipment(asked.model, made.resolved, made.resolved)
    return shipment.transfer_ms(round(asked.workload.input_tokens.expected), link)


def _post_ms(asked: Asked, decode: Instance, link: Link) -> float:
    shipment = kv_shipment(asked.model, decode.resolved, decode.resolved)
    tokens = round(asked.workload.input_tokens.expected)
    return shipment.transfer_ms(tokens, replace(link, gb_s=1e9)) - shipment.delay_ms()


def _counts(asked: Asked, first: _Shape, second: _Shape, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(prefill, decode) instances that need the fewest GPUs for the demand by the rates alone."""
    a, b = first.instance.resolved.gpus, second.instance.resolved.gpus
    demand = demand_per_s(asked.workload) or 1.0
    most_gpus = max(sizes)
    ranked = []
    for x in range(1, (most_gpus - b) // a + 1):
        for y in range(1, (most_gpus - x * a) // b + 1):
            rate = min(x * first.rate_per_s * first.busy, y * second.rate_per_s)
            gpus = x * a + y * b
            if gpus not in sizes:
                continue
            ranked.append((gpus_needed(rate / demand, gpus, asked.workload.n_plus_1), gpus / rate, gpus, (x, y)))
    return [counts for *_, counts in sorted(ranked)[:UNITS_PER_PAIR]]


def _sized(asked: Asked, unit: Disaggregated, best: tuple[Disaggregated, Size] | None) -> Size | None:
    """What ``unit`` carries; None when it cannot serve the demand on fewer GPUs than ``best``, or at all."""
    workload, demand = asked.workload, demand_per_s(asked.workload)
    if not demand:
        return None
    try:
        if best is not None and not _carries(asked, unit, _rate_to_beat(unit, best, workload, demand)):
            return None
        return unit_size(unit, workload, asked.seed)
    except PlannerError:
        return None


def unit_size(unit: Disaggregated, workload: PlanWorkload, seed: int) -> Size:
    """Largest load of one unit; ``share`` 0 when even a light load breaks the SLO. Raises as the simulator does."""
    largest = largest_disaggregated_load(
        unit, workload.load, workload.input_tokens, workload.output_tokens, slo=workload.slo, seed=seed
    )
    return planned(largest, workload)


def _rate_to_beat(
    unit: Disaggregated, best: tuple[Disaggregated, Size], workload: PlanWorkload, demand: float
) -> float:
    """Requests/s at which ``unit`` needs fewer GPUs than ``best`` for the demand."""
    needed = gpus_needed(best[1].share, best[0].gpus, workload.n_plus_1)
    units = (needed - 1) // unit.gpus - (1 if workload.n_plus_1 else 0)
    return demand / units if units > 0 else math.inf


def _carries(asked: Asked, unit: Disaggregated, rate: float) -> bool:
    if not math.isfinite(rate):
        return False
    load = asked.workload.load
    if load.arrival == "trace":
        load = replace(load, times_s=trace_at_rate(load.times_s, rate))
    else:
        load = replace(load, rate_per_s=rate, requests=load.requests or SIMULATED_REQUESTS)
    found, _ = simulate_disaggregated(
        unit,
        load,
        asked.workload.input_tokens,
        asked.workload.output_tokens,
        slo=asked.workload.slo,
        seed=asked.seed,
    )
    ratio = slo_ratio(asked.workload.slo, found.ttft_ms, found.tpot_ms, found.itl_ms, found.e2e_ms)
    return not found.saturated and ratio <= 1.0

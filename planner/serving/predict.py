"""``predict``: a simulation with the 80 % intervals of its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.evidence import Interval
from planner.serving import bands
from planner.serving.instance import Instance
from planner.serving.router import Router
from planner.serving.simulator import simulate
from planner.serving.types import Lengths, Load, Performance, SimResult, SloTarget
from planner.steptime.types import StepModel
from planner.steptime.types import scaled as scaled_tables


def scaled(step: StepModel, factor: float) -> StepModel:
    """``step`` with every time multiplied by ``factor``; the front end stays."""
    return replace(step, tables=scaled_tables(step.tables, factor))


def predict(
    instance: Instance,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
    replicas: int = 1,
    router: Router = "round_robin",
) -> Performance:
    """Simulate and put the 80 % band of the step model's evidence around throughput, TTFT and TPOT.

    With open arrivals the run is repeated with slower and faster steps (the TPOT band), so that the bands widen near
    saturation as the queue does; far from it the residuals hold what such steps do. Raises what ``simulate`` raises.
    """

    def run(factor: float) -> SimResult:
        at = replace(instance, step=scaled(instance.step, factor)) if factor != 1.0 else instance
        return simulate(at, load, input_tokens, output_tokens, slo=slo, seed=seed, replicas=replicas, router=router)

    result = run(1.0)
    others = at_band_ends(result, instance.step, run) if load.kind == "open" else ()
    return performance(result, instance.step, others, where="offline" if load.kind == "offline" else "")


def at_band_ends(result: SimResult, step: StepModel, run: Callable[[float], SimResult]) -> tuple[SimResult, ...]:
    """What ``run`` gives with every step as fast and as slow as the 80 % band of TPOT allows, where the queue grows
    with them; nothing where the residuals of ``result`` hold what such steps do. ``run`` takes the factor on all step
    times.
    """
    sd = bands.calibrated_log_sd(step, "tpot")
    spread = bands.factors(step.evidence, "tpot", bands.region(result), sd, engine=step.engine)
    others = (run(min(spread.low, 1.0)), run(max(spread.high, 1.0)))
    return others if _queue_grows(result, others) else ()


def _queue_grows(result: SimResult, others: Sequence[SimResult]) -> bool:
    """Whether steps at the ends of their band change the wait by more than the steps themselves."""
    usual = result.ttft_ms.p50 if result.ttft_ms else 0.0
    return any(o.saturated or (o.ttft_ms is not None and o.ttft_ms.p50 > 2.0 * usual) for o in others)


def performance(
    result: SimResult, step: StepModel, others: Sequence[SimResult] = (), *, where: str = ""
) -> Performance:
    """Dress ``result``; ``others`` are the same run with steps at the ends of their band, ``where`` its load region if
    the run alone cannot tell.
    """
    where = where or bands.region(result)

    def band(metric: str, value: float, reached: list[float]) -> Interval:
        found = bands.interval(
            value,
            bands.factors(step.evidence, metric, where, bands.calibrated_log_sd(step, metric), engine=step.engine),
        )
        return Interval(value, min([found.low, *reached]), max([found.high, *reached]))

    ttft = result.ttft_ms
    tpot = result.tpot_ms
    return Performance(
        output_tok_per_s=result.output_tok_per_s,
        total_tok_per_s=result.total_tok_per_s,
        req_per_s=result.req_per_s,
        ttft_ms=ttft,
        tpot_ms=tpot,
        e2e_ms=result.e2e_ms,
        output_tok_per_s_80=band("output_tok_per_s", result.output_tok_per_s, [o.output_tok_per_s for o in others]),
        ttft_ms_80=None if ttft is None else band("ttft", ttft.p50, [o.ttft_ms.p50 for o in others if o.ttft_ms]),
        tpot_ms_80=None if tpot is None else band("tpot", tpot.p50, [o.tpot_ms.p50 for o in others if o.tpot_ms]),
        preemptions=result.preemptions,
        kv_waste=result.kv_waste,
        mean_kv_used=result.mean_kv_used,
        mean_batch=result.mean_batch,
        utilisation=result.utilisation,
        goodput_per_s=result.goodput_per_s,
        saturated=result.saturated,
        prefix_hit=result.prefix_hit,
        evidence=step.evidence,
        load_region=where,
        residuals_of=step.engine,
        queue_grows=bool(others),
    )

"""What a disaggregated unit is predicted to do, with bands, and the largest load that it carries within an SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.evidence import Interval
from planner.serving import bands
from planner.serving.disaggregated import Disaggregated, PoolUse, simulate_disaggregated
from planner.serving.kv_transfer import UNCERTAINTY
from planner.serving.predict import at_band_ends, performance, scaled
from planner.serving.sizing import Search, largest_of
from planner.serving.types import LargestLoad, Lengths, Load, Performance, SimResult, SloTarget

RESIDUALS = {
    "ttft": bands.Factors(0.75, 3.0),
    "tpot": bands.Factors(0.73, 1.2),
    "output_tok_per_s": bands.Factors(0.83, 1.37),
}
"""Measured / predicted, 10 % and 90 % quantiles over the 111 published disaggregated runs that say what their pools are
(TensorRT-LLM, ``python -m benchmarks accuracy latency --kind disagg``). TTFT without the GB200 rows, whose decode
servers were limited to a few sequences that the rows do not state; throughput is the inverse of TPOT."""


def predict_disaggregated(
    unit: Disaggregated,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
) -> tuple[Performance, PoolUse]:
    """Simulate ``unit`` and put the 80 % bands of the weaker role's evidence around it.

    As for one instance, open arrivals are repeated with slower and faster steps, which widen the bands where the queue
    grows with them. No band is narrower than the
    residuals of published disaggregated runs; TTFT's also holds the transfer at ``UNCERTAINTY`` times its time and at
    that part of it. Raises what ``simulate_disaggregated`` raises.
    """

    def run(factor: float) -> tuple[SimResult, PoolUse]:
        roles = [replace(role, step=scaled(role.step, factor)) for role in (unit.prefill, unit.decode)]
        changed = replace(unit, prefill=roles[0], decode=roles[1]) if factor != 1.0 else unit
        return simulate_disaggregated(changed, load, input_tokens, output_tokens, slo=slo, seed=seed)

    result, use = run(1.0)
    step = replace(unit.decode.step, evidence=unit.evidence)
    others = at_band_ends(result, step, lambda factor: run(factor)[0]) if load.kind == "open" else ()
    found = performance(result, step, others)
    ttft, tpot = found.ttft_ms_80, found.tpot_ms_80
    if ttft is not None:
        moved = use.transfer_ms_mean
        low = max(0.0, ttft.low - moved * (1 - 1 / UNCERTAINTY))
        ttft = _wide(Interval(ttft.value, low, ttft.high + moved * (UNCERTAINTY - 1)), "ttft")
    found = replace(
        found,
        ttft_ms_80=ttft,
        tpot_ms_80=None if tpot is None else _wide(tpot, "tpot"),
        output_tok_per_s_80=_wide(found.output_tok_per_s_80, "output_tok_per_s"),
    )
    return found, use


def _wide(band: Interval, metric: str) -> Interval:
    """``band``, at least as wide as the residuals of disaggregated runs."""
    least = bands.interval(band.value, RESIDUALS[metric])
    return Interval(band.value, min(band.low, least.low), max(band.high, least.high))


def largest_disaggregated_load(
    unit: Disaggregated,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
) -> LargestLoad:
    """The largest load of the kind of ``load`` within ``slo`` that one unit carries; see ``largest_load``."""

    def simulated(at: Load) -> SimResult:
        return simulate_disaggregated(unit, at, input_tokens, output_tokens, slo=slo, seed=seed)[0]

    weaker = replace(unit.decode, step=replace(unit.decode.step, evidence=unit.evidence))
    seats = unit.decode.resolved.max_num_seqs * unit.decode.resolved.dp * unit.decode_count
    found = largest_of(Search(weaker, load, input_tokens, output_tokens, slo, seed, simulated, seats))
    return replace(found, band=_wide(found.band, "output_tok_per_s"))

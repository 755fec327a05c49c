"""Workloads served by several configurations at once: the mix as one service, against either engine alone.

Of a workload that the plan places on two or more candidates the mix is what it places. Of one that both engines could
serve the cheapest mix of both stands for comparison: "a hybrid often wins" is confirmed or refuted for every workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from planner.catalog import get_model
from planner.economics.currency import symbol
from planner.economics.money import money, split_exactly
from planner.errors import PlannerError
from planner.evidence import Interval
from planner.mix_types import Mix, MixPart, MixRival, Outcome
from planner.placement.candidates import gpu_of_nodes
from planner.placement.disaggregation import deployed
from planner.placement.problem import MIX_CANDIDATES
from planner.placement.sizing import demand_per_s
from planner.placement.solver import PlacementResult
from planner.plan_types import Candidate, Placement, PlanRequest, PlanWorkload
from planner.recommend.costing import Change
from planner.recommend.mixcost import Counted, Unit, after_loss, best_pair, cheapest, month_usd, saving_of, unit_of
from planner.recommend.mixflips import flips_against
from planner.recommend.mixsplit import Part, Split, best_split
from planner.recommend.preference import SAME
from planner.serving.types import Performance
from planner.words import ENGINE_LABEL, whole

FULL_WEIGHT = 10_000
"""Weight of the endpoint that gets most: the others' are right to 0.01 % of it."""

_STEP = Decimal("0.000001")
_WHOLE = 1e-6


def mix_of(
    workload: PlanWorkload,
    candidates: Sequence[Candidate],
    request: PlanRequest,
    placements: Sequence[Placement],
    alone: Mapping[str, PlacementResult],
) -> Mix | None:
    """The mix of ``workload`` that the plan places, else the cheapest one of both engines; None where there is neither.

    ``candidates`` those at hand, ``placements`` the plan's, ``alone`` the plans of each engine alone. None also where a
    part cannot be simulated.
    """
    usable = [c for c in candidates if c.workload == workload.name and c.status == "ok" and c.cost is not None]
    every = [unit_of(candidate) for candidate in usable]
    able = [unit for unit in every if unit.candidate.sharers == 1]  # a share is worth nothing without neighbours
    counts = _placed(workload, placements)
    found = _as_placed(able, counts) if len(counts) > 1 else _cheapest_of_both(able, workload.n_plus_1)
    if found is None:
        return None
    units, replicas = found
    split = _split(found, workload, request)
    if split is None:
        return None
    placed = len(counts) > 1
    carried = min(1.0, _able(found))
    rivals = tuple(_rival(engine, (units, replicas), every, workload, request, alone) for engine in ENGINE_LABEL)
    outcome = _outcome(rivals, carried)
    month = money(Decimal(str(month_usd(units, replicas))))
    tokens = _mtok_output(workload, units[0].candidate, split, carried)
    unit_price = (month / tokens).quantize(_STEP) if tokens > 0 else None
    return Mix(
        workload=workload.name,
        placed=placed,
        carried=carried,
        parts=_parts(units, replicas, split, month),
        split=split.kind,
        slo_use=split.slo_use,
        slo_use_by_capacity=split.slo_use_by_capacity,
        after_loss=after_loss([unit.share for unit in units], replicas),
        performance=split.whole,
        usd_per_month=month,
        usd_per_mtok_output=unit_price,
        usd_per_mtok_output_80=_price_band(unit_price, units, split),
        rivals=rivals,
        outcome=outcome,
        sentence=_sentence(rivals, outcome, placed, carried, units) + _people_words(units, symbol(request.currency)),
    )


def _split(counted: Counted, workload: PlanWorkload, request: PlanRequest) -> Split | None:
    """How the demand is dealt out to these replicas, and what they do together; None where one cannot be simulated."""
    model = get_model(workload.model)
    parts = []
    try:
        for unit, count in zip(*counted, strict=True):
            made = deployed(unit.candidate, model, gpu_of_nodes(unit.candidate.gpu, request.nodes), request)
            parts.append(Part(unit.candidate, made, count, unit.share * count))
        return best_split(workload, parts, request.seed)
    except PlannerError:
        return None


def _performance(counted: Counted, workload: PlanWorkload, request: PlanRequest) -> Performance | None:
    """What these replicas do together: the candidate's own figures where it is one, as many as it was sized for."""
    units, counts = counted
    if len(units) == 1 and (counts[0] == units[0].candidate.replicas or units[0].candidate.sharers > 1):
        return units[0].candidate.performance
    split = _split(counted, workload, request)
    return None if split is None else split.whole


def _able(counted: Counted) -> float:
    """Share of the demand that these replicas carry within the SLO."""
    return sum(unit.share * count for unit, count in zip(*counted, strict=True))


def _placed(workload: PlanWorkload, placements: Sequence[Placement]) -> dict[str, int]:
    """Replicas that the plan places, by candidate."""
    found: dict[str, set[int]] = {}
    for item in placements:
        if item.workload == workload.name:
            found.setdefault(item.candidate_id, set()).add(item.replica)
    return {key: len(replicas) for key, replicas in sorted(found.items())}


def _as_placed(able: Sequence[Unit], counts: dict[str, int]) -> tuple[tuple[Unit, ...], tuple[int, ...]] | None:
    by_id = {unit.candidate.id: unit for unit in able}
    if not all(key in by_id for key in counts):
        return None
    return tuple(by_id[key] for key in counts), tuple(counts.values())


def _cheapest_of_both(able: Sequence[Unit], spare: bool) -> tuple[tuple[Unit, ...], tuple[int, ...]] | None:
    by_engine = []
    for engine in ENGINE_LABEL:
        own = [unit for unit in able if unit.engine == engine]
        own.sort(key=lambda u: (u.usd(Change()) / u.share, u.candidate.id))
        alone = cheapest(own, spare, Change())  # the one that wins when few replicas are needed
        by_engine.append([*own[:MIX_CANDIDATES], *([alone] if alone is not None else [])])
    return best_pair(by_engine[0], by_engine[1], spare)


def _parts(units: Sequence[Unit], replicas: Sequence[int], split: Split, month: Decimal) -> tuple[MixPart, ...]:
    each = [share / count for share, count in zip(split.shares, replicas, strict=True)]
    # people that an engine takes are one amount: every part bears them by its own bill
    bills = [Decimal(str(unit.usd(Change()) * count)) for unit, count in zip(units, replicas, strict=True)]
    dollars = split_exactly(month, bills) if sum(bills) > 0 else (Decimal(0),) * len(bills)
    return tuple(
        MixPart(
            candidate_id=unit.candidate.id,
            engine=unit.engine,
            gpu=unit.candidate.gpu,
            replicas=count,
            gpus=count * unit.candidate.gpus_per_replica,
            capacity_share=unit.share * count,
            share=split.shares[i],
            endpoint_weight=max(1, round(FULL_WEIGHT * each[i] / max(each))),
            performance=split.parts[i],
            usd_per_month=dollars[i],
        )
        for i, (unit, count) in enumerate(zip(units, replicas, strict=True))
    )


def _mtok_output(workload: PlanWorkload, candidate: Candidate, split: Split, carried: float) -> Decimal:
    """Million output tokens a month: of the demand carried, or what users who wait for each answer get."""
    if candidate.cost is not None and demand_per_s(workload) is not None:
        return candidate.cost.mtok_output_per_month * Decimal(str(carried))
    hours = Decimal(str(workload.hours_per_month))
    rate = split.whole.req_per_s * workload.mean_load_share * workload.output_tokens.expected
    return Decimal(str(rate)) * 3600 * hours / 10**6


def _price_band(value: Decimal | None, units: Sequence[Unit], split: Split) -> tuple[Decimal, Decimal] | None:
    """The price over what the parts would really carry, all at the low, and all at the high end of their bands."""
    if value is None:
        return None
    low = high = 0.0
    for unit, share in zip(units, split.shares, strict=True):
        band = unit.candidate.replica_rate_80
        if band is None or band.value <= 0 or band.low <= 0:
            return None
        low, high = low + share * band.low / band.value, high + share * band.high / band.value
    return (value / Decimal(str(high))).quantize(_STEP), (value / Decimal(str(low))).quantize(_STEP)


def _rival(
    engine: str,
    mix: Counted,
    every: Sequence[Unit],
    workload: PlanWorkload,
    request: PlanRequest,
    alone: Mapping[str, PlacementResult],
) -> MixRival:
    label, plan = ENGINE_LABEL[engine], alone.get(engine)
    counts = _placed(workload, plan.placements) if plan is not None else {}
    rival = _as_placed(every, counts) if counts else None
    left_out = next((u.reason for u in plan.unplaced if u.workload == workload.name), "") if plan is not None else ""
    if engine not in workload.allowed_engines:
        return MixRival(engine, reason=f"The workload does not allow {label}.")
    parts = tuple(counts.items())
    carried = min(1.0, _able(rival)) if rival is not None else 0.0
    if rival is None or left_out:
        share = f"carries {100 * carried:.0f} % of it" if carried else "does not serve it"
        return MixRival(
            engine, parts, carried, reason=f"{label} alone {share} here{f': {left_out}' if left_out else ''}."
        )
    if {u.candidate.id: n for u, n in zip(*rival, strict=True)} == {
        u.candidate.id: n for u, n in zip(*mix, strict=True)
    }:
        return MixRival(engine, parts, carried, reason=f"{label} alone serves it in just this way.")
    month = money(Decimal(str(month_usd(*rival))))
    tokens = rival[0][0].candidate.cost.mtok_output_per_month if rival[0][0].candidate.cost is not None else 0
    saving = saving_of(mix, rival, workload.n_plus_1)
    own = [unit for unit in every if unit.engine == engine and unit.candidate.sharers == 1]
    return MixRival(
        engine=engine,
        parts=parts,
        carried=carried,
        performance=_performance(rival, workload, request),
        usd_per_month=month,
        usd_per_mtok_output=(month / tokens).quantize(_STEP) if tokens else None,
        saving=saving,
        too_close=saving.low < SAME and saving.high > -SAME,
        flips=flips_against(mix, rival, own, workload, request),
    )


def _outcome(rivals: Sequence[MixRival], carried: float) -> Outcome:
    """Confirmed: beyond the bands cheaper than each engine alone, or all served where neither alone does so. Refuted:
    beyond the bands no cheaper than one of them.
    """
    savings = [rival.saving for rival in rivals if rival.saving is not None]
    if not savings:
        return "confirmed" if carried > 1 - _WHOLE and all(not rival.parts for rival in rivals) else "unsettled"
    if all(saving.low >= SAME for saving in savings):
        return "confirmed"
    if any(saving.high <= SAME for saving in savings):
        return "refuted"
    return "unsettled"


def _sentence(rivals: Sequence[MixRival], outcome: Outcome, placed: bool, carried: float, units: Sequence[Unit]) -> str:
    both = len({unit.engine for unit in units}) > 1
    subject = "The hybrid of both engines" if both else "The mix of two configurations"
    if not placed:
        subject = "The cheapest hybrid of both engines, which the plan does not take,"
    said = [_against(rival, rival.saving) for rival in rivals if rival.saving is not None]
    parts = [f"{subject} is {' and '.join(said)}."] if said else []
    if carried < 1 - _WHOLE:
        parts.insert(0, f"What finds room carries {100 * carried:.0f} % of the demand.")
    parts += [rival.reason for rival in rivals if rival.saving is None]
    verdict = {
        "confirmed": "Here a hybrid wins.",
        "refuted": "Here a hybrid does not win.",
        "unsettled": "Whether a hybrid wins lies within the error of the prediction.",
    }
    return " ".join([*parts, verdict[outcome]] if both and said else parts)


def _people_words(units: Sequence[Unit], sign: str) -> str:
    """What the people of the second engine take of the month; empty where none are paid."""
    people = sorted({unit.engine: unit.people_usd for unit in units}.values())
    more = sum(people[:-1])
    return f" {sign}{more:,.0f} of its month are the people of a second engine." if more >= 1 else ""


def _against(rival: MixRival, saving: Interval) -> str:
    name = f"{ENGINE_LABEL[rival.engine]} alone"
    low, high, word = 100 * saving.low, 100 * saving.high, "cheaper"
    if abs(saving.value) < SAME:
        return f"as dear as {name} ({whole(low)} to {whole(high)} % saved)"
    if saving.value < 0:
        low, high, word = -high, -low, "dearer"
    return f"{abs(100 * saving.value):.0f} % {word} than {name} ({whole(low)} to {whole(high)} %)"

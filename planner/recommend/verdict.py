"""Which engine for a workload, by how much, how sure, and the probe that would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from statistics import NormalDist

from planner.economics.currency import symbol
from planner.economics.energy import joules_per_token
from planner.evidence import Z80, Evidence, Interval
from planner.mix_types import Mix
from planner.plan_types import Candidate, Placement, PlanRequest, PlanWorkload
from planner.recommend.costing import Change, best_of, gpu_price, usd_per_hour
from planner.recommend.preference import SAME, engine_of, is_tie, preferred
from planner.recommend.room import finds_room
from planner.recommend.tornado import tornado
from planner.verdict_types import FlipPoint, Sensitivity, Verdict
from planner.words import ENGINE_LABEL, figure, place_words, whole

PROBE_HOURS = 0.5  # start-up, warm-up and three loads of some minutes


def slices(count: int) -> tuple[float, ...]:
    """Midpoints of ``count`` equal slices of a normal distribution, in standard deviations, ascending."""
    return tuple(NormalDist().inv_cdf((i + 0.5) / count) for i in range(count))


_SLICES = slices(20)


def verdict(
    workload: PlanWorkload,
    candidates: Sequence[Candidate],
    request: PlanRequest,
    *,
    placed: str | None = None,
    placements: Sequence[Placement] = (),
    flip_points: tuple[FlipPoint, ...] = (),
    mix: Mix | None = None,
) -> Verdict:
    """The verdict on ``workload``. ``placed`` is the candidate that the placement took, when it took one.

    ``placements`` of all workloads tell whether a cheaper runner-up had found room. Where the plan places a ``mix``,
    margin and sentence are those of the mix, ``placed`` the candidate of most of its replicas.

    Both engines enter with their best tuned candidate at equal SLO. The margin is how much cheaper the chosen one is,
    as a share of the other's cost; its 80 % interval comes from the intervals of what one replica carries, taken as
    independent.
    """
    usable = [c for c in candidates if c.workload == workload.name and c.status == "ok"]
    best = {engine: best_of(_of(usable, engine), workload, request, Change()) for engine in ENGINE_LABEL}
    chosen = next((c for c in usable if c.id == placed), None)
    if chosen is None:
        chosen = _choice([pair for pair in best.values() if pair is not None], workload, request)
    if chosen is None:
        return _nothing(workload, candidates)
    engine = engine_of(chosen)
    other = next((best[name] for name in ENGINE_LABEL if name != engine), None)
    if other is None:
        return _alone(workload, candidates, chosen, flip_points, tornado(chosen, workload, request))
    runner_up = other[1]
    margin = margin_of(chosen, runner_up, workload, request)
    too_close = margin.low < SAME and margin.high > -SAME
    tie = _tie_words(chosen, runner_up, workload, request, placements)
    room = margin.value >= 0 or bool(tie) or finds_room(runner_up, workload, request, placements)
    sentence = _sentence(chosen, runner_up, margin, too_close, flip_points, room, tie)
    if mix is not None and mix.placed:
        sentence, tie = mix.sentence, ""
        rival = next((r for r in mix.rivals if r.engine == engine_of(runner_up) and r.saving is not None), None)
        if rival is not None and rival.saving is not None:
            margin, too_close = rival.saving, rival.too_close
    reasons = _reasons(chosen, runner_up, workload, request, too_close)
    probe = _probe(chosen, runner_up, request) if too_close else ""
    moves = tornado(chosen, workload, request)
    return Verdict(
        workload.name, chosen.id, runner_up.id, engine, margin, too_close, sentence, reasons, flip_points, probe, moves,
        tie,
    )  # fmt: skip


def margin_of(chosen: Candidate, other: Candidate, workload: PlanWorkload, request: PlanRequest) -> Interval:
    """(cost of other - cost of chosen) / cost of other, with the 80 % interval over both capacity bands.

    Each capacity is taken as log-normal through its band; 20 x 20 equal slices are priced with whole replicas.
    """
    ours = [usd_per_hour(chosen, workload, request, Change(rate_factor=f)) for f in capacity_factors(chosen, _SLICES)]
    theirs = [usd_per_hour(other, workload, request, Change(rate_factor=f)) for f in capacity_factors(other, _SLICES)]
    points = sorted((b - a) / b for a in ours for b in theirs)
    a, b = (usd_per_hour(c, workload, request, Change()) for c in (chosen, other))
    count = len(points)
    value = (b - a) / b
    return Interval(value, min(value, points[count // 10]), max(value, points[count - 1 - count // 10]))


def tied(first: Candidate, second: Candidate, workload: PlanWorkload, request: PlanRequest) -> bool:
    """Whether the figures cannot tell the costs of two candidates apart, whichever comes first."""
    one, other = sorted((first, second), key=lambda candidate: candidate.id)
    return is_tie(margin_of(one, other, workload, request))


def capacity_factors(candidate: Candidate, deviations: Sequence[float]) -> tuple[float, ...]:
    """What a replica carries over what is predicted, so many standard deviations off: log-normal through its band.

    1 throughout where there is no band.
    """
    band = candidate.replica_rate_80
    if band is None or band.value <= 0 or band.low <= 0:
        return (1.0,) * len(deviations)
    down, up = math.log(band.value / band.low) / Z80, math.log(band.high / band.value) / Z80
    return tuple(math.exp(z * (up if z > 0 else down)) for z in deviations)


def _choice(best: Sequence[tuple[float, Candidate]], workload: PlanWorkload, request: PlanRequest) -> Candidate | None:
    """Of the best of each engine the cheaper; where the two costs are a tie, the one to prefer."""
    if not best:
        return None
    first, *rest = sorted(best, key=lambda pair: (pair[0], -pair[1].replica_share, pair[1].id))
    if rest and tied(first[1], rest[0][1], workload, request):
        return preferred(first[1], rest[0][1], workload, request).candidate
    return first[1]


def _of(candidates: Sequence[Candidate], engine: str) -> list[Candidate]:
    return [candidate for candidate in candidates if engine_of(candidate) == engine]


def _nothing(workload: PlanWorkload, candidates: Sequence[Candidate]) -> Verdict:
    own = [c for c in candidates if c.workload == workload.name]
    reasons = tuple(dict.fromkeys(f"{_short(c)}: {reason}" for c in own for reason in c.reasons[:1]))
    return Verdict(
        workload.name, None, None, None, None, False, f"Nothing at hand can serve {workload.name}.", reasons[:8]
    )


def _alone(
    workload: PlanWorkload,
    candidates: Sequence[Candidate],
    chosen: Candidate,
    flips: tuple[FlipPoint, ...],
    moves: tuple[Sensitivity, ...],
) -> Verdict:
    engine = engine_of(chosen)
    missing = next(name for name in ENGINE_LABEL if name != engine)
    refused = [c for c in candidates if c.workload == workload.name and engine_of(c) == missing]
    why = next((reason for c in refused for reason in c.reasons), "")
    if missing not in workload.allowed_engines:
        why = "the workload does not allow it."
    sentence = f"{ENGINE_LABEL[engine]} on {place_words(chosen.id)}: the only engine that can serve it here."
    reasons = (f"{ENGINE_LABEL[missing]} is out: {why or 'no candidate was made.'}", *_figures(chosen))
    return Verdict(workload.name, chosen.id, None, engine, None, False, sentence, reasons, flips, "", moves)


def _tie_words(
    chosen: Candidate,
    other: Candidate,
    workload: PlanWorkload,
    request: PlanRequest,
    placements: Sequence[Placement],
) -> str:
    """Why the chosen one is taken where the costs are a tie; empty where they are none."""
    if not tied(chosen, other, workload, request):
        return ""
    choice = preferred(chosen, other, workload, request)
    if choice.candidate is chosen:
        return f"{ENGINE_LABEL[engine_of(chosen)]} because {choice.because}"
    room = finds_room(other, workload, request, placements)
    ours, theirs = ENGINE_LABEL[engine_of(chosen)], ENGINE_LABEL[engine_of(other)]
    kept = f"beside the other workloads the plan keeps to {ours}" if room else f"there is no room for {theirs}"
    return f"{ours} although {theirs} would be preferred, {choice.because}: {kept}"


def _sentence(
    chosen: Candidate,
    other: Candidate,
    margin: Interval,
    too_close: bool,
    flips: tuple[FlipPoint, ...],
    room: bool,
    tie: str,
) -> str:
    ours, theirs = ENGINE_LABEL[engine_of(chosen)], ENGINE_LABEL[engine_of(other)]
    low, high = margin.low * 100, margin.high * 100
    band = f"({whole(low)} to {whole(high)} %)"
    if tie:
        text = f"Equal at this cost {band}; {tie}." if high - low >= 1 else f"Equal at this cost; {tie}."
    elif too_close and abs(margin.value) < SAME:
        text = f"Too close to call: {ours} and {theirs} cost the same here"
        text += f" {band}." if high - low >= 1 else f"; {_stronger(chosen, other)}."
    elif too_close:
        word = "cheaper" if margin.value > 0 else "dearer"
        text = f"Too close to call: {ours} looks {abs(margin.value) * 100:.0f} % {word} than {theirs} {band}."
    elif margin.value >= 0:
        text = f"{ours} is {margin.value * 100:.0f} % cheaper here than {theirs} {band}."
    else:
        cheaper = -100 * margin.value / (1 - margin.value)  # of the chosen one's cost; the margin is of the other's
        why = f"beside the other workloads the plan keeps to {ours}" if room else "there is no room for it"
        text = f"{ours} is taken although {theirs} alone would be {whole(cheaper)} % cheaper: {why}."
    nearest = sorted((f for f in flips if f.value is not None), key=lambda f: f.unit.endswith("/GPU-hour"))
    differs = abs(margin.value) >= SAME  # where both cost the same, pennies flip the answer: that helps nobody
    return f"{text} {nearest[0].sentence}" if nearest and differs else text


def capacity_per_usd(candidate: Candidate, request: PlanRequest) -> float:
    """Share of the demand that a dollar an hour of this candidate carries: what counts once replicas are many."""
    return candidate.replica_share / (float(candidate.gpus_charged) * gpu_price(request, candidate.gpu))


def _stronger(chosen: Candidate, other: Candidate) -> str:
    """Which of two equal bills leaves more room."""
    room = {c.id: c.replica_share * max(c.replicas, 1) for c in (chosen, other)}
    better, worse = sorted((chosen, other), key=lambda c: -room[c.id])
    more = 100 * (room[better.id] / room[worse.id] - 1) if room[worse.id] else 0.0
    if more < 1:
        return "and both carry the same"
    return f"{ENGINE_LABEL[engine_of(better)]} could carry {more:.0f} % more on the same bill"


def _reasons(
    chosen: Candidate, other: Candidate, workload: PlanWorkload, request: PlanRequest, too_close: bool
) -> tuple[str, ...]:
    found = [*_figures(chosen), *_figures(other)]
    first, second = chosen.performance, other.performance
    if first and second and first.ttft_ms and second.ttft_ms:
        found.append(_compared("TTFT p50", first.ttft_ms.p50, second.ttft_ms.p50, chosen, other))
    if first and second and first.tpot_ms and second.tpot_ms:
        found.append(_compared("TPOT mean", first.tpot_ms.mean, second.tpot_ms.mean, chosen, other))
    gain = capacity_per_usd(chosen, request) / capacity_per_usd(other, request) - 1
    found.append(
        f"A dollar of {ENGINE_LABEL[engine_of(chosen)]} carries {abs(gain) * 100:.0f} % "
        f"{'more' if gain >= 0 else 'less'} than one of {ENGINE_LABEL[engine_of(other)]}."
    )
    found += _dearer_bill_cheaper_token(chosen, other)
    if too_close:
        found.append(_safer(chosen, other, workload, request))
    if chosen.evidence is not other.evidence or chosen.evidence is not Evidence.MEASURED:
        found.append(
            f"Known from: {ENGINE_LABEL[engine_of(chosen)]} {chosen.evidence.value}, "
            f"{ENGINE_LABEL[engine_of(other)]} {other.evidence.value}."
        )
    found += _break_even(chosen) + _energy(chosen)
    prices = sorted({(c.gpu, gpu_price(request, c.gpu)) for c in (chosen, other)})
    found.append(
        "Prices: " + ", ".join(f"{gpu} {symbol(request.currency)}{usd:.2f} per GPU-hour" for gpu, usd in prices) + "."
    )
    return tuple(found)


def _dearer_bill_cheaper_token(chosen: Candidate, other: Candidate) -> list[str]:
    """Users who wait for answers get more of them from a faster engine: then bill and price per token may disagree."""
    if chosen.cost is None or other.cost is None:
        return []
    ours, theirs = chosen.cost.usd_per_mtok_output, other.cost.usd_per_mtok_output
    bills = chosen.cost.usd_per_month, other.cost.usd_per_month
    if ours is None or theirs is None or (ours - theirs) * (bills[0] - bills[1]) >= 0:
        return []
    if abs(ours - theirs) < Decimal(str(SAME)) * theirs:
        return []
    cheap, dear = (other, chosen) if theirs < ours else (chosen, other)
    price, against, sign = min(ours, theirs), max(ours, theirs), symbol(chosen.cost.currency)
    return [
        f"The bill of {ENGINE_LABEL[engine_of(cheap)]} is larger, yet it serves the same users more tokens: "
        f"{sign}{_usd(price)} per million output tokens against {sign}{_usd(against)} "
        f"with {ENGINE_LABEL[engine_of(dear)]}."
    ]


def _figures(candidate: Candidate) -> tuple[str, ...]:
    label = ENGINE_LABEL[engine_of(candidate)]
    cost = ""
    if candidate.cost is not None:
        unit, kind = candidate.cost.usd_per_mtok_output, "output"
        if unit is None:
            unit, kind = candidate.cost.usd_per_mtok_input, "input"
        sign = symbol(candidate.cost.currency)
        cost = f", {sign}{_usd(unit)} per million {kind} tokens" if unit is not None else ""
    shape = f"{_count(candidate.replicas, 'replica')} of {_count(candidate.gpus_per_replica, 'GPU')}"
    rate = f"{figure(candidate.replica_rate_per_s)} requests/s"
    return (f"{label} on {place_words(candidate.id)}: {shape}, each carries {rate} within the SLO{cost}.",)


def _usd(amount: Decimal) -> str:
    return f"{amount:,.2f}" if amount >= 1 else figure(float(amount))


def _energy(candidate: Candidate) -> list[str]:
    """Energy per token of the kind served, at the mean of the demand; nothing where no power was measured."""
    performance, cost = candidate.performance, candidate.cost
    if candidate.watts_per_gpu is None or performance is None or cost is None:
        return []
    tokens, kind = cost.mtok_output_per_month, "output"
    if not tokens:
        tokens, kind = cost.mtok_input_per_month, "input"
    hours = float(cost.gpu_hours_per_month) / max(candidate.gpus, 1)
    rate = float(tokens) * 1e6 / (hours * 3600) if hours else 0.0
    joules = joules_per_token(candidate.watts_per_gpu, candidate.gpus, rate)
    if joules is None:
        return []
    return [f"{candidate.watts_per_gpu:.0f} W a GPU at the mean load, {joules:.2g} J per {kind} token."]


def _break_even(candidate: Candidate) -> list[str]:
    cost = candidate.cost
    if cost is None or cost.break_even_utilisation is None:
        return []
    share = cost.break_even_utilisation
    if share > 1:
        return [f"The API is cheaper even at full use: break-even would be {100 * share:.0f} % of capacity."]
    return [f"Break-even with the API at {100 * share:.0f} % of what the replicas can carry."]


def _compared(what: str, ours: float, theirs: float, chosen: Candidate, other: Candidate) -> str:
    change = (ours - theirs) / theirs if theirs else 0.0
    word = "lower" if change < 0 else "higher"
    return (
        f"{what} {figure(ours)} ms with {ENGINE_LABEL[engine_of(chosen)]}, {figure(theirs)} ms with "
        f"{ENGINE_LABEL[engine_of(other)]} ({abs(change) * 100:.0f} % {word})."
    )


def _safer(chosen: Candidate, other: Candidate, workload: PlanWorkload, request: PlanRequest) -> str:
    """Which of two that are too close is the safer choice, and why."""
    choice = preferred(chosen, other, workload, request, equal=False)
    return f"Safer: {ENGINE_LABEL[engine_of(choice.candidate)]}, {choice.because.removeprefix('it is ')}."


def _probe(chosen: Candidate, other: Candidate, request: PlanRequest) -> str:
    """The cheapest probe that narrows the wider of the two bands."""

    def width(candidate: Candidate) -> float:
        band = candidate.replica_rate_80
        return (band.high - band.low) / band.value if band and band.value else math.inf

    first = max((chosen, other), key=lambda c: (width(c), -c.gpus_per_replica))
    usd = PROBE_HOURS * first.gpus_per_replica * gpu_price(request, first.gpu)
    return (
        f"Probe {ENGINE_LABEL[engine_of(first)]} on {place_words(first.id)}: one replica at "
        f"{figure(first.replica_rate_per_s)} requests/s, about {PROBE_HOURS * 60:.0f} minutes on "
        f"{_count(first.gpus_per_replica, 'GPU')} ({symbol(request.currency)}{usd:.2f})."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number:,} {thing}s"


def _short(candidate: Candidate) -> str:
    return f"{ENGINE_LABEL[engine_of(candidate)]} on {candidate.gpu}"

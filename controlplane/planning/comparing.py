"""Plans side by side: totals, each workload, and line by line what was asked and what came of it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError

from controlplane.core.tables import inert
from controlplane.planning.exporting import answer_billed, output_price
from controlplane.planning.models import Plan
from planner.economics.currency import BASE, CONVERTED_STEP, Converter, ExchangeRate, symbol
from planner.errors import InputError
from planner.jsonio import from_json, to_json
from planner.placement.devices import gpus_worth
from planner.plan_types import Placement, PlanRequest
from planner.recommend.bill import placed_mixes
from planner.words import ENGINE_LABEL

Json = Mapping[str, Any]
FEWEST, MOST = 2, 4
MOST_LINES = 400
LONG_LIST = 8
ABSENT = "–"
_UNSHOWN = {"name", "origin", "current", "calibrations"}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of every plan. ``kind`` usd, usd_hour, share, count, months, number or text says how it is shown."""

    key: str
    word: str
    kind: str
    values: tuple[Any, ...]
    unit: str = ""

    @property
    def differs(self) -> bool:
        """Whether the plans do not agree."""
        return any(value != self.values[0] for value in self.values[1:])


@dataclass(frozen=True, slots=True)
class Served:
    """What one plan does for one workload. ``headroom`` is by how much the load could grow: 0.12 is twelve percent."""

    candidate: str
    engines: tuple[str, ...]
    gpu: str
    parallelism: str
    precision: str
    replicas: int
    gpus: int
    nodes: tuple[str, ...]
    usd_per_hour: Decimal
    usd_per_mtok_output: Decimal | None
    usd_per_mtok_output_80: tuple[Decimal, Decimal] | None
    ttft_ms: Json | None
    tpot_ms: Json | None
    headroom: float | None
    evidence: str
    too_close: bool
    unplaced: int
    sentence: str


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    """One workload in every plan; None where a plan does not have it."""

    name: str
    cells: tuple[Served | None, ...]

    @property
    def differs(self) -> bool:
        """Whether engine, candidate, replicas or nodes differ."""
        return len({(c.candidate, c.replicas, c.nodes, c.unplaced) if c else None for c in self.cells}) > 1


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of the question or of the answer in which the plans differ."""

    section: str
    item: str
    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plans side by side, the first is what the others are held against. ``more`` lines of difference are not shown.

    Amounts of totals and workloads are in ``currency``, that of the first, converted by ``rates``; the lines of
    difference stay as the plans have them.
    """

    plans: tuple[Plan, ...]
    totals: tuple[Line, ...]
    workloads: tuple[WorkloadLine, ...]
    differences: tuple[Difference, ...]
    more: int
    currency: str
    rates: tuple[ExchangeRate, ...]


def compare(plans: Sequence[Plan], rates: Iterable[ExchangeRate] = ()) -> Comparison:
    """Two to four plans side by side. ``rates`` are those recorded now, for plans in different currencies.

    Raises ValidationError for another number, a repeated one, one unanswered, or a currency without a rate.
    """
    if not FEWEST <= len(plans) <= MOST:
        raise ValidationError(f"{len(plans)} plans are given; compare {FEWEST} to {MOST}.")
    if len({plan.pk for plan in plans}) < len(plans):
        raise ValidationError("A plan is given twice; compare different ones.")
    for plan in plans:
        if plan.result is None or plan.request is None:
            raise ValidationError(f"Plan {plan} has no result to compare.")
    money, factors = _factors(plans, rates)
    answers = [answer_billed(plan) for plan in plans]
    sides = [
        _served(plan.request or {}, answer, factor)
        for plan, answer, factor in zip(plans, answers, factors, strict=True)
    ]
    names = list(dict.fromkeys(name for side in sides for name in side))
    found = list(_differences(plans))
    return Comparison(
        plans=tuple(plans),
        totals=tuple(_totals(answers, sides, factors, money.reporting)),
        workloads=tuple(WorkloadLine(name, tuple(side.get(name) for side in sides)) for name in names),
        differences=tuple(found[:MOST_LINES]),
        more=max(0, len(found) - MOST_LINES),
        currency=money.reporting,
        rates=money.used,
    )


def _factors(plans: Sequence[Plan], rates: Iterable[ExchangeRate]) -> tuple[Converter, list[Decimal]]:
    """What one unit of each plan's currency is in that of the first, by the rates of the day of the first."""
    first = plans[0].request or {}
    stated = from_json(tuple[ExchangeRate, ...], [r for p in plans for r in (p.request or {}).get("rates", ())])
    money = Converter(first.get("currency", BASE), first.get("rates_as_of", ""), (*stated, *rates))
    factors = []
    for plan in plans:
        try:
            factors.append(money.factor((plan.request or {}).get("currency", BASE)))
        except InputError as error:
            raise ValidationError(f"Plan {plan} cannot be held against {plans[0]}: {error}") from error
    return money, factors


def first_full(result: Json) -> tuple[int | None, str]:
    """The month in which the first pool of a plan is full, and its GPU; (None, "") when none is, or nothing grows."""
    full = [(r["full_in_months"], r["gpu"]) for r in result.get("runways", ()) if r["full_in_months"] is not None]
    return min(full) if full else (None, "")


def as_csv(found: Comparison) -> bytes:
    """Everything as one table: section, item, field, unit, a column for each plan, and whether they differ."""
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    titles = [inert(f"{plan}: {plan.title}" if plan.title else str(plan)) for plan in found.plans]
    write(["Section", "Item", "Field", "Unit", *titles, "Differs"])

    def line(section: str, item: str, field: str, unit: str, values: Sequence[Any]) -> None:
        cells = ["" if value is None else inert(value) for value in values]
        write([section, inert(item), field, unit, *cells, "yes" if len(set(map(str, values))) > 1 else ""])

    for total in found.totals:
        unit = total.unit or ("share" if total.kind == "share" else "")  # pages show it in per cent
        line("Totals", "", total.word, unit, total.values)
    for row in found.workloads:
        for field, unit, get in _CELL_COLUMNS:
            unit = unit.replace("USD", found.currency)
            line("Workloads", row.name, field, unit, [get(cell) if cell else None for cell in row.cells])
    for entry in found.differences:
        line(entry.section, entry.item, entry.field, "", entry.values)
    return text.getvalue().encode("utf-8-sig")


_CELL_COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("Engine", "", lambda c: " and ".join(ENGINE_LABEL.get(e, e) for e in c.engines)), ("GPU", "", lambda c: c.gpu),
    ("Parallelism", "", lambda c: c.parallelism), ("Precision", "", lambda c: c.precision),
    ("Replicas", "", lambda c: c.replicas), ("GPUs", "", lambda c: c.gpus),
    ("Nodes", "", lambda c: " ".join(c.nodes)), ("Cost of GPUs", "USD/h", lambda c: c.usd_per_hour),
    ("Cost of output", "USD/M tok", lambda c: c.usd_per_mtok_output),
    ("Cost of output, low", "USD/M tok", lambda c: (c.usd_per_mtok_output_80 or (None, None))[0]),
    ("Cost of output, high", "USD/M tok", lambda c: (c.usd_per_mtok_output_80 or (None, None))[1]),
    ("TTFT p50", "ms", lambda c: (c.ttft_ms or {}).get("value")),
    ("TPOT p50", "ms", lambda c: (c.tpot_ms or {}).get("value")),
    ("Headroom", "share", lambda c: c.headroom), ("Replicas unplaced", "", lambda c: c.unplaced),
    ("Evidence", "", lambda c: c.evidence),
)  # fmt: skip


def _totals(
    results: Sequence[Json], sides: Sequence[Mapping[str, Served]], factors: Sequence[Decimal], currency: str
) -> Iterator[Line]:
    sign = symbol(currency).strip()

    def of(key: str, word: str, kind: str, unit: str, get: Any) -> Line:
        return Line(key, word, kind, tuple(get(result) for result in results), unit)

    def amount(key: str, word: str) -> Line:
        usd = [_times(result[key], factor) for result, factor in zip(results, factors, strict=True)]
        return Line(key, word, "usd", tuple(usd), f"{sign} / h")

    yield amount("usd_per_hour", "Placed GPUs")
    yield amount("idle_usd_per_hour", "Owned GPUs left idle")
    month = [_times(result["usd_per_month"], factor) for result, factor in zip(results, factors, strict=True)]
    yield Line("usd_per_month", "Bill of a month", "usd", tuple(round(usd, 2) for usd in month), sign)
    prices = [(output_price(result), factor) for result, factor in zip(results, factors, strict=True)]
    per_token = [None if usd is None else (usd * factor).quantize(CONVERTED_STEP) for usd, factor in prices]
    yield Line("usd_per_mtok_output", "Cost of output", "usd", tuple(per_token), f"{sign} / M tok")
    yield of("gpus", "GPUs placed", "count", "", lambda r: sum(len(p["gpu_indexes"]) for p in r["placements"]))
    yield of("purchased", "Nodes bought", "count", "", lambda r: len(r.get("purchased_nodes", ())))
    yield of("free_gpus", "GPUs free", "count", "", lambda r: r["stranded_after"]["free_gpus"])
    yield of("stranded_gpus", "of them stranded", "number", "", lambda r: r["stranded_after"]["stranded_gpus"])
    yield of("unplaced", "Replicas unplaced", "count", "", lambda r: sum(u["replicas"] for u in r["unplaced"]))
    yield of("moves", "Moves from what runs", "count", "", lambda r: r.get("moves", 0))
    rooms = [[cell.headroom for cell in side.values() if cell.headroom is not None] for side in sides]
    yield Line("headroom", "Least headroom", "share", tuple(min(room, default=None) for room in rooms))
    yield of("runway_months", "First pool full", "months", "months", lambda r: first_full(r)[0])
    yield of("too_close", "Verdicts too close", "count", "", lambda r: sum(v["too_close"] for v in r["verdicts"]))
    yield of("status", "Search", "text", "", lambda r: r["status"])
    yield of("gap", "Gap to the bound", "share", "", lambda r: round(r["gap"], 5))


def _times(amount: Any, factor: Decimal) -> Decimal:
    """An amount in the currency of the comparison; untouched where it is in that already."""
    usd = Decimal(str(amount))
    return usd if factor == 1 else (usd * factor).quantize(CONVERTED_STEP)


def _served(request: Json, result: Json, factor: Decimal) -> dict[str, Served]:
    by_id = {item["id"]: item for item in result.get("candidates", ())}
    verdicts = {item["workload"]: item for item in result.get("verdicts", ())}
    unplaced = {item["workload"]: item["replicas"] for item in result.get("unplaced", ())}
    mixes = placed_mixes(result)
    bills = {row["workload"]: row for row in result.get("bills", ())}
    nodes = {node["name"]: node for node in (*request.get("nodes", ()), *result.get("purchased_nodes", ()))}
    found = {}
    for workload in request.get("workloads", ()):
        name = workload["name"]
        own = [item for item in result.get("placements", ()) if item["workload"] == name]
        replicas: dict[str, set[int]] = {}
        for item in own:
            replicas.setdefault(item["candidate_id"], set()).add(item["replica"])
        verdict = verdicts.get(name, {})
        counts = Counter({key: len(numbers) for key, numbers in replicas.items()})
        key = counts.most_common(1)[0][0] if counts else verdict.get("chosen") or ""
        chosen = by_id.get(key, {})
        settings = chosen.get("settings") or {}
        whole = mixes.get(name) or {**chosen, **(chosen.get("cost") or {})}
        performance = whole.get("performance") or {}
        share = sum(count * by_id.get(i, {}).get("replica_share", 0.0) for i, count in counts.items())
        per_token, band = priced(whole, bills.get(name) if counts else None)
        engines = dict.fromkeys((by_id.get(i, {}).get("settings") or {}).get("engine", "") for i in counts or [key])
        found[name] = Served(
            candidate=key,
            engines=tuple(engine for engine in engines if engine),
            gpu=chosen.get("gpu", ""),
            parallelism=_shape(chosen),
            precision=settings.get("precision", ""),
            replicas=counts.total(),
            gpus=sum(len(item["gpu_indexes"]) for item in own),
            nodes=tuple(sorted({item["node"] for item in own})),
            usd_per_hour=_times(sum((_gpu_usd(item, nodes) for item in own), Decimal(0)), factor),
            usd_per_mtok_output=None if per_token is None else _times(per_token, factor),
            usd_per_mtok_output_80=(_times(band[0], factor), _times(band[1], factor)) if band else None,
            ttft_ms=performance.get("ttft_ms_80"),
            tpot_ms=performance.get("tpot_ms_80"),
            headroom=share - 1 if counts else None,
            evidence=performance.get("evidence") or chosen.get("evidence", ""),
            too_close=bool(verdict.get("too_close")),
            unplaced=unplaced.get(name, 0),
            sentence=verdict.get("sentence", ""),
        )
    return found


def priced(sized: Json, billed: Json | None) -> tuple[Decimal | None, tuple[Decimal, Decimal] | None]:
    """Money per million output tokens and its 80 % band: by the plan's bill where ``billed``, with the band of
    ``sized`` as a share; else as sized.
    """
    if sized.get("usd_per_mtok_output") is None:
        return None, None
    own = Decimal(str(sized["usd_per_mtok_output"]))
    value = own if billed is None or billed["usd_per_mtok_output"] is None else Decimal(billed["usd_per_mtok_output"])
    band, moved = sized.get("usd_per_mtok_output_80"), value / own if own else Decimal(1)
    return value, (Decimal(str(band[0])) * moved, Decimal(str(band[1])) * moved) if band else None


def _gpu_usd(item: Json, nodes: Json) -> Decimal:
    """What the GPUs of a placement cost an hour; of a shared or sliced one the part in use."""
    node = nodes.get(item["node"])
    if node is None:
        return Decimal(0)
    worth = gpus_worth(from_json(Placement, item), node["gpu"])
    return Decimal(str(node["price"]["usd_per_gpu_hour"])) * worth.numerator / worth.denominator


def _parallelism(settings: Json) -> str:
    sizes = [(key.upper(), settings.get(key, 1)) for key in ("tp", "pp", "ep", "dp")]
    return " ".join(f"{key} {size}" for key, size in sizes if key == "TP" or size > 1) if settings else ""


def _shape(chosen: Json) -> str:
    """Parallelism of a candidate, of one with pools for each: "prefill 2 × TP 2, decode 1 × TP 4"."""
    pools = chosen.get("disagg")
    if not pools:
        return _parallelism(chosen.get("settings") or {})
    named = ((name, pools[name]) for name in ("prefill", "decode"))
    return ", ".join(f"{name} {pool['instances']} × {_parallelism(pool['settings'])}" for name, pool in named)


def _differences(plans: Sequence[Plan]) -> Iterator[Difference]:
    sections = [dict(_sections(_completed(plan.request or {}), plan.result or {})) for plan in plans]
    for section in sections[0]:
        items = list(dict.fromkeys(item for side in sections for item in side[section]))
        for item in items:
            sides = [side[section].get(item) for side in sections]
            if any(side is None for side in sides):
                yield Difference(section, item, "", tuple(ABSENT if side is None else "there" for side in sides))
                continue
            flat = [dict(_flat(side or {})) for side in sides]
            for field in dict.fromkeys(key for side in flat for key in side):
                values = [side.get(field, ABSENT) for side in flat]
                if len({str(value) for value in values}) > 1:
                    yield Difference(section, item, field, tuple(map(_short, values)))


def _completed(request: Json) -> Json:
    """With the defaults of fields that an older planner did not know; as it is when it can no longer be read."""
    try:
        completed: Json = to_json(from_json(PlanRequest, request))
    except InputError:
        return request
    return completed


def _sections(request: Json, result: Json) -> Iterator[tuple[str, dict[str, Any]]]:
    """Section and its items by name; every plan has the same sections."""
    lists = {"nodes": "Nodes asked", "workloads": "Workloads asked"}
    yield "Asked", {"plan": {k: v for k, v in request.items() if k not in lists and k not in _UNSHOWN}}
    for key, section in lists.items():
        yield section, {item["name"]: item for item in request.get(key, ())}
    chosen = {c["id"]: c for c in result.get("candidates", ())}
    settings: dict[str, Any] = {}
    placed: dict[str, dict[str, str]] = {}
    for verdict in result.get("verdicts", ()):
        candidate = chosen.get(verdict.get("chosen") or "", {})
        kept = {key: candidate.get(key) for key in ("gpu", "replicas", "gpus_per_replica", "settings")}
        settings[verdict["workload"]] = {**kept, "verdict": verdict["sentence"]}
    yield "Engines started", settings
    for item in result.get("placements", ()):
        where = placed.setdefault(item["workload"], {})
        gpus = ", ".join(map(str, item["gpu_indexes"]))
        key = f"replica {item['replica'] + 1}"
        where[key] = "; ".join(filter(None, (where.get(key), f"{item['node']}: {gpus}")))
    yield "Placement", placed


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with their dotted path; long lists stay whole."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _UNSHOWN:
                yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and 0 < len(value) <= LONG_LIST and isinstance(value[0], (Mapping, list)):
        for at, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{at}]")
    else:
        yield path, value


def _short(value: Any) -> str:
    if isinstance(value, list):
        if len(value) > LONG_LIST and all(isinstance(item, (int, float)) for item in value):
            return f"{len(value):,} values, mean {sum(value) / len(value):.4g}"
        return ", ".join(map(str, value)) or "none"
    if value is None or value == "":
        return "not set"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

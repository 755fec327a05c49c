"""The bill of a plan: what is placed for each workload, and what a month of it costs.

Every amount is rounded to the cent such that parts add up to their row, and rows to the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from planner.economics.classes import factor_of
from planner.economics.cost import TOKEN_PRICE_STEP
from planner.economics.money import CENT, money, round_parts, split_exactly
from planner.economics.types import ELECTRICITY, GPU_BILL, HEAD_ROOM, PEOPLE
from planner.mix_types import Mix
from planner.placement.devices import gpus_worth, usd_per_hour
from planner.placement.siteenergy import electricity_at
from planner.plan_types import (
    Candidate,
    Placement,
    PlanNode,
    PlanRequest,
    PlanResult,
    PlanWorkload,
    Unplaced,
    WorkloadBill,
)
from planner.serving.types import Performance
from planner.units import HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class BillRow:
    """What one candidate serves of one workload. ``parts`` add up to ``usd_per_month``; $ per million divide all of it.

    ``candidate`` None: nothing is placed, ``remark`` says why. ``carried`` is the share of the planned load, 0..1.
    """

    workload: PlanWorkload
    candidate: Candidate | None = None
    replicas: int = 0
    gpus: Decimal = Decimal(0)  # a part of one where it is shared or a slice
    nodes: tuple[str, ...] = ()
    carried: float = 0.0
    parts: tuple[tuple[str, Decimal], ...] = ()
    mtok_input: Decimal = Decimal(0)
    mtok_output: Decimal = Decimal(0)
    remark: str = ""
    scale: Decimal = Decimal(1)  # replicas placed / replicas of the candidate
    performance: Performance | None = None  # of a part of a mix, at its share; None: the candidate's own

    @property
    def idle_usd_per_month(self) -> Decimal:
        """What of the bill stands idle as head-room."""
        return sum((usd for label, usd in self.parts if label == HEAD_ROOM), Decimal(0).quantize(CENT))

    @property
    def usd_per_month(self) -> Decimal:
        """The row's bill."""
        return sum((usd for _, usd in self.parts), Decimal(0).quantize(CENT))

    def usd_per_mtok(self, mtok: Decimal) -> Decimal | None:
        """The whole bill over ``mtok`` million tokens; None where none is served."""
        return (self.usd_per_month / mtok).quantize(TOKEN_PRICE_STEP) if mtok > 0 else None


@dataclass(frozen=True, slots=True)
class Bill:
    """All rows, and the owned GPUs that the plan leaves idle (per month of 730 hours); all in ``currency``."""

    rows: tuple[BillRow, ...]
    idle_usd_per_month: Decimal
    currency: str = "USD"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the cost parts, in order of first appearance."""
        return tuple(dict.fromkeys(label for row in self.rows for label, _ in row.parts))

    @property
    def usd_per_month(self) -> Decimal:
        """Of all workloads."""
        return sum((row.usd_per_month for row in self.rows), Decimal(0).quantize(CENT))

    @property
    def by_tenant(self) -> dict[str, tuple[BillRow, ...]]:
        """Rows of each tenant, by name; "" for what belongs to nobody in particular."""
        names = sorted({row.workload.tenant for row in self.rows})
        return {name: tuple(row for row in self.rows if row.workload.tenant == name) for name in names}


def prices(rows: Sequence[BillRow]) -> tuple[Decimal | None, Decimal | None, Decimal | None]:
    """Money per million input, output and all tokens of several rows together.

    For each kind the whole bills of the rows that have such tokens, over those tokens; None where none has any. A
    workload without output (embeddings) is thus no part of the price of output.
    """
    kinds = ([row.mtok_input, row.mtok_output, row.mtok_input + row.mtok_output] for row in rows)
    found = []
    for amounts in zip(*kinds, strict=True):
        usd = sum((row.usd_per_month for row, mtok in zip(rows, amounts, strict=True) if mtok > 0), Decimal(0))
        mtok = sum(amounts, Decimal(0))
        found.append((usd / mtok).quantize(TOKEN_PRICE_STEP) if mtok > 0 else None)
    first, second, third = found or (None, None, None)
    return first, second, third


def by_workload(found: Bill) -> tuple[WorkloadBill, ...]:
    """The bill of each workload, in the order of its rows."""
    grouped: dict[str, list[BillRow]] = {}
    for row in found.rows:
        grouped.setdefault(row.workload.name, []).append(row)
    return tuple(
        WorkloadBill(name, sum((row.usd_per_month for row in rows), Decimal("0.00")), *prices(rows), added_up(rows))
        for name, rows in grouped.items()
    )


def added_up(rows: Iterable[BillRow]) -> tuple[tuple[str, Decimal], ...]:
    """Parts of several rows, summed by label, in order of first appearance."""
    totals: dict[str, Decimal] = {}
    for row in rows:
        for name, amount in row.parts:
            totals[name] = totals.get(name, Decimal(0)) + amount
    return tuple(totals.items())


def billed(request: PlanRequest, result: PlanResult) -> PlanResult:
    """``result`` with its bill: of the plan, of its output, and of each workload."""
    found = bill(request, result)
    return replace(
        result,
        usd_per_month=found.usd_per_month,
        usd_per_mtok_output=prices(found.rows)[1],
        bills=by_workload(found),
    )


def placed_mixes(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By workload the mix that a plan (JSON of PlanResult) places: its figures are those of the whole workload."""
    return {mix["workload"]: mix for mix in result.get("mixes") or () if mix["placed"]}


def bill(request: PlanRequest, result: PlanResult) -> Bill:
    """The bill of ``result``."""
    rows = bill_rows(
        request, result.candidates, result.placements, result.purchased_nodes, result.unplaced, result.mixes
    )
    return Bill(rows, money(result.idle_usd_per_hour * HOURS_PER_MONTH), request.currency)


def bill_rows(
    request: PlanRequest,
    candidates: Iterable[Candidate],
    placements: Sequence[Placement],
    bought: Iterable[PlanNode],
    unplaced: Iterable[Unplaced] = (),
    mixes: Sequence[Mix] = (),
) -> tuple[BillRow, ...]:
    """One row for each workload and candidate placed, in the order of the request. ``placements`` are on its nodes or
    on those ``bought``; ``mixes`` say what share each part carries.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    nodes = {node.name: node for node in (*request.nodes, *bought)}
    missing = {entry.workload: f"{entry.replicas} replicas without a place: {entry.reason}" for entry in unplaced}
    rows: list[BillRow] = []
    for workload in request.workloads:
        placed: dict[str, list[Placement]] = {}
        for placement in placements:
            if placement.workload == workload.name:
                placed.setdefault(placement.candidate_id, []).append(placement)
        remark = missing.get(workload.name, "")
        if not placed:
            rows.append(BillRow(workload, remark=remark or "Nothing is placed."))
            continue
        shares = _shares({key: _replicas(parts) for key, parts in placed.items()}, by_id)
        mix = next((mix for mix in mixes if mix.placed and mix.workload == workload.name), None)
        if mix is not None:
            shares |= {part.candidate_id: part.share * mix.carried for part in mix.parts}
        seen = {part.candidate_id: part.performance for part in mix.parts} if mix is not None else {}
        rows += [
            replace(
                _row(workload, by_id[key], placed[key], nodes, shares[key], remark, request), performance=seen.get(key)
            )
            for key in placed
        ]
    return tuple(_engines_once(rows, request))


def _engines_once(rows: Sequence[BillRow], request: PlanRequest) -> list[BillRow]:
    """People that an engine takes are paid once for the plan: its workloads share them, to the cent."""
    costs = request.operations
    usd = costs.people_hours_per_engine_month * costs.people_usd_per_hour
    if not usd:
        return list(rows)
    sharing: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        if row.candidate is not None and row.candidate.settings is not None:
            sharing.setdefault(row.candidate.settings.engine.value, []).append(at)
    found = list(rows)
    for members in sharing.values():
        shares = split_exactly(usd, [Decimal(1)] * len(members))
        for at, share in zip(members, shares, strict=True):
            row = found[at]
            alone = money(usd * row.scale)
            parts = tuple((name, amount - alone + share if name == PEOPLE else amount) for name, amount in row.parts)
            found[at] = replace(row, parts=parts)
    return found


def _replicas(parts: Iterable[Placement]) -> int:
    return len({part.replica for part in parts})


def _shares(replicas: dict[str, int], by_id: dict[str, Candidate]) -> dict[str, float]:
    """Share of the demand that each candidate carries: by what its replicas could carry, at most all of it."""
    able = {}
    for key, count in replicas.items():
        candidate = by_id[key]
        able[key] = count * (candidate.replica_share or 1 / max(candidate.replicas, 1))
    return {key: share / max(sum(able.values()), 1.0) for key, share in able.items()}


def _row(
    workload: PlanWorkload,
    candidate: Candidate,
    placed: Sequence[Placement],
    nodes: dict[str, PlanNode],
    carried: float,
    remark: str,
    request: PlanRequest,
) -> BillRow:
    replicas, cost = _replicas(placed), candidate.cost
    worth = sum((gpus_worth(part, nodes[part.node].gpu) for part in placed), Fraction(0))
    gpus = round(Decimal(worth.numerator) / worth.denominator, 3).normalize()
    hours = Decimal(str(workload.hours_per_month))
    classes, name = request.price_classes, workload.price_class
    gpu_usd = hours * sum(
        (usd_per_hour(part, nodes[part.node]) * factor_of(classes, name, nodes[part.node].pool) for part in placed),
        Decimal(0),
    )
    known = cost.parts if cost is not None else ()
    on_gpus = [(label, usd) for label, usd in known if label.startswith(GPU_BILL)]
    if not sum(usd for _, usd in on_gpus):
        on_gpus = [(GPU_BILL, Decimal(1))]
    divided = split_exactly(gpu_usd, [usd for _, usd in on_gpus])
    whole_bill = replicas == candidate.replicas and abs(sum((usd for _, usd in on_gpus), -gpu_usd)) <= CENT
    if whole_bill:
        divided = tuple(usd for _, usd in on_gpus)  # to the cent what the plan's page says
    scale = Decimal(replicas) / Decimal(max(candidate.replicas, 1))
    others = [(label, usd * scale) for label, usd in known if not label.startswith(GPU_BILL) and label != ELECTRICITY]
    electricity = _electricity(workload, candidate, placed, nodes, request)
    if electricity is not None:
        others.append((ELECTRICITY, electricity * hours))
    tokens = (cost.mtok_input_per_month, cost.mtok_output_per_month) if cost is not None else (Decimal(0), Decimal(0))
    share = Decimal(str(carried))
    return BillRow(
        workload=workload,
        candidate=candidate,
        replicas=replicas,
        gpus=gpus,
        nodes=tuple(sorted({part.node for part in placed})),
        carried=carried,
        parts=(*zip((label for label, _ in on_gpus), divided, strict=True), *round_parts(others)),
        mtok_input=(tokens[0] * share).quantize(Decimal("0.000001")),
        mtok_output=(tokens[1] * share).quantize(Decimal("0.000001")),
        remark=remark,
        scale=scale,
    )


def _electricity(
    workload: PlanWorkload,
    candidate: Candidate,
    placed: Sequence[Placement],
    nodes: dict[str, PlanNode],
    request: PlanRequest,
) -> Decimal | None:
    """An hour of it, at the site of each replica; None where power is unknown or GPU prices hold it."""
    found = [
        electricity_at(
            request, workload, candidate.gpu, candidate.watts_per_gpu, len(part.gpu_indexes), nodes[part.node].site
        )
        for part in placed
        if not nodes[part.node].price.holds_electricity
    ]
    known = [usd for usd in found if usd is not None]
    return sum(known, Decimal(0)) if known else None

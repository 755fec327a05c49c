"""The bill of a plan as a table for people who pay it: what is placed for each workload, and what a month of it costs.

Every amount is rounded to the cent such that rows and columns add up: parts to the row, rows to the total.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from planner.economics.money import CENT, money, round_parts, split_exactly
from planner.evidence import Interval
from planner.placement.devices import gpus_worth, usd_per_hour
from planner.plan_types import Candidate, Placement, PlanNode, PlanRequest, PlanResult, PlanWorkload
from planner.units import HOURS_PER_MONTH

GPU_PARTS = "GPUs"  # labels of a cost breakdown that begin so are the GPU bill: carried load, idle head-room
ENGINE_LABELS = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM"}
IDLE = "Owned GPUs left idle"
COLUMNS = (
    "Workload", "Model", "Engine", "Engine version", "GPU", "GPUs", "Replicas", "Nodes", "Planned load",
    "Share of load carried", "TTFT p50 ms", "TTFT low ms", "TTFT high ms", "TPOT p50 ms", "TPOT low ms",
    "TPOT high ms", "M input tokens per month", "M output tokens per month", "$ per M input tokens",
    "$ per M output tokens", "$ per M tokens",
)  # fmt: skip
LAST = ("$ per month", "Evidence", "Remarks")
Cell = str | int | float | Decimal | None


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

    @property
    def usd_per_month(self) -> Decimal:
        """The row's bill."""
        return sum((usd for _, usd in self.parts), Decimal(0).quantize(CENT))

    def usd_per_mtok(self, mtok: Decimal) -> Decimal | None:
        """The whole bill over ``mtok`` million tokens; None where none is served."""
        return (self.usd_per_month / mtok).quantize(Decimal("0.000001")) if mtok > 0 else None


@dataclass(frozen=True, slots=True)
class Bill:
    """All rows, and the owned GPUs that the plan leaves idle (USD per month of 730 hours)."""

    rows: tuple[BillRow, ...]
    idle_usd_per_month: Decimal

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the cost parts, in order of first appearance."""
        return tuple(dict.fromkeys(label for row in self.rows for label, _ in row.parts))

    @property
    def usd_per_month(self) -> Decimal:
        """Of all workloads."""
        return sum((row.usd_per_month for row in self.rows), Decimal(0).quantize(CENT))


def bill(request: PlanRequest, result: PlanResult) -> Bill:
    """The bill of ``result``: one row for each workload and candidate placed, in the order of the request."""
    by_id = {candidate.id: candidate for candidate in result.candidates}
    nodes = {node.name: node for node in (*request.nodes, *result.purchased_nodes)}
    missing = {
        entry.workload: f"{entry.replicas} replicas without a place: {entry.reason}" for entry in result.unplaced
    }
    rows: list[BillRow] = []
    for workload in request.workloads:
        placed: dict[str, list[Placement]] = {}
        for placement in result.placements:
            if placement.workload == workload.name:
                placed.setdefault(placement.candidate_id, []).append(placement)
        remark = missing.get(workload.name, "")
        if not placed:
            rows.append(BillRow(workload, remark=remark or "Nothing is placed."))
            continue
        shares = _shares({key: _replicas(parts) for key, parts in placed.items()}, by_id)
        rows += [_row(workload, by_id[key], placed[key], nodes, shares[key], remark) for key in placed]
    return Bill(tuple(rows), money(result.idle_usd_per_hour * HOURS_PER_MONTH))


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
) -> BillRow:
    replicas, cost = _replicas(placed), candidate.cost
    worth = sum((gpus_worth(part, nodes[part.node].gpu) for part in placed), Fraction(0))
    gpus = round(Decimal(worth.numerator) / worth.denominator, 3).normalize()
    hours = Decimal(str(workload.hours_per_month))
    gpu_usd = hours * sum((usd_per_hour(part, nodes[part.node]) for part in placed), Decimal(0))
    known = cost.parts if cost is not None else ()
    on_gpus = [(label, usd) for label, usd in known if label.startswith(GPU_PARTS)]
    if not sum(usd for _, usd in on_gpus):
        on_gpus = [(GPU_PARTS, Decimal(1))]
    divided = split_exactly(gpu_usd, [usd for _, usd in on_gpus])
    whole_bill = replicas == candidate.replicas and abs(sum((usd for _, usd in on_gpus), -gpu_usd)) <= CENT
    if whole_bill:
        divided = tuple(usd for _, usd in on_gpus)  # to the cent what the plan's page says
    scale = Decimal(replicas) / Decimal(max(candidate.replicas, 1))
    others = [(label, usd * scale) for label, usd in known if not label.startswith(GPU_PARTS)]
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
    )


def table(found: Bill) -> list[list[Cell]]:
    """Header, one line a row, the total, the idle GPUs and what both come to."""
    labels = found.labels
    lines: list[list[Cell]] = [[*COLUMNS, *(f"{label}, $ per month" for label in labels), *LAST]]
    lines += [_line(row, labels) for row in found.rows]
    blank: list[Cell] = [None] * (len(COLUMNS) + len(labels) + len(LAST))
    sums: Counter[str] = Counter()
    for row in found.rows:
        sums.update(dict(row.parts))
    total = list(blank)
    total[0] = "All workloads"
    total[COLUMNS.index("GPUs")] = sum(row.gpus for row in found.rows)
    total[COLUMNS.index("Replicas")] = sum(row.replicas for row in found.rows)
    total[len(COLUMNS) : len(COLUMNS) + len(labels)] = [Decimal(sums[label]) for label in labels]
    at = len(COLUMNS) + len(labels)
    total[at] = found.usd_per_month
    idle, both = list(blank), list(blank)
    idle[0], idle[at] = IDLE, found.idle_usd_per_month
    both[0], both[at] = "Total", found.usd_per_month + found.idle_usd_per_month
    return [*lines, total, idle, both]


def _line(row: BillRow, labels: Sequence[str]) -> list[Cell]:
    chosen, parts = row.candidate, dict(row.parts)
    settings = chosen.settings if chosen is not None else None
    performance = chosen.performance if chosen is not None else None
    return [
        row.workload.name,
        row.workload.model,
        ENGINE_LABELS.get(settings.engine.value, settings.engine.value) if settings is not None else None,
        settings.version if settings is not None else None,
        chosen.gpu if chosen is not None else None,
        row.gpus,
        row.replicas,
        " ".join(row.nodes),
        _load(row.workload),
        round(row.carried, 4),
        *_band(performance.ttft_ms_80 if performance is not None else None),
        *_band(performance.tpot_ms_80 if performance is not None else None),
        row.mtok_input,
        row.mtok_output,
        row.usd_per_mtok(row.mtok_input),
        row.usd_per_mtok(row.mtok_output),
        row.usd_per_mtok(row.mtok_input + row.mtok_output),
        *(parts.get(label) for label in labels),
        row.usd_per_month,
        chosen.evidence.value if chosen is not None else None,
        row.remark,
    ]


def _band(found: Interval | None) -> tuple[float | None, float | None, float | None]:
    return (round(found.value, 2), round(found.low, 2), round(found.high, 2)) if found is not None else (None,) * 3


def _load(workload: PlanWorkload) -> str:
    load = workload.load
    if load.kind == "open":
        return f"{load.rate_per_s:g} requests/s"
    return f"{load.concurrency} at once" if load.kind == "closed" else f"{load.requests or 0} requests offline"


def facts(name: str, request: PlanRequest, result: PlanResult) -> list[list[Cell]]:
    """What the bill rests on: the plan, GPU prices with their source, and notes."""
    lines: list[list[Cell]] = [
        ["Plan", name],
        ["Planner", result.model_version],
        ["Status", result.status],
        ["TTFT, TPOT", "predicted medians at the planned load, with their 80 % interval"],
        ["$ per M tokens", "the whole bill of the row over that kind of tokens; the three must not be added"],
        ["Currency", "USD"],
    ]
    priced = {(n.gpu, n.price.usd_per_gpu_hour, n.price.basis, n.price.source) for n in request.nodes}
    lines += [[f"Price of {gpu}, $ per GPU-hour", usd, basis, source] for gpu, usd, basis, source in sorted(priced)]
    return lines + [["Note", note] for note in result.notes]


def as_csv(name: str, request: PlanRequest, result: PlanResult) -> bytes:
    """The bill as CSV (UTF-8 with a mark, so that spreadsheets read it right)."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_inert(cell) for cell in line] for line in table(bill(request, result)))
    return text.getvalue().encode("utf-8-sig")


def as_xlsx(name: str, request: PlanRequest, result: PlanResult) -> bytes:
    """The bill and what it rests on, as a workbook of two sheets."""
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font
    from openpyxl.utils import get_column_letter

    book = Workbook()
    sheets = (("Bill", table(bill(request, result))), ("Basis", facts(name, request, result)))
    for sheet, (title, lines) in zip((book.active, book.create_sheet()), sheets, strict=True):
        sheet.title = title
        for line in lines:
            sheet.append([_inert(cell) for cell in line])
        for at in range(1, sheet.max_column + 1):
            widest = max(len(str(cell.value or "")) for cell in sheet[get_column_letter(at)][1:] or ())
            sheet.column_dimensions[get_column_letter(at)].width = min(48, max(12, widest + 2))
    first = book["Bill"]
    first.freeze_panes = "B2"
    money_from = len(COLUMNS)
    for cell in first[1]:
        cell.font, cell.alignment = Font(bold=True), Alignment(wrap_text=True, vertical="top")
    for row in first.iter_rows(min_row=2):
        for cell in row[money_from : first.max_column - len(LAST) + 1]:
            cell.number_format = "#,##0.00"
    for row in first.iter_rows(min_row=first.max_row - 2):
        for cell in row:
            cell.font = Font(bold=True)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _inert(cell: Cell) -> Cell:
    """Text that a spreadsheet would take for a formula, made plain text."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell

"""The bill of a plan as files for people who pay it: CSV, and a workbook with what the bill rests on."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from controlplane.core.tables import inert
from planner.catalog.models import model_name
from planner.economics.tariff import mean_usd_per_kwh
from planner.evidence import Interval
from planner.plan_types import PlanRequest, PlanResult, PlanWorkload
from planner.recommend.bill import Bill, BillRow, bill
from planner.words import ENGINE_LABEL

IDLE = "Owned GPUs left idle"
COLUMNS = (
    "Workload", "Tenant", "Model", "Engine", "Engine version", "GPU", "GPUs", "Replicas", "Nodes", "Planned load",
    "Share of load carried", "TTFT p50 ms", "TTFT low ms", "TTFT high ms", "TPOT p50 ms", "TPOT low ms",
    "TPOT high ms", "M input tokens per month", "M output tokens per month", "$ per M input tokens",
    "$ per M output tokens", "$ per M tokens",
)  # fmt: skip
LAST = ("$ per month", "Evidence", "Remarks")
Cell = str | int | float | Decimal | None


def table(found: Bill) -> list[list[Cell]]:
    """Header, one line a row, the total, the idle GPUs and what both come to."""
    labels = found.labels
    sign = unit(found.currency)
    names = (*COLUMNS, *(f"{label}, $ per month" for label in labels), *LAST)
    lines: list[list[Cell]] = [[name.replace("$", sign) for name in names]]
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


def unit(currency: str) -> str:
    """How a heading names the currency."""
    return "$" if currency == "USD" else currency


def _line(row: BillRow, labels: Sequence[str]) -> list[Cell]:
    chosen, parts = row.candidate, dict(row.parts)
    settings = chosen.settings if chosen is not None else None
    performance = row.performance or (chosen.performance if chosen is not None else None)
    return [
        row.workload.name,
        row.workload.tenant or None,
        model_name(row.workload.model),
        ENGINE_LABEL.get(settings.engine.value, settings.engine.value) if settings is not None else None,
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
    """What the bill rests on: the plan, GPU prices with their source, each verdict with its reason, and notes."""
    sign = unit(request.currency)
    lines: list[list[Cell]] = [
        ["Plan", name],
        ["Planner", result.model_version],
        ["Status", result.status],
        ["TTFT, TPOT", "predicted medians at the planned load, with their 80 % interval"],
        [f"{sign} per M tokens", "the whole bill of the row over that kind of tokens; the three must not be added"],
        ["Currency", request.currency],
        ["Exchange rates as of", request.rates_as_of or "none needed"],
    ]
    lines += [[f"1 {rate.currency}", rate.usd_per_unit, f"USD, of {rate.date}", rate.source] for rate in request.rates]
    lines += [
        [f"Electricity at {entry.site}, {sign} per kWh", mean_usd_per_kwh(entry.energy), f"PUE {entry.energy.pue}"]
        for entry in request.site_energy
    ]
    priced = {(n.gpu, n.price.usd_per_gpu_hour, n.price.basis, n.price.source) for n in request.nodes}
    lines += [
        [f"Price of {gpu}, {sign} per GPU-hour", usd, basis, source] for gpu, usd, basis, source in sorted(priced)
    ]
    lines += [["Verdict", verdict.workload, verdict.sentence] for verdict in result.verdicts]
    return lines + [["Note", note] for note in result.notes]


def price_table(request: PlanRequest) -> list[list[Cell]]:
    """Each part of each GPU price with the formula that gave it and its source."""
    lines: list[list[Cell]] = [
        ["Pool", "GPU", "Site", "Basis", "Part", f"{unit(request.currency)} per GPU-hour", "Stated in", "How", "Source"]
    ]
    for sheet in request.price_sheets:
        head: list[Cell] = [sheet.pool, sheet.gpu, sheet.site, sheet.basis]
        lines += [
            [*head, term.label, term.usd_per_gpu_hour, sheet.quoted_in, term.formula, term.source]
            for term in sheet.terms
        ]
        lines.append([*head, "Total", sheet.usd_per_gpu_hour, sheet.quoted_in, None, sheet.source])
    return lines


def month_table(request: PlanRequest, result: PlanResult) -> list[list[Cell]]:
    """The months ahead: GPUs needed and added, and what they cost."""
    sign = unit(request.currency)
    lines: list[list[Cell]] = [
        ["Month", "GPUs needed", "GPUs at hand", "GPUs added", f"GPUs, {sign}", f"Electricity, {sign}"]
    ]
    lines += [
        [
            view.month,
            sum(view.gpus_needed.values()),
            sum(view.gpus_at_hand.values()),
            sum(view.gpus_added.values()),
            view.usd_per_month,
            view.electricity_usd_per_month,
        ]
        for view in result.months
    ]
    return lines


def as_csv(name: str, request: PlanRequest, result: PlanResult) -> bytes:
    """The bill as CSV (UTF-8 with a mark, so that spreadsheets read it right)."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([inert(cell) for cell in line] for line in table(bill(request, result)))
    return text.getvalue().encode("utf-8-sig")


def as_xlsx(name: str, request: PlanRequest, result: PlanResult) -> bytes:
    """The bill, what it rests on, how the prices come about and the months ahead, as a workbook."""
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font
    from openpyxl.utils import get_column_letter

    book = Workbook()
    book.remove(book.active)
    sheets = [("Bill", table(bill(request, result))), ("Basis", facts(name, request, result))]
    if request.price_sheets:
        sheets.append(("Prices", price_table(request)))
    if result.months:
        sheets.append(("Months", month_table(request, result)))
    for at, (title, lines) in enumerate(sheets):
        sheet = book.create_sheet(title, at)
        for line in lines:
            sheet.append([inert(cell) for cell in line])
        for column in range(1, sheet.max_column + 1):
            widest = max(len(str(cell.value or "")) for cell in sheet[get_column_letter(column)][1:] or ())
            sheet.column_dimensions[get_column_letter(column)].width = min(48, max(12, widest + 2))
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

"""What a plan costs and why: its snapshot in, what the cost page shows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from controlplane.dashboard import figures_cost
from controlplane.dashboard.chart import Chart
from planner.economics.cost import MTOK, break_even_with_cloud
from planner.economics.currency import Converter
from planner.economics.types import PriceSheet, PriceTerm
from planner.errors import PlannerError
from planner.fleet_money import catalogue_price
from planner.plan_types import CloudPrice, PlanNode, PlanRequest, PlanResult
from planner.recommend.bill import Bill, BillRow, bill, prices

MONTHS_A_YEAR = 12


@dataclass(frozen=True, slots=True)
class Sum:
    """A line of the bill table that adds rows up. ``usd_per_mtok`` input, output, total."""

    name: str
    rows: tuple[BillRow, ...]

    @property
    def usd_per_month(self) -> Decimal:
        """The bill."""
        return sum((row.usd_per_month for row in self.rows), Decimal("0.00"))

    @property
    def idle_usd_per_month(self) -> Decimal:
        """Idle head-room in it."""
        return sum((row.idle_usd_per_month for row in self.rows), Decimal("0.00"))

    @property
    def usd_per_mtok(self) -> tuple[Decimal | None, Decimal | None, Decimal | None]:
        """As ``prices``: per million input, output and all tokens."""
        return prices(self.rows)


@dataclass(frozen=True, slots=True)
class Year:
    """One year ahead: GPUs at its end, those added in it, and what they cost with their electricity."""

    number: int
    months: int
    gpus: int
    added: int
    usd: Decimal


def context(request: PlanRequest, result: PlanResult) -> dict[str, Any]:
    """Everything that the page shows."""
    found = bill(request, result)
    sheets = price_sheets(request)
    tenants = [Sum(name or "shared", rows) for name, rows in found.by_tenant.items()]
    return {
        "bill": found,
        "labels": found.labels,
        "lines": [Sum(row.workload.name, (row,)) for row in found.rows],
        "tenants": tenants,
        "total": Sum("All workloads", found.rows),
        "everything": found.usd_per_month + found.idle_usd_per_month,
        "currency": request.currency,
        "asked": request,
        "sheets": [
            (sheet, figures_cost.price_waterfall(sheet, f"price-{at}", request.currency))
            for at, sheet in enumerate(sheets)
            if len(sheet.terms) > 1
        ],
        "single_sheets": [sheet for sheet in sheets if len(sheet.terms) == 1],
        "node_chart": figures_cost.node_stack(sheets, request.currency) if sheets else None,
        "tenant_chart": _tenant_chart(tenants, request.currency) if len(tenants) > 1 else None,
        "break_even": [*_against_api(request, found), *_against_cloud(request, sheets)],
        "years": years(result),
    }


def price_sheets(request: PlanRequest) -> tuple[PriceSheet, ...]:
    """The arithmetic of the prices. Where a snapshot holds none, or a what-if moved a price, the parts alone."""
    first = {node.pool: node for node in reversed(request.nodes)}
    known = {sheet.pool: sheet for sheet in request.price_sheets}
    bought = [sheet for sheet in request.price_sheets if sheet.pool not in first]
    found = []
    for pool, node in sorted(first.items()):
        sheet = known.get(pool)
        stands = sheet is not None and sheet.usd_per_gpu_hour == node.price.usd_per_gpu_hour
        found.append(sheet if sheet is not None and stands else _as_stated(node, request.currency))
    return (*found, *bought)


def _as_stated(node: PlanNode, currency: str) -> PriceSheet:
    price = node.price
    parts = price.parts or ((price.basis, price.usd_per_gpu_hour),)
    terms = tuple(PriceTerm(label, usd, "as stated", price.source) for label, usd in parts)
    return PriceSheet(
        node.pool, node.gpu, node.site, price.basis, price.source, price.usd_per_gpu_hour, terms, currency,
        gpus_per_node=node.gpus,
    )  # fmt: skip


def years(result: PlanResult) -> list[Year]:
    """The months ahead by year; month 0, today, is the first of year 1. Empty without growth."""
    found = []
    for start in range(0, len(result.months) - 1, MONTHS_A_YEAR):
        months = result.months[start : min(start + MONTHS_A_YEAR, len(result.months) - 1)]
        usd = sum((m.usd_per_month + m.electricity_usd_per_month for m in months), Decimal("0.00"))
        added = sum(sum(month.gpus_added.values()) for month in months)
        number = start // MONTHS_A_YEAR + 1
        found.append(Year(number, len(months), sum(months[-1].gpus_needed.values()), added, usd))
    return found


def _tenant_chart(rows: Sequence[Sum], currency: str) -> Chart:
    table = [(row.name, row.usd_per_month - row.idle_usd_per_month, row.idle_usd_per_month) for row in rows]
    return figures_cost.tenants(table, currency)


def _against_api(request: PlanRequest, found: Bill) -> list[Chart]:
    """For each workload with an API price: the bill per million tokens against utilisation, and the API's price."""
    charts = []
    prices = {price.workload: price for price in request.api_prices}
    for at, row in enumerate(found.rows):
        price, chosen = prices.get(row.workload.name), row.candidate
        if price is None or chosen is None or not row.usd_per_month:
            continue
        tokens = row.mtok_input + row.mtok_output
        capacity = chosen.replica_rate_per_s * row.replicas
        per_request = row.workload.input_tokens.expected + (
            row.workload.output_tokens.expected if row.mtok_output else 0.0
        )
        full_tokens = Decimal(str(capacity * per_request * row.workload.hours_per_month * 3600)) / MTOK
        if not tokens or not full_tokens:
            continue
        api = (row.mtok_input * price.usd_per_mtok_input + row.mtok_output * price.usd_per_mtok_output) / tokens
        charts.append(
            figures_cost.break_even(
                f"api-{at}",
                f"{row.workload.name} against an API",
                float(row.usd_per_month / full_tokens),
                float(api),
                f"{request.currency} / M tok",
                ("Own replicas", f"API: {price.source}" if price.source else "API"),
                float(tokens / full_tokens),
            )
        )
    return charts


def _against_cloud(request: PlanRequest, sheets: Sequence[PriceSheet]) -> list[Chart]:
    """For each owned kind of GPU: a used GPU-hour against the cloud's, over utilisation."""
    charts, seen = [], set()
    for at, sheet in enumerate(sheets):
        if sheet.basis != "tco" or (sheet.gpu, sheet.usd_per_gpu_hour) in seen:
            continue
        seen.add((sheet.gpu, sheet.usd_per_gpu_hour))
        cloud = cloud_price(request, sheet.gpu)
        if cloud is None or break_even_with_cloud(sheet.usd_per_gpu_hour, cloud.usd_per_gpu_hour) is None:
            continue
        charts.append(
            figures_cost.break_even(
                f"cloud-{at}",
                f"{sheet.gpu} in {sheet.pool} against a cloud",
                float(sheet.usd_per_gpu_hour),
                float(cloud.usd_per_gpu_hour),
                f"{request.currency} / GPU-h used",
                ("Owned", "Cloud"),
            )
        )
    return charts


def cloud_price(request: PlanRequest, gpu: str) -> CloudPrice | None:
    """The scenario's own cloud price of ``gpu``, else the catalogue's; None where there is none."""
    own = next((price for price in request.cloud_prices if price.gpu == gpu), None)
    if own is not None:
        return own
    try:
        found = catalogue_price(gpu, "cloud_prices", Converter(request.currency, request.rates_as_of, request.rates))
    except PlannerError:
        return None
    return CloudPrice(gpu, found.usd_per_gpu_hour, found.source)

"""The fleet as the pages show it: every node with who holds its GPUs, totals, map, prices, what was discovered."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db.models import Count, QuerySet
from django.urls import reverse
from django.utils import timezone

from controlplane.dashboard import gpumap, planrow, planview, selectors
from controlplane.deployments.models import Deployment
from controlplane.inventory.models import Gpu, GpuModel, Node, Price
from controlplane.inventory.pricing import exchange_rates
from controlplane.planning.models import PlacementRow, Plan
from controlplane.workloads.models import Workload
from planner.economics.currency import Converter, ExchangeRate
from planner.errors import InputError

HELD = (Deployment.State.PENDING, *Deployment.LIVE)
"""States in which a deployment holds its GPUs."""


@dataclass(frozen=True)
class Holding:
    """GPUs of one node that one workload holds: planned by the plan in force, or already deployed."""

    node_id: int
    gpu_indexes: tuple[int, ...]
    workload: str
    engine: str
    state: str
    url: str


@dataclass(frozen=True)
class FleetNode:
    """One node with each GPU's use. ``holders`` by GPU index; ``gpu_states`` only where not in service."""

    node: Node
    holders: Mapping[int, Holding]
    gpu_states: Mapping[int, str]
    stranded: float
    usd_per_gpu_hour: Decimal | None
    rates: tuple[ExchangeRate, ...] = ()  # by which the price was converted
    unpriced: str = ""  # why there is no price

    @property
    def gpus(self) -> int:
        """GPUs in the node."""
        return self.node.node_type.gpus

    @property
    def used(self) -> int:
        """GPUs held by a workload."""
        return len(self.holders)

    @property
    def others(self) -> int:
        """GPUs used by others or out of service."""
        return sum(index not in self.holders for index in self.gpu_states)

    @property
    def free(self) -> int:
        """GPUs that could take a workload now."""
        return self.gpus - self.used - self.others if self.node.state == Node.State.ACTIVE else 0

    @property
    def usd_per_hour(self) -> Decimal | None:
        """Price of the whole node an hour."""
        return None if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour * self.gpus

    @property
    def workloads(self) -> list[str]:
        """Names of the workloads on it."""
        return sorted({holding.workload for holding in self.holders.values()})

    @property
    def grouped(self) -> list[Holding]:
        """Who holds GPUs, once each, with all the GPUs it holds here."""
        found: dict[tuple[str, str], Holding] = {}
        for index, holding in sorted(self.holders.items()):
            known = found.get((holding.workload, holding.url))
            indexes = (*known.gpu_indexes, index) if known else (index,)
            found[holding.workload, holding.url] = dataclasses.replace(holding, gpu_indexes=indexes)
        return list(found.values())

    @property
    def segments(self) -> list[tuple[str, int, str]]:
        """Bar of used, free and stranded GPUs."""
        stranded = min(self.free, round(self.stranded))
        return [
            ("used", self.used, f"{self.used} used"),
            ("stranded", stranded, f"{stranded} stranded"),
            ("free", self.free - stranded, f"{self.free - stranded} free"),
        ]


@dataclass(frozen=True)
class Situation:
    """The plan to show, and the deployments that hold GPUs or have failed, newest first: read once for a page."""

    shown: Plan | None
    deployments: tuple[Deployment, ...]

    @classmethod
    def now(cls) -> Situation:
        """As it is."""
        rows = Deployment.objects.filter(state__in=(*HELD, Deployment.State.FAILED)).select_related("workload")
        return cls(selectors.plan_shown(), tuple(rows.order_by("-updated_at")))

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self.shown if self.shown is not None and self.shown.state == Plan.State.APPROVED else None

    def in_state(self, *states: str) -> list[Deployment]:
        """Deployments in one of ``states``."""
        return [row for row in self.deployments if row.state in states]


def holdings(situation: Situation) -> list[Holding]:
    """Who holds which GPUs: live deployments, and what the plan in force places beyond them."""
    plan = situation.plan
    held = [
        Holding(
            row.node_id, tuple(row.gpu_indexes), row.workload.name if row.workload else row.name,
            row.planned_engine or row.engine, row.state, reverse("dashboard:deployment", args=[row.pk]),
        )
        for row in situation.in_state(*HELD)
    ]  # fmt: skip
    if plan is None:
        return held
    taken = {(holding.node_id, index) for holding in held for index in holding.gpu_indexes}
    url = reverse("dashboard:plan", args=[plan.pk])
    for row in PlacementRow.objects.filter(plan=plan, node__isnull=False):
        indexes = tuple(index for index in row.gpu_indexes if (row.node_id, index) not in taken)
        if indexes:
            engine = planrow.engine_of({"id": row.candidate_id}) or ""
            held.append(Holding(row.node_id, indexes, row.workload_name, engine, "planned", url))  # type: ignore[arg-type]
    return held


def prices_by_gpu(site_id: int | None = None) -> dict[tuple[int, int | None], Price]:
    """The price that applies today by (GPU model, site); site None is the general one."""
    today = timezone.now().date()
    rows = Price.objects.filter(valid_from__lte=today).select_related("gpu_model", "site").order_by("valid_from")
    return {(row.gpu_model_id, row.site_id): row for row in rows if site_id is None or row.site_id in (None, site_id)}


def fleet(nodes: Iterable[Node] | None = None, situation: Situation | None = None) -> list[FleetNode]:
    """Every node that is not retired, with who uses its GPUs."""
    situation = situation or Situation.now()
    plan = situation.plan
    if nodes is None:
        nodes = node_rows()
    states: dict[int, dict[int, str]] = defaultdict(dict)
    for node_id, index, state in Gpu.objects.exclude(state=Gpu.State.OK).values_list("node_id", "index", "state"):
        states[node_id][index] = state
    by_node: dict[int, dict[int, Holding]] = defaultdict(dict)
    for holding in holdings(situation):
        for index in holding.gpu_indexes:
            by_node[holding.node_id][index] = holding
    stranded = ((plan.result or {}).get("stranded_after") or {}).get("by_node", {}) if plan else {}
    prices = prices_by_gpu()
    foreign = any(price.currency != settings.CURRENCY for price in prices.values())
    rates = exchange_rates() if foreign else ()
    amounts = {price.pk: _here(price, rates) for price in prices.values()}
    rows = []
    for node in nodes:
        model = node.node_type.gpu_model_id
        price = prices.get((model, node.site_id)) or prices.get((model, None))
        rows.append(
            FleetNode(
                node, by_node.get(node.pk, {}), states.get(node.pk, {}), float(stranded.get(node.name, 0)),
                *(amounts[price.pk] if price else (None, (), "no price")),
            )
        )  # fmt: skip
    return rows


def _here(price: Price, rates: tuple[ExchangeRate, ...]) -> tuple[Decimal | None, tuple[ExchangeRate, ...], str]:
    """The price of a GPU-hour in the installation's currency, so that sites can be added up, by the newest rates.

    With the rates, or with why there is none.
    """
    money = Converter(settings.CURRENCY, timezone.now().date().isoformat(), rates)
    try:
        amount = money.convert(price.usd_per_gpu_hour, price.currency)
    except InputError as error:
        return None, (), error.message
    return amount, money.used, ""


def node_rows() -> QuerySet[Node]:
    """Nodes in service or planned, with type and site, by site and name."""
    rows = Node.objects.exclude(state=Node.State.RETIRED).select_related("site", "node_type__gpu_model")
    return rows.order_by("site__name", "name")


def fleet_map(rows: list[FleetNode], by: str, *, dense: bool = False) -> gpumap.GpuMap:
    """The GPU map coloured by workload, engine or use; ``dense`` draws it small.

    A workload keeps the colour it has in the plan in force.
    """
    names = workload_order({holding.workload for row in rows for holding in row.holders.values()})
    classes = gpumap.category_classes(names)
    base = reverse("dashboard:nodes")
    counts: Counter[str] = Counter()
    nodes = []
    for row in rows:
        cells: list[str] = []
        for index in range(row.gpus):
            holding = row.holders.get(index)
            if holding:
                key = {"workload": holding.workload, "engine": holding.engine}.get(by, "used")
                counts[key] += 1
                cells.append(classes[holding.workload] if by == "workload" else (key or "used"))
            elif index in row.gpu_states:
                cells.append("t" if row.gpu_states[index] == Gpu.State.RESERVED else "o")
            else:
                cells.append("f")
        planview.mark_free(cells, row.node.state, row.stranded)
        words = ", ".join(row.workloads) or f"{row.free} free"
        nodes.append(
            gpumap.MapNode(
                row.node.slug, row.node.name, row.node.site.name, row.node.node_type.gpu_model.name, row.gpus,
                row.node.node_type.nvlink_domain, row.node.state, tuple(cells), words,
                f"{base}{row.node.slug}/",
            )
        )  # fmt: skip
    if by == "workload":
        legend = [(classes[name], name, counts[name]) for name in names]
    elif by == "engine":
        engines = {"vllm": "vLLM", "vllm_cpu": "vLLM (CPU)", "tensorrt_llm": "TensorRT-LLM", "emulated": "emulated"}
        legend = [(engine, word, counts[engine]) for engine, word in engines.items()]
    else:
        legend = [("used", "used", counts["used"])]
    return gpumap.build(nodes, legend, dense=dense)


def workload_order(names: set[str]) -> list[str]:
    """All workloads as a plan lists them (priority, then name), then those that are no longer recorded."""
    known = list(Workload.objects.values_list("name", flat=True)) if names else []
    return known + sorted(names - set(known))


@dataclass(frozen=True)
class FleetTotals:
    """GPUs of the fleet by use, and what they cost an hour."""

    total: int
    used: int
    free: int
    stranded: float
    others: int
    planned: int
    usd_per_hour: Decimal
    used_usd_per_hour: Decimal
    unpriced: int
    rates: tuple[ExchangeRate, ...] = ()

    @property
    def segments(self) -> list[tuple[str, float, str]]:
        """Bar of used, stranded, free and the rest."""
        stranded = min(self.stranded, float(self.free))
        return [
            ("used", self.used, f"{self.used} used"),
            ("stranded", stranded, f"{stranded:.1f} stranded"),
            ("free", self.free - stranded, f"{self.free} free"),
        ]


def totals(rows: list[FleetNode]) -> FleetTotals:
    """Sums over the fleet; planned nodes count apart, processors that stand in for a GPU not at all."""
    rows = [row for row in rows if row.node.node_type.gpu_model.vendor != "cpu"]
    owned = [row for row in rows if row.node.state != Node.State.PLANNED]
    priced = [row for row in owned if row.usd_per_gpu_hour is not None]
    return FleetTotals(
        total=sum(row.gpus for row in owned),
        used=sum(row.used for row in owned),
        free=sum(row.free for row in owned),
        stranded=sum(row.stranded for row in owned),
        others=sum(row.gpus - row.used - row.free for row in owned),
        planned=sum(row.gpus for row in rows if row.node.state == Node.State.PLANNED),
        usd_per_hour=sum((row.usd_per_hour or Decimal(0) for row in priced), Decimal(0)),
        used_usd_per_hour=sum(((row.usd_per_gpu_hour or Decimal(0)) * row.used for row in priced), Decimal(0)),
        unpriced=sum(row.gpus for row in owned if row.usd_per_gpu_hour is None),
        rates=tuple(dict.fromkeys(rate for row in priced for rate in row.rates)),
    )


def by_gpu(rows: list[FleetNode]) -> list[dict[str, Any]]:
    """Use of each kind of GPU, largest first."""
    groups: dict[str, list[FleetNode]] = defaultdict(list)
    for row in rows:
        groups[row.node.node_type.gpu_model.name].append(row)
    table = [{"gpu": name, "totals": totals(members)} for name, members in groups.items()]
    return sorted(table, key=lambda entry: -(entry["totals"].total + entry["totals"].planned))


def discovered(rows: list[FleetNode]) -> list[dict[str, Any]]:
    """Nodes whose worker reported GPUs, with what differs from the record."""
    found: dict[int, list[Gpu]] = defaultdict(list)
    for gpu in Gpu.objects.filter(discovered_at__isnull=False).order_by("index"):
        found[gpu.node_id].append(gpu)
    table = []
    for row in rows:
        gpus = found.get(row.node.pk, [])
        missing = [index for index, state in row.gpu_states.items() if state == Gpu.State.MISSING]
        recorded = row.node.node_type.gpu_model.name
        other = sorted({gpu.discovered_name for gpu in gpus if gpu.discovered_name})
        table.append(
            {
                "row": row,
                "seen": row.node.worker_last_seen_at,
                "recorded": f"{row.gpus} × {recorded}",
                "found": f"{len(gpus)} × {', '.join(other)}" if gpus else "",
                "drivers": ", ".join(sorted({gpu.driver_version for gpu in gpus if gpu.driver_version})),
                "state": "missing"
                if missing
                else ("differs" if gpus and len(gpus) != row.gpus else ("ok" if gpus else "")),
            }
        )
    return table


def price_table() -> list[dict[str, Any]]:
    """Every GPU model with the prices that apply today, general first."""
    prices: dict[int, list[Price]] = defaultdict(list)
    for (gpu_model, _), price in sorted(prices_by_gpu().items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        prices[gpu_model].append(price)
    counts = dict(Node.objects.exclude(state="retired").values_list("node_type__gpu_model").annotate(Count("pk")))
    return [
        {"model": model, "prices": prices.get(model.pk, []), "nodes": counts.get(model.pk, 0)}
        for model in GpuModel.objects.all()
        if prices.get(model.pk) or counts.get(model.pk)
    ]

"""What the pages read from the database, in few queries. Nothing here changes anything."""

from __future__ import annotations

import dataclasses
import datetime as dt
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, Max, Prefetch, Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from controlplane.dashboard import gpumap, planview
from controlplane.deployments.models import Calibration, Deployment, ProbeRun, Validation
from controlplane.inventory.models import Gpu, GpuModel, Node, Price, Site
from controlplane.jobs.models import Job
from controlplane.planning.models import PlacementRow, Plan, Scenario
from controlplane.workloads.models import Workload

HELD = (Deployment.State.PENDING, *Deployment.LIVE)
"""States in which a deployment holds its GPUs."""


def current_plan() -> Plan | None:
    """The plan in force: the newest approved one."""
    return Plan.objects.filter(state=Plan.State.APPROVED).select_related("scenario").order_by("-approved_at").first()


def latest_ready_plan() -> Plan | None:
    """The newest plan that waits for approval."""
    return Plan.objects.filter(state=Plan.State.READY).select_related("scenario").order_by("-created_at").first()


# Fleet


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


def holdings(plan: Plan | None) -> list[Holding]:
    """Who holds which GPUs: live deployments, and what the plan in force places beyond them."""
    held = [
        Holding(
            row.node_id, tuple(row.gpu_indexes), row.workload.name if row.workload else row.name,
            row.planned_engine or row.engine, row.state, reverse("dashboard:deployment", args=[row.pk]),
        )
        for row in Deployment.objects.filter(state__in=HELD).select_related("workload")
    ]  # fmt: skip
    if plan is None:
        return held
    taken = {(holding.node_id, index) for holding in held for index in holding.gpu_indexes}
    url = reverse("dashboard:plan", args=[plan.pk])
    for row in PlacementRow.objects.filter(plan=plan, node__isnull=False):
        indexes = tuple(index for index in row.gpu_indexes if (row.node_id, index) not in taken)
        if indexes:
            engine = planview.engine_of({"id": row.candidate_id}) or ""
            held.append(Holding(row.node_id, indexes, row.workload_name, engine, "planned", url))  # type: ignore[arg-type]
    return held


def prices_by_gpu(site_id: int | None = None) -> dict[tuple[int, int | None], Price]:
    """The price that applies today by (GPU model, site); site None is the general one."""
    today = timezone.now().date()
    rows = Price.objects.filter(valid_from__lte=today).select_related("gpu_model", "site").order_by("valid_from")
    return {(row.gpu_model_id, row.site_id): row for row in rows if site_id is None or row.site_id in (None, site_id)}


def fleet(nodes: Iterable[Node] | None = None) -> list[FleetNode]:
    """Every node that is not retired, with who uses its GPUs."""
    plan = current_plan()
    if nodes is None:
        nodes = node_rows()
    states: dict[int, dict[int, str]] = defaultdict(dict)
    for node_id, index, state in Gpu.objects.exclude(state=Gpu.State.OK).values_list("node_id", "index", "state"):
        states[node_id][index] = state
    by_node: dict[int, dict[int, Holding]] = defaultdict(dict)
    for holding in holdings(plan):
        for index in holding.gpu_indexes:
            by_node[holding.node_id][index] = holding
    stranded = ((plan.result or {}).get("stranded_after") or {}).get("by_node", {}) if plan else {}
    prices = prices_by_gpu()
    rows = []
    for node in nodes:
        model = node.node_type.gpu_model_id
        price = prices.get((model, node.site_id)) or prices.get((model, None))
        rows.append(
            FleetNode(
                node, by_node.get(node.pk, {}), states.get(node.pk, {}), float(stranded.get(node.name, 0)),
                price.usd_per_gpu_hour if price else None,
            )
        )  # fmt: skip
    return rows


def node_rows() -> QuerySet[Node]:
    """Nodes in service or planned, with type and site, by site and name."""
    rows = Node.objects.exclude(state=Node.State.RETIRED).select_related("site", "node_type__gpu_model")
    return rows.order_by("site__name", "name")


def fleet_map(rows: list[FleetNode], by: str) -> gpumap.GpuMap:
    """The GPU map coloured by workload, engine or use. A workload keeps the colour it has in the plan in force."""
    names = workload_order({holding.workload for row in rows for holding in row.holders.values()})
    classes = gpumap.category_classes(names)
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
                reverse("dashboard:node", args=[row.node.slug]),
            )
        )  # fmt: skip
    if by == "workload":
        legend = [(classes[name], name, counts[name]) for name in names]
    elif by == "engine":
        words = {"vllm": "vLLM", "vllm_cpu": "vLLM (CPU)", "tensorrt_llm": "TensorRT-LLM", "emulated": "emulated"}
        legend = [(engine, word, counts[engine]) for engine, word in words.items()]
    else:
        legend = [("used", "used", counts["used"])]
    return gpumap.build(nodes, legend)


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
    """Sums over the fleet; planned nodes count apart."""
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
                "state": "missing" if missing else ("differs" if gpus and len(gpus) != row.gpus else ("ok" if gpus else "")),
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


# Workloads


def workload_list(params: Mapping[str, str]) -> QuerySet[Workload]:
    """Workloads by the filters of the URL: ``q``, ``kind``, ``site``."""
    rows = Workload.objects.select_related("trace", "site").prefetch_related("slo_targets")
    if text := params.get("q"):
        rows = rows.filter(Q(name__icontains=text) | Q(model_ref__icontains=text))
    if kind := params.get("kind"):
        rows = rows.filter(kind=kind)
    if site := params.get("site"):
        rows = rows.filter(site__slug=site)
    return rows


def verdicts_of(plan: Plan | None) -> dict[str, planview.WorkloadRow]:
    """Rows of a plan by workload name."""
    if plan is None or not plan.result or not plan.request:
        return {}
    return {row.name: row for row in planview.workload_rows(plan.request, plan.result)}


# Plans


def plan_list(params: Mapping[str, str]) -> QuerySet[Plan]:
    """Plans without their large JSON, newest first, by ``state`` and ``scenario``."""
    rows = Plan.objects.select_related("scenario", "job", "approved_by", "created_by").defer("request", "result")
    rows = rows.order_by("-created_at", "-number")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if scenario := params.get("scenario"):
        rows = rows.filter(scenario__slug=scenario)
    return rows.annotate(
        workload_count=Count("verdicts", distinct=True),
        close_count=Count("verdicts", filter=Q(verdicts__too_close=True), distinct=True),
    )


def scenario_list() -> QuerySet[Scenario]:
    """Scenarios with how many plans each has and the newest."""
    return Scenario.objects.annotate(plan_count=Count("plans"), latest=Max("plans__number")).order_by("name")


def usual_duration_s(kind: str) -> float | None:
    """Median running time of the last ten jobs of a kind that ended well."""
    rows = Job.objects.filter(kind=kind, state=Job.State.SUCCEEDED, started_at__isnull=False, finished_at__isnull=False)
    spans = [(end - start).total_seconds() for start, end in rows.values_list("started_at", "finished_at")[:10]]
    return statistics.median(spans) if spans else None


# Deployments and validation


def deployment_list(params: Mapping[str, str]) -> QuerySet[Deployment]:
    """Deployments by ``state``, ``workload`` and ``engine``; those that live first."""
    rows = Deployment.objects.select_related("workload", "node__node_type__gpu_model", "host", "plan__scenario")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if workload := params.get("workload"):
        rows = rows.filter(workload__slug=workload)
    if engine := params.get("engine"):
        rows = rows.filter(planned_engine=engine)
    return rows


def probes_of(deployment: Deployment) -> QuerySet[ProbeRun]:
    """Probes of one deployment, newest first, with what they validated."""
    return deployment.probes.select_related("job").prefetch_related(Prefetch("validations"))


def validation_list(params: Mapping[str, str]) -> QuerySet[Validation]:
    """The ledger: predicted against measured, by ``metric``, ``verdict`` and ``emulated``."""
    rows = Validation.objects.select_related(
        "probe__deployment__workload", "probe__deployment__node__node_type__gpu_model"
    )
    if metric := params.get("metric"):
        rows = rows.filter(metric=metric)
    if verdict := params.get("verdict"):
        rows = rows.filter(verdict=verdict)
    if (emulated := params.get("emulated")) in {"yes", "no"}:
        rows = rows.filter(emulated=emulated == "yes")
    return rows


@dataclass(frozen=True)
class Accuracy:
    """How predictions held against real measurements; emulated ones are only counted."""

    real: int
    within: int
    median_error: float | None
    emulated: int


def accuracy() -> Accuracy:
    """Over all validations that had a prediction."""
    rows = list(
        Validation.objects.exclude(verdict=Validation.Verdict.NO_PREDICTION).values_list("verdict", "error_ratio", "emulated")
    )
    real = [(verdict, error) for verdict, error, emulated in rows if not emulated]
    errors = [abs(error) for _, error in real if error is not None]
    within = sum(verdict == Validation.Verdict.WITHIN for verdict, _ in real)
    return Accuracy(len(real), within, statistics.median(errors) if errors else None, len(rows) - len(real))


def calibration_list() -> QuerySet[Calibration]:
    """Calibrations, active ones first."""
    return Calibration.objects.all()


@dataclass(frozen=True)
class SloTally:
    """Objectives held against the newest probe of each ready deployment."""

    met: int
    measured: int
    emulated: bool


def slo_tally() -> SloTally:
    """Each SLO of each probed workload, by the newest finished probe; the mark says if any was emulated."""
    probes = (
        ProbeRun.objects.filter(state=ProbeRun.State.DONE, deployment__workload__isnull=False)
        .select_related("deployment__workload")
        .prefetch_related("deployment__workload__slo_targets")
        .order_by("deployment_id", "-finished_at")
    )
    newest: dict[Any, ProbeRun] = {}
    for probe in probes:
        newest.setdefault(probe.deployment.workload_id, probe)
    met = measured = 0
    for probe in newest.values():
        workload = probe.deployment.workload
        for target in workload.slo_targets.all() if workload else ():
            value = ((probe.metrics or {}).get(f"{target.metric}_ms") or {}).get(target.stat)
            if value is not None:
                measured += 1
                met += value <= target.limit_ms
    return SloTally(met, measured, any(probe.emulated for probe in newest.values()))


# Jobs


def job_list(params: Mapping[str, str]) -> QuerySet[Job]:
    """Jobs by ``state`` and ``kind``, newest first."""
    rows = Job.objects.select_related("created_by").defer("payload", "result")
    if state := params.get("state"):
        rows = rows.filter(state=state)
    if kind := params.get("kind"):
        rows = rows.filter(kind=kind)
    return rows


# Home


@dataclass(frozen=True)
class Need:
    """Something that waits for a person."""

    look: str
    text: str
    action: str
    url: str


def needs(rows: list[FleetNode]) -> list[Need]:
    """What waits for a person, most pressing first."""
    found = []
    for item in Deployment.objects.filter(state=Deployment.State.FAILED).order_by("-updated_at")[:5]:
        url = reverse("dashboard:deployment", args=[item.pk])
        found.append(Need("failed", f"{item.name} failed: {item.reason}", "See why", url))
    since = timezone.now() - dt.timedelta(days=1)
    failed = Job.objects.filter(state=Job.State.FAILED, finished_at__gte=since, deployments__isnull=True)
    for job in failed.defer("payload", "result")[:5]:
        found.append(Need("failed", f"Job {job.kind} failed: {job.error}", "Log", reverse("dashboard:job", args=[job.pk])))
    for row in rows:
        missing = sum(state == Gpu.State.MISSING for state in row.gpu_states.values())
        if missing:
            url = reverse("dashboard:node", args=[row.node.slug])
            found.append(Need("attention", f"{row.node.name}: {missing} of {row.gpus} GPUs not found.", "Node", url))
    unpriced = sorted({row.node.node_type.gpu_model.name for row in rows if row.usd_per_gpu_hour is None})
    if unpriced:
        text = f"No price for {', '.join(unpriced)}; costs leave these GPUs out."
        found.append(Need("attention", text, "Prices", reverse("dashboard:prices")))
    for plan in Plan.objects.filter(state=Plan.State.READY).select_related("scenario").defer("request", "result")[:3]:
        url = reverse("dashboard:plan", args=[plan.pk])
        found.append(Need("info", f"{plan} is computed and waits for approval.", "Review", url))
    waiting = Deployment.objects.filter(state=Deployment.State.PENDING).count()
    if waiting:
        noun = "deployment waits" if waiting == 1 else "deployments wait"
        url = f"{reverse('dashboard:deployments')}?state=pending"
        found.append(Need("info", f"{waiting} {noun} to be launched.", "Launch", url))
    return found


def counts_by(rows: QuerySet[Any], field: str) -> dict[str, int]:
    """How many rows there are of each value of ``field``."""
    return dict(rows.order_by().values_list(field).annotate(number=Count("pk")).order_by(F(field)))


def sites() -> QuerySet[Site]:
    """All sites by name."""
    return Site.objects.order_by("name")

"""A plan's result (``planner.plan_types.PlanResult`` as JSON) as the pages show it: data in, rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from controlplane.dashboard import figures, figures_verdict, fmt, gpumap
from controlplane.dashboard.chart import Chart
from controlplane.dashboard.planrow import (
    ENGINES,
    Json,
    Placed,
    WorkloadRow,
    arithmetic,
    engine_of,
    margin_bar,
    usd_per_mtok,
)


@dataclass(frozen=True)
class EngineState:
    """What one engine can do for a workload: a state of the page with its word, and (GPUs, reason) where it cannot."""

    engine: str
    state: str
    word: str
    gpus: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def workload_rows(request: Json, result: Json) -> list[WorkloadRow]:
    """Rows in the order of the request."""
    by_workload: dict[str, list[Json]] = {}
    for candidate in result.get("candidates", ()):
        by_workload.setdefault(candidate["workload"], []).append(candidate)
    by_id = {candidate["id"]: candidate for candidate in result.get("candidates", ())}
    verdicts = {verdict["workload"]: verdict for verdict in result.get("verdicts", ())}
    unplaced = {entry["workload"]: entry for entry in result.get("unplaced", ())}
    mixes = {mix["workload"]: mix for mix in result.get("mixes") or ()}
    bills = {row["workload"]: row for row in result.get("bills") or ()}
    nodes: dict[str, Counter[str]] = {}
    replicas: dict[str, dict[str, set[int]]] = {}
    for placement in result.get("placements", ()):
        nodes.setdefault(placement["workload"], Counter())[placement["node"]] += len(placement["gpu_indexes"])
        parts = replicas.setdefault(placement["workload"], {})
        parts.setdefault(placement["candidate_id"], set()).add(placement["replica"])
    rows = []
    for workload in request.get("workloads", ()):
        name = workload["name"]
        verdict = verdicts.get(name) or {"workload": name, "sentence": "No verdict.", "reasons": (), "chosen": None}
        rows.append(
            WorkloadRow(
                name=name,
                workload=workload,
                verdict=verdict,
                chosen=by_id.get(verdict.get("chosen") or ""),
                other=by_id.get(verdict.get("runner_up") or ""),
                nodes=tuple(sorted(nodes.get(name, Counter()).items())),
                unplaced=unplaced.get(name),
                margin=margin_bar(verdict),
                placed=tuple(
                    Placed(by_id[key], len(numbers)) for key, numbers in replicas.get(name, {}).items() if key in by_id
                ),
                candidates=tuple(by_workload.get(name, ())),
                mix=mixes.get(name),
                billed=bills.get(name),
            )
        )
    return rows


def monthly_parts(result: Json) -> list[tuple[str, Decimal]]:
    """Parts of a plan's bill, summed by label over its workloads, in order of first appearance."""
    totals: dict[str, Decimal] = {}
    for row in result.get("bills", ()):
        for name, amount in row["parts"]:
            totals[name] = totals.get(name, Decimal(0)) + Decimal(amount)
    return list(totals.items())


def cost_chart(rows: Sequence[WorkloadRow]) -> Chart:
    """$ per million tokens of both engines, each workload."""
    table = []
    for row in rows:
        by_engine = {row.engine: row.usd_chosen, row.other_engine: row.usd_other}
        vllm, trt = ((by_engine.get(engine) or {}).get("value") for engine in ENGINES)
        table.append((row.name, vllm, trt))
    return figures.cost_by_workload(table)


def memory_chart(rows: Sequence[WorkloadRow]) -> Chart:
    """Memory of one GPU of each chosen candidate."""
    return figures.memory_stack(
        [(row.name, row.chosen["memory"]) for row in rows if row.chosen and row.chosen.get("memory")],
        ident="plan-memory",
    )


def flip_charts(row: WorkloadRow) -> list[Chart]:
    """A small chart for each parameter that was searched, those that flip first."""
    points = sorted(row.verdict.get("flip_points") or (), key=lambda point: point.get("value") is None)
    return [figures_verdict.flip(point, f"flip-{at}") for at, point in enumerate(points) if point.get("curve")]


def tornado_chart(row: WorkloadRow) -> Chart | None:
    """What moves the cost of the choice; None where nothing was computed."""
    moves = row.verdict.get("tornado") or ()
    return figures_verdict.tornado(moves) if moves else None


def growths(request: Json) -> list[tuple[str, float]]:
    """Workloads that grow, and by how much a month; one line where all grow alike."""
    found = [(workload["name"], workload.get("growth_per_month") or 0.0) for workload in request.get("workloads", ())]
    if len(found) > 1 and len({growth for _, growth in found}) == 1:
        return [("every workload", found[0][1])]
    return [(name, growth) for name, growth in found if growth]


def left_out(row: WorkloadRow) -> list[dict[str, Any]]:
    """Why candidates cannot serve the workload: one entry for each engine, state and reason, with where it holds."""
    groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    first: dict[tuple[str, str, str], str] = {}
    for candidate in row.candidates:
        if candidate.get("status") == "ok":
            continue
        key = (engine_of(candidate) or "", candidate["status"], " ".join(candidate.get("reasons", ())))
        first.setdefault(key, candidate["id"])
        shapes = groups.setdefault(key, {}).setdefault(candidate["gpu"], [])
        shape = fmt.shape(candidate) if candidate.get("settings") else ""
        if shape and shape not in shapes:
            shapes.append(shape)
    return [
        {
            "engine": engine,
            "status": status,
            "reason": reason or "No reason was given.",
            "example": first[engine, status, reason],
            "where": [f"{gpu} ({'; '.join(shapes)})" if shapes else gpu for gpu, shapes in where.items()],
        }
        for (engine, status, reason), where in groups.items()
    ]


def engine_states(row: WorkloadRow) -> list[EngineState]:
    """Each engine before any figure: where it can serve the workload, and where and why it cannot."""
    allowed = row.workload.get("allowed_engines") or ENGINES
    return [_engine_state(row, engine, engine in allowed) for engine in ENGINES]


def _engine_state(row: WorkloadRow, engine: str, allowed: bool) -> EngineState:
    if not allowed:
        return EngineState(engine, "unsupported", "Not allowed", (), (("", "The workload does not allow it."),))
    own = [c for c in row.candidates if engine_of(c) == engine]
    serves = tuple(dict.fromkeys(c["gpu"] for c in own if c.get("status") == "ok"))
    refused: dict[str, tuple[str, str]] = {}
    for candidate in own:
        if candidate["gpu"] not in serves:
            reasons = " ".join(candidate.get("reasons", ())) or "No reason was given."
            refused.setdefault(candidate["gpu"], (candidate["status"], reasons))
    by_reason: dict[str, list[str]] = {}
    for gpu, (_, reason) in refused.items():
        by_reason.setdefault(reason, []).append(gpu)
    whys = tuple((", ".join(gpus), reason) for reason, gpus in by_reason.items())
    if serves:
        return EngineState(engine, "ok", "Can serve it", serves, whys)
    if not own:
        return EngineState(engine, "no_data", "Not computed", (), (("", "No candidate of this engine was computed."),))
    unsupported = all(status == "unsupported" for status, _ in refused.values())
    word = "Unsupported" if unsupported else "Cannot serve it"
    return EngineState(engine, "unsupported" if unsupported else "infeasible", word, (), whys)


def ranked(row: WorkloadRow, limit: int | None = 14) -> list[dict[str, Any]]:
    """Feasible candidates, cheapest first, ``limit`` of them; the chosen one and the runner-up whatever they cost."""

    def key(candidate: Json) -> Decimal:
        cost = usd_per_mtok(candidate)
        return Decimal(cost["value"]) if cost and cost["value"] is not None else Decimal("Infinity")

    named = {row.verdict.get("chosen"), row.verdict.get("runner_up")}
    feasible = sorted((c for c in row.candidates if c.get("status") == "ok"), key=key)
    feasible = [c for at, c in enumerate(feasible) if limit is None or at < limit or c["id"] in named]
    return [
        {
            "candidate": candidate,
            "usd": usd_per_mtok(candidate),
            "parallelism": fmt.shape(candidate),
            "arithmetic": arithmetic(candidate),
        }
        for candidate in feasible
    ]


def usd_axis(entries: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """The range of all cost bands of ranked candidates; None when there is nothing to compare."""
    ends = [fmt.as_float(entry["usd"][end]) for entry in entries if entry["usd"] for end in ("low", "value", "high")]
    known = [end for end in ends if end is not None]
    return (min(known), max(known)) if known and max(known) > min(known) else None


def placement_map(request: Json, result: Json, url: str) -> gpumap.GpuMap:
    """The request's nodes with each GPU coloured by the workload placed on it."""
    classes = gpumap.category_classes(workload["name"] for workload in request.get("workloads", ()))
    taken: dict[tuple[str, int], str] = {}
    for placement in result.get("placements", ()):
        for index in placement["gpu_indexes"]:
            taken[placement["node"], index] = placement["workload"]
    stranded = (result.get("stranded_after") or {}).get("by_node", {})
    nodes, counts = [], Counter(taken.values())
    for node in all_nodes(request, result):
        busy = set(node.get("busy_gpus", ()))
        names = [taken.get((node["name"], index)) for index in range(node["gpus"])]
        cells = [classes[name] if name else ("t" if index in busy else "f") for index, name in enumerate(names)]
        mark_free(cells, node.get("state", "active"), float(stranded.get(node["name"], 0)))
        used = Counter(name for name in names if name)
        words = ", ".join(f"{name} on {count}" for name, count in used.items()) or "nothing placed"
        nodes.append(
            gpumap.MapNode(
                slug=node_slug(node["name"]), name=node["name"], site=node["site"],
                gpu=node["gpu"], gpus=node["gpus"], nvlink_domain=node["nvlink_domain"],
                state=node.get("state", "active"), cells=tuple(cells), words=words,
                url=f"{url}{quote(node['name'], safe='')}/",
            )
        )  # fmt: skip
    legend = [(classes[name], name, counts[name]) for name in classes]
    return gpumap.build(nodes, legend)


def mark_free(cells: list[str], state: str, stranded_gpus: float) -> None:
    """Turn free squares ("f") of one node into planned or out of service by its state, or as many as are stranded."""
    left = round(stranded_gpus)
    for index in range(len(cells) - 1, -1, -1):
        if cells[index] != "f":
            continue
        if state == "planned":
            cells[index] = "p"
        elif state != "active":
            cells[index] = "o"
        elif left > 0:
            cells[index] = "s"
            left -= 1


def all_nodes(request: Json, result: Json) -> list[Json]:
    """Nodes of the request and those that the plan buys."""
    return [*request.get("nodes", ()), *result.get("purchased_nodes", ())]


def node_slug(name: str) -> str:
    """A node's name as an HTML id."""
    return "".join(c if c.isalnum() else "-" for c in name)

"""Fragmentation of the fleet as the pages show it: before a plan, after it, and after tidying up what runs today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import fmt, palette
from controlplane.dashboard.chart import Chart, Column, axis, bar, make

Json = Mapping[str, Any]
WORST_NODES = 12


@dataclass(frozen=True)
class State:
    """One state of the fleet: a StrandedReport with its title."""

    title: str
    report: Json

    @property
    def stranded(self) -> float:
        """Expected stranded GPUs."""
        return float(self.report.get("stranded_gpus", 0))

    @property
    def free(self) -> int:
        """Free GPUs, whole ones."""
        return int(self.report.get("free_gpus", 0))

    @property
    def slices(self) -> str:
        """Free MIG slices in words: "4 × 1g.10gb"."""
        found = self.report.get("free_slices") or {}
        return ", ".join(f"{count} × {profile}" for profile, count in found.items())


@dataclass(frozen=True)
class Fragmentation:
    """All states, the nodes that strand most, the moves of the tidying, and both pictures."""

    states: tuple[State, ...]
    nodes: tuple[tuple[str, tuple[float, ...]], ...]  # node, expected stranded GPUs in each state
    more_nodes: int
    moves: tuple[Json, ...]
    minutes: float  # of all moves, one after the other
    surge_gpu_hours: float  # both copies of a replica hold GPUs while it moves
    shapes: Chart
    by_node: Chart | None

    @property
    def tidy(self) -> bool:
        """Whether moves alone would leave fewer GPUs stranded."""
        return bool(self.moves)


def fragmentation(result: Json) -> Fragmentation:
    """From a PlanResult as JSON; a plan of an older planner lacks some figures, which are then left out."""
    states = [
        State("Today", result.get("stranded_before") or {}),
        State("This plan", result.get("stranded_after") or {}),
    ]
    tidy = result.get("consolidation")
    if tidy and tidy.get("moves"):
        states.append(State("Today, tidied up", tidy["after"]))
    moves = tuple(tidy["moves"]) if tidy else ()
    names = sorted({name for state in states for name in state.report.get("by_node") or {}})
    ranked = [(name, tuple(float((s.report.get("by_node") or {}).get(name, 0.0)) for s in states)) for name in names]
    ranked.sort(key=lambda item: (-max(item[1]), item[0]))
    minutes = sum(float(move["minutes"]) for move in moves)
    surge = sum(float(move["minutes"]) * len(move["to_gpu_indexes"]) for move in moves) / 60
    worst = ranked[:WORST_NODES]
    return Fragmentation(
        tuple(states), tuple(worst), len(ranked) - len(worst), moves, minutes, surge,
        _shapes(states), _nodes(states, worst) if worst else None,
    )  # fmt: skip


def _shapes(states: list[State]) -> Chart:
    """Free GPUs by the largest replica that they can still take, a bar for each state."""
    sizes = sorted({int(size) for state in states for size in state.report.get("free_by_shape") or {}})
    counts = {size: [int((s.report.get("free_by_shape") or {}).get(str(size), 0)) for s in states] for size in sizes}
    titles = [state.title for state in states]
    traces = [
        bar(
            y=titles, x=counts[size], orientation="h", name=_size_words(size), marker={"color": _colour(at, size)},
            hovertemplate=f"%{{y}}<br>{_size_words(size)}: %{{x}} GPUs<extra></extra>",
        )
        for at, size in enumerate(sizes)
    ]  # fmt: skip
    columns = (Column("State", numeric=False), *(Column(_size_words(size), "GPUs") for size in sizes))
    rows = [(title, *(counts[size][at] for size in sizes)) for at, title in enumerate(titles)]
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "xaxis": axis("Free GPUs", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    note = "By the largest replica of these workloads that the NVLink domain can still take."
    return make(
        "free-by-shape", "Free GPUs by largest usable shape", traces, layout, columns, rows, note=note, size="short"
    )


def _nodes(states: list[State], worst: list[tuple[str, tuple[float, ...]]]) -> Chart:
    """Expected stranded GPUs of the nodes that strand most."""
    names = [name for name, _ in worst]
    traces = [
        bar(
            y=names, x=[values[at] for _, values in worst], orientation="h", name=state.title,
            marker={"color": palette.CATEGORIES[at]},
            hovertemplate=f"%{{y}}<br>{state.title}: %{{x:.2f}} GPUs<extra></extra>",
        )
        for at, state in enumerate(states)
    ]  # fmt: skip
    columns = (Column("Node", numeric=False), *(Column(state.title, "GPUs") for state in states))
    layout = {
        "barmode": "group",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "xaxis": axis("Expected stranded GPUs", rangemode="tozero", showgrid=True),
        "yaxis": {"autorange": "reversed", "showgrid": False},
    }
    rows = [(name, *values) for name, values in worst]
    note = "The expectation over the mix of workload shapes (FGD): 1 is a whole GPU that none of them can take."
    return make("stranded-by-node", "Where GPUs are stranded", traces, layout, columns, rows, note=note)


def _size_words(size: int) -> str:
    return "none fits" if size == 0 else f"up to {fmt.sig(size)} GPU{'s' if size > 1 else ''}"


def _colour(at: int, size: int) -> str:
    return palette.ATTENTION if size == 0 else palette.CATEGORIES[at % len(palette.CATEGORIES)]

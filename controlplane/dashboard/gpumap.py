"""The GPU map: sites, nodes, and each GPU as a square inside its NVLink outline, as compact SVG."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

DENSE_ABOVE = 120
"""From this many nodes on, squares are small and carry no name."""

CATEGORY_COUNT = 8


@dataclass(frozen=True)
class MapNode:
    """One node to draw. ``cells`` holds one class per GPU, by index (see ``LEGEND`` and the categories)."""

    slug: str
    name: str
    site: str
    gpu: str
    gpus: int
    nvlink_domain: int
    state: str
    cells: tuple[str, ...]
    words: str = ""
    url: str = ""


@dataclass(frozen=True)
class LegendEntry:
    """One kind of square and how many GPUs it has."""

    css: str
    word: str
    gpus: int


@dataclass(frozen=True)
class KindMap:
    """The drawn nodes of one kind at one site."""

    gpu: str
    gpus_per_node: int
    nodes: int
    markup: SafeString


@dataclass(frozen=True)
class SiteMap:
    """One site: its kinds of nodes."""

    name: str
    nodes: int
    gpus: int
    kinds: tuple[KindMap, ...]


@dataclass(frozen=True)
class GpuMap:
    """Everything a page needs to show the map."""

    sites: tuple[SiteMap, ...]
    legend: tuple[LegendEntry, ...]
    dense: bool
    nodes: int
    gpus: int

    @property
    def many(self) -> bool:
        """Whether the map is too long for an overview."""
        return self.nodes > DENSE_ABOVE


WORDS = {"f": "free", "t": "used by others", "o": "out of service", "p": "planned", "s": "free, but stranded"}
_LEGEND_CSS = {"f": "free", "t": "taken", "o": "out", "p": "planned", "s": "stranded"}


@dataclass
class _Layout:
    cell: int
    gap: int
    pad: int
    columns: int = 4
    sizes: dict[tuple[int, int], tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], int, int]] = field(
        default_factory=dict
    )

    def of(self, gpus: int, domain: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], int, int]:
        """Corner of each square, outline (x, y, w, h) of each NVLink domain, width and height."""
        key = (gpus, domain)
        if key not in self.sizes:
            self.sizes[key] = self._compute(gpus, domain)
        return self.sizes[key]

    def _compute(self, gpus: int, domain: int) -> tuple[list, list, int, int]:
        step = self.cell + self.gap
        corners, outlines = [], []
        top, width = 0, 0
        groups = [min(domain, gpus - first) for first in range(0, gpus, domain)] if domain > 1 else [gpus]
        for count in groups:
            columns = min(count, self.columns if count <= 16 else 12)
            rows = -(-count // columns)
            corners += [(self.pad + at % columns * step, top + self.pad + at // columns * step) for at in range(count)]
            w, h = columns * step - self.gap + 2 * self.pad, rows * step - self.gap + 2 * self.pad
            if domain > 1:
                outlines.append((0, top, w, h))
            top += h + self.gap
            width = max(width, w)
        return corners, outlines, width, top - self.gap


def build(
    nodes: Sequence[MapNode], categories: Sequence[tuple[str, str, int]], *, panel: str = "#pinned", dense: bool = False
) -> GpuMap:
    """Draw ``nodes`` grouped by site. ``categories``: cell class, word and GPUs of each workload or engine drawn.

    One path per node and class keeps the markup small: 1,200 nodes with 6,000 GPUs stay under 1 MB.
    """
    many = len(nodes) > DENSE_ABOVE
    dense = dense or many
    layout = _Layout(7, 1, 1) if many else _Layout(10, 2, 2) if dense else _Layout(14, 3, 4)
    by_site: dict[str, list[MapNode]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for node in nodes:
        by_site[node.site].append(node)
        counts.update(node.cells)
    first = True
    sites = []
    for name, members in by_site.items():
        by_kind: dict[tuple[str, int], list[str]] = defaultdict(list)
        for node in members:
            by_kind[node.gpu, node.gpus].append(_draw(node, layout, dense, first, panel))
            first = False
        kinds = tuple(
            KindMap(gpu, gpus, len(parts), mark_safe("".join(parts)))  # noqa: S308 - escaped in _draw
            for (gpu, gpus), parts in by_kind.items()
        )
        sites.append(SiteMap(name, len(members), sum(node.gpus for node in members), kinds))
    legend = [
        LegendEntry(css.replace("w", "c", 1) if css[1:].isdigit() else css, word, gpus)
        for css, word, gpus in categories
        if gpus
    ]
    legend += [LegendEntry(_LEGEND_CSS[css], word, counts[css]) for css, word in WORDS.items() if counts[css]]
    return GpuMap(tuple(sites), tuple(legend), dense, len(nodes), sum(node.gpus for node in nodes))


def _draw(node: MapNode, layout: _Layout, dense: bool, first: bool, panel: str) -> str:
    corners, outlines, width, height = layout.of(node.gpus, node.nvlink_domain)
    paths: dict[str, list[str]] = defaultdict(list)
    size = layout.cell
    for (x, y), css in zip(corners, node.cells, strict=False):
        if css in "ps":
            paths[css].append(f"M{x + 1} {y + 1}h{size - 2}v{size - 2}h-{size - 2}z")
        else:
            paths[css].append(f"M{x} {y}h{size}v{size}h-{size}z")
    shapes = "".join(
        f'<rect class="nv" x="{x}.5" y="{y}.5" width="{w - 1}" height="{h - 1}" rx="3"/>' for x, y, w, h in outlines
    )
    shapes += "".join(f'<path class="{css}" d="{"".join(d)}"/>' for css, d in paths.items())
    title = escape(f"{node.name}: {node.gpus} × {node.gpu}. {node.words}")
    label = "" if dense else f"<span>{escape(node.name)}</span>"
    planned = " planned" if node.state == "planned" else ""
    return (
        f'<a class="node{planned}" id="n-{node.slug}" href="{node.url}" hx-get="{node.url}" hx-target="{panel}"'
        f' tabindex="{0 if first else -1}" title="{title}">{label}'
        f'<svg width="{width}" height="{height}" aria-hidden="true">{shapes}</svg></a>'
    )


def category_classes(names: Iterable[str]) -> dict[str, str]:
    """A colour class for each name, in order; the ninth name takes the first colour again."""
    return {name: f"w{at % CATEGORY_COUNT}" for at, name in enumerate(names)}

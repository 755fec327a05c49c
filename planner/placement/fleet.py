"""The fleet as the placement sees it: bins (NVLink domains) of free GPUs, and classes of equal nodes.

A replica of ``g`` GPUs takes one bin when it fits one, else whole bins of one node, else whole nodes of one pool.
A node whose GPUs only share PCIe is one bin: its step times already carry the slower link.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan_types import PlanNode

DOMAIN_GROUPS = 8  # without failure domains, spread is modelled over this many groups of nodes


@dataclass(frozen=True, slots=True)
class Bin:
    """Free GPUs of one NVLink domain of one node. ``node`` indexes ``Fleet.nodes``."""

    node: int
    domain: int
    free: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that are interchangeable for the placement. ``bins`` of all of them; ``buy_limit`` only for a purchase
    class.

    A purchase class holds one pattern node; the programme decides how many copies are bought.
    """

    index: int
    pattern: PlanNode
    nodes: tuple[int, ...]
    bins: tuple[Bin, ...]
    domain: str  # failure domain or group of nodes; empty when nothing needs it
    purchase: bool = False
    buy_limit: int | None = None
    power_kw: float | None = None
    rack_units: int | None = None

    @property
    def bin_size(self) -> int:
        """GPUs of one bin."""
        return bin_size(self.pattern)

    def capacity(self, size: int) -> int:
        """GPUs that replicas of ``size`` or more GPUs can use: the sum over bins of floor(free / size) x size."""
        return sum(len(item.free) // size * size for item in self.bins)

    def whole_nodes(self) -> int:
        """Nodes of which every GPU is free."""
        free: dict[int, int] = {}
        for item in self.bins:
            free[item.node] = free.get(item.node, 0) + len(item.free)
        return sum(1 for count in free.values() if count == self.pattern.gpus)


def bin_size(node: PlanNode) -> int:
    """GPUs that one replica may take together: the NVLink domain, or the whole node when it spans nodes or is PCIe.

    A slice stands alone: MIG instances have no peer access.
    """
    return 1 if node.slice_of else domain_size(node.gpus, node.nvlink_domain)


def domain_size(gpus: int, nvlink_domain: int) -> int:
    """GPUs of a node of ``gpus`` that one replica may take together; see ``bin_size``."""
    return nvlink_domain if 1 < nvlink_domain < gpus else gpus


def bins_of(node: PlanNode, index: int) -> tuple[Bin, ...]:
    """Bins of a node with the GPUs that others have not taken."""
    size, busy = bin_size(node), set(node.busy_gpus)
    found = []
    for domain, start in enumerate(range(0, node.gpus, size)):
        indexes = range(start, min(start + size, node.gpus))
        found.append(Bin(index, domain, tuple(i for i in indexes if i not in busy), len(indexes)))
    return tuple(found)


def fits_shape(node: PlanNode, gpus: int, domain_needed: int) -> bool:
    """Whether a replica of ``gpus`` GPUs, tensor-parallel groups of ``domain_needed``, can be laid out on such nodes.

    A replica that spans bins takes whole bins, one that spans nodes whole nodes: an engine on part of a node is
    refused.
    """
    size = bin_size(node)
    if node.slice_of or gpus <= size:
        return gpus <= size
    reach = max(node.nvlink_domain, size)
    if gpus % size or domain_needed > reach:
        return False
    return gpus <= node.gpus or gpus % node.gpus == 0


def group_nodes(
    nodes: tuple[PlanNode, ...], usable: frozenset[str], *, by_failure_domain: bool
) -> tuple[NodeClass, ...]:
    """Classes of equal nodes among those whose state is in ``usable``; order follows the nodes, so it is stable."""
    groups: dict[tuple, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.state not in usable or (node.state == "planned" and node.busy_gpus):
            continue  # a planned node is bought whole: one that somebody holds already is not for sale
        domain = ""
        if by_failure_domain:
            domain = node.failure_domain or f"group {index % DOMAIN_GROUPS}"
        key = (
            node.pool,
            node.site,
            node.gpu,
            node.gpus,
            node.nvlink_domain,
            node.tenant,
            node.allowed_engines,
            node.price.usd_per_gpu_hour,
            node.orchestrator,
            node.cluster,
            node.partition,
            node.min_replica_gpus,
            node.slice_of != "",
            node.state == "planned",
            domain,
        )
        groups.setdefault(key, []).append(index)
    classes: list[NodeClass] = []
    for key, members in groups.items():
        bins = tuple(item for index in members for item in bins_of(nodes[index], index))
        classes.append(NodeClass(len(classes), nodes[members[0]], tuple(members), bins, key[-1]))
    return tuple(classes)


class Room:
    """Free GPUs of one class while a plan is being filled: best fit by bin, whole nodes for large replicas."""

    def __init__(self, group: NodeClass) -> None:
        self._group = group
        self._free = {(item.node, item.domain): list(item.free) for item in group.bins}
        self._size = {(item.node, item.domain): item.size for item in group.bins}
        self._buckets: dict[int, list[tuple[int, int]]] = {}
        for item in group.bins:
            self._buckets.setdefault(len(item.free), []).append((item.node, item.domain))
        for bucket in self._buckets.values():
            bucket.sort(reverse=True)

    def copy(self) -> Room:
        """An independent copy."""
        other = object.__new__(Room)
        other._group = self._group
        other._free = {key: list(value) for key, value in self._free.items()}
        other._size = self._size
        other._buckets = {count: list(keys) for count, keys in self._buckets.items()}
        return other

    def add_node(self, node: PlanNode, index: int) -> None:
        """Add the bins of one more node (a purchase)."""
        for item in bins_of(node, index):
            key = (item.node, item.domain)
            self._free[key], self._size[key] = list(item.free), item.size
            self._insert(key)

    def take(self, gpus: int, *, first_fit: bool = False) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
        """Take ``gpus`` GPUs: (node, GPU indexes) entries, or None when nothing holds them.

        Best fit (the bin with least room to spare) leaves the least stranded; ``first_fit`` takes the first node
        instead.
        """
        if gpus <= self._group.bin_size:
            key = self._first(gpus) if first_fit else self._best(gpus)
            return None if key is None else ((key[0], self._use(key, gpus)),)
        return self._take_whole(gpus)

    def take_exact(self, node: int, indexes: tuple[int, ...]) -> bool:
        """Take just these GPUs of ``node``; False (and nothing taken) when one is not free."""
        wanted = set(indexes)
        keys = [key for key in self._free if key[0] == node and wanted & set(self._free[key])]
        if wanted != {i for key in keys for i in self._free[key] if i in wanted}:
            return False
        for key in keys:
            self._remove(key)
            self._free[key] = [i for i in self._free[key] if i not in wanted]
            self._insert(key)
        return True

    def free_bins(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """What is still free, by (node, domain)."""
        return {key: tuple(value) for key, value in self._free.items()}

    def _best(self, gpus: int) -> tuple[int, int] | None:
        for count in sorted(self._buckets):
            if count >= gpus and self._buckets[count]:
                return self._buckets[count][-1]
        return None

    def _first(self, gpus: int) -> tuple[int, int] | None:
        found = [bucket[-1] for count, bucket in self._buckets.items() if count >= gpus and bucket]
        return min(found) if found else None

    def _use(self, key: tuple[int, int], gpus: int) -> tuple[int, ...]:
        self._remove(key)
        free = self._free[key]
        taken = next(
            (run for start in range(0, len(free) - gpus + 1) if _aligned(run := free[start : start + gpus], gpus)),
            free[:gpus],
        )
        self._free[key] = [i for i in free if i not in taken]
        self._insert(key)
        return tuple(taken)

    def _take_whole(self, gpus: int) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
        by_node: dict[int, list[tuple[int, int]]] = {}
        for key, free in self._free.items():
            if len(free) == self._size[key]:
                by_node.setdefault(key[0], []).append(key)
        size, whole = self._group.bin_size, self._group.pattern.gpus
        if gpus < whole:
            needed = gpus // size
            chosen = min((keys for keys in by_node.values() if len(keys) >= needed), key=len, default=None)
            keys = sorted(chosen)[:needed] if chosen else []
        else:
            full = sorted(node for node, keys in by_node.items() if len(keys) * size >= whole)
            if len(full) * whole < gpus:
                return None
            keys = [key for node in full[: gpus // whole] for key in sorted(by_node[node])]
        if not keys:
            return None
        taken: dict[int, list[int]] = {}
        for key in keys:
            taken.setdefault(key[0], []).extend(self._use(key, self._size[key]))
        return tuple((node, tuple(indexes)) for node, indexes in taken.items())

    def _remove(self, key: tuple[int, int]) -> None:
        self._buckets[len(self._free[key])].remove(key)

    def _insert(self, key: tuple[int, int]) -> None:
        bucket = self._buckets.setdefault(len(self._free[key]), [])
        position = len(bucket)
        while position and bucket[position - 1] < key:
            position -= 1
        bucket.insert(position, key)


def _aligned(run: list[int], gpus: int) -> bool:
    return run[0] % gpus == 0 and run[-1] - run[0] == gpus - 1

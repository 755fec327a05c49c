"""MIG slices as devices: the slices of a node's partitioned GPUs stand as nodes of their own while a plan is made.

All slices of one profile on one node form one such node, with a slice where a node has a GPU, at the slice's part of
the GPU's price. ``restored`` turns placements on them back into GPU and slice of the real node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from planner.catalog import get_gpu
from planner.catalog.mig import check_partition, mig_profile, slice_name
from planner.economics.money import PRICE_STEP
from planner.economics.types import GpuHourPrice
from planner.errors import InputError
from planner.plan_types import Consolidation, Move, Placement, PlanNode, PlanRequest


def with_slices(request: PlanRequest) -> PlanRequest:
    """``request`` with a node for the slices of each profile of each node, and ``current`` placed on those.

    A GPU with slices is no whole GPU any more: it becomes busy. Nodes to be bought keep their GPUs whole. Raises
    InputError for a profile that a GPU does not have, or slices that do not fit one GPU together.
    """
    if not any(node.slices for node in request.nodes):
        return request
    nodes: list[PlanNode] = []
    for i, node in enumerate(request.nodes):
        nodes += _expanded(node, f"nodes[{i}].slices")
    by_name = {node.name: node for node in request.nodes}
    current = tuple(_onto_slices(item, by_name.get(item.node)) for item in request.current)
    return replace(request, nodes=tuple(nodes), current=current)


def restored(placements: Iterable[Placement], request: PlanRequest) -> tuple[Placement, ...]:
    """``placements`` of a request that went through ``with_slices``, in terms of ``request`` as it was asked."""
    homes = {
        _slice_node_name(node, profile): (node, profile) for node in request.nodes for profile in _profiles_of(node)
    }
    return tuple(_off_slices(item, homes) for item in placements)


def restored_moves(found: Consolidation, request: PlanRequest) -> Consolidation:
    """``found`` with its moves in terms of ``request`` as it was asked."""
    homes = {_slice_node_name(node, profile): node.name for node in request.nodes for profile in _profiles_of(node)}

    def real(move: Move) -> Move:
        (there,) = restored(
            [Placement(move.workload, move.candidate_id, move.replica, move.to_node, move.to_gpu_indexes)], request
        )
        origin = homes.get(move.from_node, move.from_node)
        return replace(move, from_node=origin, to_node=there.node, to_gpu_indexes=there.gpu_indexes)

    return replace(found, moves=tuple(real(move) for move in found.moves))


def gpus_worth(placement: Placement, gpu: str) -> Fraction:
    """GPUs (of type ``gpu``) that a placement pays for: whole ones, a share, or a slice's part."""
    if placement.slice_profile:
        return mig_profile(gpu, placement.slice_profile).fraction
    return Fraction(len(placement.gpu_indexes), placement.sharers)


def usd_per_hour(placement: Placement, node: PlanNode) -> Decimal:
    """What the GPUs of a placement cost an hour."""
    worth = gpus_worth(placement, node.gpu)
    if placement.slice_profile:
        return _part(node.price, worth).usd_per_gpu_hour
    return node.price.usd_per_gpu_hour * worth.numerator / worth.denominator


def _expanded(node: PlanNode, path: str) -> list[PlanNode]:
    if not node.slices or node.state == "planned":
        return [node]
    gpu = get_gpu(node.gpu).name
    for index in sorted({item.gpu for item in node.slices}):
        if not 0 <= index < node.gpus:
            raise InputError(f"the node has GPUs 0 to {node.gpus - 1}", field=path, value=index)
        try:
            check_partition(gpu, [item.profile for item in node.slices if item.gpu == index])
        except InputError as error:
            raise InputError(error.message, field=path, value=error.value, remedy=error.remedy) from None
    busy = sorted({*node.busy_gpus, *(item.gpu for item in node.slices)})
    found = [replace(node, busy_gpus=tuple(busy), slices=())]
    for profile in _profiles_of(node):
        own = [item for item in node.slices if item.profile == profile]
        taken = [i for i, item in enumerate(own) if item.busy or item.gpu in node.busy_gpus]
        found.append(
            replace(
                node,
                name=_slice_node_name(node, profile),
                pool=f"{node.pool}/{profile}",
                gpu=slice_name(gpu, profile),
                gpus=len(own),
                nvlink_domain=1,
                price=_part(node.price, mig_profile(gpu, profile).fraction),
                busy_gpus=tuple(taken),
                gpu_memory_gib=None,
                min_replica_gpus=1,
                slices=(),
                slice_of=node.name,
            )
        )
    return found


def _part(price: GpuHourPrice, part: Fraction) -> GpuHourPrice:
    """The price of a part of a GPU; its parts keep their labels."""

    def of(usd: Decimal) -> Decimal:
        return (usd * part.numerator / part.denominator).quantize(PRICE_STEP)

    return replace(
        price,
        usd_per_gpu_hour=of(price.usd_per_gpu_hour),
        parts=tuple((label, of(usd)) for label, usd in price.parts),
        source=f"{price.source}; {part} of it",
    )


def _profiles_of(node: PlanNode) -> list[str]:
    return sorted({item.profile for item in node.slices}) if node.state != "planned" else []


def _slice_node_name(node: PlanNode, profile: str) -> str:
    return f"{node.name} ({profile})"


def _onto_slices(item: Placement, node: PlanNode | None) -> Placement:
    if node is None or not item.slice_profile or not 0 <= item.slice_index < len(node.slices):
        return item
    own = [i for i, each in enumerate(node.slices) if each.profile == item.slice_profile]
    if item.slice_index not in own:
        return item
    name = _slice_node_name(node, item.slice_profile)
    return replace(item, node=name, gpu_indexes=(own.index(item.slice_index),), slice_profile="", slice_index=-1)


def _off_slices(item: Placement, homes: dict[str, tuple[PlanNode, str]]) -> Placement:
    if item.node not in homes:
        return item
    node, profile = homes[item.node]
    own: Sequence[int] = [i for i, each in enumerate(node.slices) if each.profile == profile]
    index = own[item.gpu_indexes[0]]
    chosen = node.slices[index]
    return replace(
        item,
        node=node.name,
        gpu_indexes=(chosen.gpu,),
        slice_profile=profile,
        slice_index=index,
        slice_uuid=chosen.uuid,
    )

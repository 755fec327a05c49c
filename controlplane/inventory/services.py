"""Acts on the inventory."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.utils.text import slugify

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.core.resources import ImportReport
from controlplane.core.resources import import_table as _import_table
from controlplane.core.services import delete_record, save_record
from controlplane.inventory.gpus import sync_gpus
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site
from controlplane.inventory.pricing import compute_price
from controlplane.inventory.resources import RESOURCES
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from runners.contracts import node_queue

Item = Site | GpuModel | NodeType | Node | Gpu | Price | ExchangeRate
I = TypeVar("I", Site, GpuModel, NodeType, Node, Gpu, Price, ExchangeRate)  # noqa: E741


def save_item(*, actor: Actor, record: I, expected_version: int | None = None) -> I:
    """Create or change one inventory record; takes an operator of its site.

    Raises PermissionDenied, ValidationError, StaleVersionError. A node's GPUs are kept in step with its type.
    """
    access.require(actor, Role.OPERATOR, site_of(record))
    with transaction.atomic():
        _check_leaving(actor, record)
        if isinstance(record, (Site, NodeType, Node)) and not record.slug:
            record.slug = slugify(record.name)[:60]
        if isinstance(record, Price):
            compute_price(record)
        save_record(record, actor=actor, expected_version=expected_version)
        if isinstance(record, Node):
            sync_gpus(actor=actor, node=record)
    return record


def _check_leaving(actor: Actor, record: Item) -> None:
    """What belongs to a site leaves it only by its operators."""
    stored = None if record._state.adding else type(record)._default_manager.filter(pk=record.pk).first()
    if stored is not None and (site := site_of(stored)) != site_of(record):
        access.require(actor, Role.OPERATOR, site)


def delete_item(*, actor: Actor, record: Item) -> None:
    """Delete one inventory record; raises ValidationError naming what still uses it."""
    access.require(actor, Role.OPERATOR, site_of(record))
    delete_record(record, actor=actor)


def site_of(record: Item) -> Site | None:
    """The site whose operators may change a record; None: operators of everything."""
    if isinstance(record, Site):
        return record if record.pk else None
    if isinstance(record, (Node, Price)):
        return record.site if record.site_id else None
    return record.node.site if isinstance(record, Gpu) else None  # a rate, a type: for operators of everything


def import_table(*, actor: Actor, table: str, name: str, content: bytes, dry_run: bool = False) -> ImportReport:
    """Import a CSV or XLSX file, wholly or not at all. ``table``: sites, gpu-models, node-types, nodes, gpus, prices,
    exchange-rates.

    Raises TableError with every fault (row, field, value, remedy), KeyError for an unknown table, PermissionDenied.
    """
    return _import_table(RESOURCES[table](), actor=actor, name=name, content=content, dry_run=dry_run)


def export_table(*, table: str, form: str = "csv", rows: QuerySet | None = None) -> bytes:
    """All records of ``table``, or ``rows``, as ``csv`` or ``xlsx``; what comes out can be imported again."""
    data: Any = RESOURCES[table]().export(rows)
    content = data.export(form)
    return content.encode() if isinstance(content, str) else content


def discover_node(*, actor: Actor, node: Node) -> Job:
    """Ask a node's worker what is in the host; the answer is kept beside what is recorded."""
    access.require(actor, Role.OPERATOR, node.site)
    return submit_job(actor=actor, kind="node.discover", payload={"node": node.slug}, queue=node_queue(node.slug))

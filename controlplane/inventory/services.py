"""Acts on the inventory."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.text import slugify

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.core.resources import ImportReport
from controlplane.core.resources import import_table as _import_table
from controlplane.core.services import delete_record, save_record
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from planner.catalog.mig import canonical_profile
from planner.economics.currency import BASE, Converter
from planner.economics.currency import ExchangeRate as Rate
from planner.economics.price import RentalInputs, TcoInputs, gpu_hour_price
from planner.economics.published import default_price
from planner.economics.tariff import TariffBand
from planner.economics.types import EnergyPrice, GpuHourPrice
from planner.errors import PlannerError
from planner.fleet_money import checked_energy
from planner.jsonio import from_json
from runners.contracts import DiscoveredGpu, Observation, node_queue

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
            _compute_price(record)
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


def sync_gpus(*, actor: Actor, node: Node, fresh: bool = False) -> int:
    """Give a node one Gpu row for each GPU of its type; returns how many were added. Surplus rows go, unless used.

    ``fresh``: the node was made a moment ago and has none.
    """
    count = node.node_type.gpus
    held = set() if fresh else set(node.gpus.values_list("index", flat=True))
    missing = [index for index in range(count) if index not in held]
    Gpu.objects.bulk_create(Gpu(node=node, index=index) for index in missing)
    if any(index >= count for index in held):
        for gpu in node.gpus.filter(index__gte=count):
            delete_record(gpu, actor=actor)
    return len(missing)


def import_table(*, actor: Actor, table: str, name: str, content: bytes, dry_run: bool = False) -> ImportReport:
    """Import a CSV or XLSX file, wholly or not at all. ``table``: sites, gpu-models, node-types, nodes, gpus, prices,
    exchange-rates.

    Raises TableError with every fault (row, field, value, remedy), KeyError for an unknown table, PermissionDenied.
    """
    from controlplane.inventory.resources import RESOURCES

    return _import_table(RESOURCES[table](), actor=actor, name=name, content=content, dry_run=dry_run)


def export_table(*, table: str, form: str = "csv", rows: QuerySet | None = None) -> bytes:
    """All records of ``table``, or ``rows``, as ``csv`` or ``xlsx``; what comes out can be imported again."""
    from controlplane.inventory.resources import RESOURCES

    data: Any = RESOURCES[table]().export(rows)
    content = data.export(form, escape=True) if form == "xlsx" else data.export(form)  # a cell is no formula
    return content.encode() if isinstance(content, str) else content


def price_row(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> Price | None:
    """The recorded price that applies to a GPU at a site on a day; None when there is none."""
    day = on or timezone.now().date()
    rows = [
        row
        for row in gpu_model.prices.all()
        if row.valid_from <= day and row.site_id in (None, site.pk if site else None)
    ]
    return max(rows, key=lambda row: (row.site_id is not None, row.valid_from), default=None)


def price_at(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> GpuHourPrice:
    """What one GPU costs an hour at a site on a day, in the currency it was stated in: recorded, else the catalogue's.

    Raises UnsupportedError when neither is known.
    """
    found = price_row(gpu_model, site, on)
    return default_price(gpu_model.name) if found is None else hour_price(found)


def price_currency(gpu_model: GpuModel, site: Site | None = None, on: dt.date | None = None) -> str:
    """The currency of ``price_at``."""
    found = price_row(gpu_model, site, on)
    return BASE if found is None else found.currency


def hour_price(price: Price) -> GpuHourPrice:
    """A recorded price with its parts, in its own currency."""
    inputs = price_inputs(price)
    if inputs is None:
        label = "rental" if price.basis == Price.Basis.RENTAL else price.get_basis_display().lower()
        basis: Any = price.basis
        return GpuHourPrice(price.usd_per_gpu_hour, basis, price.source, ((label, price.usd_per_gpu_hour),))
    return _computed(price, inputs)


def price_inputs(price: Price) -> TcoInputs | RentalInputs | None:
    """What a price is computed from; None when it is stated as it is. Raises ValidationError for bad inputs."""
    if not price.tco_inputs or price.basis == Price.Basis.CATALOGUE:
        return None
    stated = {"source": price.source, **price.tco_inputs}
    if isinstance(stated.get("sources"), dict):
        stated["sources"] = [[field, str(text)] for field, text in stated["sources"].items()]
    try:
        if price.basis == Price.Basis.TCO:
            return from_json(TcoInputs, {**stated, "currency": price.currency}, "tco_inputs")
        return from_json(RentalInputs, {**stated, "currency": price.currency}, "tco_inputs")
    except PlannerError as error:
        raise ValidationError({"tco_inputs": str(error)}) from error


def site_energy(site: Site) -> EnergyPrice:
    """Electricity of a site, in its own currency."""
    bands = from_json(tuple[TariffBand, ...], site.tariff_bands, "tariff_bands")
    return EnergyPrice(site.usd_per_kwh, site.pue, bands, site.demand_usd_per_kw_month)


def exchange_rates() -> tuple[Rate, ...]:
    """All recorded rates as the planner takes them."""
    return tuple(
        Rate(row.currency, row.date.isoformat(), row.usd_per_unit, row.source) for row in ExchangeRate.objects.all()
    )


def discover_node(*, actor: Actor, node: Node) -> Job:
    """Ask a node's worker what is in the host; the answer is kept beside what is recorded."""
    access.require(actor, Role.OPERATOR, node.site)
    return submit_job(actor=actor, kind="node.discover", payload={"node": node.slug}, queue=node_queue(node.slug))


def apply_discovery(node: Node, observation: Observation) -> dict[str, Any]:
    """Write what the driver reported beside the record; returns the differences in words."""
    now = timezone.now()
    differences: list[str] = []
    found = {gpu.index: gpu for gpu in observation.gpus}
    for gpu in node.gpus.all():
        seen = found.pop(gpu.index, None)
        if seen is None:
            if gpu.state == Gpu.State.OK and node.node_type.gpu_model.vendor != "cpu":
                gpu.state = Gpu.State.MISSING
                differences.append(f"GPU {gpu.index} is recorded but was not found")
        else:
            if gpu.uuid and gpu.uuid != seen.uuid:
                differences.append(f"GPU {gpu.index} was replaced: {gpu.uuid} is now {seen.uuid}")
            if gpu.state == Gpu.State.MISSING:
                gpu.state = Gpu.State.OK
            gpu.uuid, gpu.discovered_name = seen.uuid, seen.name
            gpu.discovered_memory_mib, gpu.driver_version = seen.memory_total_mib, seen.driver_version
            gpu.discovered_at = now
            differences += _take_slices(gpu, seen) + _take_orphans(gpu, seen)
        save_record(gpu, actor=None)
    differences += [f"GPU {index} ({gpu.name}) was found but is not recorded" for index, gpu in sorted(found.items())]
    host = observation.host
    return {
        "gpus": len(observation.gpus),
        "differences": differences,
        "host": host.hostname if host else "",
        "cpu": host.cpu_model if host else "",
        "engines": dict(host.engines) if host else {},
        "notes": list(host.notes) if host else [],
    }


def _take_slices(gpu: Gpu, seen: DiscoveredGpu) -> list[str]:
    """Write the MIG instances that the driver reports; those reserved stay so. Differences in words."""
    name = gpu.node.node_type.gpu_model.name
    reserved = {item.split()[1] for item in gpu.mig_slices if item.endswith(" reserved")}
    found, unknown = [], []
    for item in seen.slices:
        profile = canonical_profile(name, item.profile)
        if profile is None:
            unknown.append(item.profile)
            continue
        found.append(f"{profile} {item.uuid}" + (" reserved" if item.uuid in reserved else ""))
    words = [f"GPU {gpu.index} has a slice {profile}, which is no profile of {name}" for profile in unknown]
    if seen.mig_enabled and not found:
        words.append(f"GPU {gpu.index} is in MIG mode without a slice that can be used: nothing can run on it")
    if found != gpu.mig_slices:
        before, after = (" ".join(item.split()[0] for item in each) or "no slices" for each in (gpu.mig_slices, found))
        words.append(f"GPU {gpu.index} was recorded with {before} and has {after}")
    gpu.mig_enabled, gpu.mig_slices = seen.mig_enabled, found
    return words


def _take_orphans(gpu: Gpu, seen: DiscoveredGpu) -> list[str]:
    """Memory that no live process holds: it must be freed before an engine finds room."""
    gpu.orphaned_mib = seen.orphaned_mib
    if not seen.orphaned_mib:
        return []
    return [f"GPU {gpu.index} holds {seen.orphaned_mib:,} MiB without a live process; reset it or restart the host"]


def _compute_price(price: Price) -> None:
    """With inputs, the hourly figure follows from them."""
    inputs = price_inputs(price)
    if inputs is not None:
        price.usd_per_gpu_hour = _computed(price, inputs).usd_per_gpu_hour


def _computed(price: Price, inputs: TcoInputs | RentalInputs) -> GpuHourPrice:
    """In the currency of the price; the site's electricity is converted to it."""
    try:
        money = Converter(price.currency, "", exchange_rates() if price.site_id else ())
        energy = EnergyPrice(Decimal("0.12"))
        if price.site is not None and isinstance(inputs, TcoInputs) and inputs.power_kw is not None:
            energy = checked_energy(site_energy(price.site), price.site.currency, money, "site")
        return gpu_hour_price(inputs, energy, money)
    except PlannerError as error:
        raise ValidationError({"tco_inputs": str(error)}) from error

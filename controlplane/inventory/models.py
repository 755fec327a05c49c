"""Sites, GPU models, node types, nodes, GPUs and prices."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.core.models import BaseModel
from planner.catalog import check_partition
from planner.economics.currency import BASE, currency_code
from planner.economics.tariff import EnergyPrice, TariffBand, hourly_prices
from planner.errors import InputError, as_written
from planner.jsonio import from_json

ENGINES = ("vllm", "tensorrt_llm")


def default_engines() -> list[str]:
    """Both engines."""
    return list(ENGINES)


def check_at_most(record: models.Model, limits: dict[str, float]) -> None:
    """Raise ValidationError for a number beyond what any device has: a slip of the keyboard, or another unit."""
    for name, limit in limits.items():
        value = getattr(record, name)
        if isinstance(value, (int, float)) and value > limit:
            raise ValidationError({name: f"{value:,g} is more than {limit:,g}, which no device has; check the unit."})


def validate_engines(value: object) -> None:
    """A non-empty list of known engines."""
    if not isinstance(value, list) or not value or any(item not in ENGINES for item in value):
        raise ValidationError(f"Must be a list of one or more of: {', '.join(ENGINES)}.")


def validate_currency(value: object) -> None:
    """An ISO code, or the short name of a service unit."""
    try:
        currency_code(str(value), "currency")
    except InputError as error:
        raise ValidationError(f"{error.message} (got {as_written(str(value)[:20])}). {error.remedy}") from error


def validate_bands(value: object) -> None:
    """A list of tariff bands that do not overlap."""
    try:
        bands = from_json(tuple[TariffBand, ...], value, "tariff_bands")
        hourly_prices(EnergyPrice(Decimal(0), bands=bands))
    except InputError as error:
        raise ValidationError(str(error)) from error


def validate_day(value: object) -> None:
    """A day that a rate can have."""
    if isinstance(value, dt.date) and value.year < 1990:
        raise ValidationError("Must be 1990 or later.")


def validate_slices(value: object) -> None:
    """A list of "PROFILE", "PROFILE UUID" or either with "reserved" behind it, for instance "1g.10gb MIG-5c1f..."."""
    uuids: list[str] = []
    for item in value if isinstance(value, list) else [None]:
        words = item.split() if isinstance(item, str) else []
        uuids += [word for word in words[1:2] if word != "reserved"]
        if not 1 <= len(words) <= 3 or (len(words) == 3 and words[2] != "reserved"):
            raise ValidationError(
                f"{str(item)[:60]!r} is no slice; write its profile, then its UUID, then the word reserved if it is."
            )
    twice = next((uuid for uuid in uuids if uuids.count(uuid) > 1), None)
    if twice is not None:
        raise ValidationError(f"{twice[:60]!r} is stated twice; each slice has a UUID of its own.")


class Site(BaseModel):
    """A place with its electricity: a flat price, bands over the hours of the week, a demand charge; in ``currency``.

    A plan converts to its own currency by the exchange rates.
    """

    typed_by_people = True
    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    currency = models.CharField(
        max_length=12, default="USD", validators=[validate_currency], help_text="Of the electricity prices."
    )
    usd_per_kwh = models.DecimalField(
        "price per kWh",
        max_digits=8,
        decimal_places=4,
        default=Decimal("0.12"),
        validators=[MinValueValidator(Decimal(0))],
    )
    tariff_bands = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_bands],
        help_text='Hours with another price: [{"days": ["mon"], "from_hour": 0, "to_hour": 6, "usd_per_kwh": "0.09"}]; '
        "no days: every day.",
    )
    demand_usd_per_kw_month = models.DecimalField(
        "demand charge per kW and month",
        max_digits=10,
        decimal_places=4,
        default=Decimal(0),
        validators=[MinValueValidator(Decimal(0))],
    )
    pue = models.DecimalField(
        "PUE", max_digits=4, decimal_places=2, default=Decimal("1.30"), validators=[MinValueValidator(Decimal(1))]
    )
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(usd_per_kwh__gte=0), name="inventory_site_usd_per_kwh_not_negative"),
            models.CheckConstraint(condition=Q(pue__gte=1), name="inventory_site_pue_at_least_1"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """An emptied tariff is none."""
        self.tariff_bands = self.tariff_bands or []


class GpuModel(BaseModel):
    """A kind of GPU. ``name`` is its catalogue name; a filled override replaces the catalogue's fact."""

    typed_by_people = True
    name = models.CharField(max_length=80, unique=True)
    vendor = models.CharField(max_length=40, blank=True)
    architecture = models.CharField(max_length=60, blank=True)
    memory_gib = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.1)], help_text="Overrides the catalogue's usable memory."
    )
    source = models.CharField(max_length=300, blank=True)
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "GPU model"
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_gib__isnull=True) | Q(memory_gib__gt=0), name="inventory_gpumodel_memory_positive"
            )
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Its memory is that of one GPU."""
        check_at_most(self, {"memory_gib": 10_000})


NODE_LIMITS = {"cpu_cores": 100_000, "memory_gib": 1e6, "max_power_w": 1e6, "rack_units": 1000, "network_gb_s": 1e5}
"""Far above a rack of 576 GPUs."""


class NodeType(BaseModel):
    """A server model: equal GPUs inside one or more NVLink domains."""

    typed_by_people = True
    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    gpu_model = models.ForeignKey(GpuModel, on_delete=models.PROTECT, related_name="node_types")
    gpus = models.PositiveSmallIntegerField("GPUs", validators=[MinValueValidator(1), MaxValueValidator(576)])
    nvlink_domain = models.PositiveSmallIntegerField(
        "GPUs per NVLink domain",
        default=1,
        help_text="1 when the GPUs share PCIe only.",
        validators=[MinValueValidator(1)],
    )
    cpu_cores = models.PositiveIntegerField(null=True, blank=True)
    memory_gib = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0.1)])
    max_power_w = models.FloatField(null=True, blank=True, validators=[MinValueValidator(1)])
    rack_units = models.PositiveSmallIntegerField(null=True, blank=True)
    network_gb_s = models.FloatField(
        "network GB/s per GPU",
        default=50.0,
        validators=[MinValueValidator(0.01)],
        help_text="Between nodes, one direction.",
    )
    source = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(gpus__gte=1), name="inventory_nodetype_has_gpus"),
            models.CheckConstraint(
                condition=Q(nvlink_domain__gte=1) & Q(nvlink_domain__lte=models.F("gpus")),
                name="inventory_nodetype_domain_within_gpus",
            ),
            models.CheckConstraint(condition=Q(network_gb_s__gt=0), name="inventory_nodetype_network_positive"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """The NVLink domain divides the GPUs; its numbers are those of one server or rack."""
        check_at_most(self, NODE_LIMITS)
        if self.gpus and self.nvlink_domain and self.gpus % self.nvlink_domain:
            raise ValidationError(
                {"nvlink_domain": f"{self.nvlink_domain} does not divide {self.gpus} GPUs; use a divisor."}
            )


_PARTITION = re.compile(r"[\w.,-]*")


class Node(BaseModel):
    """One server. ``is_local``: the host this control plane runs on, whose worker it starts itself."""

    typed_by_people = True

    class State(models.TextChoices):
        """Whether it can take placements."""

        ACTIVE = "active", "Active"
        PLANNED = "planned", "Planned"
        MAINTENANCE = "maintenance", "Maintenance"
        RETIRED = "retired", "Retired"

    class Orchestrator(models.TextChoices):
        """Whose the node is."""

        NONE = "none", "Nobody"
        KUBERNETES = "kubernetes", "Kubernetes"
        SLURM = "slurm", "Slurm"

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="nodes")
    node_type = models.ForeignKey(NodeType, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    state = models.CharField(max_length=12, choices=State, default=State.ACTIVE)
    failure_domain = models.CharField(max_length=60, blank=True, help_text="Rack or power feed; empty: its own.")
    tenant = models.CharField(max_length=60, blank=True, help_text="Empty: shared.")
    allowed_engines = models.JSONField(default=default_engines, validators=[validate_engines])
    orchestrator = models.CharField(
        max_length=12,
        choices=Orchestrator,
        default=Orchestrator.NONE,
        help_text="Who starts processes there; what is deployed on the node is exported as that kind.",
    )
    cluster = models.CharField(max_length=60, blank=True, help_text="Name of the Kubernetes or Slurm cluster.")
    partition = models.CharField(max_length=60, blank=True, help_text="Slurm partition or Kubernetes node pool.")
    min_replica_gpus = models.PositiveSmallIntegerField(
        "least GPUs of a replica",
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(576)],
        help_text="A fence: replicas of fewer GPUs are kept off the node.",
    )
    worker_last_seen_at = models.DateTimeField(null=True, blank=True, editable=False)
    is_local = models.BooleanField(default=False)
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["active", "planned", "maintenance", "retired"]),
                name="inventory_node_state_known",
            ),
            models.CheckConstraint(
                condition=Q(orchestrator__in=["none", "kubernetes", "slurm"]), name="inventory_node_orchestrator_known"
            ),
            models.CheckConstraint(condition=Q(min_replica_gpus__gte=1), name="inventory_node_fence_at_least_1"),
            models.UniqueConstraint(fields=["is_local"], condition=Q(is_local=True), name="inventory_node_one_local"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """A cluster needs an orchestrator; names that come to stand in scripts are one word."""
        for field in ("name", "cluster", "partition"):
            value = getattr(self, field)
            if not value.isprintable() or (field == "partition" and not _PARTITION.fullmatch(value)):
                raise ValidationError({field: f"{value!r} is no name of a {field}: use letters, digits, dots, dashes."})
        if self.cluster and self.orchestrator == self.Orchestrator.NONE:
            raise ValidationError({"orchestrator": f"Say whose cluster {self.cluster} is: kubernetes or slurm."})


class Gpu(BaseModel):
    """One accelerator in a node: as recorded, and as the driver reported it when it was discovered."""

    class State(models.TextChoices):
        """Whether it can take placements."""

        OK = "ok", "In service"
        FAULTY = "faulty", "Faulty"
        RESERVED = "reserved", "Used by others"
        MISSING = "missing", "Not discovered"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField(validators=[MaxValueValidator(575)])
    uuid = models.CharField("UUID", max_length=80, blank=True)
    serial = models.CharField(max_length=60, blank=True)
    state = models.CharField(max_length=10, choices=State, default=State.OK)
    reserved_for = models.CharField(max_length=60, blank=True, help_text="Who uses it, when its state is reserved.")
    mig_enabled = models.BooleanField("MIG", default=False, help_text="Cut into slices: no engine gets it whole.")
    mig_slices = models.JSONField(
        "MIG slices",
        default=list,
        blank=True,
        validators=[validate_slices],
        help_text='A list: "1g.10gb", "1g.10gb MIG-5c1f...", "1g.10gb MIG-5c1f... reserved".',
    )
    orphaned_mib = models.PositiveIntegerField(
        "memory without a process, MiB", default=0, editable=False, help_text="Held by processes that are gone."
    )
    discovered_name = models.CharField(max_length=100, blank=True)
    discovered_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    driver_version = models.CharField(max_length=40, blank=True)
    discovered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["node", "index"]
        verbose_name = "GPU"
        constraints = [
            models.UniqueConstraint(fields=["node", "index"], name="inventory_gpu_index_once_per_node"),
            models.UniqueConstraint(fields=["uuid"], condition=~Q(uuid=""), name="inventory_gpu_uuid_once"),
            models.CheckConstraint(
                condition=Q(state__in=["ok", "faulty", "reserved", "missing"]), name="inventory_gpu_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node} GPU {self.index}"

    def clean(self) -> None:
        """The index lies within the node type's GPUs; the slices are profiles of it and fit it together."""
        if self.node_id and self.index is not None and self.index >= self.node.node_type.gpus:
            raise ValidationError(
                {"index": f"{self.index} is beyond the {self.node.node_type.gpus} GPUs of {self.node.node_type}."}
            )
        self.mig_slices = self.mig_slices or []
        written = isinstance(self.mig_slices, list) and all(isinstance(s, str) and s.strip() for s in self.mig_slices)
        if self.mig_slices and written and self.node_id:
            self.mig_enabled = True
            try:
                check_partition(self.node.node_type.gpu_model.name, [item.split()[0] for item in self.mig_slices])
            except InputError as error:
                raise ValidationError({"mig_slices": str(error)}) from error


class Price(BaseModel):
    """What one GPU of a model costs an hour: stated (rental, catalogue) or computed from ``tco_inputs``.

    Amounts are in ``currency``. ``tco_inputs`` are planner ``TcoInputs`` of a node when the basis is ownership; with a
    rental basis ``RentalInputs``: what is committed, reserved or spot, and licences on top.

    The newest ``valid_from`` not in the future applies; one with a site goes before one without.
    """

    typed_by_people = True

    class Basis(models.TextChoices):
        """Where the figure comes from."""

        TCO = "tco", "Cost of ownership"
        RENTAL = "rental", "Rental price"
        CATALOGUE = "catalogue", "Catalogue"

    gpu_model = models.ForeignKey(GpuModel, on_delete=models.CASCADE, related_name="prices")
    site = models.ForeignKey(Site, null=True, blank=True, on_delete=models.CASCADE, related_name="prices")
    basis = models.CharField(max_length=10, choices=Basis)
    usd_per_gpu_hour = models.DecimalField(
        "price per GPU-hour", max_digits=10, decimal_places=4, validators=[MinValueValidator(Decimal(0))]
    )
    currency = models.CharField(max_length=12, default="USD", validators=[validate_currency])
    tco_inputs = models.JSONField(
        default=dict,
        blank=True,
        help_text="How the price comes about: cost of ownership, or committed and spot shares of a rental.",
    )
    source = models.CharField(max_length=300)
    valid_from = models.DateField()
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["gpu_model__name", "-valid_from"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu_model", "site", "valid_from"],
                condition=Q(site__isnull=False),
                name="inventory_price_site_once",
            ),
            models.UniqueConstraint(
                fields=["gpu_model", "valid_from"], condition=Q(site__isnull=True), name="inventory_price_once"
            ),
            models.CheckConstraint(condition=Q(usd_per_gpu_hour__gte=0), name="inventory_price_not_negative"),
            models.CheckConstraint(
                condition=Q(basis__in=["tco", "rental", "catalogue"]), name="inventory_price_basis_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_model} {self.usd_per_gpu_hour} {self.currency}/h"


class ExchangeRate(BaseModel):
    """What one unit of a currency, or of a service unit, was worth in US dollars on a day."""

    typed_by_people = True
    currency = models.CharField(max_length=12, validators=[validate_currency])
    date = models.DateField(validators=[validate_day])
    usd_per_unit = models.DecimalField(
        "USD per unit", max_digits=18, decimal_places=8, validators=[MinValueValidator(Decimal("0.00000001"))]
    )
    source = models.CharField(max_length=300)

    class Meta:
        ordering = ["currency", "-date"]
        constraints = [
            models.UniqueConstraint(fields=["currency", "date"], name="inventory_exchangerate_once_a_day"),
            models.CheckConstraint(condition=Q(usd_per_unit__gt=0), name="inventory_exchangerate_positive"),
            models.CheckConstraint(condition=~Q(currency="USD"), name="inventory_exchangerate_not_of_the_dollar"),
        ]

    def __str__(self) -> str:
        return f"1 {self.currency} = {self.usd_per_unit.normalize():f} USD on {self.date}"

    def clean(self) -> None:
        """The dollar has no rate of its own."""
        if self.currency == BASE:
            raise ValidationError({"currency": "Rates are stated in USD; give another currency."})

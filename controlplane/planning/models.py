"""Scenarios, plans, placements and verdicts."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.core.models import BaseModel
from controlplane.inventory.models import Node, Site, validate_currency
from controlplane.jobs.models import Job
from controlplane.workloads.models import Workload
from planner import fleet_money
from planner.economics.currency import Converter, currency_code
from planner.errors import PlannerError


class Shown(models.Manager):
    """Rows that are not deleted. A deleted one stays for a while, so that its deletion can be undone."""

    def get_queryset(self) -> models.QuerySet:
        """Without deleted rows."""
        return super().get_queryset().filter(discarded_at__isnull=True)


ORCHESTRATORS = ("none", "kubernetes", "slurm")


def every_orchestrator() -> list[str]:
    """Nodes of whomever."""
    return list(ORCHESTRATORS)


def validate_orchestrators(value: object) -> None:
    """A non-empty list of known orchestrators."""
    if not isinstance(value, list) or not value or any(item not in ORCHESTRATORS for item in value):
        raise ValidationError(f"Must be a list of one or more of: {', '.join(ORCHESTRATORS)}.")


def validate_operations(value: object) -> None:
    """Costs of engine operations as a fleet file has them."""
    _as_planner(lambda: fleet_money.operations(value, AnyCurrency()))


def validate_api_prices(value: object) -> None:
    """API prices as a fleet file has them."""
    _as_planner(lambda: fleet_money.api_prices(value, AnyCurrency()))


def validate_cloud_prices(value: object) -> None:
    """Cloud prices as a fleet file has them."""
    _as_planner(lambda: fleet_money.cloud_prices(value, AnyCurrency()))


def validate_price_classes(value: object) -> None:
    """A list of {name, factor, pool, workloads}."""
    _as_planner(lambda: fleet_money.price_classes(value))


def installation_currency() -> str:
    """The currency of this installation, in which a new scenario is computed."""
    return str(settings.CURRENCY)


class AnyCurrency(Converter):
    """Takes every currency at par: for checking records before the rates of a plan are known."""

    def factor(self, currency: str, field: str = "currency") -> Decimal:
        """One, for every code that is a currency."""
        if currency:
            currency_code(currency, field)
        return Decimal(1)


def _as_planner(check: Callable[[], object]) -> None:
    try:
        check()
    except PlannerError as error:
        raise ValidationError(str(error)) from error


class Scenario(BaseModel):
    """A question: which workloads on the nodes of which sites, and whether GPUs may be bought."""

    typed_by_people = True

    class Mode(models.TextChoices):
        """Which GPUs may be used."""

        OWNED = "owned", "Only what we own"
        OWNED_PLUS_PURCHASE = "owned_plus_purchase", "What we own, and buy what is missing"
        PURCHASE = "purchase", "Buy everything"

    class Objective(models.TextChoices):
        """What is made least where both owned and bought nodes may be used."""

        NEW_SPEND = "new_spend", "New spending first, then the total"
        TOTAL_COST = "total_cost", "The total, owned GPUs in use included"

    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    mode = models.CharField(max_length=20, choices=Mode, default=Mode.OWNED)
    objective = models.CharField(max_length=12, choices=Objective, default=Objective.NEW_SPEND)
    budget_usd_per_hour = models.DecimalField(
        "most that nodes bought may cost, USD an hour",
        max_digits=12,
        decimal_places=4,
        null=True,
        blank=True,
        validators=[MinValueValidator(Decimal(0))],
    )
    max_power_kw = models.FloatField(
        "most power of nodes bought, kW", null=True, blank=True, validators=[MinValueValidator(0)]
    )
    max_rack_units = models.PositiveIntegerField("most rack units of nodes bought", null=True, blank=True)
    share_gpus = models.BooleanField(
        "several small engines on one GPU", default=True, help_text="Of one tenant, by memory share."
    )
    orchestrators = models.JSONField(
        default=every_orchestrator,
        validators=[validate_orchestrators],
        help_text="Whose nodes may be used: none, kubernetes, slurm.",
    )
    sites = models.ManyToManyField(Site, related_name="scenarios", blank=True, help_text="None: every site.")
    workloads = models.ManyToManyField(
        Workload, related_name="scenarios", blank=True, help_text="None: every workload."
    )
    time_limit_s = models.FloatField(default=30.0, validators=[MinValueValidator(1), MaxValueValidator(3600)])
    seed = models.PositiveIntegerField(default=0)
    growth_per_month = models.FloatField(
        default=0.0,
        validators=[MinValueValidator(-0.5), MaxValueValidator(1)],
        help_text="Growth of every demand, compound: 0.05 is five percent a month. 0: no capacity runway.",
    )
    lead_time_months = models.FloatField(
        default=3.0, validators=[MinValueValidator(0), MaxValueValidator(36)], help_text="From order to service."
    )
    currency = models.CharField(
        max_length=12,
        default=installation_currency,
        validators=[validate_currency],
        help_text="In which its plans are computed.",
    )
    rates_as_of = models.DateField(
        "exchange rates as of", null=True, blank=True, help_text="None: the day on which a plan is asked."
    )
    price_erosion_per_year = models.FloatField(
        default=0.0,
        validators=[MinValueValidator(0), MaxValueValidator(0.95)],
        help_text="By what share a year GPUs bought or rented later are cheaper.",
    )
    horizon_months = models.PositiveSmallIntegerField(
        default=36, validators=[MinValueValidator(1), MaxValueValidator(120)], help_text="Of the view ahead."
    )
    operations = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_operations],
        help_text="People and licences of the engines: people_usd_per_hour, people_hours_per_engine_month, "
        "people_hours_per_model_month, people_hours_per_revision, licence_usd_per_gpu_year and start_up_minutes by "
        "engine, build_minutes, currency, source.",
    )
    api_prices = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_api_prices],
        help_text="What an API charges: a list of workload, usd_per_mtok_input, usd_per_mtok_output, currency, source.",
    )
    cloud_prices = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_cloud_prices],
        help_text="What a GPU costs elsewhere: a list of gpu, usd_per_gpu_hour, currency, source.",
    )
    price_classes = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_price_classes],
        help_text="What classes of workloads pay of the GPU price: a list of name, factor, pool, workloads.",
    )
    notes = models.TextField(blank=True)
    discarded_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = Shown()
    everything = models.Manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(mode__in=["owned", "owned_plus_purchase", "purchase"]), name="planning_scenario_mode_known"
            ),
            models.CheckConstraint(condition=Q(time_limit_s__gt=0), name="planning_scenario_time_limit_positive"),
            models.CheckConstraint(
                condition=Q(objective__in=["new_spend", "total_cost"]), name="planning_scenario_objective_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Emptied costs are none."""
        self.operations = self.operations or {}
        for field in ("api_prices", "cloud_prices", "price_classes"):
            setattr(self, field, getattr(self, field) or [])


class Plan(BaseModel):
    """One answer to a scenario: the request as it was asked and the result as it came, both frozen as JSON.

    ``request`` is a planner ``PlanRequest``, ``result`` a ``PlanResult`` (see planner.plan_types and planner.jsonio).
    A what-if has the plan it started from as ``base`` and what was changed as ``changes`` (see planner.whatif), in
    words as ``title``; it describes a fleet or a demand that is not there, and is never approved.
    """

    class State(models.TextChoices):
        """Where a plan stands."""

        DRAFT = "draft", "Draft"
        COMPUTING = "computing", "Computing"
        READY = "ready", "Ready"
        FAILED = "failed", "Failed"
        APPROVED = "approved", "Approved"
        SUPERSEDED = "superseded", "Superseded"

    scenario = models.ForeignKey(Scenario, on_delete=models.CASCADE, related_name="plans")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.DRAFT)
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="plans")
    request = models.JSONField(null=True, blank=True, editable=False)
    result = models.JSONField(null=True, blank=True, editable=False)
    model_digests = models.JSONField(default=dict, blank=True, editable=False)  # of uploaded models, by id
    model_version = models.CharField(max_length=40, blank=True, editable=False)
    status = models.CharField(max_length=12, blank=True, editable=False)  # of the solver, see PlanResult
    usd_per_hour = models.DecimalField(max_digits=14, decimal_places=4, null=True, blank=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    computed_at = models.DateTimeField(null=True, blank=True, editable=False)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, blank=True)
    base = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="variants")
    changes = models.JSONField(default=list, blank=True, editable=False)
    title = models.CharField(max_length=300, blank=True, editable=False)
    discarded_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = Shown()
    everything = models.Manager()

    class Meta:
        ordering = ["-created_at", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["scenario", "number"], name="planning_plan_number_once"),
            models.CheckConstraint(
                condition=Q(state__in=["draft", "computing", "ready", "failed", "approved", "superseded"]),
                name="planning_plan_state_known",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["ready", "approved"]) | Q(result__isnull=False),
                name="planning_plan_ready_has_result",
            ),
            models.CheckConstraint(
                condition=~Q(state="approved") | Q(approved_at__isnull=False), name="planning_plan_approved_when"
            ),
            models.CheckConstraint(
                condition=~Q(state="approved") | Q(title=""), name="planning_plan_what_if_not_approved"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scenario} #{self.number}"

    @property
    def is_what_if(self) -> bool:
        """Whether it answers a changed question."""
        return bool(self.title)


class CandidateCurves(models.Model):
    """What one replica of a candidate does as its load grows, simulated once and kept with the plan.

    ``points`` is what ``planning.curves`` made of it; None while ``job`` computes it.
    """

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="curves")
    workload_name = models.CharField(max_length=100)
    candidate_id = models.CharField(max_length=300)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    points = models.JSONField(null=True)
    reason = models.TextField(blank=True)

    class Meta:
        verbose_name = "load curves"
        verbose_name_plural = "load curves"
        ordering = ["plan", "candidate_id"]
        constraints = [models.UniqueConstraint(fields=["plan", "candidate_id"], name="planning_candidatecurves_once")]

    def __str__(self) -> str:
        return f"Curves of {self.candidate_id}"


class PlacementRow(models.Model):
    """One replica (or its part on one node) of a plan. ``workload``/``node`` are empty when deleted, or not bought."""

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="placements")
    workload = models.ForeignKey(Workload, null=True, on_delete=models.SET_NULL, related_name="placements")
    workload_name = models.CharField(max_length=100)
    candidate_id = models.CharField(max_length=300)
    replica = models.PositiveIntegerField()
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="placements")
    node_name = models.CharField(max_length=100)
    gpu_indexes = models.JSONField(default=list)
    device = models.JSONField(
        default=dict,
        blank=True,
        help_text="Of an engine on a share or a slice: sharers, slot, slice_profile, slice_uuid.",
    )

    class Meta:
        ordering = ["plan", "workload_name", "replica", "node_name"]
        verbose_name = "placement"
        constraints = [
            models.UniqueConstraint(
                fields=["plan", "workload_name", "candidate_id", "replica", "node_name"],
                name="planning_placementrow_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.workload_name} replica {self.replica} on {self.node_name}"


class VerdictRow(models.Model):
    """The engine chosen for one workload of a plan. ``margin``: share of the runner-up's cost, with its 80 % band."""

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="verdicts")
    workload = models.ForeignKey(Workload, null=True, on_delete=models.SET_NULL, related_name="verdicts")
    workload_name = models.CharField(max_length=100)
    engine = models.CharField(max_length=20, blank=True)
    chosen = models.CharField(max_length=300, blank=True)
    runner_up = models.CharField(max_length=300, blank=True)
    sentence = models.TextField()
    margin = models.FloatField(null=True, blank=True)
    margin_low = models.FloatField(null=True, blank=True)
    margin_high = models.FloatField(null=True, blank=True)
    too_close = models.BooleanField(default=False)

    class Meta:
        ordering = ["plan", "workload_name"]
        verbose_name = "verdict"
        constraints = [models.UniqueConstraint(fields=["plan", "workload_name"], name="planning_verdictrow_once")]

    def __str__(self) -> str:
        return self.sentence[:100]

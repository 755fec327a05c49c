"""What if: a stored request with something changed, ready to be planned again.

Each change is a small frozen record that says in words what it does. ``apply`` returns a new request; the base is left
as it is. A change that meets nothing (a workload, node or GPU that is not there) is an InputError, never silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from planner.catalog import get_gpu, get_model
from planner.demand import scaled_load
from planner.economics.currency import BASE, symbol
from planner.economics.money import PRICE_STEP
from planner.economics.types import ELECTRICITY, EnergyPrice, GpuHourPrice
from planner.errors import InputError
from planner.jsonio import from_json, to_json
from planner.models.precision import PRECISIONS
from planner.plan_types import PlanNode, PlanRequest, PlanWorkload, PurchaseOption
from planner.recommend.flips import scaled
from planner.words import figure

KWH_STEP = Decimal("0.0001")
MOST_FACTOR = 100.0


def _scaled_energy(energy: EnergyPrice, factor: Decimal) -> EnergyPrice:
    bands = tuple(replace(band, usd_per_kwh=(band.usd_per_kwh * factor).quantize(KWH_STEP)) for band in energy.bands)
    return replace(energy, usd_per_kwh=(energy.usd_per_kwh * factor).quantize(KWH_STEP), bands=bands)


@dataclass(frozen=True, slots=True)
class DemandChange:
    """The demand times ``factor``, today; of one workload, or of all."""

    factor: float
    workload: str = ""
    kind: Literal["demand"] = "demand"

    @property
    def words(self) -> str:
        """ "Demand +30 %"."""
        return f"{_of('Demand', self.workload)} {_percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale arrivals, users or offline requests as growth does (``planner.demand.scaled_load``)."""
        factor = _factor(self.factor, "factor")
        return _workloads(request, self.workload, lambda w: replace(w, load=scaled_load(w.load, factor)))


@dataclass(frozen=True, slots=True)
class GrowthChange:
    """The demand grows by ``per_month`` (0.05 is five percent), compound: what the capacity runway is made of."""

    per_month: float
    workload: str = ""
    kind: Literal["growth"] = "growth"

    @property
    def words(self) -> str:
        """ "Growth of 5 % a month"."""
        return f"{_of('Growth', self.workload)} of {figure(100 * self.per_month)} % a month"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Set the growth."""
        if not -0.5 <= self.per_month <= 1:
            raise InputError("must be between -0.5 and 1", field="per_month", value=self.per_month)
        return _workloads(request, self.workload, lambda w: replace(w, growth_per_month=self.per_month))


@dataclass(frozen=True, slots=True)
class LengthChange:
    """Input or output lengths times ``factor``; of one workload, or of all."""

    side: Literal["input", "output"]
    factor: float
    workload: str = ""
    kind: Literal["lengths"] = "lengths"

    @property
    def words(self) -> str:
        """ "Output length +50 %"."""
        return f"{_of(f'{self.side.capitalize()} length', self.workload)} {_percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the lengths."""
        factor = _factor(self.factor, "factor")

        def changed(w: PlanWorkload) -> PlanWorkload:
            if self.side == "input":
                return replace(w, input_tokens=scaled(w.input_tokens, factor))
            return replace(w, output_tokens=scaled(w.output_tokens, factor))

        return _workloads(request, self.workload, changed)


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Another model for one workload: a catalogue id, or the path of a config.json."""

    workload: str
    model: str
    label: str = ""  # what people call it, when ``model`` is a path
    kind: Literal["model"] = "model"

    @property
    def words(self) -> str:
        """ "Support chat with Qwen/Qwen3-32B"."""
        return f"{self.workload} with {self.label or self.model}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Exchange the model; the task must stay the same."""
        new = get_model(self.model)
        old = get_model(_workload(request, self.workload).model)
        if new.task != old.task:
            raise InputError(
                f"the model does another task ({new.task}) than that of {self.workload} ({old.task})",
                field="model", value=self.label or self.model, remedy="Choose a model of the same task.",
            )  # fmt: skip
        return _workloads(request, self.workload, lambda w: replace(w, model=self.model))


@dataclass(frozen=True, slots=True)
class PrecisionChange:
    """Other precisions allowed, best first; of one workload, or of all."""

    precisions: tuple[str, ...]
    workload: str = ""
    kind: Literal["precision"] = "precision"

    @property
    def words(self) -> str:
        """ "Precision fp8"."""
        return f"{_of('Precision', self.workload)} {' or '.join(self.precisions)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Exchange the precisions."""
        if not self.precisions:
            raise InputError("is empty", field="precisions", remedy="Name at least one precision.")
        unknown = next((name for name in self.precisions if name not in PRECISIONS), None)
        if unknown is not None:
            remedy = f"Use one of: {', '.join(PRECISIONS)}."
            raise InputError("unknown precision", field="precisions", value=unknown, remedy=remedy)
        return _workloads(request, self.workload, lambda w: replace(w, allowed_precisions=self.precisions))


@dataclass(frozen=True, slots=True)
class SloChange:
    """Latency limits times ``factor``: of ``metric``, or of all; of one workload, or of all."""

    factor: float
    metric: Literal["", "ttft", "tpot", "itl", "e2e"] = ""
    workload: str = ""
    kind: Literal["slo"] = "slo"

    @property
    def words(self) -> str:
        """ "TTFT limits −50 %"."""
        limits = f"{self.metric.upper() or 'SLO'} limits"
        return f"{_of(limits, self.workload)} {_percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the limits; raises InputError where no objective is met."""
        factor = _factor(self.factor, "factor")

        def changed(workload: PlanWorkload) -> PlanWorkload:
            targets = tuple(
                replace(t, limit_ms=t.limit_ms * factor) if self.metric in ("", t.metric) else t for t in workload.slo
            )
            return replace(workload, slo=targets)

        found = _workloads(request, self.workload, changed)
        if found.workloads == request.workloads and factor != 1:
            raise InputError("no workload has such a limit", field="metric", value=self.metric or "any")
        return found


@dataclass(frozen=True, slots=True)
class GpuPriceChange:
    """Prices per GPU-hour times ``factor``: of one GPU, or of all."""

    factor: float
    gpu: str = ""
    kind: Literal["gpu_price"] = "gpu_price"

    @property
    def words(self) -> str:
        """ "H100-SXM5-80GB price −20 %"."""
        return f"{self.gpu or 'GPU'} price{'' if self.gpu else 's'} {_percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the prices, parts included."""
        factor = Decimal(str(_factor(self.factor, "factor")))
        return _priced(request, self.gpu, lambda price: _times(price, factor))


@dataclass(frozen=True, slots=True)
class ElectricityChange:
    """Another price of electricity. Where a GPU-hour price holds electricity, that part moves with it."""

    usd_per_kwh: Decimal
    kind: Literal["electricity"] = "electricity"

    @property
    def words(self) -> str:
        """ "Electricity at $0.25 per kWh"."""
        return self.words_in(BASE)

    def words_in(self, currency: str) -> str:
        """The same of a plan in ``currency``."""
        return f"Electricity at {symbol(currency)}{self.usd_per_kwh.normalize():f} per kWh"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Set the price; raises InputError when the request knows none to compare with."""
        if not 0 <= self.usd_per_kwh <= 10:
            limits = f"must be between 0 and 10 {request.currency}"
            raise InputError(limits, field="usd_per_kwh", value=self.usd_per_kwh)
        if request.energy is None:
            raise InputError("the plan knows no price of electricity", field="usd_per_kwh", value=self.usd_per_kwh)
        new, old = self.usd_per_kwh.quantize(KWH_STEP), request.energy.usd_per_kwh
        if old <= 0:
            return replace(request, energy=replace(request.energy, usd_per_kwh=new))
        factor = self.usd_per_kwh / old
        sites = tuple(replace(site, energy=_scaled_energy(site.energy, factor)) for site in request.site_energy)
        energy = replace(_scaled_energy(request.energy, factor), usd_per_kwh=new)
        found = replace(request, energy=energy, site_energy=sites)

        def moved(price: GpuHourPrice) -> GpuHourPrice:
            parts = tuple(
                (label, (usd * factor).quantize(PRICE_STEP) if label == ELECTRICITY else usd)
                for label, usd in price.parts
            )
            more = sum((usd for _, usd in parts), Decimal(0)) - sum((usd for _, usd in price.parts), Decimal(0))
            return replace(price, parts=parts, usd_per_gpu_hour=price.usd_per_gpu_hour + more) if more else price

        return _priced(found, "", moved)


@dataclass(frozen=True, slots=True)
class LostChange:
    """A node, or every node of a site, is gone."""

    node: str = ""
    site: str = ""
    kind: Literal["lost"] = "lost"

    @property
    def words(self) -> str:
        """ "Without fra-h200-01"."""
        return f"Without {self.node or f'site {self.site}'}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Take the nodes out, with what runs on them; raises InputError when nothing is left or nothing was there."""
        if bool(self.node) == bool(self.site):
            raise InputError("name either a node or a site", field="node", value=self.node or self.site)
        gone = {n.name for n in request.nodes if n.name == self.node or (self.site and n.site == self.site)}
        if not gone:
            field, value = ("node", self.node) if self.node else ("site", self.site)
            raise InputError("is not in the plan", field=field, value=value)
        left = tuple(n for n in request.nodes if n.name not in gone)
        if not left:
            raise InputError("no node would be left", field="node", value=self.node or self.site)
        lost = {(p.workload, p.candidate_id, p.replica) for p in request.current if p.node in gone}
        current = tuple(p for p in request.current if (p.workload, p.candidate_id, p.replica) not in lost)
        return replace(request, nodes=left, current=current)


@dataclass(frozen=True, slots=True)
class BuyChange:
    """Nodes of a kind of GPU may be bought, at a price per GPU-hour; ``at_most`` nodes, or as many as are needed."""

    gpu: str
    gpus: int
    nvlink_domain: int
    usd_per_gpu_hour: Decimal
    at_most: int | None = None
    site: str = ""
    kind: Literal["buy"] = "buy"

    @property
    def words(self) -> str:
        """ "At most 2 nodes of 8 B200-SXM to buy at $5.50 per GPU-hour"."""
        return self.words_in(BASE)

    def words_in(self, currency: str) -> str:
        """The same of a plan in ``currency``."""
        many = f"At most {self.at_most} node{'' if self.at_most == 1 else 's'}" if self.at_most else "Nodes"
        price = f"{symbol(currency)}{self.usd_per_gpu_hour.normalize():f}"
        return f"{many} of {self.gpus} {self.gpu} to buy at {price} per GPU-hour"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Add the option, and let the plan buy where it only used what is owned."""
        gpu = get_gpu(self.gpu)
        for field, value, low, high in (
            ("gpus", self.gpus, 1, 576), ("nvlink_domain", self.nvlink_domain, 1, 576),
            ("usd_per_gpu_hour", self.usd_per_gpu_hour, 0, 10_000),
        ):  # fmt: skip
            if not low <= value <= high:
                raise InputError(f"must be between {low} and {high}", field=field, value=value)
        if self.at_most is not None and self.at_most < 1:
            raise InputError("must be at least 1", field="at_most", value=self.at_most)
        node = PlanNode(
            name=f"new-{gpu.name.lower()}", pool=f"what-if/{gpu.name.lower()}",
            site=self.site or request.nodes[0].site, gpu=gpu.name, gpus=self.gpus,
            nvlink_domain=min(self.nvlink_domain, self.gpus),
            price=GpuHourPrice(self.usd_per_gpu_hour, "rental", "what-if"), state="planned",
        )  # fmt: skip
        mode = "owned_plus_purchase" if request.mode == "owned" else request.mode
        options = (*request.purchase_options, PurchaseOption(node, max_count=self.at_most))
        return replace(request, purchase_options=options, mode=mode)


Change = (
    DemandChange | GrowthChange | LengthChange | ModelChange | PrecisionChange | SloChange | GpuPriceChange
    | ElectricityChange | LostChange | BuyChange
)  # fmt: skip
KINDS: dict[str, type[Any]] = {
    "demand": DemandChange, "growth": GrowthChange, "lengths": LengthChange, "model": ModelChange,
    "precision": PrecisionChange, "slo": SloChange, "gpu_price": GpuPriceChange, "electricity": ElectricityChange,
    "lost": LostChange, "buy": BuyChange,
}  # fmt: skip
"""Every kind of change by the word that names it in JSON."""


def parse_change(data: Any, path: str = "changes[0]") -> Change:
    """A change from JSON; raises InputError naming the field that is missing, unknown or ill-typed."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError("is no kind of change", field=f"{path}.kind", value=kind, remedy=f"Use {', '.join(KINDS)}.")
    found: Change = from_json(KINDS[kind], data, path)
    return found


def apply(request: PlanRequest, changes: Sequence[Change], name: str = "") -> PlanRequest:
    """``request`` with all ``changes``, in order, under ``name``. Raises InputError for one that cannot be made."""
    for at, change in enumerate(changes):
        try:
            request = change.apply(request)
        except InputError as error:
            field = f"changes[{at}].{error.field}"
            raise type(error)(error.message, field=field, value=error.value, remedy=error.remedy) from error
    return replace(request, name=name or request.name)


def words(changes: Sequence[Change], currency: str = BASE) -> str:
    """All changes in one line, their amounts in the ``currency`` of the plan."""
    priced = ElectricityChange, BuyChange
    said = (change.words_in(currency) if isinstance(change, priced) else change.words for change in changes)
    return "; ".join(said)


def as_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes as they are stored."""
    return [to_json(change) for change in changes]


def _of(what: str, workload: str) -> str:
    return f"{workload}: {what[:1].lower() + what[1:] if what[1:2].islower() else what}" if workload else what


def _percent(factor: float) -> str:
    change = 100 * (factor - 1)
    return f"{'+' if change >= 0 else ''}{figure(change)} %"


def _factor(value: float, field: str) -> float:
    if not 1 / MOST_FACTOR <= value <= MOST_FACTOR:
        raise InputError(f"must be between {1 / MOST_FACTOR:g} and {MOST_FACTOR:g}", field=field, value=value)
    return value


def _workload(request: PlanRequest, name: str) -> PlanWorkload:
    found = next((w for w in request.workloads if w.name == name), None)
    if found is None:
        known = ", ".join(w.name for w in request.workloads)
        raise InputError("is not in the plan", field="workload", value=name, remedy=f"Its workloads are: {known}.")
    return found


def _workloads(request: PlanRequest, name: str, change: Callable[[PlanWorkload], PlanWorkload]) -> PlanRequest:
    if name:
        _workload(request, name)
    changed = tuple(change(w) if name in ("", w.name) else w for w in request.workloads)
    return replace(request, workloads=changed)


def _priced(request: PlanRequest, gpu: str, change: Callable[[GpuHourPrice], GpuHourPrice]) -> PlanRequest:
    if gpu and not any(node.gpu == gpu for node in (*request.nodes, *(o.node for o in request.purchase_options))):
        raise InputError("is not in the plan", field="gpu", value=gpu)

    def of(node: PlanNode) -> PlanNode:
        return replace(node, price=change(node.price)) if gpu in ("", node.gpu) else node

    options = tuple(replace(option, node=of(option.node)) for option in request.purchase_options)
    return replace(request, nodes=tuple(map(of, request.nodes)), purchase_options=options)


def _times(price: GpuHourPrice, factor: Decimal) -> GpuHourPrice:
    """All parts scaled; what rounding leaves goes to the first, so that they add up to the price."""
    usd = (price.usd_per_gpu_hour * factor).quantize(PRICE_STEP)
    parts = [(label, (amount * factor).quantize(PRICE_STEP)) for label, amount in price.parts]
    if parts:
        rest = usd - sum((amount for _, amount in parts), Decimal(0))
        parts[0] = (parts[0][0], parts[0][1] + rest)
    return replace(price, usd_per_gpu_hour=usd, parts=tuple(parts))

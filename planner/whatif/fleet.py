"""What-ifs of what there is: prices, nodes lost, nodes to buy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from planner.catalog import get_gpu
from planner.economics.currency import BASE, symbol
from planner.economics.money import PRICE_STEP
from planner.economics.types import ELECTRICITY, EnergyPrice, GpuHourPrice
from planner.errors import InputError
from planner.plan_types import PlanNode, PlanRequest, PurchaseOption
from planner.whatif.factors import checked_factor, percent

KWH_STEP = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class GpuPriceChange:
    """Prices per GPU-hour times ``factor``: of one GPU, or of all."""

    factor: float
    gpu: str = ""
    kind: Literal["gpu_price"] = "gpu_price"

    @property
    def words(self) -> str:
        """ "H100-SXM5-80GB price −20 %"."""
        return f"{self.gpu or 'GPU'} price{'' if self.gpu else 's'} {percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the prices, parts included."""
        factor = Decimal(str(checked_factor(self.factor, "factor")))
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


def _scaled_energy(energy: EnergyPrice, factor: Decimal) -> EnergyPrice:
    bands = tuple(replace(band, usd_per_kwh=(band.usd_per_kwh * factor).quantize(KWH_STEP)) for band in energy.bands)
    return replace(energy, usd_per_kwh=(energy.usd_per_kwh * factor).quantize(KWH_STEP), bands=bands)

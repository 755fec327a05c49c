"""What-ifs of what is asked: demand, lengths, models, precisions, latency limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from planner.catalog import get_model
from planner.demand import scaled_lengths, scaled_load
from planner.errors import InputError
from planner.models.precision import PRECISIONS
from planner.plan_types import PlanRequest, PlanWorkload
from planner.whatif.factors import checked_factor, percent
from planner.words import figure


@dataclass(frozen=True, slots=True)
class DemandChange:
    """The demand times ``factor``, today; of one workload, or of all."""

    factor: float
    workload: str = ""
    kind: Literal["demand"] = "demand"

    @property
    def words(self) -> str:
        """ "Demand +30 %"."""
        return f"{_of('Demand', self.workload)} {percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale arrivals, users or offline requests as growth does (``planner.demand.scaled_load``)."""
        factor = checked_factor(self.factor, "factor")
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
        return f"{_of(f'{self.side.capitalize()} length', self.workload)} {percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the lengths."""
        factor = checked_factor(self.factor, "factor")

        def changed(w: PlanWorkload) -> PlanWorkload:
            if self.side == "input":
                return replace(w, input_tokens=scaled_lengths(w.input_tokens, factor))
            return replace(w, output_tokens=scaled_lengths(w.output_tokens, factor))

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
        return f"{_of(limits, self.workload)} {percent(self.factor)}"

    def apply(self, request: PlanRequest) -> PlanRequest:
        """Scale the limits; raises InputError where no objective is met."""
        factor = checked_factor(self.factor, "factor")

        def changed(workload: PlanWorkload) -> PlanWorkload:
            targets = tuple(
                replace(t, limit_ms=t.limit_ms * factor) if self.metric in ("", t.metric) else t for t in workload.slo
            )
            return replace(workload, slo=targets)

        found = _workloads(request, self.workload, changed)
        if found.workloads == request.workloads and factor != 1:
            raise InputError("no workload has such a limit", field="metric", value=self.metric or "any")
        return found


def _of(what: str, workload: str) -> str:
    return f"{workload}: {what[:1].lower() + what[1:] if what[1:2].islower() else what}" if workload else what


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

"""What if: a stored request with something changed, ready to be planned again.

Each change is a small frozen record that says in words what it does. ``apply`` returns a new request; the base is left
as it is. A change that meets nothing (a workload, node or GPU that is not there) is an InputError, never silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.economics.currency import BASE
from planner.errors import InputError
from planner.jsonio import from_json, to_json
from planner.plan_types import PlanRequest
from planner.whatif.fleet import BuyChange, ElectricityChange, GpuPriceChange, LostChange
from planner.whatif.workloads import DemandChange, GrowthChange, LengthChange, ModelChange, PrecisionChange, SloChange

__all__ = [
    "KINDS",
    "BuyChange",
    "Change",
    "DemandChange",
    "ElectricityChange",
    "GpuPriceChange",
    "GrowthChange",
    "LengthChange",
    "LostChange",
    "ModelChange",
    "PrecisionChange",
    "SloChange",
    "apply",
    "as_json",
    "parse_change",
    "words",
]

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

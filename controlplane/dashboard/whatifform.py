"""The form of a what-if: each line that is filled in becomes one change of the plan's question."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from controlplane.dashboard.fields import plain_numbers
from controlplane.dashboard.forms import PRECISION_WORDS, gpu_names
from controlplane.planning.models import Plan
from controlplane.workloads.models import PRECISIONS
from controlplane.workloads.services import planner_model
from planner.errors import PlannerError
from planner.whatif import (
    BuyChange,
    Change,
    DemandChange,
    ElectricityChange,
    GpuPriceChange,
    GrowthChange,
    LengthChange,
    LostChange,
    ModelChange,
    PrecisionChange,
    SloChange,
)

ALL = [("", "All workloads")]
METRICS = [("", "All limits"), ("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E")]
MOST_AT_ONCE = 3
"""What-ifs that one form makes when each line is one of its own: with their base they fill a comparison."""


def _percent(label: str, low: float = -99, high: float = 9900, **more: Any) -> forms.FloatField:
    return forms.FloatField(label=label, required=False, min_value=low, max_value=high, **more)


class WhatIfForm(forms.Form):
    """What to change; nothing is required, one line at least must be filled in."""

    demand = _percent("Demand")
    demand_of = forms.ChoiceField(label="of", required=False)
    growth = _percent("Growth a month", -50, 100)
    growth_of = forms.ChoiceField(label="of", required=False)
    lengths = _percent("Length")
    lengths_side = forms.ChoiceField(
        label="Side", required=False, choices=[("output", "Output"), ("input", "Input")], initial="output"
    )
    lengths_of = forms.ChoiceField(label="of", required=False)
    model = forms.CharField(label="Model", required=False, max_length=200)
    model_of = forms.ChoiceField(label="for", required=False)
    precision = forms.ChoiceField(
        label="Precision", required=False,
        choices=[("", "as asked"), *((name, PRECISION_WORDS.get(name, name)) for name in PRECISIONS)],
    )  # fmt: skip
    precision_of = forms.ChoiceField(label="of", required=False)
    slo = _percent("Latency limits")
    slo_metric = forms.ChoiceField(label="Which", required=False, choices=METRICS)
    slo_of = forms.ChoiceField(label="of", required=False)
    gpu_price = _percent("Price per GPU-hour")
    gpu_price_of = forms.ChoiceField(label="of", required=False)
    electricity = forms.DecimalField(label="Electricity", required=False, min_value=0, max_value=10, decimal_places=4)
    lost = forms.ChoiceField(label="Gone", required=False)
    buy = forms.ChoiceField(label="GPU to buy", required=False)
    buy_gpus = forms.IntegerField(label="GPUs a node", required=False, min_value=1, max_value=576, initial=8)
    buy_price = forms.DecimalField(label="Price", required=False, min_value=0, max_value=10_000, decimal_places=4)
    buy_most = forms.IntegerField(label="At most", required=False, min_value=1, max_value=10_000)
    title = forms.CharField(label="Name", required=False, max_length=300)
    each = forms.BooleanField(label="Each line as a what-if of its own", required=False)

    def __init__(self, plan: Plan, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        request = plan.request or {}
        names = [workload["name"] for workload in request.get("workloads", ())]
        nodes = request.get("nodes", ())
        for field in ("demand_of", "growth_of", "lengths_of", "precision_of", "slo_of"):
            self._choose(field, [*ALL, *((name, name) for name in names)])
        self._choose("model_of", [(name, name) for name in names])
        self._choose("gpu_price_of", [("", "All GPUs"), *((g, g) for g in sorted({node["gpu"] for node in nodes}))])
        sites = sorted({node["site"] for node in nodes})
        self._choose(
            "lost",
            [
                ("", "Nothing"),
                ("A site", [(f"site:{site}", f"All of {site}") for site in sites]),
                ("A node", [(f"node:{n['name']}", f"{n['name']}: {n['gpus']} × {n['gpu']}") for n in nodes]),
            ],
        )
        self._choose("buy", [("", "None"), *((name, name) for name in gpu_names())])
        energy = request.get("energy") or {}
        self.fields["electricity"].widget.attrs["placeholder"] = energy.get("usd_per_kwh", "unknown")
        self.fields["electricity"].disabled = not energy
        self.fields["model"].widget.attrs.update(
            {"list": "models", "autocomplete": "off", "spellcheck": "false", "placeholder": "as asked"}
        )
        for name in ("demand", "growth", "lengths", "slo", "gpu_price"):
            self.fields[name].widget.attrs["placeholder"] = "0"
        self.fields["title"].widget.attrs["placeholder"] = "made of the changes"
        plain_numbers(self)

    def _choose(self, field: str, choices: list[Any]) -> None:
        self.fields[field].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """A GPU to buy needs a price; a model must be known."""
        data = super().clean() or {}
        if data.get("buy") and data.get("buy_price") is None and "buy_price" not in self.errors:
            self.add_error("buy_price", "Say what a GPU-hour of it costs.")
        if data.get("model"):
            try:
                data["model_path"] = planner_model(data["model"])
            except PlannerError as error:
                self.add_error("model", str(error))
        return data

    def changes(self) -> list[Change]:
        """The changes of the lines that are filled in; raises ValidationError when there is none."""
        data = self.cleaned_data
        found: list[Change] = []
        if data["demand"]:
            found.append(DemandChange(_factor(data["demand"]), data["demand_of"]))
        if data["growth"] is not None:
            found.append(GrowthChange(data["growth"] / 100, data["growth_of"]))
        if data["lengths"]:
            side: Any = data["lengths_side"] or "output"
            found.append(LengthChange(side, _factor(data["lengths"]), data["lengths_of"]))
        if data["model"]:
            found.append(ModelChange(data["model_of"], data["model_path"], data["model"]))
        if data["precision"]:
            found.append(PrecisionChange((data["precision"],), data["precision_of"]))
        if data["slo"]:
            metric: Any = data["slo_metric"]
            found.append(SloChange(_factor(data["slo"]), metric, data["slo_of"]))
        if data["gpu_price"]:
            found.append(GpuPriceChange(_factor(data["gpu_price"]), data["gpu_price_of"]))
        if data.get("electricity") is not None:
            found.append(ElectricityChange(Decimal(data["electricity"])))
        if data["lost"]:
            kind, _, name = data["lost"].partition(":")
            found.append(LostChange(site=name) if kind == "site" else LostChange(node=name))
        if data["buy"]:
            gpus = data["buy_gpus"] or 8
            found.append(BuyChange(data["buy"], gpus, gpus, data["buy_price"], data["buy_most"]))
        if not found:
            raise ValidationError("Nothing is changed; fill in at least one line.")
        return found

    def questions(self) -> list[tuple[list[Change], str]]:
        """Changes and name of each what-if to compute; raises ValidationError for none, or for too many at once."""
        changes = self.changes()
        if not self.cleaned_data["each"] or len(changes) == 1:
            return [(changes, self.cleaned_data["title"])]
        if len(changes) > MOST_AT_ONCE:
            raise ValidationError(
                f"{len(changes)} lines are filled in; at most {MOST_AT_ONCE} are computed side by side at once."
            )
        return [([change], "") for change in changes]


def _factor(percent: float) -> float:
    return round(1 + percent / 100, 6)

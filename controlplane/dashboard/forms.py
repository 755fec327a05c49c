"""Forms of the pages. They shape input; rules live in the models and services."""

from __future__ import annotations

from typing import Any

from django import forms

from controlplane.dashboard.fields import PercentField, ProfileField, plain_numbers
from controlplane.inventory.models import ENGINES, Node
from controlplane.planning.models import Scenario
from controlplane.workloads.models import PRECISIONS, SloTarget, Workload
from planner import catalog

ENGINE_CHOICES = [("vllm", "vLLM"), ("tensorrt_llm", "TensorRT-LLM")]
LENGTH_KINDS = [
    ("fixed", "Always the same"), ("normal", "Mean and spread"), ("uniform", "Between two limits"),
    ("trace", "As in the trace"),
]  # fmt: skip
PRECISION_WORDS = {"as-config": "as the checkpoint"}
EXTRA_SLO_ROWS = 1


class LengthFields:
    """The four fields by which one side's request lengths are stated, and their planner JSON."""

    @staticmethod
    def add(form: forms.BaseForm, side: str, value: dict[str, Any]) -> None:
        """Add fields ``<side>_kind``, ``_a`` and ``_b`` filled from planner ``Lengths`` JSON."""
        kind = value.get("kind", "fixed")
        kinds = LENGTH_KINDS if kind != "samples" else [*LENGTH_KINDS, ("samples", "Stored samples")]
        first = {"normal": "mean", "uniform": "low"}.get(kind, "value")
        second = {"normal": "sd", "uniform": "high"}.get(kind, "")
        form.fields[f"{side}_kind"] = forms.ChoiceField(
            choices=kinds, initial=kind, label=f"{side.capitalize()} length"
        )
        form.fields[f"{side}_kind"].widget.attrs["data-shows"] = ""
        form.fields[f"{side}_a"] = forms.IntegerField(
            required=False, min_value=0, max_value=10_000_000, initial=_whole(value.get(first)), label="Tokens"
        )
        form.fields[f"{side}_b"] = forms.IntegerField(
            required=False, min_value=0, max_value=10_000_000, initial=_whole(value.get(second)), label="Spread"
        )

    @staticmethod
    def read(data: dict[str, Any], side: str, stored: dict[str, Any]) -> dict[str, Any]:
        """Planner ``Lengths`` JSON from cleaned data; ``stored`` is kept for stored samples."""
        kind, a, b = data.get(f"{side}_kind"), data.get(f"{side}_a") or 0, data.get(f"{side}_b") or 0
        if kind == "normal":
            return {"kind": "normal", "mean": float(a), "sd": float(b)}
        if kind == "uniform":
            return {"kind": "uniform", "low": a, "high": b}
        if kind == "samples":
            return stored
        return {"kind": "trace"} if kind == "trace" else {"kind": "fixed", "value": a}


def _whole(value: Any) -> int | None:
    return None if value in (None, "") else round(float(value))


class WorkloadForm(forms.ModelForm):
    """Describe or change a workload."""

    allowed_engines = forms.MultipleChoiceField(
        choices=ENGINE_CHOICES, initial=list(ENGINES), widget=forms.CheckboxSelectMultiple, label="Engines"
    )
    allowed_precisions = forms.MultipleChoiceField(
        choices=[(p, PRECISION_WORDS.get(p, p)) for p in PRECISIONS], initial=["as-config"],
        widget=forms.CheckboxSelectMultiple, label="Precisions, any of",
    )  # fmt: skip

    hour_profile = ProfileField(required=False, label="Hours of the week")
    prefix_hit = PercentField(
        min_value=0, max_value=99.9, label="Prefix hit", help_text="Of prompt tokens, already in the prefix cache."
    )
    mean_load_share = PercentField(
        min_value=0.1, max_value=100, label="Mean load / peak",
        help_text="Mean demand over the month, of the peak planned for.",
    )  # fmt: skip
    growth_per_month = PercentField(
        min_value=-50, max_value=100, label="Growth a month", help_text="Compound; empty: as the scenario says."
    )

    class Meta:
        model = Workload
        fields = [
            "name", "kind", "model_ref", "trace", "load_kind", "rate_per_s", "concurrency", "requests", "arrival",
            "arrival_cv", "prefix_hit", "turns_low", "turns_high", "think_s", "shared_tokens", "priority",
            "tenant", "site", "adapters", "adapter_rank", "revisions_per_month",
            "allowed_engines", "allowed_precisions", "max_model_len", "n_plus_1", "spread", "hours_per_month",
            "mean_load_share", "hour_profile", "growth_per_month", "plan_for_month", "notes",
        ]  # fmt: skip
        widgets = {"notes": forms.Textarea(attrs={"rows": 2})}
        labels = {
            "model_ref": "Model", "load_kind": "Who asks", "rate_per_s": "Rate", "concurrency": "Users at once",
            "arrival_cv": "Variation of the gaps", "max_model_len": "Context, at most",
            "n_plus_1": "Keep one replica to spare", "spread": "Spread replicas over failure domains",
            "plan_for_month": "Plan for month", "turns_low": "Turns of a session, at least",
            "turns_high": "Turns, at most", "think_s": "Pause between turns", "shared_tokens": "Shared beginning",
            "hours_per_month": "Hours a month", "adapter_rank": "Adapter rank",
        }  # fmt: skip
        help_texts = {"n_plus_1": "", "spread": ""}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model_ref"].widget.attrs.update(
            {"list": "models", "autocomplete": "off", "spellcheck": "false", "placeholder": "organisation/name"}
        )
        self.fields["load_kind"].widget.attrs["data-shows"] = ""
        self.fields["arrival"].widget.attrs["data-shows"] = ""
        plain_numbers(self)
        self.fields["trace"].empty_label = "None"  # type: ignore[attr-defined]
        self.fields["site"].empty_label = "Any"  # type: ignore[attr-defined]
        for name in ("concurrency", "arrival_cv", "prefix_hit", "adapters", "adapter_rank", "revisions_per_month",
                     "hours_per_month", "mean_load_share", "rate_per_s", "priority", "turns_low", "turns_high",
                     "think_s", "shared_tokens", "plan_for_month"):  # fmt: skip
            self.fields[name].required = False
        for side in ("input", "output"):
            LengthFields.add(self, side, getattr(self.instance, f"{side}_tokens"))

    def clean(self) -> dict[str, Any]:
        """Blank optional numbers take the model's defaults; lengths become planner JSON."""
        data = super().clean() or {}
        for name, value in list(data.items()):
            if value is None and name in self.Meta.fields and not self.instance._meta.get_field(name).null:
                data[name] = self.instance._meta.get_field(name).get_default()
        for side in ("input", "output"):
            stored = getattr(self.instance, f"{side}_tokens")
            setattr(self.instance, f"{side}_tokens", LengthFields.read(data, side, stored))
        return data

    def add_error(self, field: str | None, error: Any) -> None:
        """Errors of the JSON length columns belong to the fields in which lengths are stated."""
        moved = {"input_tokens": "input_a", "output_tokens": "output_a"}
        if field is None and hasattr(error, "error_dict"):
            error.error_dict = {moved.get(key, key): value for key, value in error.error_dict.items()}
            known = {key: value for key, value in error.error_dict.items() if key in self.fields or key == "__all__"}
            rest = [message for key, value in error.error_dict.items() if key not in known for message in value]
            error.error_dict = {**known, **({"__all__": rest} if rest else {})}
        super().add_error(moved.get(field, field) if field else field, error)


class SloForm(forms.ModelForm):
    """One objective."""

    class Meta:
        model = SloTarget
        fields = ["metric", "stat", "limit_ms"]
        labels = {"limit_ms": "At most"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain_numbers(self)
        self.fields["metric"].choices = [("", "Metric"), *SloTarget.Metric.choices]  # type: ignore[attr-defined]


SloFormSet = forms.inlineformset_factory(
    Workload, SloTarget, form=SloForm, extra=EXTRA_SLO_ROWS, can_delete=True, max_num=12
)


class ModelUploadForm(forms.Form):
    """A model by its own config.json."""

    model_id = forms.CharField(max_length=200, label="Model id", help_text="organisation/name")
    config = forms.FileField(label="config.json")
    quant_config = forms.FileField(label="hf_quant_config.json", required=False)
    weight_index = forms.FileField(
        label="model.safetensors.index.json", required=False,
        help_text="If given, the bytes in the files are compared with those counted.",
    )  # fmt: skip
    source = forms.CharField(max_length=300, required=False)


class ScenarioForm(forms.ModelForm):
    """The question that a plan answers."""

    growth_per_month = PercentField(
        min_value=-50, max_value=100, label="Growth a month",
        help_text="Of every demand, compound. Makes the capacity runway.",
    )  # fmt: skip
    price_erosion_per_year = PercentField(
        min_value=0, max_value=95, label="GPUs get cheaper, a year", help_text="For GPUs that come later."
    )
    DEFAULTED = (
        "objective", "growth_per_month", "lead_time_months", "price_erosion_per_year", "horizon_months", "currency",
    )  # fmt: skip

    class Meta:
        model = Scenario
        fields = [
            "name", "mode", "objective", "budget_usd_per_hour", "max_power_kw", "max_rack_units", "share_gpus",
            "workloads", "sites", "time_limit_s", "growth_per_month", "lead_time_months", "price_erosion_per_year",
            "horizon_months", "currency", "rates_as_of", "notes",
        ]  # fmt: skip
        widgets = {
            "mode": forms.RadioSelect,
            "rates_as_of": forms.DateInput(attrs={"type": "date"}),
            "workloads": forms.CheckboxSelectMultiple,
            "sites": forms.CheckboxSelectMultiple,
            "notes": forms.Textarea(attrs={"rows": 2}),
        }
        labels = {
            "mode": "Which GPUs", "time_limit_s": "Time to search",
            "lead_time_months": "Lead time of GPUs", "rates_as_of": "Exchange rates as of", "objective": "Least of",
            "budget_usd_per_hour": "Budget of nodes bought", "max_power_kw": "Power of nodes bought",
            "max_rack_units": "Rack space of nodes bought", "share_gpus": "Several small engines on one GPU",
            "horizon_months": "View ahead",
        }  # fmt: skip
        help_texts = {
            "workloads": "None ticked: every workload.", "sites": "None ticked: every site.",
            "lead_time_months": "From order to service.",
            "currency": "A code like EUR, or a service unit.", "rates_as_of": "Empty: the day it is computed.",
            "budget_usd_per_hour": "Empty: no limit.", "max_power_kw": "Empty: no limit.",
            "max_rack_units": "Empty: no limit.",
            "horizon_months": "For the runway and the years of the bill.",
            "share_gpus": "Of one tenant, by memory share; vLLM only.",
        }  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.DEFAULTED:
            self.fields[name].required = False
        self.fields["mode"].choices = Scenario.Mode.choices  # type: ignore[attr-defined]
        self.fields["objective"].choices = Scenario.Objective.choices  # type: ignore[attr-defined]
        plain_numbers(self)

    def clean(self) -> dict[str, Any]:
        """Blanks take the model's defaults."""
        data = super().clean() or {}
        for name in self.DEFAULTED:
            if data.get(name) in (None, "") and name not in self.errors:
                data[name] = Scenario._meta.get_field(name).get_default()  # type: ignore[union-attr]
        return data


class DeploymentForm(forms.Form):
    """One engine on one node, outside any plan."""

    node = forms.ModelChoiceField(queryset=Node.objects.filter(state=Node.State.ACTIVE), empty_label=None)
    model = forms.CharField(max_length=200)
    engine = forms.ChoiceField(choices=ENGINE_CHOICES)
    tp = forms.TypedChoiceField(choices=[(n, str(n)) for n in (1, 2, 4, 8)], coerce=int, label="TP", initial=1)
    precision = forms.ChoiceField(choices=[(p, PRECISION_WORDS.get(p, p)) for p in PRECISIONS])
    max_model_len = forms.IntegerField(required=False, min_value=1, max_value=20_000_000, label="Context")
    first_gpu = forms.IntegerField(min_value=0, max_value=575, initial=0, label="First GPU")
    workload = forms.ModelChoiceField(queryset=Workload.objects.all(), required=False, empty_label="None")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["model"].widget.attrs.update({"list": "models", "autocomplete": "off", "spellcheck": "false"})
        self.fields["max_model_len"].widget.attrs["placeholder"] = "default"

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``deployments.services.create_deployment``."""
        data = self.cleaned_data
        options = {"tp": data["tp"], "precision": data["precision"]}
        if data["max_model_len"]:
            options["max_model_len"] = data["max_model_len"]
        indexes = list(range(data["first_gpu"], data["first_gpu"] + data["tp"]))
        return {
            "node": data["node"], "model_ref": data["model"], "engine": data["engine"], "gpu_indexes": indexes,
            "options": options, "workload": data["workload"],
        }  # fmt: skip


def gpu_names() -> list[str]:
    """Catalogue names of all GPUs."""
    return [gpu.name for gpu in catalog.list_gpus()]

"""The memory page's question: a model, a GPU, an engine with its settings, the device's state, and the requests."""

from __future__ import annotations

from typing import Any

from django import forms

from controlplane.dashboard.fields import plain_numbers
from controlplane.dashboard.forms import ENGINE_CHOICES, PRECISION_WORDS, gpu_names
from controlplane.workloads.models import PRECISIONS
from planner import catalog
from planner.engines.types import DEFAULT_VERSION, EngineName, EngineSettings
from planner.errors import PlannerError

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
LENGTHS_ABOVE = "lengths"
SETTINGS = (
    "tp", "pp", "precision", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
OPTIONAL_SETTINGS = ("version", "kv_cache_max_tokens", "kv_cache_max_gpu_gib", "kv_cache_host_gib", "capacity_policy")
OF_BOTH = ("version", "kv_cache_max_tokens")
COUNTS = ("max_loras", "speculative_tokens", "mm_items_per_prompt", "logprobs")
REMEDY_FIELDS = {"gpu_memory_utilization": "share", "free_gpu_memory_fraction": "share"}
"""Form field of a planner setting, where the names differ."""


class MemoryForm(forms.Form):
    """Any model on any GPU with any settings: what fits? Blank fields are left to the engine."""

    model = forms.CharField(max_length=200, initial="Qwen/Qwen3-32B")
    gpu = forms.ChoiceField(label="GPU")
    engine = forms.ChoiceField(choices=ENGINE_CHOICES)
    tp = forms.TypedChoiceField(choices=[(n, str(n)) for n in RANKS], coerce=int, label="TP", initial=1)
    pp = forms.TypedChoiceField(choices=[(n, str(n)) for n in RANKS], coerce=int, label="PP", initial=1)
    precision = forms.ChoiceField(choices=[(p, PRECISION_WORDS.get(p, p)) for p in PRECISIONS])
    kv_cache_dtype = forms.ChoiceField(choices=[("auto", "auto"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8"),
                                                ("fp4", "fp4")], label="KV cache")  # fmt: skip
    max_model_len = forms.IntegerField(required=False, min_value=1, max_value=20_000_000, label="Context")
    share = forms.FloatField(required=False, min_value=0.05, max_value=1.0, label="Memory share")
    max_num_seqs = forms.IntegerField(required=False, min_value=1, max_value=65_536, label="Sequences at once")
    max_num_batched_tokens = forms.IntegerField(required=False, min_value=1, max_value=4_194_304, label="Tokens a step")

    input_tokens = forms.IntegerField(required=False, min_value=1, max_value=20_000_000, label="Input")
    output_tokens = forms.IntegerField(required=False, min_value=1, max_value=20_000_000, label="Output")
    concurrency = forms.IntegerField(required=False, min_value=1, max_value=1_000_000, label="Requests at once")
    demand = forms.ChoiceField(required=False, label="KV waste on")
    spread = forms.FloatField(required=False, min_value=0, max_value=5, label="Spread of lengths",
                              help_text="Standard deviation / mean")  # fmt: skip

    gpu_memory_gib = forms.FloatField(required=False, min_value=0.1, max_value=10_000, label="Memory of the device",
                                      help_text="As the driver reports it: a MIG slice, a capped card")  # fmt: skip
    used_by_others_gib = forms.FloatField(required=False, min_value=0, max_value=10_000, label="Used by others",
                                          help_text="Engines and processes that share the GPU")  # fmt: skip
    version = forms.CharField(required=False, max_length=40, label="Engine version")
    dp = forms.IntegerField(required=False, min_value=1, max_value=64, label="DP")
    ep = forms.IntegerField(required=False, min_value=1, max_value=512, label="EP")
    max_loras = forms.IntegerField(required=False, min_value=0, max_value=512, label="Adapters loaded")
    max_lora_rank = forms.IntegerField(required=False, min_value=1, max_value=512, label="Adapter rank")
    speculative_tokens = forms.IntegerField(required=False, min_value=0, max_value=32, label="Speculated tokens")
    mm_items_per_prompt = forms.IntegerField(required=False, min_value=0, max_value=1000, label="Images a prompt")
    logprobs = forms.IntegerField(required=False, min_value=0, max_value=1000, label="Log-probabilities a token")
    prompt_logprobs = forms.BooleanField(required=False, label="Log-probabilities of prompts")
    enforce_eager = forms.BooleanField(required=False, label="No CUDA graphs")

    kv_cache_max_tokens = forms.IntegerField(required=False, min_value=1, max_value=10**9, label="Pool, tokens at most")
    kv_cache_max_gpu_gib = forms.FloatField(required=False, min_value=0.01, max_value=10_000, label="Pool, at most")
    kv_cache_host_gib = forms.FloatField(required=False, min_value=0.01, max_value=10_000, label="Host cache")
    capacity_policy = forms.ChoiceField(
        required=False, label="When memory is short",
        choices=[("", "default"), ("GUARANTEED_NO_EVICT", "Reserve outputs"), ("MAX_UTILIZATION", "Fill, then pause")],
    )  # fmt: skip

    def __init__(self, data: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(with_catalogue_name(data), **kwargs)
        names: Any = self.fields
        names["gpu"].choices = [(name, name) for name in gpu_names()]
        names["gpu"].initial = catalog.get_gpu("H100").name
        names["demand"].choices = [
            ("", "Nothing"), (LENGTHS_ABOVE, "The lengths here"),
            *((name, name.removeprefix("lengths_").replace("_", " ")) for name in catalog.list_traces()),
        ]  # fmt: skip
        plain_numbers(self)
        for field in self.fields.values():
            if not field.required and isinstance(field, (forms.IntegerField, forms.FloatField, forms.CharField)):
                field.widget.attrs.setdefault("placeholder", "default")
        self.fields["engine"].widget.attrs["data-shows"] = ""
        self.fields["model"].widget.attrs.update({"list": "models", "autocomplete": "off", "spellcheck": "false"})
        self.fields["used_by_others_gib"].widget.attrs["placeholder"] = "none"
        for name in ("input_tokens", "output_tokens", "concurrency"):
            self.fields[name].widget.attrs["placeholder"] = "not stated"
        self._say_defaults()

    def settings(self) -> EngineSettings:
        """The planner's settings."""
        data = self.cleaned_data
        engine = EngineName(data["engine"])
        vllm = engine is EngineName.VLLM
        given: dict[str, Any] = {name: data[name] for name in SETTINGS}
        given |= {name: data[name] or 0 for name in COUNTS}
        given |= {name: data[name] for name in OPTIONAL_SETTINGS if data[name] and (not vllm or name in OF_BOTH)}
        return EngineSettings(
            engine=engine, dp=data["dp"] or 1, ep=data["ep"] or 1, max_lora_rank=data["max_lora_rank"] or 16,
            gpu_memory_utilization=data["share"] if vllm else None,
            free_gpu_memory_fraction=None if vllm else data["share"], enforce_eager=data["enforce_eager"],
            prompt_logprobs=data["prompt_logprobs"], **given,
        )  # fmt: skip

    def device(self) -> dict[str, Any]:
        """The device as the ledger takes it."""
        data = self.cleaned_data
        return {"total_gib": data["gpu_memory_gib"], "used_by_others_gib": data["used_by_others_gib"] or 0.0}

    def requests(self) -> dict[str, Any]:
        """Lengths and concurrency, for the preemption cliff."""
        return {name: self.cleaned_data[name] for name in ("input_tokens", "output_tokens", "concurrency")}

    @property
    def opened(self) -> bool:
        """Whether a setting of the folded part is in use, so that it must be seen."""
        folded = ("version", "dp", "ep", *COUNTS, "max_lora_rank", "prompt_logprobs", "enforce_eager")
        tensorrt = ("kv_cache_max_tokens", "kv_cache_max_gpu_gib", "kv_cache_host_gib", "capacity_policy")
        return any(self.data.get(name) for name in (*folded, *tensorrt)) or any(
            name in self.errors for name in (*folded, *tensorrt)
        )

    def blame(self, error: PlannerError) -> None:
        """Show a planner error at the field that it names, where the form has it."""
        name = error.field.removeprefix("settings.")
        name = REMEDY_FIELDS.get(name, name)
        if name in self.fields:
            self.add_error(name, str(error))

    def _say_defaults(self) -> None:
        """Name what a blank stands for, where that can be said without the answer."""
        engine = self.data.get("engine") or "vllm"
        if engine in list(EngineName):
            self.fields["version"].widget.attrs["placeholder"] = DEFAULT_VERSION[EngineName(engine)]
        try:
            gpu = catalog.get_gpu(self.data.get("gpu") or "H100")
        except PlannerError:
            return
        self.fields["gpu_memory_gib"].widget.attrs["placeholder"] = f"{gpu.total_gib:.2f}"


def with_catalogue_name(data: dict[str, Any] | None) -> dict[str, Any] | None:
    """``data`` with an alias such as H100 replaced by the catalogue's name, so that links may use either."""
    try:
        return {**data, "gpu": catalog.get_gpu(str(data["gpu"])).name} if data and data.get("gpu") else data
    except PlannerError:
        return data

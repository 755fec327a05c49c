"""The form that starts a probe: the load to put on a running engine."""

from __future__ import annotations

from typing import Any

from django import forms

from controlplane.dashboard.fields import MixField, plain_numbers
from runners.contracts import ProbeLoad


class ProbeForm(forms.Form):
    """The load of one probe: arrivals at a rate, or a fixed number of users when the rate is 0.

    With a mixture of lengths its means stand for the lengths, which may then be left empty.
    """

    rate_per_s = forms.FloatField(min_value=0, max_value=10_000, label="Rate", required=False)
    concurrency = forms.IntegerField(min_value=0, max_value=4096, label="Users, when no rate", required=False)
    input_tokens = forms.IntegerField(min_value=1, max_value=1_000_000, label="Input", required=False)
    output_tokens = forms.IntegerField(min_value=1, max_value=100_000, label="Output", required=False)
    requests = forms.IntegerField(min_value=1, max_value=100_000, label="Requests")
    input_sd = forms.FloatField(min_value=0, max_value=1_000_000, label="Spread of input", required=False)
    output_sd = forms.FloatField(min_value=0, max_value=100_000, label="Spread of output", required=False)
    mix = MixField(
        label="Mixture of lengths",
        help_text="One kind of request a line: input tokens, output tokens, per cent. Its means replace the lengths.",
    )
    shared_tokens = forms.IntegerField(
        min_value=0, max_value=1_000_000, label="Shared beginning", required=False,
        help_text="The first tokens of every prompt, found in the prefix cache after the first time.",
    )  # fmt: skip
    shared_prefixes = forms.IntegerField(
        min_value=1, max_value=100_000, label="Different beginnings", required=False,
        help_text="How many texts the prompts begin with.",
    )  # fmt: skip
    warmup_requests = forms.IntegerField(min_value=0, max_value=100_000, label="Warm-up requests", required=False)
    seed = forms.IntegerField(min_value=0, max_value=2**32 - 1, label="Seed", required=False)

    MAIN = ("rate_per_s", "concurrency", "input_tokens", "output_tokens", "requests")
    UNITS = {
        "rate_per_s": "req/s", "input_tokens": "tokens", "output_tokens": "tokens", "input_sd": "tokens",
        "output_sd": "tokens", "shared_tokens": "tokens",
    }  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain_numbers(self)

    def main(self) -> list[tuple[forms.BoundField, str]]:
        """The fields that most probes need, each with its unit."""
        return [(self[name], self.UNITS.get(name, "")) for name in self.MAIN]

    def more(self) -> list[tuple[forms.BoundField, str]]:
        """The others."""
        return [(self[name], self.UNITS.get(name, "")) for name in self.fields if name not in self.MAIN]

    def clean(self) -> dict[str, Any]:
        """Lengths are stated, or those of the mixture."""
        data = super().clean() or {}
        mix = data.get("mix") or ()
        total = sum(percent for _, _, percent in mix)
        for side, name in enumerate(("input_tokens", "output_tokens")):
            if total > 0:
                data[name] = max(1, round(sum(entry[side] * entry[2] for entry in mix) / total))
            elif data.get(name) is None and name not in self.errors:
                self.add_error(name, "State the tokens, or a mixture of lengths.")
        return data

    def load(self) -> ProbeLoad:
        """The load as the node's worker takes it."""
        data = self.cleaned_data
        warmup = data["warmup_requests"]
        return ProbeLoad(
            input_tokens=data["input_tokens"], output_tokens=data["output_tokens"],
            concurrency=data["concurrency"] or 0, requests=data["requests"], rate_per_s=data["rate_per_s"] or 0.0,
            input_sd=data["input_sd"] or 0.0, output_sd=data["output_sd"] or 0.0, mix=data["mix"],
            shared_tokens=data["shared_tokens"] or 0, shared_prefixes=data["shared_prefixes"] or 1,
            warmup_requests=2 if warmup is None else warmup, seed=data["seed"] or 0,
        )  # fmt: skip

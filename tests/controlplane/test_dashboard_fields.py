"""Fields of the forms: per cent everywhere, mixtures of lengths, and the load of a probe."""

from __future__ import annotations

from typing import Any

import pytest
from django import forms

from controlplane.dashboard.fields import MixField, PercentField
from controlplane.dashboard.forms import ScenarioForm, WorkloadForm
from controlplane.dashboard.probeform import ProbeForm
from controlplane.planning.models import Scenario

LOAD = {"rate_per_s": "2", "concurrency": "", "input_tokens": "512", "output_tokens": "64", "requests": "20"}


@pytest.mark.parametrize(("share", "typed"), [(0.05, "5"), (-0.5, "-50"), (0.0, "0"), (0.123, "12.3")])
def test_a_share_is_written_in_per_cent(share: float, typed: str) -> None:
    field = PercentField(min_value=-50, max_value=100)
    assert field.clean(typed) == share
    assert field.widget.format_value(field.prepare_value(share)) == typed
    assert field.prepare_value(typed) == typed, "what was typed stays as it was typed"


def test_per_cent_beyond_the_limits_is_refused_in_per_cent() -> None:
    field = PercentField(min_value=-50, max_value=100)
    assert field.clean("") is None
    with pytest.raises(forms.ValidationError, match="less than or equal to 100"):
        field.clean("101")
    with pytest.raises(forms.ValidationError, match="greater than or equal to -50"):
        field.clean("-51")


@pytest.mark.django_db
def test_growth_is_per_cent_in_every_form() -> None:
    form = ScenarioForm(
        {"name": "x", "mode": "owned", "time_limit_s": "30", "growth_per_month": "4", "price_erosion_per_year": "20"}
    )
    form.is_valid()
    assert form.cleaned_data["growth_per_month"] == 0.04
    assert form.cleaned_data["price_erosion_per_year"] == 0.2
    shown = ScenarioForm(instance=Scenario(name="x", growth_per_month=0.04))
    assert 'value="4"' in str(shown["growth_per_month"])
    for form_class in (ScenarioForm, WorkloadForm):
        assert isinstance(form_class.base_fields["growth_per_month"], PercentField)


def test_a_mixture_is_read_line_by_line() -> None:
    field = MixField()
    assert field.clean("512 128 70\n\n4096, 256, 30 %") == ((512, 128, 70.0), (4096, 256, 30.0))
    assert field.clean("") == ()
    assert field.prepare_value([[512, 128, 70.0]]) == "512 128 70"
    with pytest.raises(forms.ValidationError, match=r"Line 2 is '4096 x'; write input tokens, output tokens"):
        field.clean("512 128 70\n4096 x")
    with pytest.raises(forms.ValidationError, match="Line 1 has 4 numbers"):
        field.clean("512 128 70 4096")


def test_a_probe_states_all_that_its_load_has() -> None:
    more = {"shared_tokens": "256", "shared_prefixes": "4", "input_sd": "30", "warmup_requests": "0", "seed": "7"}
    form = ProbeForm({**LOAD, **more})
    assert form.is_valid(), form.errors
    load = form.load()
    assert (load.shared_tokens, load.shared_prefixes, load.input_sd) == (256, 4, 30.0)
    assert (load.warmup_requests, load.seed, load.mix) == (0, 7, ())


def test_a_mixture_gives_the_lengths_of_a_probe() -> None:
    form = ProbeForm({**LOAD, "input_tokens": "", "output_tokens": "", "mix": "500 100 50\n1500 300 50"})
    assert form.is_valid(), form.errors
    load = form.load()
    assert load.mix == ((500, 100, 50.0), (1500, 300, 50.0))
    assert (load.input_tokens, load.output_tokens, load.warmup_requests) == (1000, 200, 2)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"input_tokens": ""}, "input_tokens", "State the tokens, or a mixture"),
        ({"input_tokens": "0"}, "input_tokens", "greater than or equal to 1"),
        ({"mix": "many"}, "mix", "Line 1 is"),
        ({"shared_prefixes": "0"}, "shared_prefixes", "greater than or equal to 1"),
    ],
)
def test_a_senseless_probe_is_refused_at_its_field(change: dict[str, Any], field: str, words: str) -> None:
    form = ProbeForm({**LOAD, **change})
    assert not form.is_valid()
    assert words in str(form.errors[field])

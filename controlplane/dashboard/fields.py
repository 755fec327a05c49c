"""Form fields of our own: plain numbers, per cent, the hours of a week, a mixture of request lengths."""

from __future__ import annotations

from typing import Any

from django import forms

from planner import catalog
from planner.demand import hour_of_week


class PlainNumber(forms.NumberInput):
    """A number without a needless fraction: 30, not 30.0."""

    def format_value(self, value: Any) -> str | None:
        """The value as people write it."""
        if isinstance(value, float):
            return str(int(value)) if value.is_integer() else repr(value)
        return super().format_value(value)


def plain_numbers(form: forms.BaseForm) -> None:
    """Every fraction of a form in plain writing, with any step."""
    for field in form.fields.values():
        if isinstance(field, forms.FloatField):
            attrs = field.widget.attrs
            field.widget = PlainNumber(attrs={**attrs, "step": "any"})


class PercentField(forms.FloatField):
    """A share of the records as people write it, in per cent: 0.05 is shown and read as 5. Limits are in per cent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=PlainNumber(attrs={"step": "any"}), **{"required": False, **options})

    def prepare_value(self, value: Any) -> Any:
        """A stored share in per cent; what was typed stays."""
        return round(100 * value, 9) if isinstance(value, (int, float)) else value

    def clean(self, value: Any) -> float | None:
        """The share; None where nothing is stated."""
        percent = super().clean(value)
        return None if percent is None else round(percent / 100, 11)


class ProfileField(forms.CharField):
    """The shape of a week: 168 numbers, 24 for every day, or the name of a profile of the catalogue."""

    def __init__(self, **options: Any) -> None:
        names = ", ".join(catalog.list_rate_profiles())
        super().__init__(
            widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
            help_text=f"168 numbers from Monday 0:00, or 24 for every day, or one of: {names}.",
            **options,
        )

    def prepare_value(self, value: Any) -> Any:
        """Numbers as text."""
        return " ".join(f"{number:g}" for number in value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        """The 168 numbers; an empty list where nothing is stated."""
        words = str(value or "").replace(",", " ").split()
        if len(words) == 1 and words[0] in catalog.list_rate_profiles():
            return list(hour_of_week(catalog.get_rate_profile(words[0])))
        try:
            numbers = [float(word) for word in words]
        except ValueError as error:
            raise forms.ValidationError("Write numbers, or one of the names below.") from error
        return numbers * 7 if len(numbers) == 24 else numbers


class MixField(forms.CharField):
    """A mixture of lengths, a line each: input tokens, output tokens, per cent of the requests."""

    def __init__(self, **options: Any) -> None:
        widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "placeholder": "512 128 70\n4096 256 30"})
        super().__init__(widget=widget, required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        """Stored triples as lines."""
        if isinstance(value, (list, tuple)):
            return "\n".join(f"{tokens_in} {tokens_out} {percent:g}" for tokens_in, tokens_out, percent in value)
        return value

    def to_python(self, value: Any) -> Any:
        """Triples of (input tokens, output tokens, per cent); empty where nothing is stated."""
        found = []
        for at, line in enumerate(str(value or "").splitlines(), 1):
            words = line.replace(",", " ").replace("%", " ").split()
            if not words:
                continue
            try:
                tokens_in, tokens_out, percent = int(words[0]), int(words[1]), float(words[2])
            except (ValueError, IndexError) as error:
                raise forms.ValidationError(
                    f"Line {at} is {line.strip()[:40]!r}; write input tokens, output tokens and per cent: 512 128 70."
                ) from error
            if len(words) > 3:
                raise forms.ValidationError(f"Line {at} has {len(words)} numbers; write one kind of request a line.")
            found.append((tokens_in, tokens_out, percent))
        return tuple(found)

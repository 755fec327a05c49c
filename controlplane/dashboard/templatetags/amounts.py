"""Amounts of a plan, in the plan's currency."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.dashboard import fmt
from planner.economics.currency import symbol

register = template.Library()
NONE = SafeString('<span class="n muted" title="no data">–</span>')


@register.filter
def cents(value: Any, currency: str = "USD") -> SafeString:
    """An amount to the cent: €1,234.56."""
    if value is None or value == "":
        return NONE
    amount = Decimal(str(value))
    sign = "−" if amount < 0 else ""
    return format_html(
        '<span class="n" title="{} {}">{}{}{}</span>', amount, currency, sign, symbol(currency), f"{abs(amount):,.2f}"
    )


@register.filter
def per_unit(value: Any, currency: str = "USD") -> SafeString:
    """A unit price of three significant figures, exact on hover: €0.414."""
    if value is None or value == "":
        return NONE
    return format_html(
        '<span class="n" title="{} {}">{}</span>', fmt.exact(value), currency, fmt.money(value, currency=currency)
    )


@register.filter
def part_of(row: Any, label: str) -> Decimal | None:
    """The amount of one part of a bill's row; None where it has none."""
    return dict(row.parts).get(label)

"""Template tags: numbers with unit and hover, intervals, evidence marks, states, bars, icons."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from controlplane.dashboard import fmt, icons, pages, planrow

register = template.Library()
_ids = itertools.count(1)

STATES = {
    "ok": "ok", "ready": "ok", "succeeded": "ok", "approved": "ok", "active": "ok", "within": "ok", "met": "ok",
    "optimal": "ok", "queued": "waiting", "pending": "waiting", "draft": "waiting", "planned": "waiting",
    "running": "busy", "computing": "busy", "launching": "busy", "loading": "busy", "stopping": "busy",
    "failed": "failed", "infeasible": "failed", "missed": "failed", "missing": "failed",
    "refuted": "no", "confirmed": "ok", "mixed": "attention", "unsettled": "attention", "not_testable": "idle",
    "outside": "attention", "maintenance": "attention", "unsupported": "attention", "feasible": "attention",
    "greedy": "attention", "attention": "attention", "differs": "attention", "no_data": "attention",
}  # fmt: skip
STATE_WORDS = {
    "no_data": "no data",
    "no_prediction": "no prediction",
    "not_testable": "not testable here",
    "unsettled": "not settled",
    "within": "within the band",
    "outside": "outside the band",
    "feasible": "feasible, time ran out",
}


NO_DATA = SafeString('<span class="n muted" title="no data">–</span>')
NOTHING = SafeString('<span class="muted">none</span>')
NEVER = SafeString('<span class="muted">never</span>')


def _number(text: str, unit: str, title: str) -> SafeString:
    suffix = format_html('<span class="u">{}</span>', unit) if unit else ""
    return format_html('<span class="n" title="{}">{}{}</span>', title, text, suffix)


@register.simple_tag
def icon(name: str) -> SafeString:
    """An inline icon by name."""
    return mark_safe(icons.icon(name))  # noqa: S308 - constant markup


@register.simple_tag
def logo() -> SafeString:
    """The product's mark."""
    return mark_safe(icons.LOGO)  # noqa: S308 - constant markup


@register.simple_tag
def num(value: Any, unit: str = "", figures: int = 3) -> SafeString:
    """A number of at most ``figures`` significant figures; the exact value on hover."""
    if fmt.as_float(value) is None:
        return NO_DATA
    title = f"{fmt.exact(value)} {unit}".strip()
    return _number(fmt.sig(value, figures), unit, title)


@register.simple_tag
def whole(value: Any, unit: str = "") -> SafeString:
    """A count, in full."""
    number = fmt.as_float(value)
    if number is None:
        return NO_DATA
    return _number(f"{round(number):,}", unit, f"{fmt.exact(value)} {unit}".strip())


@register.simple_tag
def usd(value: Any, unit: str = "", figures: int = 3) -> SafeString:
    """An amount in USD; the exact amount on hover."""
    if fmt.as_float(value) is None:
        return NO_DATA
    return _number(fmt.money(value, figures), unit, f"{fmt.sign()}{fmt.exact(value)} {unit}".strip())


@register.simple_tag
def price(value: Any, unit: str = "") -> SafeString:
    """An hourly price with two decimals, so that columns align."""
    number = fmt.as_float(value)
    if number is None:
        return NO_DATA
    return _number(f"{fmt.sign()}{number:,.2f}", unit, f"{fmt.sign()}{fmt.exact(value)} {unit}".strip())


@register.simple_tag
def amounts_in(code: str | None) -> str:
    """From here on the amounts of the page are in ``code``: those of a plan stay in the currency of the plan."""
    fmt.use_currency(code)
    return ""


@register.simple_tag
def sign() -> str:
    """The sign of the page's currency, for headings."""
    return fmt.sign()


@register.simple_tag
def share(value: Any, figures: int = 2) -> SafeString:
    """A share as a percentage."""
    if fmt.as_float(value) is None:
        return NO_DATA
    return _number(fmt.percent(value, figures), "", f"{fmt.exact(float(value) * 100)} %")


def _bounds(interval: Any) -> tuple[Any, Any, Any]:
    if not interval:  # an undefined template variable is empty text
        return None, None, None
    if isinstance(interval, Mapping):
        low, high = interval.get("low"), interval.get("high")
        return interval.get("value"), low, high
    return interval.value, interval.low, interval.high


_INTERVAL_WORDS: dict[str, Callable[[Any], str]] = {"usd": fmt.money, "share": fmt.percent}


@register.simple_tag
def ival(interval: Any, unit: str = "", kind: str = "") -> SafeString:
    """A prediction with its 80 % band: 18.8 (17.9–20.1) ms. ``kind`` usd or share changes the format."""
    value, low, high = _bounds(interval)
    if fmt.as_float(value) is None:
        return NO_DATA
    banded = fmt.as_float(low) is not None and fmt.as_float(high) is not None

    def show(number: Any) -> str:
        if kind in _INTERVAL_WORDS:
            return _INTERVAL_WORDS[kind](number)
        return fmt.sig(number, strip=not banded)

    head = _number(show(value), unit, f"{fmt.exact(value)} {unit}".strip())
    if not banded:
        return head
    band_title = f"80 % band: {fmt.exact(low)} to {fmt.exact(high)} {unit}".strip()
    return format_html('{} <span class="band" title="{}">({})</span>', head, band_title, fmt.band(low, high, kind))


@register.simple_tag
def evidence(kind: str | None, arithmetic: Any = "", label: bool = False) -> SafeString:
    """The mark of an evidence; pressed, it opens what the number was made of: a text, or (name, text) pairs."""
    if not kind or kind not in fmt.EVIDENCE_LABELS:
        return SafeString("")
    mark = mark_safe(icons.evidence_mark(kind))  # noqa: S308 - constant markup
    word, ident = fmt.EVIDENCE_LABELS[kind], f"ev{next(_ids)}"
    if isinstance(arithmetic, (list, tuple)):
        rows = "".join(format_html("<span>{}</span><span>{}</span>", name, text) for name, text in arithmetic)
        body = format_html('<span class="made-of">{}</span>', mark_safe(rows))  # noqa: S308 - escaped above
    else:
        body = format_html('<span class="made-of-text">{}</span>', arithmetic) if arithmetic else SafeString("")
    return format_html(
        '<span class="known"><button type="button" class="ev" popovertarget="{}" title="{}"'
        ' aria-label="{}: how this number is known">{}</button>{}</span>'
        '<span class="popover" id="{}" popover><b>{}</b><br>{}{}</span>',
        ident,
        word,
        word,
        mark,
        format_html(' <span class="second">{}</span>', word.lower()) if label else "",
        ident,
        word,
        fmt.EVIDENCE_MEANING[kind],
        body,
    )


@register.simple_tag
def state(name: str | None, word: str = "") -> SafeString:
    """A state as icon, word and colour."""
    key = (name or "").lower()
    look = STATES.get(key, "idle")
    text = word or STATE_WORDS.get(key) or key.replace("_", " ") or "unknown"
    return format_html(
        '<span class="state {}">{}{}</span>',
        look,
        mark_safe(icons.icon(look)),  # noqa: S308 - constant markup
        text[:1].upper() + text[1:],
    )


@register.filter
def metric_words(name: str) -> str:
    """A metric's name for people."""
    return fmt.METRIC_WORDS.get(name, name)


@register.filter
def predicted(row: Any) -> dict[str, Any]:
    """The prediction of a validation as an interval."""
    return {"value": row.predicted, "low": row.low, "high": row.high}


@register.filter
def signed_percent(value: Any) -> str:
    """A deviation with its sign."""
    return fmt.signed_percent(value)


@register.simple_tag
def validation(row: Any) -> SafeString:
    """One validation: the metric, whether it held, and by how much it was off."""
    look = STATES.get(row.verdict, "idle")
    off = "" if row.error_ratio is None else f" {fmt.signed_percent(row.error_ratio)}"
    return format_html(
        '<span class="state {}" title="{}">{}{}{}</span>',
        look,
        STATE_WORDS.get(row.verdict, row.verdict),
        mark_safe(icons.icon(look)),  # noqa: S308 - constant markup
        metric_words(row.metric),
        off,
    )


@register.simple_tag
def engine(name: str | None) -> SafeString:
    """An engine's name beside its colour."""
    if not name:
        return NOTHING
    css = {"vllm_cpu": "vllm"}.get(name, name)
    return format_html('<span class="engine {}">{}</span>', css, fmt.engine_label(name))


@register.simple_tag
def emulated_mark() -> SafeString:
    """The hatched mark of everything that an emulated engine yielded."""
    return format_html('<span class="emulated-mark" title="{}">emulated</span>', fmt.EVIDENCE_MEANING["emulated"])


@register.simple_tag
def bar(segments: Any, total: Any, slim: bool = False) -> SafeString:
    """A stacked bar from (css class, value, title) against ``total``."""
    whole_value = fmt.as_float(total) or 0.0
    x, rects = 0.0, []
    for css, value, title in segments:
        width = 100 * max(0.0, fmt.as_float(value) or 0.0) / whole_value if whole_value > 0 else 0.0
        if width <= 0:
            continue
        rects.append(
            format_html(
                '<rect class="{}" x="{}%" width="{}%" height="100%"><title>{}</title></rect>',
                css,
                f"{x:.3f}",
                f"{width:.3f}",
                title,
            )
        )
        x += width
    body = mark_safe("".join(rects))  # noqa: S308 - escaped above
    label = ", ".join(str(title) for _, value, title in segments if (fmt.as_float(value) or 0) > 0)
    label = label or "nothing"
    return format_html('<svg class="bar{}" role="img" aria-label="{}">{}</svg>', " slim" if slim else "", label, body)


@register.simple_tag
def whisker(interval: Any, low: Any, high: Any) -> SafeString:
    """A dot and whisker of ``interval`` on the axis from ``low`` to ``high``."""
    value, a, b = (fmt.as_float(part) for part in _bounds(interval))
    start, end = fmt.as_float(low), fmt.as_float(high)
    if value is None or start is None or end is None or end <= start:
        return SafeString("")

    def at(v: float) -> str:
        return f"{4 + 64 * min(1.0, max(0.0, (v - start) / (end - start))):.1f}"

    return format_html(
        '<svg class="whisker" viewBox="0 0 72 12" aria-hidden="true"><path class="axis" d="M4 6h64"/>'
        '<path class="range" d="M{} 6H{}"/><circle class="dot" cx="{}" cy="6" r="3"/></svg>',
        at(a if a is not None else value), at(b if b is not None else value), at(value),
    )  # fmt: skip


@register.filter
def load_words(workload: Any) -> str:
    """The load of a stored workload in words."""
    return planrow.load_words(
        {
            "kind": workload.load_kind, "rate_per_s": workload.rate_per_s, "arrival": workload.arrival,
            "concurrency": workload.concurrency, "requests": workload.requests,
        }
    )  # fmt: skip


@register.filter
def commas(value: Any) -> str:
    """A count with thousands separated."""
    number = fmt.as_float(value)
    return "–" if number is None else f"{round(number):,}"


@register.filter
def sig(value: Any, figures: int = 3) -> str:
    """Plain text, three significant figures."""
    return fmt.sig(value, figures)


@register.filter
def percent(value: Any) -> str:
    """A share as plain text: 62 %."""
    return fmt.percent(value)


@register.filter
def money(value: Any) -> str:
    """Plain text amount."""
    return fmt.money(value)


@register.filter
def duration(value: Any) -> str:
    """Seconds (or a timedelta) as a length of time."""
    return fmt.duration(value.total_seconds() if isinstance(value, dt.timedelta) else value)


@register.simple_tag
def when(moment: dt.datetime | None) -> SafeString:
    """How long ago, with the moment on hover."""
    if moment is None:
        return NEVER
    iso = moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html(
        '<time class="n" datetime="{}" title="{}">{}</time>', moment.isoformat(), iso, fmt.ago(moment, timezone.now())
    )


@register.filter
def engine_label(value: Any) -> str:
    """Plain text name of an engine."""
    return fmt.engine_label(value)


@register.filter
def ms(value: Any) -> str:
    """Milliseconds as a length of time."""
    number = fmt.as_float(value)
    return "–" if number is None else fmt.duration(number / 1000)


@register.filter
def job_words(kind: str) -> str:
    """What a job does, in words."""
    return fmt.job_words(kind)


@register.filter
def item(mapping: Any, key: Any) -> Any:
    """``mapping[key]``, None when it is not there."""
    return mapping.get(key) if isinstance(mapping, Mapping) else None


@register.simple_tag(takes_context=True)
def query(context: Any, **changes: Any) -> str:
    """The current query string with ``changes`` applied; an empty value drops the key."""
    params = context["request"].GET.copy()
    for key, value in changes.items():
        if value in (None, ""):
            params.pop(key, None)
        else:
            params[key] = value
    return conditional_escape(f"?{params.urlencode()}")


@register.inclusion_tag("components/nav.html", takes_context=True)
def navigation(context: Any, label: str = "Main") -> dict[str, Any]:
    """The side bar's entries."""
    return {"navigation": pages.navigation(context["request"]), "label": label}


@register.simple_block_tag
def opens(content: str, plan: Any, figure: str, candidate: Any = None, workload: str = "") -> SafeString:
    """A figure that opens to the arithmetic behind it; without scripts it is a link to a page that shows the same."""
    query = {"figure": figure, "candidate": (candidate or {}).get("id", ""), "workload": workload}
    path = reverse("dashboard:how", args=[plan.pk])
    url = f"{path}?{urlencode({key: value for key, value in query.items() if value})}"
    return format_html(
        '<a class="how" href="{}" hx-get="{}" hx-target="#how" aria-haspopup="dialog">{}</a>', url, url, content
    )


@register.simple_tag
def worked(value: Any, unit: str = "") -> SafeString:
    """A figure of an arithmetic: money or a number with its unit."""
    if fmt.as_float(value) is None:
        return NO_DATA
    sign = fmt.sign()
    if unit.startswith(sign):
        return _number(fmt.money(value), unit.removeprefix(sign).strip(), f"{sign}{fmt.exact(value)}")
    return _number(fmt.sig(value), unit, f"{fmt.exact(value)} {unit}".strip())

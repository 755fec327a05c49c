"""Reading the load of an estimate request and the lengths of what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from planner.errors import InputError
from planner.estimate_fields import number, one_of, whole
from planner.serving import Lengths, Load

LOAD_FIELDS = (
    "kind",
    "concurrency",
    "requests",
    "rate_per_s",
    "arrival",
    "cv",
    "on_share",
    "period_s",
    "stream_interval",
    "turns",
    "think_s",
    "shared_tokens",
)
KINDS = ("closed", "open", "offline")
ARRIVALS = ("poisson", "constant", "gamma", "onoff")
MAX_REQUESTS = 2_000_000
MAX_CLIENTS = 200_000
MAX_TOKENS = 50_000_000

_Arrival = Literal["poisson", "constant", "gamma", "onoff"]
_OF_KIND = {"concurrency": "closed", "rate_per_s": "open", "arrival": "open", "cv": "open", "on_share": "open",
            "period_s": "open"}  # fmt: skip
_OF_ARRIVAL = {"cv": "gamma", "on_share": "onoff", "period_s": "onoff"}
_OF_GENERATION = ("turns", "think_s", "shared_tokens", "stream_interval")


def read_load(request: Mapping[str, Any], *, generates: bool) -> Load | None:
    """The load of ``request``; None when none is stated. ``generates``: the model makes tokens, one after another.

    Raises InputError for what is wrong, and for what belongs to another kind of load or of model.
    """
    given = request.get("load")
    prefix_hit = number(request, "prefix_hit", low=0.0, high=1.0) or 0.0
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InputError(
            "must be an object", field="load", value=given, remedy="Such as {kind: closed, concurrency: 8}."
        )
    unknown = sorted(set(given) - set(LOAD_FIELDS), key=str)
    if unknown:
        raise InputError("unknown field", field=f"load.{unknown[0]}", remedy=f"Known fields: {', '.join(LOAD_FIELDS)}.")
    _check_required(given, "kind", f"Use one of: {', '.join(KINDS)}.")
    kind = cast(Literal["closed", "open", "offline"], one_of(given, "kind", KINDS, path="load."))
    arrival = one_of(given, "arrival", ARRIVALS, path="load.") or "poisson"
    _check_belongs(given, kind, arrival)
    if not generates:
        _check_one_pass(given)
    load = _common(given, kind, prefix_hit)
    if kind == "closed":
        _check_required(given, "concurrency", "State how many clients ask at a time.")
        return replace(load, concurrency=whole(given, "concurrency", path="load.", most=MAX_CLIENTS) or 1)
    if kind == "offline":
        _check_required(given, "requests", "State how many requests there are.")
        return load
    _check_required(given, "rate_per_s", "State the mean requests per second.")
    cv = number(given, "cv", path="load.", high=100.0, above=True)
    share = number(given, "on_share", path="load.", low=1e-6, high=1.0)
    period = number(given, "period_s", path="load.", low=1e-3, high=1e6)
    return replace(
        load,
        rate_per_s=number(given, "rate_per_s", path="load.", high=1e6, above=True) or 0.0,
        arrival=cast(_Arrival, arrival),
        cv=load.cv if cv is None else cv,
        on_share=load.on_share if share is None else share,
        period_s=load.period_s if period is None else period,
    )


def _common(given: Mapping[str, Any], kind: Literal["closed", "open", "offline"], prefix_hit: float) -> Load:
    """What every kind of load may state."""
    turns = read_lengths(given, "turns", path="load.")
    load = Load(
        kind,
        requests=whole(given, "requests", path="load.", most=MAX_REQUESTS),
        prefix_hit=prefix_hit,
        stream_interval=whole(given, "stream_interval", default=1, path="load.", most=MAX_TOKENS) or 1,
        turns=turns,
        think_s=number(given, "think_s", path="load.", high=1e6 - 1) or 0.0,
        shared_tokens=whole(given, "shared_tokens", path="load.", least=0, most=MAX_TOKENS) or 0,
    )
    if load.shared_tokens and turns is None:
        raise InputError(
            "belongs to sessions",
            field="load.shared_tokens",
            value=given["shared_tokens"],
            remedy="State turns, or prefix_hit.",
        )
    if load.think_s and turns is None and kind != "closed":
        raise InputError(
            "is a pause between the requests of a client, and this load has none",
            field="load.think_s",
            value=given["think_s"],
            remedy="State turns, or kind closed.",
        )
    return load


def _check_required(given: Mapping[str, Any], name: str, remedy: str) -> None:
    if given.get(name) is None:
        raise InputError("is missing", field=f"load.{name}", remedy=remedy)


def _check_belongs(given: Mapping[str, Any], kind: str, arrival: str) -> None:
    """Refuse what only another kind of load or of arrival reads."""
    for table, field, stated in ((_OF_KIND, "kind", kind), (_OF_ARRIVAL, "arrival", arrival)):
        for name, owner in table.items():
            if given.get(name) is not None and owner != stated:
                raise InputError(
                    f"belongs to {field} {owner}, and {field} is {stated}",
                    field=f"load.{name}",
                    value=given[name],
                    remedy=f"Leave it out, or state {field} {owner}.",
                )


def _check_one_pass(given: Mapping[str, Any]) -> None:
    for name in _OF_GENERATION:
        if given.get(name) is not None:
            raise InputError(
                "belongs to models that generate, and this one answers in one pass",
                field=f"load.{name}",
                value=given[name],
                remedy="Leave it out: each request is one prompt and one answer.",
            )


def read_lengths(
    request: Mapping[str, Any], field: str, *, required: bool = False, path: str = "", most: int = MAX_TOKENS
) -> Lengths | None:
    """A length of fixed, gamma ({mean, sd}) or uniform ({low, high}) tokens; None when it is not stated."""
    given = request.get(field)
    allowed = f"Give a whole number between 1 and {most}, {{mean, sd}} or {{low, high}}."
    if given is None:
        if required:
            raise InputError("is missing", field=path + field, remedy=allowed)
        return None
    if not isinstance(given, Mapping):
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise InputError("is no length", field=path + field, value=given, remedy=allowed)
        return Lengths("fixed", value=whole(request, field, path=path, most=most) or 1)
    inside = f"{path}{field}."
    if set(given) == {"mean", "sd"}:
        mean = number(given, "mean", path=inside, low=1.0, high=most)
        sd = number(given, "sd", path=inside, low=0.0, high=most)
        if mean is not None and sd is not None:
            return Lengths("normal", mean=mean, sd=sd)
    elif set(given) == {"low", "high"}:
        low = whole(given, "low", path=inside, most=most)
        high = whole(given, "high", path=inside, most=most)
        if low is not None and high is not None:
            if high < low:
                raise InputError("high is below low", field=path + field, value=dict(given), remedy="Exchange them.")
            return Lengths("uniform", low=low, high=high)
    raise InputError(
        "must be a number, {mean, sd} or {low, high}", field=path + field, value=dict(given), remedy=allowed
    )

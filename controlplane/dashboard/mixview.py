"""A workload on several configurations at once, and the plan beside each engine alone: data in, rows for tables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import fmt, planrow
from controlplane.dashboard.planrow import Json, WorkloadRow

Segment = tuple[str, float, str]  # css class, value, words on hover


@dataclass(frozen=True)
class MixLine:
    """One line of a mix's table: the whole, a part, or one engine alone. Cells are intervals, numbers or None."""

    kind: str  # whole | part | alone
    engine: str | None
    what: str
    share: float | None = None
    weight: int | None = None
    performance: Json | None = None
    usd: Json | None = None  # per million output tokens
    usd_per_month: Any = None
    saving: Json | None = None
    note: str = ""
    arithmetic: tuple[tuple[str, str], ...] = ()  # what its figures were made of


@dataclass(frozen=True)
class MixCard:
    """Everything that the page shows of one mix."""

    mix: Json
    lines: tuple[MixLine, ...]
    segments: tuple[Segment, ...]
    axis: tuple[float, float] | None  # of TTFT, for the whiskers
    split_words: str
    loss_words: str
    flips: tuple[tuple[str, tuple[str, ...]], ...]  # engine, sentences


@dataclass(frozen=True)
class EngineLine:
    """The plan with one engine alone, or as chosen (``engine`` None)."""

    engine: str | None
    plan: Json
    segments: tuple[Segment, ...]


def mix_card(row: WorkloadRow) -> MixCard | None:
    """The card of a workload that several configurations serve, or could; None where nothing was compared."""
    mix = row.mix
    if mix is None:
        return None
    by_id = {candidate["id"]: candidate for candidate in row.candidates}
    whole = MixLine(
        "whole", "hybrid" if len({part["engine"] for part in mix["parts"]}) > 1 else mix["parts"][0]["engine"],
        "As one service", 1.0, None, mix["performance"], row_price(mix), mix["usd_per_month"],
        arithmetic=(*_shares(mix["parts"], by_id), *_MERGED, *_facts(mix["performance"])),
    )  # fmt: skip
    parts = [
        MixLine(
            "part", part["engine"], words(part["candidate_id"], part["replicas"], by_id), part["share"],
            part["endpoint_weight"], part["performance"], None, part["usd_per_month"],
            arithmetic=(
                ("Carries", f"{fmt.percent(part['capacity_share'])} of the demand within the SLO"),
                *_facts(part["performance"]),
            ),
        )
        for part in mix["parts"]
    ]  # fmt: skip
    alone = [_alone(rival, by_id) for rival in mix["rivals"]]
    lines = (whole, *parts, *alone)
    ends = [
        float(band[end])
        for line in (whole, *parts)  # one engine alone may reach far beyond
        if line.performance and (band := line.performance.get("ttft_ms_80"))
        for end in ("low", "high")
    ]
    return MixCard(
        mix=mix,
        lines=lines,
        segments=_segments(mix["parts"], by_id),
        axis=(0.0, max(ends)) if ends else None,
        split_words=_split_words(mix),
        loss_words=_loss_words(mix, bool(row.workload.get("n_plus_1"))),
        flips=tuple(
            (rival["engine"], tuple(flip["sentence"] for flip in rival["flips"]))
            for rival in mix["rivals"]
            if rival["flips"]
        ),
    )


def row_price(mix: Json) -> dict[str, Any] | None:
    """Cost per million output tokens of the whole, as an interval."""
    if mix.get("usd_per_mtok_output") is None:
        return None
    low, high = mix.get("usd_per_mtok_output_80") or (None, None)
    return {"value": mix["usd_per_mtok_output"], "low": low, "high": high}


def words(candidate_id: str, replicas: int, by_id: Mapping[str, Json]) -> str:
    """ "3 × 1 A100-SXM4-80GB, TP 1, bf16"."""
    candidate = by_id.get(candidate_id)
    if candidate is None:
        return candidate_id
    precision = (candidate.get("settings") or {}).get("precision", "")
    shape = ", ".join(part for part in (fmt.shape(candidate), precision) if part)
    return f"{replicas} × {candidate['gpus_per_replica']} {candidate['gpu']}, {shape}"


def _alone(rival: Json, by_id: Mapping[str, Json]) -> MixLine:
    parts = [words(key, count, by_id) for key, count in rival["parts"]]
    price = rival["usd_per_mtok_output"]
    return MixLine(
        kind="alone",
        engine=rival["engine"],
        what=" and ".join(parts) if rival["saving"] is not None else "",
        performance=rival["performance"],
        usd={"value": price, "low": None, "high": None} if price is not None else None,
        usd_per_month=rival["usd_per_month"],
        saving=rival["saving"],
        note=rival["reason"],
        arithmetic=_facts(rival["performance"]),
    )


_MERGED = (
    ("Percentiles", "of all requests together, never means of percentiles"),
    ("Band", "all parts at their low, and all at their high ends at once"),
    ("Month", "replicas of every part, and the people of each engine once"),
)


def _shares(parts: Sequence[Json], by_id: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    found = []
    for part in parts:
        label = f"{fmt.engine_label(part['engine'])}, {words(part['candidate_id'], part['replicas'], by_id)}"
        found.append((fmt.percent(part["share"]), label))
    return tuple(found)


def _facts(performance: Json | None) -> tuple[tuple[str, str], ...]:
    """What is simulated beside the figures shown; empty where nothing was."""
    if performance is None:
        return ()
    found = [
        ("Requests", f"{fmt.sig(performance['req_per_s'])} req/s"),
        ("Mean batch", fmt.sig(performance["mean_batch"])),
        ("Busy", fmt.percent(performance["utilisation"])),
        ("KV in use", fmt.percent(performance["mean_kv_used"])),
        ("Residuals", f"{performance.get('residuals_of', '')}, load {performance.get('load_region', '')}"),
    ]
    if performance["goodput_per_s"] is not None:
        found.append(("Within every objective", f"{fmt.sig(performance['goodput_per_s'])} req/s"))
    return tuple(found)


def _segments(parts: Sequence[Json], by_id: Mapping[str, Json]) -> tuple[Segment, ...]:
    found = []
    seen: Counter[str] = Counter()
    for part, (percent, label) in zip(parts, _shares(parts, by_id), strict=True):
        css = part["engine"] + (" again" if seen[part["engine"]] % 2 else "")
        seen[part["engine"]] += 1
        found.append((css, float(part["share"]), f"{label}: {percent} of the requests"))
    return tuple(found)


def _split_words(mix: Json) -> str:
    use, even = mix["slo_use"], mix["slo_use_by_capacity"]
    limit = "" if use is None else f" The tightest objective is used to {fmt.percent(use)}."
    if mix["split"] == "latency":
        return (
            "Requests are dealt out so that the tightest objective is used least: "
            f"{fmt.percent(use)} instead of {fmt.percent(even)} in proportion to what each part carries."
        )
    return f"Requests are dealt out in proportion to what each part carries within the SLO.{limit}"


def _loss_words(mix: Json, spare: bool) -> str:
    left = fmt.percent(min(float(mix["after_loss"]), 1.0))
    wanted = "as N+1 asks" if spare else "N+1 is not asked for"
    return f"With its largest replica lost it still carries {left} of the demand ({wanted})."


def engine_lines(result: Json) -> list[EngineLine]:
    """The chosen plan and each engine alone, with bars of a month's cost."""
    rows = list(result.get("engine_plans") or ())
    if not rows:
        return []
    by_id = {candidate["id"]: candidate for candidate in result.get("candidates", ())}
    gpus: Counter[str] = Counter()
    for placement in result.get("placements", ()):
        engine = planrow.engine_of(by_id.get(placement["candidate_id"], {"id": placement["candidate_id"]}))
        gpus[engine or ""] += len(placement["gpu_indexes"])
    found = []
    for plan in rows:
        month = fmt.as_float(plan["usd_per_month"]) or 0.0
        segments = [(plan["engine"], month, f"{fmt.engine_label(plan['engine'])} alone")]
        if not plan["engine"]:  # by the GPUs of each engine
            used = [(engine, gpus[engine]) for engine in planrow.ENGINES if gpus[engine]]
            segments = [
                (engine, month * count / sum(gpus.values()), f"{fmt.engine_label(engine)} on {count} GPUs")
                for engine, count in used
            ]
        found.append(EngineLine(plan["engine"] or None, plan, tuple(segments)))
    return found


def most_usd(lines: Sequence[EngineLine]) -> float:
    """The longest bar."""
    return max((fmt.as_float(line.plan["usd_per_month"]) or 0.0 for line in lines), default=0.0)

"""One workload of a plan as the pages show it: demand, verdict, what serves it, what the other engine would cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from controlplane.dashboard import fmt
from planner.catalog.models import model_name

Json = Mapping[str, Any]
ENGINES = ("vllm", "tensorrt_llm")
SAME = 0.005  # bills closer than half a percent are called the same


@dataclass(frozen=True)
class MarginBar:
    """Geometry of a verdict's margin on an axis of 0..100 %; shares of the runner-up's cost become x positions."""

    zero: float
    low: float
    high: float
    value: float


@dataclass(frozen=True)
class Placed:
    """Replicas of one candidate that the plan really places; a workload may be served by several."""

    candidate: Json
    replicas: int

    @property
    def engine(self) -> str | None:
        """Its engine."""
        return engine_of(self.candidate)

    @property
    def gpus(self) -> int:
        """GPUs of these replicas."""
        return self.replicas * int(self.candidate.get("gpus_per_replica", 0))

    @property
    def parallelism(self) -> str:
        """Its parallelism in words."""
        return fmt.shape(self.candidate)

    @property
    def arithmetic(self) -> list[tuple[str, str]]:
        """What its figures were made of."""
        return arithmetic(self.candidate)


@dataclass(frozen=True)
class WorkloadRow:
    """One workload of a plan: its demand, the verdict, the chosen candidate and the best of the other engine."""

    name: str
    workload: Json
    verdict: Json
    chosen: Json | None
    other: Json | None
    nodes: tuple[tuple[str, int], ...]  # name, GPUs used there
    unplaced: Json | None
    margin: MarginBar | None
    placed: tuple[Placed, ...] = ()
    candidates: tuple[Json, ...] = field(default=(), repr=False)
    mix: Json | None = field(default=None, repr=False)
    billed: Json | None = None  # its part of the plan's bill, see ``planner.plan_types.WorkloadBill``

    @property
    def engine(self) -> str | None:
        """The engine chosen; None when nothing fits."""
        return self.verdict.get("engine")

    @property
    def other_engine(self) -> str | None:
        """The engine that was not chosen."""
        return next((e for e in ENGINES if e != self.engine), None) if self.engine else None

    @property
    def parallelism(self) -> str:
        """Parallelism of the chosen candidate."""
        return fmt.shape(self.chosen)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas placed."""
        return sum(part.gpus for part in self.placed)

    @property
    def placed_ids(self) -> set[str]:
        """Candidates that the plan places."""
        return {str(part.candidate["id"]) for part in self.placed}

    @property
    def serving(self) -> tuple[Placed, ...]:
        """What serves it: the replicas placed, else those that the choice would need."""
        if self.placed or self.chosen is None:
            return self.placed
        return (Placed(self.chosen, int(self.chosen["replicas"])),)

    @property
    def same_shape(self) -> bool:
        """Whether all that serves it has the same parallelism and precision."""
        return len({(p.parallelism, (p.candidate.get("settings") or {}).get("precision")) for p in self.serving}) <= 1

    @property
    def hybrid(self) -> bool:
        """Whether both engines serve it."""
        return len({part.engine for part in self.placed}) > 1

    @property
    def mixed(self) -> Json | None:
        """The mix that the plan places, predicted as one service; None where one configuration serves it."""
        return self.mix if self.mix is not None and self.mix["placed"] else None

    @property
    def bill(self) -> Json:
        """What has ``usd_per_month`` and ``usd_per_mtok_output``: its part of the plan's bill where it is placed, else
        the mix, else the choice's cost as sized.
        """
        return self.on_bill or self.mixed or (self.chosen or {}).get("cost") or {}

    @property
    def bill_parts(self) -> Sequence[tuple[str, Any]]:
        """Parts of its bill by label; of the choice as sized where it has none."""
        found: Sequence[tuple[str, Any]] = (self.on_bill or (self.chosen or {}).get("cost") or {}).get("parts", ())
        return found

    @property
    def on_bill(self) -> Json | None:
        """Its part of the plan's bill; None where nothing is placed, or the plan holds none."""
        return self.billed if self.placed else None

    @property
    def more_nodes(self) -> int:
        """Nodes beyond the first two."""
        return max(0, len(self.nodes) - 2)

    @property
    def margin_words(self) -> str:
        """ "24 % cheaper (12–33 %)", "69 % dearer (−110 to −69 %)"."""
        margin = self.verdict.get("margin")
        if not margin:
            return ""
        value = float(margin["value"])
        word = "cheaper" if value >= 0 else "dearer"
        if abs(value) < SAME:
            return f"same cost ({fmt.band(margin['low'], margin['high'], 'share')})"
        return f"{fmt.percent(abs(value))} {word} ({fmt.band(margin['low'], margin['high'], 'share')})"

    @property
    def flip_words(self) -> str:
        """How many parameters were searched for a flip."""
        points = self.verdict.get("flip_points") or ()
        flips = sum(point.get("value") is not None for point in points)
        return f"{flips} of {len(points)} searched parameter{'s' if len(points) > 1 else ''} would flip it"

    @property
    def flips(self) -> list[dict[str, Any]]:
        """Parameters whose change flips the answer, each with its place on the searched range."""
        points = self.verdict.get("flip_points") or ()
        return [{**point, **flip_places(point)} for point in points if point.get("value") is not None]

    @property
    def model(self) -> str:
        """The model's id, also of an uploaded one, which the plan names by its file."""
        return model_name(str(self.workload.get("model") or ""))

    @property
    def probe_query(self) -> str:
        """Query that fills the form of a deployment with the candidate whose probe would settle a close verdict."""
        words = str(self.verdict.get("probe") or "")
        named = [c for c in (self.other, self.chosen) if c and fmt.engine_label(engine_of(c)) in words]
        candidate = named[0] if named else self.chosen
        if not words or not candidate or not candidate.get("settings"):
            return ""
        precision = str(candidate["id"]).rsplit("/", 1)[-1]
        fields = {
            "engine": engine_of(candidate),
            "model": self.model,
            "gpu": candidate["gpu"],
            "tp": candidate["settings"].get("tp", 1),
            "precision": precision,
            "max_model_len": candidate["settings"].get("max_model_len"),
            "workload": self.name,
        }
        return urlencode(fields)

    @property
    def steady(self) -> list[Json]:
        """Parameters that were searched without a flip."""
        return [point for point in self.verdict.get("flip_points") or () if point.get("value") is None]

    @property
    def look(self) -> str:
        """Class of the verdict card."""
        if self.chosen is None:
            return "none"
        return "close" if self.verdict.get("too_close") else str(self.engine)

    @property
    def state(self) -> tuple[str, str]:
        """State name and word: served, in part, not at all."""
        if self.chosen is None:
            return "infeasible", "Fits nowhere"
        if self.unplaced:
            return "attention", f"{self.unplaced['replicas']} of {self.chosen['replicas']} replicas unplaced"
        return "met", "Served within the SLO"

    @property
    def slo_words(self) -> str:
        """The objectives in words."""
        targets = sorted(self.workload.get("slo", ()), key=lambda target: target["metric"], reverse=True)
        return ", ".join(map(slo_word, targets)) or "no SLO"

    @property
    def demand(self) -> str:
        """The load to plan for in words."""
        return load_words(self.workload.get("load") or {})

    @property
    def lengths(self) -> str:
        """Mean input and output tokens in words."""
        sides = (expected(self.workload.get(side)) for side in ("input_tokens", "output_tokens"))
        return " → ".join(fmt.sig(side) for side in sides) + " tokens"

    @property
    def usd_chosen(self) -> dict[str, Any] | None:
        """What it costs by the plan's bill, with the band of the choice, or of the mix that is placed, as a share.

        As sized, at the mean electricity of the sites, where nothing is placed.
        """
        sized = {"cost": {**self.mixed, "usd_per_mtok_total": None}} if self.mixed is not None else self.chosen
        found = usd_per_mtok(sized)
        kind = "usd_per_mtok_total" if self.usd_unit != "/ M tok" else "usd_per_mtok_output"
        value = (self.on_bill or {}).get(kind)
        if found is None or found["value"] is None or value is None:
            return found
        moved = Decimal(value) / Decimal(str(found["value"])) if Decimal(str(found["value"])) else Decimal(1)
        low, high = (None if end is None else Decimal(str(end)) * moved for end in (found["low"], found["high"]))
        return {"value": value, "low": low, "high": high}

    @property
    def usd_other(self) -> dict[str, Any] | None:
        """Cost of the other engine's best."""
        return usd_per_mtok(self.other)

    @property
    def usd_unit(self) -> str:
        """What the cost is divided by."""
        cost = (self.chosen or {}).get("cost") or {}
        return "/ M tok" if cost.get("usd_per_mtok_output") is not None else "/ M tok, all"

    @property
    def arithmetic(self) -> list[tuple[str, str]]:
        """What the chosen candidate's figures were made of, for the evidence mark."""
        return arithmetic(self.chosen)

    @property
    def other_reason(self) -> str:
        """Why there is no candidate of the other engine."""
        if self.other is not None:
            return ""
        allowed = self.workload.get("allowed_engines") or ENGINES
        if self.other_engine not in allowed:
            return f"The workload does not allow {fmt.engine_label(self.other_engine)}."
        refused = [c for c in self.candidates if engine_of(c) == self.other_engine and c.get("reasons")]
        return refused[0]["reasons"][0] if refused else "No candidate of this engine was computed."


def slo_word(target: Json) -> str:
    """ "TTFT p90 ≤ 500 ms"."""
    return f"{target['metric'].upper()} {target['stat']} ≤ {fmt.duration(target['limit_ms'] / 1000)}"


def load_words(load: Json) -> str:
    """ "24 req/s, Poisson", "64 at once", "5,000 requests offline"."""
    if load.get("kind") == "open":
        names = {
            "poisson": "Poisson",
            "constant": "constant",
            "gamma": "gamma",
            "onoff": "bursts",
            "trace": "as traced",
        }
        return f"{load.get('rate_per_s', 0):g} req/s, {names.get(load.get('arrival', ''), load.get('arrival'))}"
    if load.get("kind") == "closed":
        return f"{load.get('concurrency', 0):,} at once"
    if load.get("kind") == "offline":
        return f"{load.get('requests') or 0:,} requests offline"
    return "no load"


def expected(lengths: Json | None) -> float | None:
    """Mean of planner ``Lengths`` JSON."""
    if not lengths:
        return None
    kind = lengths.get("kind")
    if kind == "fixed":
        return fmt.as_float(lengths.get("value"))
    if kind == "normal":
        return fmt.as_float(lengths.get("mean"))
    if kind == "uniform":
        return (float(lengths.get("low", 0)) + float(lengths.get("high", 0))) / 2
    samples = lengths.get("samples") or []
    return sum(samples) / len(samples) if samples else None


def engine_of(candidate: Json) -> str | None:
    """Engine of a candidate, from its settings, else from its id."""
    if candidate.get("settings"):
        return candidate["settings"]["engine"]
    parts = str(candidate.get("id", "")).split("/")
    return next((part for part in parts if part in ENGINES), None)


def usd_per_mtok(candidate: Json | None) -> dict[str, Any] | None:
    """Cost per million output tokens as an interval; of all tokens when no output is served."""
    cost = (candidate or {}).get("cost")
    if not cost:
        return None
    value = cost.get("usd_per_mtok_output")
    if value is None:
        return {"value": cost.get("usd_per_mtok_total"), "low": None, "high": None}
    band = cost.get("usd_per_mtok_output_80") or (None, None)
    return {"value": value, "low": band[0], "high": band[1]}


def arithmetic(candidate: Json | None) -> list[tuple[str, str]]:
    """How a candidate's figures came about, as (name, text)."""
    if not candidate or not candidate.get("performance"):
        return []
    performance, settings = candidate["performance"], candidate.get("settings") or {}
    rows = [
        ("Engine", f"{fmt.engine_label(settings.get('engine'))} {settings.get('version', '')}"),
        ("Replicas", f"{candidate.get('replicas')} of {fmt.shape(candidate)}"),
        ("Load a replica carries", f"{fmt.sig(candidate.get('replica_rate_per_s'))} req/s within the SLO"),
        ("Mean batch", fmt.sig(performance.get("mean_batch"))),
        ("Output", f"{fmt.sig(performance.get('output_tok_per_s'))} tok/s"),
        ("KV in use", fmt.percent(performance.get("mean_kv_used"))),
        ("Busy", fmt.percent(performance.get("utilisation"))),
    ]
    rows += _pool_rows(candidate.get("disagg"))
    cost = candidate.get("cost")
    if cost:
        rows.append(("Month", fmt.money(cost["usd_per_month"])))
        rows.append(("GPU-hours", fmt.sig(cost["gpu_hours_per_month"])))
    return rows


def _pool_rows(pools: Json | None) -> list[tuple[str, str]]:
    """What each pool of a unit does and costs, and the way between them."""
    if not pools:
        return []
    rows = []
    for name, kind in (("prefill", "input"), ("decode", "output")):
        pool = pools[name]
        text = f"busy {fmt.percent(pool['utilisation'])}, {fmt.money(pool['usd_per_month'])} a month"
        if pool["usd_per_mtok"] is not None:
            text += f", {fmt.money(pool['usd_per_mtok'])} per million {kind} tokens"
        rows.append((name.capitalize(), text))
    way = {"nvlink": "NVLink", "pcie": "PCIe", "network": "the network"}[pools["link"]]
    return [*rows, ("KV transfer", f"{fmt.sig(pools['transfer_ms'])} ms over {way}")]


def margin_bar(verdict: Json) -> MarginBar | None:
    """The margin with its band, on an axis that holds zero and the whole band."""
    margin = verdict.get("margin")
    if not margin:
        return None
    value, low, high = (float(margin[key]) for key in ("value", "low", "high"))
    start, end = min(0.0, low), max(0.0, high, 0.1)
    pad = 0.08 * (end - start)
    start, end = start - (pad if start < 0 else 0.02 * (end - start)), end + pad

    def at(share: float) -> float:
        return round(100 * (share - start) / (end - start), 2)

    return MarginBar(at(0.0), at(low), at(high), at(value))


def flip_places(point: Json) -> dict[str, float]:
    """Where today's value and the flip lie on the searched range, 0..100; logarithmic over a wide range above zero."""
    low, high = (float(end) for end in point["searched"])
    scale = math.log if low > 0 and high / low > 10 else float

    def at(value: Any) -> float:
        inside = min(high, max(low, float(value)))
        return round(100 * (scale(inside) - scale(low)) / ((scale(high) - scale(low)) or 1.0), 2)

    return {"now_at": at(point["current"]), "flip_at": at(point["value"])}

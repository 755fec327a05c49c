"""What a plan says of its choices: verdicts with their flip points, rules of thumb, and the months ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from planner.evidence import Interval


@dataclass(frozen=True, slots=True)
class CurveAt:
    """USD an hour of the best candidate of each engine at one value of a parameter; None: that engine cannot."""

    value: float
    vllm_usd_per_hour: float | None
    tensorrt_llm_usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class FlipPoint:
    """The value of one parameter at which the answer changes; ``value`` None: it does not in the searched range."""

    parameter: str
    unit: str
    current: float
    value: float | None
    searched: tuple[float, float]
    sentence: str
    curve: tuple[CurveAt, ...] = ()  # ascending in value


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the chosen candidate's cost moves when one input is at ``low`` or at ``high``; the others stay."""

    parameter: str
    unit: str
    low: float
    high: float
    usd_per_hour_low: float
    usd_per_hour_high: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which engine for one workload, and how sure.

    ``margin`` is how much cheaper the chosen candidate is per million output tokens, as a share of the runner-up's
    cost, with its 80 % interval. ``too_close`` when the interval holds zero. ``tie`` says, where the two costs cannot
    be told apart, which engine is taken and why; empty elsewhere.
    """

    workload: str
    chosen: str | None  # candidate id; None when nothing fits
    runner_up: str | None  # best candidate of the other engine
    engine: str | None
    margin: Interval | None
    too_close: bool
    sentence: str
    reasons: tuple[str, ...]
    flip_points: tuple[FlipPoint, ...] = ()
    probe: str = ""  # the cheapest probe that would settle it
    tornado: tuple[Sensitivity, ...] = ()  # what moves the chosen candidate's cost most, largest first
    tie: str = ""


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """A claim of the field, held against this fleet and these workloads."""

    id: str
    claim: str
    verdict: Literal["confirmed", "refuted", "mixed", "unsettled", "not_testable"]
    sentence: str  # with the numbers
    cases: tuple[tuple[str, float], ...] = ()  # what was compared, and the figure found


@dataclass(frozen=True, slots=True)
class MonthView:
    """One month ahead: what the grown demand needs on the candidates chosen today. Month 0 is today."""

    month: int
    gpus_needed: dict[str, int]  # by GPU
    gpus_at_hand: dict[str, int]
    usd_per_month: Decimal  # GPUs needed; those beyond what is at hand at the eroded price
    gpus_added: dict[str, int] = field(default_factory=dict)  # beyond what is at hand, entering service this month
    electricity_usd_per_month: Decimal = Decimal(0)  # where power is known and the GPU price holds none


@dataclass(frozen=True, slots=True)
class Runway:
    """When one kind of GPU runs out, and what to order when. ``full_in_months`` None: not in the months looked at."""

    gpu: str
    full_in_months: int | None
    order_in_months: float | None  # 0: now, or it is late already
    gpus_short: int  # in the last month looked at
    sentence: str

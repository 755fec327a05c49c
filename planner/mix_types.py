"""What a plan says of a workload served by two or more configurations at once: the whole, its parts, its rivals."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from planner.evidence import Interval
from planner.serving.types import Performance

Outcome = Literal["confirmed", "refuted", "unsettled"]


@dataclass(frozen=True, slots=True)
class MixPart:
    """One configuration of a mix: ``replicas`` of a candidate that get ``share`` of the requests.

    ``capacity_share`` is what they carry within the SLO, as a share of the demand. ``endpoint_weight`` is that of each
    replica in the router's configuration. ``performance`` is of all of them at their share.
    """

    candidate_id: str
    engine: str
    gpu: str
    replicas: int
    gpus: int
    capacity_share: float
    share: float
    endpoint_weight: int
    performance: Performance
    usd_per_month: Decimal


@dataclass(frozen=True, slots=True)
class MixFlip:
    """The value of a parameter from which on the mix is no longer cheaper than its rival, or begins to be."""

    parameter: str
    unit: str
    current: float
    value: float | None  # None: not in the searched range
    searched: tuple[float, float]
    sentence: str


@dataclass(frozen=True, slots=True)
class MixRival:
    """How the plan with one engine alone serves the workload; ``reason`` says why it does not, or that it is the same.

    ``parts`` are (candidate, replicas), ``carried`` the share of the demand that they serve. ``saving`` is (its cost -
    the mix's) / its cost with the 80 % interval, above 0 where the mix is cheaper; ``too_close`` when that interval
    holds zero.
    """

    engine: str
    parts: tuple[tuple[str, int], ...] = ()
    carried: float = 0.0
    performance: Performance | None = None  # of the whole workload
    usd_per_month: Decimal | None = None
    usd_per_mtok_output: Decimal | None = None
    saving: Interval | None = None
    too_close: bool = False
    flips: tuple[MixFlip, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Mix:
    """A workload served by several configurations behind one router, predicted as one service.

    ``carried`` is the share of the demand that it serves, below 1 where the plan had no room for more.
    ``placed``: the plan runs it; else it is the cheapest mix of both engines, for comparison. ``split`` says how
    requests are dealt out: in proportion to what each part carries ("capacity"), or so that the largest value / limit
    of the SLO is least ("latency"). ``slo_use`` is that largest ratio, ``slo_use_by_capacity`` the one of the
    proportional split; None without SLO. ``after_loss`` is the share of the demand that is still carried when its
    largest replica is lost, 1 or more for N+1.
    """

    workload: str
    placed: bool
    carried: float
    parts: tuple[MixPart, ...]
    split: Literal["capacity", "latency"]
    slo_use: float | None
    slo_use_by_capacity: float | None
    after_loss: float
    performance: Performance
    usd_per_month: Decimal
    usd_per_mtok_output: Decimal | None
    usd_per_mtok_output_80: tuple[Decimal, Decimal] | None
    rivals: tuple[MixRival, ...]
    outcome: Outcome  # of "a mix of both is cheaper than either engine alone"
    sentence: str

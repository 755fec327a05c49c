"""How a router deals a workload out to the parts of a mix, and what the whole then does: each part simulated at its own
share of the arrivals, the answers merged.

In proportion to what each part carries within the SLO, every part is equally far from its own limit: as long as
capacities add up to the demand each meets the SLO, so the whole does, and that stays so when load grows or, with N+1,
when a replica is lost. That split is the default. Another one is taken where it brings the worst value / limit of the
whole down by more than ``WORTH`` and no part is asked for more than it carries, with N+1 also after any loss. Money
does not decide: the same replicas cost the same however they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.catalog import get_model
from planner.placement.encoder import simulate_encoder
from planner.placement.sizing import of_all, per_replica_load, predicted
from planner.plan_types import Candidate, PlanWorkload
from planner.serving.disaggregated import Disaggregated, simulate_disaggregated
from planner.serving.disaggregated_sizing import predict_disaggregated
from planner.serving.instance import Instance
from planner.serving.metrics import slo_ratio
from planner.serving.mixture import ServedPart, mixed_latencies, mixed_performance
from planner.serving.simulator import simulate
from planner.serving.types import Lengths, Load, Performance, Samples, SimResult

WORTH = 0.02
"""A split other than the proportional one must bring the worst value / limit down by this share."""

STEPS = 8
"""Splits tried between the ends of what two parts can take."""

_ONE_TOKEN = Lengths("fixed", value=1)
_EPSILON = 1e-6


@dataclass(frozen=True)
class Part:
    """``replicas`` of a candidate, built again; ``capacity`` is what all of them carry, as a share of the demand."""

    candidate: Candidate
    made: Instance | Disaggregated
    replicas: int
    capacity: float


@dataclass(frozen=True)
class Split:
    """``shares`` of the requests by part, what each part does at its own, and the whole.

    ``slo_use`` is the largest value / limit of the whole, ``slo_use_by_capacity`` that of the proportional split; None
    without SLO.
    """

    shares: tuple[float, ...]
    kind: Literal["capacity", "latency"]
    parts: tuple[Performance, ...]
    whole: Performance
    slo_use: float | None
    slo_use_by_capacity: float | None


def best_split(workload: PlanWorkload, parts: Sequence[Part], seed: int) -> Split:
    """The split of the demand over ``parts`` and the service that it makes. Raises what the simulator raises."""
    trial = _Trial(workload, parts, seed)
    even = trial.by_capacity()
    before = trial.slo_use(even)
    best, least = even, before
    if before is not None and len(parts) > 1:
        tried = [(use, given) for given in trial.others(even) if (use := trial.slo_use(given)) is not None]
        use, given = min(tried, default=(before, even))
        if use < before * (1 - WORTH):
            best, least = given, use
    served = trial.served(best)
    return Split(
        shares=tuple(part.share for part in served),
        kind="capacity" if best == even else "latency",
        parts=tuple(part.performance for part in served),
        whole=mixed_performance(served),
        slo_use=least,
        slo_use_by_capacity=before,
    )


class _Trial:
    """Simulates parts at shares of the demand (of the users in a closed loop) and remembers each."""

    def __init__(self, workload: PlanWorkload, parts: Sequence[Part], seed: int) -> None:
        self.workload = workload
        self.parts = parts
        self.seed = seed
        self.carried = min(1.0, sum(part.capacity for part in parts))
        generates = get_model(workload.model).task == "generate"
        self.outputs = workload.output_tokens if generates else _ONE_TOKEN
        self._known: dict[tuple[int, float], SimResult] = {}

    def by_capacity(self) -> tuple[float, ...]:
        """Shares in proportion to what each part carries; they add up to what is carried of the demand."""
        able = sum(part.capacity for part in self.parts)
        return tuple(self.carried * part.capacity / able for part in self.parts)

    def others(self, even: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Splits that move load between the two largest parts as far as both, and the loss of a replica, allow."""
        first, second = sorted(range(len(even)), key=lambda i: -even[i])[:2]
        both = even[first] + even[second]
        low = max(0.02 * both, both - self.parts[second].capacity)
        high = min(0.98 * both, self.parts[first].capacity)
        found = []
        for step in range(STEPS + 1):
            given = list(even)
            given[first] = low + (high - low) * step / STEPS
            given[second] = both - given[first]
            if self._holds(given):
                found.append(tuple(given))
        return found

    def _holds(self, given: Sequence[float]) -> bool:
        """Whether no part is asked for more than it carries; with N+1 also when any replica is lost and the router
        deals its requests out to the others by their weights.
        """
        if any(share > part.capacity + _EPSILON for share, part in zip(given, self.parts, strict=True)):
            return False
        if not self.workload.n_plus_1:
            return True
        total = sum(given)
        for lost, part in enumerate(self.parts):
            rest = total - given[lost] / part.replicas
            for i, other in enumerate(self.parts):
                left = (other.replicas - (i == lost)) / other.replicas
                if given[i] * left * total / rest > other.capacity * left + _EPSILON:
                    return False
        return True

    def slo_use(self, given: tuple[float, ...]) -> float | None:
        """Largest value / limit of the whole; 2 or more where a part's queue grows without bound, None without SLO."""
        if not self.workload.slo:
            return None
        runs = [self._run(i, share) for i, share in enumerate(given)]
        found = mixed_latencies(
            [(share, _samples(run)) for share, run in zip(self._of_requests(given), runs, strict=True)]
        )
        worst = slo_ratio(self.workload.slo, found.ttft_ms, found.tpot_ms, found.itl_ms, found.e2e_ms)
        return max(worst, 2.0) if any(run.saturated for run in runs) else worst

    def served(self, given: tuple[float, ...]) -> list[ServedPart]:
        """Each part at its share, with its bands."""
        found = []
        for i, share in enumerate(self._of_requests(given)):
            part = self.parts[i]
            one = self._predicted(part, per_replica_load(self.workload, part.replicas, given[i]))
            performance = of_all(one, part.replicas)
            found.append(ServedPart(share, part.replicas, performance, _samples(self._run(i, given[i]))))
        return found

    def _of_requests(self, given: tuple[float, ...]) -> list[float]:
        """Shares of the requests. Open arrivals are dealt out as given; users who wait for each answer ask a faster
        part more often, and a batch is done when all parts are, so both go by what each part answers.
        """
        rates = list(given)
        if self.workload.load.kind != "open":
            rates = [self._run(i, share).req_per_s * self.parts[i].replicas for i, share in enumerate(given)]
        return [rate / sum(rates) for rate in rates]

    def _run(self, index: int, share: float) -> SimResult:
        key = index, round(share, 9)
        if key not in self._known:
            part = self.parts[index]
            self._known[key] = self._simulated(part, per_replica_load(self.workload, part.replicas, share))
        return self._known[key]

    def _simulated(self, part: Part, load: Load) -> SimResult:
        inputs, slo = self.workload.input_tokens, self.workload.slo
        if isinstance(part.made, Disaggregated):
            return simulate_disaggregated(part.made, load, inputs, self.outputs, slo=slo, seed=self.seed)[0]
        if part.made.model.task != "generate":
            return simulate_encoder(part.made.step, part.made.resolved, load, inputs, slo=slo, seed=self.seed)
        return simulate(part.made, load, inputs, self.outputs, slo=slo, seed=self.seed)

    def _predicted(self, part: Part, load: Load) -> Performance:
        if isinstance(part.made, Disaggregated):
            inputs, slo = self.workload.input_tokens, self.workload.slo
            return predict_disaggregated(part.made, load, inputs, self.outputs, slo=slo, seed=self.seed)[0]
        return predicted(part.made, self.workload, self.outputs, load, self.seed)


def _samples(run: SimResult) -> Samples:
    if run.samples is None:
        raise ValueError("the run kept no latencies")
    return run.samples

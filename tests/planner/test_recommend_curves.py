"""Load curves of candidates: they pass the knee, agree with the plan, and cost what the replica costs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from fleet_samples import node, request, workload

from planner.errors import InfeasibleError
from planner.placement.candidates import candidates
from planner.plan_types import Candidate, PlanWorkload
from planner.recommend.curves import TIMELINE_SAMPLES, bursts_s, candidate_curve
from planner.serving.types import Lengths, Load, SloTarget

CHAT = workload(
    "chat", load=Load("open", rate_per_s=10.0), slo=(SloTarget("ttft", "p90", 800.0), SloTarget("tpot", "p90", 30.0))
)


def first(work: PlanWorkload, **nodes: str) -> tuple[Candidate, object]:
    asked = request([node("a", gpus=1, **nodes)], [work])
    return next(c for c in candidates(work, asked) if c.status == "ok"), asked


def test_an_open_load_passes_its_knee() -> None:
    candidate, asked = first(CHAT)
    seen: list[float] = []
    curve = candidate_curve(candidate, CHAT, asked, seen.append)
    assert curve.axis == "rate"
    assert curve.knee == candidate.replica_rate_per_s
    assert curve.points[0].meets_slo
    assert not curve.points[-1].meets_slo, "half as much again as it carries breaks the SLO"
    at_knee = next(p for p in curve.points if p.rate_per_s == pytest.approx(curve.knee))
    assert at_knee.meets_slo
    ttft = [p.performance.ttft_ms.p50 for p in curve.points if p.performance.ttft_ms]
    assert ttft[-1] > ttft[0]
    assert curve.usd_per_hour == Decimal("2.0000") + candidate.replica_extra_usd_per_hour.quantize(Decimal("0.0001"))
    assert seen == sorted(seen)
    assert curve.timeline is not None
    assert 2 <= len(curve.timeline.t_s) <= TIMELINE_SAMPLES + 3, "and the end of each burst"
    assert max(curve.timeline.waiting) > 0, "twice the knee makes a queue"


def test_requests_come_in_the_bursts_that_are_told() -> None:
    candidate, asked = first(CHAT)
    curve = candidate_curve(candidate, CHAT, asked)
    spans = bursts_s(curve.burst_per_s)
    assert [start for start, _ in spans] == [0.0, 40.0, 80.0]
    line = curve.timeline
    assert line is not None
    grows = line.t_s[1:][np.diff(line.running + line.waiting) > 0]
    outside = [at for at in grows if not any(start <= at <= stop + 0.5 for start, stop in spans)]
    assert grows.size > 20
    assert all(at == pytest.approx(120.0, abs=0.5) for at in outside), "only the last request comes after them"
    assert bursts_s(0.0) == ()
    assert bursts_s(2 * 100.0) == ((0.0, 20.0), (40.0, pytest.approx(50.0, abs=0.01))), "6,000 requests at most"
    assert len(bursts_s(2 * 0.1)) == 13, "fifty requests at least"


def test_an_engine_is_seen_to_stand_still_between_bursts() -> None:
    """A thinned timeline keeps the moment at which the last request left: a line drawn through it falls to nothing."""
    asked = request([node("a", gpus=1)], [CHAT])
    for candidate in (c for c in candidates(CHAT, asked) if c.status == "ok"):
        line = candidate_curve(candidate, CHAT, asked).timeline
        assert line is not None
        last = [int(np.searchsorted(line.t_s, start, side="left")) - 1 for start in (40.0, 80.0)]
        assert [int(line.running[at] + line.waiting[at]) for at in last] == [0, 0], candidate.id


def test_a_burst_of_sessions_holds_what_was_said_before() -> None:
    """Eight turns of 300 new tokens and 100 of answer: 1,700 a prompt in the middle, not 300."""
    load = Load("open", rate_per_s=10.0, turns=Lengths("fixed", value=8), think_s=5.0)
    talk = replace(CHAT, load=load, input_tokens=Lengths("fixed", value=300), output_tokens=Lengths("fixed", value=100))
    candidate, asked = first(talk)
    line = candidate_curve(candidate, talk, asked).timeline
    assert line is not None
    assert candidate.memory is not None
    full = line.running > 0.5 * line.running.max()
    each = line.live_kv[full] * candidate.memory.kv_tokens / line.running[full]
    assert float(each.mean()) == pytest.approx(1750.0, rel=0.1)


def test_the_same_candidate_gives_the_same_curve() -> None:
    candidate, asked = first(CHAT)
    assert candidate_curve(candidate, CHAT, asked).points == candidate_curve(candidate, CHAT, asked).points


def test_users_and_offline_streams_are_drawn_over_concurrency() -> None:
    users = replace(CHAT, load=Load("closed", concurrency=64), slo=(SloTarget("tpot", "p90", 20.0),))
    candidate, asked = first(users)
    curve = candidate_curve(candidate, users, asked)
    assert (curve.axis, curve.knee) == ("concurrency", pytest.approx(candidate.replica_share * 64))
    assert [p.concurrency for p in curve.points] == sorted({p.concurrency for p in curve.points})
    night = replace(CHAT, load=Load("offline", requests=100_000), slo=())
    candidate, asked = first(night)
    curve = candidate_curve(candidate, night, asked)
    assert (curve.axis, curve.knee) == ("concurrency", None)
    rates = [p.performance.output_tok_per_s for p in curve.points]
    assert rates[-1] > 3 * rates[0], "more streams, more tokens"


def test_embeddings_have_a_curve_without_tokens_or_a_queue_of_decodes() -> None:
    embed = workload(
        "embed", model="BAAI/bge-m3", load=Load("open", rate_per_s=50.0), input_tokens=Lengths("fixed", value=256),
        output_tokens=Lengths("fixed", value=1), slo=(SloTarget("e2e", "p95", 500.0),), kind="embed",
    )  # fmt: skip
    candidate, asked = first(embed)
    curve = candidate_curve(candidate, embed, asked)
    assert curve.timeline is None
    assert all(p.performance.tpot_ms is None and p.performance.total_tok_per_s > 0 for p in curve.points)


def test_what_serves_nothing_has_no_curve() -> None:
    candidate, asked = first(CHAT)
    for gone in (
        replace(candidate, status="unsupported", reasons=("no kernels",)),
        replace(candidate, status="infeasible", memory=replace(candidate.memory, fits=False), reasons=("no kernels",)),
    ):
        with pytest.raises(InfeasibleError, match="no kernels"):
            candidate_curve(gone, CHAT, asked)


def test_one_that_breaks_the_slo_at_any_load_shows_by_how_much() -> None:
    strict = replace(CHAT, slo=(SloTarget("tpot", "p90", 0.5),))
    asked = request([node("a", gpus=1)], [strict])
    candidate = next(c for c in candidates(strict, asked) if c.status == "infeasible" and c.memory and c.memory.fits)
    curve = candidate_curve(candidate, strict, asked)
    assert (curve.axis, curve.knee) == ("concurrency", None)
    assert curve.points[0].concurrency == 1
    assert not any(point.meets_slo for point in curve.points)
    assert curve.timeline is not None

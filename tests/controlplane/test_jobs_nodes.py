"""Jobs of nodes: reports count once, in any order; silence is explained, a database that is away outlived."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from controlplane.jobs import observing, tasks
from controlplane.jobs.models import Job, JobLog
from controlplane.jobs.sweep import NODE_WAIT, sweep
from runners.contracts import DISCOVER_TASK
from tests.controlplane.job_samples import NodeRecorder, seen, submit


@pytest.mark.django_db(transaction=True)
def test_node_job_is_claimed_by_the_first_observation(node_recorder: NodeRecorder, sent: list) -> None:
    job = submit("test.node", queue="node.n1")
    task, payload, queue = sent[0]
    assert (task, queue) == (DISCOVER_TASK, "node.n1")
    assert payload == {"job_id": str(job.pk), "attempt": 1, "node_slug": "n1"}
    assert observing.apply_observation(seen(job, 1, phase="Looking", progress=0.3, lines=("x", "y"))) == "applied"
    job.refresh_from_db()
    assert (job.state, job.attempt, job.step, job.progress, job.claimed_by) == ("running", 1, "Looking", 0.3, "n1")
    assert observing.apply_observation(seen(job, 2, "discovered")) == "applied"
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", {"ok": True})
    assert [line.text for line in job.log.filter(level=JobLog.Level.OUTPUT)] == ["x", "y"]


@pytest.mark.django_db(transaction=True)
def test_observations_count_once_in_any_order(node_recorder: NodeRecorder) -> None:
    job = submit("test.node", queue="node.n1")
    observing.apply_observation(seen(job, 3, phase="Third", progress=0.6))
    assert observing.apply_observation(seen(job, 3, phase="Third", progress=0.6)) == "repeated"
    assert observing.apply_observation(seen(job, 2, phase="Second", progress=0.2)) == "applied"
    job.refresh_from_db()
    assert (job.step, job.progress) == ("Third", 0.6), "an older message must not turn the clock back"
    assert len(node_recorder.seen) == 2
    assert observing.apply_observation(seen(job, 4, "discovered")) == "applied"
    assert observing.apply_observation(seen(job, 5, "failed", reason="x")) == "late"
    assert [item.sequence for item in node_recorder.tardy] == [5]


@pytest.mark.django_db(transaction=True)
def test_observation_of_a_reaped_attempt_is_dropped(node_recorder: NodeRecorder, sent: list) -> None:
    job = submit("test.node", queue="node.n1")
    observing.apply_observation(seen(job, 1, "started"))
    assert sweep(timezone.now() + dt.timedelta(seconds=90))["requeued"] == 1
    assert sent[-1][1]["attempt"] == 2
    observing.apply_observation(seen(job, 1, "started", attempt=2))
    assert observing.apply_observation(seen(job, 2, "discovered", attempt=1)) == "late"
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)


@pytest.mark.django_db(transaction=True)
def test_failed_observation_ends_the_job_with_its_reason(node_recorder: NodeRecorder) -> None:
    job = submit("test.node", queue="node.n1")
    observing.apply_observation(seen(job, 1, "failed", reason="The binary is missing.", remedy="Install it."))
    job.refresh_from_db()
    assert (job.state, job.error, job.remedy) == ("failed", "The binary is missing.", "Install it.")


@pytest.mark.django_db(transaction=True)
def test_silent_node_is_explained(node_recorder: NodeRecorder, node: Any) -> None:
    job = submit("test.node", queue="node.n1", deadline=dt.timedelta(days=1))
    assert sweep(timezone.now() + NODE_WAIT / 2)["failed"] == 0
    assert sweep(timezone.now() + NODE_WAIT * 1.1)["failed"] == 1
    job.refresh_from_db()
    assert "has not answered" in job.error
    assert "TONNAGE_NODE_SLUG=n1 python -m runners worker" in job.remedy


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "message",
    [
        {},
        {"job_id": "x"},
        {"job_id": "x", "attempt": 1, "sequence": 1, "state": "nonsense", "node": "n", "at": 1.0},
        {"job_id": "x", "attempt": 1, "sequence": 1, "state": "log", "node": "n", "at": float("nan")},
    ],
)
def test_malformed_observation_is_refused(message: dict) -> None:
    assert observing.apply_observation(message) == "malformed"


@pytest.mark.django_db(transaction=True)
def test_observation_of_nothing_known(node: Any) -> None:
    base = {"attempt": 0, "sequence": 1, "state": "heartbeat", "node": "n1", "at": 1.0}
    assert observing.apply_observation({**base, "job_id": ""}) == "node"
    node.refresh_from_db()
    assert node.worker_last_seen_at is not None
    assert observing.apply_observation({**base, "job_id": "not-a-uuid"}) == "unknown job"
    assert observing.apply_observation({**base, "job_id": "0" * 32}) == "unknown job"


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_never_loses_an_observation(
    node_recorder: NodeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit("test.node", queue="node.n1")
    failures = [OperationalError("database is locked"), OperationalError("server closed the connection")]
    apply = observing.apply_observation

    def flaky(message: dict) -> str:
        if failures:
            raise failures.pop()
        return apply(message)

    monkeypatch.setattr(tasks, "apply_observation", flaky)
    monkeypatch.setattr(tasks, "retry_transient", lambda act: act())
    tasks.observe.apply(args=[seen(job, 1, "discovered")])
    assert failures == []
    job.refresh_from_db()
    assert job.state == Job.State.SUCCEEDED

"""The job engine: who may go on, what is lost, what is repeated, what is reaped."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import threading
import time
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from controlplane.core.models import ChangeLog
from controlplane.jobs import kinds, retrying, running, sending, services
from controlplane.jobs.models import Job
from controlplane.jobs.sweep import sweep
from tests.controlplane.job_samples import Recorder, submit


@pytest.mark.django_db(transaction=True)
def test_message_goes_out_on_commit_and_never_on_rollback(recorder: Recorder, sent: list) -> None:
    with transaction.atomic():
        submit()
        transaction.set_rollback(True)
    assert sent == []
    assert not Job.objects.exists()
    with transaction.atomic():
        job = submit()
        assert sent == []
    assert sent == [(sending.RUN_TASK, {"job_id": str(job.pk)}, "control")]
    job.refresh_from_db()
    assert job.sent_at is not None
    assert job.state == Job.State.QUEUED


@pytest.mark.django_db(transaction=True)
def test_broker_that_is_away_leaves_the_job_to_the_sweep(
    recorder: Recorder, sent: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError("no space left on device")

    held = sending.publish
    monkeypatch.setattr(sending, "publish", refuse)
    job = submit()
    job.refresh_from_db()
    assert job.sent_at is None
    monkeypatch.setattr(sending, "publish", held)
    assert sweep(timezone.now() + dt.timedelta(seconds=5))["sent"] == 1
    assert sent[0][1] == {"job_id": str(job.pk)}


@pytest.mark.django_db(transaction=True)
def test_runs_once_however_often_it_is_delivered(recorder: Recorder) -> None:
    calls: list[int] = []
    recorder.act = lambda job: calls.append(1) or {"answer": 1}
    job = submit()
    assert running.run_job(str(job.pk)) == "succeeded"
    assert running.run_job(str(job.pk)) == "not claimed"
    job.refresh_from_db()
    assert (job.state, job.attempt, job.result, job.progress) == ("succeeded", 1, {"answer": 1}, 1.0)
    assert calls == [1]


@pytest.mark.django_db(transaction=True)
def test_one_of_many_claims_wins(recorder: Recorder) -> None:
    job = submit()
    won: list[Job] = []
    barrier = threading.Barrier(6)

    def claim(name: str) -> None:
        barrier.wait()
        try:
            taken = retrying.retry_transient(lambda: services.claim(job.pk, worker=name))
            if taken is not None:
                won.append(taken)
        finally:
            connection.close()

    threads = [threading.Thread(target=claim, args=(f"w{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    job.refresh_from_db()
    assert (job.attempt, job.claimed_by) == (1, won[0].claimed_by)


@pytest.mark.django_db(transaction=True)
def test_failure_says_what_and_what_to_do(recorder: Recorder) -> None:
    def act(job: kinds.Work) -> None:
        job.progress(0.5, "Half way")
        raise running.JobFailed("The fleet is empty.", "Add a node.")

    recorder.act = act
    job = submit()
    assert running.run_job(str(job.pk)) == "failed"
    job.refresh_from_db()
    assert (job.error, job.remedy, job.progress) == ("The fleet is empty.", "Add a node.", 0.5)
    assert recorder.ended == ["failed: The fleet is empty."]
    assert [line.text for line in job.log.all()] == ["Half way", "The fleet is empty. Add a node."]


@pytest.mark.django_db(transaction=True)
def test_fault_of_ours_ends_the_job_with_a_trace_in_its_log(recorder: Recorder) -> None:
    recorder.act = lambda job: 1 / 0
    job = submit()
    assert running.run_job(str(job.pk)) == "failed"
    job.refresh_from_db()
    assert "ZeroDivisionError" in job.error
    assert any("Traceback" in line.text for line in job.log.all())


@pytest.mark.django_db(transaction=True)
def test_cancel_is_stored_first_and_obeyed(recorder: Recorder) -> None:
    job = submit()

    def act(running_job: kinds.Work) -> None:
        services.request_cancel(actor=None, job=Job.objects.get(pk=job.pk))
        assert Job.objects.get(pk=job.pk).state == Job.State.RUNNING
        running_job.progress(0.2, "Goes on")
        raise AssertionError("went on after a cancel")

    recorder.act = act
    assert running.run_job(str(job.pk)) == "cancelled"
    job.refresh_from_db()
    assert job.state == Job.State.CANCELLED
    assert recorder.ended == ["cancelled"]
    assert ChangeLog.objects.filter(object_id=str(job.pk)).exists()


@pytest.mark.django_db(transaction=True)
def test_queued_job_is_cancelled_at_once_and_never_claimed(recorder: Recorder) -> None:
    job = submit()
    assert services.request_cancel(actor=None, job=job).state == Job.State.CANCELLED
    assert running.run_job(str(job.pk)) == "not claimed"


@pytest.mark.django_db
def test_cancel_needs_the_owner_or_an_operator(recorder: Recorder, planner: Any, viewer: Any, operator: Any) -> None:
    job = services.submit_job(actor=planner, kind="test.control", payload={})
    with pytest.raises(PermissionDenied, match="operator"):
        services.request_cancel(actor=viewer, job=job)
    assert services.request_cancel(actor=planner, job=job).state == Job.State.CANCELLED
    other = services.submit_job(actor=planner, kind="test.control", payload={})
    assert services.request_cancel(actor=operator, job=other).state == Job.State.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_lost_message_is_sent_again(recorder: Recorder, sent: list) -> None:
    job = submit()
    sent.clear()
    assert sweep() == {"sent": 0, "requeued": 0, "failed": 0, "cancelled": 0}
    assert sweep(timezone.now() + dt.timedelta(seconds=40))["sent"] == 1
    assert sent == [(sending.RUN_TASK, {"job_id": str(job.pk)}, "control")]


@pytest.mark.django_db(transaction=True)
def test_dead_worker_is_reaped_retried_then_explained(recorder: Recorder, sent: list) -> None:
    """D16: attempts are capped; the last one ends with its reason."""
    job = submit()
    taken = services.claim(job.pk, worker="host:1")
    assert taken is not None
    later = timezone.now() + dt.timedelta(seconds=120)
    assert sweep(later)["requeued"] == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("queued", 1)
    assert not services.finish(taken, {"too": "late"}), "the old attempt must not end the job any more"
    with pytest.raises(services.JobLost):
        services.heartbeat(taken)
    services.claim(job.pk, worker="host:2")
    assert sweep(timezone.now() + dt.timedelta(seconds=120))["failed"] == 1
    job.refresh_from_db()
    assert job.state == Job.State.FAILED
    assert "host:2 gave no sign of life" in job.error
    assert job.remedy
    assert recorder.ended == [f"failed: {job.error}"]


@pytest.mark.django_db(transaction=True)
def test_live_job_is_left_alone_and_deadline_ends_any(recorder: Recorder) -> None:
    job = submit(deadline=dt.timedelta(minutes=5))
    services.claim(job.pk, worker="w")
    now = timezone.now() + dt.timedelta(minutes=4)
    Job.objects.filter(pk=job.pk).update(heartbeat_at=now)
    assert sum(sweep(now).values()) == 0
    late = now + dt.timedelta(minutes=2)
    Job.objects.filter(pk=job.pk).update(heartbeat_at=late)
    assert sweep(late)["failed"] == 1
    job.refresh_from_db()
    assert "deadline" in job.error


@pytest.mark.django_db(transaction=True)
def test_heartbeat_thread_notices_cancel(recorder: Recorder, settings: Any) -> None:
    settings.JOB_HEARTBEAT_S = 0.05
    job = submit()

    def act(running_job: kinds.Work) -> str:
        Job.objects.filter(pk=job.pk).update(cancel_requested_at=timezone.now())
        for _ in range(100):
            if running_job.should_cancel():
                running_job.check()
            time.sleep(0.05)
        return "never told"

    recorder.act = act
    assert running.run_job(str(job.pk)) == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_transient_database_failure_requeues(recorder: Recorder) -> None:
    def act(job: kinds.Work) -> None:
        raise OperationalError("database is locked")

    recorder.act = act
    job = submit()
    assert running.run_job(str(job.pk)) == "requeued"
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("queued", 1)


@pytest.mark.django_db(transaction=True)
def test_retry_transient_retries_and_gives_up() -> None:
    failures = [OperationalError("database is locked")] * 3

    def act() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retrying.retry_transient(act, first_wait_s=0.001) == "done"

    def never() -> None:
        raise OperationalError("database is locked")

    with pytest.raises(OperationalError):
        retrying.retry_transient(never, limit_s=0.02, first_wait_s=0.01)


@pytest.mark.django_db(transaction=True)
def test_log_is_append_only_numbered_and_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LOG_LINES", 5)
    job = submit()
    services.add_log(job, ["a", "b"])
    services.add_log(job, ["c\x00"])
    services.add_log(job, ["d", "e", "f", "g"])
    services.add_log(job, ["h"])
    lines = list(job.log.all())
    assert [line.sequence for line in lines] == [0, 1, 2, 3, 4, 5]
    assert [line.text for line in lines] == ["a", "b", "c�", "d", "e", "The log is full; further lines are left out."]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values",
    [
        {"state": "paused"},
        {"progress": 1.5},
        {"state": "failed", "finished_at": timezone.now()},
        {"state": "succeeded"},
        {"finished_at": timezone.now()},
    ],
)
def test_constraints_refuse_impossible_rows(values: dict) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.create(kind="x", **values)


def test_every_kind_has_a_label_and_a_queue() -> None:
    names = {name: kind.label for name, kind in kinds._KINDS.items()}
    assert {"plan.compute", "deployment.launch", "deployment.probe", "deployment.stop", "node.discover"} <= set(names)
    assert all(label and kinds.get_kind(name).queue for name, label in names.items())
    with pytest.raises(KeyError):
        services.submit_job(actor=None, kind="no.such", payload={})
    with pytest.raises(ValueError, match="two job kinds"):
        kinds.register(type(kinds.get_kind("plan.compute")))


@pytest.mark.django_db(transaction=True)
def test_validation_errors_of_a_run_are_shown(recorder: Recorder) -> None:
    def act(job: kinds.Work) -> None:
        raise ValidationError("The scenario has no workloads; add at least one.")

    recorder.act = act
    job = submit()
    running.run_job(str(job.pk))
    job.refresh_from_db()
    assert job.error == "The scenario has no workloads; add at least one."


@pytest.mark.django_db(transaction=True)
def test_a_worker_process_of_this_host_that_is_gone_is_not_waited_for(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Embedded:
        embedded_database = True

    monkeypatch.setattr(settings, "ENV", Embedded)
    ended = subprocess.Popen(["true"])
    ended.wait()
    job = submit()
    services.claim(job.pk, worker=f"{socket.gethostname()}:{os.getpid()}")
    assert sweep()["requeued"] == 0, "this very process lives"
    Job.objects.filter(pk=job.pk).update(claimed_by=f"{socket.gethostname()}:{ended.pid}")
    assert sweep()["requeued"] == 1
    assert "has ended; attempt 2 follows" in job.log.get().text
    services.claim(job.pk, worker=f"elsewhere:{ended.pid}")
    assert sum(sweep().values()) == 0, "of another host only the heartbeat tells"

"""Probes: what they are held against, what calibrates, what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.core.models import User
from controlplane.deployments import calibrating, prediction, probing
from controlplane.deployments.models import Calibration, Deployment, ProbeRun
from controlplane.inventory.models import Node
from controlplane.jobs import running
from controlplane.jobs.models import Job
from controlplane.jobs.services import request_cancel
from controlplane.workloads.models import Workload
from planner.errors import UnsupportedError
from planner.jsonio import from_json, to_json
from planner.serving.types import Performance
from runners.contracts import (
    PROBE_TASK,
    ProbeCommand,
    ProbeLoad,
    ProbeMetrics,
)
from tests.controlplane.deployment_samples import LOAD, MODEL, Worker, make_ready, measured

pytestmark = pytest.mark.django_db(transaction=True)


def probed(deployment: Deployment, actor: User, metrics: ProbeMetrics, **extra: Any) -> ProbeRun:
    probe = probing.probe_deployment(actor=actor, deployment=deployment, load=LOAD)
    assert probe.job is not None
    worker = Worker(probe.job)
    worker.say("started")
    probe.refresh_from_db()
    assert probe.state == ProbeRun.State.RUNNING
    worker.say("probed", metrics=metrics, **extra)
    probe.refresh_from_db()
    return probe


def test_probe_is_held_against_its_prediction(deployment: Deployment, operator: User, sent: list) -> None:
    make_ready(deployment, operator)
    expected = prediction.predict_probe(deployment, LOAD)
    assert expected.ttft_ms is not None
    assert expected.tpot_ms is not None
    good = measured(expected.output_tok_per_s, expected.ttft_ms.p50 * 10, expected.tpot_ms.p50)
    probe = probed(deployment, operator, good)
    commands = [from_json(ProbeCommand, payload) for task, payload, _ in sent if task == PROBE_TASK]
    assert commands[0].base_url == "http://10.0.0.1:18100"
    assert commands[0].load == LOAD
    assert from_json(Performance, probe.prediction).output_tok_per_s == pytest.approx(expected.output_tok_per_s)
    rows = {row.metric: row for row in probe.validations.all()}
    assert {name: row.verdict for name, row in rows.items()} == {
        "output_tok_per_s": "within",
        "tpot_ms": "within",
        "ttft_ms": "outside",
    }
    assert rows["ttft_ms"].error_ratio == pytest.approx(-0.9)
    assert rows["tpot_ms"].evidence == str(expected.evidence)
    assert not rows["tpot_ms"].emulated
    probing.validate_probe(probe)
    assert probe.validations.count() == 3, "validating twice adds nothing"
    assert Job.objects.filter(kind="calibration.fit").count() == 1


def test_a_short_probe_at_a_rate_allows_for_the_chance_of_its_arrivals(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4,000 drawn runs of N Poisson arrivals at least 80 % deliver what the band says."""
    draws = random.Random(5)
    for count in (20, 200):
        load = replace(LOAD, concurrency=0, rate_per_s=1.0, requests=count)
        band = prediction.predict_probe(deployment, load).output_tok_per_s_80
        rates = [count / draws.gammavariate(count, 1.0) for _ in range(4000)]
        held = sum(band.low <= band.value * rate <= band.high for rate in rates) / len(rates)
        assert 0.79 < held < 0.95
    crowd = replace(LOAD, concurrency=0, rate_per_s=1e4, requests=200)  # far more than it can take
    expected = prediction.predict_probe(deployment, crowd)
    assert expected.output_tok_per_s < 0.5 * crowd.rate_per_s * crowd.output_tokens
    monkeypatch.setattr(prediction, "Z80", 50.0)
    assert prediction.predict_probe(deployment, crowd).output_tok_per_s_80 == expected.output_tok_per_s_80


def test_a_real_probe_calibrates_the_next_prediction(deployment: Deployment, operator: User) -> None:
    make_ready(deployment, operator)
    before = prediction.predict_probe(deployment, LOAD)
    assert before.tpot_ms is not None
    assert before.ttft_ms is not None
    slow = 7.0  # a factor beyond what a single outlier would be dropped for
    metrics = measured(before.output_tok_per_s / slow, before.ttft_ms.p50 * slow, before.tpot_ms.mean * slow)
    probe = probed(deployment, operator, metrics)
    assert running.run_job(str(Job.objects.get(kind="calibration.fit").pk)) == "succeeded"
    row = Calibration.objects.get()
    assert (row.active, row.samples, row.gpu, row.model) == (True, 1, "H100-SXM5-80GB", MODEL)
    assert str(probe.pk)[:8] in row.source
    after = prediction.predict_probe(deployment, LOAD)
    assert after.tpot_ms is not None
    assert after.evidence == "calibrated"
    assert math.isclose(after.tpot_ms.mean, before.tpot_ms.mean * slow, rel_tol=0.03)
    calibrating.fit_calibration(actor=None, probe=probe)
    assert Calibration.objects.filter(active=True).count() == 1
    calibrating.set_active(actor=operator, calibration=row, active=True)
    assert [item.pk for item in Calibration.objects.filter(active=True)] == [row.pk]


def test_an_uploaded_model_is_calibrated_under_its_own_id(cpu_deployment: Deployment, operator: User) -> None:
    make_ready(cpu_deployment, operator)
    load = ProbeLoad(input_tokens=128, output_tokens=32, concurrency=2, requests=8)
    before = prediction.predict_probe(cpu_deployment, load)
    assert before.tpot_ms is not None
    assert before.ttft_ms is not None
    metrics = measured(before.output_tok_per_s / 2, before.ttft_ms.p50 * 2, before.tpot_ms.mean * 2)
    probed(cpu_deployment, operator, metrics)
    assert running.run_job(str(Job.objects.get(kind="calibration.fit").pk)) == "succeeded"
    assert Calibration.objects.get().model == "me/tiny"
    assert prediction.predict_probe(cpu_deployment, load).evidence == "calibrated"


def test_emulated_never_calibrates(deployment: Deployment, operator: User, local_node: Node) -> None:
    make_ready(deployment, operator, emulated=True)
    probe = probed(deployment, operator, measured(), emulated=True)
    assert probe.emulated
    assert set(probe.validations.values_list("emulated", flat=True)) == {True}
    assert not Job.objects.filter(kind="calibration.fit").exists()
    with pytest.raises(UnsupportedError, match="emulated"):
        calibrating.fit_calibration(actor=None, probe=probe)
    assert not Calibration.objects.exists()
    real = replace_real(deployment)
    assert calibrating.similar_probes(real) == [real], "the emulated probe of the same kind is not among them"


def replace_real(deployment: Deployment) -> ProbeRun:
    """A real probe of a real deployment of the same kind."""
    other = Deployment.objects.create(
        name="real", node=deployment.node, model_ref=deployment.model_ref, planned_engine="vllm", engine="vllm",
        engine_version=deployment.engine_version, settings=deployment.settings,
    )  # fmt: skip
    return ProbeRun.objects.create(
        deployment=other, load=to_json(LOAD), metrics=to_json(measured()), state="done", finished_at=timezone.now()
    )


def test_no_prediction_is_a_state_with_its_reason(deployment: Deployment, operator: User, monkeypatch: Any) -> None:
    make_ready(deployment, operator)

    def refuse(*args: Any, **kwargs: Any) -> Performance:
        raise UnsupportedError("no data for this GPU", field="gpu")

    monkeypatch.setattr(prediction, "predict_probe", refuse)
    probe = probed(deployment, operator, measured())
    assert probe.no_prediction_reason == "gpu: no data for this GPU."
    assert set(probe.validations.values_list("verdict", "predicted")) == {("no_prediction", None)}
    assert not Job.objects.filter(kind="calibration.fit").exists()


def test_probe_that_fails_or_is_cancelled(deployment: Deployment, operator: User) -> None:
    make_ready(deployment, operator)
    first = probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    assert first.job is not None
    Worker(first.job).say("failed", reason="Every request failed.", remedy="Look at the log.")
    first.refresh_from_db()
    assert (first.state, first.reason, first.remedy) == ("failed", "Every request failed.", "Look at the log.")
    second = probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    assert second.job is not None
    request_cancel(actor=operator, job=second.job)
    second.refresh_from_db()
    assert second.state == "cancelled"
    assert Worker(second.job).say("probed", metrics=measured()) == "late"
    second.refresh_from_db()
    assert second.metrics is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"concurrency": 0}, "at least 1 user"),
        ({"requests": 0}, "1 to 100,000 requests"),
        ({"output_tokens": 0}, "at least 1 token"),
        ({"input_tokens": 4096}, "output_tokens: A request of 4,128 tokens is longer than the deployment's context"),
        ({"mix": [[10, 10, 90.0], [4000, 97, 10.0]]}, "mix: Requests of entry 2 (4,000 in, 97 out) are longer than"),
        ({"input_sd": -1.0}, "cannot be negative"),
        ({"seed": -1}, "from 0 to 4,294,967,295"),
        ({"timeout_s": -1.0}, "more than 0"),
        ({"endpoint": "http://elsewhere"}, "completions, chat, embeddings"),
        ({"slo_ms": {"ttft": -1.0}}, "above 0 ms of ttft"),
        ({"shared_prefixes": 0}, "shared beginnings"),
        ({"mix": [[0, 10, 100.0]]}, "at least 1 token in"),
        ({"mix": [[10, 10, 200.0], [10, 10, -100.0]]}, "more than 0 percent"),
        ({"mix": [[10, 10, 90.0]]}, "add up to 100"),
        ({"mix": [[10, 20, 100.0]]}, "Its means are 10 in and 20 out"),
        ({"colour": 1}, "unknown field"),
        ({"requests": "many"}, "must be int"),
    ],
)
def test_senseless_loads_are_refused(deployment: Deployment, operator: User, change: dict, words: str) -> None:
    make_ready(deployment, operator)
    with pytest.raises(ValidationError) as error:
        probing.probe_deployment(actor=operator, deployment=deployment, load={**to_json(LOAD), **change})
    assert words in " ".join(error.value.messages)


def test_only_a_ready_deployment_is_probed(deployment: Deployment, operator: User) -> None:
    with pytest.raises(ValidationError, match="only a ready one"):
        probing.probe_deployment(actor=operator, deployment=deployment)


def test_two_loads_never_measure_each_other(deployment: Deployment, operator: User) -> None:
    make_ready(deployment, operator)
    probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    with pytest.raises(ValidationError, match="is being probed already"):
        probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    assert deployment.probes.count() == 1


def test_planned_load_is_one_replicas_share(deployment: Deployment, workload: Workload) -> None:
    assert probing.planned_load(deployment).concurrency == 4
    deployment.workload, deployment.prediction = workload, {"replicas": 2}
    load = probing.planned_load(deployment)
    assert (load.rate_per_s, load.requests, load.input_tokens) == (2.0, 120, 512)
    workload.load_kind, workload.concurrency = "closed", 64
    assert probing.planned_load(deployment).concurrency == 32

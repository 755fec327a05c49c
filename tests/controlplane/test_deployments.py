"""Deployments: gates before the start, what nodes report, probes, validation and calibration."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.core.models import SiteRole, User
from controlplane.deployments import calibrating, prediction, probing, reporting, services
from controlplane.deployments.models import Calibration, Deployment, ProbeRun, Validation
from controlplane.inventory.models import Node
from controlplane.jobs import observing, running
from controlplane.jobs.models import Job
from controlplane.jobs.services import request_cancel
from controlplane.planning import mapping
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload
from controlplane.workloads.services import upload_model
from planner.engines.types import EngineName
from planner.errors import UnsupportedError
from planner.jsonio import from_json, to_json
from planner.placement.candidates import gpu_of_nodes
from planner.serving.types import Performance
from runners.contracts import (
    LAUNCH_TASK,
    PROBE_TASK,
    STOP_TASK,
    EngineLaunch,
    LaunchCommand,
    Observation,
    ProbeCommand,
    ProbeLoad,
    ProbeMetrics,
    StartupFacts,
)
from runners.engines.commands import engine_command
from tests.controlplane.test_workloads import TINY

pytestmark = pytest.mark.django_db(transaction=True)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LOAD = ProbeLoad(input_tokens=128, output_tokens=32, concurrency=2, requests=8)


@pytest.fixture
def seen_node(node: Node) -> Node:
    """A node whose worker has been seen."""
    node.worker_last_seen_at = timezone.now()
    node.save()
    return node


@pytest.fixture
def deployment(seen_node: Node, operator: User) -> Deployment:
    """vLLM with an 8B model on one H100, pending."""
    return services.create_deployment(
        actor=operator, node=seen_node, model_ref=MODEL, engine="vllm", options={"max_model_len": 4096}
    )


@pytest.fixture
def cpu_deployment(local_node: Node, planner: User, operator: User) -> Deployment:
    """A tiny model on the processor of this host, pending."""
    upload_model(actor=planner, model_id="me/tiny", config=json.dumps(TINY).encode())
    return services.create_deployment(
        actor=operator, node=local_node, model_ref="me/tiny", engine="vllm", options={"max_model_len": 1024}
    )


class Worker:
    """Answers commands the way a node worker does."""

    def __init__(self, job: Job, node: str = "n1") -> None:
        self.job, self.node, self.sequence = job, node, 0

    def say(self, state: Any, **values: Any) -> str:
        self.sequence += 1
        about = {"job_id": str(self.job.pk), "attempt": 1, "sequence": self.sequence, "node": self.node}
        seen = Observation(state=state, at=time.time(), **about, **values)
        return observing.apply_observation(to_json(seen))


def make_ready(deployment: Deployment, actor: User, **extra: Any) -> Worker:
    worker = Worker(services.launch_deployment(actor=actor, deployment=deployment, **extra))
    worker.say("started")
    worker.say("ready", base_url="http://10.0.0.1:18100", pid=77, startup=StartupFacts(kv_tokens=1000))
    deployment.refresh_from_db()
    assert deployment.state == Deployment.State.READY
    return worker


def measured(output: float = 100.0, ttft: float = 50.0, tpot: float = 10.0) -> ProbeMetrics:
    def spread(value: float) -> dict[str, float]:
        return {"mean": value, "p50": value, "p90": value * 1.1, "p95": value * 1.2, "p99": value * 1.3}

    return ProbeMetrics(
        requests=8, completed=8, failed=0, duration_s=10.0, output_tok_per_s=output, total_tok_per_s=output * 5,
        req_per_s=1.0, ttft_ms=spread(ttft), tpot_ms=spread(tpot), itl_ms=spread(tpot), e2e_ms=spread(ttft + 31 * tpot),
        achieved_concurrency=2.0, mean_input_tokens=128, mean_output_tokens=32,
    )  # fmt: skip


def test_launch_command_says_what_was_planned(deployment: Deployment, operator: User, sent: list) -> None:
    assert deployment.engine == "vllm"
    assert deployment.prediction["memory"]["fits"]
    job = services.launch_deployment(actor=operator, deployment=deployment)
    task, payload, queue = sent[-1]
    assert (task, queue) == (LAUNCH_TASK, "node.n1")
    command = from_json(LaunchCommand, payload)
    assert (command.job_id, command.attempt, command.deployment_id) == (str(job.pk), 1, str(deployment.pk))
    launch = command.launch
    assert (launch.engine, launch.model, launch.served_name, launch.gpu_indexes) == ("vllm", MODEL, MODEL, (0,))
    assert launch.flags["max_model_len"] == 4096
    assert launch.emulation == {}
    assert 18100 <= launch.port <= 18399
    deployment.refresh_from_db()
    assert (deployment.state, deployment.host, deployment.emulated) == ("launching", deployment.node, False)


def test_from_launch_to_stop(deployment: Deployment, operator: User, sent: list) -> None:
    worker = Worker(services.launch_deployment(actor=operator, deployment=deployment))
    worker.say("started")
    worker.say("progress", phase="loading weights", progress=0.4, pid=77, command_line=("vllm", "serve"))
    deployment.refresh_from_db()
    assert (deployment.state, deployment.phase, deployment.pid) == ("loading", "loading weights", 77)
    worker.say("ready", base_url="http://10.0.0.1:18100", startup=StartupFacts(kv_tokens=123))
    deployment.refresh_from_db()
    assert (deployment.state, deployment.startup["kv_tokens"]) == ("ready", 123)
    assert deployment.endpoint.url == "http://10.0.0.1:18100"
    worker.job.refresh_from_db()
    assert (worker.job.state, worker.job.result["base_url"]) == ("succeeded", "http://10.0.0.1:18100")
    with pytest.raises(ValidationError, match="ready; stop it before"):
        services.launch_deployment(actor=operator, deployment=deployment)
    with pytest.raises(ValidationError, match="stop it first"):
        services.delete_deployment(actor=operator, deployment=deployment)
    stop = services.stop_deployment(actor=operator, deployment=deployment)
    assert stop is not None
    assert sent[-1][0] == STOP_TASK
    Worker(stop).say("stopped")
    deployment.refresh_from_db()
    assert (deployment.state, deployment.pid, hasattr(deployment, "endpoint")) == ("stopped", None, False)
    assert worker.say("ready") == "late", "a late message of the old launch"
    deployment.refresh_from_db()
    assert deployment.state == "stopped"
    services.launch_deployment(actor=operator, deployment=deployment)


def test_failed_launch_says_why_and_can_be_repeated_on_another_port(deployment: Deployment, operator: User) -> None:
    worker = Worker(services.launch_deployment(actor=operator, deployment=deployment))
    first = deployment.port
    worker.say("failed", reason="The port was taken while vLLM started.", remedy="Give it another port.")
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason) == ("failed", "The port was taken while vLLM started.")
    assert deployment.remedy == "Give it another port."
    again = Worker(services.launch_deployment(actor=operator, deployment=deployment))
    assert deployment.port == first + 1
    again.say("failed", reason="The port was taken while vLLM started.")
    deployment.refresh_from_db()
    services.launch_deployment(actor=operator, deployment=deployment)
    assert deployment.port == first + 2, "it does not go back to a port that was refused"
    assert (deployment.reason, deployment.state) == ("", "launching")


def test_engine_that_dies_after_it_was_ready(deployment: Deployment, operator: User) -> None:
    worker = make_ready(deployment, operator)
    probe = probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    worker.say("failed", reason="The engine was ended by SIGKILL.", remedy="See the kernel log.")
    deployment.refresh_from_db()
    probe.refresh_from_db()
    assert (deployment.state, deployment.reason) == ("failed", "The engine was ended by SIGKILL.")
    assert (probe.state, probe.reason) == ("failed", "The engine failed: The engine was ended by SIGKILL.")
    assert not hasattr(deployment, "endpoint")


def test_adopted_engine_comes_back(deployment: Deployment, operator: User) -> None:
    worker = make_ready(deployment, operator)
    Deployment.objects.filter(pk=deployment.pk).update(state="failed", reason="worker was away")
    worker.say("ready", base_url="http://10.0.0.1:18100", pid=78)
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason, deployment.pid) == ("ready", "", 78)


def test_cancelled_launch_stops_what_it_started(deployment: Deployment, operator: User, sent: list) -> None:
    job = services.launch_deployment(actor=operator, deployment=deployment)
    Worker(job).say("started")
    request_cancel(actor=operator, job=job)
    deployment.refresh_from_db()
    assert deployment.state == "stopping"
    assert sent[-1][0] == STOP_TASK


def test_does_not_fit(seen_node: Node, operator: User) -> None:
    big = services.create_deployment(
        actor=operator, node=seen_node, model_ref="meta-llama/Llama-3.1-70B-Instruct", engine="vllm", options={}
    )
    assert not big.prediction["memory"]["fits"]
    with pytest.raises(ValidationError, match="does not fit"):
        services.launch_deployment(actor=operator, deployment=big)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_ref": "no/such"}, "neither in the catalogue"),
        ({"engine": "sglang"}, "unknown value"),
        ({"options": {"tp": 2}, "gpu_indexes": [0]}, "the settings need 2"),
        ({"gpu_indexes": [8]}, "has the GPUs 0 to 7"),
        ({"options": {"colour": 1}}, "unknown field"),
        ({"options": {"max_model_len": 0}}, "must be positive"),
    ],
)
def test_hopeless_deployments_are_refused(seen_node: Node, operator: User, values: dict, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        services.create_deployment(
            **{"actor": operator, "node": seen_node, "model_ref": MODEL, "engine": "vllm", **values}
        )
    assert words in " ".join(error.value.messages)
    assert not Deployment.objects.exists()


def test_gpus_are_not_given_twice(deployment: Deployment, seen_node: Node, operator: User) -> None:
    make_ready(deployment, operator)
    other = services.create_deployment(actor=operator, node=seen_node, model_ref=MODEL, engine="vllm", gpu_indexes=[0])
    with pytest.raises(ValidationError, match="GPU 0 of n1 is used by"):
        services.launch_deployment(actor=operator, deployment=other)
    third = services.create_deployment(actor=operator, node=seen_node, model_ref=MODEL, engine="vllm", gpu_indexes=[1])
    services.launch_deployment(actor=operator, deployment=third)
    assert third.port != deployment.port


def test_an_engine_on_a_slice_sees_that_slice_alone(deployment: Deployment, operator: User, sent: list) -> None:
    deployment.device = {"slice_profile": "3g.40gb", "slice_index": 0, "slice_uuid": "MIG-7"}
    deployment.save()
    services.launch_deployment(actor=operator, deployment=deployment)
    launch = from_json(LaunchCommand, sent[-1][1]).launch
    assert (launch.gpu_indexes, launch.env) == ((), {"CUDA_VISIBLE_DEVICES": "MIG-7"})


def test_a_slice_is_too_small_for_what_fits_the_whole(deployment: Deployment, operator: User) -> None:
    deployment.device = {"slice_profile": "1g.10gb", "slice_index": 0, "slice_uuid": "MIG-7"}
    with pytest.raises(ValidationError, match="does not fit"):
        services.launch_deployment(actor=operator, deployment=deployment)
    deployment.device = {"slice_profile": "3g.40gb", "slice_index": 0, "slice_uuid": ""}
    with pytest.raises(ValidationError, match="has no UUID; discover"):
        services.launch_deployment(actor=operator, deployment=deployment)


def test_engines_share_a_gpu_on_slots_of_their_own(deployment: Deployment, seen_node: Node, operator: User) -> None:
    other = services.create_deployment(
        actor=operator, node=seen_node, model_ref=MODEL, engine="vllm",
        options={"max_model_len": 2048, "gpu_memory_utilization": 0.46},
    )  # fmt: skip
    for row, slot in ((deployment, 0), (other, 1)):
        row.gpu_indexes, row.device = [0], {"sharers": 2, "slot": slot}
        row.settings = {**row.settings, "gpu_memory_utilization": 0.46}
        row.save()
    services.launch_deployment(actor=operator, deployment=deployment)
    services.launch_deployment(actor=operator, deployment=other)
    third = services.create_deployment(actor=operator, node=seen_node, model_ref=MODEL, engine="vllm")
    third.gpu_indexes, third.device = [0], {"sharers": 2, "slot": 1}
    third.settings = {**other.settings}
    third.save()
    with pytest.raises(ValidationError, match="is used by"):
        services.launch_deployment(actor=operator, deployment=third)


def test_memory_shares_of_the_whole_gpu_count_the_neighbours(deployment: Deployment, operator: User) -> None:
    """Cases M23, M24 and M41: a share is of all memory, and the neighbours' is in use already."""
    deployment.device = {"sharers": 2, "slot": 0}
    with pytest.raises(ValidationError, match=r"Only .* GiB are free at start"):
        services.launch_deployment(actor=operator, deployment=deployment)  # both would ask for 0.92 of it


def test_nodes_of_an_orchestrator_are_left_to_it(deployment: Deployment, seen_node: Node, operator: User) -> None:
    seen_node.orchestrator = "kubernetes"
    seen_node.save()
    deployment.refresh_from_db()
    with pytest.raises(ValidationError, match=r"belongs to Kubernetes.*export the plan"):
        services.launch_deployment(actor=operator, deployment=deployment)


def test_a_node_nobody_has_seen_is_explained(deployment: Deployment, operator: User, local_node: Node) -> None:
    Node.objects.filter(pk=deployment.node_id).update(worker_last_seen_at=None)
    deployment.node.refresh_from_db()
    with pytest.raises(ValidationError, match="has never been seen"):
        services.launch_deployment(actor=operator, deployment=deployment)
    deployment.node.state = Node.State.PLANNED
    with pytest.raises(ValidationError, match="is planned, not active"):
        services.launch_deployment(actor=operator, deployment=deployment)
    services.launch_deployment(actor=operator, deployment=deployment, emulated=True)
    assert deployment.host == local_node


def test_roles_hold_at_the_site(deployment: Deployment, viewer: User) -> None:
    for act in (services.launch_deployment, services.stop_deployment, services.delete_deployment):
        with pytest.raises(PermissionDenied, match="operator"):
            act(actor=viewer, deployment=deployment)
    SiteRole.objects.create(user=viewer, site=deployment.node.site, role="operator")
    assert services.launch_deployment(actor=viewer, deployment=deployment).pk


def test_emulated_runs_on_this_host_and_is_marked(
    deployment: Deployment, operator: User, local_node: Node, sent: list
) -> None:
    services.launch_deployment(actor=operator, deployment=deployment, emulated=True)
    task, payload, queue = sent[-1]
    assert (task, queue) == (LAUNCH_TASK, "node.local")
    launch = from_json(LaunchCommand, payload).launch
    assert launch.engine == "emulated"
    assert launch.emulation["gpu"] == "H100-SXM5-80GB"
    assert launch.emulation["limits"]["kv_blocks"] == deployment.prediction["memory"]["kv_blocks"]
    assert len(launch.emulation["tables"]["decode_ms"]) == len(launch.emulation["tables"]["decode_batch"])
    deployment.refresh_from_db()
    assert (deployment.emulated, deployment.engine, deployment.host) == (True, "emulated", local_node)


def test_processor_means_vllm_for_cpus(cpu_deployment: Deployment, operator: User, sent: list) -> None:
    assert cpu_deployment.engine == "vllm_cpu"
    services.launch_deployment(actor=operator, deployment=cpu_deployment)
    launch = from_json(LaunchCommand, sent[-1][1]).launch
    assert launch.engine == "vllm_cpu"
    assert launch.model.endswith("-v1/me--tiny")
    assert json.loads(Path(launch.model, "config.json").read_text())["hidden_size"] == 512


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
        ({"input_tokens": 4096}, "longer than the deployment's context of 4,096"),
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


def test_planned_load_is_one_replicas_share(deployment: Deployment, workload: Workload) -> None:
    assert probing.planned_load(deployment).concurrency == 4
    deployment.workload, deployment.prediction = workload, {"replicas": 2}
    load = probing.planned_load(deployment)
    assert (load.rate_per_s, load.requests, load.input_tokens) == (2.0, 120, 512)
    workload.load_kind, workload.concurrency = "closed", 64
    assert probing.planned_load(deployment).concurrency == 32


def test_a_replica_over_two_nodes_is_not_launched(deployment: Deployment, operator: User) -> None:
    deployment.parts = [["n1", [0]], ["n2", [0]]]
    with pytest.raises(ValidationError, match="spans the nodes n1, n2"):
        services.launch_deployment(actor=operator, deployment=deployment)


def test_stop_of_what_never_ran(deployment: Deployment, operator: User) -> None:
    assert services.stop_deployment(actor=operator, deployment=deployment) is None
    deployment.refresh_from_db()
    assert deployment.state == "stopped"
    services.delete_deployment(actor=operator, deployment=deployment)


def test_plan_survives_without_its_workload(deployment: Deployment, workload: Workload, planner: User) -> None:
    scenario = Scenario.objects.create(name="s", slug="s")
    plan = Plan.objects.create(scenario=scenario, number=1)
    Deployment.objects.filter(pk=deployment.pk).update(plan=plan, workload=workload)
    workload.delete()
    plan.delete()
    deployment.refresh_from_db()
    assert (deployment.plan, deployment.workload) == (None, None)


@pytest.mark.parametrize(
    "values",
    [
        {"state": "lost"},
        {"state": "failed"},
        {"engine": "sglang"},
        {"engine": "emulated"},
        {"state": "ready", "port": 18100},
    ],
)
def test_constraints(deployment: Deployment, seen_node: Node, values: dict) -> None:
    Deployment.objects.filter(pk=deployment.pk).update(state="ready", host=seen_node, port=18100)
    other = services.create_deployment(actor=None, node=seen_node, model_ref=MODEL, engine="vllm", gpu_indexes=[3])
    with pytest.raises(IntegrityError), transaction.atomic():
        Deployment.objects.filter(pk=other.pk).update(host=seen_node, **values)


def test_a_validation_needs_what_its_verdict_says(deployment: Deployment) -> None:
    probe = ProbeRun.objects.create(deployment=deployment, load=to_json(LOAD))
    for values in ({"verdict": "within"}, {"verdict": "no_prediction", "predicted": 1.0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Validation.objects.create(probe=probe, metric="ttft_ms", unit="ms", measured=1.0, **values)
    with pytest.raises(IntegrityError), transaction.atomic():
        ProbeRun.objects.filter(pk=probe.pk).update(state="done")
    assert replace(LOAD, requests=9).requests == 9


# ---- what the engine says when it becomes ready ----------------------------------------------------------------------


def ready_message(row: Deployment, facts: StartupFacts) -> Observation:
    """What a worker sends when the engine of ``row`` answers."""
    return Observation(
        job_id="1", attempt=1, sequence=1, state="ready", node=row.node.slug, at=time.time(), startup=facts
    )


def said_at_start(row: Deployment, **facts: Any) -> dict[str, Any]:
    """Tell the control plane that ``row`` is ready, and give the start-up validations by metric."""
    Deployment.objects.filter(pk=row.pk).update(state="loading", engine="vllm", emulated=False)
    row.refresh_from_db()
    reporting.apply_observation(row, ready_message(row, StartupFacts(**facts)))
    return {item.metric: item for item in row.validations.filter(probe=None)}


def test_start_up_facts_are_held_against_the_ledger_of_the_gate(deployment: Deployment) -> None:
    ledger = prediction.subject(deployment).ledger
    rows = said_at_start(
        deployment,
        weights_gib=ledger.weights_gib,
        kv_gib=ledger.kv_gib - 30.0,
        kv_tokens=ledger.kv_tokens,
        max_model_len=deployment.settings["max_model_len"],
    )
    assert set(rows) == {"weights_gib", "kv_gib", "kv_tokens", "max_model_len"}
    assert rows["weights_gib"].verdict == rows["kv_tokens"].verdict == rows["max_model_len"].verdict == "within"
    assert rows["kv_gib"].verdict == "outside"
    assert rows["kv_gib"].predicted == pytest.approx(ledger.kv_gib)
    assert not rows["kv_gib"].emulated


def test_m4_a_context_other_than_the_one_asked_for_is_outside(deployment: Deployment) -> None:
    asked = deployment.settings["max_model_len"]
    rows = said_at_start(deployment, max_model_len=asked // 2)
    assert set(rows) == {"max_model_len"}
    assert rows["max_model_len"].verdict == "outside"
    assert rows["max_model_len"].predicted == asked
    again = said_at_start(deployment, max_model_len=asked)
    assert again["max_model_len"].verdict == "within", "repeating it replaces the row"


def test_emulated_start_up_facts_are_marked(deployment: Deployment) -> None:
    Deployment.objects.filter(pk=deployment.pk).update(state="loading", engine="emulated", emulated=True)
    deployment.refresh_from_db()
    reporting.apply_observation(deployment, ready_message(deployment, StartupFacts(kv_gib=1.0)))
    assert list(deployment.validations.values_list("metric", "emulated")) == [("kv_gib", True)]


def test_m19_search_gate_and_start_up_check_ask_one_ledger(deployment: Deployment, monkeypatch: Any) -> None:
    import planner.memory as memory
    from planner.placement import sizing as search

    asked: list[str] = []

    def spy(name: str, real: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return real(*args, **kwargs)

        return counted

    real = memory.ledger
    monkeypatch.setattr(memory, "ledger", spy("gate and check", real))
    services._check_fits(deployment)
    assert asked == ["gate and check"]
    said_at_start(deployment, kv_gib=1.0)
    assert asked == ["gate and check"] * 2
    assert search.ledger is real, "the search of candidates imports the very same function"


def test_memory_as_the_driver_reports_it_reaches_search_and_gate(deployment: Deployment) -> None:
    kind = deployment.node.node_type.gpu_model
    kind.memory_gib = 40.0
    kind.save()
    deployment.refresh_from_db()
    assert prediction.subject(deployment).ledger.total_gib == 40.0
    node = mapping.plan_node(deployment.node)
    assert gpu_of_nodes(kind.name, [node]).total_gib == 40.0
    kind.memory_gib = 16.0
    kind.save()
    deployment.refresh_from_db()
    with pytest.raises(ValidationError, match="does not fit"):
        services._check_fits(deployment)


def test_every_setting_that_memory_rests_on_reaches_the_engine(deployment: Deployment) -> None:
    resolved = replace(
        prediction.subject(deployment).resolved,
        engine=EngineName.TENSORRT_LLM,
        free_gpu_memory_fraction=0.8,
        capacity_policy="MAX_UTILIZATION",
        kv_cache_max_gpu_gib=12.0,
        kv_cache_host_gib=4.0,
        speculative_tokens=2,
        block_tokens=32,
    )
    launch = EngineLaunch(
        engine="tensorrt_llm", version="1.3.0rc20", model=MODEL, served_name=MODEL, port=8000, gpu_indexes=(0,),
        flags=prediction.engine_flags(resolved),
    )  # fmt: skip
    command = engine_command(launch, EngineName.TENSORRT_LLM, MODEL, "127.0.0.1", Path("/tmp"))
    text = command.files["llm-api.yaml"]
    for words in ("MAX_UTILIZATION", "max_gpu_total_bytes: 12884901888", "host_cache_size: 4294967296", "MTP"):
        assert words in text

"""Deployments: gates before the start, what nodes report, probes, validation and calibration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction

from controlplane.core.models import SiteRole, User
from controlplane.deployments import probing, services
from controlplane.deployments.models import Deployment
from controlplane.inventory.models import Node
from controlplane.jobs.services import request_cancel
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload
from planner.jsonio import from_json
from runners.contracts import (
    LAUNCH_TASK,
    STOP_TASK,
    LaunchCommand,
    StartupFacts,
)
from tests.controlplane.deployment_samples import LOAD, MODEL, Worker, make_ready

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_a_replica_over_two_nodes_is_not_launched(deployment: Deployment, operator: User) -> None:
    deployment.parts = [["n1", [0]], ["n2", [0]]]
    with pytest.raises(ValidationError, match="spans the nodes n1, n2"):
        services.launch_deployment(actor=operator, deployment=deployment)


def test_stop_goes_by_what_is_there_now(deployment: Deployment, operator: User, sent: list) -> None:
    stale = Deployment.objects.get(pk=deployment.pk)
    make_ready(deployment, operator)
    late = Deployment.objects.get(pk=deployment.pk)
    assert services.stop_deployment(actor=operator, deployment=stale) is not None, "read before it was started"
    with pytest.raises(ValidationError, match="is stopping already"):
        services.stop_deployment(actor=operator, deployment=late)
    Deployment.objects.filter(pk=deployment.pk).delete()
    with pytest.raises(ValidationError, match="deleted in this moment"):
        services.stop_deployment(actor=operator, deployment=late)


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


# ---- what the engine says when it becomes ready ----------------------------------------------------------------------

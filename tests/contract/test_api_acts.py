"""Long acts answer with their job; the planner's answers carry evidence and intervals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from rest_framework.test import APIClient

from controlplane.core.models import Role, User
from controlplane.deployments.models import Deployment
from controlplane.inventory.models import Node
from controlplane.jobs.models import Job
from controlplane.jobs.services import add_log
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload
from tests.contract.conftest import V1
from tests.contract.test_api_errors import faults, problem

pytestmark = pytest.mark.django_db
SMALL = "Qwen/Qwen3-8B"


def test_a_plan_is_computed_by_a_job(
    planner_api: APIClient, workload: Workload, node: Node, sent: list, django_capture_on_commit_callbacks: Any
) -> None:
    scenario = Scenario.objects.create(name="All", slug="all")
    with django_capture_on_commit_callbacks(execute=True):
        response = planner_api.post(f"{V1}/plans/", {"scenario": "all"})
    assert response.status_code == 202
    job = response.json()
    assert response["Location"] == f"{V1}/jobs/{job['id']}/"
    plan = Plan.objects.get()
    assert response["Link"] == f'<{V1}/plans/{plan.pk}/>; rel="related"'
    assert (job["state"], job["kind"], job["related"]) == ("queued", "plan.compute", [f"{V1}/plans/{plan.pk}/"])
    assert planner_api.get(response["Location"]).json()["id"] == job["id"]
    assert len(sent) == 1
    shown = planner_api.get(f"{V1}/plans/{plan.pk}/").json()
    assert (shown["state"], shown["summary"], shown["scenario"]) == ("computing", None, "all")
    problem(planner_api.get(f"{V1}/plans/{plan.pk}/candidates/"), 409, "conflict")
    second = planner_api.post(f"{V1}/scenarios/{scenario.pk}/compute/")
    assert second.status_code == 202
    assert planner_api.post(f"{V1}/plans/{plan.pk}/cancel/").status_code == 202
    assert planner_api.get(f"{V1}/plans/{plan.pk}/").json()["state"] == "failed"


def test_a_repeated_computation_is_one(planner_api: APIClient) -> None:
    Scenario.objects.create(name="All", slug="all")
    answers = [planner_api.post(f"{V1}/plans/", {"scenario": "all"}, HTTP_IDEMPOTENCY_KEY="once") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0]["Location"] == answers[1]["Location"]
    assert Plan.objects.count() == Job.objects.count() == 1


def test_a_deployment_by_hand_is_started_and_stopped(
    operator_api: APIClient, node: Node, local_node: Node, settings: Any
) -> None:
    asked = {"node": "n1", "model_ref": SMALL, "engine": "vllm", "settings": {"tp": 1, "max_model_len": 4096}}
    made = operator_api.post(f"{V1}/deployments/", asked)
    assert made.status_code == 201, made.content
    assert (made.json()["state"], made.json()["gpu_indexes"], made.json()["emulated"]) == ("pending", [0], False)
    assert made.json()["prediction"]["memory"]["evidence"]
    path = made["Location"]
    refused = problem(operator_api.post(f"{path}launch/"), 409, "conflict")
    assert "worker" in refused["detail"]
    started = operator_api.post(f"{path}launch/", {"emulated": True})
    assert started.status_code == 202, started.content
    assert started["Link"] == f'<{path}>; rel="related"'
    shown = operator_api.get(path).json()
    assert (shown["state"], shown["emulated"], shown["engine"]) == ("launching", True, "emulated")
    problem(operator_api.post(f"{path}launch/", {"emulated": True}), 409, "conflict")
    problem(operator_api.delete(path, HTTP_IF_MATCH="*"), 409, "conflict")
    assert operator_api.post(f"{path}stop/").status_code == 202
    problem(operator_api.post(f"{V1}/probes/", {"deployment": made.json()["id"]}), 409, "conflict")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_ref": "/etc/passwd"}, "settings"),
        ({"model_ref": "../x/y"}, "settings"),
        ({"engine": "sglang"}, "engine"),
        ({"node": "nowhere"}, "node"),
        ({"gpu_indexes": [0, 1]}, "gpu_indexes"),
        ({"gpu_indexes": [99]}, "gpu_indexes"),
        ({"settings": {"tp": "many"}}, "settings.tp"),
        ({"settings": {"tp": 3}}, "settings"),
        ({"settings": {"tpp": 1}}, "settings.tpp"),
        ({"settings": {"precision": "fp9"}}, "settings.precision"),
        ({"settings": {"version": "latest; rm -rf /"}}, "settings"),
    ],
)
def test_a_deployment_that_cannot_be(operator_api: APIClient, node: Node, change: dict, field: str) -> None:
    asked = {"node": "n1", "model_ref": SMALL, "engine": "vllm", **change}
    assert field in faults(problem(operator_api.post(f"{V1}/deployments/", asked), 400, "validation"))
    assert not Deployment.objects.exists()


def test_a_job_is_followed_cancelled_and_repeated(
    planner_api: APIClient, planner: User, make_user: Callable[..., User], client_of: Callable[..., APIClient]
) -> None:
    Scenario.objects.create(name="All", slug="all")
    path = planner_api.post(f"{V1}/plans/", {"scenario": "all"})["Location"]
    job = Job.objects.get()
    add_log(job, [f"line {i}" for i in range(5)])
    page = planner_api.get(f"{path}log/?limit=2&after=1").json()
    assert [row["text"] for row in page["results"]] == ["line 2", "line 3"]
    assert page["count"] == 3
    problem(planner_api.get(f"{path}log/?after=last"), 400, "validation")
    stranger = client_of(make_user(Role.PLANNER, "stranger"))
    problem(stranger.post(f"{path}cancel/"), 403, "permission-denied")
    cancelled = planner_api.post(f"{path}cancel/")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    problem(planner_api.post(f"{path}cancel/"), 409, "conflict")
    viewer = client_of(make_user(Role.VIEWER, "looks on"))
    problem(viewer.post(f"{path}retry/"), 403, "permission-denied")
    again = planner_api.post(f"{path}retry/")
    assert again.status_code == 202
    assert again["Location"] != path
    problem(planner_api.post(f"{path}retry/"), 409, "conflict")
    assert planner_api.get(f"{V1}/jobs/?state=cancelled&kind=plan.compute").json()["count"] == 1


def test_a_node_is_asked_what_it_holds(operator_api: APIClient, viewer_api: APIClient, node: Node) -> None:
    problem(viewer_api.post(f"{V1}/nodes/{node.pk}/discover/"), 403, "permission-denied")
    asked = operator_api.post(f"{V1}/nodes/{node.pk}/discover/")
    assert (asked.status_code, asked.json()["queue"]) == (202, "node.n1")


LINE = {
    "id": "a", "model": SMALL, "gpu": "H200", "engine": "vllm",
    "load": {"kind": "closed", "concurrency": 4, "requests": 16},
    "input_tokens": 256, "output_tokens": 32, "usd_per_gpu_hour": 2.5,
}  # fmt: skip


def test_an_estimate_is_that_of_the_command_line(viewer_api: APIClient) -> None:
    from planner.estimate import estimate

    answer = viewer_api.post(f"{V1}/estimate/", LINE).json()
    assert answer == estimate(LINE)
    assert answer["status"] == "ok"
    assert answer["evidence"] == "silicon"
    low, high = answer["perf"]["interval80"]["output_tok_per_s"]
    assert low <= answer["perf"]["output_tok_per_s"] <= high


def test_many_lines_are_answered_in_order(viewer_api: APIClient) -> None:
    memory_only = {"model": SMALL, "gpu": "H100", "engine": "vllm"}
    lines = [{**memory_only, "id": 1}, "text", {**memory_only, "id": 2, "gpu": "abacus"}, {**LINE, "id": 3, "tp": 0}]
    answers = viewer_api.post(f"{V1}/estimate/", lines).json()
    assert [(item["id"], item["status"]) for item in answers] == [
        (1, "ok"),
        (None, "error"),
        (2, "error"),
        (3, "error"),
    ]
    assert all(item["reasons"] for item in answers[1:])
    problem(viewer_api.post(f"{V1}/estimate/", [memory_only] * 101), 400, "validation")
    problem(viewer_api.post(f"{V1}/estimate/", {}), 400, "validation")


@pytest.mark.parametrize(
    "load",
    [
        {"kind": "closed", "concurrency": 10**9},
        {"kind": "offline", "requests": 10**6},
        {"kind": "open", "rate_per_s": 1, "requests": 1e300},
    ],
)
def test_an_estimate_that_would_take_long_is_refused(viewer_api: APIClient, load: dict[str, Any]) -> None:
    answer = viewer_api.post(f"{V1}/estimate/", {**LINE, "load": load}).json()
    assert answer["status"] == "error"
    assert "at most" in answer["reasons"][0]


def test_no_name_opens_a_file(viewer_api: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "org" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"secret": "of the server"}')
    monkeypatch.chdir(tmp_path)
    for name in (
        "org/model",
        "org/model/config.json",
        str(folder),
        f"file://{folder}",
        "/etc/passwd",
        "~",
        ".",
        "a\\b",
    ):
        answer = viewer_api.post(f"{V1}/estimate/", {"model": name, "gpu": "H100", "engine": "vllm"}).json()
        assert answer["status"] == "error"
        assert "secret" not in str(answer)
        body = problem(
            viewer_api.post(f"{V1}/memory/", {"model": name, "gpu": "H100", "engine": "vllm"}), 400, "validation"
        )
        assert body["errors"][0]["field"] == "model"
        assert viewer_api.get(f"{V1}/catalogue/models/{name}/").status_code == 404


def test_memory_says_what_would_fit_and_how_to_start_it(viewer_api: APIClient) -> None:
    large = {"model": "meta-llama/Llama-3.3-70B-Instruct", "gpu": "H100", "engine": "vllm"}
    answer = viewer_api.post(f"{V1}/memory/", large).json()
    assert answer["status"] == "infeasible"
    assert answer["remedies"]
    assert answer["evidence"]
    fits = viewer_api.post(f"{V1}/memory/", {**large, "settings": {"tp": 4, "max_model_len": 8192}}).json()
    assert fits["status"] == "ok"
    assert fits["ledger"]["kv_tokens"] > 8192
    assert "--tensor-parallel-size" in fits["command_line"]
    assert fits["settings"]["origin"]
    trt = viewer_api.post(f"{V1}/memory/", {**large, "engine": "tensorrt_llm", "settings": {"tp": 4}}).json()
    assert trt["config_files"]
    none = viewer_api.post(f"{V1}/memory/", {**large, "gpu": "MI300X", "engine": "tensorrt_llm"}).json()
    assert none["status"] == "unsupported"
    assert none["reasons"]


def test_the_catalogue_answers_with_sources(viewer_api: APIClient) -> None:
    gpu = viewer_api.get(f"{V1}/catalogue/gpus/H100/").json()
    assert (gpu["name"], bool(gpu["source"])) == ("H100-SXM5-80GB", True)
    prices = viewer_api.get(f"{V1}/catalogue/prices/?gpu=H100").json()
    assert {row["item"] for row in prices} == {"H100-SXM5-80GB"}
    assert all(row["source"] and row["reliability"] for row in prices)
    model = viewer_api.get(f"{V1}/catalogue/models/{SMALL}/").json()
    assert model["source"]["repository"]
    assert viewer_api.get(f"{V1}/catalogue/node-types/?search=h100").json()
    assert len(viewer_api.get(f"{V1}/catalogue/traces/").json()) >= 5
    problem(viewer_api.get(f"{V1}/catalogue/gpus/abacus/"), 404, "not-found")
    problem(viewer_api.get(f"{V1}/catalogue/prices/?gpu=abacus"), 400, "validation")


def test_nothing_is_sent_when_the_change_is_undone(planner_api: APIClient, sent: list, db: None) -> None:
    Scenario.objects.create(name="All", slug="all")
    with transaction.atomic():
        assert planner_api.post(f"{V1}/plans/", {"scenario": "all"}).status_code == 202
        transaction.set_rollback(True)
    assert not sent
    assert not Plan.objects.exists()
    assert connection.in_atomic_block

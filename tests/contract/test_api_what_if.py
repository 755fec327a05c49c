"""What-ifs, comparison and restoring over the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.planning import curves
from controlplane.planning.models import Plan
from tests.contract.conftest import V1
from tests.contract.test_api_changes import TINY
from tests.contract.test_api_errors import faults, problem


@pytest.fixture(autouse=True)
def _models_of_the_catalogue(whole_fleet: dict[str, Any], db: None) -> None:
    plan = whole_fleet["plan"]
    plan.request["workloads"] = [{**w, "model": "Qwen/Qwen3-8B"} for w in plan.request["workloads"]]
    Plan.objects.filter(pk=plan.pk).update(request=plan.request)


def test_a_what_if_is_a_job_and_a_plan(whole_fleet: dict[str, Any], planner_api: APIClient) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/what-if/"
    answer = planner_api.post(path, {"changes": [{"kind": "demand", "factor": 1.2}], "title": "Spring"})
    assert answer.status_code == 202, answer.content
    assert answer.json()["kind"] == "plan.compute"
    related = answer["Link"].split(">")[0].removeprefix("<")
    plan = planner_api.get(related).json()
    assert (plan["title"], plan["base"], plan["state"]) == ("Spring", whole_fleet["plan"].pk, "computing")
    assert plan["changes"] == [{"factor": 1.2, "workload": "", "kind": "demand"}]
    assert planner_api.get(f"{related}request/").json()["name"] == "Spring"
    found = planner_api.get(f"{V1}/plans/?base={whole_fleet['plan'].pk}").json()["results"]
    assert [row["id"] for row in found] == [plan["id"]]


def test_a_change_that_cannot_be_made_is_named(whole_fleet: dict[str, Any], planner_api: APIClient) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/what-if/"
    for body, field in (
        ({"changes": []}, "changes"),
        ({}, "changes"),
        ({"changes": [{"kind": "demand"}]}, "changes[0].factor"),
        ({"changes": [{"kind": "lost", "node": "nowhere"}]}, "changes[0].node"),
        ({"changes": [{"kind": "wish"}]}, "changes[0].kind"),
        ({"changes": [{"kind": "demand", "factor": 1e308}]}, "changes[0].factor"),
    ):
        assert field in faults(problem(planner_api.post(path, body), 400, "validation")), body


def test_a_model_is_uploaded_or_of_the_catalogue_and_never_a_file(
    whole_fleet: dict[str, Any], planner_api: APIClient, tmp_path: Path
) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/what-if/"
    workload = whole_fleet["plan"].request["workloads"][0]["name"]
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for model in (str(tmp_path / "config.json"), "../../etc/passwd", "no/such-model"):
        body = {"changes": [{"kind": "model", "workload": workload, "model": model}]}
        assert "changes[0].model" in faults(problem(planner_api.post(path, body), 400, "validation")), model
    uploaded = planner_api.post(f"{V1}/models/", {"model_id": "own/tiny", "config": TINY})
    assert uploaded.status_code == 201, uploaded.content
    body = {"changes": [{"kind": "model", "workload": workload, "model": "own/tiny"}]}
    answer = planner_api.post(path, body)
    assert answer.status_code == 202, answer.content


def test_a_viewer_only_compares(whole_fleet: dict[str, Any], viewer_api: APIClient) -> None:
    plan, other = whole_fleet["plan"].pk, whole_fleet["other"].pk
    body = {"changes": [{"kind": "demand", "factor": 2}]}
    assert viewer_api.post(f"{V1}/plans/{plan}/what-if/", body).status_code == 403
    assert viewer_api.delete(f"{V1}/plans/{other}/").status_code == 403
    found = viewer_api.get(f"{V1}/plans/compare/?ids={plan},{other}").json()
    assert [entry["id"] for entry in found["plans"]] == [plan, other]
    assert {line["key"] for line in found["totals"]} >= {"usd_per_hour", "headroom", "runway_months", "stranded_gpus"}
    for cell in (cell for line in found["workloads"] for cell in line["cells"] if cell and cell["candidate"]):
        assert cell["evidence"]
        assert (cell["usd_per_mtok_output"] is None) == (cell["usd_per_mtok_output_80"] is None)
    table = viewer_api.get(f"{V1}/plans/compare/?ids={plan},{other}&format=csv")
    assert table["Content-Type"].startswith("text/csv")
    assert table.content.decode("utf-8-sig").startswith("Section,")
    for query in ("", "ids=x,1", f"ids={plan}", f"ids={plan},999999999"):
        assert "ids" in faults(problem(viewer_api.get(f"{V1}/plans/compare/?{query}"), 400, "validation")), query
    problem(viewer_api.get(f"{V1}/plans/compare/?ids={plan},{plan}"), 409, "conflict")


def test_delete_and_restore(whole_fleet: dict[str, Any], planner_api: APIClient) -> None:
    plan = whole_fleet["other"]
    scenario = plan.scenario_id
    path = f"{V1}/plans/{plan.pk}/"
    version = {"If-Match": planner_api.get(path)["ETag"]}
    assert planner_api.delete(path, headers=version).status_code == 204
    assert planner_api.get(path).status_code == 404
    assert not planner_api.get(f"{V1}/verdicts/?plan={plan.pk}").json().get("results")
    assert planner_api.post(f"{path}restore/").json()["id"] == plan.pk
    problem(planner_api.post(f"{path}restore/"), 409, "conflict")
    path = f"{V1}/scenarios/{scenario}/"
    version = {"If-Match": planner_api.get(path)["ETag"]}
    assert planner_api.delete(path, headers=version).status_code == 204
    assert not Plan.objects.filter(pk=plan.pk).exists()
    assert planner_api.post(f"{path}restore/").json()["id"] == scenario
    assert Plan.objects.filter(pk=plan.pk).exists()
    force = whole_fleet["plan"]
    path = f"{V1}/plans/{force.pk}/"
    problem(planner_api.delete(path, headers={"If-Match": planner_api.get(path)["ETag"]}), 409, "conflict")


def test_curves_are_drawn_by_a_job(whole_fleet: dict[str, Any], planner_api: APIClient) -> None:
    plan = whole_fleet["plan"]
    path, candidate = f"{V1}/plans/{plan.pk}/curves/", plan.result["candidates"][0]["id"]
    assert "candidate" in faults(problem(planner_api.get(path), 400, "validation"))
    problem(planner_api.get(path, {"candidate": candidate}), 404, "not-found")
    answer = planner_api.post(path, {"candidate": candidate})
    assert answer.status_code == 202, answer.content
    assert answer.json()["kind"] == "plan.curves"
    drawn = {"axis": "rate", "knee": 2.0, "points": [], "usd_per_hour": "1.0", "timeline": None}
    curves.store(plan, [curves.Drawn("code-completion", candidate, drawn)])
    found = planner_api.get(path, {"candidate": candidate}).json()
    assert (found["points"], found["reason"], found["job"]) == (drawn, "", None)
    assert planner_api.post(path, {"candidate": candidate}).status_code == 200
    problem(planner_api.post(path, {"candidate": "none"}), 409, "conflict")

"""The sample fleet over the API: plans in their parts, deployments, probes; what is emulated is marked."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.deployments.models import Calibration, Deployment, ProbeRun
from controlplane.planning.models import Plan
from tests.contract.conftest import V1
from tests.contract.test_api_errors import faults, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(whole_fleet: dict[str, Any], db: None, client_of: Callable[..., APIClient]) -> APIClient:
    """Its administrator."""
    return client_of(whole_fleet["user"])


def test_a_plan_shows_its_parts(api: APIClient, whole_fleet: dict[str, Any]) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/"
    plan = api.get(path).json()
    assert plan["summary"]["baselines"]
    assert [row["engine"] for row in plan["summary"]["engine_plans"]] == ["", "vllm", "tensorrt_llm"]
    (mix,) = plan["summary"]["mixes"]
    assert sum(part["share"] for part in mix["parts"]) == 1.0
    assert {rival["engine"] for rival in mix["rivals"]} == {"vllm", "tensorrt_llm"}
    assert plan["status"]
    candidates = api.get(f"{path}candidates/").json()
    assert candidates
    for item in candidates:
        assert item["evidence"] in ("measured", "calibrated", "silicon", "extrapolated", "roofline")
        if item["performance"]:
            assert item["performance"]["output_tok_per_s_80"]["low"] <= item["performance"]["output_tok_per_s"]
    one = api.get(f"{path}candidates/?workload={candidates[0]['workload']}").json()
    assert 0 < len(one) < len(candidates)
    verdicts = api.get(f"{path}verdicts/").json()
    assert all(item["sentence"] for item in verdicts)
    placements = api.get(f"{path}placements/").json()
    assert placements[0]["gpu_indexes"]
    assert api.get(f"{path}request/").json()["nodes"]
    assert api.get(f"{path}router-config/")["Content-Type"].startswith("application/yaml")
    assert api.get(f"{V1}/plans/?state=approved&fields=id,summary").json()["results"][0]["summary"]
    assert "summary" not in api.get(f"{V1}/plans/").json()["results"][0]


def test_a_plan_is_handed_out_as_files(whole_fleet: dict[str, Any], viewer_api: APIClient) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/export/"
    archive = viewer_api.get(f"{path}?target=kubernetes")
    assert archive["Content-Type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(archive.content)) as opened:
        assert opened.testzip() is None
        assert opened.namelist()
    bill = viewer_api.get(f"{path}?format=csv")
    assert bill["Content-Type"].startswith("text/csv")
    assert bill.content.decode("utf-8-sig").startswith("Workload,")
    assert viewer_api.get(f"{path}?format=xlsx").content.startswith(b"PK")
    for query in ("", "?target=kubernetes&format=csv", "?target=nomad", "?format=pdf"):
        problem(viewer_api.get(path + query), 400, "validation")


def test_approval_names_the_role_that_it_takes(
    whole_fleet: dict[str, Any], viewer_api: APIClient, planner_api: APIClient
) -> None:
    path = f"{V1}/plans/{whole_fleet['plan'].pk}/approve/"
    for caller in (viewer_api, planner_api):
        assert "takes the role operator" in problem(caller.post(path), 403, "permission-denied")["detail"]


def test_an_approved_plan_makes_deployments(api: APIClient, whole_fleet: dict[str, Any], viewer_api: APIClient) -> None:
    path = f"{V1}/plans/{whole_fleet['other'].pk}/approve/"
    problem(viewer_api.post(path), 403, "permission-denied")
    approved = api.post(path)
    assert (approved.status_code, approved.json()["state"]) == (200, "approved")
    assert api.get(f"{V1}/deployments/?plan={whole_fleet['other'].pk}").status_code == 200
    assert api.post(path).status_code == 200
    Plan.objects.filter(pk=whole_fleet["plan"].pk).update(state="superseded")
    body = problem(api.post(f"{V1}/plans/{whole_fleet['plan'].pk}/approve/"), 409, "conflict")
    assert "superseded" in body["detail"]


def test_what_is_emulated_is_marked_everywhere(api: APIClient, whole_fleet: dict[str, Any]) -> None:
    emulated = Deployment.objects.get(emulated=True)
    assert api.get(f"{V1}/deployments/{emulated.pk}/").json()["emulated"] is True
    brief = api.get(f"{V1}/deployments/?emulated=true&brief=true").json()["results"]
    assert [row["emulated"] for row in brief] == [True]
    probes = api.get(f"{V1}/probes/?deployment={emulated.pk}").json()["results"]
    assert [row["emulated"] for row in probes] == [True]
    rows = api.get(f"{V1}/validations/?deployment={emulated.pk}").json()["results"]
    assert rows
    for row in rows:
        assert row["emulated"] is True
        assert row["low"] <= row["predicted"] <= row["high"]
        assert row["evidence"] == "silicon"
    assert api.get(f"{V1}/validations/?emulated=false").json()["count"] == 3


def test_a_probe_stores_its_prediction_first(api: APIClient, whole_fleet: dict[str, Any], sent: list) -> None:
    ready = next(row for row in whole_fleet["deployments"] if row.state == "ready" and not row.emulated)
    load = {"input_tokens": 128, "output_tokens": 32, "concurrency": 2, "requests": 8}
    response = api.post(f"{V1}/probes/", {"deployment": str(ready.pk), "load": load})
    assert response.status_code == 202, response.content
    probe = ProbeRun.objects.filter(state="pending").get()
    shown = api.get(f"{V1}/probes/{probe.pk}/").json()
    assert shown["load"]["requests"] == 8
    assert shown["prediction"] or shown["no_prediction_reason"]
    for wrong in ({"concurrency": 0}, {"requests": 10**9}, {"input_tokens": -1}, {"input_tokens": "x"}, {"colour": 1}):
        body = {"deployment": str(ready.pk), "load": {**load, **wrong}}
        assert "load" in faults(problem(api.post(f"{V1}/probes/", body), 400, "validation"))
    unknown = {"deployment": "00000000-0000-4000-8000-000000000000"}
    assert "deployment" in faults(problem(api.post(f"{V1}/probes/", unknown), 400, "validation"))


def test_a_calibration_is_switched_off(api: APIClient, whole_fleet: dict[str, Any]) -> None:
    row = Calibration.objects.get()
    path = f"{V1}/calibrations/{row.pk}/"
    problem(api.patch(path, {"active": False}), 428, "precondition-required")
    changed = api.patch(path, {"active": False, "step_factor": 99, "version": row.version})
    assert (changed.json()["active"], changed.json()["step_factor"]) == (False, row.step_factor)
    problem(api.patch(path, {"active": True, "version": row.version}), 412, "stale-version")

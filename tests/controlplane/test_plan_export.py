"""A plan as files: archives that open and parse, bills that add up to the cent, and who may have them."""

from __future__ import annotations

import csv
import io
import stat
import zipfile
from dataclasses import replace
from decimal import Decimal
from typing import Any

import openpyxl
import pytest
import yaml
from django.test import Client

from controlplane.core.models import Role
from controlplane.planning import report
from controlplane.planning.models import Plan
from planner.export import deployment_files
from planner.jsonio import from_json
from planner.plan_types import PlanRequest, PlanResult
from planner.recommend.bill import bill
from planner.recommend.router import router_config
from planner.units import HOURS_PER_MONTH
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    return fleet_fixture.make_everything()


@pytest.fixture
def reader(sample: dict[str, Any], client: Client) -> Client:
    client.force_login(fleet_fixture.make_user("eve", Role.VIEWER), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def answer(sample: dict[str, Any]) -> tuple[PlanRequest, PlanResult]:
    plan = sample["plan"]
    return from_json(PlanRequest, plan.request), from_json(PlanResult, plan.result)


def unzip(content: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize("target", ["commands", "compose", "kubernetes", "slurm", "systemd"])
def test_an_uploaded_model_is_served_by_its_id(answer: tuple[PlanRequest, PlanResult], target: str) -> None:
    """An uploaded configuration lies in the data directory of the server, which no node has."""
    request, result = answer
    stored = "/srv/var/models/2-v1/acme--our-8b/config.json"
    request = replace(request, workloads=tuple(replace(each, model=stored) for each in request.workloads))
    files = "\n".join(deployment_files(request, result, target, model_root="/models").values())
    assert "acme/our-8b" in files
    assert "/srv/var" not in files
    assert "config.json" not in files
    assert "openai/acme/our-8b" in router_config(request, result.candidates, result.placements)


@pytest.mark.parametrize("target", ["commands", "compose", "kubernetes", "slurm", "systemd", "router"])
def test_a_viewer_gets_an_archive_that_opens(sample: dict[str, Any], reader: Client, target: str) -> None:
    found = reader.get(f"/plans/{sample['plan'].pk}/export/?target={target}")
    assert found.status_code == 200
    assert found["Content-Type"] == "application/zip"
    assert f"-{target}.zip" in found["Content-Disposition"]
    files = unzip(found.content)
    assert files
    for name, text in files.items():
        assert text.strip()
        assert not name.startswith("/")
        if name.endswith((".yaml", ".yml")):
            assert all(isinstance(part, dict) for part in yaml.safe_load_all(text))
    again = reader.get(f"/plans/{sample['plan'].pk}/export/?target={target}")
    assert again.content == found.content


def test_scripts_may_be_run(sample: dict[str, Any], reader: Client) -> None:
    content = reader.get(f"/plans/{sample['plan'].pk}/export/?target=commands").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert all(mode & stat.S_IXUSR for name, mode in modes.items() if name.endswith(".sh"))


def test_kubernetes_asks_for_the_gpus_of_the_plan(sample: dict[str, Any], reader: Client) -> None:
    files = unzip(reader.get(f"/plans/{sample['plan'].pk}/export/?target=kubernetes").content)
    gpus = 0
    for text in files.values():
        for part in yaml.safe_load_all(text):
            if part["kind"] == "Deployment":
                container = part["spec"]["template"]["spec"]["containers"][0]
                gpus += container["resources"]["limits"]["nvidia.com/gpu"]
    placed = sum(len(part["gpu_indexes"]) for part in sample["plan"].result["placements"])
    assert gpus == placed


def test_an_unknown_target_or_missing_answer_is_said(sample: dict[str, Any], reader: Client) -> None:
    pk = sample["plan"].pk
    for query in ("target=nomad", "format=pdf"):
        found = reader.get(f"/plans/{pk}/export/?{query}", follow=True)
        assert found.redirect_chain[-1][0] == f"/plans/{pk}/"
        assert "Use one of" in found.content.decode()
    Plan.objects.filter(pk=pk).update(result=None, state=Plan.State.FAILED)
    found = reader.get(f"/plans/{pk}/export/?format=csv", follow=True)
    assert "has no result to export yet" in found.content.decode()


def cells(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))


def test_the_bill_adds_up_to_the_cent(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    lines = cells(reader.get(f"/plans/{plan.pk}/export/?format=csv").content)
    rows, (total, idle, both) = lines[:-3], lines[-3:]
    parts = [name for name in lines[0] if name.endswith(", $ per month")]
    assert {row["Workload"] for row in rows} == {entry["name"] for entry in plan.request["workloads"]}
    for line in (*rows, total):
        amounts = [Decimal(line[name]) for name in parts if line[name]]
        assert sum(amounts, Decimal(0)) == Decimal(line["$ per month"])
    for name in (*parts, "$ per month", "GPUs"):
        assert sum(Decimal(row[name] or 0) for row in rows) == Decimal(total[name])
    assert Decimal(total["$ per month"]) + Decimal(idle["$ per month"]) == Decimal(both["$ per month"])
    gpus = sum(Decimal(total[name]) for name in parts if name.startswith("GPUs"))
    assert abs(gpus - Decimal(plan.result["usd_per_hour"]) * HOURS_PER_MONTH) <= Decimal("0.01") * len(rows)
    assert int(total["GPUs"]) == sum(len(part["gpu_indexes"]) for part in plan.result["placements"])


def test_the_workbook_says_the_same_as_numbers(sample: dict[str, Any], reader: Client) -> None:
    pk = sample["plan"].pk
    lines = cells(reader.get(f"/plans/{pk}/export/?format=csv").content)
    book = openpyxl.load_workbook(io.BytesIO(reader.get(f"/plans/{pk}/export/?format=xlsx").content))
    header, *rows = book["Bill"].iter_rows(values_only=True)
    at = header.index("$ per month")
    assert [Decimal(str(row[at])) for row in rows] == [Decimal(line["$ per month"]) for line in lines]
    assert all(isinstance(row[at], int | float) for row in rows)
    basis = {row[0] for row in book["Basis"].iter_rows(values_only=True)}
    assert "Price of H100-SXM5-80GB, $ per GPU-hour" in basis


def test_half_of_the_replicas_cost_half(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    whole = next(row for row in bill(request, result).rows if row.replicas % 2 == 0)
    name = whole.workload.name
    kept = [p for p in result.placements if p.workload != name or p.replica % 2 == 0]
    half = next(row for row in bill(request, replace(result, placements=tuple(kept))).rows if row.workload.name == name)
    assert half.replicas * 2 == whole.replicas
    assert abs(half.usd_per_month * 2 - whole.usd_per_month) <= Decimal("0.05")
    assert half.carried < whole.carried <= 1


def test_a_workload_without_a_place_costs_nothing_and_says_why(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    rows = bill(request, replace(result, placements=())).rows
    assert all(row.usd_per_month == 0 and row.candidate is None and row.remark for row in rows)


def test_text_is_no_formula(answer: tuple[PlanRequest, PlanResult]) -> None:
    request, result = answer
    named = replace(request, workloads=(replace(request.workloads[0], name='=cmd|"/c calc"!A1'),))
    assert "\n\"'=cmd" in report.as_csv("plan", named, result).decode()


def test_exports_need_a_sign_in(sample: dict[str, Any], client: Client) -> None:
    assert client.get(f"/plans/{sample['plan'].pk}/export/?format=csv").status_code == 302


def test_namespace_and_model_root_reach_the_files(sample: dict[str, Any], reader: Client) -> None:
    path = f"/api/v1/plans/{sample['plan'].pk}/export/?target="
    files = unzip(reader.get(f"{path}kubernetes&namespace=llm").content)
    assert all("namespace: llm" in text for text in files.values())
    files = unzip(reader.get(f"{path}commands&model_root=/srv/models").content)
    assert any("/srv/models/" in text for text in files.values())
    refused = reader.get(f"{path}kubernetes&namespace=Not_Good")
    assert refused.status_code in (400, 422)
    assert "namespace" in refused.content.decode()

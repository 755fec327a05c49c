"""What the pages delete or set aside, and how it is taken back."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client

from controlplane.core.models import Role
from controlplane.deployments.models import Calibration
from controlplane.planning.models import Scenario
from controlplane.workloads.models import Workload
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db


def test_calibration_is_set_aside_and_used_again(sample: dict[str, Any], admin_page: Client) -> None:
    row = Calibration.objects.get()
    for active in ("0", "1"):
        answer = admin_page.post(f"/validation/calibrations/{row.pk}/", {"active": active, "next": "/validation/"})
        assert answer.headers["Location"] == "/validation/"
        row.refresh_from_db()
        assert row.active is (active == "1")
    assert "Probes that would settle a verdict" in admin_page.get("/validation/").content.decode()


def test_workload_is_deleted_by_its_button(sample: dict[str, Any], admin_page: Client) -> None:
    assert "/workloads/embed-search/delete/" in admin_page.get("/workloads/embed-search/edit/").content.decode()
    answer = admin_page.post("/workloads/embed-search/delete/", {"next": "/workloads/"})
    assert answer.headers["Location"] == "/workloads/"
    assert not Workload.objects.filter(slug="embed-search").exists()
    assert admin_page.get(f"/plans/{sample['plan'].pk}/").status_code == 200


def undo_path(body: str) -> str:
    found = re.search(r'action="(/undo/[0-9a-f]+/)"', body)
    assert found
    return found.group(1)


def test_a_deleted_workload_comes_back_whole(sample: dict[str, Any], admin_page: Client) -> None:
    record = Workload.objects.get(slug="agent-tools")
    scenario = Scenario.objects.first()
    assert scenario is not None
    scenario.workloads.add(record)
    before = {
        "slo": sorted(record.slo_targets.values_list("pk", "metric", "stat", "limit_ms")),
        "placements": record.placements.count(),
        "deployments": record.deployments.count(),
        "values": Workload.objects.filter(pk=record.pk).values().get(),
    }
    assert before["slo"]
    assert before["placements"]
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    assert not Workload.objects.filter(pk=record.pk).exists()
    answer = admin_page.post(path, follow=True)
    assert "agent-tools is back." in answer.content.decode()
    back = Workload.objects.get(pk=record.pk)
    values = Workload.objects.filter(pk=record.pk).values().get()
    changed = {name for name in values if values[name] != before["values"][name]}
    assert changed <= {"updated_at", "created_at"}
    assert abs(values["created_at"] - before["values"]["created_at"]) <= dt.timedelta(milliseconds=1)
    assert sorted(back.slo_targets.values_list("pk", "metric", "stat", "limit_ms")) == before["slo"]
    assert (back.placements.count(), back.deployments.count()) == (before["placements"], before["deployments"])
    assert scenario.workloads.filter(pk=record.pk).exists()
    again = admin_page.post(path, {"next": "/workloads/"}, follow=True).content.decode()
    assert "can no longer be undone" in again


def test_undo_says_why_it_cannot(sample: dict[str, Any], admin_page: Client) -> None:
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    other = Workload.objects.get(slug="embed-search")
    Workload.objects.filter(pk=other.pk).update(name="agent-tools")
    body = admin_page.post(path, {"next": "/workloads/"}, follow=True).content.decode()
    assert "agent-tools cannot be put back" in body
    assert not Workload.objects.filter(slug="agent-tools").exists()
    Workload.objects.filter(pk=other.pk).update(name="embed-search")
    assert "agent-tools is back." in admin_page.post(path, follow=True).content.decode()


def test_only_the_session_that_deleted_may_undo(sample: dict[str, Any], admin_page: Client) -> None:
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    stranger = Client()
    stranger.force_login(
        fleet_fixture.make_user("mallory", Role.ADMIN), backend="django.contrib.auth.backends.ModelBackend"
    )
    assert admin_page.get(path).status_code == 405
    stranger.post(path)
    assert not Workload.objects.filter(slug="agent-tools").exists()


def test_setting_a_calibration_aside_is_taken_back(sample: dict[str, Any], admin_page: Client) -> None:
    row = Calibration.objects.get()
    Calibration.objects.update(active=True)
    url = f"/validation/calibrations/{row.pk}/"
    path = undo_path(admin_page.post(url, {"active": "0", "next": "/validation/"}, follow=True).content.decode())
    assert not Calibration.objects.get().active
    admin_page.post(path)
    assert Calibration.objects.get().active


def test_deleted_plans_and_scenarios_come_back_by_their_toast(sample: dict[str, Any], admin_page: Client) -> None:
    other = sample["other"]
    answer = admin_page.post(f"/plans/{other.pk}/delete/", {"next": "/"}, follow=True)
    body = answer.content.decode()
    assert "H200 only #1 is deleted." in body
    assert admin_page.get(f"/plans/{other.pk}/").status_code == 404
    token = re.search(r"/undo/(\w+)/", body)
    assert token is not None
    back = admin_page.post(f"/undo/{token.group(1)}/", {"next": "/"}, follow=True)
    assert "H200 only #1 is back." in back.content.decode()
    answer = admin_page.post(f"/plans/scenarios/{other.scenario.slug}/delete/", {"next": "/"}, follow=True)
    assert not Scenario.objects.filter(pk=other.scenario_id).exists()
    token = re.search(r"/undo/(\w+)/", answer.content.decode())
    assert token is not None
    admin_page.post(f"/undo/{token.group(1)}/", {"next": "/"})
    assert Scenario.objects.filter(pk=other.scenario_id).exists()
    force = sample["plan"]
    refused = admin_page.post(f"/plans/{force.pk}/delete/", {"next": "/plans/"}, follow=True)
    assert "is in force" in refused.content.decode()

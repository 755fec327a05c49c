"""Plans with units of prefill and decode pools: their pages, and what approving them does."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.deployments.models import Deployment
from controlplane.planning.models import Plan
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    made = fleet_fixture.make_everything()
    for plan in (made["plan"], made["other"]):
        turn_into_units(plan, "code-completion")
    return made


def turn_into_units(plan: Plan, workload: str) -> None:
    """Every candidate that serves ``workload`` becomes a unit of as many GPUs."""
    result = plan.result
    for candidate in result["candidates"]:
        if candidate["workload"] != workload or candidate["status"] != "ok":
            continue
        role = {
            "settings": candidate["settings"],
            "memory": candidate["memory"],
            "instances": 1,
            "utilisation": 0.61,
            "usd_per_month": "1200.00",
            "usd_per_mtok": "0.131",
        }
        candidate["disagg"] = {
            "prefill": {**role, "instances": 2},
            "decode": role,
            "link": "nvlink",
            "link_gb_s": 450.0,
            "transfer_ms": 31.0,
        }
    plan.result = result
    plan.save()


@pytest.fixture
def page(sample: dict[str, Any], client: Client) -> Client:
    client.force_login(sample["user"], backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_pages_name_both_pools(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"].pk
    for path in (f"/plans/{plan}/", f"/plans/{plan}/workloads/code-completion/"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert "prefill 2 × TP 2, decode 1 × TP 2" in answer.content.decode()
    compared = page.get(f"/plans/compare/?ids={plan},{sample['other'].pk}")
    assert "prefill 2 × TP 2" in compared.content.decode()


def test_units_get_no_deployment(sample: dict[str, Any], page: Client) -> None:
    page.post(f"/plans/{sample['other'].pk}/approve/", {"next": "/plans/"})
    made = Deployment.objects.filter(plan=sample["other"])
    assert made.exists()
    assert not [row for row in made if row.workload and row.workload.name == "code-completion"]

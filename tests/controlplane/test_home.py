"""The home page: few queries whatever there is, the plan it starts from, and no bill computed anew."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.models import Role
from controlplane.dashboard import selectors
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Node, NodeType, Site
from controlplane.planning.exporting import answer_of, bill_kept
from controlplane.planning.models import Plan
from controlplane.workloads.models import SloTarget, Workload
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db

QUERIES = 13
"""Two who asks, three plans and placements, two nodes and GPUs, two prices and jobs, then deployments, SLOs,
validations and the order of the workloads."""


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    return fleet_fixture.make_everything()


@pytest.fixture
def reader(sample: dict[str, Any], client: Client) -> Client:
    client.force_login(fleet_fixture.make_user("eve", Role.VIEWER), backend="django.contrib.auth.backends.ModelBackend")
    return client


def grow(sample: dict[str, Any]) -> None:
    """More of everything that the page counts."""
    kind, site = NodeType.objects.first(), Site.objects.first()
    first = sample["workloads"][0]
    for number in range(12):
        Node.objects.create(site=site, node_type=kind, name=f"more-{number}", slug=f"more-{number}")
        Workload.objects.create(name=f"w{number}", slug=f"w{number}", model_ref=first.model_ref, rate_per_s=1)
        made = Deployment.objects.create(
            name=f"d{number}", node=sample["nodes"][number], model_ref=first.model_ref, engine="vllm",
            planned_engine="vllm", workload=first,
        )  # fmt: skip
        ProbeRun.objects.create(
            deployment=made, state="done", metrics={"ttft_ms": {"p90": 9e9}}, emulated=True, load={},
            finished_at=timezone.now() - dt.timedelta(days=400 + number),
        )  # fmt: skip
        Plan.objects.create(scenario=sample["plan"].scenario, number=100 + number)


@pytest.mark.parametrize("state", [Plan.State.APPROVED, Plan.State.READY])
def test_home_takes_a_fixed_number_of_queries(
    sample: dict[str, Any], reader: Client, django_assert_num_queries: Any, state: str
) -> None:
    when = timezone.now() if state == Plan.State.APPROVED else None
    Plan.objects.exclude(pk=sample["plan"].pk).delete()
    Plan.objects.filter(pk=sample["plan"].pk).update(state=state, approved_at=when)
    reader.get("/")
    fewer = QUERIES if state == Plan.State.APPROVED else QUERIES - 1  # nothing is placed before it is approved
    with django_assert_num_queries(fewer):
        assert reader.get("/").context["plan"] == sample["plan"]
    grow(sample)
    with django_assert_num_queries(fewer):
        assert reader.get("/").context["plan"] == sample["plan"]


def test_home_starts_from_the_plan_in_force_and_never_from_a_what_if(sample: dict[str, Any]) -> None:
    plan = sample["plan"]
    Plan.objects.exclude(pk=plan.pk).delete()
    Plan.objects.filter(pk=plan.pk).update(state=Plan.State.READY, approved_at=None)
    kept = {"scenario": plan.scenario, "request": plan.request, "result": plan.result}
    newer = Plan.objects.create(number=plan.number + 1, state=Plan.State.READY, **kept)
    Plan.objects.create(number=plan.number + 2, state=Plan.State.READY, title="twice the load", **kept)
    assert selectors.plan_shown() == newer
    Plan.objects.filter(pk=plan.pk).update(state=Plan.State.APPROVED, approved_at=timezone.now())
    assert selectors.plan_shown() == plan
    Plan.objects.all().update(state=Plan.State.FAILED)
    assert selectors.plan_shown() is None


def test_a_stored_bill_is_not_computed_anew(sample: dict[str, Any], reader: Client) -> None:
    plan = sample["plan"]
    fresh = reader.get("/").context
    Plan.objects.filter(pk=plan.pk).update(result={**plan.result, **bill_kept(*answer_of(plan))})
    with patch("controlplane.planning.exporting.billed", side_effect=AssertionError("computed anew")):
        stored = reader.get("/").context
        reader.get(f"/plans/{plan.pk}/")
    assert stored["usd_per_mtok"] == fresh["usd_per_mtok"] is not None
    assert stored["month"] == fresh["month"] is not None
    assert [row.on_bill for row in stored["rows"]] == [row.on_bill for row in fresh["rows"]]


def test_objectives_are_held_against_the_newest_probe_of_a_workload(sample: dict[str, Any]) -> None:
    ProbeRun.objects.all().delete()
    SloTarget.objects.all().delete()
    work = sample["workloads"][0]
    SloTarget.objects.create(workload=work, metric="ttft", stat="p90", limit_ms=100)
    rows = [
        Deployment.objects.create(
            name=name, node=sample["nodes"][0], model_ref=work.model_ref, engine="vllm", planned_engine="vllm",
            workload=work,
        )
        for name in ("old", "new")
    ]  # fmt: skip
    now = timezone.now()
    for row, ms, age, emulated in ((rows[0], 50, 2, True), (rows[1], 150, 1, False)):
        ProbeRun.objects.create(
            deployment=row, state="done", metrics={"ttft_ms": {"p90": ms}}, emulated=emulated, load={},
            finished_at=now - dt.timedelta(hours=age),
        )  # fmt: skip
    assert selectors.slo_tally() == selectors.SloTally(0, 1, False)
    ProbeRun.objects.filter(deployment=rows[0]).update(finished_at=now)
    assert selectors.slo_tally() == selectors.SloTally(1, 1, True)

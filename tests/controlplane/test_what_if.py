"""What-ifs are snapshots of their own; plans stand side by side; what is deleted can be brought back for a day."""

from __future__ import annotations

import csv
import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

import planner.plan
from controlplane.core.models import User
from controlplane.dashboard import costview
from controlplane.inventory.models import Node
from controlplane.jobs import running
from controlplane.planning import comparing, discarding, services
from controlplane.planning.exporting import answer_of
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload
from planner.errors import InputError
from planner.plan_types import PlanRequest, PlanResult
from planner.whatif import DemandChange, GrowthChange, LostChange
from tests.controlplane import fleet_fixture, plan_answer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def everything(db: None) -> dict[str, Any]:
    return fleet_fixture.make_everything()


@pytest.fixture
def base(everything: dict[str, Any]) -> Plan:
    """The plan in force, of models that the catalogue has."""
    plan = everything["plan"]
    plan.request["workloads"] = [{**w, "model": "Qwen/Qwen3-8B"} for w in plan.request["workloads"]]
    plan.save()
    Workload.objects.update(model_ref="Qwen/Qwen3-8B")
    return plan


def asked_of(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    asked: list[PlanRequest] = []

    def make_plan(request: PlanRequest, progress: Any = None, should_cancel: Any = None) -> PlanResult:
        asked.append(request)
        return plan_answer.plan_result()

    monkeypatch.setattr(planner.plan, "make_plan", make_plan)
    return asked


def test_a_what_if_is_asked_of_the_snapshot(base: Plan, planner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of(monkeypatch)
    lost = (base.request or {})["nodes"][0]["name"]
    Node.objects.exclude(name=lost).update(state=Node.State.RETIRED)  # the inventory moves on, the snapshot does not
    plan = services.create_what_if(actor=planner, base=base, changes=[DemandChange(1.5), LostChange(node=lost)])
    assert (plan.base, plan.title, plan.scenario) == (base, f"Demand +50 %; Without {lost}", base.scenario)
    assert plan.changes[0] == {"factor": 1.5, "workload": "", "kind": "demand"}
    assert plan.job is not None
    running.run_job(str(plan.job.pk))
    plan.refresh_from_db()
    assert plan.state == Plan.State.READY
    (request,) = asked
    before = (base.request or {})["workloads"]
    assert request.workloads[0].load.rate_per_s == before[0]["load"]["rate_per_s"] * 1.5
    assert len(request.nodes) == len((base.request or {})["nodes"]) - 1


def test_a_what_if_is_never_approved(base: Plan, planner: User, operator: User) -> None:
    plan = services.create_what_if(actor=planner, base=base, changes=[GrowthChange(0.05)])
    Plan.objects.filter(pk=plan.pk).update(state=Plan.State.READY, result=base.result)
    plan.refresh_from_db()
    with pytest.raises(ValidationError, match="is a what-if"):
        services.approve_plan(actor=operator, plan=plan)
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.filter(pk=plan.pk).update(state=Plan.State.APPROVED, approved_at=timezone.now())


def test_who_may_and_what_is_refused(base: Plan, planner: User, viewer: User) -> None:
    with pytest.raises(PermissionDenied):
        services.create_what_if(actor=viewer, base=base, changes=[DemandChange(2)])
    with pytest.raises(ValidationError, match="Nothing is changed"):
        services.create_what_if(actor=planner, base=base, changes=[])
    with pytest.raises(InputError) as refused:
        services.create_what_if(actor=planner, base=base, changes=[DemandChange(2), LostChange(node="nowhere")])
    assert refused.value.field == "changes[1].node"
    Plan.objects.filter(pk=base.pk).update(request=None)
    with pytest.raises(ValidationError, match="not read fleet"):
        services.create_what_if(actor=planner, base=Plan.objects.get(pk=base.pk), changes=[DemandChange(2)])


def changed(base: Plan, planner: User) -> Plan:
    """A what-if with an answer that differs: the first workload on one replica less, dearer, and a pool that fills."""
    plan = services.create_what_if(actor=planner, base=base, changes=[DemandChange(1.5)])
    result = plan_answer_json(base)
    gone = result["placements"].pop(0)
    result["placements"] = [
        p for p in result["placements"] if (p["workload"], p["replica"]) != (gone["workload"], gone["replica"])
    ]
    result["usd_per_hour"] = "99.5000"
    result["runways"] = [
        {"gpu": "L40S", "full_in_months": 7, "order_in_months": 4.0, "gpus_short": 3, "sentence": ""},
        {"gpu": "A10", "full_in_months": None, "order_in_months": None, "gpus_short": 0, "sentence": ""},
    ]
    Plan.objects.filter(pk=plan.pk).update(state=Plan.State.READY, result=result)
    return Plan.objects.select_related("scenario").get(pk=plan.pk)


def plan_answer_json(plan: Plan) -> dict[str, Any]:
    return {**(plan.result or {}), "placements": list((plan.result or {})["placements"])}


def test_side_by_side(base: Plan, planner: User) -> None:
    other = changed(base, planner)
    found = comparing.compare([base, other])
    totals = {line.key: line for line in found.totals}
    assert totals["usd_per_hour"].values == (Decimal(str((base.result or {})["usd_per_hour"])), Decimal("99.5000"))
    assert totals["runway_months"].values == (None, 7)
    assert totals["status"].differs is False
    assert totals["gpus"].values[0] > totals["gpus"].values[1]
    first, *rest = [line for line in found.workloads if line.differs]
    assert not rest, "only one workload lost a replica"
    before, after = first.cells
    assert before is not None
    assert after is not None
    assert (before.replicas - after.replicas, before.engines) == (1, after.engines)
    assert before.headroom is not None
    assert after.headroom is not None
    share = next(c for c in (base.result or {})["candidates"] if c["id"] == before.candidate)["replica_share"]
    assert before.headroom - after.headroom == pytest.approx(share)
    fields = {(d.section, d.field) for d in found.differences}
    assert ("Workloads asked", "load.rate_per_s") in fields
    assert any(section == "Placement" for section, _ in fields)
    assert not any(section == "Nodes asked" for section, _ in fields)


def test_the_sums_of_the_workloads_are_the_bill(base: Plan, planner: User) -> None:
    found = comparing.compare([base, changed(base, planner)])
    placed = sum(line.cells[0].usd_per_hour for line in found.workloads if line.cells[0])
    prices = {n["name"]: Decimal(n["price"]["usd_per_gpu_hour"]) for n in (base.request or {})["nodes"]}
    assert placed == sum(len(p["gpu_indexes"]) * prices[p["node"]] for p in (base.result or {})["placements"])


def test_the_table_holds_everything_and_no_formula(base: Plan, planner: User) -> None:
    other = changed(base, planner)
    base.scenario.name = other.scenario.name = "=cmd"
    rows = list(csv.reader(io.StringIO(comparing.as_csv(comparing.compare([base, other])).decode("utf-8-sig"))))
    assert rows[0][:4] == ["Section", "Item", "Field", "Unit"]
    assert {row[0] for row in rows[1:]} >= {"Totals", "Workloads", "Workloads asked", "Placement"}
    assert all(len(row) == len(rows[0]) for row in rows)
    line = next(row for row in rows if row[2] == "Placed GPUs")
    assert line[-1] == "yes"
    units = {row[2]: row[3] for row in rows if row[0] == "Totals"}
    assert (units["Least headroom"], units["Gap to the bound"]) == ("share", "share")
    engines = {name for row in rows if row[2] == "Engine" for name in row[4:-1] if name}
    assert engines
    assert engines <= {"vLLM", "TensorRT-LLM", "vLLM and TensorRT-LLM", "TensorRT-LLM and vLLM"}
    assert not any(cell.startswith("=") for row in rows for cell in row)


def test_what_cannot_be_compared(base: Plan, everything: dict[str, Any], planner: User) -> None:
    for plans, words in (
        ([base], "compare 2 to 4"), ([base, base], "twice"),
        ([base, services.create_what_if(actor=planner, base=base, changes=[DemandChange(2)])], "no result"),
    ):  # fmt: skip
        with pytest.raises(ValidationError, match=words):
            comparing.compare(plans)


def test_a_deleted_plan_is_hidden_and_comes_back(base: Plan, planner: User, viewer: User) -> None:
    plan = services.create_what_if(actor=planner, base=base, changes=[DemandChange(2)])
    with pytest.raises(PermissionDenied):
        discarding.delete_plan(actor=viewer, plan=plan)
    discarding.delete_plan(actor=planner, plan=plan)
    assert not Plan.objects.filter(pk=plan.pk).exists()
    assert plan.job is not None
    plan.job.refresh_from_db()
    assert plan.job.cancel_requested_at is not None, "nobody waits for it any more"
    again = services.create_what_if(actor=planner, base=base, changes=[DemandChange(2)])
    assert again.number == plan.number + 1, "the number stays taken"
    discarding.restore_plan(actor=planner, pk=plan.pk)
    assert Plan.objects.filter(pk=plan.pk).exists()
    with pytest.raises(ValidationError, match="no longer"):
        discarding.restore_plan(actor=planner, pk=plan.pk)


def test_the_plan_in_force_is_not_deleted(base: Plan, planner: User) -> None:
    assert base.state == Plan.State.APPROVED
    with pytest.raises(ValidationError, match="in force"):
        discarding.delete_plan(actor=planner, plan=base)


def test_a_scenario_goes_with_its_plans_and_comes_back_with_them(base: Plan, planner: User) -> None:
    early = services.create_what_if(actor=planner, base=base, changes=[DemandChange(2)])
    discarding.delete_plan(actor=planner, plan=early)
    Plan.everything.filter(pk=early.pk).update(discarded_at=timezone.now() - dt.timedelta(minutes=5))
    discarding.delete_scenario(actor=planner, scenario=base.scenario)
    assert not Plan.objects.filter(pk=base.pk).exists()
    with pytest.raises(ValidationError, match="restore it first"):
        discarding.restore_plan(actor=planner, pk=early.pk)
    discarding.restore_scenario(actor=planner, pk=base.scenario_id)
    assert Plan.objects.filter(pk=base.pk).exists()
    assert not Plan.objects.filter(pk=early.pk).exists(), "what was deleted before stays deleted"


def test_a_day_later_it_is_gone(base: Plan, everything: dict[str, Any], planner: User) -> None:
    discarding.delete_scenario(actor=planner, scenario=base.scenario)
    long_ago = timezone.now() - dt.timedelta(days=1, minutes=1)
    for rows in (Scenario.everything, Plan.everything):
        rows.filter(discarded_at__isnull=False).update(discarded_at=long_ago)
    discarding.delete_plan(actor=planner, plan=everything["other"])
    assert not Scenario.everything.filter(pk=base.scenario_id).exists()
    with pytest.raises(ValidationError, match="no longer"):
        discarding.restore_scenario(actor=planner, pk=base.scenario_id)


def test_a_name_is_free_again_and_nothing_is_lost(base: Plan, planner: User) -> None:
    name = base.scenario.name
    discarding.delete_scenario(actor=planner, scenario=base.scenario)
    fresh = services.save_scenario(actor=planner, scenario=Scenario(name=name))
    assert list(Scenario.everything.filter(name=name)) == [fresh]
    back = discarding.restore_scenario(actor=planner, pk=base.scenario_id)
    assert back.name == f"{name} (deleted, {back.pk})"
    assert Plan.objects.filter(pk=base.pk, scenario=back).exists()


def test_growth_of_a_scenario_reaches_the_planner(base: Plan, planner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of(monkeypatch)
    scenario = base.scenario
    scenario.growth_per_month, scenario.lead_time_months = 0.04, 5.0
    services.save_scenario(actor=planner, scenario=scenario)
    plan = services.compute_plan(actor=planner, scenario=scenario)
    assert plan.job is not None
    running.run_job(str(plan.job.pk))
    (request,) = asked
    assert {w.growth_per_month for w in request.workloads} == {0.04}
    assert request.lead_time_months == 5.0


def test_plans_side_by_side_state_the_cost_of_their_own_pages(base: Plan, everything: dict[str, Any]) -> None:
    other = everything["other"]
    found = comparing.compare([base, other])
    line = next(total for total in found.totals if total.key == "usd_per_mtok_output")
    for plan, value in zip((base, other), line.values, strict=True):
        billed = costview.context(*answer_of(plan))["total"]
        assert value == billed.usd_per_mtok[1]

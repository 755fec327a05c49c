"""Scenarios and plans: what the planner is asked, what is kept of its answer, who may approve it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction

import planner.plan
from controlplane.core.models import ChangeLog, User
from controlplane.deployments.models import Calibration, Deployment
from controlplane.deployments.services import launch_deployment
from controlplane.inventory.models import Gpu, Node, Price, Site
from controlplane.jobs import running
from controlplane.jobs.models import Job
from controlplane.jobs.services import request_cancel
from controlplane.planning import mapping, services, uploads
from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import LlmModel, Workload
from controlplane.workloads.services import install_trace, upload_model
from planner.errors import InfeasibleError
from planner.jsonio import from_json, to_json
from planner.plan_types import PlanRequest, PlanResult
from tests.controlplane import fleet_fixture, plan_answer
from tests.controlplane.test_workloads import TINY

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scenario(node: Node, workload: Workload, planner: User) -> Scenario:
    """Everything there is."""
    return services.save_scenario(actor=planner, scenario=Scenario(name="All of it"))


@pytest.fixture
def fleet_scenario(planner: User) -> Scenario:
    """The fleet and the workloads that ``plan_fixture`` has an answer for."""
    fleet_fixture.make_fleet()
    fleet_fixture.make_workloads()
    Workload.objects.update(model_ref="Qwen/Qwen3-8B")
    return services.save_scenario(actor=planner, scenario=Scenario(name="Fleet"))


@pytest.fixture
def quick_planner(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    """A planner that answers at once with ``plan_answer.plan_result``; returns the requests it was given."""
    asked: list[PlanRequest] = []

    def make_plan(request: PlanRequest, progress: Any = None, should_cancel: Any = None) -> PlanResult:
        asked.append(request)
        progress(0.5, "Sizing")
        assert not should_cancel()
        return plan_answer.plan_result()

    monkeypatch.setattr(planner.plan, "make_plan", make_plan)
    return asked


def computed(scenario: Scenario, actor: User) -> Plan:
    plan = services.compute_plan(actor=actor, scenario=scenario)
    assert plan.job is not None
    running.run_job(str(plan.job.pk))
    plan.refresh_from_db()
    return plan


def test_what_the_planner_is_asked(scenario: Scenario, node: Node, workload: Workload) -> None:
    Gpu.objects.filter(node=node, index=7).update(state=Gpu.State.FAULTY)
    request = mapping.plan_request(scenario)
    (asked,) = request.nodes
    assert (asked.name, asked.gpu, asked.gpus, asked.nvlink_domain) == ("n1", "H100-SXM5-80GB", 8, 8)
    assert asked.price.usd_per_gpu_hour == Decimal("2.50")
    assert asked.busy_gpus == (7,)
    (load,) = request.workloads
    assert (load.name, load.load.rate_per_s, load.input_tokens.value) == ("Chat", 4.0, 512)
    assert [(item.metric, item.stat, item.limit_ms) for item in load.slo] == [("ttft", "p90", 1000.0)]
    assert request.energy is not None
    assert request.energy.usd_per_kwh == Decimal("0.1000")
    assert from_json(PlanRequest, to_json(request)) == request, "the request survives its way through the database"


def test_a_scenario_names_what_it_wants(scenario: Scenario, make_node: Any, planner: User, workload: Workload) -> None:
    elsewhere = Site.objects.create(name="Else", slug="else")
    make_node("n2", site=elsewhere)
    make_node("n3", state=Node.State.RETIRED)
    Workload.objects.create(name="Other", slug="other", model_ref="Qwen/Qwen3-8B", load_kind="closed", concurrency=3)
    assert [item.name for item in mapping.plan_request(scenario).nodes] == ["n1", "n2"]
    services.save_scenario(actor=planner, scenario=scenario, sites=[elsewhere], workloads=[workload])
    request = mapping.plan_request(scenario)
    assert ([item.name for item in request.nodes], [item.name for item in request.workloads]) == (["n2"], ["Chat"])
    assert ChangeLog.objects.filter(model="planning.Scenario", after={"sites": ["Else"]}).exists()


def test_a_trace_is_stretched_to_the_stated_rate(scenario: Scenario, workload: Workload) -> None:
    workload.trace = install_trace(actor=None, catalogue_name="azure_2023_code")
    workload.arrival, workload.rate_per_s = "trace", 20.0
    workload.input_tokens = workload.output_tokens = {"kind": "trace"}
    asked = mapping.plan_workload(workload)
    times = asked.load.times_s
    assert len(times) == len(asked.input_tokens.samples) == len(asked.output_tokens.samples) == 4000
    assert (len(times) - 1) / times[-1] == pytest.approx(20.0)


def test_an_uploaded_model_reaches_the_planner_as_a_file(planner: User, workload: Workload, data_dir: Any) -> None:

    upload_model(actor=planner, model_id="me/tiny", config=json.dumps(TINY).encode())
    workload.model_ref = "me/tiny"
    path = mapping.plan_workload(workload).model
    assert path.startswith(str(data_dir))
    assert json.loads(Path(path).read_text()) == TINY


def test_what_runs_is_current_and_what_is_foreign_is_busy(scenario: Scenario, node: Node, workload: Workload) -> None:
    values = {
        "node": node,
        "host": node,
        "model_ref": "m",
        "planned_engine": "vllm",
        "engine": "vllm",
        "state": "ready",
    }
    Deployment.objects.create(name="a", workload=workload, candidate_id="c", gpu_indexes=[0, 1], port=1, **values)
    Deployment.objects.create(name="b", gpu_indexes=[4], port=2, **values)
    Deployment.objects.create(name="c", gpu_indexes=[5], port=3, **{**values, "state": "stopped"})
    request = mapping.plan_request(scenario)
    assert request.nodes[0].busy_gpus == (4,)
    (current,) = request.current
    assert (current.workload, current.candidate_id, current.node, current.gpu_indexes) == ("Chat", "c", "n1", (0, 1))


def test_devices_and_owners_reach_the_planner(scenario: Scenario, node: Node) -> None:
    node.orchestrator, node.cluster, node.partition, node.min_replica_gpus = "slurm", "hpc", "gpu", 2
    node.save()
    first, second, third = node.gpus.filter(index__in=[0, 1, 2])
    first.mig_slices = ["1g.10gb MIG-0", "1g.10gb MIG-1 reserved", "2g.20gb"]
    second.mig_enabled = True
    third.state, third.reserved_for = Gpu.State.RESERVED, "training"
    for gpu in (first, second, third):
        gpu.full_clean()
        gpu.save()
    asked = next(item for item in mapping.plan_request(scenario).nodes if item.name == node.name)
    assert (asked.orchestrator, asked.cluster, asked.partition, asked.min_replica_gpus) == ("slurm", "hpc", "gpu", 2)
    assert [(s.gpu, s.profile, s.uuid, s.busy) for s in asked.slices] == [
        (0, "1g.10gb", "MIG-0", False), (0, "1g.10gb", "MIG-1", True), (0, "2g.20gb", "", False),
    ]  # fmt: skip
    assert asked.busy_gpus == (1, 2)
    assert asked.reserved_for == "training"


def test_purchases_are_bounded_as_the_scenario_says(scenario: Scenario, node: Node) -> None:
    assert mapping.plan_request(scenario).limits is None
    scenario.mode, scenario.objective, scenario.budget_usd_per_hour = "owned_plus_purchase", "total_cost", Decimal(50)
    scenario.max_power_kw, scenario.orchestrators, scenario.share_gpus = 40.0, ["none"], False
    node.node_type.max_power_w, node.node_type.rack_units = 10_200, 8
    node.node_type.save()
    asked = mapping.plan_request(scenario)
    assert asked.limits is not None
    assert (asked.limits.usd_per_hour, asked.limits.power_kw, asked.limits.rack_units) == (Decimal(50), 40.0, None)
    assert (asked.objective, asked.orchestrators, asked.share_gpus) == ("total_cost", ("none",), False)
    (option,) = {(o.power_kw, o.rack_units, o.max_count, o.node.state) for o in asked.purchase_options}
    assert option == (10.2, 8, None, "planned")


def test_active_calibrations_are_used(scenario: Scenario) -> None:
    key = {"engine": "vllm", "gpu": "H100-SXM5-80GB", "model": "m", "precision": "bf16", "samples": 2, "source": "p"}
    Calibration.objects.create(**key, step_factor=1.2, residual_log_sd=0.1)
    Calibration.objects.create(**{**key, "model": "n"}, step_factor=0.9, residual_log_sd=0.1, active=False)
    with pytest.raises(IntegrityError), transaction.atomic():
        Calibration.objects.create(**key, step_factor=1.3, residual_log_sd=0.1)
    assert [item.step_factor for item in mapping.plan_request(scenario).calibrations] == [1.2]


def test_plan_is_computed_and_frozen(fleet_scenario: Scenario, planner: User, quick_planner: list[PlanRequest]) -> None:
    plan = computed(fleet_scenario, planner)
    expected = plan_answer.plan_result()
    assert (plan.state, plan.number, plan.status) == (Plan.State.READY, 1, expected.status)
    assert from_json(PlanResult, plan.result) == expected
    assert from_json(PlanRequest, plan.request) == quick_planner[0]
    assert plan.usd_per_hour == expected.usd_per_hour
    assert plan.placements.count() == len(expected.placements)
    assert not plan.placements.filter(node=None).exists()
    verdict = plan.verdicts.get(workload_name=expected.verdicts[0].workload)
    assert (verdict.engine, verdict.sentence) == (expected.verdicts[0].engine, expected.verdicts[0].sentence)
    assert verdict.workload is not None
    services.store_result(plan, expected)
    assert plan.placements.count() == len(expected.placements), "storing twice adds nothing"
    assert computed(fleet_scenario, planner).number == 2


def test_progress_reaches_the_job(fleet_scenario: Scenario, planner: User, quick_planner: list[PlanRequest]) -> None:
    plan = computed(fleet_scenario, planner)
    assert plan.job is not None
    lines = [line.text for line in plan.job.log.all()]
    assert lines[0] == "Reading fleet and workloads"
    assert "Sizing" in lines
    assert (plan.job.state, plan.job.result["placements"]) == ("succeeded", len(plan_answer.plan_result().placements))


def test_a_planner_that_fails_is_explained(scenario: Scenario, planner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_plan(*args: Any) -> PlanResult:
        raise InfeasibleError("no GPU is large enough", field="workloads.Chat", remedy="Add a larger one.")

    monkeypatch.setattr("planner.plan.make_plan", make_plan)
    plan = computed(scenario, planner)
    assert plan.state == Plan.State.FAILED
    assert plan.job is not None
    assert plan.job.error == "workloads.Chat: no GPU is large enough. Add a larger one."


def test_a_scenario_that_cannot_be_mapped_is_explained(scenario: Scenario, planner: User, h100: Any) -> None:
    Workload.objects.all().delete()
    plan = computed(scenario, planner)
    assert plan.job is not None
    assert (plan.state, plan.job.error) == (Plan.State.FAILED, "The scenario has no workloads; add at least one.")
    Workload.objects.create(name="W", slug="w", model_ref="Qwen/Qwen3-8B", load_kind="closed", concurrency=3)
    Price.objects.all().delete()
    h100.name = "A10"
    h100.save()
    plan = computed(scenario, planner)
    assert plan.job is not None
    assert "no price for A10 at Test site" in plan.job.error


def test_cancel_while_computing(scenario: Scenario, planner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_plan(request: PlanRequest, progress: Any, should_cancel: Any) -> PlanResult:
        request_cancel(actor=None, job=Job.objects.get())
        progress(0.1, "Goes on")
        raise AssertionError("was not stopped")

    monkeypatch.setattr("planner.plan.make_plan", make_plan)
    plan = computed(scenario, planner)
    assert plan.job is not None
    assert (plan.state, plan.job.state) == (Plan.State.FAILED, Job.State.CANCELLED)


def test_roles(scenario: Scenario, viewer: User, planner: User, operator: User, quick_planner: list) -> None:
    with pytest.raises(PermissionDenied, match="planner"):
        services.compute_plan(actor=viewer, scenario=scenario)
    with pytest.raises(PermissionDenied, match="planner"):
        services.save_scenario(actor=viewer, scenario=scenario)
    plan = computed(scenario, planner)
    with pytest.raises(PermissionDenied, match="operator"):
        services.approve_plan(actor=planner, plan=plan)
    assert services.approve_plan(actor=operator, plan=plan).approved_by == operator


def test_approval_makes_deployments_and_supersedes(
    fleet_scenario: Scenario, planner: User, operator: User, quick_planner: list
) -> None:
    first, second = computed(fleet_scenario, planner), computed(fleet_scenario, planner)
    services.approve_plan(actor=operator, plan=first)
    result = plan_answer.plan_result()
    replicas = {(item.candidate_id, item.replica) for item in result.placements}
    assert set(first.deployments.values_list("candidate_id", "replica")) == replicas
    made = first.deployments.first()
    assert made is not None
    assert (made.state, made.emulated) == (Deployment.State.PENDING, False)
    assert made.settings["engine"] == made.planned_engine
    assert made.prediction["performance"]["output_tok_per_s"] > 0
    services.approve_plan(actor=operator, plan=first)
    assert first.deployments.count() == len(replicas), "approving twice adds nothing"
    services.approve_plan(actor=operator, plan=second)
    first.refresh_from_db()
    assert first.state == Plan.State.SUPERSEDED
    with pytest.raises(ValidationError, match="superseded"):
        services.approve_plan(actor=operator, plan=first)


@pytest.mark.parametrize("values", [{"state": "ready"}, {"state": "approved", "result": {}}, {"state": "maybe"}])
def test_constraints(scenario: Scenario, values: dict) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(scenario=scenario, number=1, **values)


def test_numbers_are_unique(scenario: Scenario) -> None:
    Plan.objects.create(scenario=scenario, number=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(scenario=scenario, number=1)
    assert dt.timedelta(seconds=scenario.time_limit_s) == dt.timedelta(seconds=30)


def uploaded(actor: User, **changed: Any) -> LlmModel:
    return upload_model(actor=actor, model_id="acme/our-8b", config=json.dumps(TINY | changed).encode())


@pytest.fixture
def planned_upload(fleet_scenario: Scenario, planner: User, quick_planner: list) -> Plan:
    """A plan, ready, of which every workload has an uploaded model."""
    uploaded(planner)
    Workload.objects.update(model_ref="acme/our-8b")
    return computed(fleet_scenario, planner)


def test_an_uploaded_model_is_kept_by_its_content(planned_upload: Plan, planner: User, operator: User) -> None:
    assert list(planned_upload.model_digests) == ["acme/our-8b"]
    row = LlmModel.objects.get()
    assert planned_upload.model_digests["acme/our-8b"] == uploads.digest(row.config, row.quant_config)
    same = json.dumps(TINY).encode()
    upload_model(actor=planner, model_id="acme/our-8b", config=same, notes="another version, the same content")
    assert services.approve_plan(actor=operator, plan=planned_upload).state == Plan.State.APPROVED


@pytest.mark.parametrize("stored", [True, False])
def test_a_plan_whose_model_was_uploaded_anew_is_not_approved(
    planned_upload: Plan, planner: User, operator: User, stored: bool
) -> None:
    if not stored:  # as plans of older versions
        Plan.objects.update(model_digests={})
        planned_upload.refresh_from_db()
    uploaded(planner, num_hidden_layers=9)
    with pytest.raises(ValidationError) as refused:
        services.approve_plan(actor=operator, plan=planned_upload)
    assert refused.value.messages == [
        f"acme/our-8b was uploaded anew, with another content, since plan {planned_upload} was computed with it. "
        "Compute the plan again, or upload the planned config.json again."
    ]
    planned_upload.refresh_from_db()
    assert planned_upload.state == Plan.State.READY
    assert not planned_upload.deployments.exists()
    uploaded(planner)  # the remedy
    assert services.approve_plan(actor=operator, plan=planned_upload).state == Plan.State.APPROVED


def test_a_plan_whose_model_was_deleted_is_not_approved(planned_upload: Plan, operator: User) -> None:
    LlmModel.objects.all().delete()
    with pytest.raises(ValidationError, match=r"acme/our-8b was deleted since plan .* Upload its config.json again"):
        services.approve_plan(actor=operator, plan=planned_upload)


def test_an_approved_plan_starts_only_the_model_that_was_planned(
    planned_upload: Plan, planner: User, operator: User
) -> None:
    services.approve_plan(actor=operator, plan=planned_upload)
    made = planned_upload.deployments.first()
    assert made is not None
    assert made.model_ref == "acme/our-8b"
    uploaded(planner, num_hidden_layers=9)
    with pytest.raises(ValidationError, match="acme/our-8b was uploaded anew"):
        launch_deployment(actor=operator, deployment=made, emulated=True)
    made.refresh_from_db()
    assert made.state == Deployment.State.PENDING

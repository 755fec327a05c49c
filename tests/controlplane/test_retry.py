"""A job that ended badly, submitted again: its act is done anew, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.test import Client

from controlplane.core.models import User
from controlplane.deployments import probing, services
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.jobs.models import Job
from controlplane.jobs.services import claim, fail, request_cancel, retry_job
from controlplane.planning import curves as drawing
from controlplane.planning import services as planning
from controlplane.planning.models import Plan, Scenario
from tests.controlplane.deployment_samples import LOAD, Worker, make_ready, measured

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def failed_plan(planner: User, node: Any, workload: Any) -> Plan:
    """A plan whose job failed on its way."""
    scenario = planning.save_scenario(actor=planner, scenario=Scenario(name="Fleet"))
    plan = planning.compute_plan(actor=planner, scenario=scenario)
    assert plan.job is not None
    job = claim(plan.job.pk, worker="here")
    assert job is not None
    Job.objects.filter(pk=job.pk).update(progress=0.62, step="Sizing Chat on H100")
    job.refresh_from_db()
    fail(job, "Out of memory.", "Plan fewer workloads.")
    plan.refresh_from_db()
    assert plan.state == Plan.State.FAILED
    return plan


def test_a_cancelled_probe_runs_again_as_a_new_one(
    deployment: Deployment,
    operator: User,
) -> None:
    make_ready(deployment, operator)
    first = probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    assert first.job is not None
    request_cancel(actor=operator, job=first.job)
    first.refresh_from_db()
    fresh = retry_job(actor=operator, job=first.job)
    again = ProbeRun.objects.get(job=fresh)
    assert again.pk != first.pk
    assert again.load == first.load
    assert Worker(fresh).say("probed", metrics=measured()) == "applied"
    again.refresh_from_db()
    first.refresh_from_db()
    assert (again.state, first.state) == ("done", "cancelled")
    assert again.metrics["output_tok_per_s"] == 100.0
    assert again.validations.exists()


def test_a_probe_of_an_engine_that_is_gone_is_refused(
    deployment: Deployment,
    operator: User,
) -> None:
    make_ready(deployment, operator)
    first = probing.probe_deployment(actor=operator, deployment=deployment, load=LOAD)
    assert first.job is not None
    request_cancel(actor=operator, job=first.job)
    services.stop_deployment(actor=operator, deployment=deployment)
    jobs = Job.objects.count()
    with pytest.raises(ValidationError, match="only a ready one can be probed"):
        retry_job(actor=operator, job=first.job)
    ProbeRun.objects.all().delete()
    with pytest.raises(ValidationError, match="was deleted; start a new one"):
        retry_job(actor=operator, job=first.job)
    assert Job.objects.count() == jobs


def test_a_launch_is_launched_again_and_no_running_engine_is(
    deployment: Deployment,
    operator: User,
) -> None:
    first = services.launch_deployment(actor=operator, deployment=deployment)
    Worker(first).say("failed", reason="The port is taken.", remedy="Free it.")
    first.refresh_from_db()
    fresh = retry_job(actor=operator, job=first)
    deployment.refresh_from_db()
    assert (deployment.state, deployment.job_id) == ("launching", fresh.pk)
    with pytest.raises(ValidationError, match="stop it before starting it"):
        retry_job(actor=operator, job=first)


def test_a_failed_plan_is_computed_again_in_its_place(failed_plan: Plan, planner: User, viewer: User) -> None:
    old = failed_plan.job
    assert old is not None
    with pytest.raises(PermissionDenied):
        retry_job(actor=viewer, job=old)
    fresh = retry_job(actor=planner, job=old)
    failed_plan.refresh_from_db()
    assert (failed_plan.state, failed_plan.job_id) == ("computing", fresh.pk)
    with pytest.raises(ValidationError, match="is computing; only a failed one"):
        retry_job(actor=planner, job=old)
    with pytest.raises(ValidationError, match="The job is queued; only a failed or cancelled one"):
        retry_job(actor=planner, job=fresh)
    Plan.everything.all().delete()
    with pytest.raises(ValidationError, match="was deleted; compute a new one"):
        retry_job(actor=planner, job=old)


def test_the_page_of_a_failed_plan_says_where_and_why_and_tries_again(
    failed_plan: Plan, planner: User, viewer: User, client: Client
) -> None:
    client.force_login(viewer)
    page = client.get(f"/plans/{failed_plan.pk}/").content.decode()
    assert 'Failed at 62 %, in the step "Sizing Chat on H100"' in page
    assert "Out of memory." in page
    assert "Plan fewer workloads." in page
    assert "Try again" not in page
    assert "hx-trigger" not in page.split('class="card progress failed"')[1].split("</div>")[0]
    client.force_login(planner)
    assert "Try again" in client.get(f"/plans/{failed_plan.pk}/").content.decode()
    answer = client.post(f"/jobs/{failed_plan.job_id}/retry/")
    assert (answer.status_code, answer["Location"]) == (302, f"/plans/{failed_plan.pk}/")
    failed_plan.refresh_from_db()
    assert failed_plan.state == Plan.State.COMPUTING


def test_curves_whose_drawing_failed_are_known(failed_plan: Plan, planner: User) -> None:
    result = {"candidates": [{"id": "a", "workload": "Chat"}]}
    Plan.objects.filter(pk=failed_plan.pk).update(result=result)
    failed_plan.refresh_from_db()
    row = drawing.request_curves(actor=planner, plan=failed_plan, candidate_id="a")
    assert row.job is not None
    assert drawing.failed_job(failed_plan, "a") is None
    job = claim(row.job.pk, worker="here")
    assert job is not None
    fail(job, "It broke.")
    assert drawing.failed_job(failed_plan, "a") == job
    fresh = retry_job(actor=planner, job=job)
    assert failed_plan.curves.get().job == fresh
    assert drawing.failed_job(failed_plan, "a") is None

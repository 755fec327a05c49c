"""One act makes, starts and probes what would settle a verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.test import Client
from django.utils import timezone

from controlplane.core.models import Role, User
from controlplane.deployments import services, settling
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Gpu, Node
from controlplane.workloads.models import Workload
from controlplane.workloads.services import upload_model
from tests.controlplane import fleet_fixture
from tests.controlplane.test_workloads import TINY

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    found = fleet_fixture.make_everything()
    found["close"] = next(v["workload"] for v in found["plan"].result["verdicts"] if v["probe"])
    return found


def settle(sample: dict[str, Any], actor: User | None) -> ProbeRun:
    return settling.settle_verdict(actor=actor, plan=sample["plan"], workload=sample["close"])


def test_the_probe_waits_for_its_engine(sample: dict[str, Any], operator: User, sent: list[Any]) -> None:
    candidate = settling.candidate_to_probe(sample["plan"].result, sample["close"])
    before = {
        (row.node_id, index) for row in Deployment.objects.filter(state__in=settling.HELD) for index in row.gpu_indexes
    }
    probe = settle(sample, operator)
    made = probe.deployment
    assert (made.state, made.candidate_id) == (Deployment.State.PENDING, candidate["id"])
    assert made.node.node_type.gpu_model.name == candidate["gpu"]
    assert len(made.gpu_indexes) == candidate["gpus_per_replica"]
    assert not before & {(made.node_id, index) for index in made.gpu_indexes}
    assert (probe.state, probe.job) == (ProbeRun.State.PENDING, None)
    assert probe.load["rate_per_s"] == pytest.approx(candidate["replica_rate_per_s"])
    assert not sent, "no worker is alive: it waits to be launched"
    Deployment.objects.filter(pk=made.pk).update(state=Deployment.State.READY, host=made.node)
    made.refresh_from_db()
    settling.start_waiting_probes(made)
    probe.refresh_from_db()
    assert probe.job is not None
    assert probe.job.kind == "deployment.probe"
    settling.start_waiting_probes(made)
    assert made.probes.count() == 1, "a probe that is on its way is not sent twice"


def test_a_node_with_a_worker_starts_at_once(sample: dict[str, Any], operator: User) -> None:
    candidate = settling.candidate_to_probe(sample["plan"].result, sample["close"])
    last = Node.objects.filter(node_type__gpu_model__name=candidate["gpu"], state="active").latest("name")
    Node.objects.filter(pk=last.pk).update(worker_last_seen_at=timezone.now())
    try:
        probe = settle(sample, operator)
    except ValidationError as error:
        pytest.fail(str(error))
    assert probe.deployment.node == last
    assert probe.deployment.state == Deployment.State.LAUNCHING


def test_what_cannot_be_settled(sample: dict[str, Any], operator: User, viewer: User) -> None:
    with pytest.raises(PermissionDenied):
        settle(sample, viewer)
    clear = next(v["workload"] for v in sample["plan"].result["verdicts"] if not v["probe"])
    with pytest.raises(ValidationError, match="nothing to settle"):
        settling.settle_verdict(actor=operator, plan=sample["plan"], workload=clear)
    Gpu.objects.update(state=Gpu.State.FAULTY)
    with pytest.raises(ValidationError, match="No active node has"):
        settle(sample, operator)
    assert not Deployment.objects.filter(name__startswith="Probe:").exists()


def test_one_click_on_the_page(sample: dict[str, Any], client: Client) -> None:
    client.force_login(sample["user"], backend="django.contrib.auth.backends.ModelBackend")
    path = f"/plans/{sample['plan'].pk}/workloads/{sample['close']}/"
    assert f"{path}settle/" in client.get(path).content.decode()
    answer = client.post(f"{path}settle/", {"next": path}, follow=True)
    assert "The probe is made" in answer.content.decode()
    assert ProbeRun.objects.filter(deployment__name__startswith="Probe:").count() == 1


def test_an_uploaded_model_goes_by_its_id(sample: dict[str, Any], operator: User, client: Client) -> None:
    plan = sample["plan"]
    planner = fleet_fixture.make_user("pia", Role.PLANNER)
    row = upload_model(actor=planner, model_id="acme/our-8b", config=json.dumps(TINY).encode())
    for item in plan.request["workloads"]:
        item["model"] = f"/srv/var/models/{row.pk}-v{row.version}/acme--our-8b/config.json"
    plan.save()
    client.force_login(operator)
    for path in ("/validation/", f"/plans/{plan.pk}/{sample['close']}/", f"/plans/{plan.pk}/"):
        assert "/srv/var" not in client.get(path).content.decode()
    assert "model=acme%2Four-8b" in client.get("/validation/").content.decode()
    name = plan.request["workloads"][0]["name"]
    assert services.planned_model(plan, name, Workload.objects.get(name=name)) == "acme/our-8b"
    assert settle(sample, operator).deployment.model_ref == "acme/our-8b"

"""Users, a small fleet and a workload; messages are recorded instead of sent."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.models import Role, User
from controlplane.dashboard import fmt
from controlplane.deployments import services
from controlplane.deployments.models import Deployment
from controlplane.inventory.models import Gpu, GpuModel, Node, NodeType, Price, Site
from controlplane.jobs import kinds, sending
from controlplane.workloads.models import SloTarget, Workload
from controlplane.workloads.services import upload_model
from tests.controlplane import fleet_fixture
from tests.controlplane.deployment_samples import MODEL
from tests.controlplane.job_samples import NodeRecorder, Recorder
from tests.controlplane.test_workloads import TINY


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch, data_dir: Any) -> list[tuple[str, dict, str]]:
    """Every message that would have gone to the broker: (task, payload, queue)."""
    messages: list[tuple[str, dict, str]] = []
    monkeypatch.setattr(sending, "publish", lambda task, payload, queue: messages.append((task, payload, queue)))
    return messages


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _dollars() -> None:
    """A test that calls no page starts in dollars, whatever a page before it was in."""
    fmt.use_currency()


@pytest.fixture
def make_user(db: None) -> Callable[..., User]:
    """A user of a role; staff, so that the admin console is open to them."""

    def make(role: str, name: str = "", **extra: Any) -> User:
        return User.objects.create_user(name or role, password="long-enough-9", role=role, is_staff=True, **extra)

    return make


@pytest.fixture
def viewer(make_user: Callable[..., User]) -> User:
    """May look."""
    return make_user(Role.VIEWER)


@pytest.fixture
def planner(make_user: Callable[..., User]) -> User:
    """May plan."""
    return make_user(Role.PLANNER)


@pytest.fixture
def operator(make_user: Callable[..., User]) -> User:
    """May run things."""
    return make_user(Role.OPERATOR)


@pytest.fixture
def administrator(make_user: Callable[..., User]) -> User:
    """May do everything."""
    return make_user(Role.ADMIN, "root", is_superuser=True)


@pytest.fixture
def site(db: None) -> Site:
    """A site."""
    return Site.objects.create(name="Test site", slug="test-site", usd_per_kwh=Decimal("0.10"))


@pytest.fixture
def h100(db: None) -> GpuModel:
    """A GPU model with a price."""
    model = GpuModel.objects.create(name="H100-SXM5-80GB", vendor="nvidia", architecture="Hopper")
    Price.objects.create(
        gpu_model=model,
        basis="rental",
        usd_per_gpu_hour=Decimal("2.50"),
        source="test",
        valid_from=dt.date(2026, 1, 1),
    )
    return model


@pytest.fixture
def node_type(h100: GpuModel) -> NodeType:
    """Eight H100 in one NVLink domain."""
    return NodeType.objects.create(name="8xH100", slug="8xh100", gpu_model=h100, gpus=8, nvlink_domain=8)


@pytest.fixture
def make_node(site: Site, node_type: NodeType) -> Callable[..., Node]:
    """A node with its GPUs."""

    def make(name: str = "n1", **extra: Any) -> Node:
        node = Node.objects.create(**{"site": site, "node_type": node_type, "name": name, "slug": name, **extra})
        Gpu.objects.bulk_create(Gpu(node=node, index=index) for index in range(node.node_type.gpus))
        return node

    return make


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """One node."""
    return make_node()


@pytest.fixture
def local_node(site: Site, db: None) -> Node:
    """The host of the control plane, a CPU device."""
    model = GpuModel.objects.create(name="CPU-host", vendor="cpu")
    kind = NodeType.objects.create(name="local-cpu", slug="local-cpu", gpu_model=model, gpus=1, nvlink_domain=1)
    node = Node.objects.create(site=site, node_type=kind, name="this-host", slug="local", is_local=True)
    Gpu.objects.create(node=node, index=0)
    return node


@pytest.fixture
def workload(db: None) -> Workload:
    """A chat workload with an objective."""
    row = Workload.objects.create(
        name="Chat", slug="chat", model_ref="meta-llama/Llama-3.1-8B-Instruct", load_kind="open", rate_per_s=4.0
    )
    SloTarget.objects.create(workload=row, metric="ttft", stat="p90", limit_ms=1000)
    return row


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    """The sample fleet with plans, deployments, probes and jobs."""
    return fleet_fixture.make_everything()


@pytest.fixture
def sign_in(client: Client) -> Callable[[User], Client]:
    """The browser of a user."""

    def inner(user: User) -> Client:
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return inner


@pytest.fixture
def admin_page(sample: dict[str, Any], sign_in: Callable[[User], Client]) -> Client:
    """The browser of the sample's administrator."""
    return sign_in(sample["user"])


@pytest.fixture
def seen_node(node: Node) -> Node:
    """A node whose worker has been seen."""
    node.worker_last_seen_at = timezone.now()
    node.save()
    return node


@pytest.fixture
def deployment(seen_node: Node, operator: User) -> Deployment:
    """vLLM with an 8B model on one H100, pending."""
    return services.create_deployment(
        actor=operator, node=seen_node, model_ref=MODEL, engine="vllm", options={"max_model_len": 4096}
    )


@pytest.fixture
def cpu_deployment(local_node: Node, planner: User, operator: User) -> Deployment:
    """A tiny model on the processor of this host, pending."""
    upload_model(actor=planner, model_id="me/tiny", config=json.dumps(TINY).encode())
    return services.create_deployment(
        actor=operator, node=local_node, model_ref="me/tiny", engine="vllm", options={"max_model_len": 1024}
    )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A job kind of control workers."""
    kind = Recorder()
    monkeypatch.setitem(kinds._KINDS, kind.kind, kind)
    return kind


@pytest.fixture
def node_recorder(monkeypatch: pytest.MonkeyPatch) -> NodeRecorder:
    """A job kind of node workers."""
    kind = NodeRecorder()
    monkeypatch.setitem(kinds._KINDS, kind.kind, kind)
    return kind

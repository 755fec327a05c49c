"""What a real worker said of real vLLM on an H200 (tests/data/h200_worker), told to the control plane again."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.models import User
from controlplane.deployments import probing, services
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Gpu, GpuModel, Node, NodeType, Price
from controlplane.inventory.services import discover_node
from controlplane.jobs import observing
from controlplane.jobs.models import Job
from planner.engines.types import EngineName
from planner.jsonio import from_json, to_json
from runners.contracts import LAUNCH_TASK, EngineLaunch, Observation, ProbeLoad
from runners.engines.commands import engine_command

pytestmark = pytest.mark.django_db(transaction=True)
DATA = Path(__file__).parent.parent / "data" / "h200_worker"
SAID = [
    from_json(Observation, json.loads(line)) for line in (DATA / "observations.jsonl").read_text("utf-8").splitlines()
]
LAUNCHES = json.loads((DATA / "launches.json").read_text("utf-8"))
LOADS = json.loads((DATA / "loads.json").read_text("utf-8"))


def tell(job: Job | None, recorded: str) -> None:
    """Send what the worker said of its job ``recorded`` as if it were about ``job``."""
    assert job is not None
    lines = [item for item in SAID if item.job_id == recorded]
    assert lines
    for number, item in enumerate(lines, 1):
        observing.apply_observation(to_json(replace(item, job_id=str(job.pk), sequence=number, attempt=1)))


@pytest.fixture
def h200(site: Any, operator: User) -> Node:
    """A node with one H200 whose worker has been seen."""
    gpu = GpuModel.objects.create(name="H200-SXM-141GB", vendor="nvidia")
    Price.objects.create(
        gpu_model=gpu, basis="rental", usd_per_gpu_hour=Decimal("3.50"), source="test", valid_from="2026-01-01"
    )
    kind = NodeType.objects.create(name="1 x H200", slug="h200", gpu_model=gpu, gpus=1, nvlink_domain=1)
    node = Node.objects.create(
        site=site, node_type=kind, name="h200", slug="h200", state="active", worker_last_seen_at=timezone.now()
    )
    Gpu.objects.create(node=node, index=0)
    return node


def ready(node: Node, operator: User, key: str) -> Deployment:
    """A deployment with the recorded settings that has heard its engine start."""
    asked = LAUNCHES[key]
    options = {name: asked["flags"][name] for name in asked["stated"]} | {"version": asked["version"]}
    row = services.create_deployment(
        actor=operator, node=node, model_ref=asked["served_name"], engine="vllm", options=options
    )
    tell(services.launch_deployment(actor=operator, deployment=row), f"launch-{key}")
    row.refresh_from_db()
    assert row.state == Deployment.State.READY, row.reason
    return row


def probed(row: Deployment, operator: User, name: str) -> ProbeRun:
    load = from_json(ProbeLoad, LOADS[name])
    probe = probing.probe_deployment(actor=operator, deployment=row, load=load)
    tell(probe.job, name)
    probe.refresh_from_db()
    assert probe.state == ProbeRun.State.DONE, probe.reason
    return probe


def test_discovery_of_a_real_gpu_agrees_with_the_catalogue(h200: Node, operator: User) -> None:
    job = discover_node(actor=operator, node=h200)
    tell(job, "discover-1")
    gpu = h200.gpus.get()
    assert (gpu.discovered_name, gpu.discovered_memory_mib, gpu.orphaned_mib) == ("NVIDIA H200", 143_771, 0)
    job.refresh_from_db()
    assert job.result["differences"] == []
    assert job.result["engines"]["vllm"] == "0.24.0"


@pytest.mark.parametrize("key", ["q8b", "moe", "small"])
def test_the_pool_that_vllm_laid_out_is_the_one_predicted(h200: Node, operator: User, key: str) -> None:
    """G5: every term is shown before the purchase and held against a live run after it."""
    row = ready(h200, operator, key)
    ledger, startup = row.prediction["memory"], row.startup
    assert startup["weights_gib"] == pytest.approx(ledger["weights_gib"], rel=0.001)
    assert startup["kv_tokens"] == pytest.approx(ledger["kv_tokens"], rel=0.01)
    assert startup["max_concurrency"] == pytest.approx(ledger["max_concurrency"], rel=0.01)
    terms = ("weights_gib", "activation_gib", "non_torch_gib", "graph_gib", "kv_gib")
    assert all(ledger[term] > 0 for term in terms)


def test_the_command_line_that_ran_is_the_one_made_today(h200: Node, operator: User, sent: list) -> None:
    ready(h200, operator, "q8b")
    launch = from_json(EngineLaunch, next(payload for task, payload, _ in sent if task == LAUNCH_TASK)["launch"])
    ran = next(item.command_line for item in SAID if item.job_id == "launch-q8b" and item.command_line)
    launch = replace(launch, port=int(ran[ran.index("--port") + 1]))
    today = engine_command(launch, EngineName.VLLM, ran[2], "127.0.0.1", DATA).arguments
    assert ("vllm", *today)[1:] == tuple(ran[1:])


def test_the_second_engine_on_a_full_gpu_is_explained(h200: Node, operator: User) -> None:
    """M23: vLLM's share is of the whole memory, and what others hold counts."""
    ended = [item for item in SAID if item.job_id == "launch-second"][-1]
    assert ended.state == "failed"
    assert "8.41 of 139.8 GiB were free" in ended.reason
    row = services.create_deployment(
        actor=operator, node=h200, model_ref="Qwen/Qwen3-8B", engine="vllm", options={"max_model_len": 8192}
    )
    tell(services.launch_deployment(actor=operator, deployment=row), "launch-second")
    row.refresh_from_db()
    assert row.state == Deployment.State.FAILED
    assert "another process holds memory" in row.reason
    assert "gpu_memory_utilization" in row.remedy


def test_memory_is_free_after_the_stop() -> None:
    """D4: the group is gone and the driver says so."""
    before, running, after = (
        next(item for item in SAID if item.job_id == job).gpus[0] for job in ("discover-1", "discover-2", "discover-3")
    )
    assert running.memory_used_mib > 130_000
    assert after.memory_used_mib == before.memory_used_mib


def test_probes_of_a_moe_model_validate_and_bring_power(h200: Node, operator: User) -> None:
    """Qwen3-30B-A3B: never seen while the model was made. TPOT within a fifth, power measured."""
    row = ready(h200, operator, "moe")
    errors = {}
    for name in ("c1", "c16", "c64", "r6"):
        probe = probed(row, operator, f"probe-moe-{name}")
        assert 250 < probe.metrics["mean_power_w"] < 700
        rows = {item.metric: item for item in probe.validations.all()}
        assert set(rows) == {"ttft_ms", "tpot_ms", "output_tok_per_s"}
        errors[name] = rows["tpot_ms"].error_ratio
    assert all(abs(error) < 0.25 for error in errors.values()), errors


def test_the_page_shows_power_cache_and_doubts_of_a_probe(h200: Node, operator: User, client: Client) -> None:
    moe = ready(h200, operator, "moe")
    probed(moe, operator, "probe-moe-c16")
    client.force_login(operator)
    body = client.get(f"/deployments/{moe.pk}/").content.decode()
    assert re.search(r"at (<[^>]*>)*511", body)
    assert "Fewer than five requests a client" in body
    tell(services.stop_deployment(actor=operator, deployment=moe), "stop-moe")
    dense = ready(h200, operator, "q8b")
    probed(dense, operator, "probe-q8b-c64")
    body = client.get(f"/deployments/{dense.pk}/").content.decode()
    assert "14% of the prompt tokens came from the engine" in html.unescape(body)

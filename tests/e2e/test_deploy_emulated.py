"""Launch, probe and stop through a real Celery worker, AIPerf and emulated engines; the worker is killed on the way."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.contracts import (
    DISCOVER_TASK,
    LAUNCH_TASK,
    PROBE_TASK,
    STOP_TASK,
    DiscoverCommand,
    EngineLaunch,
    LaunchCommand,
    ProbeCommand,
    ProbeLoad,
    StopCommand,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "runners"))
sys.path.insert(0, str(Path(__file__).parent))

from emulation_samples import emulation
from worker_process import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
NAME = "Qwen/Qwen3-8B"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    made = WorkerProcess(tmp_path)
    made.start()
    yield made
    made.close()


def launch(job: str, deployment: str = "d1", **changes: Any) -> LaunchCommand:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = EngineLaunch("emulated", "0.24.0", NAME, NAME, port, (), emulation=emulation(**changes))
    return LaunchCommand(job, 1, deployment, engine)


def probe(job: str, base_url: str, load: ProbeLoad, deployment: str = "d1") -> ProbeCommand:
    return ProbeCommand(job, 1, deployment, f"probe-of-{job}", base_url, NAME, "builtin", "emulated", load)


@pytest.mark.parametrize("acts_as", ["vllm", "tensorrt_llm"])
def test_the_whole_way(worker: WorkerProcess, acts_as: str) -> None:
    worker.send(DISCOVER_TASK, DiscoverCommand("j0", 1, "e2e"))
    found = worker.ends("j0")
    assert found.host is not None
    assert found.host.cpu_cores >= 1

    command = launch("j1", acts_as=acts_as, prefix_hit=0.5)
    worker.send(LAUNCH_TASK, command)
    worker.send(LAUNCH_TASK, command)  # delivered twice
    ready = worker.ends("j1")
    assert (ready.state, ready.emulated) == ("ready", True)
    assert ready.startup is not None
    assert ready.startup.kv_tokens == 64_000

    load = ProbeLoad(128, 16, 4, 40, seed=3, slo_ms={"ttft": 60_000.0, "tpot": 0.001})
    worker.send(PROBE_TASK, probe("j2", ready.base_url, load))
    measured = worker.ends("j2", 120.0)
    assert measured.state == "probed", measured.reason
    assert measured.emulated
    metrics = measured.metrics
    assert metrics is not None
    assert (metrics.completed, metrics.failed) == (40, 0)
    assert (metrics.mean_input_tokens, metrics.mean_output_tokens) == (128.0, 16.0)
    assert metrics.prefix_hit == pytest.approx(0.5, abs=0.07)  # whole blocks of 16
    assert metrics.ttft_ms["p50"] > metrics.tpot_ms["p50"] > 4.0
    assert metrics.generator.startswith("aiperf")
    assert (metrics.goodput_per_s, metrics.good_share) == (0.0, 0.0)  # no token comes within a microsecond

    worker.send(STOP_TASK, StopCommand("j3", 1, "d1"))
    assert worker.ends("j3").state == "stopped"
    assert worker.left_behind("d1") == []


def test_an_open_loop_arrives_at_its_rate(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1"))
    ready = worker.ends("j1")
    load = ProbeLoad(64, 8, 0, 120, rate_per_s=20.0, seed=5, endpoint="chat")
    worker.send(PROBE_TASK, probe("j2", ready.base_url, load))
    measured = worker.ends("j2", 120.0)
    assert measured.metrics is not None, measured.reason
    assert measured.metrics.req_per_s == pytest.approx(20.0, rel=0.35)  # 120 Poisson arrivals: sd 9 %
    assert measured.metrics.completed == 120


def test_a_mixture_with_a_shared_prefix_has_the_asked_lengths(worker: WorkerProcess) -> None:
    """B19: the load generator draws the pairs, and the shared text counts as part of a prompt."""
    worker.send(LAUNCH_TASK, launch("j1"))
    ready = worker.ends("j1")
    mix = ((200, 8, 50.0), (400, 24, 50.0))
    load = ProbeLoad(300, 16, 4, 80, seed=5, mix=mix, shared_tokens=64, shared_prefixes=2)
    worker.send(PROBE_TASK, probe("j2", ready.base_url, load))
    measured = worker.ends("j2", 120.0)
    assert measured.metrics is not None, measured.reason
    assert measured.metrics.mean_input_tokens == pytest.approx(300, abs=40)  # 80 draws of two lengths
    assert measured.metrics.mean_output_tokens == pytest.approx(16, abs=3.5)
    assert measured.metrics.completions_per_s is not None


def test_an_embedding_engine_is_measured_by_its_own_route(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1", embeds=True))
    ready = worker.ends("j1")
    assert ready.state == "ready", ready.reason
    load = ProbeLoad(200, 1, 4, 40, slo_ms={"e2e": 60_000.0})
    worker.send(PROBE_TASK, probe("j2", ready.base_url, load))
    measured = worker.ends("j2", 120.0)
    assert measured.metrics is not None, measured.reason
    assert measured.metrics.ttft_ms == {}
    assert measured.metrics.total_tok_per_s == pytest.approx(200 * measured.metrics.req_per_s, rel=0.02)
    assert measured.metrics.good_share == 1.0


def test_a_worker_killed_while_an_engine_loads_is_followed_by_one_that_finishes(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1", load_s=8.0))
    worker.wait(lambda item: item.job_id == "j1" and item.state == "started", 30.0)
    worker.kill()
    handle = worker.store.load("d1")
    assert handle is not None
    assert worker.left_behind("d1")
    worker.start()
    ready = worker.ends("j1", 60.0)
    assert ready.state == "ready"
    assert ready.pid == handle.pid
    numbers = [item.sequence for item in worker.seen if item.job_id == "j1"]
    assert numbers == sorted(set(numbers))
    worker.send(STOP_TASK, StopCommand("j2", 1, "d1"))
    assert worker.ends("j2").state == "stopped"
    assert worker.left_behind("d1") == []


def test_a_worker_killed_in_a_probe_fails_the_probe_and_keeps_the_engine(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1"))
    ready = worker.ends("j1")
    worker.send(PROBE_TASK, probe("j2", ready.base_url, ProbeLoad(64, 400, 2, 200)))
    worker.wait(lambda item: item.job_id == "j2" and item.state == "started", 60.0)
    worker.kill()
    worker.start()
    failed = worker.ends("j2", 60.0)
    assert failed.state == "failed"
    assert "middle of the probe" in failed.reason
    assert "Probe again" in failed.remedy
    assert worker.left_behind("probe-probe-of-j2") == []
    assert worker.left_behind("d1")


def test_an_engine_that_dies_in_a_probe_is_named_as_the_cause(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1", faults={"die_after_tokens": 150}))
    ready = worker.ends("j1")
    worker.send(PROBE_TASK, probe("j2", ready.base_url, ProbeLoad(64, 50, 4, 200)))
    failed = worker.wait(lambda item: item.job_id == "j2" and item.state == "failed", 90.0)
    assert "The engine ended during the probe" in failed.reason
    assert "SIGKILL" in failed.reason
    if not any(item.job_id == "j1" and item.state == "failed" for item in worker.seen):
        worker.wait(lambda item: item.job_id == "j1" and item.state == "failed", 20.0)  # from the keeper
    assert worker.left_behind("d1") == []
    assert worker.left_behind("probe-probe-of-j2") == []


def test_a_probe_with_many_errors_stops_early(worker: WorkerProcess) -> None:
    worker.send(LAUNCH_TASK, launch("j1", faults={"error_share": 0.3}))
    ready = worker.ends("j1")
    if ready.state == "failed":  # its very first generation was among the failing ones
        pytest.fail(ready.reason)
    worker.send(PROBE_TASK, probe("j2", ready.base_url, ProbeLoad(64, 16, 4, 400)))
    failed = worker.ends("j2", 90.0)
    assert failed.state == "failed"
    assert "requests failed" in failed.reason
    record = worker.store.load_probe("probe-of-j2")
    assert record is not None
    assert record.state == "failed"

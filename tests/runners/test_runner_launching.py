"""Launch, stop and adopt with real processes: every way it can go ends in a stated state, with nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from emulation_samples import Recorder

from planner.jsonio import from_json, to_json
from runners import adopting, launching, stopping, waiting
from runners.config import load_config
from runners.contracts import AdoptCommand, EngineLaunch, LaunchCommand, Observation, StopCommand
from runners.engines.vllm import VLLM_PHASES, VllmAdapter
from runners.errors import DiskFullError
from runners.hosts import process
from runners.hosts.follow import run_lines
from runners.node import Node
from runners.probe.readiness import list_model
from runners.state import Handle

Make = Callable[..., LaunchCommand]
H200 = Path(__file__).parent.parent / "data" / "h200_worker" / "observations.jsonl"
FLAGS: dict[str, str | int | float | bool] = {
    "max_model_len": 8192, "gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": 8192,
}  # fmt: skip


def handle_of(node: Node, deployment: str = "dep-1") -> Handle:
    handle = node.store.load(deployment)
    assert handle is not None
    return handle


def nothing_left(node: Node, deployment: str = "dep-1") -> bool:
    handle = node.store.load(deployment)
    return not process.members(handle.process if handle else None, deployment)


def failed(sent: Recorder) -> tuple[str, str]:
    assert sent.last.state == "failed"
    assert sent.last.reason
    assert sent.last.remedy
    return sent.last.reason, sent.last.remedy


def test_launch_reports_phases_facts_and_readiness_then_stops(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command(load_s=2.0)
    launching.launch(command, node)
    assert sent.states[0] == "started"
    assert sent.last.state == "ready"
    assert {item.phase for item in sent.seen} >= {"weights are loaded", "laying out the KV cache"}
    facts = sent.last.startup
    assert facts is not None
    assert (facts.engine_version, facts.weights_gib, facts.kv_gib) == ("0.24.0", 15.27, 50.0)
    assert (facts.kv_blocks, facts.block_tokens, facts.max_model_len) == (4000, 16, 4096)
    assert facts.ready_s is not None
    assert 0 < facts.ready_s < 30
    assert sum(facts.phases_s.values()) == pytest.approx(facts.ready_s, abs=0.1)
    assert {"weights are loaded", "laying out the KV cache"} <= set(facts.phases_s)
    assert [item.sequence for item in sent.seen] == list(range(1, len(sent.seen) + 1))
    assert all(item.emulated and item.deployment_id == "dep-1" for item in sent.seen)
    assert list_model(sent.last.base_url, "Qwen/Qwen3-8B").emulated

    stopping.stop(StopCommand("job-2", 1, "dep-1"), node)
    assert sent.last.state == "stopped"
    assert handle_of(node).state == "stopped"
    assert nothing_left(node)
    assert not process.is_port_open("127.0.0.1", command.launch.port)


def test_the_parts_of_a_real_cold_start_add_up_to_its_time() -> None:
    """D7: what an H200's vLLM spent on each phase, by the times at which its worker reported them."""
    said = [from_json(Observation, json.loads(line)) for line in H200.read_text("utf-8").splitlines()]
    launch = [item for item in said if item.job_id == "launch-q8b"]
    ready = next(item for item in launch if item.state == "ready")
    assert ready.startup is not None
    assert ready.startup.ready_s is not None
    seen = waiting._Progress(began_at=ready.at - ready.startup.ready_s)
    for item in launch:
        if item.state == "progress" and item.progress is not None and item.at < ready.at:
            seen.enter(item.phase, item.progress, item.at)
    spent = seen.phases_s(ready.at)
    assert sum(spent.values()) == pytest.approx(ready.startup.ready_s, abs=0.1)
    assert spent["compiling"] == pytest.approx(ready.startup.compile_s, abs=15)
    assert max(spent, key=lambda phase: spent[phase]) != "loading weights"  # 2 s of 134
    assert waiting._Progress(began_at=0.0, whole=False).phases_s(9.0) == {}  # an engine taken up half-way


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("(EngineCore pid=9) 2026-05-30 07:15:45,192 - INFO - autotuner.py:615 - flashinfer.jit: [Autotuner]: "
         "Autotuning process starts ...", "tuning FlashInfer kernels"),
        ("DeepGEMM warmup:   3%|3         | 120/4096 [00:01<00:40, 98.11it/s]", "compiling DeepGEMM kernels"),
    ],
)  # fmt: skip
def test_what_an_engine_compiles_at_first_contact_is_a_phase_of_its_own(line: str, phase: str) -> None:
    """D8: a tuner that takes hours shows as such, with how long it has been silent, not as a hang."""
    assert [item.text for item in VLLM_PHASES if item.pattern.search(line)] == [phase]


def test_an_engine_that_downloads_is_not_one_that_failed() -> None:
    """D15: a hub that answers 429 is asked again by the engine; meanwhile the phase says what it waits for."""
    lines = [
        "(EngineCore pid=9) INFO 12-01 17:47:55 [model_runner.py:281] Loading model from scratch...",
        "(EngineCore pid=9) INFO 12-01 17:47:56 [weight_utils.py:348] Using model weights format ['*.safetensors']",
        "HTTP Error 429 thrown while requesting GET https://example.org/m/model-00001-of-00004.safetensors",
    ]
    shown = [item for line in lines for item in VLLM_PHASES if item.pattern.search(line)]
    assert [item.text for item in shown] == ["loading weights", "fetching weights that are not on this node"]
    assert shown[0].progress < shown[1].progress < 0.45


def test_the_engine_gives_up_before_its_worker_and_the_worker_before_the_job() -> None:
    """D3: 600 s is too short for 163 shards or a cold JIT; each deadline lies outside the one within."""
    launch = EngineLaunch("vllm", "0.24.0", "/models/x", "m", 8000, (0,), flags=FLAGS)
    with_program = replace(load_config({"TONNAGE_DATA_DIR": "/tmp/none"}), vllm=sys.executable)
    plan = VllmAdapter().plan(launch, Path("/tmp/none"), with_program)
    inner = float(plan.env["VLLM_ENGINE_READY_TIMEOUT_S"])
    assert 1500 <= inner < launch.ready_timeout_s


def test_a_repeated_launch_starts_nothing_new(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command()
    launching.launch(command, node)
    pid = handle_of(node).pid
    count = len(sent.seen)
    launching.launch(command, node)
    assert handle_of(node).pid == pid
    assert [item.state for item in sent.seen[count:]] == ["ready"]
    assert sent.last.startup is not None


def test_a_second_attempt_takes_the_running_engine_up(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command()
    launching.launch(command, node)
    pid = handle_of(node).pid
    launching.launch(replace(command, attempt=2), node)
    assert sent.last.state == "ready"
    assert (sent.last.attempt, sent.last.pid) == (2, pid)
    count = len(sent.seen)
    launching.launch(command, node)  # the first attempt's message, late
    assert len(sent.seen) == count


def test_other_settings_for_a_running_deployment_are_refused(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(), node)
    launching.launch(launch_command(job="job-9"), node)  # another port
    reason, _ = failed(sent)
    assert "other settings" in reason
    assert process.is_alive(handle_of(node).process)
    assert handle_of(node).state == "ready"


def test_an_engine_that_exits_at_once(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(faults={"exit_at_once": True, "exit_code": 7}), node)
    reason, _ = failed(sent)
    assert "exit code 7" in reason
    assert "emulated fault at start" in reason
    assert any("emulated fault" in line for line in sent.last.lines)
    assert handle_of(node).state == "failed"
    assert nothing_left(node)


def test_an_engine_that_hangs_in_loading(node: Node, sent: Recorder, launch_command: Make) -> None:
    """D14: it does not stay in loading for ever: where it was and what was missing are said."""
    launching.launch(launch_command(faults={"hang_in_loading": True}, timeout_s=8.0), node)
    reason, _ = failed(sent)
    assert "Not ready after 8 s" in reason
    assert "weights are loaded" in reason
    assert nothing_left(node)


def test_an_engine_that_lists_the_model_but_does_not_generate(node: Node, sent: Recorder, launch_command: Make) -> None:
    """D9: ready means one generation returned: no user's request pays for what is compiled late."""
    launching.launch(launch_command(faults={"refuse_generation": True}, timeout_s=12.0), node)
    reason, _ = failed(sent)
    assert "one generation answers 500" in reason
    assert nothing_left(node)


def test_a_taken_port_is_found_before_the_start(
    node: Node, sent: Recorder, launch_command: Make, free_port: Callable[[], int]
) -> None:
    port = free_port()
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", port))
        holder.listen()
        launching.launch(launch_command(port=port), node)
    reason, remedy = failed(sent)
    assert str(port) in reason
    assert "another port" in remedy
    assert node.store.load("dep-1") is None


@pytest.mark.parametrize("engine", ["vllm", "vllm_cpu", "tensorrt_llm"])
def test_a_missing_engine_is_named_with_its_remedy(
    node: Node, sent: Recorder, launch_command: Make, engine: str
) -> None:
    node.config = replace(node.config, vllm="/no/vllm", vllm_cpu_python="/no/python", trtllm_serve="/no/trtllm-serve")
    command = launch_command()
    launching.launch(replace(command, launch=replace(command.launch, engine=engine)), node)
    reason, remedy = failed(sent)
    assert "not installed on this node" in reason
    assert "TONNAGE_" in remedy


def test_an_unknown_engine_is_refused(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command()
    launching.launch(replace(command, launch=replace(command.launch, engine="sglang")), node)
    assert "sglang" in failed(sent)[0]


def test_a_full_disk_stops_the_launch_before_a_process(node: Node, sent: Recorder, launch_command: Make) -> None:
    node.config = replace(node.config, min_free_mib=10**9)
    launching.launch(launch_command(), node)
    assert "MiB are free" in failed(sent)[0]
    assert nothing_left(node)


def test_a_disk_that_fills_between_start_and_handle_leaves_no_engine(
    node: Node, sent: Recorder, launch_command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = node.store._write

    def full(path: object, data: dict) -> None:
        if data.get("pid"):
            raise DiskFullError("Cannot write handle.json: the disk is full.", "Free space there.")
        write(path, data)  # type: ignore[arg-type]

    monkeypatch.setattr(node.store, "_write", full)
    launching.launch(launch_command(), node)
    assert "the disk is full" in failed(sent)[0]
    assert nothing_left(node)


def test_stopping_during_a_launch_ends_both(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command(faults={"hang_in_loading": True})
    waiting = threading.Thread(target=launching.launch, args=(command, node))
    waiting.start()
    while (handle := node.store.load("dep-1")) is None or handle.state != "loading":
        time.sleep(0.02)
    stopping.stop(StopCommand("job-2", 1, "dep-1", grace_s=5.0), node)
    waiting.join(timeout=15)
    assert not waiting.is_alive()
    by_job = {item.job_id: item for item in sent.seen}
    assert by_job["job-2"].state == "stopped"
    assert by_job["job-1"].state == "failed"
    assert "stopped while it was starting" in by_job["job-1"].reason
    assert handle_of(node).state == "stopped"
    assert nothing_left(node)


def test_two_messages_at_once_start_one_engine(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command()
    threads = [threading.Thread(target=launching.launch, args=(command, node)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sent.states.count("started") == 1
    assert sent.states.count("ready") >= 1


def test_stopping_what_never_ran_is_harmless(node: Node, sent: Recorder) -> None:
    stopping.stop(StopCommand("job-2", 1, "nobody"), node)
    assert sent.last.state == "stopped"


def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(
    node: Node, sent: Recorder, launch_command: Make
) -> None:
    """D4: a front end that dies leaves ranks on their GPUs; the whole process group goes."""
    launching.launch(launch_command(faults={"ignore_sigterm": True, "leave_child": True}), node)
    stopping.stop(StopCommand("job-2", 1, "dep-1", grace_s=0.5), node)
    assert sent.last.state == "stopped"
    assert sent.last.phase.startswith("killed")
    assert nothing_left(node)


def test_a_worker_that_shuts_down_leaves_the_engine_to_the_next(
    node: Node, sent: Recorder, launch_command: Make
) -> None:
    command = launch_command(load_s=3.0)
    waiting = threading.Thread(target=launching.launch, args=(command, node))
    waiting.start()
    while (handle := node.store.load("dep-1")) is None or handle.state != "loading":
        time.sleep(0.02)
    node.stopping.set()
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert "failed" not in sent.states
    assert process.is_alive(handle.process)

    second = Node(node.config, node.store, sent)
    again: list[LaunchCommand] = []
    adopting.adopt(AdoptCommand("", 0, "test"), second, again.append)
    assert again == [command]
    launching.launch(again[0], second)
    assert sent.last.state == "ready"
    assert handle_of(node).pid == handle.pid
    numbers = [item.sequence for item in sent.seen]
    assert numbers == sorted(set(numbers))


def test_adoption_explains_an_engine_that_died_meanwhile(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(), node)
    process.stop(handle_of(node).process, "dep-1", grace_s=0.0)
    adopting.adopt(AdoptCommand("", 0, "test"), node, lambda _command: None)
    assert failed(sent)
    assert handle_of(node).state == "failed"


def test_adoption_repeats_what_runs_and_finishes_stops(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(), node)
    adopting.adopt(AdoptCommand("job-7", 1, "test"), node, lambda _command: None)
    assert sent.seen[-2].state == "ready"
    assert sent.last.state == "discovered"
    node.store.set_state("dep-1", "stopping")
    adopting.adopt(AdoptCommand("", 0, "test"), node, lambda _command: None)
    assert sent.last.state == "stopped"
    assert nothing_left(node)


def test_a_restarted_host_is_named_as_the_cause(node: Node, sent: Recorder, launch_command: Make) -> None:
    command = launch_command()
    node.store.save(
        Handle("dep-1", "job-1", 1, "ready", to_json(command), pid=1, start_ticks=5, boot_id="an earlier boot")
    )
    adopting.adopt(AdoptCommand("", 0, "test"), node, lambda _command: None)
    assert "node was restarted" in failed(sent)[0]


def test_the_keeper_reports_an_engine_that_ends_by_itself(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(), node)
    keeper = adopting.Keeper(node)
    keeper.look()
    assert sent.last.state == "ready"
    engine = next(pid for pid in process.marked("dep-1") if pid != handle_of(node).pid)
    os.kill(engine, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.is_alive(handle_of(node).process) and time.monotonic() < deadline:
        time.sleep(0.05)
    keeper.look()
    assert "SIGKILL" in failed(sent)[0]
    assert handle_of(node).state == "failed"
    keeper.look()
    assert sent.states.count("failed") == 1


def test_something_else_on_the_port_is_not_taken_for_the_engine(
    node: Node, sent: Recorder, launch_command: Make
) -> None:
    first = launch_command("dep-1")
    launching.launch(first, node)
    other = replace(first.launch, engine="vllm", model="/models/x", emulation={})
    assert isinstance(other, EngineLaunch)
    node.store.update("dep-1", lambda handle: replace(handle, emulated=False))
    launching.launch(replace(first, attempt=2), node)
    assert "not the engine that was launched" in failed(sent)[0]


def test_the_log_of_an_emulated_engine_says_so_in_every_line(node: Node, sent: Recorder, launch_command: Make) -> None:
    launching.launch(launch_command(), node)
    lines = run_lines(node.store.log_path("dep-1"))
    assert lines[0].endswith("[emulated]")
    assert "EMULATED ENGINE" in lines[0]
    assert all(line.endswith("[emulated]") for line in lines)


def test_memory_still_held_after_a_stop_is_a_stated_failure(
    node: Node, sent: Recorder, launch_command: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4, O16: that the memory is free again is checked, not supposed."""
    launching.launch(launch_command(), node)
    node.store.update("dep-1", lambda handle: replace(handle, gpu_used_mib={"0": 500, "1": 500}))
    monkeypatch.setattr(stopping, "MEMORY_WAIT_S", 0.2)
    monkeypatch.setattr(stopping, "gpu_memory_used", lambda _indexes: {0: 700, 1: 70_000})
    stopping.stop(StopCommand("job-2", 1, "dep-1"), node)
    reason, remedy = failed(sent)
    assert "GPU 1: 69500 MiB more than before" in reason
    assert "GPU 0" not in reason
    assert "nvidia-smi" in remedy
    assert handle_of(node).state == "failed"
    assert nothing_left(node)

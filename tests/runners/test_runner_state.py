"""State on disk, commands, the broker's files, discovery."""

from __future__ import annotations

import errno
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emulation_samples import Recorder
from kombu import Connection

from planner.engines.types import EngineName
from planner.jsonio import from_json, to_json
from runners import discovery
from runners.broker import broker_settings
from runners.config import NodeConfig, load_config
from runners.contracts import (
    DiscoverCommand,
    EngineLaunch,
    LaunchCommand,
    Observation,
    ProbeMetrics,
    StartupFacts,
    StopCommand,
)
from runners.dispatch import carry_out
from runners.engines.base import check_launch
from runners.engines.commands import engine_command, resolved_settings
from runners.engines.registry import adapter_for
from runners.engines.vllm_cpu import TINY_MODEL, prepare_model
from runners.errors import CommandRefusedError, DiskFullError
from runners.node import Node
from runners.probe import power
from runners.state import Handle, StateStore

FLAGS: dict[str, Any] = {
    "tp": 2,
    "max_model_len": 8192,
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": True,
}
LAUNCH = EngineLaunch("vllm", "0.24.0", "Qwen/Qwen3-8B", "q", 8190, (0, 1), flags=FLAGS)


def handle(deployment: str = "d1", **values: Any) -> Handle:
    return Handle(deployment, "j1", 1, "loading", {}, **values)


def test_handles_are_read_back_as_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    saved = store.save(handle(argv=("a", "b"), pid=7, start_ticks=9, boot_id="x"))
    assert store.load("d1") == saved
    assert store.handles() == [saved]
    changed = store.set_state("d1", "ready", ready_at=5.0)
    assert changed == replace(saved, state="ready", ready_at=5.0)
    assert store.set_state("nobody", "ready") is None


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".hidden", "x" * 200, "a..b", "a\nb"])
def test_ids_cannot_leave_the_state_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandRefusedError):
        StateStore(tmp_path).load(name)


def test_a_truncated_handle_is_no_handle(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save(handle())
    (tmp_path / "deployments" / "d1" / "handle.json").write_text('{"deployment_id": "d1", "jo')
    assert store.load("d1") is None
    assert store.handles() == []


def test_a_full_disk_keeps_the_old_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)
    saved = store.save(handle())

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("runners.state.os.fsync", full)
    with pytest.raises(DiskFullError, match="the disk is full"):
        store.save(replace(saved, state="ready"))
    assert store.load("d1") == saved
    assert not list(tmp_path.rglob("*.part"))


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    with store.lock("d1", "launch") as first, store.lock("d1", "launch", wait=False) as second:
        assert (first, second) == (True, False)
    with store.lock("d1", "launch", wait=False) as third:
        assert third


def test_contracts_survive_the_broker() -> None:
    command = LaunchCommand("j", 2, "d", replace(LAUNCH, stated=("precision",)))
    assert from_json(LaunchCommand, json.loads(json.dumps(to_json(command)))) == command
    metrics = ProbeMetrics(1, 1, 0, 1.0, 1.0, 1.0, 1.0, {"mean": 1.0}, {}, {}, {}, 1.0, 1.0, 1.0)
    facts = StartupFacts(kv_gib=1.0)
    seen = Observation("j", 1, 1, "ready", "n", 1.0, startup=facts, metrics=metrics, command_line=("a",))
    assert from_json(Observation, json.loads(json.dumps(to_json(seen)))) == seen


def test_a_malformed_message_fails_its_job(node: Node, sent: Recorder) -> None:
    carry_out(StopCommand, {"job_id": "j9", "attempt": 3, "surprise": 1}, lambda _c, _n: None, node)
    assert (sent.last.job_id, sent.last.attempt, sent.last.state) == ("j9", 3, "failed")
    assert "surprise" in sent.last.reason
    carry_out(StopCommand, "nonsense", lambda _c, _n: None, node)
    assert sent.last.state == "failed"


def test_an_unforeseen_error_fails_its_job(node: Node, sent: Recorder) -> None:
    def broken(_command: StopCommand, _node: Node) -> None:
        raise ZeroDivisionError("oops")

    carry_out(StopCommand, to_json(StopCommand("j9", 1, "d1")), broken, node)
    assert (sent.last.deployment_id, sent.last.state) == ("d1", "failed")
    assert "ZeroDivisionError: oops" in sent.last.reason


def test_vllm_is_started_as_planned(tmp_path: Path) -> None:
    line = engine_command(LAUNCH, EngineName.VLLM, "Qwen/Qwen3-8B", "127.0.0.1", tmp_path).arguments
    options = dict(itertools.pairwise(line))
    assert line[:2] == ("serve", "Qwen/Qwen3-8B")
    assert options["--tensor-parallel-size"] == "2"
    assert options["--max-num-batched-tokens"] == "4096"
    assert options["--port"] == "8190"
    assert "--quantization" not in options
    quantised = replace(LAUNCH, flags={**FLAGS, "precision": "fp8"}, stated=("precision",))
    line = engine_command(quantised, EngineName.VLLM, "m", "127.0.0.1", tmp_path).arguments
    assert dict(itertools.pairwise(line))["--quantization"] == "fp8"


def test_tensorrt_llm_gets_its_options_and_its_file(tmp_path: Path) -> None:
    flags = {**FLAGS, "free_gpu_memory_fraction": 0.85, "block_tokens": 32, "kv_cache_dtype": "fp8"}
    del flags["gpu_memory_utilization"]
    launch = replace(LAUNCH, engine="tensorrt_llm", version="1.3.0rc20", flags=flags)
    command = engine_command(launch, EngineName.TENSORRT_LLM, "m", "127.0.0.1", tmp_path)
    assert command.arguments[0] == "m"
    assert "0.85" in command.arguments
    assert str(tmp_path) in command.arguments[-1]
    (text,) = command.files.values()
    assert "return_perf_metrics: true" in text
    assert "dtype: fp8" in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"max_model_len": 8}, "does not state"),
        ({**FLAGS, "swap_space": 4}, "swap_space"),
        ({**FLAGS, "tp": "2; rm -rf /"}, "tp"),
        ({**FLAGS, "precision": "--evil"}, "precision"),
        ({**FLAGS, "enforce_eager": 1}, "enforce_eager"),
        ({**FLAGS, "origin": "user"}, "origin"),
    ],
)
def test_flags_that_no_contract_knows_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(CommandRefusedError, match=says):
        resolved_settings(replace(LAUNCH, flags=flags), EngineName.VLLM)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 80},
        {"served_name": "a\nb"},
        {"served_name": "--help"},
        {"model": "../../etc"},
        {"model": "--config=/etc/passwd"},
        {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"env": {"PYTHONPATH": "/tmp"}},
        {"env": {"VLLM_PLUGINS": "x"}},
    ],
)
def test_a_launch_cannot_smuggle_in_a_command(changes: dict[str, Any]) -> None:
    with pytest.raises(CommandRefusedError):
        check_launch(replace(LAUNCH, **changes))
    check_launch(replace(LAUNCH, env={"VLLM_LOGGING_LEVEL": "DEBUG", "NCCL_DEBUG": "INFO"}))


def test_the_cpu_engine_serves_a_bare_configuration_with_dummy_weights(config: NodeConfig, tmp_path: Path) -> None:
    local = replace(config, vllm_cpu_python=sys.executable)
    launch = replace(LAUNCH, engine="vllm_cpu", model=TINY_MODEL, gpu_indexes=(), flags={**FLAGS, "tp": 1})
    plan = adapter_for(launch).plan(launch, tmp_path, local)
    assert plan.argv[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    assert plan.argv[-2:] == ("--load-format", "dummy")
    assert plan.env["HF_HUB_OFFLINE"] == "1"
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {
        p.name for p in Path(plan.tokenizer).iterdir()
    }
    vocabulary = json.loads((Path(plan.tokenizer) / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 8192
    assert any("dummy weights" in note for note in plan.notes)


@pytest.mark.parametrize("text", ["", "[1]", '{"vocab_size": -3}', '{"vocab_size": "many"}', "{"])
def test_an_unusable_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CommandRefusedError):
        prepare_model(tmp_path, tmp_path / "target")


def test_settings_name_the_variable_that_is_wrong() -> None:
    with pytest.raises(CommandRefusedError, match="TONNAGE_NODE_SLUG"):
        load_config({"TONNAGE_NODE_SLUG": "../x"})
    with pytest.raises(CommandRefusedError, match="TONNAGE_ENGINE_LOG_MIB"):
        load_config({"TONNAGE_ENGINE_LOG_MIB": "-1"})
    assert load_config({"TONNAGE_NODE_HOST": "gpu-7"}).bind_host == "0.0.0.0"


@pytest.fixture
def queue(tmp_path: Path) -> Callable[[str], Any]:
    options = broker_settings("filesystem://", tmp_path)["broker_transport_options"]
    connection = Connection("filesystem://", transport_options=options)
    return lambda name: connection.SimpleQueue(name)


def test_messages_arrive_once_and_in_order_by_queue(queue: Callable[[str], Any]) -> None:
    for number in range(5):
        queue("node.a").put({"n": number})
    queue("node.ab").put({"n": 99})
    seen = []
    for _ in range(5):
        message = queue("node.a").get(timeout=2)
        seen.append(message.payload["n"])
        message.ack()
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(queue("node.a").Empty):
        queue("node.a").get(block=False)


def test_an_unreadable_message_is_set_aside(queue: Callable[[str], Any], tmp_path: Path) -> None:
    folder = tmp_path / "broker" / "messages"
    (folder / "00000000000000000001_x.node.a.msg").write_text('{"half')
    queue("node.a").put({"n": 1})
    assert queue("node.a").get(timeout=2).payload == {"n": 1}
    assert [path.name for path in folder.glob(".*.unreadable")] == [".00000000000000000001_x.node.a.msg.unreadable"]


def test_other_brokers_pass_through(tmp_path: Path) -> None:
    settings = broker_settings("redis://h:1/0", tmp_path)
    assert settings["broker_url"] == "redis://h:1/0"
    assert "broker_transport_options" not in settings
    assert not (tmp_path / "broker").exists()


class _Error(Exception):
    pass


def fake_nvml(used_mib: int, processes: list[tuple[int, int | None]]) -> SimpleNamespace:
    """NVML with one GPU; ``processes`` are (pid, MiB)."""
    mib = 2**20
    rows = [SimpleNamespace(pid=pid, usedGpuMemory=None if held is None else held * mib) for pid, held in processes]

    def no_mig(_handle: object) -> None:
        raise _Error

    return SimpleNamespace(
        NVMLError=_Error,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.95",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _h: SimpleNamespace(used=used_mib * mib, total=81_559 * mib),
        nvmlDeviceGetUUID=lambda _h: b"GPU-1",
        nvmlDeviceGetName=lambda _h: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetPciInfo=lambda _h: SimpleNamespace(busId=b"0000:1b:00.0"),
        nvmlDeviceGetEnforcedPowerLimit=lambda _h: 700_000,
        nvmlDeviceGetMigMode=no_mig,
        nvmlDeviceGetComputeRunningProcesses=lambda _h: rows,
        nvmlDeviceGetGraphicsRunningProcesses=lambda _h: [],
    )


@pytest.mark.parametrize(
    ("used", "processes", "orphaned"),
    [
        (20_480, [], 20_480),  # nobody alive holds it
        (3_000, [], 0),  # below 4,096 MiB it is the driver's
        (20_480, [(1, 20_000)], 0),  # a live process holds it
        (20_480, [(2**22 + 5, 20_000)], 20_480),  # its process is gone
        (20_480, [(1, None)], 0),  # the driver does not say who holds what
    ],
)
def test_memory_of_dead_processes_is_shown(
    monkeypatch: pytest.MonkeyPatch, used: int, processes: list[tuple[int, int | None]], orphaned: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used, processes))
    (gpu,) = discovery.discover_gpus()
    assert gpu.orphaned_mib == orphaned
    assert (gpu.name, gpu.uuid, gpu.pci_bus_id) == ("NVIDIA H100 80GB HBM3", "GPU-1", "0000:1b:00.0")
    assert (gpu.memory_total_mib, gpu.power_limit_w, gpu.mig_enabled) == (81_559, 700.0, False)


def test_slices_are_discovered_with_their_profile_and_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = fake_nvml(0, [])
    slices = {0: "MIG-a", 2: "MIG-b"}  # place 1 is empty

    def part(_handle: object, index: int) -> str:
        if index not in slices:
            raise _Error
        return slices[index]

    whole_name, whole_uuid, whole_memory = lib.nvmlDeviceGetName, lib.nvmlDeviceGetUUID, lib.nvmlDeviceGetMemoryInfo
    lib.nvmlDeviceGetMigMode = lambda _h: [1, 1]
    lib.nvmlDeviceGetMaxMigDeviceCount = lambda _h: 7
    lib.nvmlDeviceGetMigDeviceHandleByIndex = part
    lib.nvmlDeviceGetName = lambda h: f"{whole_name(h)} MIG 1g.10gb" if isinstance(h, str) else whole_name(h)
    lib.nvmlDeviceGetUUID = lambda h: h if isinstance(h, str) else whole_uuid(h)
    lib.nvmlDeviceGetMemoryInfo = lambda h: (
        SimpleNamespace(used=0, total=9_984 * 2**20) if isinstance(h, str) else whole_memory(h)
    )
    monkeypatch.setitem(sys.modules, "pynvml", lib)
    (gpu,) = discovery.discover_gpus()
    assert gpu.mig_enabled
    assert [(s.profile, s.uuid, s.memory_total_mib) for s in gpu.slices] == [
        ("1g.10gb", "MIG-a", 9_984), ("1g.10gb", "MIG-b", 9_984),
    ]  # fmt: skip


def test_a_host_without_gpus_is_described(node: Node, sent: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise _Error

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=_Error, nvmlInit=absent))
    discovery_command = DiscoverCommand("j1", 1, "test")
    from runners.adopting import discover

    discover(discovery_command, node)
    assert sent.last.state == "discovered"
    assert sent.last.gpus == ()
    host = sent.last.host
    assert host is not None
    assert host.cpu_cores >= 1
    assert host.memory_total_mib > 256
    assert "emulated" in host.engines


@pytest.mark.parametrize(
    ("version", "model", "listed"),
    [
        ("1.3.0rc20", "/models/llama", "q"),
        ("1.1.0", "/models/llama", "llama"),
        ("1.1.0", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_older_tensorrt_llm_lists_the_models_own_name(version: str, model: str, listed: str) -> None:
    launch = replace(LAUNCH, engine="tensorrt_llm", version=version, model=model)
    assert adapter_for(launch).listed_name(launch) == listed


def test_power_is_the_sum_over_the_gpus_in_the_measured_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = fake_nvml(1000, [])
    lib.nvmlDeviceGetPowerUsage = lambda index: 300_000 + 100_000 * index
    monkeypatch.setitem(sys.modules, "pynvml", lib)
    monkeypatch.setattr(power, "SAMPLE_S", 0.02)
    began = time.time()
    with power.PowerSampler((0, 1)) as sampler:
        time.sleep(0.3)
    assert sampler.mean_w((began, time.time())) == pytest.approx(700.0)
    assert sampler.mean_w((began - 20, began - 10)) is None
    assert sampler.mean_w(None) is None

"""Fixtures of the runners' tests: a node without a broker, and emulated engines that start fast."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulation_samples import Recorder, emulation

from runners.config import NodeConfig, load_config
from runners.contracts import EngineLaunch, LaunchCommand
from runners.hosts import process
from runners.node import Node
from runners.state import StateStore


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port that nobody listens on now."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture
def sent() -> Recorder:
    """What the node sent."""
    return Recorder()


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    """Settings of a node of this test's own."""
    return load_config({"TONNAGE_DATA_DIR": str(tmp_path), "TONNAGE_NODE_SLUG": "test", "TONNAGE_MIN_FREE_MIB": "1"})


@pytest.fixture
def node(config: NodeConfig, sent: Recorder) -> Iterator[Node]:
    """A node; whatever it started is ended after the test."""
    made = Node(config, StateStore(config.state_dir), sent)
    yield made
    for handle in made.store.handles():
        process.stop(handle.process, handle.deployment_id, grace_s=0.0)


@pytest.fixture
def launch_command(free_port: Callable[[], int]) -> Callable[..., LaunchCommand]:
    """A LaunchCommand for an emulated engine, with faults and other changes."""

    def make(
        deployment: str = "dep-1",
        *,
        job: str = "job-1",
        attempt: int = 1,
        port: int = 0,
        timeout_s: float = 30.0,
        faults: dict[str, Any] | None = None,
        **changes: Any,
    ) -> LaunchCommand:
        launch = EngineLaunch(
            engine="emulated",
            version="0.24.0",
            model="Qwen/Qwen3-8B",
            served_name="Qwen/Qwen3-8B",
            port=port or free_port(),
            gpu_indexes=(),
            emulation=emulation(faults=faults or {}, **changes),
            ready_timeout_s=timeout_s,
        )
        return LaunchCommand(job_id=job, attempt=attempt, deployment_id=deployment, launch=launch)

    return make

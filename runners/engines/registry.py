"""Which adapter serves a launch."""

from __future__ import annotations

from runners.contracts import EngineLaunch
from runners.engines.base import EngineAdapter
from runners.engines.emulated.adapter import EmulatedAdapter
from runners.engines.tensorrt_llm import TensorRtAdapter
from runners.engines.vllm import VllmAdapter
from runners.engines.vllm_cpu import VllmCpuAdapter
from runners.errors import CommandRefusedError

_REAL: dict[str, type] = {"vllm": VllmAdapter, "vllm_cpu": VllmCpuAdapter, "tensorrt_llm": TensorRtAdapter}


def adapter_for(launch: EngineLaunch) -> EngineAdapter:
    """The adapter of ``launch.engine``; raises CommandRefusedError for one that nobody knows."""
    if launch.engine == "emulated":
        acts_as = launch.emulation.get("acts_as")
        return EmulatedAdapter("tensorrt_llm" if acts_as == "tensorrt_llm" else "vllm")
    if launch.engine not in _REAL:
        known = ", ".join([*_REAL, "emulated"])
        raise CommandRefusedError(f"No engine is called {launch.engine!r}.", f"Use one of: {known}.")
    adapter: EngineAdapter = _REAL[launch.engine]()
    return adapter

"""From a launch to an engine's options, by the planner's own table of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.engines.launch import command_line, config_files
from planner.engines.tensorrt_llm import graph_sizes
from planner.engines.types import DEFAULT_VERSION, EngineName, ResolvedSettings
from runners.contracts import EngineLaunch
from runners.errors import CommandRefusedError, EngineMissingError

USER = "user"
_NEUTRAL: dict[str, Any] = {
    "tp": 1,
    "pp": 1,
    "ep": 1,
    "dp": 1,
    "precision": "as-config",
    "weight_only": False,
    "kv_cache_dtype": "auto",
    "gpu_memory_utilization": None,
    "free_gpu_memory_fraction": None,
    "kv_cache_max_tokens": None,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "block_tokens": 32,
    "async_scheduling": True,
    "enforce_eager": False,
    "max_loras": 0,
    "max_lora_rank": 16,
    "speculative_tokens": 0,
    "speculative_acceptance": None,
    "mm_items_per_prompt": 0,
    "capacity_policy": "GUARANTEED_NO_EVICT",
    "trt_backend": "pytorch",
}
_NEEDED = {
    EngineName.VLLM: ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
    EngineName.TENSORRT_LLM: ("max_model_len", "free_gpu_memory_fraction", "max_num_seqs", "max_num_batched_tokens"),
}
_STATED_WHEN_GIVEN = frozenset({"kv_cache_dtype", "enable_chunked_prefill"})


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """``arguments`` after the program's name; ``files`` by name, to be written where ``config_dir`` pointed."""

    arguments: tuple[str, ...]
    files: dict[str, str]


def require_program(program: str, engine: str, variable: str) -> str:
    """The full path of ``program``; raises EngineMissingError when it is not on this node."""
    found = shutil.which(program)
    if found is None:
        raise EngineMissingError(
            f"{engine} is not installed on this node: there is no {program}.",
            f"Install it (docs/runners.md says how), or set {variable} to where it is.",
        )
    return found


def resolved_settings(launch: EngineLaunch, engine: EngineName) -> ResolvedSettings:
    """The settings a launch states, as the planner resolved them. Flags of the planner's names, scalars all.

    Raises CommandRefusedError for an unknown flag, a value of the wrong type, or one that capacity rests on and is
    missing: an engine's own default would not be what was planned.
    """
    kinds = {item.name: str(item.type) for item in fields(ResolvedSettings)}
    for name, value in launch.flags.items():
        kind = kinds.get(name)
        if kind is None or name in ("engine", "version", "origin", "cuda_graph_sizes"):
            raise CommandRefusedError(f"No engine option is called {name!r}.", "Use the planner's option names.")
        if not _fits(value, kind):
            raise CommandRefusedError(f"The option {name} cannot be {value!r}.", f"It must be of the type {kind}.")
    missing = [name for name in _NEEDED[engine] if name not in launch.flags]
    if missing:
        raise CommandRefusedError(
            f"The launch does not state {', '.join(missing)}.", "State every option that the plan rests on."
        )
    values = {**_NEUTRAL, **launch.flags}
    stated = {*launch.stated, *(_STATED_WHEN_GIVEN & launch.flags.keys())}
    eager = bool(values["enforce_eager"])
    sizes = graph_sizes(int(values["max_num_seqs"])) if engine is EngineName.TENSORRT_LLM and not eager else ()
    return ResolvedSettings(
        engine=engine,
        version=launch.version or DEFAULT_VERSION[engine],
        cuda_graph_sizes=sizes,
        origin=dict.fromkeys(stated, USER),
        **values,
    )


def engine_command(launch: EngineLaunch, engine: EngineName, model: str, host: str, folder: Path) -> EngineCommand:
    """Options and files of the engine for ``launch``; ``model`` is what it loads, ``folder`` where its files go."""
    resolved = resolved_settings(launch, engine)
    line = command_line(resolved, model, launch.served_name, launch.port, host=host, config_dir=str(folder))
    return EngineCommand(tuple(line[1:]), config_files(resolved))


def write_files(command: EngineCommand, folder: Path) -> None:
    """Write the command's files; raises OSError."""
    for name, text in command.files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _fits(value: object, kind: str) -> bool:
    if "bool" in kind:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if "int" in kind:
        return isinstance(value, int)
    if "float" in kind:
        return isinstance(value, (int, float))
    return isinstance(value, str) and not value.startswith("-")

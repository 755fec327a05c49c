"""Command line and configuration files that make an engine run with exactly the resolved settings."""

from __future__ import annotations

from planner.engines import launch_tensorrt_llm, launch_vllm
from planner.engines.types import EngineName, ResolvedSettings


def command_line(
    resolved: ResolvedSettings,
    model_path: str,
    served_name: str,
    port: int,
    *,
    host: str = "127.0.0.1",
    config_dir: str = ".",
    extra: tuple[str, ...] = (),
) -> list[str]:
    """Arguments of the server process, program name first; no shell quoting is needed or done.

    ``config_dir`` is where the files of ``config_files`` lie when the server starts; ``extra`` is appended as it is.
    """
    if resolved.engine is EngineName.VLLM:
        return [*launch_vllm.command_line(resolved, model_path, served_name, port, host), *extra]
    arguments = launch_tensorrt_llm.command_line(resolved, model_path, served_name, port, host, config_dir)
    return [*arguments, *extra]


def config_files(resolved: ResolvedSettings) -> dict[str, str]:
    """Files that the command line refers to, by name: none for vLLM, one YAML file for TensorRT-LLM."""
    if resolved.engine is EngineName.VLLM:
        return {}
    return launch_tensorrt_llm.config_files(resolved)

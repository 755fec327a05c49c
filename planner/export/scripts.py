"""Exports for plain hosts: command lines, docker compose, systemd units and Slurm batch scripts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import yaml

from planner.engines.types import EngineName
from planner.errors import UnsupportedError
from planner.export.endpoints import Endpoint

STOP_TIMEOUT_S = 120


def commands(found: Sequence[Endpoint]) -> dict[str, str]:
    """One script a node; each line starts one server in the foreground, so run them in terminals of their own."""
    lines: dict[str, list[str]] = {}
    for endpoint in found:
        for rank, (node, indexes) in enumerate(endpoint.parts):
            lines.setdefault(node, []).append(_comment(endpoint))
            lines[node] += [_heredoc(name, text, endpoint.config_dir) for name, text in endpoint.files]
            lines[node].append(f"{_variables(endpoint, indexes)} {shlex.join(_on_node(endpoint, rank))}\n")
    return {f"{node}.sh": "#!/bin/sh\nset -eu\n\n" + "\n".join(text) for node, text in sorted(lines.items())}


def compose(found: Sequence[Endpoint], model_root: str = "") -> dict[str, str]:
    """One compose file a node; host network, GPUs by index, slices by UUID, health check that tolerates a long load.

    Engines that share a GPU start one after the other: each measures the free memory while it loads.
    """
    services: dict[str, dict] = {}
    files: dict[str, str] = {}
    for endpoint in found:
        for rank, (node, indexes) in enumerate(endpoint.parts):
            volumes = [f"{model_root}:{model_root}:ro"] if model_root else ["model-cache:/root/.cache/huggingface"]
            for name, text in endpoint.files:
                path = f"{endpoint.name}-{name}"
                files[path] = text
                volumes.append(f"./{path}:{endpoint.config_dir}/{name}:ro")
            ids = endpoint.device_id(indexes).split(",")
            devices = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
            services.setdefault(node, {})[endpoint.name] = {
                "image": endpoint.image,
                "entrypoint": list(_on_node(endpoint, rank)),
                "environment": endpoint.environment,
                "network_mode": "host",
                "ipc": "host",
                "ulimits": {"memlock": -1, "stack": 67108864},
                "volumes": volumes,
                "deploy": {"resources": {"reservations": {"devices": [devices]}}},
                "healthcheck": {
                    "test": ["CMD-SHELL", f"curl -sf http://127.0.0.1:{endpoint.port}/health"],
                    "interval": "15s",
                    "timeout": "5s",
                    "retries": 4,
                    "start_period": "40m",
                },
                "stop_grace_period": f"{STOP_TIMEOUT_S}s",
                "restart": "unless-stopped",
            }
            if endpoint.starts_after is not None:
                services[node][endpoint.name]["depends_on"] = {
                    endpoint.starts_after[0]: {"condition": "service_healthy"}
                }
    for node, entries in sorted(services.items()):
        document: dict = {"services": entries}
        if not model_root:
            document["volumes"] = {"model-cache": {}}
        files[f"compose-{node}.yaml"] = yaml.safe_dump(document, sort_keys=False, width=120)
    return files


def systemd(found: Sequence[Endpoint]) -> dict[str, str]:
    """One unit a replica and node; the whole process group is stopped, so that no rank keeps its GPU."""
    files: dict[str, str] = {}
    for endpoint in found:
        for name, text in endpoint.files:
            files[f"{endpoint.name}/{name}"] = text
        for rank, (node, indexes) in enumerate(endpoint.parts):
            start = shlex.join(_on_node(endpoint, rank)).replace("%", "%%").replace("$", "$$")
            variables = {"CUDA_VISIBLE_DEVICES": endpoint.visible_devices(indexes), **endpoint.environment}
            lines = [
                "[Unit]",
                f"Description={endpoint.workload} on {endpoint.settings.engine.value} {endpoint.settings.version}",
                "After=network-online.target",
                "Wants=network-online.target",
                "StartLimitIntervalSec=3600",
                "StartLimitBurst=3",
                "",
                "[Service]",
                *(f"Environment={key}={value}" for key, value in variables.items()),
                *_waits(endpoint),
                f"ExecStart=/usr/bin/env {start}",
                "Restart=on-failure",
                "RestartSec=30",
                "KillMode=control-group",
                f"TimeoutStopSec={STOP_TIMEOUT_S}",
                "LimitMEMLOCK=infinity",
                "",
                "[Install]",
                "WantedBy=multi-user.target",
                "",
            ]
            files[f"{node}/tonnage-{endpoint.name}.service"] = "\n".join(lines)
    return files


def _waits(endpoint: Endpoint) -> list[str]:
    """Lines of a unit that shares its GPU: the engine before it must have taken its memory."""
    if endpoint.starts_after is None:
        return []
    url = f"http://127.0.0.1:{endpoint.starts_after[1]}/health"
    return [f"ExecStartPre=/bin/sh -c 'until curl -sf {url}; do sleep 5; done'", "TimeoutStartSec=3600"]


def slurm(found: Sequence[Endpoint]) -> dict[str, str]:
    """One batch script a replica, on the planned nodes; ``sbatch FILE`` starts it."""
    return {f"{endpoint.name}.sbatch": _batch(endpoint) for endpoint in found}


def _batch(endpoint: Endpoint) -> str:
    refuse_shared(endpoint, "Slurm")
    nodes = [node for node, _ in endpoint.parts]
    gpus, profile = len(endpoint.parts[0][1]), endpoint.slice_profile
    mpi = endpoint.settings.engine is EngineName.TENSORRT_LLM and len(nodes) > 1 and not endpoint.is_unit
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={endpoint.name}",
        f"#SBATCH --nodes={len(nodes)}",
        f"#SBATCH --nodelist={','.join(nodes)}",
        f"#SBATCH --ntasks-per-node={gpus if mpi else 1}",
        *([f"#SBATCH --partition={endpoint.partition}"] if endpoint.partition else []),
        f"#SBATCH --gres=gpu:{profile}:1" if profile else f"#SBATCH --gpus-per-node={gpus}",
        "#SBATCH --exclusive" if len(nodes) > 1 else "#SBATCH --gpu-bind=none",
        "",
        "set -euo pipefail",
        _comment(endpoint),
    ]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in endpoint.environment.items()]
    here = '"$PWD"/' + endpoint.name  # a directory that every node of a job sees
    lines += [_heredoc(name, text, here) for name, text in endpoint.files]
    command = shlex.join(endpoint.arguments).replace(endpoint.config_dir, here)
    if len(nodes) == 1:
        return "\n".join([*lines, command, ""])
    if mpi:
        return "\n".join([*lines, f"srun --mpi=pmix trtllm-llmapi-launch {command}", ""])
    start = shlex.join(endpoint.arguments_on("RANK", nodes[0])).replace("RANK", '"$SLURM_NODEID"')
    worker = "" if endpoint.is_unit else 'if [ "$SLURM_NODEID" -gt 0 ]; then set -- "$@" --headless; fi'
    script = "; ".join(part for part in (f"set -- {start}", worker, 'exec "$@"') if part)
    return "\n".join([*lines, f"srun --ntasks={len(nodes)} bash -c {shlex.quote(script)}", ""])


def refuse_shared(endpoint: Endpoint, owner: str) -> None:
    """Raise UnsupportedError for an engine on a share of a GPU: ``owner`` hands out whole ones."""
    if endpoint.sharers > 1:
        raise UnsupportedError(
            f"it shares a GPU, and {owner} hands out whole GPUs",
            field=endpoint.name,
            remedy=f"State that the nodes belong to {owner} and plan again, or export for compose or systemd.",
        )


def _on_node(endpoint: Endpoint, rank: int) -> tuple[str, ...]:
    if len(endpoint.parts) == 1:
        return endpoint.arguments
    if endpoint.is_unit:
        return endpoint.arguments_on(str(rank), endpoint.node)
    if endpoint.settings.engine is EngineName.TENSORRT_LLM:
        raise UnsupportedError(
            "TensorRT-LLM over several nodes is started by MPI",
            field=endpoint.name,
            remedy="Export it for Slurm or Kubernetes, which start all ranks.",
        )
    arguments = endpoint.arguments_on(str(rank), endpoint.node)
    return arguments if rank == 0 else (*arguments, "--headless")


def _variables(endpoint: Endpoint, indexes: tuple[int, ...]) -> str:
    found = {"CUDA_VISIBLE_DEVICES": endpoint.visible_devices(indexes), **endpoint.environment}
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in found.items())


def _comment(endpoint: Endpoint) -> str:
    engine = f"{endpoint.settings.engine.value} {endpoint.settings.version}"
    text = f"# {endpoint.name}: {endpoint.served_name} on {engine}, http://{endpoint.node}:{endpoint.port}/v1"
    if endpoint.starts_after is not None:
        text += f"; shares its GPU: start it once {endpoint.starts_after[0]} answers"
    return text


def _heredoc(name: str, text: str, directory: str) -> str:
    return f"mkdir -p {directory}\ncat > {directory}/{name} <<'TONNAGE_END'\n{text.rstrip()}\nTONNAGE_END"

"""Start script of a disaggregated unit: all instances of one node and, on the first node, what stands before them.

vLLM: ``--kv-transfer-config`` with NixlConnector, a side channel of its own for each instance, and a small proxy
(``data/pd_proxy.py``). TensorRT-LLM: ``cache_transceiver_config`` in each server's options, context servers without the
overlap scheduler, and ``trtllm-serve disaggregated``. All instances of a node run in one container, so that caches
cross NVLink: between containers the driver hands out no memory handles. When one of them ends, the unit ends.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from planner.catalog import get_model
from planner.engines.disaggregation import ROLES, Role, keeps_hybrid_flag
from planner.engines.launch import command_line, config_files
from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.errors import PlannerError
from planner.plan_types import Pools

SCRIPT = "start.sh"
PROXY = "pd_proxy.py"
INSTANCE_PORT = 8100
SIDE_CHANNEL_PORT = 5600
SERVER_START_TIMEOUT_S = 3600
REQUEST_TIMEOUT_S = 1800
_HERE = "@here@"
_FIRST_NIXL_DEFAULT = "1.2.0"  # before, TensorRT-LLM's transceiver ran over UCX by default
_PROXY_SOURCE = Path(__file__).parent / "data" / PROXY


@dataclass(frozen=True, slots=True)
class RoleInstance:
    """One instance: which role, on which of the unit's nodes, and on which of the GPUs given there, by position."""

    role: Role
    rank: int
    first: int
    gpus: int
    device: int  # index of its first GPU on the node, from which its ports follow

    @property
    def port(self) -> int:
        """Port of its HTTP server."""
        return INSTANCE_PORT + self.device

    @property
    def side_channel(self) -> int:
        """Port of vLLM's NIXL handshake; data-parallel ranks take those behind it."""
        return SIDE_CHANNEL_PORT + self.device


def instances_of(pools: Pools, parts: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[RoleInstance, ...]:
    """Both pools on the unit's (node, GPU indexes): larger instances first, none across nodes.

    Raises ValueError when they do not fill the GPUs; the placement gives just as many.
    """
    free = [0] * len(parts)
    found = []
    wanted: list[tuple[Role, int]] = []
    for role in ROLES:
        pool = pools.prefill if role == "prefill" else pools.decode
        wanted += [(role, pool.settings.gpus)] * pool.instances
    for role, gpus in sorted(wanted, key=lambda item: -item[1]):
        rank = next((i for i, (_, indexes) in enumerate(parts) if len(indexes) - free[i] >= gpus), None)
        if rank is None:
            raise ValueError(f"{gpus} GPUs of a {role} instance are left without a node")
        found.append(RoleInstance(role, rank, free[rank], gpus, parts[rank][1][free[rank]]))
        free[rank] += gpus
    return tuple(found)


def unit_files(
    pools: Pools, parts: Sequence[tuple[str, tuple[int, ...]]], model_id: str, model_path: str, served_name: str
) -> dict[str, str]:
    """Files of the unit by name; ``bash start.sh --port PORT [--rank R]`` starts the part of one node."""
    made = instances_of(pools, parts)
    engine = pools.decode.settings.engine
    files = {SCRIPT: _script(pools, parts, made, model_id, model_path, served_name)}
    if engine is EngineName.VLLM:
        return files | {PROXY: _PROXY_SOURCE.read_text(encoding="utf-8")}
    return files | {f"{role}.yaml": _options(pools, role) for role in ROLES}


def _options(pools: Pools, role: Role) -> str:
    """TensorRT-LLM's options file of one role."""
    settings = _settings(pools, role)
    (text,) = config_files(settings).values()
    options = yaml.safe_load(text)
    backend = "NIXL" if at_least(settings.version, _FIRST_NIXL_DEFAULT) else "UCX"
    # a buffer for the longest prompt: a smaller one sends it in pieces
    options["cache_transceiver_config"] = {
        "backend": backend,
        "max_tokens_in_buffer": pools.prefill.settings.max_model_len,
    }
    return yaml.safe_dump(options, sort_keys=False, default_flow_style=None, width=120)


def _settings(pools: Pools, role: Role) -> ResolvedSettings:
    return (pools.prefill if role == "prefill" else pools.decode).settings


def _script(
    pools: Pools,
    parts: Sequence[tuple[str, tuple[int, ...]]],
    made: Sequence[RoleInstance],
    model_id: str,
    model_path: str,
    served_name: str,
) -> str:
    alone = len(parts) == 1
    hosts = ["127.0.0.1"] if alone else [node for node, _ in parts]
    lines = [
        "#!/bin/bash",
        f"# {served_name}: prefill and decode on instances of their own; when one ends, all end",
        "set -euo pipefail",
        'here=$(cd "$(dirname "$0")" && pwd)',
        f"port=8000 rank=0 hosts=({' '.join(map(shlex.quote, hosts))})",
        "while [ $# -gt 0 ]; do",
        "  case $1 in",
        "    --port) port=$2 ;;",
        "    --rank) rank=$2 ;;",
        "    # a LeaderWorkerSet's pods: NAME-0.SERVICE.NAMESPACE leads NAME-0-1.SERVICE.NAMESPACE",
        '    --leader) for i in "${!hosts[@]}"; do',
        '        hosts[i]=$2; [ "$i" = 0 ] || hosts[i]=${2%%.*}-$i.${2#*.}; done ;;',
        '    *) echo "unknown argument $1" >&2; exit 2 ;;',
        "  esac",
        "  shift 2",
        "done",
        f'IFS=, read -ra gpus <<< "${{CUDA_VISIBLE_DEVICES:-{",".join(map(str, range(len(parts[0][1]))))}}}"',
        'pick() { local IFS=,; echo "${gpus[*]:$1:$2}"; }',
        "pids=()",
        "trap 'kill \"${pids[@]}\" 2>/dev/null || true; wait' EXIT",
        "trap 'exit 143' TERM INT",
    ]
    if not alone:
        lines.append("own_address=$(hostname -I | cut -d' ' -f1)")
    for item in made:
        lines += ["", f"# {item.role}, {item.gpus} GPUs from position {item.first}"]
        command = _command(pools, item, model_id, model_path, served_name, alone=alone)
        lines.append(f'if [ "$rank" = {item.rank} ]; then {command} & pids+=($!); fi')
    lines += ["", "# what clients talk to", 'if [ "$rank" = 0 ]; then', *_front(pools, made), "fi"]
    return "\n".join([*lines, "", "wait -n || true", "exit 1", ""])


def _command(pools: Pools, item: RoleInstance, model_id: str, model_path: str, served_name: str, *, alone: bool) -> str:
    settings = _settings(pools, item.role)
    host = "127.0.0.1" if alone else "0.0.0.0"  # noqa: S104 - the proxy on the first node must reach it
    arguments = command_line(settings, model_path, served_name, item.port, host=host, config_dir=_HERE)
    variables = [f"CUDA_VISIBLE_DEVICES=$(pick {item.first} {item.gpus})"]
    if settings.engine is EngineName.VLLM:
        transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
        if _hybrid_flag(model_id, settings):
            arguments.append("--no-disable-hybrid-kv-cache-manager")
        variables.append(f"VLLM_NIXL_SIDE_CHANNEL_PORT={item.side_channel}")
        if not alone:
            variables.append('VLLM_NIXL_SIDE_CHANNEL_HOST="$own_address"')
        return " ".join([*variables, shlex.join(arguments)])
    arguments[-1] = f"{_HERE}/{item.role}.yaml"
    return " ".join([*variables, shlex.join(arguments).replace(f"{_HERE}/", '"$here"/')])


def _hybrid_flag(model_id: str, settings: ResolvedSettings) -> bool:
    try:
        return keeps_hybrid_flag(get_model(model_id), settings)
    except PlannerError:
        return False


def _front(pools: Pools, made: Sequence[RoleInstance]) -> list[str]:
    """Lines that start what stands before the instances, with the addresses of all of them."""
    urls = {role: [f"${{hosts[{item.rank}]}}:{item.port}" for item in made if item.role == role] for role in ROLES}
    if pools.decode.settings.engine is EngineName.VLLM:
        given = " ".join(f"--{role} " + " ".join(f'"http://{url}"' for url in urls[role]) for role in ROLES)
        return [f'  python3 "$here"/{PROXY} --port "$port" {given} &', "  pids+=($!)"]
    lines = ["  config=$(mktemp --suffix=.yaml)", '  cat > "$config" <<TONNAGE_UNIT']
    lines += ["hostname: 0.0.0.0", "port: $port", "backend: pytorch"]
    servers: tuple[tuple[str, Role], ...] = (("context_servers", "prefill"), ("generation_servers", "decode"))
    for key, role in servers:
        lines += [f"{key}:", f"  num_instances: {len(urls[role])}", "  urls:"]
        lines += [f'    - "{url}"' for url in urls[role]]
    limits = f"-t {SERVER_START_TIMEOUT_S} -r {REQUEST_TIMEOUT_S}"
    return [*lines, "TONNAGE_UNIT", f'  trtllm-serve disaggregated -c "$config" {limits} &', "  pids+=($!)"]

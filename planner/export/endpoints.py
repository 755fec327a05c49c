"""The engine processes of a plan: one per replica, with its command line, files, GPUs and address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.catalog.models import model_name
from planner.engines.launch import command_line, config_files
from planner.engines.types import EngineName, ResolvedSettings
from planner.engines.versions import at_least
from planner.errors import UnsupportedError
from planner.export.unit import SCRIPT, unit_files
from planner.plan_types import Placement, PlanNode, PlanRequest, PlanResult
from planner.recommend.router import endpoint_port, endpoint_weights

MASTER_PORT = 29501
READY_TIMEOUT_S = 1800  # large checkpoints and a cold compile cache take more than the engine's own 600 s
CONFIG_DIR = "/etc/tonnage"
MIG_UUID_SINCE = "0.24"  # up to 0.22 vLLM reads every entry of CUDA_VISIBLE_DEVICES as a number (its issue 41848)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica. ``parts``: (node, GPU indexes); the first node serves HTTP on ``port``.

    ``arguments`` start the process on the first node; a replica over several nodes needs ``arguments_on`` for each.
    """

    name: str
    workload: str
    settings: ResolvedSettings
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    port: int
    served_name: str
    arguments: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    adapters_at_run_time: bool
    owner: str = "none"  # orchestrator of its nodes
    partition: str = ""
    sharers: int = 1
    slice_profile: str = ""
    slice_uuid: str = ""
    starts_after: tuple[str, int] | None = None  # (name, port) of the engine on the same GPU that must answer first
    is_unit: bool = False  # prefill and decode pools: a start script on each node, see ``unit``
    weight: int = 1  # among the replicas of its workload, in a router's configuration
    part: int = 0  # of a mix, which of its configurations, from 1; 0: all replicas are alike

    @property
    def node(self) -> str:
        """Node that answers HTTP."""
        return self.parts[0][0]

    @property
    def config_dir(self) -> str:
        """Where the command line expects ``files``."""
        return f"{CONFIG_DIR}/{self.name}"

    @property
    def image(self) -> str:
        """Container image of the engine in the planned version."""
        if self.settings.engine is EngineName.VLLM:
            return f"vllm/vllm-openai:v{self.settings.version}"
        return f"nvcr.io/nvidia/tensorrt-llm/release:{self.settings.version}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the server needs beside the visible devices."""
        if self.settings.engine is not EngineName.VLLM:
            return {"TLLM_LOG_LEVEL": "INFO"}
        found = {"VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S)}
        if self.adapters_at_run_time:
            found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        return found

    def visible_devices(self, indexes: tuple[int, ...]) -> str:
        """What CUDA_VISIBLE_DEVICES holds on a host: GPU indexes, or the UUID of a slice.

        Raises UnsupportedError for a slice without UUID, or a vLLM that cannot read one.
        """
        if not self.slice_profile:
            return ",".join(map(str, indexes))
        uuid = self.device_id(indexes)
        if self.settings.engine is EngineName.VLLM and not at_least(self.settings.version, MIG_UUID_SINCE):
            raise UnsupportedError(
                f"vLLM {self.settings.version} does not read the UUID of a MIG slice",
                field=self.name,
                remedy=f"Plan vLLM {MIG_UUID_SINCE} or newer, or use compose: a container sees the slice alone.",
            )
        return uuid

    def device_id(self, indexes: tuple[int, ...]) -> str:
        """What a container runtime calls its devices: the UUID of a slice, else GPU indexes."""
        if not self.slice_profile:
            return ",".join(map(str, indexes))
        if not self.slice_uuid:
            raise UnsupportedError(
                f"the {self.slice_profile} slice on {self.node} has no UUID",
                field=self.name,
                remedy="Discover the node, or enter the UUID that nvidia-smi -L prints.",
            )
        return self.slice_uuid

    def arguments_on(self, rank: str, master: str) -> tuple[str, ...]:
        """Arguments on node ``rank`` of a replica over several nodes; ``rank`` may be a shell variable.

        vLLM's own, or those of a unit's start script, which knows its nodes.
        """
        if self.is_unit:
            return (*self.arguments, "--rank", rank)
        many = ("--nnodes", str(len(self.parts)), "--node-rank", rank)
        return (*self.arguments, *many, "--master-addr", master, "--master-port", str(MASTER_PORT))


def endpoints(request: PlanRequest, result: PlanResult, model_root: str = "") -> tuple[Endpoint, ...]:
    """All replicas of ``result`` in a stable order. ``model_root`` is where checkpoints lie as <root>/<model id>.

    Empty ``model_root``: the engine resolves the model id itself (a hub or its cache).
    """
    by_id = {candidate.id: candidate for candidate in result.candidates}
    workloads = {workload.name: workload for workload in request.workloads}
    groups: dict[tuple[str, str, int], list[Placement]] = {}
    for placement in result.placements:
        groups.setdefault((placement.workload, placement.candidate_id, placement.replica), []).append(placement)
    nodes = {node.name: node for node in (*request.nodes, *result.purchased_nodes)}
    weights = endpoint_weights(result.candidates, result.mixes)
    numbers = {part.candidate_id: i for mix in result.mixes if mix.placed for i, part in enumerate(mix.parts, start=1)}
    found: list[Endpoint] = []
    counts: dict[str, int] = {}
    last_on: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
    for (name, candidate_id, _), parts in sorted(groups.items()):
        settings = by_id[candidate_id].settings
        workload = workloads[name]
        if settings is None:
            continue
        counts[name] = counts.get(name, 0) + 1
        model_id = model_name(workload.model)
        model = model_id if not model_root else f"{model_root.rstrip('/')}/{model_id}"
        port = endpoint_port(parts[0])
        label = safe_name(f"{name}-{counts[name]}")
        directory = f"{CONFIG_DIR}/{label}"
        first = parts[0]
        node: PlanNode | None = nodes.get(first.node)
        here = first.node, first.gpu_indexes
        everywhere = "0.0.0.0"  # noqa: S104 - the router on another host must reach it
        where = tuple((part.node, part.gpu_indexes) for part in parts)
        pools = by_id[candidate_id].disagg
        if pools is None:
            arguments = command_line(settings, model, model_id, port, host=everywhere, config_dir=directory)
            files = config_files(settings)
        else:
            arguments = ["bash", f"{directory}/{SCRIPT}", "--port", str(port)]
            files = unit_files(pools, where, model_id, model, model_id)
        found.append(
            Endpoint(
                name=label,
                workload=name,
                settings=settings,
                parts=where,
                port=port,
                served_name=model_id,
                arguments=tuple(arguments),
                files=tuple(files.items()),
                adapters_at_run_time=settings.max_loras > 0,
                owner=node.orchestrator if node else "none",
                partition=node.partition if node else "",
                sharers=first.sharers,
                slice_profile=first.slice_profile,
                slice_uuid=first.slice_uuid,
                starts_after=last_on.get(here) if first.sharers > 1 else None,
                is_unit=pools is not None,
                weight=weights[candidate_id],
                part=numbers.get(candidate_id, 0),
            )
        )
        if first.sharers > 1:
            last_on[here] = label, port
    return tuple(found)


def safe_name(text: str) -> str:
    """A name that DNS, file systems and unit files accept: lower case letters, digits and dashes, at most 50."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name[:50].rstrip("-") or "workload"

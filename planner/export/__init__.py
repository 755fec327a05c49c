"""Deployment files of a plan, for the stated engine versions."""

from __future__ import annotations

from planner.errors import InputError
from planner.export.endpoints import Endpoint, endpoints
from planner.export.kubernetes import kubernetes
from planner.export.scripts import commands, compose, slurm, systemd
from planner.plan_types import PlanRequest, PlanResult

TARGETS = ("commands", "compose", "kubernetes", "slurm", "systemd", "router")

__all__ = ["TARGETS", "Endpoint", "deployment_files", "endpoints"]


def deployment_files(
    request: PlanRequest, result: PlanResult, target: str, *, model_root: str = "", namespace: str = "default"
) -> dict[str, str]:
    """Files by relative path that start the plan on ``target`` (one of TARGETS).

    ``model_root``: directory of the checkpoints as <root>/<model id>; Kubernetes always mounts them at /models. Raises
    InputError for another target and UnsupportedError for a replica that the target cannot start.
    """
    if target == "router":
        return {"config.yaml": result.router_config}
    if target == "kubernetes":
        return kubernetes(endpoints(request, result, model_root or "/models"), namespace=namespace)
    found = endpoints(request, result, model_root)
    if target == "compose":
        return compose(found, model_root)
    if target == "commands":
        return commands(found)
    if target == "systemd":
        return systemd(found)
    if target == "slurm":
        return slurm(found)
    raise InputError("unknown target", field="target", value=target, remedy=f"Use one of: {', '.join(TARGETS)}.")

"""Deployment files of a plan, for the stated engine versions."""

from __future__ import annotations

import re
from collections.abc import Collection

from planner.errors import InputError
from planner.export.endpoints import Endpoint, endpoints
from planner.export.kubernetes import kubernetes
from planner.export.scripts import commands, compose, slurm, systemd
from planner.plan_types import PlanRequest, PlanResult

TARGETS = ("commands", "compose", "kubernetes", "slurm", "systemd", "router", "owners")
LEFT_OUT = "LEFT-OUT.txt"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OWNED_BY = {"kubernetes": "kubernetes", "slurm": "slurm"}

__all__ = ["LEFT_OUT", "TARGETS", "Endpoint", "deployment_files", "endpoints"]


def deployment_files(
    request: PlanRequest, result: PlanResult, target: str, *, model_root: str = "", namespace: str = "default"
) -> dict[str, str]:
    """Files by relative path that start the plan on ``target`` (one of TARGETS).

    A replica on nodes that belong to Kubernetes or Slurm is exported as that kind alone; what ``target`` leaves out for
    that reason is named in LEFT_OUT. ``owners`` writes every replica as the owner of its nodes starts it, in a folder
    each, docker compose where there is none. ``model_root``: directory of the checkpoints as <root>/<model id>;
    Kubernetes always mounts them at /models. Raises InputError for another target, a namespace that Kubernetes refuses
    or a plan of which nothing runs there, UnsupportedError for a replica that the target cannot start.
    """
    if target not in TARGETS:
        raise InputError("unknown target", field="target", value=target, remedy=f"Use one of: {', '.join(TARGETS)}.")
    if not _NAMESPACE.fullmatch(namespace):
        raise InputError(
            "must be lower case letters, digits and dashes, at most 63", field="namespace", value=namespace
        )
    if model_root and not model_root.startswith("/"):
        raise InputError("must be an absolute path", field="model_root", value=model_root)
    if not model_root.isprintable():
        raise InputError("must be one line of text", field="model_root", value=model_root, remedy="Give it as /models.")
    if target == "router":
        return {"config.yaml": result.router_config}
    if target == "owners":
        return _by_owner(request, result, model_root, namespace)
    found = endpoints(request, result, _model_root(target, model_root))
    stated = {node.orchestrator for node in request.nodes}
    mine = [endpoint for endpoint in found if _starts(target, endpoint, stated)]
    others = [endpoint for endpoint in found if endpoint not in mine]
    if others and not mine:
        owner = _owner_words(others[0])
        raise InputError(
            "nothing of this plan runs there", field="target", value=target, remedy=f"Its nodes belong to {owner}."
        )
    files = _files(target, mine, model_root, namespace)
    if others:
        lines = [f"{item.name}: on {item.node}, which belongs to {_owner_words(item)}" for item in others]
        files[LEFT_OUT] = "\n".join([f"Not started by {target}:", *lines, ""])
    return files


def _starts(target: str, endpoint: Endpoint, stated: Collection[str]) -> bool:
    """Whether ``target`` starts ``endpoint``. Nodes without owner are anybody's as long as no node is ``target``'s."""
    wanted = _OWNED_BY.get(target, "none")
    if endpoint.owner != "none":
        return endpoint.owner == wanted
    return wanted == "none" or wanted not in stated


def _owner_words(endpoint: Endpoint) -> str:
    return {"none": "nobody: use compose, systemd or commands"}.get(endpoint.owner, endpoint.owner.capitalize())


def _model_root(target: str, model_root: str) -> str:
    return model_root or "/models" if target == "kubernetes" else model_root


def _by_owner(request: PlanRequest, result: PlanResult, model_root: str, namespace: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for owner, target in (("none", "compose"), ("kubernetes", "kubernetes"), ("slurm", "slurm")):
        found = endpoints(request, result, _model_root(target, model_root))
        mine = [endpoint for endpoint in found if endpoint.owner == owner]
        files |= {f"{target}/{name}": text for name, text in _files(target, mine, model_root, namespace).items()}
    return files


def _files(target: str, found: list[Endpoint], model_root: str, namespace: str) -> dict[str, str]:
    for endpoint in found:
        nodes = (("node", node) for node, _ in endpoint.parts)
        for field, value in (("partition", endpoint.partition), ("workload", endpoint.workload), *nodes):
            if not value.isprintable():  # a second line of a script would be a command
                raise InputError("must be one line of text", field=field, value=value, remedy="Rename it.")
    if target == "kubernetes":
        return kubernetes(found, namespace=namespace)
    if target == "compose":
        return compose(found, model_root)
    if target == "commands":
        return commands(found)
    return systemd(found) if target == "systemd" else slurm(found)

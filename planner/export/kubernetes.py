"""Kubernetes manifests: a Deployment for each replica on its planned node, a LeaderWorkerSet where it spans nodes, a
Service for each workload.

A Service spreads requests evenly. Where a workload runs on several configurations that carry different loads each of
them has a Service, and an HTTPRoute of the Gateway API deals the requests out by the planned weights
(gateway-api.sigs.k8s.io/guides/traffic-splitting).

Probes: liveness only counts after the start-up probe has passed, and that one waits longer than the engine's own
limit, so that a long load is not killed. Kubernetes picks the GPU indexes of a node itself; their number is what is
planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from planner.engines.types import EngineName
from planner.export.endpoints import READY_TIMEOUT_S, Endpoint, safe_name
from planner.export.kubernetes_mpi import mpi_pods
from planner.export.scripts import refuse_shared

PROBE_PERIOD_S = 10
STARTUP_FAILURES = (READY_TIMEOUT_S + 600) // PROBE_PERIOD_S
SHM = "16Gi"
PORT = 8000
GATEWAY = "inference"
"""The Gateway that a route of a mix attaches to; name yours so, or change ``parentRefs``."""

ROUTE_WEIGHTS = 10_000
"""What the weights of a route add up to."""


def kubernetes(found: Sequence[Endpoint], *, namespace: str = "default", model_claim: str = "models") -> dict[str, str]:
    """One file a workload. ``model_claim`` is a PersistentVolumeClaim, mounted read-only where the model path points.

    TensorRT-LLM over several nodes is started by MPI from the leader over SSH, see ``kubernetes_mpi``. Raises
    UnsupportedError for an engine on a share of a GPU: Kubernetes hands out whole ones.
    """
    by_workload: dict[str, list[dict[str, Any]]] = {}
    for endpoint in found:
        documents = by_workload.setdefault(endpoint.workload, [])
        if endpoint.files:
            data = {"kind": "ConfigMap", "apiVersion": "v1", "data": dict(endpoint.files)}
            documents.append({**data, "metadata": _metadata(endpoint, namespace)})
        documents.append(_replica(endpoint, namespace, model_claim))
    return {
        f"{safe_name(workload)}.yaml": yaml.safe_dump_all(
            [*documents, *_services(workload, [e for e in found if e.workload == workload], namespace)],
            sort_keys=False,
            width=120,
        )
        for workload, documents in by_workload.items()
    }


def _services(workload: str, replicas: Sequence[Endpoint], namespace: str) -> list[dict[str, Any]]:
    """One Service; of a mix one for each configuration, and the route that weighs them."""
    name = safe_name(workload)
    weights: dict[int, int] = {}
    for endpoint in replicas:
        weights[endpoint.part] = weights.get(endpoint.part, 0) + endpoint.weight
    if len(weights) == 1:
        return [_service(name, name, namespace, {})]
    total = sum(weights.values())
    services, backends = [], []
    for part, weight in sorted(weights.items()):
        label = f"{name}-part-{part}"
        services.append(_service(label, name, namespace, {"tonnage/part": str(part)}))
        backends.append({"name": label, "port": PORT, "weight": max(1, round(ROUTE_WEIGHTS * weight / total))})
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"parentRefs": [{"name": GATEWAY}], "rules": [{"backendRefs": backends}]},
    }
    return [*services, route]


def _service(name: str, workload: str, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"tonnage/workload": workload, "tonnage/serves": "http", **labels},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _replica(endpoint: Endpoint, namespace: str, model_claim: str) -> dict[str, Any]:
    refuse_shared(endpoint, "Kubernetes")
    metadata = _metadata(endpoint, namespace)
    labels = {"tonnage/workload": safe_name(endpoint.workload), "tonnage/replica": endpoint.name}
    if endpoint.part:
        labels["tonnage/part"] = str(endpoint.part)
    if len(endpoint.parts) == 1:
        command = _with_port(endpoint.arguments)
        pod = _pod(endpoint, command, model_claim, {"kubernetes.io/hostname": endpoint.node})
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": {"tonnage/replica": endpoint.name}},
                "template": {"metadata": {"labels": {**labels, "tonnage/serves": "http"}}, "spec": pod},
            },
        }
    if endpoint.is_unit:
        address = ("--leader", "$(LWS_LEADER_ADDRESS)")
        started = [*_with_port(endpoint.arguments_on("$(LWS_WORKER_INDEX)", endpoint.node)), *address]
        leader, worker = (_pod(endpoint, started, model_claim, {}, serves=first) for first in (True, False))
        return _group(endpoint, metadata, labels, leader, worker)
    if endpoint.settings.engine is EngineName.TENSORRT_LLM:
        leader, worker = mpi_pods(
            endpoint,
            _with_port(endpoint.arguments),
            _pod(endpoint, [], model_claim, {}),
            _pod(endpoint, [], model_claim, {}, serves=False),
        )
        return _group(endpoint, metadata, labels, leader, worker)
    arguments = endpoint.arguments_on("$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)")
    leader = _pod(endpoint, _with_port(arguments), model_claim, {})
    worker = _pod(endpoint, [*_with_port(arguments), "--headless"], model_claim, {}, serves=False)
    return _group(endpoint, metadata, labels, leader, worker)


def _group(
    endpoint: Endpoint,
    metadata: dict[str, Any],
    labels: dict[str, str],
    leader: dict[str, Any],
    worker: dict[str, Any],
) -> dict[str, Any]:
    """One pod a node, started and restarted together, kept to the planned nodes."""
    here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node for node, _ in endpoint.parts]}]
    for pod in (leader, worker):
        required = {"nodeSelectorTerms": [{"matchExpressions": here}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": len(endpoint.parts),
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": {**labels, "tonnage/serves": "http"}}, "spec": leader},
                "workerTemplate": {"metadata": {"labels": labels}, "spec": worker},
            },
        },
    }


def _pod(
    endpoint: Endpoint, command: Sequence[str], model_claim: str, node: dict[str, str], *, serves: bool = True
) -> dict[str, Any]:
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "models", "mountPath": "/models", "readOnly": True}]  # noqa: S108
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM}},
        {"name": "models", "persistentVolumeClaim": {"claimName": model_claim, "readOnly": True}},
    ]
    if endpoint.files:
        mounts.append({"name": "config", "mountPath": endpoint.config_dir})
        volumes.append({"name": "config", "configMap": {"name": endpoint.name}})
    container: dict[str, Any] = {
        "name": "engine",
        "image": endpoint.image,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in endpoint.environment.items()],
        "resources": {"limits": _devices(endpoint)},
        "volumeMounts": mounts,
    }
    if serves:
        probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": 5}
        container["ports"] = [{"name": "http", "containerPort": PORT}]
        container["startupProbe"] = {**probe, "failureThreshold": STARTUP_FAILURES}
        container["readinessProbe"] = {**probe, "failureThreshold": 3}
        container["livenessProbe"] = {**probe, "failureThreshold": 6}
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": 120,
    }
    return {"nodeSelector": node, **pod} if node else pod


def _devices(endpoint: Endpoint) -> dict[str, int]:
    """GPUs of one pod; a slice by the resource that the device plugin offers it as (MIG strategy "mixed")."""
    if endpoint.slice_profile:
        return {f"nvidia.com/mig-{endpoint.slice_profile}": 1}
    return {"nvidia.com/gpu": len(endpoint.parts[0][1])}


def _with_port(arguments: Sequence[str]) -> list[str]:
    """Every pod has its own address, so all listen on the same port."""
    found = list(arguments)
    found[found.index("--port") + 1] = str(PORT)
    return found


def _metadata(endpoint: Endpoint, namespace: str) -> dict[str, Any]:
    return {"name": endpoint.name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "tonnage"}}

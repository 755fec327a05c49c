"""TensorRT-LLM over several nodes of Kubernetes: the pods of a LeaderWorkerSet as one MPI job.

``trtllm-llmapi-launch trtllm-serve`` runs as one rank a GPU under ``mpirun`` (TensorRT-LLM documents it for Slurm and
mpirun alike; NVIDIA's Dynamo operator starts its workers the same way). The leader reaches the workers over SSH on
port 2222 with a key pair that all pods mount from the Secret ``mpi-ssh``:

    ssh-keygen -t ed25519 -N '' -f id_ed25519
    kubectl create secret generic mpi-ssh --from-file=id_ed25519 --from-file=id_ed25519.pub

The image must hold openssh-server and openssh-client, which not every release image does: the pods say so and stop.
The controller gives LWS_LEADER_ADDRESS, "<set>-0.<service>.<namespace>"; worker i is "<set>-0-i" in the same service.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from planner.export.endpoints import Endpoint

SSH_PORT = 2222
SSH_SECRET = "mpi-ssh"  # noqa: S105 - the name of a Secret
SSH_MOUNT = "/ssh-key"
DNS_TIMEOUT_S = 600
_OPTIONS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
_KEYS = [
    '[ -x /usr/sbin/sshd ] && command -v ssh >/dev/null || { echo "this image lacks openssh-server"; exit 1; }',
    'mkdir -p "$HOME/.ssh/run"',
    f'cp {SSH_MOUNT}/id_ed25519 "$HOME/.ssh/id_ed25519"',
    f'cp {SSH_MOUNT}/id_ed25519.pub "$HOME/.ssh/authorized_keys"',
    'chmod 600 "$HOME/.ssh/id_ed25519" "$HOME/.ssh/authorized_keys"',
]


def mpi_pods(
    endpoint: Endpoint, arguments: Sequence[str], leader: dict[str, Any], worker: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``leader`` and ``worker`` (pod specifications) with their commands, keys and probes for one MPI job.

    ``arguments`` are those of ``trtllm-serve`` on the leader, which is rank 0 and answers HTTP.
    """
    gpus = len(endpoint.parts[0][1])
    workers = [f'$(echo "$LWS_LEADER_ADDRESS" | sed "s/\\./-{i}./")' for i in range(1, len(endpoint.parts))]
    hosts = ",".join(f"{host}:{gpus}" for host in ("$LWS_LEADER_ADDRESS", *workers))
    waits = [
        f'host={host}; tries=0; until getent hosts "$host" && ssh -p {SSH_PORT} {_OPTIONS} "$host" true; do '
        f'tries=$((tries + 1)); [ "$tries" -lt {DNS_TIMEOUT_S // 5} ] || exit 1; sleep 5; done'
        for host in workers
    ]
    passed = " ".join(f"-x {name}" for name in ("PATH", "LD_LIBRARY_PATH", *endpoint.environment))
    launch = (
        f"exec mpirun --allow-run-as-root -np {gpus * len(endpoint.parts)} -H {hosts} "
        f'--mca plm_rsh_args "-p {SSH_PORT} {_OPTIONS}" {passed} '
        f"trtllm-llmapi-launch {shlex.join(arguments)}"
    )
    serve = [
        *_KEYS,
        'ssh-keygen -q -t ed25519 -N "" -f "$HOME/.ssh/host_key"',
        f'exec /usr/sbin/sshd -D -e -p {SSH_PORT} -h "$HOME/.ssh/host_key" -o PidFile="$HOME/.ssh/run/sshd.pid" '
        '-o StrictModes=no -o PasswordAuthentication=no -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys"',
    ]
    ready = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 10, "failureThreshold": 60}
    for pod, script in ((leader, [*_KEYS, *waits, launch]), (worker, ["mkdir -p /run/sshd", *serve])):
        container = pod["containers"][0]
        container["command"] = ["/bin/bash", "-ec", "\n".join(script)]
        container["env"] = [*container["env"], {"name": "OMPI_MCA_orte_keep_fqdn_hostnames", "value": "1"}]
        container["volumeMounts"] = [
            *container["volumeMounts"],
            {"name": "ssh-key", "mountPath": SSH_MOUNT, "readOnly": True},
        ]
        pod["volumes"] = [*pod["volumes"], {"name": "ssh-key", "secret": {"secretName": SSH_SECRET}}]
    worker["containers"][0]["readinessProbe"] = ready
    return leader, worker

"""Deployment files of a plan: they parse, name the planned GPUs, and carry the resolved settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from decimal import Decimal

import pytest
import yaml
from fleet_samples import candidate, node, request, workload

from planner.errors import InputError, UnsupportedError
from planner.export import LEFT_OUT, TARGETS, deployment_files, endpoints
from planner.export.endpoints import safe_name
from planner.plan_types import Placement, PlanResult, StrandedReport


def plan_of(made, placements, work):
    empty = StrandedReport(0, 0.0)
    asked = request([node("a"), node("b")], work)
    result = PlanResult(
        "test", "0", "optimal", Decimal(1), Decimal(1), 0.0, 0.0, tuple(made), (), tuple(placements), (), Decimal(1),
        Decimal(0), empty, empty, router_config="model_list: []\n",
    )  # fmt: skip
    return asked, result


def trt(name: str, *, gpus: int = 1, pp: int = 1):
    made = candidate(name, 1.0, engine="tensorrt_llm", gpus=gpus, pp=pp)
    settings = replace(
        made.settings,
        version="1.3.0rc20",
        gpu_memory_utilization=None,
        free_gpu_memory_fraction=0.9,
        capacity_policy="GUARANTEED_NO_EVICT",
        block_tokens=32,
    )
    return replace(made, settings=settings)


@pytest.fixture
def both():
    chat = candidate("Chat 1", 0.5, gpus=2)
    chat = replace(chat, settings=replace(chat.settings, max_loras=4))
    code = trt("code")
    placements = [
        Placement("Chat 1", chat.id, 0, "a", (0, 1)),
        Placement("Chat 1", chat.id, 1, "b", (4, 5)),
        Placement("code", code.id, 0, "a", (3,)),
    ]
    return plan_of([chat, code], placements, [workload("Chat 1"), workload("code")])


@pytest.fixture
def two_nodes():
    made = candidate("big", 1.0, gpus=16, pp=2)
    placements = [Placement("big", made.id, 0, name, tuple(range(8))) for name in ("a", "b")]
    return plan_of([made], placements, [workload("big")])


def shell_ok(text: str) -> None:
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-n"], input=text, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_endpoints_carry_settings_gpus_and_ports(both) -> None:
    found = endpoints(*both)
    assert [e.name for e in found] == ["chat-1-1", "chat-1-2", "code-1"]
    assert [e.port for e in found] == [8000, 8004, 8003]
    arguments = found[0].arguments
    assert arguments[:3] == ("vllm", "serve", "Qwen/Qwen3-8B")
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == "2"
    assert arguments[arguments.index("--max-num-seqs") + 1] == "256"
    assert found[0].image == "vllm/vllm-openai:v0.24.0"
    assert found[2].image == "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20"
    assert found[0].environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_model_root_gives_a_local_path(both) -> None:
    assert endpoints(*both, "/data/models/")[0].arguments[2] == "/data/models/Qwen/Qwen3-8B"


def test_commands_and_slurm_are_valid_shell(both, two_nodes) -> None:
    for target in ("commands", "slurm"):
        for asked, result in (both, two_nodes):
            for text in deployment_files(asked, result, target).values():
                shell_ok(text)


def test_commands_name_the_planned_gpus(both) -> None:
    files = deployment_files(*both, "commands")
    assert set(files) == {"a.sh", "b.sh"}
    assert "CUDA_VISIBLE_DEVICES=4,5 " in files["b.sh"]
    assert "llm-api.yaml" in files["a.sh"]


def test_compose_takes_whole_gpus_by_index(both) -> None:
    files = deployment_files(*both, "compose")
    document = yaml.safe_load(files["compose-a.yaml"])
    service = document["services"]["chat-1-1"]
    device = service["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["device_ids"] == ["0", "1"]
    assert service["ipc"] == "host"
    assert service["entrypoint"][:2] == ["vllm", "serve"]
    trt_service = document["services"]["code-1"]
    assert any(volume.startswith("./code-1-llm-api.yaml:/etc/tonnage/code-1/") for volume in trt_service["volumes"])
    assert yaml.safe_load(files["code-1-llm-api.yaml"])["kv_cache_config"]["tokens_per_block"] == 32


def test_kubernetes_waits_longer_than_the_engine_and_pins_the_node(both) -> None:
    """D5: liveness begins after a start-up probe that outlasts the engine's own limit."""
    files = deployment_files(*both, "kubernetes")
    documents = list(yaml.safe_load_all(files["chat-1.yaml"]))
    kinds = [document["kind"] for document in documents]
    assert kinds == ["Deployment", "Deployment", "Service"]
    pod = documents[0]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "a"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] > 1800
    alive = container["livenessProbe"]
    assert alive["httpGet"] == startup["httpGet"]
    assert alive["failureThreshold"] * alive["periodSeconds"] < 300, "seconds, since it waits for the start-up probe"
    labels = documents[0]["spec"]["template"]["metadata"]["labels"]
    assert documents[2]["spec"]["selector"].items() <= labels.items()
    assert container["command"][container["command"].index("--port") + 1] == "8000"
    config = next(iter(yaml.safe_load_all(files["code.yaml"])))
    assert config["kind"] == "ConfigMap"
    assert set(config["data"]) == {"llm-api.yaml"}


def test_replica_over_two_nodes_becomes_a_leader_worker_set(two_nodes) -> None:
    documents = list(yaml.safe_load_all(deployment_files(*two_nodes, "kubernetes")["big.yaml"]))
    template = documents[0]["spec"]["leaderWorkerTemplate"]
    assert documents[0]["kind"] == "LeaderWorkerSet"
    assert template["size"] == 2
    worker = template["workerTemplate"]["spec"]["containers"][0]["command"]
    assert worker[-1] == "--headless"
    assert worker[worker.index("--nnodes") + 1] == "2"
    assert "$(LWS_LEADER_ADDRESS)" in worker
    assert "startupProbe" not in template["workerTemplate"]["spec"]["containers"][0]


def test_slurm_starts_every_rank_on_the_planned_nodes(two_nodes) -> None:
    text = deployment_files(*two_nodes, "slurm")["big-1.sbatch"]
    assert "#SBATCH --nodelist=a,b" in text
    assert "--node-rank" in text
    assert "SLURM_NODEID" in text
    assert "--headless" in text


def test_tensorrt_llm_over_two_nodes_is_for_mpi() -> None:
    made = trt("big", gpus=16, pp=2)
    placements = [Placement("big", made.id, 0, name, tuple(range(8))) for name in ("a", "b")]
    asked, result = plan_of([made], placements, [workload("big")])
    text = deployment_files(asked, result, "slurm")["big-1.sbatch"]
    assert "srun --mpi=pmix trtllm-llmapi-launch trtllm-serve" in text
    assert "#SBATCH --ntasks-per-node=8" in text
    for target in ("compose", "systemd", "commands"):
        with pytest.raises(UnsupportedError, match="MPI"):
            deployment_files(asked, result, target)


def test_tensorrt_llm_over_two_nodes_is_one_mpi_job_on_kubernetes() -> None:
    made = trt("big", gpus=16, pp=2)
    placements = [Placement("big", made.id, 0, name, tuple(range(8))) for name in ("a", "b")]
    files = deployment_files(*plan_of([made], placements, [workload("big")]), "kubernetes", namespace="llm")
    config, group, _ = yaml.safe_load_all(files["big.yaml"])
    assert (config["kind"], group["kind"]) == ("ConfigMap", "LeaderWorkerSet")
    assert group["metadata"]["namespace"] == "llm"
    template = group["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[f"{role}Template"]["spec"] for role in ("leader", "worker"))
    script = leader["containers"][0]["command"][-1]
    shell_ok(script)
    shell_ok(worker["containers"][0]["command"][-1])
    assert "-np 16 " in script
    assert '-H $LWS_LEADER_ADDRESS:8,$(echo "$LWS_LEADER_ADDRESS" | sed "s/\\./-1./"):8' in script
    assert "trtllm-llmapi-launch trtllm-serve" in script
    assert "--port 8000" in script
    assert "sshd -D" in worker["containers"][0]["command"][-1]
    for pod in (leader, worker):
        assert any(volume.get("secret", {}).get("secretName") == "mpi-ssh" for volume in pod["volumes"])
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == ["a", "b"]
    named = "m-0.m.llm"
    done = subprocess.run(
        ["/bin/sh", "-c", 'echo "$LWS_LEADER_ADDRESS" | sed "s/\\./-1./"'],
        env={"LWS_LEADER_ADDRESS": named, "PATH": "/usr/bin:/bin"}, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "m-0-1.m.llm"


def owned(*owners: str):
    """A plan of one replica on a node of each owner."""
    made = candidate("w", 0.5)
    names = [f"n{i}" for i in range(len(owners))]
    nodes = [node(name, orchestrator=owner, partition="gpu") for name, owner in zip(names, owners, strict=True)]
    placements = [Placement("w", made.id, i, name, (0,)) for i, name in enumerate(names)]
    _, result = plan_of([made], placements, [workload("w")])
    return request(nodes, [workload("w")]), result


def test_each_replica_is_exported_as_the_owner_of_its_node_starts_it() -> None:
    asked, result = owned("none", "kubernetes", "slurm")
    files = deployment_files(asked, result, "kubernetes")
    assert files["w.yaml"].count("kind: Deployment") == 1
    assert "kubernetes.io/hostname: n1" in files["w.yaml"]
    assert "w-1: on n0, which belongs to nobody" in files[LEFT_OUT]
    assert "w-3: on n2, which belongs to Slurm" in files[LEFT_OUT]
    files = deployment_files(asked, result, "slurm")
    assert set(files) == {"w-3.sbatch", LEFT_OUT}
    assert "#SBATCH --partition=gpu" in files["w-3.sbatch"]
    assert set(deployment_files(asked, result, "compose")) == {"compose-n0.yaml", LEFT_OUT}
    assert set(deployment_files(asked, result, "owners")) == {
        "compose/compose-n0.yaml", "kubernetes/w.yaml", "slurm/w-3.sbatch",
    }  # fmt: skip


def test_target_that_starts_nothing_of_a_plan_says_whose_the_nodes_are() -> None:
    asked, result = owned("slurm")
    with pytest.raises(InputError, match=r"nothing of this plan runs there.*belong to Slurm"):
        deployment_files(asked, result, "compose")
    for field, value in (("namespace", "Not_Good"), ("model_root", "relative/path"), ("model_root", "/m\nrun: x")):
        with pytest.raises(InputError) as caught:
            deployment_files(asked, result, "slurm", **{field: value})
        assert caught.value.field == field


def sliced(uuid: str = "MIG-1234", version: str = "0.24.0"):
    made = candidate("w", 1.0, gpu="H100-SXM5-80GB-MIG-1g.10gb")
    made = replace(made, settings=replace(made.settings, version=version))
    where = {"slice_profile": "1g.10gb", "slice_index": 2, "slice_uuid": uuid}
    return plan_of([made], [Placement("w", made.id, 0, "a", (0,), **where)], [workload("w")])


def test_engine_on_a_slice_sees_that_slice_alone() -> None:
    assert endpoints(*sliced())[0].port == 9002
    assert "CUDA_VISIBLE_DEVICES=MIG-1234 " in deployment_files(*sliced(), "commands")["a.sh"]
    assert (
        "Environment=CUDA_VISIBLE_DEVICES=MIG-1234" in deployment_files(*sliced(), "systemd")["a/tonnage-w-1.service"]
    )
    service = yaml.safe_load(deployment_files(*sliced(), "compose")["compose-a.yaml"])["services"]["w-1"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["MIG-1234"]
    pod = next(iter(yaml.safe_load_all(deployment_files(*sliced(), "kubernetes")["w.yaml"])))["spec"]["template"][
        "spec"
    ]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": 1}
    assert "#SBATCH --gres=gpu:1g.10gb:1" in deployment_files(*sliced(), "slurm")["w-1.sbatch"]


def test_slice_that_an_engine_cannot_be_pointed_at_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has no UUID"):
        deployment_files(*sliced(uuid=""), "compose")
    with pytest.raises(UnsupportedError, match=r"vLLM 0\.22\.0 does not read the UUID"):
        deployment_files(*sliced(version="0.22.0"), "systemd")
    assert deployment_files(*sliced(version="0.22.0"), "compose")


def test_engines_that_share_a_gpu_carry_their_share_and_start_one_after_the_other() -> None:
    made = []
    for name in ("one", "two"):
        each = candidate(name, 1.0, suffix="s2", sharers=2)
        made.append(replace(each, settings=replace(each.settings, gpu_memory_utilization=0.46)))
    placements = [Placement(c.workload, c.id, 0, "a", (3,), 2, slot) for slot, c in enumerate(made)]
    plan = plan_of(made, placements, [workload("one"), workload("two")])
    services = yaml.safe_load(deployment_files(*plan, "compose")["compose-a.yaml"])["services"]
    for service in services.values():
        arguments = service["entrypoint"]
        assert arguments[arguments.index("--gpu-memory-utilization") + 1] == "0.46"
    assert services["two-1"]["depends_on"] == {"one-1": {"condition": "service_healthy"}}
    assert {e.port for e in endpoints(*plan)} == {10024, 10025}
    unit = deployment_files(*plan, "systemd")["a/tonnage-two-1.service"]
    assert "until curl -sf http://127.0.0.1:10024/health" in unit
    assert "start it once one-1 answers" in deployment_files(*plan, "commands")["a.sh"]
    for target in ("kubernetes", "slurm"):
        with pytest.raises(UnsupportedError, match="hands out whole GPUs"):
            deployment_files(*plan, target)


def test_systemd_stops_the_whole_group(both) -> None:
    files = deployment_files(*both, "systemd")
    unit = files["a/tonnage-chat-1-1.service"]
    assert "KillMode=control-group" in unit
    assert "Environment=CUDA_VISIBLE_DEVICES=0,1" in unit
    assert unit.count("ExecStart=") == 1
    assert "/etc/tonnage/code-1/llm-api.yaml" in files["a/tonnage-code-1.service"]


@pytest.mark.parametrize("target", ["commands", "compose", "kubernetes", "slurm", "systemd"])
def test_a_stated_size_of_vllms_pool_reaches_every_target(both, target: str) -> None:
    """100,000 tokens in blocks of 16: the engine counts blocks, and their size is said too."""
    asked, result = both
    chat = result.candidates[0]
    limited = replace(chat, settings=replace(chat.settings, kv_cache_max_tokens=100_000))
    plain = "".join(deployment_files(asked, result, target).values())
    assert "--num-gpu-blocks-override" not in plain
    files = deployment_files(asked, replace(result, candidates=(limited, *result.candidates[1:])), target)
    words = re.sub(r"[\s,\"'\\]+", " ", "".join(files.values()).replace("\n- ", " "))
    assert "--num-gpu-blocks-override 6250" in words or "--num-gpu-blocks-override - 6250" in words
    assert "--block-size 16" in words or "--block-size - 16" in words


def test_every_target_answers_and_others_are_refused(both) -> None:
    for target in TARGETS:
        assert deployment_files(*both, target)
    with pytest.raises(InputError, match="unknown target"):
        deployment_files(*both, "windows")


def test_names_are_safe() -> None:
    assert safe_name("Team A: chat/γ") == "team-a-chat"
    assert safe_name("***") == "workload"
    assert len(safe_name("x" * 80)) == 50


@pytest.mark.parametrize("target", ["commands", "compose", "slurm", "systemd", "kubernetes"])
def test_a_second_line_in_a_partition_reaches_no_script(both, target: str) -> None:
    asked, result = both
    nodes = tuple(replace(node, partition="gpu\nrm -rf /") for node in asked.nodes)
    with pytest.raises(InputError, match="one line") as caught:
        deployment_files(replace(asked, nodes=nodes), result, target)
    assert caught.value.field == "partition"

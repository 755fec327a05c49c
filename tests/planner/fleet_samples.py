"""Small fleets, workloads and candidates for the tests of placement and plans."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from planner.economics.types import GpuHourPrice
from planner.engines.types import EngineName, ResolvedSettings
from planner.evidence import Evidence
from planner.memory.types import MemoryLedger
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload, PoolRole, Pools
from planner.serving.types import Lengths, Load

H100, L40S = "H100-SXM5-80GB", "L40S"


def price(usd: str) -> GpuHourPrice:
    return GpuHourPrice(Decimal(usd), "rental", "test")


def node(name: str, *, gpu: str = H100, gpus: int = 8, usd: str = "2.0000", **other) -> PlanNode:
    values = {"pool": gpu, "site": "east", "nvlink_domain": gpus, "price": price(usd)} | other
    return PlanNode(name=name, gpu=gpu, gpus=gpus, **values)


def workload(name: str, **other) -> PlanWorkload:
    values = {
        "model": "Qwen/Qwen3-8B",
        "load": Load("open", rate_per_s=10.0),
        "input_tokens": Lengths("fixed", value=1024),
        "output_tokens": Lengths("fixed", value=256),
    } | other
    return PlanWorkload(name=name, **values)


def settings(engine: str = "vllm", tp: int = 1, pp: int = 1) -> ResolvedSettings:
    return ResolvedSettings(
        engine=EngineName(engine),
        version="0.24.0",
        tp=tp,
        pp=pp,
        ep=1,
        dp=1,
        precision="bf16",
        weight_only=False,
        kv_cache_dtype="bf16",
        max_model_len=8192,
        gpu_memory_utilization=0.92,
        free_gpu_memory_fraction=None,
        kv_cache_max_tokens=None,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        block_tokens=16,
        async_scheduling=True,
        enforce_eager=False,
        cuda_graph_sizes=(),
        max_loras=0,
        max_lora_rank=16,
        speculative_tokens=0,
        speculative_acceptance=None,
        mm_items_per_prompt=0,
        capacity_policy="PREEMPT_RECOMPUTE",
        trt_backend="pytorch",
    )


def candidate(
    name: str,
    share: float,
    *,
    gpus: int = 1,
    gpu: str = H100,
    engine: str = "vllm",
    pp: int = 1,
    extra: str = "0",
    **other,
) -> Candidate:
    tp = gpus // pp
    return Candidate(
        id=f"{name}/{engine}/{gpu}/tp{tp}pp{pp}ep1dp1/bf16" + other.pop("suffix", ""),
        workload=name,
        gpu=gpu,
        settings=settings(engine, tp, pp),
        status="ok",
        gpus_per_replica=gpus,
        replica_share=share,
        replica_extra_usd_per_hour=Decimal(extra),
        max_nvlink_domain_needed=tp,
        **other,
    )


def request(nodes, workloads, **other) -> PlanRequest:
    return PlanRequest(name="test", nodes=tuple(nodes), workloads=tuple(workloads), **other)


def unit_candidate(
    name: str,
    share: float,
    *,
    prefill: tuple[int, int] = (2, 2),
    decode: tuple[int, int] = (1, 4),
    engine: str = "vllm",
    version: str = "0.24.0",
    link: str = "nvlink",
) -> Candidate:
    """A candidate with pools of (instances, TP); ``settings`` are the decode role's."""
    roles = []
    for count, tp in (prefill, decode):
        made = replace(settings(engine, tp), version=version, origin={"block_tokens": "user"}, block_tokens=64)
        if engine == "tensorrt_llm":
            made = replace(made, gpu_memory_utilization=None, free_gpu_memory_fraction=0.9, block_tokens=32)
            made = replace(made, capacity_policy="GUARANTEED_NO_EVICT")
        roles.append(PoolRole(made, fitting_memory(), count, 0.5, Decimal("100.00"), Decimal("0.1")))
    roles[0] = replace(roles[0], settings=replace(roles[0].settings, async_scheduling=engine == "vllm"))
    gpus = sum(role.gpus for role in roles)
    shape = "-".join(f"{count}xtp{tp}pp1ep1dp1" for count, tp in (prefill, decode))
    return Candidate(
        id=f"{name}/{engine}/{H100}/{shape}/bf16",
        workload=name,
        gpu=H100,
        settings=roles[1].settings,
        status="ok",
        gpus_per_replica=gpus,
        replica_share=share,
        max_nvlink_domain_needed=gpus if link == "nvlink" else max(prefill[1], decode[1]),
        disagg=Pools(roles[0], roles[1], link, 450.0, 30.0),
    )


def fitting_memory() -> MemoryLedger:
    """A ledger of a model that fits."""
    return MemoryLedger(
        80.0, 73.6, 16.0, 2.0, 1.0, 1.0, 0.0, 50.0, 1000, 64, 64000, 1e5, 0.0, 8.0, 60000, True, (), "", 40.0,
        Evidence.CALIBRATED,
    )  # fmt: skip

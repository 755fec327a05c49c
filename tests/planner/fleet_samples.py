"""Small fleets, workloads and candidates for the tests of placement and plans."""

from __future__ import annotations

from decimal import Decimal

from planner.economics.types import GpuHourPrice
from planner.engines.types import EngineName, ResolvedSettings
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload
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

"""Place 60 workloads of about 30 candidates each on a real 1,213-node, 6,212-GPU inventory; compare with simpler rules.

``python -m benchmarks speed place [--seed N] [--time-limit-s S]``. Candidates are synthetic: rates follow
memory bandwidth, GPU memory and a tensor-parallel efficiency, drawn from a fixed seed, so that the figure measures the
placement and not the performance model. The target: within 1 % of the bound in at most 60 s on two cores.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from decimal import Decimal
from pathlib import Path

from planner.economics.types import GpuHourPrice
from planner.engines.types import EngineName, ResolvedSettings
from planner.placement.solver import PlacementResult, solve
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload
from planner.serving.types import Lengths, Load

DATA = Path(__file__).resolve().parents[1] / "data" / "clusters" / "openb_gpu_nodes.csv"
GPU_OF_MODEL = {
    "A10": "A10",
    "T4": "T4",
    "V100M16": "V100-SXM2-16GB",
    "V100M32": "V100-SXM3-32GB",
    "P100": "V100-PCIe",  # not in the catalogue: the nearest younger card
    "G2": "A100-SXM4-80GB",  # undisclosed: assumed
    "G3": "H100-SXM5-80GB",  # undisclosed: assumed
}
# GPU -> (GiB, GB/s, USD per GPU-hour): published cloud prices or, for T4 and V100, about their level
FACTS = {
    "A10": (22.0, 600, "0.75"),
    "T4": (14.7, 320, "0.35"),
    "V100-SXM2-16GB": (15.8, 900, "0.55"),
    "V100-SXM3-32GB": (31.7, 900, "0.80"),
    "V100-PCIe": (15.8, 900, "0.50"),
    "A100-SXM4-80GB": (79.2, 2039, "1.50"),
    "H100-SXM5-80GB": (79.2, 3350, "2.50"),
}
MODELS_GIB = (6.0, 15.0, 28.0, 61.0, 132.0, 218.0)  # bf16 weights of 3B to 117B models
TRT_LLM_GPUS = ("A100-SXM4-80GB", "H100-SXM5-80GB")


def nodes() -> tuple[PlanNode, ...]:
    """The inventory as plan nodes, one pool per GPU type and node size."""
    found = []
    with DATA.open(newline="") as file:
        for row in csv.DictReader(file):
            gpu = GPU_OF_MODEL[row["model"]]
            price = GpuHourPrice(Decimal(FACTS[gpu][2]), "catalogue", "benchmark")
            count = int(row["gpu"])
            domain = count if "SXM" in gpu else 1
            found.append(PlanNode(row["sn"], f"{gpu} x{count}", "cluster", gpu, count, domain, price))
    return tuple(found)


def workloads(count: int, rng: random.Random) -> tuple[PlanWorkload, ...]:
    """Workloads of mixed size and priority; a third wants a spare replica."""
    return tuple(
        PlanWorkload(
            name=f"workload {i:02d}",
            model=f"synthetic {i % len(MODELS_GIB)}",
            load=Load("open", rate_per_s=10 ** rng.uniform(0.3, 2.8)),
            input_tokens=Lengths("fixed", value=1024),
            output_tokens=Lengths("fixed", value=256),
            priority=rng.choice((50, 100, 200)),
            n_plus_1=i % 3 == 0,
        )
        for i in range(count)
    )


def candidates(items: tuple[PlanWorkload, ...], rng: random.Random) -> tuple[Candidate, ...]:
    """About 30 candidates a workload: engines x GPU types x precisions x tensor-parallel sizes that fit the memory."""
    found = []
    for number, workload in enumerate(items):
        weights = MODELS_GIB[number % len(MODELS_GIB)]
        for gpu, (memory, bandwidth, _) in FACTS.items():
            for engine in ("vllm", "tensorrt_llm"):
                if engine == "tensorrt_llm" and gpu not in TRT_LLM_GPUS:
                    continue
                for precision, width in (("bf16", 1.0), ("int4", 0.28)):
                    for tp in (1, 2, 4, 8):
                        share_of_memory = weights * width / tp / memory
                        if share_of_memory > 0.8 or share_of_memory < 0.02 or (tp == 8 and gpu in ("A10", "T4")):
                            continue
                        rate = 0.9 * bandwidth / weights / width**0.6 * tp**0.85 * (1 - share_of_memory)
                        rate *= rng.uniform(0.85, 1.15) / 25
                        found.append(_candidate(workload, engine, gpu, precision, tp, rate))
    return tuple(found)


def _candidate(workload: PlanWorkload, engine: str, gpu: str, precision: str, tp: int, rate: float) -> Candidate:
    settings = ResolvedSettings(
        engine=EngineName(engine), version="", tp=tp, pp=1, ep=1, dp=1, precision=precision, weight_only=False,
        kv_cache_dtype="bf16", max_model_len=8192, gpu_memory_utilization=None, free_gpu_memory_fraction=None,
        kv_cache_max_tokens=None, max_num_seqs=256, max_num_batched_tokens=8192, enable_chunked_prefill=True,
        enable_prefix_caching=True, block_tokens=16, async_scheduling=True, enforce_eager=False, cuda_graph_sizes=(),
        max_loras=0, max_lora_rank=16, speculative_tokens=0, speculative_acceptance=None, mm_items_per_prompt=0,
        capacity_policy="", trt_backend="pytorch",
    )  # fmt: skip
    return Candidate(
        id=f"{workload.name}/{engine}/{gpu}/tp{tp}pp1ep1dp1/{precision}",
        workload=workload.name,
        gpu=gpu,
        settings=settings,
        status="ok",
        replica_rate_per_s=rate,
        replica_share=rate / workload.load.rate_per_s,
        gpus_per_replica=tp,
        max_nvlink_domain_needed=tp,
    )


def measure(seed: int = 1, time_limit_s: float = 50.0, count: int = 60) -> dict:
    """Solve once; returns the figures."""
    rng = random.Random(seed)
    items = workloads(count, rng)
    made = candidates(items, rng)
    request = PlanRequest("openb", nodes(), items, time_limit_s=time_limit_s, seed=seed)
    began = time.perf_counter()
    result: PlacementResult = solve(request, made)
    seconds = time.perf_counter() - began
    left_out = sum(item.replicas for item in result.unplaced)
    return {
        "nodes": len(request.nodes),
        "gpus": sum(node.gpus for node in request.nodes),
        "workloads": len(items),
        "candidates": len(made),
        "status": result.status,
        "objective_usd_per_hour": str(result.objective_usd_per_hour),
        "bound_usd_per_hour": str(result.bound_usd_per_hour),
        "gap": round(result.gap, 6),
        "seconds": round(seconds, 2),
        "gpus_placed": sum(len(p.gpu_indexes) for p in result.placements),
        "replicas_left_out": left_out,
        "baselines": {
            b.name: {
                "usd_per_hour": str(b.usd_per_hour),
                "replicas_left_out": b.unplaced_replicas,
                "served_share": round(b.served_share, 4),
            }
            for b in result.baselines
        },
        "within_target": result.gap <= 0.01 and seconds <= 60,
    }


def run(argv: list[str]) -> dict:
    """Command line; prints a table and returns the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed place", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit-s", type=float, default=50.0)
    arguments = parser.parse_args(argv)
    figures = measure(arguments.seed, arguments.time_limit_s)
    print("GPU types of the inventory:", ", ".join(f"{code} as {gpu}" for code, gpu in GPU_OF_MODEL.items()))
    for key, value in figures.items():
        if key != "baselines":
            print(f"{key:24} {value}")
    for name, found in figures["baselines"].items():
        print(f"{name:24} " + ", ".join(f"{key} {value}" for key, value in found.items()))
    return figures

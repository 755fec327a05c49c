"""A plan over a fleet of two sites, built from the planner's own dataclasses, for tests of the pages.

The figures are invented but consistent with each other: parts add up, placements match the candidates.
"""

from __future__ import annotations

from decimal import Decimal

from planner.economics.types import CostBreakdown, EnergyPrice, GpuHourPrice
from planner.engines.types import EngineName, ResolvedSettings
from planner.evidence import Evidence, Interval
from planner.memory.types import MemoryLedger
from planner.plan_types import (
    Candidate,
    PlanNode,
    PlanRequest,
    PlanWorkload,
)
from planner.serving.types import Lengths, Load, Percentiles, Performance, SloTarget

PRICES = {
    "H100-SXM5-80GB": "2.40",
    "H200-SXM-141GB": "2.95",
    "L40S": "0.92",
    "MI300X": "2.10",
    "A10": "0.44",
    "B200-SXM": "4.60",
}
TOTAL_GIB = {
    "H100-SXM5-80GB": 79.2,
    "H200-SXM-141GB": 139.8,
    "L40S": 44.5,
    "MI300X": 191.7,
    "A10": 22.1,
    "B200-SXM": 178.4,
}
POOLS = (
    # pool, site, GPU, nodes, GPUs a node, NVLink domain, state
    ("h100", "Frankfurt", "H100-SXM5-80GB", 5, 8, 8, "active"),
    ("l40s", "Frankfurt", "L40S", 4, 4, 1, "active"),
    ("a10", "Frankfurt", "A10", 2, 2, 1, "active"),
    ("h200", "Oslo", "H200-SXM-141GB", 4, 8, 8, "active"),
    ("mi300x", "Oslo", "MI300X", 3, 8, 8, "active"),
    ("b200", "Oslo", "B200-SXM", 2, 8, 8, "planned"),
)


def nodes() -> tuple[PlanNode, ...]:
    """Twenty nodes of six kinds at two sites."""
    made = []
    for pool, site, gpu, count, gpus, domain, state in POOLS:
        price = GpuHourPrice(Decimal(PRICES[gpu]), "catalogue", "price catalogue")
        engines = ("vllm",) if gpu == "MI300X" else ("vllm", "tensorrt_llm")
        made += [
            PlanNode(
                name=f"{site[:3].lower()}-{pool}-{number:02d}",
                pool=pool,
                site=site,
                gpu=gpu,
                gpus=gpus,
                nvlink_domain=domain,
                price=price,
                state=state,
                allowed_engines=engines,
            )
            for number in range(1, count + 1)
        ]
    return tuple(made)


WORKLOADS = (
    PlanWorkload(
        "code-completion",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
        Load("open", rate_per_s=24.0),
        Lengths("normal", mean=1850, sd=900),
        Lengths("normal", mean=28, sd=20),
        (SloTarget("ttft", "p90", 400), SloTarget("tpot", "p90", 25)),
        kind="code",
        priority=300,
    ),
    PlanWorkload(
        "support-chat",
        "meta-llama/Llama-3.3-70B-Instruct",
        Load("open", rate_per_s=9.0, prefix_hit=0.46),
        Lengths("normal", mean=1210, sd=800),
        Lengths("normal", mean=212, sd=120),
        (SloTarget("ttft", "p90", 1000), SloTarget("tpot", "p90", 50)),
        kind="chat",
        priority=250,
    ),
    PlanWorkload(
        "agent-tools",
        "Qwen/Qwen3-32B",
        Load("open", rate_per_s=5.5, prefix_hit=0.71),
        Lengths("normal", mean=7400, sd=5200),
        Lengths("normal", mean=320, sd=260),
        (SloTarget("ttft", "p95", 3000), SloTarget("tpot", "p90", 40)),
        kind="agent",
        priority=200,
        adapters=40,
        revisions_per_month=12,
    ),
    PlanWorkload(
        "summarise-docs",
        "mistralai/Mistral-Small-24B-Instruct-2501",
        Load("open", rate_per_s=1.6),
        Lengths("uniform", low=6000, high=28000),
        Lengths("normal", mean=460, sd=120),
        (SloTarget("e2e", "p95", 30000),),
        kind="summarise",
        priority=120,
    ),
    PlanWorkload(
        "embed-search",
        "BAAI/bge-m3",
        Load("open", rate_per_s=120.0),
        Lengths("normal", mean=340, sd=160),
        Lengths("fixed", value=0),
        (SloTarget("e2e", "p99", 300),),
        kind="embed",
        priority=80,
    ),
    PlanWorkload(
        "classify-batch",
        "Qwen/Qwen2.5-7B-Instruct",
        Load("open", rate_per_s=60.0, arrival="constant"),
        Lengths("fixed", value=480),
        Lengths("fixed", value=8),
        (SloTarget("e2e", "p99", 5000),),
        kind="batch",
        priority=60,
    ),
)


def settings(engine: EngineName, tp: int, precision: str) -> ResolvedSettings:
    """Settings with defaults that such an engine would resolve."""
    vllm = engine is EngineName.VLLM
    return ResolvedSettings(
        engine=engine,
        version="0.24.0" if vllm else "1.3.0rc20",
        tp=tp,
        pp=1,
        ep=1,
        dp=1,
        precision=precision,
        weight_only=False,
        kv_cache_dtype="fp8" if precision == "fp8" else "bf16",
        max_model_len=32768,
        gpu_memory_utilization=0.9 if vllm else None,
        free_gpu_memory_fraction=None if vllm else 0.9,
        kv_cache_max_tokens=None,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        block_tokens=16 if vllm else 32,
        async_scheduling=True,
        enforce_eager=False,
        cuda_graph_sizes=(1, 2, 4, 8),
        max_loras=0,
        max_lora_rank=16,
        speculative_tokens=0,
        speculative_acceptance=None,
        mm_items_per_prompt=0,
        capacity_policy="PREEMPT_RECOMPUTE" if vllm else "GUARANTEED_NO_EVICT",
        trt_backend="pytorch",
        origin={"max_num_seqs": f"{'vLLM 0.24.0' if vllm else 'TensorRT-LLM'} default for GPUs of 70 GiB or more"},
    )


def ledger(gpu: str, weights_gib: float, engine: EngineName) -> MemoryLedger:
    """A ledger whose parts add up to the budget."""
    total = TOTAL_GIB[gpu]
    budget = total * 0.9
    activation, non_torch, graphs = 1.9, 0.9, 0.7
    kv = budget - weights_gib - activation - non_torch - graphs
    tokens = int(kv * 2**30 / 163840)
    block = 16 if engine is EngineName.VLLM else 32
    return MemoryLedger(
        total_gib=total,
        budget_gib=budget,
        weights_gib=weights_gib,
        activation_gib=activation,
        non_torch_gib=non_torch,
        graph_gib=graphs,
        lora_gib=0.0,
        kv_gib=kv,
        kv_blocks=tokens // block,
        block_tokens=block,
        kv_tokens=tokens,
        kv_bytes_per_token=163840.0,
        state_bytes_per_seq=0.0,
        max_concurrency=tokens / 32768,
        largest_model_len=tokens,
        fits=True,
        reasons=(),
        binding="",
        margin_gib=kv - 5.0,
        evidence=Evidence.CALIBRATED,
    )


def around(value: float, spread: float = 0.12) -> Interval:
    """An interval of plus or minus ``spread``."""
    return Interval(value, value * (1 - spread), value * (1 + spread))


def percentiles(mean: float) -> Percentiles:
    """A skewed distribution around a mean."""
    return Percentiles(mean, mean * 0.9, mean * 1.6, mean * 2.0, mean * 3.1)


def candidate(
    workload: PlanWorkload,
    engine: EngineName,
    gpu: str,
    tp: int,
    precision: str,
    *,
    weights_gib: float,
    replicas: int,
    ttft_ms: float,
    tpot_ms: float | None,
    rate: float,
    evidence: Evidence = Evidence.SILICON,
) -> Candidate:
    """A feasible candidate whose cost and throughput follow from its parts."""
    gpus = replicas * tp
    out = workload.output_tokens.expected
    demand = workload.load.rate_per_s
    usd_month = Decimal(PRICES[gpu]) * gpus * 730
    carried = Decimal(str(min(1.0, demand / (rate * replicas))))
    operations = Decimal("18.40") if engine is EngineName.TENSORRT_LLM else Decimal("4.10")
    parts = (
        ("GPUs, carried load", (usd_month * carried).quantize(Decimal("0.01"))),
        ("GPUs, idle head-room", (usd_month * (1 - carried)).quantize(Decimal("0.01"))),
        ("electricity", Decimal(gpus) * Decimal("41.20")),
        ("engine operations", operations),
    )
    total = sum((amount for _, amount in parts), Decimal(0))
    seconds = Decimal(730 * 3600)
    m_out = Decimal(str(demand * out)) * seconds / 1_000_000
    m_in = Decimal(str(demand * workload.input_tokens.expected)) * seconds / 1_000_000
    per_out = (total / m_out).quantize(Decimal("0.0001")) if m_out else None
    cost = CostBreakdown(
        usd_per_month=total,
        parts=parts,
        usd_per_mtok_input=(total / m_in).quantize(Decimal("0.0001")),
        usd_per_mtok_output=per_out,
        usd_per_mtok_total=(total / (m_in + m_out)).quantize(Decimal("0.0001")),
        mtok_input_per_month=m_in,
        mtok_output_per_month=m_out,
        usd_per_mtok_output_80=(per_out * Decimal("0.88"), per_out * Decimal("1.14")) if per_out else None,
        gpu_hours_per_month=Decimal(gpus * 730),
    )
    output = demand * out
    performance = Performance(
        output_tok_per_s=output,
        total_tok_per_s=output + demand * workload.input_tokens.expected,
        req_per_s=demand,
        ttft_ms=percentiles(ttft_ms),
        tpot_ms=percentiles(tpot_ms) if tpot_ms else None,
        e2e_ms=percentiles(ttft_ms + (tpot_ms or 0) * max(0, out - 1)),
        output_tok_per_s_80=around(output, 0.08),
        ttft_ms_80=around(ttft_ms, 0.18),
        tpot_ms_80=around(tpot_ms, 0.07) if tpot_ms else None,
        preemptions=0,
        kv_waste=0.031,
        mean_kv_used=0.44,
        mean_batch=21.3,
        utilisation=0.81,
        goodput_per_s=demand * 0.97,
        saturated=False,
        evidence=evidence,
    )
    return Candidate(
        id=f"{workload.name}/{engine}/{gpu}/tp{tp}pp1ep1dp1/{precision}",
        workload=workload.name,
        gpu=gpu,
        settings=settings(engine, tp, precision),
        status="ok",
        memory=ledger(gpu, weights_gib, engine),
        performance=performance,
        replica_rate_per_s=rate,
        replica_rate_80=around(rate, 0.1),
        replicas=replicas,
        gpus_per_replica=tp,
        tok_s_per_gpu=max(output, demand) / gpus,
        tok_s_per_user=1000 / tpot_ms if tpot_ms else 0.0,
        cost=cost,
        evidence=evidence,
        max_nvlink_domain_needed=tp,
    )


def refused(workload: PlanWorkload, engine: EngineName, gpu: str, status: str, reason: str) -> Candidate:
    """A candidate that cannot serve."""
    return Candidate(f"{workload.name}/{engine}/{gpu}/tp1pp1ep1dp1/bf16", workload.name, gpu, None, status, (reason,))


def plan_request() -> PlanRequest:
    """The scenario."""
    return PlanRequest("Both sites, December", nodes(), WORKLOADS, energy=EnergyPrice(Decimal("0.14")))

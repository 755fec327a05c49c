"""Reading a request of the estimate contract: every field checked, the first wrong one named."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

from planner.catalog import get_gpu
from planner.catalog.types import GpuSpec
from planner.engines import EngineName, EngineSettings
from planner.engines.precision import KV_DTYPES
from planner.engines.versions import version_key
from planner.errors import InputError, PlannerError
from planner.estimate_fields import flag, money, number, one_of, stated_flag, text, whole
from planner.estimate_load import LOAD_FIELDS, read_lengths, read_load
from planner.models.precision import PRECISIONS
from planner.models.spec import ModelSpec
from planner.serving import Lengths, Load
from planner.serving.router import ROUTERS, Router
from planner.serving.sessions import longest_prompt
from planner.steptime import Fabric
from planner.steptime.variants import accepted_drafts

__all__ = [
    "KNOWN_FIELDS",
    "LOAD_FIELDS",
    "ROLE_FIELDS",
    "PoolsQuery",
    "Query",
    "naming_role",
    "parse_pools",
    "parse_request",
]

KNOWN_FIELDS = (
    "id",
    "model",
    "gpu",
    "engine",
    "engine_version",
    "precision",
    "kv_cache_dtype",
    "tp",
    "pp",
    "ep",
    "dp",
    "max_model_len",
    "gpu_memory_utilization",
    "free_gpu_memory_fraction",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_gib",
    "used_by_others_gib",
    "network_gb_s",
    "gpus_per_node",
    "enforce_eager",
    "async_scheduling",
    "enable_prefix_caching",
    "block_tokens",
    "kv_cache_max_tokens",
    "kv_cache_max_gpu_gib",
    "max_loras",
    "max_lora_rank",
    "speculative_tokens",
    "acceptance_rate",
    "mm_items_per_prompt",
    "logprobs",
    "prompt_logprobs",
    "max_cudagraph_capture_size",
    "moe_backend",
    "even_expert_routing",
    "piecewise_cuda_graphs",
    "attention_dp_wait_iters",
    "batch_wait_iters",
    "batch_wait_tokens_ratio",
    "watermark",
    "capacity_policy",
    "trt_backend",
    "load",
    "input_tokens",
    "output_tokens",
    "prefix_hit",
    "seed",
    "usd_per_gpu_hour",
    "replicas",
    "router",
    "disagg",
)
ROLES = ("prefill", "decode")
ROLE_FIELDS = (
    "instances",
    "tp",
    "pp",
    "ep",
    "dp",
    "precision",
    "max_model_len",
    "gpu_memory_utilization",
    "free_gpu_memory_fraction",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_tokens",
    "capacity_policy",
    "enforce_eager",
    "async_scheduling",
    "enable_prefix_caching",
    "max_cudagraph_capture_size",
    "moe_backend",
)
TRT_BACKENDS = ("pytorch", "tensorrt")
CAPACITY_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
MAX_INSTANCES = 128
MAX_REPLICAS = 64
MAX_RANKS = 1024
MAX_SEQUENCES = 1_000_000
MAX_DRAFTS = 128
MAX_ADAPTERS = 10_000
MAX_ITEMS = 10_000
MAX_MEMORY_GIB = 1e5
LONGEST_SESSION = 10**9
"""Tokens of the last prompt of a session and its answer."""


@dataclass(frozen=True)
class Query:
    """A validated request. ``stated``: the fields that it states."""

    model: ModelSpec
    gpu: GpuSpec
    settings: EngineSettings
    gpu_memory_gib: float | None
    used_by_others_gib: float
    load: Load | None
    inputs: Lengths | None
    outputs: Lengths | None
    seed: int
    usd_per_gpu_hour: Decimal | None
    replicas: int = 1
    router: Router = "round_robin"
    fabric: Fabric = field(default_factory=Fabric)
    stated: frozenset[str] = frozenset()


def parse_request(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> Query:
    """Validate one request. Raises InputError (or its kinds for unknown GPUs and models) naming the field."""
    query = _query(request, find_model)
    _check_hits(query)
    return query


def _check_hits(query: Query, where: str = "") -> None:
    if query.load is not None and query.load.prefix_hit and query.settings.enable_prefix_caching is False:
        raise InputError(
            "needs the prefix cache",
            field="prefix_hit",
            value=query.load.prefix_hit,
            remedy=f"Leave out {where}enable_prefix_caching: false, or prefix_hit.",
        )


def _query(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> Query:
    unknown = sorted(set(request) - set(KNOWN_FIELDS), key=str)
    if unknown:
        raise InputError("unknown field", field=unknown[0], remedy=f"Known fields: {', '.join(KNOWN_FIELDS)}.")
    name = _engine(request)
    model = find_model(text(request, "model", required=True, remedy="Name one of the catalogue.") or "")
    gpu = get_gpu(text(request, "gpu", required=True, remedy="Name one of the catalogue.") or "")
    generates = model.task == "generate"
    settings = _settings(request, name, model)
    load = read_load(request, generates=generates)
    inputs = read_lengths(request, "input_tokens", required=load is not None)
    outputs = read_lengths(request, "output_tokens", required=load is not None and generates)
    if outputs is None and not generates:
        outputs = Lengths("fixed", value=1)  # a form that every load takes; nothing reads it
    if not generates:
        _check_one_pass(request)
    _check_sessions(request, load, inputs, outputs)
    total = number(request, "gpu_memory_gib", high=MAX_MEMORY_GIB, above=True, below=True)
    others = number(request, "used_by_others_gib", high=MAX_MEMORY_GIB) or 0.0
    available = gpu.total_gib if total is None else total
    if others > available:
        raise InputError(
            f"is more than the {available:g} GiB of the GPU",
            field="used_by_others_gib",
            value=request["used_by_others_gib"],
            remedy="State what others hold on one GPU, in GiB.",
        )
    price = request.get("usd_per_gpu_hour")
    return Query(
        model=model,
        gpu=gpu,
        settings=settings,
        gpu_memory_gib=total,
        used_by_others_gib=others,
        load=load,
        inputs=inputs,
        outputs=outputs,
        seed=whole(request, "seed", default=0, least=0) or 0,
        usd_per_gpu_hour=None if price is None else money(price),
        replicas=whole(request, "replicas", default=1, most=MAX_REPLICAS) or 1,
        router=cast(Router, one_of(request, "router", tuple(ROUTERS)) or "round_robin"),
        fabric=_fabric(request),
        stated=frozenset(key for key, value in request.items() if value is not None),
    )


def _engine(request: Mapping[str, Any]) -> EngineName:
    names = tuple(member.value for member in EngineName)
    text(request, "engine", required=True, remedy=f"Use one of: {', '.join(names)}.")
    return EngineName(one_of(request, "engine", names) or "")


def _settings(request: Mapping[str, Any], engine: EngineName, model: ModelSpec) -> EngineSettings:
    settings = EngineSettings(
        engine=engine,
        version=_version(request),
        tp=whole(request, "tp", default=1, most=MAX_RANKS) or 1,
        pp=whole(request, "pp", default=1, most=MAX_RANKS) or 1,
        ep=whole(request, "ep", default=1, most=MAX_RANKS) or 1,
        dp=whole(request, "dp", default=1, most=MAX_RANKS) or 1,
        precision=one_of(request, "precision", PRECISIONS) or "as-config",
        kv_cache_dtype=one_of(request, "kv_cache_dtype", KV_DTYPES) or "auto",
        max_model_len=whole(request, "max_model_len"),
        gpu_memory_utilization=number(request, "gpu_memory_utilization", high=1.0, above=True),
        free_gpu_memory_fraction=number(request, "free_gpu_memory_fraction", high=1.0, above=True, below=True),
        max_num_seqs=whole(request, "max_num_seqs", most=MAX_SEQUENCES),
        max_num_batched_tokens=whole(request, "max_num_batched_tokens"),
        enforce_eager=flag(request, "enforce_eager"),
        async_scheduling=stated_flag(request, "async_scheduling"),
        enable_prefix_caching=stated_flag(request, "enable_prefix_caching"),
        block_tokens=whole(request, "block_tokens"),
        kv_cache_max_tokens=whole(request, "kv_cache_max_tokens"),
        kv_cache_max_gpu_gib=number(request, "kv_cache_max_gpu_gib", high=MAX_MEMORY_GIB, above=True),
        max_loras=whole(request, "max_loras", least=0, most=MAX_ADAPTERS) or 0,
        max_lora_rank=whole(request, "max_lora_rank", default=16) or 16,
        speculative_tokens=_drafts(request),
        speculative_acceptance=_accepted(request),
        mm_items_per_prompt=whole(request, "mm_items_per_prompt", least=0, most=MAX_ITEMS) or 0,
        logprobs=whole(request, "logprobs", least=0, most=max(1, model.vocab)) or 0,
        prompt_logprobs=flag(request, "prompt_logprobs"),
        max_cudagraph_capture_size=whole(request, "max_cudagraph_capture_size"),
        moe_backend=text(request, "moe_backend"),
        even_expert_routing=flag(request, "even_expert_routing"),
        piecewise_cuda_graphs=flag(request, "piecewise_cuda_graphs"),
        attention_dp_wait_iters=whole(request, "attention_dp_wait_iters", least=0) or 0,
        batch_wait_iters=whole(request, "batch_wait_iters", least=0) or 0,
        batch_wait_tokens_ratio=number(request, "batch_wait_tokens_ratio", high=1.0) or 0.0,
        watermark=number(request, "watermark", high=1.0, below=True) or 0.0,
        capacity_policy=one_of(request, "capacity_policy", CAPACITY_POLICIES),
        trt_backend=one_of(request, "trt_backend", TRT_BACKENDS) or "pytorch",
    )
    for name, other in (
        ("batch_wait_iters", "batch_wait_tokens_ratio"),
        ("batch_wait_tokens_ratio", "batch_wait_iters"),
    ):
        if getattr(settings, name) and not getattr(settings, other):
            raise InputError(f"needs {other}", field=name, value=request[name], remedy=f"State {other} too.")
    if model.quantization.precision == "mxfp4" and settings.precision in ("fp4", "fp8"):
        # published runs call an MXFP4 checkpoint by the width of its weights or activations; there is no other one
        settings = replace(settings, precision="as-config")
    return settings


def _check_one_pass(request: Mapping[str, Any]) -> None:
    """Refuse what a model that answers in one pass has no use for, or what is not modelled of it."""
    for name, idle, remedy in (
        ("prefix_hit", 0, "Leave it out: every prompt is computed whole."),
        ("speculative_tokens", 0, "Leave it out: there are no tokens to draft."),
        ("dp", 1, "Use replicas: data-parallel ranks of such models are not modelled."),
    ):
        if request.get(name) not in (None, idle):
            raise InputError(
                "does not go with a model that answers in one pass", field=name, value=request[name], remedy=remedy
            )


def _check_sessions(
    request: Mapping[str, Any], load: Load | None, inputs: Lengths | None, outputs: Lengths | None
) -> None:
    if load is None or load.turns is None or inputs is None or outputs is None:
        return
    if load.prefix_hit:
        raise InputError(
            "comes out of the simulation when load.turns is stated",
            field="prefix_hit",
            value=request["prefix_hit"],
            remedy="Leave out prefix_hit or load.turns.",
        )
    if longest_prompt(load, inputs, outputs) + outputs.longest > LONGEST_SESSION:
        raise InputError(
            f"makes sessions of more than {LONGEST_SESSION} tokens",
            field="load.turns",
            value=request["load"]["turns"],
            remedy="State fewer turns, or shorter ones.",
        )


def _version(request: Mapping[str, Any]) -> str | None:
    version = text(request, "engine_version", remedy="Give one such as 0.24.0 or 1.3.0rc20.")
    if version is not None:
        version_key(version, "engine_version")
    return version


def _drafts(request: Mapping[str, Any]) -> int:
    return whole(request, "speculative_tokens", least=0, most=MAX_DRAFTS) or 0


def _accepted(request: Mapping[str, Any]) -> float | None:
    rate = number(request, "acceptance_rate", high=1.0)
    drafts = _drafts(request)
    if rate is None:
        return None
    if not drafts:
        raise InputError(
            "needs drafts to accept",
            field="acceptance_rate",
            value=request["acceptance_rate"],
            remedy="State speculative_tokens too.",
        )
    return accepted_drafts(rate, drafts)


def _fabric(request: Mapping[str, Any]) -> Fabric:
    network = number(request, "network_gb_s", low=1e-3, high=1e5)
    return Fabric(Fabric().network_gb_s if network is None else network, whole(request, "gpus_per_node"))


@dataclass(frozen=True)
class PoolsQuery:
    """A validated request for prefill and decode pools: query and instances of each role, and the stated link.

    ``stated``: the fields that each role sets itself.
    """

    roles: dict[str, tuple[Query, int]]
    link_gb_s: float | None
    stated: dict[str, frozenset[str]]


@contextmanager
def naming_role(role: str, stated: Container[str]) -> Iterator[None]:
    """Errors on a field that the role set itself name it as ``disagg.<role>.<field>``."""
    try:
        yield
    except PlannerError as error:
        if error.field not in stated:
            raise
        path = f"disagg.{role}.{error.field}"
        raise type(error)(error.message, field=path, value=error.value, remedy=error.remedy) from error


def parse_pools(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> PoolsQuery:
    """Validate a request with ``disagg: {prefill: {...}, decode: {...}, link_gb_s}``.

    A role may set what ``ROLE_FIELDS`` names; what it leaves out is the request's own. Raises InputError as
    ``parse_request`` does.
    """
    given = request["disagg"]
    if not isinstance(given, Mapping):
        remedy = "Such as {prefill: {tp: 1}, decode: {tp: 1}}."
        raise InputError("must be an object", field="disagg", value=given, remedy=remedy)
    unknown = sorted(set(given) - {*ROLES, "link_gb_s"}, key=str)
    if unknown:
        raise InputError("unknown field", field=f"disagg.{unknown[0]}", remedy="Use prefill, decode and link_gb_s.")
    for alone in ("replicas", "router"):
        if request.get(alone) is not None:
            remedy = "State disagg.prefill.instances and disagg.decode.instances; a proxy deals requests out in turn."
            raise InputError("does not go with disagg", field=alone, value=request[alone], remedy=remedy)
    base = {key: value for key, value in request.items() if key != "disagg"}
    roles, stated = {}, {}
    for role in ROLES:
        own = given.get(role)
        if not isinstance(own, Mapping):
            raise InputError("must be an object", field=f"disagg.{role}", value=own, remedy="Give at least {tp: 1}.")
        strange = sorted(set(own) - set(ROLE_FIELDS), key=str)
        if strange:
            known = ", ".join(ROLE_FIELDS)
            raise InputError("unknown field", field=f"disagg.{role}.{strange[0]}", remedy=f"Known fields: {known}.")
        count = whole(own, "instances", default=1, path=f"disagg.{role}.", most=MAX_INSTANCES) or 1
        settings = {key: value for key, value in own.items() if key != "instances"}
        stated[role] = frozenset(settings)
        with naming_role(role, stated[role]):
            roles[role] = _query({**base, **settings}, find_model), count
    own_cache = given["prefill"].get("enable_prefix_caching") is not None
    _check_hits(roles["prefill"][0], "disagg.prefill." if own_cache else "")
    return PoolsQuery(roles, number(given, "link_gb_s", path="disagg.", low=1e-3, high=1e5), stated)

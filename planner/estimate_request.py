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
from planner.engines.versions import version_key
from planner.errors import InputError, PlannerError
from planner.estimate_fields import flag, money, number, one_of, stated_flag, text, whole
from planner.models.spec import ModelSpec
from planner.serving import Lengths, Load
from planner.serving.router import ROUTERS, Router
from planner.steptime import Fabric
from planner.steptime.variants import accepted_drafts

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
LOAD_FIELDS = (
    "kind",
    "concurrency",
    "requests",
    "rate_per_s",
    "arrival",
    "cv",
    "on_share",
    "period_s",
    "stream_interval",
    "turns",
    "think_s",
    "shared_tokens",
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
MAX_REQUESTS = 2_000_000
MAX_TOKENS = 50_000_000
MAX_REPLICAS = 64


@dataclass(frozen=True)
class Query:
    """A validated request."""

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


def parse_request(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> Query:
    """Validate one request. Raises InputError (or its kinds for unknown GPUs and models) naming the field."""
    query = _query(request, find_model)
    _check_hits(query)
    return query


def _check_hits(query: Query) -> None:
    if query.load is not None and query.load.prefix_hit and query.settings.enable_prefix_caching is False:
        raise InputError(
            "needs the prefix cache",
            field="prefix_hit",
            value=query.load.prefix_hit,
            remedy="Leave out enable_prefix_caching: false, or prefix_hit.",
        )


def _query(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> Query:
    unknown = sorted(set(request) - set(KNOWN_FIELDS))
    if unknown:
        raise InputError("unknown field", field=unknown[0], remedy=f"Known fields: {', '.join(KNOWN_FIELDS)}.")
    engine = text(request, "engine", required=True)
    try:
        name = EngineName(engine or "")
    except ValueError:
        allowed = ", ".join(member.value for member in EngineName)
        raise InputError("unknown engine", field="engine", value=engine, remedy=f"Use one of: {allowed}.") from None
    model = find_model(text(request, "model", required=True) or "")
    gpu = get_gpu(text(request, "gpu", required=True) or "")
    settings = EngineSettings(
        engine=name,
        version=_version(request),
        tp=whole(request, "tp", default=1) or 1,
        pp=whole(request, "pp", default=1) or 1,
        ep=whole(request, "ep", default=1) or 1,
        dp=whole(request, "dp", default=1) or 1,
        precision=text(request, "precision") or "as-config",
        kv_cache_dtype=text(request, "kv_cache_dtype") or "auto",
        max_model_len=whole(request, "max_model_len"),
        gpu_memory_utilization=number(request, "gpu_memory_utilization", high=1.0),
        free_gpu_memory_fraction=number(request, "free_gpu_memory_fraction", high=1.0),
        max_num_seqs=whole(request, "max_num_seqs"),
        max_num_batched_tokens=whole(request, "max_num_batched_tokens"),
        enforce_eager=flag(request, "enforce_eager"),
        async_scheduling=stated_flag(request, "async_scheduling"),
        enable_prefix_caching=stated_flag(request, "enable_prefix_caching"),
        block_tokens=whole(request, "block_tokens"),
        kv_cache_max_tokens=whole(request, "kv_cache_max_tokens"),
        kv_cache_max_gpu_gib=number(request, "kv_cache_max_gpu_gib"),
        max_loras=whole(request, "max_loras", least=0) or 0,
        max_lora_rank=whole(request, "max_lora_rank", default=16) or 16,
        speculative_tokens=whole(request, "speculative_tokens", least=0) or 0,
        speculative_acceptance=_accepted(request),
        mm_items_per_prompt=whole(request, "mm_items_per_prompt", least=0) or 0,
        logprobs=whole(request, "logprobs", least=0) or 0,
        prompt_logprobs=flag(request, "prompt_logprobs"),
        max_cudagraph_capture_size=whole(request, "max_cudagraph_capture_size"),
        moe_backend=text(request, "moe_backend"),
        even_expert_routing=flag(request, "even_expert_routing"),
        piecewise_cuda_graphs=flag(request, "piecewise_cuda_graphs"),
        attention_dp_wait_iters=whole(request, "attention_dp_wait_iters", least=0) or 0,
        batch_wait_iters=whole(request, "batch_wait_iters", least=0) or 0,
        batch_wait_tokens_ratio=number(request, "batch_wait_tokens_ratio", high=1.0) or 0.0,
        watermark=number(request, "watermark", high=0.999) or 0.0,
        capacity_policy=one_of(request, "capacity_policy", CAPACITY_POLICIES),
        trt_backend=one_of(request, "trt_backend", TRT_BACKENDS) or "pytorch",
    )
    if model.quantization.precision == "mxfp4" and settings.precision in ("fp4", "fp8"):
        # published runs call an MXFP4 checkpoint by the width of its weights or activations; there is no other one
        settings = replace(settings, precision="as-config")
    load = _load(request)
    inputs = _lengths(request, "input_tokens", required=load is not None)
    generates = model.task == "generate"
    if not generates and load is not None and load.turns is not None:
        raise InputError("belongs to models that generate", field="load.turns", value=request["load"]["turns"])
    outputs = _lengths(request, "output_tokens", required=load is not None and generates)
    if outputs is None and not generates:
        outputs = Lengths("fixed", value=1)  # a form that every load takes; nothing reads it
    price = request.get("usd_per_gpu_hour")
    return Query(
        model=model,
        gpu=gpu,
        settings=settings,
        gpu_memory_gib=number(request, "gpu_memory_gib"),
        used_by_others_gib=number(request, "used_by_others_gib") or 0.0,
        load=load,
        inputs=inputs,
        outputs=outputs,
        seed=whole(request, "seed", default=0, least=0) or 0,
        usd_per_gpu_hour=None if price is None else money(price),
        replicas=whole(request, "replicas", default=1, most=MAX_REPLICAS) or 1,
        router=_router(request),
        fabric=_fabric(request),
    )


def _version(request: Mapping[str, Any]) -> str | None:
    version = text(request, "engine_version")
    if version is not None:
        version_key(version, "engine_version")
    return version


def _accepted(request: Mapping[str, Any]) -> float | None:
    rate = number(request, "acceptance_rate", high=1.0)
    drafts = whole(request, "speculative_tokens", least=0) or 0
    if rate is None:
        return None
    if not drafts:
        raise InputError(
            "needs drafts to accept", field="acceptance_rate", value=rate, remedy="State speculative_tokens too."
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
        raise InputError("must be an object", field="disagg", value=given)
    unknown = sorted(set(given) - {*ROLES, "link_gb_s"})
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
            raise InputError("must be an object", field=f"disagg.{role}", value=own, remedy="Say at least {tp: 1}.")
        strange = sorted(set(own) - set(ROLE_FIELDS))
        if strange:
            known = ", ".join(ROLE_FIELDS)
            raise InputError("unknown field", field=f"disagg.{role}.{strange[0]}", remedy=f"Known fields: {known}.")
        count = whole(own, "instances", default=1, path=f"disagg.{role}.", most=MAX_INSTANCES) or 1
        settings = {key: value for key, value in own.items() if key != "instances"}
        stated[role] = frozenset(settings)
        with naming_role(role, stated[role]):
            roles[role] = _query({**base, **settings}, find_model), count
    _check_hits(roles["prefill"][0])
    return PoolsQuery(roles, number(given, "link_gb_s", path="disagg.", low=1e-3, high=1e5), stated)


def _router(request: Mapping[str, Any]) -> Router:
    return cast(Router, one_of(request, "router", tuple(ROUTERS)) or "round_robin")


def _load(request: Mapping[str, Any]) -> Load | None:
    given = request.get("load")
    prefix_hit = number(request, "prefix_hit", low=0.0, high=1.0) or 0.0
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InputError("must be an object", field="load", value=given)
    unknown = sorted(set(given) - set(LOAD_FIELDS))
    if unknown:
        raise InputError("unknown field", field=f"load.{unknown[0]}", remedy=f"Known fields: {', '.join(LOAD_FIELDS)}.")
    kind = given.get("kind")
    turns = _lengths(given, "turns", required=False, path="load.")
    interval = whole(given, "stream_interval", default=1, path="load.", most=MAX_TOKENS) or 1
    load = Load(
        "offline",
        requests=whole(given, "requests", path="load.", most=MAX_REQUESTS),
        prefix_hit=prefix_hit,
        stream_interval=interval,
        turns=turns,
        think_s=number(given, "think_s", path="load.", high=1e6 - 1) or 0.0,
        shared_tokens=whole(given, "shared_tokens", path="load.", least=0, most=MAX_TOKENS) or 0,
    )
    if load.shared_tokens and turns is None:
        raise InputError("belongs to sessions", field="load.shared_tokens", remedy="State turns, or prefix_hit.")
    if kind == "closed":
        clients = whole(given, "concurrency", path="load.", most=MAX_REQUESTS)
        if clients is None:
            raise InputError("is missing", field="load.concurrency")
        return replace(load, kind="closed", concurrency=clients)
    if kind == "offline":
        if load.requests is None:
            raise InputError("is missing", field="load.requests")
        return load
    if kind == "open":
        rate = number(given, "rate_per_s", path="load.", low=0.0, high=1e6)
        if not rate:
            raise InputError("must be above 0", field="load.rate_per_s", value=rate)
        arrival = given.get("arrival", "poisson")
        if arrival not in ("poisson", "constant", "gamma", "onoff"):
            raise InputError(
                "unknown arrival", field="load.arrival", value=arrival, remedy="Use poisson, constant, gamma or onoff."
            )
        cv = number(given, "cv", path="load.", low=0.0, high=100.0)
        share = number(given, "on_share", path="load.", low=1e-6, high=1.0)
        period = number(given, "period_s", path="load.", low=1e-3, high=1e6)
        return replace(
            load,
            kind="open",
            rate_per_s=rate,
            arrival=arrival,
            cv=1.0 if cv is None else cv,
            on_share=load.on_share if share is None else share,
            period_s=load.period_s if period is None else period,
        )
    raise InputError("unknown kind", field="load.kind", value=kind, remedy="Use closed, open or offline.")


def _lengths(request: Mapping[str, Any], field: str, *, required: bool, path: str = "") -> Lengths | None:
    given = request.get(field)
    if given is None:
        if required:
            raise InputError("is missing", field=path + field)
        return None
    if isinstance(given, Mapping):
        keys = set(given)
        if keys == {"mean", "sd"}:
            mean = number(given, "mean", path=f"{path}{field}.", low=1.0, high=MAX_TOKENS)
            sd = number(given, "sd", path=f"{path}{field}.", low=0.0, high=MAX_TOKENS)
            return Lengths("normal", mean=mean or 1.0, sd=sd or 0.0)
        if keys == {"low", "high"}:
            low = whole(given, "low", path=f"{path}{field}.", most=MAX_TOKENS) or 1
            high = whole(given, "high", path=f"{path}{field}.", most=MAX_TOKENS) or 1
            if high < low:
                raise InputError("high is below low", field=path + field, value=dict(given))
            return Lengths("uniform", low=low, high=high)
        raise InputError("must be a number, {mean, sd} or {low, high}", field=path + field, value=dict(given))
    value = whole(request, field, path=path, most=MAX_TOKENS)
    return Lengths("fixed", value=value or 1)

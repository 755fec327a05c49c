"""The estimate contract: one request (a JSON object) to one answer; what ``python -m planner estimate`` runs per line.

Status: ``ok``; ``infeasible`` (supported, but does not fit: the memory terms are still given); ``unsupported`` (the
engine, GPU or data cannot serve it); ``error`` (the request itself is wrong). ``reasons`` always say why, and for
``ok`` what changed silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from planner import MODEL_VERSION
from planner.catalog import get_gpu, get_model
from planner.catalog.types import GpuSpec
from planner.economics import power_w, unit_costs
from planner.engines import EngineName, EngineSettings, ResolvedSettings, resolve, support
from planner.errors import InfeasibleError, InputError, PlannerError, UnsupportedError
from planner.evidence import Interval
from planner.memory import MemoryLedger, advise, ledger
from planner.models.spec import ModelSpec
from planner.serving import Lengths, Load, Percentiles, Performance, predict
from planner.steptime import build

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
    "enforce_eager",
    "block_tokens",
    "kv_cache_max_tokens",
    "kv_cache_max_gpu_gib",
    "max_loras",
    "max_lora_rank",
    "speculative_tokens",
    "mm_items_per_prompt",
    "logprobs",
    "prompt_logprobs",
    "capacity_policy",
    "trt_backend",
    "load",
    "input_tokens",
    "output_tokens",
    "prefix_hit",
    "seed",
    "usd_per_gpu_hour",
)
LOAD_FIELDS = ("kind", "concurrency", "requests", "rate_per_s", "arrival", "cv", "stream_interval")
MAX_REQUESTS = 2_000_000
MAX_TOKENS = 50_000_000


@dataclass(frozen=True)
class _Query:
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


def estimate(request: Mapping[str, Any], *, find_model: Callable[[str], ModelSpec] = get_model) -> dict[str, Any]:
    """Answer one request; never raises for what the request says, only for a defect of the program.

    ``find_model`` gives the model of a name and raises PlannerError. The default also reads paths: whoever answers
    requests from a network passes one that does not.
    """
    answer: dict[str, Any] = {
        "id": request.get("id") if isinstance(request, Mapping) else None,
        "status": "ok",
        "reasons": [],
        "memory": None,
        "perf": None,
        "cost": None,
        "power_w": None,
        "evidence": None,
        "model_version": MODEL_VERSION,
    }
    try:
        query = _parse(request, find_model)
        _answer(query, answer)
    except UnsupportedError as error:
        _stop(answer, "unsupported", str(error))
    except InfeasibleError as error:
        _stop(answer, "infeasible", str(error))
    except PlannerError as error:
        _stop(answer, "error", str(error))
    return answer


def estimate_lines(lines: Iterable[str]) -> Iterator[str]:
    """One JSON answer per non-empty line, in order. Raises InputError, with the line number, for what is not JSON."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON: {error}", field=f"line {number}") from None
        if isinstance(request, dict):
            answer = estimate(request)
        else:
            answer = estimate({})
            answer["reasons"] = [f"line {number}: must be a JSON object."]
        yield json.dumps(answer, allow_nan=False, separators=(",", ":"))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _stop(answer: dict[str, Any], status: str, reason: str) -> None:
    answer["status"] = status
    answer["perf"] = None
    answer["cost"] = None
    answer["power_w"] = None
    if reason not in answer["reasons"]:
        answer["reasons"].append(reason)


def _answer(query: _Query, answer: dict[str, Any]) -> None:
    able = support(query.model, query.gpu, query.settings)
    if not able.ok:
        answer["status"] = "unsupported"
        answer["reasons"] = list(able.reasons)
        return
    answer["reasons"] = list(able.warnings)
    expected = _longest(query.inputs) + _longest(query.outputs) if query.inputs and query.outputs else None
    resolved = _with_room(resolve(query.settings, query.model, query.gpu, expected_len=expected), query, answer)
    total, others = query.gpu_memory_gib, query.used_by_others_gib
    memory = ledger(query.model, query.gpu, resolved, total_gib=total, used_by_others_gib=others)
    answer["memory"] = _memory(memory)
    answer["evidence"] = memory.evidence.value
    if not memory.fits:
        _stop(answer, "infeasible", "")
        remedies = advise(query.model, query.gpu, query.settings, total_gib=total, used_by_others_gib=others)
        answer["reasons"] = [*answer["reasons"], *memory.reasons, *(remedy.sentence for remedy in remedies)]
        answer["reasons"] = [reason for reason in answer["reasons"] if reason]
        return
    if query.load is None or query.inputs is None or query.outputs is None:
        return
    step = build(query.model, query.gpu, resolved)
    performance = predict(step, query.model, resolved, memory, query.load, query.inputs, query.outputs, seed=query.seed)
    answer["perf"] = _perf(performance)
    answer["evidence"] = performance.evidence.value
    answer["reasons"].extend(note for note in step.notes if note not in answer["reasons"])
    if performance.saturated:
        answer["reasons"].append("The rate is above what the deployment carries: the queue grows without bound.")
    if query.usd_per_gpu_hour is not None:
        answer["cost"] = _cost(query.usd_per_gpu_hour * resolved.gpus, performance)
    answer["power_w"] = _power(query, resolved, memory, performance)


def _with_room(resolved: ResolvedSettings, query: _Query, answer: dict[str, Any]) -> ResolvedSettings:
    """Without chunked prefill a whole prompt must fit one step beside the running sequences, or wait for them to end.

    An unstated step limit is raised to that, as published launch scripts do.
    """
    if query.inputs is None or query.load is None or resolved.enable_chunked_prefill:
        return resolved
    if query.settings.max_num_batched_tokens is not None:
        return resolved
    beside = min(query.load.concurrency or resolved.max_num_seqs, resolved.max_num_seqs)
    needed = -(-(_longest(query.inputs) + beside) // 64) * 64
    if needed <= resolved.max_num_batched_tokens:
        return resolved
    answer["reasons"].append(
        f"max_num_batched_tokens raised from {resolved.max_num_batched_tokens} to {needed}: chunked prefill is off and"
        " the longest prompt must fit one step beside the running sequences."
    )
    origin = {**resolved.origin, "max_num_batched_tokens": "longest prompt + running sequences, chunked prefill off"}
    return replace(resolved, max_num_batched_tokens=needed, origin=origin)


def _longest(lengths: Lengths) -> int:
    if lengths.kind == "fixed":
        return lengths.value
    if lengths.kind == "uniform":
        return lengths.high
    if lengths.kind == "normal":
        return max(1, int(lengths.mean + 4.0 * lengths.sd))
    return max(lengths.samples)


def _memory(memory: MemoryLedger) -> dict[str, Any]:
    names = (
        "weights_gib", "activation_gib", "non_torch_gib", "graph_gib", "kv_gib", "kv_blocks", "block_tokens",
        "kv_tokens", "max_concurrency", "largest_model_len",
    )  # fmt: skip
    band = memory.kv_gib_80
    return {
        **{name: _rounded(getattr(memory, name)) for name in names},
        "interval80": {"kv_gib": _interval(band)},
    }


def _perf(performance: Performance) -> dict[str, Any]:
    return {
        "output_tok_per_s": _rounded(performance.output_tok_per_s),
        "total_tok_per_s": _rounded(performance.total_tok_per_s),
        "req_per_s": _rounded(performance.req_per_s),
        "ttft_ms": _percentiles(performance.ttft_ms),
        "tpot_ms": _percentiles(performance.tpot_ms),
        "e2e_ms": _percentiles(performance.e2e_ms),
        "interval80": {
            "output_tok_per_s": _interval(performance.output_tok_per_s_80),
            "ttft_ms": _interval(performance.ttft_ms_80),
            "tpot_ms": _interval(performance.tpot_ms_80),
        },
        "preemptions": performance.preemptions,
        "kv_waste": _rounded(performance.kv_waste),
        "load_region": performance.load_region,
    }


def _percentiles(value: Percentiles | None) -> dict[str, float] | None:
    if value is None:
        return None
    return {stat: _rounded(getattr(value, stat)) for stat in ("mean", "p50", "p90", "p99")}


def _interval(value: Interval | None) -> list[float] | None:
    return None if value is None else [_rounded(value.low), _rounded(value.high)]


def _rounded(value: Any) -> Any:
    """Floats to six significant digits: more would pretend, fewer would lose."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _cost(usd_per_hour: Decimal, performance: Performance) -> dict[str, Any]:
    output = performance.output_tok_per_s
    per_input, per_output, per_total = unit_costs(usd_per_hour, performance.total_tok_per_s - output, output)
    prices = {"usd_per_mtok_input": per_input, "usd_per_mtok_output": per_output, "usd_per_mtok_total": per_total}
    return {name: None if value is None else float(value) for name, value in prices.items()}


def _power(query: _Query, resolved: ResolvedSettings, memory: MemoryLedger, performance: Performance) -> float | None:
    if query.inputs is None or query.outputs is None:
        return None
    watts = power_w(
        query.gpu,
        query.model,
        weights_gib_per_gpu=memory.weights_gib,
        kv_bytes_per_token_per_gpu=memory.kv_bytes_per_token,
        gpus=resolved.gpus,
        output_tok_per_s=performance.output_tok_per_s,
        total_tok_per_s=performance.total_tok_per_s,
        mean_batch=performance.mean_batch,
        mean_context_tokens=query.inputs.expected + query.outputs.expected / 2,
    )
    return None if watts is None else _rounded(float(watts * resolved.gpus))


# ---- reading a request ----------------------------------------------------------------------------------------------


def _parse(request: Mapping[str, Any], find_model: Callable[[str], ModelSpec]) -> _Query:
    unknown = sorted(set(request) - set(KNOWN_FIELDS))
    if unknown:
        raise InputError("unknown field", field=unknown[0], remedy=f"Known fields: {', '.join(KNOWN_FIELDS)}.")
    engine = _text(request, "engine", required=True)
    try:
        name = EngineName(engine or "")
    except ValueError:
        allowed = ", ".join(member.value for member in EngineName)
        raise InputError("unknown engine", field="engine", value=engine, remedy=f"Use one of: {allowed}.") from None
    model = find_model(_text(request, "model", required=True) or "")
    gpu = get_gpu(_text(request, "gpu", required=True) or "")
    settings = EngineSettings(
        engine=name,
        version=_text(request, "engine_version"),
        tp=_whole(request, "tp", default=1) or 1,
        pp=_whole(request, "pp", default=1) or 1,
        ep=_whole(request, "ep", default=1) or 1,
        dp=_whole(request, "dp", default=1) or 1,
        precision=_text(request, "precision") or "as-config",
        kv_cache_dtype=_text(request, "kv_cache_dtype") or "auto",
        max_model_len=_whole(request, "max_model_len"),
        gpu_memory_utilization=_number(request, "gpu_memory_utilization", high=1.0),
        free_gpu_memory_fraction=_number(request, "free_gpu_memory_fraction", high=1.0),
        max_num_seqs=_whole(request, "max_num_seqs"),
        max_num_batched_tokens=_whole(request, "max_num_batched_tokens"),
        enforce_eager=_flag(request, "enforce_eager"),
        block_tokens=_whole(request, "block_tokens"),
        kv_cache_max_tokens=_whole(request, "kv_cache_max_tokens"),
        kv_cache_max_gpu_gib=_number(request, "kv_cache_max_gpu_gib"),
        max_loras=_whole(request, "max_loras", least=0) or 0,
        max_lora_rank=_whole(request, "max_lora_rank", default=16) or 16,
        speculative_tokens=_whole(request, "speculative_tokens", least=0) or 0,
        mm_items_per_prompt=_whole(request, "mm_items_per_prompt", least=0) or 0,
        logprobs=_whole(request, "logprobs", least=0) or 0,
        prompt_logprobs=_flag(request, "prompt_logprobs"),
        capacity_policy=_text(request, "capacity_policy"),
        trt_backend=_text(request, "trt_backend") or "pytorch",
    )
    if model.quantization.precision == "mxfp4" and settings.precision in ("fp4", "fp8"):
        # published runs call an MXFP4 checkpoint by the width of its weights or activations; there is no other one
        settings = replace(settings, precision="as-config")
    load = _load(request)
    inputs = _lengths(request, "input_tokens", required=load is not None)
    outputs = _lengths(request, "output_tokens", required=load is not None)
    price = request.get("usd_per_gpu_hour")
    return _Query(
        model=model,
        gpu=gpu,
        settings=settings,
        gpu_memory_gib=_number(request, "gpu_memory_gib"),
        used_by_others_gib=_number(request, "used_by_others_gib") or 0.0,
        load=load,
        inputs=inputs,
        outputs=outputs,
        seed=_whole(request, "seed", default=0, least=0) or 0,
        usd_per_gpu_hour=None if price is None else _money(price),
    )


def _load(request: Mapping[str, Any]) -> Load | None:
    given = request.get("load")
    prefix_hit = _number(request, "prefix_hit", low=0.0, high=1.0) or 0.0
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InputError("must be an object", field="load", value=given)
    unknown = sorted(set(given) - set(LOAD_FIELDS))
    if unknown:
        raise InputError("unknown field", field=f"load.{unknown[0]}", remedy=f"Known fields: {', '.join(LOAD_FIELDS)}.")
    kind = given.get("kind")
    interval = _whole(given, "stream_interval", default=1, path="load.", most=MAX_TOKENS) or 1
    requests = _whole(given, "requests", path="load.", most=MAX_REQUESTS)
    if kind == "closed":
        clients = _whole(given, "concurrency", path="load.", most=MAX_REQUESTS)
        if clients is None:
            raise InputError("is missing", field="load.concurrency")
        return Load("closed", concurrency=clients, requests=requests, prefix_hit=prefix_hit, stream_interval=interval)
    if kind == "offline":
        if requests is None:
            raise InputError("is missing", field="load.requests")
        return Load("offline", requests=requests, prefix_hit=prefix_hit, stream_interval=interval)
    if kind == "open":
        rate = _number(given, "rate_per_s", path="load.", low=0.0, high=1e6)
        if not rate:
            raise InputError("must be above 0", field="load.rate_per_s", value=rate)
        arrival = given.get("arrival", "poisson")
        if arrival not in ("poisson", "constant", "gamma"):
            raise InputError(
                "unknown arrival", field="load.arrival", value=arrival, remedy="Use poisson, constant or gamma."
            )
        cv = _number(given, "cv", path="load.", low=0.0, high=100.0)
        return Load(
            "open",
            rate_per_s=rate,
            arrival=arrival,
            cv=1.0 if cv is None else cv,
            requests=requests,
            prefix_hit=prefix_hit,
            stream_interval=interval,
        )
    raise InputError("unknown kind", field="load.kind", value=kind, remedy="Use closed, open or offline.")


def _lengths(request: Mapping[str, Any], field: str, *, required: bool) -> Lengths | None:
    given = request.get(field)
    if given is None:
        if required:
            raise InputError("is missing", field=field)
        return None
    if isinstance(given, Mapping):
        keys = set(given)
        if keys == {"mean", "sd"}:
            mean = _number(given, "mean", path=f"{field}.", low=1.0, high=MAX_TOKENS)
            sd = _number(given, "sd", path=f"{field}.", low=0.0, high=MAX_TOKENS)
            return Lengths("normal", mean=mean or 1.0, sd=sd or 0.0)
        if keys == {"low", "high"}:
            low = _whole(given, "low", path=f"{field}.", most=MAX_TOKENS) or 1
            high = _whole(given, "high", path=f"{field}.", most=MAX_TOKENS) or 1
            if high < low:
                raise InputError("high is below low", field=field, value=dict(given))
            return Lengths("uniform", low=low, high=high)
        raise InputError("must be a number, {mean, sd} or {low, high}", field=field, value=dict(given))
    value = _whole(request, field, most=MAX_TOKENS)
    return Lengths("fixed", value=value or 1)


def _text(source: Mapping[str, Any], key: str, *, required: bool = False) -> str | None:
    value = source.get(key)
    if value is None:
        if required:
            raise InputError("is missing", field=key)
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError("must be a non-empty text", field=key, value=value)
    return value.strip()


def _flag(source: Mapping[str, Any], key: str) -> bool:
    value = source.get(key, False)
    if not isinstance(value, bool):
        raise InputError("must be true or false", field=key, value=value)
    return value


def _whole(
    source: Mapping[str, Any],
    key: str,
    *,
    default: int | None = None,
    path: str = "",
    least: int = 1,
    most: int = 10**9,
) -> int | None:
    value = source.get(key)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("must be a whole number", field=path + key, value=value)
    if not least <= value <= most:
        raise InputError(f"must be between {least} and {most}", field=path + key, value=value)
    return value


def _number(
    source: Mapping[str, Any], key: str, *, path: str = "", low: float = 0.0, high: float = 1e9
) -> float | None:
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("must be a number", field=path + key, value=value)
    number = float(value)
    if not low <= number <= high:  # also refuses NaN
        raise InputError(f"must be between {low:g} and {high:g}", field=path + key, value=value)
    return number


def _money(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError("must be a number", field="usd_per_gpu_hour", value=value)
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        raise InputError("must be a number", field="usd_per_gpu_hour", value=value) from None
    if not price.is_finite() or not 0 <= price < Decimal(10) ** 6:
        raise InputError("must be between 0 and 1000000", field="usd_per_gpu_hour", value=value)
    return price

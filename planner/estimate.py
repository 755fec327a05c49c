"""The estimate contract: one request (a JSON object) to one answer; what ``python -m planner estimate`` runs per line.

Status: ``ok``; ``infeasible`` (supported, but does not fit: the memory terms are still given); ``unsupported`` (the
engine, GPU or data cannot serve it); ``error`` (the request itself is wrong). ``reasons`` always say why, and for
``ok`` what changed silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from planner import MODEL_VERSION
from planner.catalog import get_model
from planner.economics import power_w, unit_costs
from planner.engines import ResolvedSettings, resolve, support
from planner.errors import InfeasibleError, InputError, PlannerError, UnsupportedError
from planner.estimate_request import Query, parse_request
from planner.evidence import Interval
from planner.memory import MemoryLedger, advise, ledger
from planner.models.spec import ModelSpec
from planner.serving import Instance, Lengths, Percentiles, Performance, predict
from planner.steptime import build


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
        query = parse_request(request, find_model)
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
            answer = _guarded(request)
        else:
            answer = estimate({})
            answer["reasons"] = [f"line {number}: must be a JSON object."]
        yield json.dumps(answer, allow_nan=False, separators=(",", ":"))


def _guarded(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one line; a defect of the program is that line's error, so that the lines after it are still answered."""
    try:
        return estimate(request)
    except Exception as error:  # noqa: BLE001
        answer = estimate({"id": request.get("id"), "engine": ""})
        answer["reasons"] = [f"internal error, please report it: {type(error).__name__}: {error}"]
        return answer


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _stop(answer: dict[str, Any], status: str, reason: str) -> None:
    answer["status"] = status
    answer["perf"] = None
    answer["cost"] = None
    answer["power_w"] = None
    if reason not in answer["reasons"]:
        answer["reasons"].append(reason)


def _answer(query: Query, answer: dict[str, Any]) -> None:
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
    instance = Instance(query.model, resolved, memory, build(query.model, query.gpu, resolved))
    performance = predict(instance, query.load, query.inputs, query.outputs, seed=query.seed)
    answer["perf"] = _perf(performance)
    answer["evidence"] = performance.evidence.value
    answer["reasons"].extend(note for note in instance.step.notes if note not in answer["reasons"])
    if performance.saturated:
        answer["reasons"].append("The rate is above what the deployment carries: the queue grows without bound.")
    if query.usd_per_gpu_hour is not None:
        answer["cost"] = _cost(query.usd_per_gpu_hour * resolved.gpus, performance)
    answer["power_w"] = _power(query, resolved, memory, performance)


def _with_room(resolved: ResolvedSettings, query: Query, answer: dict[str, Any]) -> ResolvedSettings:
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


def _power(query: Query, resolved: ResolvedSettings, memory: MemoryLedger, performance: Performance) -> float | None:
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

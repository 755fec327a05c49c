"""The estimate contract: one request (a JSON object) to one answer; what ``python -m planner estimate`` runs per line.

Status: ``ok``; ``infeasible`` (supported, but does not fit: the memory terms are still given); ``unsupported`` (the
engine, GPU or data cannot serve it); ``error`` (the request itself is wrong). ``reasons`` always say why, and for
``ok`` what changed silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner import MODEL_VERSION
from planner.catalog import get_model
from planner.economics import power_w
from planner.engines import ResolvedSettings, resolve, support
from planner.errors import InfeasibleError, InputError, PlannerError, UnsupportedError
from planner.estimate_answer import cost_answer, memory_answer, perf_answer, rounded
from planner.estimate_disagg import answer_pools
from planner.estimate_fields import can_be_written
from planner.estimate_notes import changes_nothing, kernel_note
from planner.estimate_request import Query, parse_pools, parse_request
from planner.memory import MAY_BE_MISSING, MemoryLedger, advise, ledger, remarks_of
from planner.models.spec import ModelSpec
from planner.placement.encoder import predict_one_pass
from planner.serving import Instance, Performance, predict
from planner.serving.sessions import longest_prompt, mean_prompt
from planner.steptime import build

ANSWERS_AT_ONCE = "The model answers in one pass and generates nothing: ttft_ms and e2e_ms are the time to its answer."


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
        _check_id(answer)
        if request.get("disagg") is not None:
            answer_pools(parse_pools(request, find_model), answer)
        else:
            _answer(parse_request(request, find_model), answer)
    except UnsupportedError as error:
        _stop(answer, "unsupported", str(error))
    except InfeasibleError as error:
        _stop(answer, "infeasible", str(error))
    except PlannerError as error:
        _stop(answer, "error", str(error))
    return answer


def _check_id(answer: dict[str, Any]) -> None:
    """The answer repeats ``id``, so it must be something that JSON can say."""
    if not can_be_written(answer["id"]):
        wrong, answer["id"] = answer["id"], None
        raise InputError("holds a number that is not finite", field="id", value=wrong, remedy="Give a text.")


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
    answer["reasons"] = list(dict.fromkeys([reason, *answer["reasons"]]))  # the cause before the notes


def _answer(query: Query, answer: dict[str, Any]) -> None:
    generates = query.model.task == "generate"
    able = support(query.model, query.gpu, query.settings)
    if not able.ok:
        answer["status"] = "unsupported"
        answer["reasons"] = list(able.reasons)
        return
    answer["reasons"] = [*query.model.assumed, *able.warnings]
    expected = None
    if query.inputs and query.outputs:
        expected = _longest_prompt(query) + (query.outputs.longest if generates else 0)
    resolved = _with_room(resolve(query.settings, query.model, query.gpu, expected_len=expected), query, answer)
    total, others = query.gpu_memory_gib, query.used_by_others_gib
    memory = ledger(query.model, query.gpu, resolved, total_gib=total, used_by_others_gib=others)
    answer["memory"] = memory_answer(memory)
    answer["evidence"] = memory.evidence.value
    answer["reasons"] += [*remarks_of(resolved, memory, others), *changes_nothing(query, resolved)]
    if not memory.fits:
        notes = answer["reasons"]
        answer["status"] = "infeasible"
        remedies = advise(query.model, query.gpu, query.settings, total_gib=total, used_by_others_gib=others)
        answer["reasons"] = [*memory.reasons, *(remedy.sentence for remedy in remedies), *notes]
        return
    if MAY_BE_MISSING in memory.notes:
        answer["reasons"].append(MAY_BE_MISSING)
    if query.load is None or query.inputs is None or query.outputs is None:
        return
    if resolved.speculative_tokens and resolved.speculative_acceptance is None:
        answer["reasons"].append(
            f"No acceptance_rate is stated: the {resolved.speculative_tokens} drafts a step cost time, none counts as"
            " accepted."
        )
    instance = Instance(query.model, resolved, memory, build(query.model, query.gpu, resolved, fabric=query.fabric))
    if generates:
        performance = predict(
            instance, query.load, query.inputs, query.outputs,
            seed=query.seed, replicas=query.replicas, router=query.router,
        )  # fmt: skip
    else:
        performance = predict_one_pass(instance, query.load, query.inputs, seed=query.seed, replicas=query.replicas)
        answer["reasons"].append(ANSWERS_AT_ONCE)
    answer["perf"] = perf_answer(performance)
    answer["evidence"] = performance.evidence.value
    answer["reasons"].extend(note for note in instance.step.notes if note not in answer["reasons"])
    answer["reasons"] += kernel_note(query, resolved, instance.step)
    if performance.saturated:
        answer["reasons"].append("The rate is above what the deployment carries: the queue grows without bound.")
    elif performance.queue_grows:
        answer["reasons"].append(
            f"Near saturation (busy {performance.utilisation:.0%} of the time): steps as slow as the 80 % band allows"
            " would more than double the wait for the first token, so the bands are wide."
        )
    if query.usd_per_gpu_hour is not None:
        answer["cost"] = cost_answer(query.usd_per_gpu_hour * resolved.gpus * query.replicas, performance)
    if generates:  # the power of one-pass models was not measured
        answer["power_w"] = _power(query, resolved, memory, performance)


def _longest_prompt(query: Query) -> int:
    if query.inputs is None or query.outputs is None:
        return 0
    return query.inputs.longest if query.load is None else longest_prompt(query.load, query.inputs, query.outputs)


def _with_room(resolved: ResolvedSettings, query: Query, answer: dict[str, Any]) -> ResolvedSettings:
    """Without chunked prefill a whole prompt must fit one step beside the running sequences, or wait for them to end.

    An unstated step limit is raised to that, as published launch scripts do.
    """
    if query.inputs is None or query.load is None or resolved.enable_chunked_prefill:
        return resolved
    if query.settings.max_num_batched_tokens is not None:
        return resolved
    beside = min(query.load.concurrency or resolved.max_num_seqs, resolved.max_num_seqs)
    needed = -(-(min(_longest_prompt(query), resolved.max_model_len) + beside) // 64) * 64
    if needed <= resolved.max_num_batched_tokens:
        return resolved
    answer["reasons"].append(
        f"max_num_batched_tokens raised from {resolved.max_num_batched_tokens} to {needed}: chunked prefill is off and"
        " the longest prompt must fit one step beside the running sequences."
    )
    origin = {**resolved.origin, "max_num_batched_tokens": "longest prompt + running sequences, chunked prefill off"}
    return replace(resolved, max_num_batched_tokens=needed, origin=origin)


def _power(query: Query, resolved: ResolvedSettings, memory: MemoryLedger, performance: Performance) -> float | None:
    if query.inputs is None or query.outputs is None or query.load is None:
        return None
    watts = power_w(
        query.gpu,
        query.model,
        weights_gib_per_gpu=memory.weights_gib,
        kv_bytes_per_token_per_gpu=memory.kv_bytes_per_token,
        gpus=resolved.gpus,
        output_tok_per_s=performance.output_tok_per_s / query.replicas,
        total_tok_per_s=performance.computed_tok_per_s / query.replicas,
        mean_batch=performance.mean_batch,
        mean_context_tokens=mean_prompt(query.load, query.inputs, query.outputs) + query.outputs.expected / 2,
        ranks=resolved.dp,
    )
    return None if watts is None else rounded(float(watts * resolved.gpus * query.replicas))

"""What the planner is asked over the network: bounded work, models by name only, never by path."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from controlplane.workloads.models import LlmModel
from controlplane.workloads.services import model_spec
from planner import MODEL_VERSION, catalog, fragmentation, memory
from planner.engines.types import EngineSettings
from planner.estimate import estimate
from planner.jsonio import from_json, to_json
from planner.models.spec import ModelSpec

MAX_LINES = 100
MAX_REQUESTS = 20_000
MAX_TOKENS = 20_000_000
BUDGET_S = 60.0
"""After this the remaining lines are answered with an error that says so."""


def find_model(name: str) -> ModelSpec:
    """A catalogue model by id or alias, or an uploaded one by id; raises UnknownModelError. Never opens ``name``."""
    if LlmModel.objects.filter(model_id=name).exists():
        return model_spec(name)
    return catalog.get_model(name, allow_path=False)


def answer_lines(lines: list[Any]) -> list[dict[str, Any]]:
    """The answer to each request of the estimate contract, in order."""
    started = time.monotonic()
    answers = []
    for line in lines:
        if time.monotonic() - started > BUDGET_S:
            answers.append(_refusal(line, f"Not computed within {BUDGET_S:g} s; send the remaining lines again."))
            continue
        answers.append(answer_line(line))
    return answers


def answer_line(line: Any) -> dict[str, Any]:
    """The answer to one request; one that would take too long is refused, as is anything that is no object."""
    if not isinstance(line, dict):
        return _refusal(line, "Each line must be a JSON object.")
    problem = _too_much(line)
    return _refusal(line, problem) if problem else estimate(line, find_model=find_model)


def memory_answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of one GPU: ledger, preemption cliff, KV waste, resolved settings, command line, remedies.

    Raises PlannerError for a name or setting that is not known, or a demand that the pool cannot be judged on.
    """
    model, gpu = find_model(asked["model"]), catalog.get_gpu(asked["gpu"])
    settings = from_json(EngineSettings, {**asked.get("settings", {}), "engine": asked["engine"]}, "settings")
    report = memory.memory_report(
        model,
        gpu,
        settings,
        expected_len=asked.get("expected_len"),
        total_gib=asked.get("gpu_memory_gib"),
        used_by_others_gib=asked.get("used_by_others_gib") or 0.0,
        input_tokens=asked.get("input_tokens"),
        output_tokens=asked.get("output_tokens"),
        concurrency=asked.get("concurrency"),
        model_path=asked["model"],
    )
    return {
        "status": report.status,
        "reasons": list(report.reasons),
        "warnings": list(report.warnings),
        "model": asked["model"],
        "gpu": gpu.name,
        "ledger": to_json(report.ledger),
        "cliff": to_json(report.cliff),
        "kv_waste": to_json(_kv_waste(asked.get("trace"), report)),
        "settings": to_json(report.resolved),
        "command_line": list(report.command_line),
        "config_files": report.config_files,
        "remedies": to_json(report.remedies),
        "evidence": report.ledger.evidence.value if report.ledger is not None else None,
        "model_version": MODEL_VERSION,
    }


def _kv_waste(trace: str | None, report: memory.MemoryReport) -> fragmentation.PoolWaste | None:
    """The three ways of giving out the pool on a shipped trace; None where none is asked for or nothing fits."""
    if not trace or report.ledger is None or report.resolved is None or not report.ledger.fits:
        return None
    data = catalog.get_trace(trace)
    return fragmentation.waste_in_pool(report.ledger, report.resolved, data.input_tokens, data.output_tokens)


def _too_much(line: Mapping[str, Any]) -> str:
    """Why a line would take too long to simulate, in one sentence; empty when it would not."""
    load = line.get("load")
    if not isinstance(load, dict):
        return ""
    requests = _number(load.get("requests"))
    if requests > MAX_REQUESTS:
        return f"load.requests is {requests:,.0f}; at most {MAX_REQUESTS:,} are simulated over the API. Ask for fewer."
    clients = _number(load.get("concurrency"))
    if clients > MAX_REQUESTS:
        return f"load.concurrency is {clients:,.0f}; at most {MAX_REQUESTS:,} over the API. Divide by the replicas."
    tokens = _longest(line.get("output_tokens")) * max(requests, clients, 1000.0)
    if tokens > MAX_TOKENS:
        return (
            f"That is {tokens:,.0f} output tokens; at most {MAX_TOKENS:,} over the API. Ask for fewer or shorter ones."
        )
    return ""


def _longest(value: Any) -> float:
    if isinstance(value, dict):
        return max((_number(item) for item in value.values()), default=0.0)
    return _number(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _refusal(line: Any, reason: str) -> dict[str, Any]:
    return {
        "id": line.get("id") if isinstance(line, dict) else None,
        "status": "error",
        "reasons": [reason],
        "memory": None,
        "perf": None,
        "cost": None,
        "power_w": None,
        "evidence": None,
        "model_version": MODEL_VERSION,
    }

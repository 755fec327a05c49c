"""The memory part of the estimate contract, field by field, as automation reads it: one JSON line in, one out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.estimate import estimate_lines
from planner.memory import ledger

CONTRACT = {
    "weights_gib": float,
    "activation_gib": float,
    "non_torch_gib": float,
    "graph_gib": float,
    "kv_gib": float,
    "kv_blocks": int,
    "block_tokens": int,
    "kv_tokens": int,
    "max_concurrency": float,
    "largest_model_len": int,
}
ASKED = {
    "id": "row-1",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "H100",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "tp": 1,
    "pp": 1,
    "ep": 1,
    "dp": 1,
    "max_model_len": 8192,
    "gpu_memory_utilization": 0.9,
}


def answer(**changes: Any) -> dict[str, Any]:
    """The answer to the base request with ``changes``; None removes a field."""
    asked = {key: value for key, value in {**ASKED, **changes}.items() if value is not None}
    (line,) = estimate_lines([json.dumps(asked)])
    return json.loads(line)


@pytest.mark.parametrize("engine", ["vllm", "tensorrt_llm"])
def test_every_field_is_there_with_its_type(engine: str) -> None:
    versions = {"vllm": "0.19.0", "tensorrt_llm": None}
    share = 0.9 if engine == "vllm" else None
    got = answer(engine=engine, engine_version=versions[engine], gpu_memory_utilization=share)
    assert got["status"] == "ok"
    assert got["id"] == "row-1"
    for name, kind in CONTRACT.items():
        assert type(got["memory"][name]) is kind, name
    low, high = got["memory"]["interval80"]["kv_gib"]
    assert low <= got["memory"]["kv_gib"] <= high


def test_the_figures_are_the_ledgers() -> None:
    got = answer(gpu_memory_gib=79.19)["memory"]
    model, gpu = get_model(ASKED["model"]), get_gpu("H100")
    settings = EngineSettings(EngineName.VLLM, version="0.19.0", max_model_len=8192, gpu_memory_utilization=0.9)
    own = ledger(model, gpu, resolve(settings, model, gpu), total_gib=79.19)
    for name in CONTRACT:
        assert got[name] == pytest.approx(getattr(own, name), rel=1e-5), name
    assert got["kv_gib"] == pytest.approx(54.15, rel=0.02)


def test_what_does_not_fit_names_the_term_and_what_would() -> None:
    got = answer(model="meta-llama/Llama-3.1-70B-Instruct", engine_version="0.24.0", tp=2, max_model_len=131_072)
    assert got["status"] == "infeasible"
    assert got["perf"] is None
    assert "131,072 tokens needs 20.00 GiB of KV cache" in got["reasons"][0]
    text = " ".join(got["reasons"])
    assert "would fit" in text
    assert "4 GPUs" in text
    assert set(CONTRACT) <= set(got["memory"])
    longest = got["memory"]["largest_model_len"]
    fits = answer(model="meta-llama/Llama-3.1-70B-Instruct", engine_version="0.24.0", tp=2, max_model_len=longest)
    assert fits["status"] == "ok"


def test_weights_that_exceed_the_card_are_named() -> None:
    got = answer(model="meta-llama/Llama-3.1-70B-Instruct")
    assert got["status"] == "infeasible"
    assert "weights alone (131.4" in got["reasons"][0]
    assert got["memory"]["kv_gib"] < 0
    assert got["memory"]["kv_tokens"] == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpu_memory_gib": -1}, "gpu_memory_gib"),
        ({"used_by_others_gib": 500}, "used_by_others_gib"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"enforce_eager": "yes"}, "enforce_eager"),
        ({"max_model_len": 1.5}, "max_model_len"),
        ({"model": "nobody/nothing"}, "model"),
        ({"gpu_memory_utilization": 1.7}, "gpu_memory_utilization"),
    ],
)
def test_absurd_values_are_errors_that_name_the_field(changes: dict[str, Any], field: str) -> None:
    got = answer(**changes)
    assert got["status"] == "error"
    assert field in got["reasons"][0]
    assert got["memory"] is None


@pytest.mark.parametrize(
    ("changes", "term"),
    [
        ({"used_by_others_gib": 20.0}, "kv_gib"),
        ({"max_loras": 8, "max_lora_rank": 64}, "kv_gib"),
        ({"enforce_eager": True}, "graph_gib"),
    ],
)
def test_optional_settings_reach_the_ledger(changes: dict[str, Any], term: str) -> None:
    plain, changed = answer(), answer(**changes)
    if "used_by_others_gib" in changes:
        assert changed["status"] == "infeasible"
        assert "free at start" in changed["reasons"][0]
    else:
        assert changed["memory"][term] < plain["memory"][term]

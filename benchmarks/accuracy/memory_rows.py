"""The measured start-ups: reading them, and turning each into engine settings."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog import get_gpu, get_model
from planner.catalog.types import GpuSpec
from planner.engines import EngineName, EngineSettings
from planner.engines.versions import version_key
from planner.errors import PlannerError
from planner.models.spec import ModelSpec

DATA = Path(__file__).resolve().parent.parent / "data"

SHAPES = {
    "Qwen/Qwen3.8-27B": "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.8-27B-FP8": "Qwen/Qwen3.5-27B",
    "Qwen3.8-27B-FP8": "Qwen/Qwen3.5-27B",
    "Qwen3.6-27B (autoround int4)": "Qwen/Qwen3.5-27B",
    "Qwen3.8-27B (autoround int4)": "Qwen/Qwen3.5-27B",
    "Qwen3.6-27B (boot log of a KV dtype comparison)": "Qwen/Qwen3.5-27B",
    "Qwen3.6-35B-A3B (NVFP4)": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "phi4 fine-tune (7.17 GiB weights)": "microsoft/Phi-4-mini-instruct",
    "7B model with 57344 B/token KV (Qwen2.5-7B class)": "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Meta-Llama-3.1-405B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-405B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen/Qwen2.5-14B-Instruct",
    "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": "Qwen/Qwen3-30B-A3B",
}
"""Models of the rows that share the shape of a configuration at hand."""

PRECISIONS = {
    "fp8": "fp8",
    "w8a8 int8": "int8",
    "gptq int4": "int4",
    "awq 4bit": "int4",
    "autoround int4": "int4",
    "mxfp4": "as-config",
    "modelopt nvfp4": "as-config",
    "": "as-config",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One start-up of an engine and what it reported; None where it did not say. GiB per GPU."""

    row: str
    model: ModelSpec
    gpu: GpuSpec
    settings: EngineSettings
    total_gib: float | None
    weights_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    kv_gib: float | None
    kv_tokens: int | None
    max_concurrency: float | None
    free_before_kv_gib: float | None
    note: str
    version_from_date: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that cannot be scored, and why."""

    row: str
    why: str


def model_named(name: str) -> ModelSpec:
    """A catalogue model or a same-shape stand-in."""
    return get_model(SHAPES.get(name, name))


def vector_cases() -> list[Case]:
    """The rows of ``vllm_memory_vectors.csv``."""
    cases = []
    for number, row in enumerate(_read("vllm_memory_vectors.csv"), start=1):
        settings = EngineSettings(
            EngineName.VLLM,
            version=row["engine_version"],
            tp=int(row["tp"]),
            pp=int(row["pp"]),
            precision=row["precision"],
            kv_cache_dtype=row["kv_cache_dtype"],
            max_model_len=int(row["max_model_len"]),
            gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        )
        cases.append(
            Case(
                f"{row['set']}-{number:02d}",
                model_named(row["model"]),
                get_gpu(row["gpu"]),
                settings,
                float(row["total_gib"]),
                _number(row["weights_gib"]),
                _number(row["activation_gib"]),
                _number(row["non_torch_gib"]),
                _number(row["kv_gib"]),
                _integer(row["kv_tokens"]),
                _number(row["max_concurrency"]),
                None,
                row["note"],
            )
        )
    return cases


def log_cases() -> tuple[list[Case], list[LeftOut]]:
    """The rows of ``kvmem/kv_memory.csv`` that name model, GPU and a version, and those that do not."""
    cases: list[Case] = []
    left: list[LeftOut] = []
    for row in _read("kvmem/kv_memory.csv"):
        try:
            cases.append(_log_case(row))
        except (PlannerError, _CannotScoreError) as error:
            left.append(LeftOut(row["row_id"], str(error)))
    return cases, left


class _CannotScoreError(Exception):
    """The row lacks what a prediction needs."""


def _log_case(row: dict[str, str]) -> Case:
    engine = {"vllm": EngineName.VLLM, "tensorrt_llm": EngineName.TENSORRT_LLM}.get(row["engine"])
    if engine is None:
        raise _CannotScoreError(f"engine {row['engine']} is not planned for")
    flags = set(filter(None, row["quality"].split(";")))
    bad = flags & {"model_unknown", "gpu_unknown", "inconsistent_with_named_model"}
    if bad:
        raise _CannotScoreError(", ".join(sorted(bad)))
    stated = dict(_stated_in_source().get(row["row_id"], {}))
    by_date = stated.pop("engine_version_by_date", None)
    version = by_date or row["engine_version"] or None
    if version is not None:
        try:
            version_key(version)
        except PlannerError as error:
            raise _CannotScoreError(f"version '{version}' is not a release") from error
    if row["quantization"] not in PRECISIONS:
        raise _CannotScoreError(f"quantisation '{row['quantization']}' is not in the planner's words")
    kv_dtype = {"float16": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "nvfp4": "fp4", "": "auto"}
    if not row["tp"]:
        raise _CannotScoreError("parallel sizes not stated")
    settings = EngineSettings(
        engine,
        version=version,
        tp=_integer(row["tp"]) or 1,
        pp=_integer(row["pp"]) or 1,
        ep=_integer(row["ep"]) or 1,
        precision=PRECISIONS[row["quantization"]],
        kv_cache_dtype=kv_dtype.get(row["kv_cache_dtype"], row["kv_cache_dtype"]),
        max_model_len=_integer(row["max_model_len"]),
        gpu_memory_utilization=_number(row["gpu_memory_utilization"]) if engine is EngineName.VLLM else None,
        free_gpu_memory_fraction=_number(row["free_gpu_memory_fraction"]),
        max_num_seqs=_integer(row["max_num_seqs"]),
        enforce_eager="enforce-eager" in row["notes"],
        speculative_tokens=3 if row["spec_decode"] == "mtp3" else 0,
    )
    total = _number(row["total_gpu_memory_gib"])
    free = stated.pop("free_before_kv_gib", _number(row["free_before_kv_gib"]))
    settings = replace(settings, **stated)
    return Case(
        row["row_id"],
        model_named(row["model"]),
        _gpu(row["gpu"]),
        settings,
        total,
        _number(row["weights_gib_per_gpu"]),
        _number(row["peak_activation_gib"]),
        _number(row["non_torch_gib"]),
        _number(row["available_kv_gib_per_gpu"]),
        _integer(row["kv_tokens"] or row["kv_tokens_derived"]),
        _number(row["max_concurrency"]),
        free,
        "; ".join(filter(None, (row["quality"], row["notes"]))),
        by_date is not None,
    )


@cache
def _stated_in_source() -> dict[str, dict[str, Any]]:
    """Settings that a row's source states beyond the columns of the table, by row."""
    kinds: dict[str, Callable[[str], Any]] = {
        "sampler": str,
        "kv_cache_dtype": str,
        "trt_backend": str,
        "engine_version_by_date": str,
        "max_num_batched_tokens": int,
    }
    result: dict[str, dict[str, Any]] = {}
    for row in _read("kvmem/stated_in_source.csv"):
        result.setdefault(row["row_id"], {})[row["field"]] = kinds.get(row["field"], float)(row["value"])
    return result


def _gpu(name: str) -> GpuSpec:
    names = {
        "H100 SXM": "H100-SXM5-80GB",
        "RTX PRO 6000 Blackwell Server": "RTX-PRO-6000-Blackwell-Server",
        "RTX PRO 6000 Blackwell": "RTX-PRO-6000-Blackwell-Server",
        "A100-40GB (39.39 GiB)": "A100-SXM4-40GB",
        "A100-40GB (39.56 GiB)": "A100-SXM4-40GB",
        "24 GB card (23.57 GiB)": "RTX-3090",
    }
    return get_gpu(names.get(name, name))


def _read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _integer(text: str) -> int | None:
    return int(float(text)) if text else None

"""Our own runs of vLLM 0.24.0 on one H200, in six series, as rows that the accuracy benchmarks score."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.rows import DATA, MeasuredRow, family, number, read_table, whole

OWN_RUNS = DATA.parent / "h200_runs" / "results.csv"
WORKER_RUNS = OWN_RUNS.with_name("worker.csv")
SERIES4 = DATA.parent / "h200_series4" / "results.csv"
SERIES5 = DATA.parent / "h200_series5" / "results.csv"
SERIES6 = DATA.parent / "h200_series6" / "results.csv"
SHARE_OF_SMALL_POOL = 0.15907
"""Share of memory that leaves Qwen3-8B the 2,500 blocks which ``--num-gpu-blocks-override`` gave it in those runs."""


def h200_rows(folder: Path = DATA) -> list[MeasuredRow]:
    """Our own runs of vLLM 0.24.0 on one H200."""
    return [_on_h200(row, "h200", {"model": f"Qwen/{row['model']}"}, "") for row in read_table("h200_vllm024", folder)]


def own_rows() -> list[MeasuredRow]:
    """Later runs of vLLM 0.24.0 on one H200: five dense models, closed and Poisson loads, mixed lengths."""
    rows = []
    for row in _read_plain(OWN_RUNS):
        spread = float(row["range_ratio"])
        stated = {
            "model": f"{'meta-llama' if row['model'].startswith('Llama') else 'Qwen'}/{row['model']}",
            "max_model_len": 8192,
            "input_tokens": _spread(int(row["isl"]), spread),
            "output_tokens": _spread(int(row["osl"]), spread),
        }
        rows.append(_on_h200(row, "h200_runs", stated, " mixed" if spread else ""))
    return rows


def worker_rows() -> list[MeasuredRow]:
    """Runs of this project's node worker with AIPerf on one H200: a mixture of experts, and sessions of six turns."""
    rows = []
    for row in _read_plain(WORKER_RUNS):
        stated = {"max_model_len": 8192, "gpu_memory_utilization": float(row["gpu_memory_utilization"])}
        rows.append(_on_h200(row, "h200_worker", stated, f" x {row['turns']} turns" if row["turns"] != "1" else ""))
    return rows


def series4_rows() -> list[MeasuredRow]:
    """The fourth series: mixtures of experts, a full front end, a pool of 40,000 tokens with preemptions, AWQ.

    Outputs of one token are prompts alone: their median TTFT is what was measured.
    """
    return _series("h200_series4", SERIES4)


def series5_rows(*, held: bool = True) -> list[MeasuredRow]:
    """The fifth series: the runs looked at only after the front end was modelled, or (``held`` False) those it was
    modelled on.
    """
    return [
        row
        for row in _series("h200_series5" if held else "h200_front", SERIES5)
        if ("_held_" in str(row.request["id"])) == held
    ]


def series6_rows(*, adapters: bool = False) -> list[MeasuredRow]:
    """The sixth series: long contexts, an FP8 cache, bursts and the base model beside adapters, or (``adapters``) the
    runs that name adapters, which the time of adapters was fitted on.
    """
    rows = []
    for row in _read_plain(SERIES6):
        named = int(row["adapters"])
        if bool(named) != adapters:
            continue
        stated: dict[str, Any] = {
            "max_model_len": int(row["max_model_len"]),
            "enable_prefix_caching": False,
            "kv_cache_max_tokens": int(row["pool_tokens"]),
            "kv_cache_dtype": row["kv_cache_dtype"],
        }
        if named:
            stated |= {"max_loras": min(named, int(row["max_loras"])), "max_lora_rank": int(row["max_lora_rank"])}
        words = f" {named} adapters of rank {row['max_lora_rank']}" if named else f" cache {row['kv_cache_dtype']}"
        kind = "h200_adapters" if adapters else "h200_series6"
        rows.append(_prompts_alone(row, _on_h200(row, kind, stated, words)))
    return rows


def _series(kind: str, path: Path) -> list[MeasuredRow]:
    rows = []
    for row in _read_plain(path):
        stated: dict[str, Any] = {"max_model_len": 8192, "enable_prefix_caching": row["prefix_caching"] == "1"}
        if row["pool_tokens"] and path == SERIES4:
            stated["gpu_memory_utilization"] = SHARE_OF_SMALL_POOL
        words = " small pool" if "gpu_memory_utilization" in stated else ""
        spread = float(row["range_ratio"])
        if spread:
            stated["input_tokens"], stated["output_tokens"] = (_spread(int(row[n]), spread) for n in ("isl", "osl"))
            words = " mixed"
        rows.append(_prompts_alone(row, _on_h200(row, kind, stated, words)))
    return rows


def _prompts_alone(row: dict[str, str], found: MeasuredRow) -> MeasuredRow:
    """Of outputs of one token the median TTFT is what was measured."""
    if row["osl"] != "1":
        return found
    return replace(found, measured={"ttft": (float(row["p50_ttft_ms"]), "p50")})


def _read_plain(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as source:
        return list(csv.DictReader(source))


def _on_h200(row: dict[str, str], kind: str, stated: dict[str, Any], words: str) -> MeasuredRow:
    """One of our runs of vLLM 0.24.0 on an H200; ``stated`` beside what every run states, ``words`` end its label."""
    clients, requests = whole(row, "concurrency"), int(row["num_prompts"])
    if clients:
        load: dict[str, Any] = {"kind": "closed", "concurrency": clients, "requests": requests}
    else:
        load = {"kind": "open", "rate_per_s": number(row["request_rate"]), "requests": requests}
        shape = float(row.get("burstiness") or 1.0)  # of the gamma distribution of the times between arrivals
        if shape != 1.0:
            load |= {"arrival": "gamma", "cv": shape**-0.5}
    if row.get("turns", "1") != "1":
        load["turns"] = int(row["turns"])
    request = {
        "id": row["run"],
        "model": row["model"],
        "gpu": "H200-SXM-141GB",
        "engine": "vllm",
        "engine_version": "0.24.0",
        "precision": row["precision"],
        "load": load,
        "input_tokens": int(row["isl"]),
        "output_tokens": int(row["osl"]),
        "even_expert_routing": True,  # dummy weights
        **stated,
    }
    columns = {"ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms", "output_tok_per_s": "output_tok_s"}
    arrivals = f"c{clients}" if clients else f"{load['rate_per_s']:g}/s"
    return MeasuredRow(
        row["run"],
        "h200_vllm024" if kind == "h200" else kind,
        family(row["model"]),
        kind,
        request,
        {metric: (float(row[column]), "mean") for metric, column in columns.items()},
        load_label=f"{row['isl']}/{row['osl']} {arrivals}{words}",
    )


def _spread(nominal: int, ratio: float) -> Any:
    """Lengths of vLLM's random data set: uniform in (1 - ratio) to (1 + ratio) of the nominal."""
    return {"low": int(nominal * (1 - ratio)), "high": math.ceil(nominal * (1 + ratio))} if ratio else nominal

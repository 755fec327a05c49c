"""The measured rows that the accuracy benchmarks score, as requests of the estimate contract beside what was measured.

The ``aic_silicon`` rows do not say whether TTFT and TPOT are means or medians. They are means: in a closed loop of 64
and 8192/1024 tokens the published TTFT (1.8 s) is four times what a steady queue allows and matches the mean over ten
rounds that start with all prompts at once; so it is for every concurrency. ``--unstated`` chooses the statistic.

ShareGPT prompts and answers are chat turns of a few to some thousand tokens, of which the rows publish the means. Their
spread is read as large as their mean (an exponential distribution); equal lengths would end all answers together.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy import performance_pages
from benchmarks.accuracy.contradictions import contradictions
from benchmarks.accuracy.published import published

DATA = Path(__file__).resolve().parent.parent / "data" / "measured"
LEFT_OUT = re.compile(
    r"wip|parallelism_mapping_suspect|isl_not|load_pattern|disagg|isl_osl_not|guardrail|tp_across"
    r"|request_rate_above_capacity"
)
MODEL_WORDS = {"mistralai/Mistral-7B (exact revision not stated)": "mistralai/Mistral-7B-Instruct-v0.3"}
"""Published names that the catalogue cannot know; the shape is the same."""
FAMILIES = (
    "llama-4",
    "llama-2",
    "llama",
    "qwen3-30b",
    "qwen3-235b",
    "qwen",
    "mixtral",
    "mistral",
    "deepseek",
    "kimi",
    "gpt-oss",
    "minimax",
    "gemma",
    "glm",
)
POOL = re.compile(r"workers=(\d+) tp=(\d+) dp=(\d+) ep=(\d+)")
TTFT_STATS = (("ttft_ms_p50", "p50"), ("ttft_ms", "unstated"), ("ttft_ms_mean", "mean"))
TPOT_STATS = (("tpot_ms_p50", "p50"), ("tpot_ms", "unstated"), ("tpot_ms_mean", "mean"))


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement. ``measured`` maps ttft, tpot (ms) and output_tok_per_s to (value, statistic)."""

    row_id: str
    source: str
    family: str
    kind: str  # serving, serving_stated, contradictory, offline, static, and those of ``own_runs``
    request: dict[str, Any]
    measured: dict[str, tuple[float, str]]
    notes: str = ""
    load_label: str = field(default="", compare=False)


def number(text: str) -> float | None:
    """A finite number, or None for a blank."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def family(model: str) -> str:
    """A short name for the family of ``model``."""
    low = model.lower()
    for key in FAMILIES:
        if key in low:
            return {"qwen3-30b": "qwen-moe", "qwen3-235b": "qwen-moe"}.get(key, key)
    return "other"


def measurements(text: str) -> Path:
    """A folder of measurements, for argparse."""
    folder = Path(text)
    if not any(folder.glob("*_results.csv*")) and not any(folder.glob("h200_vllm024.csv*")):
        raise argparse.ArgumentTypeError(
            f"{text} holds no serving_results, offline_results or h200_vllm024, .csv or .csv.gz"
        )
    return folder


def read_table(name: str, folder: Path = DATA) -> list[dict[str, str]]:
    """Rows of ``name``.csv.gz or ``name``.csv in ``folder``; none where a folder of other measurements lacks it."""
    packed, plain = folder / f"{name}.csv.gz", folder / f"{name}.csv"
    if packed.exists() or folder == DATA:
        with gzip.open(packed, "rt", encoding="utf-8", newline="") as source:
            return list(csv.DictReader(source))
    if not plain.exists():
        return []
    with plain.open(encoding="utf-8", newline="") as source:
        return list(csv.DictReader(source))


def whole(row: dict[str, str], key: str) -> int | None:
    """The whole number in a column, or None for a blank."""
    value = number(row[key])
    return None if value is None else int(value)


def serving_rows(unstated: str = "mean", folder: Path = DATA, *, settings: bool = False) -> list[MeasuredRow]:
    """Aggregated serving under a closed or open load: the comparable rows.

    ``settings`` adds what the row's source publishes beside the row, see ``published``. Without, rows of runs that
    drafted are left out, be it the row that says so or its source: nothing in them says how many drafts were accepted.
    """
    table = read_table("serving_results", folder)
    odd = contradictions(table)
    return _serving([row for row in table if row["row_id"] not in odd], unstated, settings=settings)


def contradictory_rows(unstated: str = "mean", folder: Path = DATA) -> list[MeasuredRow]:
    """Rows of the same kind that contradict what is published beside them, with what does in ``notes``."""
    table = read_table("serving_results", folder)
    odd = contradictions(table)
    found = _serving([row for row in table if row["row_id"] in odd], unstated, settings=True)
    return [replace(row, kind="contradictory", notes=odd[row.row_id]) for row in found]


def _serving(table: list[dict[str, str]], unstated: str, *, settings: bool) -> list[MeasuredRow]:
    rows = []
    for row in table:
        if row["engine"] not in ("vllm", "tensorrt_llm") or row["serving_mode"] != "agg" or row["spec_decode"]:
            continue
        if LEFT_OUT.search(row["quality"]):
            continue
        load = _load(row)
        if load is None or number(row["isl"]) is None or number(row["osl"]) is None:
            continue
        told = published(row, load)
        if not settings and told.get("speculative_tokens"):
            continue
        measured = {}
        queueing = "latency_dominated" in row["quality"]
        for metric, stats in (("ttft", TTFT_STATS), ("tpot", TPOT_STATS)):
            if queueing and metric == "ttft":
                continue
            for column, stat in stats:
                value = number(row[column])
                if value:
                    measured[metric] = (value, unstated if stat == "unstated" else stat)
                    break
        rate = number(row["output_tok_per_s"])
        if rate:
            measured["output_tok_per_s"] = (rate, "mean")
        if not measured:
            continue
        rows.append(
            MeasuredRow(
                row_id=row["row_id"],
                source=row["source_id"],
                family=family(row["model"]),
                kind="serving" if settings else "serving_stated",
                request={**_request(row, load), **(told if settings else {})},
                measured=measured,
                notes=row["notes"],
                load_label=f"{row['isl']}/{row['osl']} {row['load_type']} {row['concurrency'] or row['request_rate']}",
            )
        )
    return rows


def _load(row: dict[str, str]) -> dict[str, Any] | None:
    prompts = whole(row, "num_prompts")
    concurrency = whole(row, "concurrency")
    rate = number(row["request_rate"])
    if row["load_type"] == "concurrency" and concurrency:
        return {"kind": "closed", "concurrency": concurrency, **({"requests": prompts} if prompts else {})}
    if row["load_type"] == "request_rate" and rate:
        return {"kind": "open", "rate_per_s": rate, **({"requests": prompts} if prompts else {})}
    if row["load_type"] == "all_at_once" and prompts:
        return {"kind": "closed", "concurrency": prompts, "requests": prompts}
    return None


def _request(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {
        "id": row["row_id"],
        "model": MODEL_WORDS.get(row["model"], row["model"]),
        "gpu": row["gpu"],
        "engine": row["engine"],
        "load": load,
        "input_tokens": _tokens(row, "isl"),
        "output_tokens": _tokens(row, "osl"),
    }
    if row["precision"]:
        request["precision"] = "int4" if row["precision"] == "w4" else row["precision"]
    if row["kv_cache_dtype"] in ("fp8", "fp16", "bf16"):
        request["kv_cache_dtype"] = row["kv_cache_dtype"]
    version = re.match(r"^v?\d+\.\d+(\.\d+)?(rc\d+)?", row["engine_version"])
    if version and "version_is_dynamo_image" not in row["quality"]:
        request["engine_version"] = version.group(0)
    for key in ("tp", "pp", "ep", "dp"):
        value = whole(row, key)
        if value:
            request[key] = value
    return request


def _tokens(row: dict[str, str], key: str) -> Any:
    nominal = number(row[key]) or 1.0
    if row["dataset"] == "ShareGPT":
        return {"mean": nominal, "sd": nominal}
    if "isl_randomised_0.8-1.0" in row["quality"]:
        return {"low": max(1, round(0.8 * nominal)), "high": round(nominal)}
    return max(1, round(nominal))


def disagg_rows(unstated: str = "mean", folder: Path = DATA) -> list[MeasuredRow]:
    """Disaggregated serving, where the row says how many instances of which shape each pool has.

    370 of the 482 vLLM and TensorRT-LLM rows do not. None says whether multi-token prediction was on, and most are of
    Dynamo images, whose engine version is not given: predicted without speculation, on the default version.
    """
    rows = []
    for row in read_table("serving_results", folder):
        pools = {name: POOL.search(row["notes"], row["notes"].find(name)) for name in ("prefill", "decode")}
        load = _load(row)
        if row["serving_mode"] != "disagg" or row["engine"] not in ("vllm", "tensorrt_llm") or load is None:
            continue
        if not all(pools.values()) or "wip" in row["quality"]:
            continue
        roles = {}
        for name, found in pools.items():
            count, *sizes = (max(1, int(text)) for text in found.groups()) if found else (1,)
            roles[name] = {"instances": count, **dict(zip(("tp", "dp", "ep"), sizes, strict=True))}
        measured = {}
        for metric, stats in (("ttft", TTFT_STATS), ("tpot", TPOT_STATS)):
            for column, stat in stats:
                value = number(row[column])
                if value and metric not in measured:
                    measured[metric] = (value, unstated if stat == "unstated" else stat)
        rows.append(
            MeasuredRow(
                row_id=row["row_id"],
                source=row["source_id"],
                family=family(row["model"]),
                kind="disagg",
                request={**_request(row, load), "disagg": roles},
                measured=measured,
                notes=row["notes"],
                load_label=f"{row['isl']}/{row['osl']} {row['concurrency']} {_pool_words(roles)}",
            )
        )
    return rows


def _pool_words(roles: dict[str, dict[str, int]]) -> str:
    shapes = (
        (role["instances"], "dp" if role["dp"] > 1 else "tp", max(role["dp"], role["tp"])) for role in roles.values()
    )
    return " + ".join(f"{count}x{kind}{size}" for count, kind, size in shapes)


def offline_rows(folder: Path = DATA) -> list[MeasuredRow]:
    """Throughput with everything queued, from TensorRT-LLM's own performance pages, as each page says it was run."""
    rows = []
    for row in read_table("offline_results", folder):
        page = row["source_id"].partition(":")[2]
        rate = number(row["output_tok_per_s"])
        if not row["source_id"].startswith("trtllm_perf_overview") or page not in performance_pages.PAGES or not rate:
            continue
        count = performance_pages.requests(int(row["isl"]), int(row["osl"]))
        request = _request(row, {"kind": "offline", "requests": count})
        rows.append(
            MeasuredRow(
                row_id=row["row_id"],
                source=row["source_id"],
                family=family(row["model"]),
                kind="offline",
                request={**request, **performance_pages.options(page, request)},
                measured={"output_tok_per_s": (rate, "mean")},
                notes=row["notes"],
                load_label=f"{row['isl']}/{row['osl']} offline",
            )
        )
    return rows


def static_rows(folder: Path = DATA) -> list[MeasuredRow]:
    """Static batches of equal prompts and outputs (LLM-Inference-Bench): all requests at once, throughput in and out.

    vLLM's version is not published; the paper is of October 2024, when 0.6 was current.
    """
    rows = []
    for row in read_table("offline_results", folder):
        batch, rate = whole(row, "batch_size"), number(row["output_tok_per_s"])
        if row["source_id"] != "anl_llm_inference_bench" or not batch or not rate:
            continue
        if row["engine"] not in ("vllm", "tensorrt_llm") or "1 output token" in row["quality"]:
            continue
        request = _request(row, {"kind": "offline", "requests": batch})
        request.setdefault("engine_version", "0.6.0")
        rows.append(
            MeasuredRow(
                row_id=row["row_id"],
                source=row["source_id"],
                family=family(row["model"]),
                kind="static",
                request=request,
                measured={"output_tok_per_s": (rate, "mean")},
                notes=row["notes"],
                load_label=f"{row['isl']}/{row['osl']} batch {batch}",
            )
        )
    return rows

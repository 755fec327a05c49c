"""``python -m benchmarks accuracy latency``: predicted against measured TTFT, TPOT and throughput.

Every row goes through the public estimate contract. Errors are |predicted / measured - 1|, medians and means over rows,
by engine, GPU, model family, evidence and load region; beside them aiconfigurator's own estimate of the same rows
(``--peer``), the coverage of the 80 % interval and the worst rows with what explains them. ``--write-residuals`` stores
the quantiles of measured / predicted that the intervals are made of. Serving rows are read twice: ``serving_stated``
from what the row says alone, ``serving`` with the settings that its source publishes beside it (``published``).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.explain import explanation
from benchmarks.accuracy.own_runs import h200_rows, own_rows, series4_rows, series5_rows, series6_rows, worker_rows
from benchmarks.accuracy.residuals import cross_validated, write
from benchmarks.accuracy.rows import (
    DATA,
    MeasuredRow,
    contradictory_rows,
    disagg_rows,
    measurements,
    offline_rows,
    serving_rows,
)
from benchmarks.accuracy.scoring import Scored, score_all

METRICS = ("ttft", "tpot", "output_tok_per_s")
OF_THIS_PROJECT = (
    "h200_runs",
    "h200_worker",
    "h200_series4",
    "h200_series5",
    "h200_front",
    "h200_series6",
    "h200_adapters",
)
"""Kinds that a folder of other measurements does not hold."""

KINDS = ("serving", "serving_stated", "contradictory", "offline", "h200", *OF_THIS_PROJECT, "disagg")
NOT_ITS_OWN = ("serving_stated", "contradictory", "disagg")
"""Kinds that aiconfigurator's estimate is not held beside: the same rows again, rows that nothing can meet, and pools,
which it sizes otherwise."""


def with_slot_short(row: MeasuredRow) -> MeasuredRow:
    """A row of TensorRT-LLM 1.0 in a closed loop, as if the engine had one slot fewer than there are clients."""
    request = row.request
    clients = request["load"].get("concurrency", 0)
    if request["engine"] != "tensorrt_llm" or clients < 2:
        return row
    if not str(request.get("engine_version", "")).startswith("1.0."):
        return row
    return replace(row, request={**request, "max_num_seqs": clients - 1})


def summary(scored: Sequence[Scored]) -> dict[str, dict[str, float]]:
    """Median and mean absolute error, median ratio, coverage and number of rows, by metric."""
    result = {}
    for metric in METRICS:
        ratios = [s.ratio[metric] for s in scored if metric in s.ratio]
        if not ratios:
            continue
        errors = [abs(r - 1.0) for r in ratios]
        result[metric] = {
            "rows": len(ratios),
            "median_error": statistics.median(errors),
            "mean_error": statistics.fmean(errors),
            "median_ratio": statistics.median(ratios),
            "coverage80": statistics.fmean(s.inside[metric] for s in scored if metric in s.inside),
        }
    return result


def _line(label: str, scored: Sequence[Scored]) -> str:
    cells = [f"{label:44.44s}"]
    found = summary(scored)
    for metric in METRICS:
        if metric in found:
            m = found[metric]
            cells.append(
                f"{m['rows']:5d} {100 * m['median_error']:6.1f} {100 * m['mean_error']:6.1f}"
                f" {m['median_ratio']:6.3f} {100 * m['coverage80']:4.0f}"
            )
        else:
            cells.append(" " * 31)
    return " | ".join(cells)


def print_tables(scored: Sequence[Scored]) -> None:
    """One line per group: rows, median and mean |error| in %, median predicted / measured, coverage in %."""
    ok = [s for s in scored if s.status == "ok"]
    print(f"{'':44s} | {'TTFT: rows  med%  mean%  ratio cov':31s} | {'TPOT':31s} | output tok/s")
    groupings: tuple[tuple[str, Callable[[Scored], str]], ...] = (
        ("all", lambda s: s.row.kind),
        ("evidence", lambda s: f"{s.row.kind} {s.evidence}"),
        ("engine", lambda s: f"{s.row.kind} {s.row.request['engine']}"),
        ("GPU", lambda s: f"{s.row.kind} {s.row.request['engine']} {s.row.request['gpu']}"),
        ("family", lambda s: f"{s.row.kind} {s.row.request['engine']} {s.row.family}"),
        ("load region", lambda s: f"{s.row.kind} {s.region}"),
        (
            "deployment",
            lambda s: " ".join(
                str(s.row.request.get(k, "")) for k in ("engine", "gpu", "model", "precision")
            ).replace("tensorrt_llm", "trt"),
        ),
    )  # fmt: skip
    for title, key in groupings:
        print(f"-- by {title}")
        groups: dict[str, list[Scored]] = defaultdict(list)
        for s in ok:
            groups[key(s)].append(s)
        for name in sorted(groups):
            print(_line(name, groups[name]))
    failed: dict[str, int] = defaultdict(int)
    for s in scored:
        if s.status != "ok":
            failed[f"{s.status}: {s.row.request['model']} on {s.row.request['gpu']}: {s.reason[:110]}"] += 1
    for name, count in sorted(failed.items(), key=lambda item: -item[1]):
        print(f"{count:5d} not predicted, {name}")


def print_contradictory(scored: Sequence[Scored]) -> None:
    """The rows that contradict what is published beside them, each with what does."""
    print(f"-- {len(scored)} serving rows contradict what is published beside them and are scored apart")
    for s in scored:
        ratios = " ".join(f"{k} {v:.2f}" for k, v in s.ratio.items())
        print(f"{s.row.row_id:28s} {s.row.request['model']} on {s.row.request['gpu']}: {s.row.notes}; {ratios}")


def print_worst(scored: Sequence[Scored], count: int = 20) -> None:
    """The rows with the largest error in any metric, with the load and what the model noted."""
    ok = [s for s in scored if s.status == "ok" and s.ratio]
    ok.sort(key=lambda s: -max(abs(math.log(max(r, 1e-6))) for r in s.ratio.values()))
    print(f"-- worst {count}")
    for s in ok[:count]:
        r = s.row.request
        shape = "".join(f" {k}{r[k]}" for k in ("tp", "pp", "ep", "dp") if k in r)
        ratios = " ".join(f"{k} {v:.2f}" for k, v in s.ratio.items())
        print(f"{r['engine']:12s} {r['gpu']:16s} {r['model'][-28:]:28s} {r.get('precision', '')}{shape}"
              f" {s.row.load_label}: {ratios} [{s.evidence}] {explanation(s)}")  # fmt: skip


def _dumped(s: Scored) -> dict[str, Any]:
    return {
        "kind": s.row.kind,
        "source": s.row.source,
        "request": s.row.request,
        "status": s.status,
        "evidence": s.evidence,
        "region": s.region,
        "measured": s.row.measured,
        "predicted": s.predicted,
        "ratio": s.ratio,
    }


def run(argv: list[str]) -> dict[str, Any]:
    """Score the rows and print the tables; returns the summary by kind of row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy latency")
    parser.add_argument("--limit", type=int, default=0, help="at most so many rows of each kind, evenly picked")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of row")
    parser.add_argument("--unstated", choices=("mean", "p50"), default="mean", help="statistic of rows that do not say")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--peer", action="store_true", help="score aiconfigurator's own estimate of the same rows too")
    parser.add_argument("--write-residuals", action="store_true")
    parser.add_argument("--dump", type=Path, help="write each row's prediction as JSON lines")
    parser.add_argument("--data", type=measurements, default=DATA, help="folder of other measurements in the same "
                        "columns: serving_results, offline_results, h200_vllm024, .csv or .csv.gz")  # fmt: skip
    parser.add_argument("--slot-short", action="store_true", help="what TensorRT-LLM 1.0's rows look like: one slot "
                        "fewer than clients, as nothing published says")  # fmt: skip
    options = parser.parse_args(argv)
    folder: Path = options.data
    rows: list[MeasuredRow] = []
    for name, load in (
        ("serving", lambda: serving_rows(options.unstated, folder, settings=True)),
        ("serving_stated", lambda: serving_rows(options.unstated, folder)),
        ("contradictory", lambda: contradictory_rows(options.unstated, folder)),
        ("offline", lambda: offline_rows(folder)),
        ("h200", lambda: h200_rows(folder)),
        ("h200_runs", own_rows),
        ("h200_worker", worker_rows),
        ("h200_series4", series4_rows),
        ("h200_series5", series5_rows),
        ("h200_front", lambda: series5_rows(held=False)),
        ("h200_series6", series6_rows),
        ("h200_adapters", lambda: series6_rows(adapters=True)),
        ("disagg", lambda: disagg_rows(options.unstated, folder)),
    ):
        elsewhere = folder != DATA and name in OF_THIS_PROJECT
        if options.kind in (None, name) and not elsewhere:
            found = load()
            every = max(1, len(found) // options.limit) if options.limit else 1
            rows.extend(found[::every])
    if options.slot_short:
        rows = [with_slot_short(row) for row in rows]
    scored = score_all(rows, options.jobs)
    print_tables(scored)
    if options.kind in (None, "contradictory"):
        print_contradictory([s for s in scored if s.row.kind == "contradictory"])
    print_worst([s for s in scored if s.row.kind not in NOT_ITS_OWN] or scored)
    held = cross_validated(scored)
    if options.dump:
        with options.dump.open("w", encoding="utf-8") as out:
            for s in scored:
                out.write(json.dumps(_dumped(s)) + "\n")
    if options.write_residuals:
        write(scored)
    seen = sorted({s.row.kind for s in scored})
    result: dict[str, Any] = {kind: summary([s for s in scored if s.row.kind == kind]) for kind in seen}
    if options.peer:
        from benchmarks.accuracy.peer import compare

        result["aiconfigurator"] = compare([s for s in scored if s.status == "ok" and s.row.kind not in NOT_ITS_OWN])
    result["intervals_cross_validated"] = held
    return result

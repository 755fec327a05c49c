"""``python -m benchmarks accuracy engine-choice``: do we name the faster engine?

Pairs of measurements of vLLM and TensorRT-LLM on the same GPU, model, precision, parallelism and load that differ by
more than 5 % in output tokens/s (in TPOT where no throughput was published). A pair counts as right when the prediction
ranks the two as the measurement does.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

from benchmarks.accuracy.rows import DATA, MeasuredRow, measurements, serving_rows, static_rows
from benchmarks.accuracy.scoring import Scored, score_all

MARGIN = 0.05
KEY = ("model", "gpu", "precision", "tp", "pp", "ep", "dp", "input_tokens", "output_tokens", "load")


def pairs(rows: list[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Rows of both engines by what they share; several runs of one engine stay together."""
    groups: dict[str, list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        request = dict(row.request)
        for side in ("input_tokens", "output_tokens"):
            if isinstance(request[side], int):
                request[side] = round(request[side], -1) or request[side]
        groups[json.dumps([request.get(k) for k in KEY], sort_keys=True)].append(row)
    return {key: found for key, found in groups.items() if len({r.request["engine"] for r in found}) == 2}


def run(argv: list[str]) -> dict[str, Any]:
    """Score all pairs; returns how many were decided, how many right, by GPU and model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy engine-choice")
    parser.add_argument("--limit", type=int, default=0, help="at most so many pairs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--data", type=measurements, default=DATA, help="folder of other measurements in the same columns"
    )
    options = parser.parse_args(argv)
    found = pairs(serving_rows(folder=options.data) + static_rows(options.data))
    keys = sorted(found)
    if options.limit:
        keys = keys[:: max(1, len(keys) // options.limit)]
    scored = {s.row.row_id: s for s in score_all([row for key in keys for row in found[key]], options.jobs)}
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])  # right, wrong, close, not predicted
    wrong = []
    for key in keys:
        verdict, text = _judge([scored[row.row_id] for row in found[key]])
        request = found[key][0].request
        name = f"{request['gpu']} {request['model']} tp{request.get('tp', 1)}"
        tally[name][verdict] += 1
        if verdict == 1:
            wrong.append(f"{name} {found[key][0].load_label}: {text}")
    for name in sorted(tally):
        right, missed, close, unknown = tally[name]
        print(f"{name:58s} right {right:4d} wrong {missed:4d} within 5 % {close:4d} not predicted {unknown:4d}")
    for line in wrong[:20]:
        print("wrong:", line)
    right = sum(t[0] for t in tally.values())
    missed = sum(t[1] for t in tally.values())
    decided = right + missed
    share = right / decided if decided else None
    print(f"{decided} pairs differ by more than 5 %: named right {right} ({100 * (share or 0):.1f} %)")
    return {"pairs": len(keys), "decided": decided, "right": right, "share": share}


def _judge(rows: list[Scored]) -> tuple[int, str]:
    if any(s.status != "ok" or not s.ratio for s in rows):
        return 3, ""
    metric = "output_tok_per_s" if all("output_tok_per_s" in s.ratio for s in rows) else "tpot"
    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for s in rows:
        if metric not in s.ratio:
            return 3, ""
        engine = s.row.request["engine"]
        value, guess = s.row.measured[metric][0], s.predicted[metric]
        if metric == "tpot":
            value, guess = 1.0 / value, 1.0 / guess
        if value > measured.get(engine, 0.0):  # tuned against tuned: the best published run of each engine
            measured[engine], predicted[engine] = value, guess
    if len(measured) < 2:
        return 3, ""
    true = measured["vllm"] / measured["tensorrt_llm"]
    ours = predicted["vllm"] / predicted["tensorrt_llm"]
    if abs(true - 1.0) <= MARGIN or abs(1.0 / true - 1.0) <= MARGIN:
        return 2, ""
    return (0 if (true > 1.0) == (ours > 1.0) else 1), f"vLLM / TensorRT-LLM measured {true:.2f}, predicted {ours:.2f}"

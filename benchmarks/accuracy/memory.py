"""The memory ledger against what engines reported at start-up: ``python -m benchmarks accuracy memory``.

``--verbose`` lists the rows left out, ``--peer`` scores aiconfigurator's own estimate of the same rows, ``--waste``
shows how much of a KV pool the shipped traces waste.

Three questions: how far is the predicted KV pool (and each term) from the engine's own figures; are the tokens exact to
the block when the engine's GiB are given; does TensorRT-LLM's rule hold. No row is dropped for its error: a row is left
out only when it lacks the model, the GPU, the version or a memory figure, and the count and reason are printed.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass
from statistics import mean
from typing import Any

from benchmarks.accuracy import kv_waste
from benchmarks.accuracy.memory_peer import peer_kv_gib
from benchmarks.accuracy.memory_rows import Case, LeftOut, log_cases, vector_cases
from planner.engines import EngineName, resolve
from planner.errors import PlannerError
from planner.memory import MemoryLedger, kv_tokens_from_gib, ledger

TARGETS = {
    "vllm_kv_mae": 0.02,
    "vllm_kv_worst": 0.06,
    "weights_worst": 0.01,
    "tokens_exact_share": 1.0,
    "trtllm_kv_worst": 0.03,
}
ROUNDING_GIB = 0.005


@dataclass(frozen=True, slots=True)
class Scored:
    """A case with its prediction."""

    case: Case
    predicted: MemoryLedger

    @property
    def kv_error(self) -> float | None:
        """(predicted - measured) / measured KV GiB, tokens where only they were logged.

        A refused start (negative pool) counts against the budget instead.
        """
        measured = self.case.kv_gib
        if measured is None:
            tokens = self.case.kv_tokens
            return self.predicted.kv_tokens / tokens - 1 if tokens else None
        base = measured if measured > 0 else self.predicted.budget_gib
        return (self.predicted.kv_gib - measured) / base

    @property
    def weights_error(self) -> float | None:
        """(predicted - measured) / measured weights."""
        measured = self.case.weights_gib
        return None if measured is None else (self.predicted.weights_gib - measured) / measured


def run(argv: list[str]) -> dict[str, Any]:
    """Score all rows, print the tables, return the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy memory")
    parser.add_argument("--verbose", action="store_true", help="also list the rows left out")
    parser.add_argument("--peer", action="store_true", help="also score aiconfigurator's estimate of the same rows")
    parser.add_argument("--waste", action="store_true", help="also show KV waste on the traces that ship")
    options = parser.parse_args(argv)
    rows, left = log_cases()
    cases = vector_cases() + rows
    scored, failed = _score(cases)
    left += failed
    vllm = [each for each in scored if each.case.settings.engine is EngineName.VLLM]
    full = [each for each in vllm if _fully_stated(each.case)]
    rest = [each for each in vllm if not _fully_stated(each.case)]
    trtllm = [each for each in scored if each.case.settings.engine is EngineName.TENSORRT_LLM]

    result: dict[str, Any] = {"benchmark": "accuracy memory", "targets": TARGETS}
    odd = [each for each in full if _contradicts_itself(each)]
    print("vLLM, settings fully stated (version, model, GPU, utilisation, parallel sizes)")
    result["vllm"] = _table([each for each in full if each not in odd])
    print("\nvLLM, rows that contradict themselves: logged weights + KV exceed utilisation x total memory")
    result["vllm_contradictory"] = _table(odd)
    result["vllm_with_contradictory"] = _figures(full)
    print(f"  all fully stated rows, these included: {result['vllm_with_contradictory']}")
    print("\nvLLM, version or utilisation not stated: the defaults stand in; shown, not in the figures above")
    result["vllm_partly_stated"] = _table(rest)
    result["intervals"] = _intervals([each for each in full if each not in odd])
    print("\nKV tokens from the engine's own GiB (two decimals, so a range)")
    result["tokens"] = _tokens(full + trtllm)
    print("  rows not fully stated (KV type, speculation or version unknown):")
    result["tokens_partly_stated"] = _tokens(rest)
    print("\nTensorRT-LLM: pool from the free memory logged before it")
    result["trtllm"] = _trtllm(trtllm)
    if options.peer:
        result["peer"] = _peer(full)
    if options.waste:
        result["kv_waste"] = kv_waste.table()
    result["left_out"] = _left_out(left, options.verbose)
    return result


def _score(cases: list[Case]) -> tuple[list[Scored], list[LeftOut]]:
    scored: list[Scored] = []
    failed: list[LeftOut] = []
    for case in cases:
        try:
            resolved = resolve(case.settings, case.model, case.gpu)
            predicted = ledger(case.model, case.gpu, resolved, total_gib=case.total_gib)
            scored.append(Scored(case, predicted))
        except PlannerError as error:
            failed.append(LeftOut(case.row, str(error)))
    return scored, failed


def _fully_stated(case: Case) -> bool:
    settings = case.settings
    stated = settings.version is not None and settings.gpu_memory_utilization is not None
    return stated and not case.version_from_date


def _contradicts_itself(each: Scored) -> bool:
    """Whether no accounting can be right: what the engine logged is more than what it was allowed (unified memory)."""
    case = each.case
    return (case.weights_gib or 0.0) + (case.kv_gib or 0.0) > each.predicted.budget_gib


def _table(rows: list[Scored]) -> dict[str, Any]:
    print(f"{'row':8} {'model':34} {'par':>7} {'weights':>15} {'activation':>13} {'KV GiB':>15} {'error':>7}")
    for each in sorted(rows, key=lambda each: -abs(each.kv_error or 0.0)):
        case, got = each.case, each.predicted
        parallel = f"TP{case.settings.tp}" + (f"PP{case.settings.pp}" if case.settings.pp > 1 else "")
        error = each.kv_error
        shown = "" if error is None else f"{error:+7.1%}"
        print(
            f"{case.row:8} {case.model.model_id.rsplit('/', 1)[-1][:34]:34} {parallel:>7} "
            f"{got.weights_gib:7.2f}{_plain(case.weights_gib, 8)} {got.activation_gib:6.2f}"
            f"{_plain(case.activation_gib, 7)} {got.kv_gib:7.2f}{_plain(case.kv_gib, 8)} {shown}  {case.note[:60]}"
        )
    figures = _figures(rows)
    print("  " + ", ".join(f"{name} {value}" for name, value in figures.items()))
    return figures


def _figures(rows: list[Scored]) -> dict[str, Any]:
    errors = [abs(each.kv_error) for each in rows if each.kv_error is not None]
    weights = [abs(each.weights_error) for each in rows if each.weights_error is not None]
    return {
        "rows": len(rows),
        "kv_rows": len(errors),
        "kv_mae": round(mean(errors), 5) if errors else None,
        "kv_worst": round(max(errors), 5) if errors else None,
        "weights_rows": len(weights),
        "weights_mae": round(mean(weights), 5) if weights else None,
        "weights_worst": round(max(weights), 5) if weights else None,
    }


def _plain(value: float | None, width: int) -> str:
    return " " * width if value is None else f"/{value:<{width - 1}.2f}"


def _intervals(rows: list[Scored]) -> dict[str, Any]:
    """Residuals by evidence, and how many of the rows their 80 % interval holds; ``planner.memory.intervals`` is fitted
    on the quantiles printed here."""
    print("\nvLLM, absolute residuals of the KV pool in GiB by evidence, and rows inside their 80 % interval")
    figures: dict[str, Any] = {}
    for evidence in sorted({each.predicted.evidence.value for each in rows}):
        chosen = [each for each in rows if each.predicted.evidence.value == evidence and each.case.kv_gib is not None]
        off = sorted(abs((each.case.kv_gib or 0.0) - each.predicted.kv_gib) for each in chosen)
        rank = min(len(off), math.ceil(0.8 * (len(off) + 1)))
        bands = [(each.case.kv_gib or 0.0, each.predicted.kv_gib_80) for each in chosen]
        inside = sum(1 for measured, band in bands if band is not None and band.low <= measured <= band.high)
        figures[evidence] = {
            "rows": len(off),
            "quantile_gib": round(off[rank - 1], 3),
            "worst_gib": round(off[-1], 3),
            "inside": inside,
        }
        print(f"  {evidence}: {figures[evidence]}")
    return figures


def _tokens(rows: list[Scored]) -> dict[str, Any]:
    exact, wrong = 0, []
    for each in rows:
        case = each.case
        if case.kv_gib is None or case.kv_tokens is None or case.kv_gib <= 0:
            continue
        resolved = resolve(case.settings, case.model, case.gpu)
        low = kv_tokens_from_gib(case.model, resolved, case.kv_gib - ROUNDING_GIB)
        high = kv_tokens_from_gib(case.model, resolved, case.kv_gib + ROUNDING_GIB)
        concurrency = case.max_concurrency
        told = concurrency is None or low[2] - 0.0051 <= concurrency <= high[2] + 0.0051
        if low[1] <= case.kv_tokens <= high[1] and told:
            exact += 1
        else:
            wrong.append(
                f"{case.row} {case.model.model_id}: {low[1]}..{high[1]}, logged {case.kv_tokens} ({case.note[:70]})"
            )
    for line in wrong:
        print("  outside:", line)
    total = exact + len(wrong)
    print(f"  exact within the rounding of the GiB: {exact} of {total}")
    return {"rows": total, "exact": exact, "exact_share": round(exact / total, 4) if total else None}


def _trtllm(rows: list[Scored]) -> dict[str, Any]:
    errors = []
    for each in rows:
        case, got = each.case, each.predicted
        fraction = case.settings.free_gpu_memory_fraction
        rule = ""
        if case.free_before_kv_gib and case.kv_gib and fraction:
            error = case.free_before_kv_gib * fraction / case.kv_gib - 1
            errors.append(abs(error))
            rule = f"rule {case.free_before_kv_gib * fraction:7.2f} ({error:+.1%})"
        measured = case.kv_gib or 0.0
        tokens = ""
        if case.kv_gib and case.kv_tokens:
            resolved = resolve(case.settings, case.model, case.gpu)
            tokens = f"tokens {kv_tokens_from_gib(case.model, resolved, case.kv_gib)[1]} / {case.kv_tokens}"
        print(
            f"{case.row:8} {case.model.model_id.rsplit('/', 1)[-1][:30]:30} logged {measured:7.2f} {rule:22} "
            f"whole ledger {got.kv_gib:7.2f}  {tokens}  {case.note[:60]}"
        )
    figures = {
        "rows": len(rows),
        "rule_rows": len(errors),
        "rule_worst": round(max(errors), 5) if errors else None,
    }
    print("  " + ", ".join(f"{name} {value}" for name, value in figures.items()))
    return figures


def _peer(rows: list[Scored]) -> dict[str, Any]:
    """aiconfigurator and the ledger on the rows that both can answer."""
    theirs, ours = [], []
    for each in rows:
        measured = each.case.kv_gib
        if measured is None or measured <= 0 or _contradicts_itself(each):
            continue
        answer = peer_kv_gib(each.case)
        if answer is not None:
            theirs.append(abs(answer / measured - 1))
            ours.append(abs(each.kv_error or 0.0))
    figures: dict[str, Any] = {"rows": len(theirs)}
    if theirs:
        figures |= {"peer_mae": round(mean(theirs), 5), "peer_worst": round(max(theirs), 5)}
        figures |= {"kv_mae": round(mean(ours), 5), "kv_worst": round(max(ours), 5)}
    print(f"\naiconfigurator on the rows it can answer: {figures}")
    return figures


def _left_out(left: list[LeftOut], verbose: bool) -> dict[str, Any]:
    reasons = Counter(each.why.split(" (got")[0][:70] for each in left)
    print(f"\n{len(left)} rows left out:")
    for why, number in reasons.most_common():
        print(f"  {number:3} {why}")
    if verbose:
        for each in left:
            print(f"  {each.row}: {each.why}")
    return {"rows": len(left), "reasons": dict(reasons)}

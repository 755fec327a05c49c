"""``python -m benchmarks speed size``: sizing every shape of both engines for one workload on one GPU type, warm.

aiconfigurator's time for the same shapes (its own estimate at the loads that a sizing tries) stands beside it where the
package is installed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve, support
from planner.errors import PlannerError
from planner.memory import ledger
from planner.serving import Instance, Lengths, Load, SloTarget, largest_load
from planner.steptime import build

SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2))
PRECISIONS = ("as-config", "fp8")
TRIES = 12
"""Loads that one sizing tries: what aiconfigurator is timed at too."""


def run(argv: list[str]) -> dict[str, Any]:
    """Size all candidates twice (cold, warm); returns seconds and the number of candidates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed size")
    parser.add_argument("--model", default="meta-llama/Meta-Llama-3.1-8B")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--limit", type=int, default=0, help="at most so many candidates")
    options = parser.parse_args(argv)
    cold, _ = _size_all(options.model, options.gpu, options.limit)
    warm, sized = _size_all(options.model, options.gpu, options.limit)
    for line in sized:
        print(f"{line['engine']:14s} tp{line['tp']} pp{line['pp']} {line['precision']:10s}"
              f" {line['rate_per_s']:8.2f} requests/s by {line['binding']}")  # fmt: skip
    print(f"{len(sized)} candidates: cold {cold:.2f} s, warm {warm:.2f} s")
    peer = _peer(options.model, options.gpu, sized)
    if peer is not None:
        print(f"aiconfigurator, {peer['estimates']} estimates of the same shapes: {peer['seconds']:.2f} s")
    return {"candidates": len(sized), "cold_s": cold, "warm_s": warm, "aiconfigurator": peer}


def _size_all(model_name: str, gpu_name: str, limit: int) -> tuple[float, list[dict[str, Any]]]:
    started = time.perf_counter()
    model, gpu = get_model(model_name), get_gpu(gpu_name)
    load = Load("open", rate_per_s=1)
    inputs, outputs = Lengths("uniform", low=200, high=1800), Lengths("uniform", low=50, high=350)
    slo = (SloTarget("ttft", "p90", 500.0), SloTarget("tpot", "p90", 25.0))
    sized: list[dict[str, Any]] = []
    for engine in EngineName:
        for tp, pp in SHAPES:
            for precision in PRECISIONS:
                if limit and len(sized) >= limit:
                    break
                settings = EngineSettings(engine, tp=tp, pp=pp, precision=precision)
                if not support(model, gpu, settings).ok:
                    continue
                try:
                    resolved = resolve(settings, model, gpu, expected_len=4096)
                    memory = ledger(model, gpu, resolved)
                    instance = Instance(model, resolved, memory, build(model, gpu, resolved))
                    found = largest_load(instance, load, inputs, outputs, slo=slo)
                except PlannerError as error:
                    print(f"{engine.value} tp{tp} pp{pp} {precision}: {error}")
                    continue
                sized.append(
                    {
                        "engine": engine.value,
                        "tp": tp,
                        "pp": pp,
                        "precision": precision,
                        "rate_per_s": found.rate_per_s,
                        "binding": found.binding,
                    }
                )
    return time.perf_counter() - started, sized


def _peer(model_name: str, gpu_name: str, sized: list[dict[str, Any]]) -> dict[str, float] | None:
    from benchmarks.accuracy.peer import PeerUnavailableError, peer_estimate

    estimates = 0
    seconds = 0.0
    for line in sized:
        request = {
            "model": model_name, "gpu": gpu_name, "engine": line["engine"], "tp": line["tp"], "pp": line["pp"],
            "precision": "bf16" if line["precision"] == "as-config" else line["precision"],
        }  # fmt: skip
        for attempt in range(TRIES):
            try:
                started = time.perf_counter()
                peer_estimate(request, isl=1000, osl=200, batch=2 ** min(attempt, 9))
                seconds += time.perf_counter() - started
                estimates += 1
            except PeerUnavailableError:
                break
    return {"estimates": estimates, "seconds": seconds} if estimates else None

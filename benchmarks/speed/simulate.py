"""``python -m benchmarks speed simulate``: simulated requests per second on one core, and a day of a trace.

An 8B model on one H200, Poisson arrivals of 12 requests/s a replica. Times are of the processor, so that other work on
the machine does not count; the wall clock is printed beside them. Compilation (first use) is told apart.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from planner.catalog import get_gpu, get_model, get_trace
from planner.engines import EngineName, EngineSettings, resolve
from planner.memory import ledger
from planner.serving import Instance, Lengths, Load, simulate
from planner.steptime import build


def run(argv: list[str]) -> dict[str, Any]:
    """Time the simulator; returns requests per second and seconds for a day of a real trace."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed simulate")
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--limit", type=int, default=0, help="at most so many requests")
    options = parser.parse_args(argv)
    count = min(options.requests, options.limit) if options.limit else options.requests
    result: dict[str, Any] = {}
    model, gpu = get_model("meta-llama/Meta-Llama-3.1-8B"), get_gpu("H200")
    inputs, outputs = Lengths("uniform", low=200, high=1800), Lengths("uniform", low=50, high=350)
    for engine in EngineName:
        resolved = resolve(EngineSettings(engine), model, gpu, expected_len=4096)
        memory = ledger(model, gpu, resolved)
        started = time.perf_counter()
        step = build(model, gpu, resolved)
        built = time.perf_counter() - started
        instance = Instance(model, resolved, memory, step)
        first = _timed(instance, Load("open", rate_per_s=12, requests=100), inputs, outputs)
        load = Load("open", rate_per_s=12, requests=count)
        best, wall = min(_timed(instance, load, inputs, outputs) for _ in range(3))
        result[engine.value] = {
            "requests_per_s": count / best,
            "requests_per_wall_s": count / wall,
            "requests": count,
            "first_call_s": first[1],
            "step_tables_s": built,
        }
        print(
            f"{engine.value:14s} {count / best:12,.0f} simulated requests/s ({count:,} requests in {best:.2f} s of one"
            f" core, {wall:.2f} s wall; step tables {built:.2f} s, first call {first[1]:.2f} s)"
        )
    result["day_of_trace"] = _day(count)
    return result


def _timed(instance: Instance, load: Load, inputs: Lengths, outputs: Lengths) -> tuple[float, float]:
    """Processor and wall seconds of one simulation."""
    cpu, wall = time.process_time(), time.perf_counter()
    simulate(instance, load, inputs, outputs)
    return time.process_time() - cpu, time.perf_counter() - wall


def _day(count: int) -> dict[str, float]:
    """A day at the arrivals of a real trace (57 minutes of production, repeated), on as many replicas as it needs."""
    trace = get_trace("azure_2023_code")
    if trace.times_s is None:
        raise SystemExit("the trace has no arrival times")
    span = float(trace.times_s[-1]) + 1.0
    rounds = max(1, min(int(86_400 / span), count // trace.times_s.size + 1))
    times = np.concatenate([trace.times_s + i * span for i in range(rounds)])
    model, gpu = get_model("meta-llama/Meta-Llama-3.1-8B"), get_gpu("H200")
    resolved = resolve(EngineSettings(EngineName.VLLM), model, gpu, expected_len=16_384)
    memory, step = ledger(model, gpu, resolved), build(model, gpu, resolved)
    load = Load("open", arrival="trace", times_s=tuple(times.tolist()))
    inputs = Lengths("samples", samples=tuple(np.tile(trace.input_tokens, rounds).tolist()))
    outputs = Lengths("samples", samples=tuple(np.tile(trace.output_tokens, rounds).tolist()))
    started = time.process_time()
    simulated = simulate(Instance(model, resolved, memory, step), load, inputs, outputs)
    took = time.process_time() - started
    hours = rounds * span / 3600.0
    print(f"{hours:.1f} h of a real trace ({simulated.requests:,} requests): {took:.2f} s")
    return {"seconds": took, "hours": hours, "requests": simulated.requests}

"""``python -m benchmarks speed sessions``: sizing a chat of users who pause between turns, as a plan does, warm.

Every shape of both engines on one GPU type, knobs tuned, within limits on the first token and between tokens. Times
are of the processor. The step tables are made before, by a first pass over the same shapes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any

from planner.economics.types import GpuHourPrice
from planner.placement import candidates as sizing
from planner.plan_types import Candidate, PlanNode, PlanRequest, PlanWorkload
from planner.serving import Lengths, Load, SloTarget

USERS = 300


def run(argv: list[str]) -> dict[str, Any]:
    """Size all candidates of the chat; returns processor seconds and how many candidates there are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed sessions")
    parser.add_argument("--model", default="meta-llama/Meta-Llama-3.1-8B")
    parser.add_argument("--gpu", default="H100-SXM5-80GB")
    parser.add_argument("--limit", type=int, default=0, help="at most so many GPUs in the node")
    options = parser.parse_args(argv)
    gpus = min(8, options.limit) if options.limit else 8
    price = GpuHourPrice(Decimal("2.0000"), "rental", "any")
    node = PlanNode(name="node", pool="pool", site="site", gpu=options.gpu, gpus=gpus, nvlink_domain=gpus, price=price)
    chat = PlanWorkload(
        name="chat",
        model=options.model,
        load=Load("closed", concurrency=USERS, turns=_uniform(2, 14), think_s=20.0, shared_tokens=400),
        input_tokens=_uniform(50, 800),
        output_tokens=_uniform(100, 500),
        slo=(SloTarget("ttft", "p90", 800.0), SloTarget("tpot", "mean", 40.0)),
        allowed_precisions=("as-config", "fp8"),
    )
    _sized(replace(chat, load=replace(chat.load, concurrency=1, requests=8)), node)
    seconds, found = _sized(chat, node)
    able = [candidate for candidate in found if candidate.status == "ok"]
    for candidate in able:
        users = round(candidate.replica_share * USERS)
        print(f"{candidate.id:55s} {users:5d} users {candidate.replica_rate_per_s:7.2f} requests/s a replica")
    print(f"{len(able)} candidates of {USERS} users: {seconds:.2f} s of one core")
    return {"candidates": len(able), "seconds": seconds}


def _uniform(low: int, high: int) -> Lengths:
    return Lengths("uniform", low=low, high=high)


def _sized(workload: PlanWorkload, node: PlanNode) -> tuple[float, tuple[Candidate, ...]]:
    request = PlanRequest(name="sessions", nodes=(node,), workloads=(workload,))
    started = time.process_time()
    found = sizing.candidates(workload, request)
    return time.process_time() - started, found

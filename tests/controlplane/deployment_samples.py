"""An engine's worker as the tests play it, and what its probe measures."""

from __future__ import annotations

import time
from typing import Any

from controlplane.core.models import User
from controlplane.deployments import services
from controlplane.deployments.models import Deployment
from controlplane.jobs import observing
from controlplane.jobs.models import Job
from planner.jsonio import to_json
from runners.contracts import (
    Observation,
    ProbeLoad,
    ProbeMetrics,
    StartupFacts,
)

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


LOAD = ProbeLoad(input_tokens=128, output_tokens=32, concurrency=2, requests=8)


class Worker:
    """Answers commands the way a node worker does."""

    def __init__(self, job: Job, node: str = "n1") -> None:
        self.job, self.node, self.sequence = job, node, 0

    def say(self, state: Any, **values: Any) -> str:
        self.sequence += 1
        about = {"job_id": str(self.job.pk), "attempt": 1, "sequence": self.sequence, "node": self.node}
        seen = Observation(state=state, at=time.time(), **about, **values)
        return observing.apply_observation(to_json(seen))


def make_ready(deployment: Deployment, actor: User, **extra: Any) -> Worker:
    worker = Worker(services.launch_deployment(actor=actor, deployment=deployment, **extra))
    worker.say("started")
    worker.say("ready", base_url="http://10.0.0.1:18100", pid=77, startup=StartupFacts(kv_tokens=1000))
    deployment.refresh_from_db()
    assert deployment.state == Deployment.State.READY
    return worker


def measured(output: float = 100.0, ttft: float = 50.0, tpot: float = 10.0) -> ProbeMetrics:
    def spread(value: float) -> dict[str, float]:
        return {"mean": value, "p50": value, "p90": value * 1.1, "p95": value * 1.2, "p99": value * 1.3}

    return ProbeMetrics(
        requests=8, completed=8, failed=0, duration_s=10.0, output_tok_per_s=output, total_tok_per_s=output * 5,
        req_per_s=1.0, ttft_ms=spread(ttft), tpot_ms=spread(tpot), itl_ms=spread(tpot), e2e_ms=spread(ttft + 31 * tpot),
        achieved_concurrency=2.0, mean_input_tokens=128, mean_output_tokens=32,
    )  # fmt: skip

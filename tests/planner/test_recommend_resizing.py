"""Candidates sized again for other lengths: none drops out for a setting that an operator would raise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_samples import node, request, workload

from planner.placement.candidates import candidates
from planner.recommend.resizing import lengthened, redeployed, resized, times_expected
from planner.serving.types import Lengths, Load, SloTarget


def test_longer_prompts_get_the_step_that_they_need() -> None:
    """TensorRT-LLM without chunked prefill refuses a prompt above its token budget. Sized for longer turns with the
    budget of today's it carried nothing, and the answer seemed to flip to vLLM there.
    """
    chat = workload(
        "chat",
        load=Load("closed", concurrency=100, turns=Lengths("uniform", low=2, high=10), think_s=20.0),
        input_tokens=Lengths("uniform", low=50, high=800),
        output_tokens=Lengths("uniform", low=100, high=500),
        slo=(SloTarget("ttft", "p90", 5000.0), SloTarget("tpot", "mean", 60.0)),
        allowed_engines=("tensorrt_llm",),
    )
    asked = request([node("a", gpus=1)], [chat])
    found = next(c for c in candidates(chat, asked) if c.status == "ok" and c.sharers == 1)
    made = redeployed(chat, found, asked)
    if made.resolved.enable_chunked_prefill:
        resolved = replace(made.resolved, enable_chunked_prefill=False, max_num_batched_tokens=10_000)
        made = replace(made, resolved=resolved)
    longer = replace(chat, input_tokens=Lengths("uniform", low=100, high=1600))
    assert resized([found], {found.id: made}, longer, asked) == []
    fitting = {found.id: lengthened(made, found, longer, asked)}
    sized = resized([found], fitting, longer, asked, times_expected([found], {found.id: made}, chat))
    assert 0 < sized[0].replica_share < found.replica_share
    assert lengthened(made, found, chat, asked) is made
    assert times_expected(sized, fitting, longer)[found.id] == pytest.approx(1.0, abs=0.7)

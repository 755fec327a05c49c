"""Speculation with a stated acceptance, and adapters, from the request to the step."""

from __future__ import annotations

from typing import Any

import pytest

from planner.estimate import estimate
from planner.steptime.variants import accepted_drafts
from tests.planner.steptime_samples import H200, step

REQUEST: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": H200, "engine": "vllm", "tp": 4,
    "load": {"kind": "closed", "concurrency": 4, "requests": 16}, "input_tokens": 256, "output_tokens": 256,
}  # fmt: skip


@pytest.mark.parametrize(("rate", "drafts", "tokens"), [(0.0, 3, 1.0), (1.0, 3, 4.0), (0.8, 3, 2.952), (0.6, 1, 1.6)])
def test_tokens_a_step_follow_the_geometric_series(rate: float, drafts: int, tokens: float) -> None:
    assert 1 + accepted_drafts(rate, drafts) == pytest.approx(tokens)
    if rate < 1:
        assert tokens == pytest.approx((1 - rate ** (drafts + 1)) / (1 - rate))


def test_accepted_drafts_shorten_the_time_between_tokens_and_rejected_ones_lengthen_it() -> None:
    plain = estimate(REQUEST)["perf"]["tpot_ms"]["mean"]
    times = [
        estimate({**REQUEST, "speculative_tokens": 3, "acceptance_rate": rate})["perf"]["tpot_ms"]["mean"]
        for rate in (0.0, 0.5, 0.9)
    ]
    assert times[0] > plain > times[1] > times[2] > plain / 4


def test_speculation_without_an_acceptance_says_so() -> None:
    answer = estimate({**REQUEST, "speculative_tokens": 2})
    assert answer["status"] == "ok"
    assert any("acceptance_rate" in reason for reason in answer["reasons"])


@pytest.mark.parametrize("extra", [{"acceptance_rate": 0.5}, {"speculative_tokens": 2, "acceptance_rate": 1.2}])
def test_a_meaningless_acceptance_is_an_error(extra: dict[str, Any]) -> None:
    answer = estimate({**REQUEST, **extra})
    assert answer["status"] == "error"
    assert "acceptance_rate" in answer["reasons"][0]


def test_adapters_lengthen_every_step_more_with_their_rank() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    none, small, large = (
        step(model, H200, max_loras=loras, max_lora_rank=rank).decode_ms(32, 1024.0)
        for loras, rank in ((0, 16), (4, 16), (4, 64))
    )
    assert none < small < large < 2 * none

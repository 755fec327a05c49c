"""Waste inside the KV pool: the shares add up, paging wins, and the literature's figures come out of a real trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import get_trace
from planner.errors import InputError
from planner.fragmentation import kv_waste


@pytest.mark.parametrize("name", ["azure_2023_code"])
def test_literature_waste_and_gain_on_a_production_trace(name: str) -> None:
    trace = get_trace(name)
    report = kv_waste(trace.input_tokens.clip(1)[:4000], trace.output_tokens.clip(1)[:4000], 476_016)
    contiguous = report.policy("contiguous")
    assert 0.60 <= contiguous.waste <= 0.80
    assert 2.0 <= report.concurrency_gain <= 4.0
    assert report.policy("paged").waste < 0.05
    assert "what the literature reports" in report.sentence


def test_output_reserved_up_front_costs_concurrency() -> None:
    trace = get_trace("lengths_mlperf_llama2_70b_99")
    prompts, outputs = trace.input_tokens.clip(1)[:3000], trace.output_tokens.clip(1)[:3000]
    report = kv_waste(prompts, outputs, 100_000, max_model_len=2048)
    paged, reserved = report.policy("paged"), report.policy("paged_reserved")
    assert reserved.preemptions == 0
    assert reserved.concurrency < paged.concurrency
    assert reserved.reserved_later_share > 0.1
    careless = kv_waste(prompts, outputs, 100_000, max_model_len=2048, output_limit=2048)
    assert careless.policy("paged_reserved").concurrency < 0.5 * reserved.concurrency
    assert careless.policy("paged_reserved").reserved_never_share > 0.3


def test_one_block_for_each_request_by_hand() -> None:
    # 4 requests of 15 + 1 tokens on two blocks of 16: two run at a time, every block is full when they end.
    report = kv_waste([15] * 4, [1] * 4, 32, block_tokens=16, max_model_len=16)
    for policy in report.policies:
        assert policy.peak_concurrency == 2
        assert policy.preemptions == 0
    assert report.concurrency_gain == pytest.approx(1.0)


def test_preempted_requests_are_computed_again() -> None:
    report = kv_waste([16] * 8, [200] * 8, 512, max_model_len=256)
    paged = report.policy("paged")
    assert paged.preemptions > 0
    assert paged.recomputed_tokens > 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([1, 2], [1], 100), "input_tokens"),
        (([], [], 100), "input_tokens"),
        (([0], [1], 100), "input_tokens"),
        (([90], [20], 64), "pool_tokens"),
    ],
)
def test_errors_name_the_field(arguments: tuple, field: str) -> None:
    with pytest.raises(InputError) as caught:
        kv_waste(*arguments)
    assert caught.value.field == field


def test_a_request_beyond_the_context_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        kv_waste([100], [100], 4096, max_model_len=128)
    assert caught.value.field == "max_model_len"


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 200)), min_size=1, max_size=60),
    pool_factor=st.integers(1, 8),
    block=st.sampled_from([1, 16, 32]),
)
def test_shares_add_up_and_never_exceed_the_pool(lengths: list[tuple[int, int]], pool_factor: int, block: int) -> None:
    prompts, outputs = np.array(lengths).T
    report = kv_waste(prompts, outputs, 512 * pool_factor + 31, block_tokens=block, max_model_len=512)
    for policy in report.policies:
        parts = (
            policy.live_share
            + policy.last_block_share
            + policy.reserved_later_share
            + policy.reserved_never_share
            + policy.free_share
        )
        assert parts == pytest.approx(1.0)
        for share in (policy.live_share, policy.last_block_share, policy.reserved_never_share, policy.free_share):
            assert -1e-9 <= share <= 1.0 + 1e-9
        assert max(policy.series_held) <= 1.0
        assert all(live <= held + 1e-12 for live, held in zip(policy.series_live, policy.series_held, strict=True))

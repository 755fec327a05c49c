"""How far the preemption cliff is (cases H18 and H20)."""

from __future__ import annotations

import pytest
from memory_samples import account, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import resolve
from planner.errors import InputError
from planner.memory import preemption_cliff

QWEN = "Qwen/Qwen2.5-7B-Instruct"


def cliff(settings, total_gib: float, concurrency: int | None, sizes: tuple[int, int] = (1000, 5000)):
    model = get_model(QWEN)
    memory = account(model, h100(), settings, total_gib=total_gib)
    resolved = resolve(settings, model, h100())
    return memory, preemption_cliff(
        model, resolved, memory, input_tokens=sizes[0], output_tokens=sizes[1], concurrency=concurrency
    )


def test_h20_a_pool_of_300_thousand_tokens_preempts_at_128_long_requests() -> None:
    memory, got = cliff(vllm("0.24.0", max_model_len=8192), 36.25, 128)
    assert memory.kv_tokens == pytest.approx(299_584, rel=0.02)
    assert got.safe_sequences < got.mean_sequences < 128
    assert got.load is not None
    assert got.load > 1.0
    assert "expect preemption" in got.sentence


def test_h18_a_few_blocks_less_move_the_cliff() -> None:
    _, roomy = cliff(vllm("0.24.0", max_model_len=8192), 36.25, None)
    _, tight = cliff(vllm("0.24.0", max_model_len=8192), 35.25, None)
    assert tight.mean_sequences < roomy.mean_sequences
    assert roomy.load is None


def test_enough_room_says_what_bounds_instead() -> None:
    _, got = cliff(vllm("0.24.0", max_model_len=8192, max_num_seqs=16), 79.0, 64, (100, 100))
    assert got.limit == "max_num_seqs"
    assert "no preemption" in got.sentence


def test_reserved_output_queues_instead() -> None:
    _, got = cliff(trtllm(max_model_len=8192), 40.0, 500)
    assert "queueing" in got.sentence
    assert got.load is not None
    assert got.load > 1.0


def test_lengths_beyond_the_context_are_an_error() -> None:
    with pytest.raises(InputError) as caught:
        cliff(vllm("0.24.0", max_model_len=2048), 79.0, None)
    assert caught.value.field == "max_model_len"

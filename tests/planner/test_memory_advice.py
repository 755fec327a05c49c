"""What would make it fit, and how sure a fit is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_samples import account, gpu, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import EngineName
from planner.errors import InputError
from planner.memory import advise, fewer_sequences, largest_context

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"total_gib": 0.0}, "gpu_memory_gib"),
        ({"total_gib": -3.0}, "gpu_memory_gib"),
        ({"used_by_others_gib": 99.0}, "used_by_others_gib"),
    ],
)
def test_absurd_sizes_name_their_field(options: dict[str, float], field: str) -> None:
    with pytest.raises(InputError) as caught:
        account(LLAMA_8B, h100(), vllm(), **options)
    assert caught.value.field == field


def test_largest_context_is_where_the_engine_still_starts() -> None:
    model = get_model("Qwen/Qwen3-32B")
    settings = vllm("0.24.0")
    longest = largest_context(model, h100(), settings)
    assert account(model, h100(), replace(settings, max_model_len=longest)).fits
    assert (
        longest == model.max_position or not account(model, h100(), replace(settings, max_model_len=longest + 16)).fits
    )


def test_every_remedy_makes_it_fit() -> None:
    model = get_model(LLAMA_70B)
    for engine in EngineName:
        settings = vllm("0.24.0", tp=2) if engine is EngineName.VLLM else trtllm(tp=2)
        assert not account(model, h100(), settings).fits
        remedies = advise(model, h100(), settings)
        assert remedies
        for remedy in remedies:
            changes = {remedy.field: remedy.value}
            if remedy.field == "max_num_batched_tokens":
                changes["max_num_seqs"] = min(settings.max_num_seqs or int(remedy.value), int(remedy.value))
            assert account(model, h100(), replace(settings, **changes)).fits, remedy


def test_sequences_are_lowered_until_a_default_starts() -> None:
    model = get_model("Qwen/Qwen3.5-35B-A3B")
    settings = trtllm(max_model_len=8192)
    assert not account(model, gpu("H200"), settings).fits
    lowered = fewer_sequences(model, gpu("H200"), settings)
    assert lowered.max_num_seqs in (256, 512, 1024)
    assert account(model, gpu("H200"), lowered).fits
    assert not account(model, gpu("H200"), replace(lowered, max_num_seqs=2 * int(lowered.max_num_seqs or 0))).fits
    fine = vllm("0.24.0", max_model_len=8192)
    assert fewer_sequences(get_model(LLAMA_8B), h100(), fine) is fine
    hopeless = vllm("0.24.0", max_model_len=8192)
    assert fewer_sequences(get_model(LLAMA_70B), h100(), hopeless) is hopeless


def test_an_interval_that_holds_the_need_says_so() -> None:
    settings = vllm("0.24.0", max_model_len=4096)
    roomy = account(LLAMA_8B, h100(), settings)
    used = roomy.budget_gib - roomy.kv_gib
    tight = account(LLAMA_8B, h100(), settings, total_gib=(used + 0.55) / 0.92)
    assert tight.fits
    assert "it may not start" in tight.sentence
    assert "it may not start" not in roomy.sentence

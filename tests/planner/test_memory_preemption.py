"""The simulator on a pool far too small for its load (case H19): preemption must cost, never pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_samples import account, gpu, vllm

from planner.catalog import get_model
from planner.engines import resolve
from planner.memory import preemption_cliff
from planner.serving import Instance, Lengths, Load, simulate
from planner.steptime import build

MODEL = "Qwen/Qwen2.5-7B-Instruct"
TOKENS_IN, TOKENS_OUT = 256, 512


def test_h19_throughput_does_not_explode_when_the_pool_is_short() -> None:
    model, card = get_model(MODEL), gpu("H100-SXM5-80GB")
    settings = vllm("0.24.0", max_model_len=1024)
    resolved = resolve(settings, model, card)
    whole = account(model, card, settings)
    small = replace(whole, kv_blocks=68 * 48, kv_tokens=68 * 48 * 16)  # about 68 requests of 768 tokens
    limits = preemption_cliff(model, resolved, small, input_tokens=TOKENS_IN, output_tokens=TOKENS_OUT)
    assert limits.safe_sequences == pytest.approx(68, abs=1)
    step = build(model, card, resolved)

    def run(memory, users: int):
        load = Load("closed", concurrency=users, requests=1024)
        lengths = Lengths("fixed", value=TOKENS_IN), Lengths("fixed", value=TOKENS_OUT)
        return simulate(Instance(model, resolved, memory, step), load, *lengths)

    crowded, fitting, roomy = run(small, 1024), run(small, 64), run(whole, 1024)
    assert crowded.preemptions > 0
    # A full pool runs about as many requests as fit; those put back compute again what others were given.
    assert crowded.output_tok_per_s < 1.35 * fitting.output_tok_per_s
    assert crowded.output_tok_per_s < roomy.output_tok_per_s

"""How far the preemption cliff is (cases H18 and H20), as a count and in simulated runs of the estimate contract."""

from __future__ import annotations

from typing import Any

import pytest
from memory_samples import account, answer, h100, pool_of, trtllm, vllm

from planner.catalog import get_model
from planner.engines import command_line, resolve
from planner.errors import InputError
from planner.memory import memory_report, preemption_cliff

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
    assert got.spare is not None
    assert got.spare < -0.4, "half as much again is missing"
    assert "expect preemption" in got.sentence


def test_h20_preemptions_and_what_a_watermark_saves_as_measured() -> None:
    """vllm-project/vllm#44594, one GB200, 16 GiB of KV, 450 requests of 1000/5000 tokens (a fifth either way), 128
    clients: 1,065 preemptions, 11,582 tok/s, E2E p50 51.6 s; with a watermark of 2 % 400, 12,134 and 48.4 s. The median
    TTFT (6.6 and 11.8 s there) is 7.5 and 8.0 s over five seeds here: the rise is not reproduced.
    """

    def run(watermark: float) -> dict[str, Any]:
        got = pool_of(
            16.0001, model=QWEN, gpu="GB200", engine="vllm", engine_version="0.24.0", gpu_memory_utilization=0.9,
            max_model_len=8192, max_num_seqs=256, enable_prefix_caching=False, watermark=watermark,
            load={"kind": "closed", "concurrency": 128, "requests": 450},
            input_tokens={"low": 800, "high": 1200}, output_tokens={"low": 4000, "high": 6000},
        )  # fmt: skip
        assert got["memory"]["kv_tokens"] == 299_584
        return dict(got["perf"])

    none, some = run(0.0), run(0.02)
    assert none["preemptions"] == pytest.approx(1065, rel=0.15)
    assert some["preemptions"] == pytest.approx(400, rel=0.15)
    assert none["output_tok_per_s"] == pytest.approx(11_582, rel=0.05)
    assert some["output_tok_per_s"] == pytest.approx(12_134, rel=0.05)
    assert 1.02 < some["output_tok_per_s"] / none["output_tok_per_s"] < 1.10
    assert 6000 < none["ttft_ms"]["p50"] < 9000
    assert 0.8 * none["ttft_ms"]["p50"] < some["ttft_ms"]["p50"] < 11_800
    assert none["e2e_ms"]["p50"] == pytest.approx(51_600, rel=0.05)
    assert some["e2e_ms"]["p50"] == pytest.approx(48_400, rel=0.05)


def test_h20_a_watermark_belongs_to_the_releases_that_have_it() -> None:
    early = answer(model=QWEN, gpu="H100", engine="vllm", engine_version="0.19.0", watermark=0.02)
    assert early["status"] == "unsupported"
    assert "since 0.24.0" in early["reasons"][0]
    model = get_model(QWEN)
    command = command_line(resolve(vllm("0.24.0", watermark=0.02), model, h100()), "/m", "m", 8000)
    assert command[command.index("--watermark") + 1] == "0.02"


def chat(blocks: int, **load: object) -> dict[str, Any]:
    """Llama-3.1-8B with a pool of ``blocks`` blocks, 512 tokens in and 256 out (sd 50)."""
    got = pool_of(
        (blocks + 0.5) / 512, model="meta-llama/Llama-3.1-8B-Instruct", gpu="H100-SXM5-80GB", engine="vllm",
        engine_version="0.10.2", gpu_memory_utilization=0.9, max_model_len=4096, max_num_seqs=256,
        max_num_batched_tokens=2048, input_tokens={"mean": 512, "sd": 50}, output_tokens={"mean": 256, "sd": 50},
        **load,
    )  # fmt: skip
    assert got["memory"]["kv_blocks"] == blocks
    return dict(got["perf"])


@pytest.mark.parametrize("seed", [42, 123, 456])
def test_h18_a_burst_starts_to_preempt_where_it_was_reported_to(seed: int) -> None:
    """200 requests at 2,000 a second on four replicas: nothing down to 2,200 blocks, then more with each hundred.

    The simulator of the report begins the clock of the first token anew after each preemption (TTFT p99 461, 2,175 and
    3,048 ms); what a client sees is the first token ever sent, and the delay in the whole.
    """
    load = {"load": {"kind": "open", "rate_per_s": 2000, "requests": 200}, "replicas": 4, "seed": seed}
    runs = {blocks: chat(blocks, **load) for blocks in (5000, 2200, 2100, 2000, 1800)}
    assert runs[5000] == runs[2200]
    counts = [runs[blocks]["preemptions"] for blocks in (2200, 2100, 2000, 1800)]
    assert counts[0] == 0 < counts[1]
    assert counts[2] > 2.5 * counts[1]
    assert counts[3] > counts[2]
    assert runs[1800]["e2e_ms"]["p99"] > 1.05 * runs[2200]["e2e_ms"]["p99"]
    assert runs[1800]["ttft_ms"]["p99"] == pytest.approx(runs[2200]["ttft_ms"]["p99"], rel=0.01)


def test_h18_under_a_steady_load_a_few_blocks_are_a_cliff_of_first_tokens() -> None:
    """4.5 and 9 % of the blocks away, requests wait behind those put back: reported 4.7 and 6.6 times the TTFT p99."""
    steady = {"load": {"kind": "open", "rate_per_s": 11.5, "requests": 4000}, "seed": 1}
    roomy, full, less, least = (chat(blocks, **steady) for blocks in (5000, 2200, 2100, 2000))
    assert (roomy["preemptions"], full["ttft_ms"]["p99"] < 1.5 * roomy["ttft_ms"]["p99"]) == (0, True)
    assert less["ttft_ms"]["p99"] > 2.5 * full["ttft_ms"]["p99"]
    assert least["ttft_ms"]["p99"] > 4.5 * full["ttft_ms"]["p99"]
    assert full["preemptions"] < less["preemptions"] < least["preemptions"]
    assert least["req_per_s"] == pytest.approx(full["req_per_s"], rel=0.001), "throughput does not tell"


def test_h18_the_margin_to_the_cliff_is_stated() -> None:
    """50 requests of 512 and 256 tokens on a replica with 2,200 blocks: 9 % fewer and it is short on average."""
    model, settings = get_model("meta-llama/Llama-3.1-8B-Instruct"), vllm("0.10.2", max_model_len=4096)
    whole = memory_report(model, h100(), settings).ledger
    assert whole is not None
    total = whole.total_gib + (2200.5 / 512 - whole.kv_gib) / 0.9
    sizes = {"total_gib": total, "input_tokens": 512, "output_tokens": 256}
    near = memory_report(model, h100(), settings, concurrency=50, **sizes).cliff  # type: ignore[arg-type]
    far = memory_report(model, h100(), settings, concurrency=30, **sizes).cliff  # type: ignore[arg-type]
    assert near is not None
    assert far is not None
    assert (near.safe_sequences, near.mean_sequences) == (45, 54)
    assert near.spare == pytest.approx(1 - 50 * 40 / 2199)
    assert "with 9.0% fewer blocks it is short on average" in near.sentence
    assert far.spare == pytest.approx(1 - 30 * 48 / 2199)
    assert "with 34.5% fewer blocks some may be preempted" in far.sentence


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

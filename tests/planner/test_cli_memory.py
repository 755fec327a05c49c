"""``python -m planner memory``: words, JSON and exit status."""

from __future__ import annotations

import json

import pytest

from planner.cli import main


def ask(*arguments: str) -> int:
    return main(["memory", *arguments])


def test_what_fits_is_a_table_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status = ask(
        "Qwen/Qwen3-8B", "H100", "--max-model-len", "8192", "--input-tokens", "2000", "--output-tokens", "300",
        "--concurrency", "64", "--trace", "lengths_mlperf_llama3_1_8b_datacenter",
    )  # fmt: skip
    text = capsys.readouterr().out
    assert status == 0
    assert text.startswith("Fits with")
    assert "KV cache, 80 %" in text
    assert "Nothing is preempted up to" in text
    assert "vllm serve Qwen/Qwen3-8B" in text
    assert "paged_reserved" in text


def test_what_does_not_fit_says_what_would_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("meta-llama/Llama-3.1-70B-Instruct", "H100", "--tp", "2") == 1
    text = capsys.readouterr().out
    assert text.startswith("Does not fit. One request of 131,072 tokens needs")
    assert "4 GPUs (tensor parallelism of 4) would fit." in text


def test_json_holds_the_whole_report(capsys: pytest.CaptureFixture[str]) -> None:
    status = ask(
        "meta-llama/Llama-3.1-8B-Instruct", "H100", "--engine", "tensorrt_llm", "--max-model-len", "8192", "--json"
    )
    answer = json.loads(capsys.readouterr().out)
    assert status == 0
    assert answer["status"] == "ok"
    assert answer["ledger"]["block_tokens"] == 32
    assert answer["command_line"][0] == "trtllm-serve"
    assert "kv_cache_config" in answer["config_files"]["llm-api.yaml"]


def test_what_cannot_run_exits_1_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("Qwen/Qwen3-8B", "MI300X", "--engine", "tensorrt_llm") == 1
    assert "NVIDIA GPUs only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("Qwen/Qwen3-8B", "abacus"), "gpu"),
        (("nobody/nothing", "H100"), "model"),
        (("Qwen/Qwen3-8B", "H100", "--gpu-memory-gib", "-3"), "gpu_memory_gib"),
        (("Qwen/Qwen3-8B", "H100", "--max-num-seqs", "0"), "max_num_seqs"),
        (("Qwen/Qwen3-8B", "H100", "--trace", "none"), "trace"),
    ],
)
def test_a_wrong_question_exits_2_and_names_the_field(
    arguments: tuple[str, ...], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(*arguments) == 2
    assert field in capsys.readouterr().err

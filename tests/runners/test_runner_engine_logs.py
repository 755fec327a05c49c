"""Readers of start-up logs and metrics, on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.engines.base import clean_lines
from runners.engines.emulated.adapter import EmulatedAdapter
from runners.engines.tensorrt_llm import TensorRtAdapter
from runners.engines.vllm import VLLM_METRICS, VllmAdapter
from runners.engines.vllm_cpu import VllmCpuAdapter
from runners.probe.scrape import read_cache_info, read_counters

DATA = Path(__file__).parent.parent / "data" / "engine_logs"


def lines_of(name: str) -> list[str]:
    return clean_lines((DATA / name).read_text(encoding="utf-8"))


def test_vllm_says_what_it_loaded_and_laid_out() -> None:
    facts = VllmAdapter().parse_startup(lines_of("vllm_0.24.0_h200.log"))
    assert facts.engine_version == "0.24.0"
    assert facts.weights_gib == 15.27
    assert facts.load_s == pytest.approx(2.207, abs=1e-3)
    assert facts.compile_s == 35.43
    assert facts.kv_gib == 111.84
    assert facts.kv_tokens == 814_368
    assert facts.max_concurrency == 99.41
    assert facts.max_model_len == 8192
    assert (facts.graph_gib, facts.graph_s) == (1.0, 9.0)


def test_vllm_for_cpus_says_its_pool() -> None:
    facts = VllmCpuAdapter().parse_startup(lines_of("vllm_cpu_0.32.0.log"))
    assert facts.engine_version == "0.32.0"
    assert facts.kv_gib == 1.0
    assert facts.kv_tokens == 131_072
    assert facts.max_concurrency == 64.0
    assert facts.max_model_len == 2048
    assert facts.weights_gib is None  # it does not say, so there is no number


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("INFO vLLM API server version 0.10.2", "engine_version", "0.10.2"),
        ("INFO vLLM server version 0.33.0, serving model m", "engine_version", "0.33.0"),
        ("Model loading took 14.9889 GiB and 3.2 seconds", "weights_gib", 14.9889),
        ("[tag] Model loading took 7.51 GiB memory and 9.5 seconds", "weights_gib", 7.51),
        ("torch.compile takes 41.02 s in total", "compile_s", 41.02),
        ("Available KV cache memory: -1.44 GiB", "kv_gib", -1.44),
        ("GPU KV cache size: 476,016 tokens, Maximum concurrency for 8,192 tokens: 58.11x", "kv_tokens", 476016),
        ("Auto-fit max_model_len: reduced from 1048576 to 810208 to fit", "max_model_len", 810208),
        (
            "Free memory on device (138.9/139.8 GiB) on startup. Desired GPU memory utilization is (0.92, 128.6 GiB). "
            "Actual usage is 15.27 GiB for weight, 1.35 GiB for peak activation, 0.19 GiB for non-torch memory, and "
            "1.0 GiB for CUDAGraph memory.",
            "activation_gib",
            1.35,
        ),
    ],
)  # fmt: skip
def test_vllm_phrases_of_other_releases(text: str, field: str, value: object) -> None:
    assert getattr(VllmAdapter().parse_startup([text]), field) == value


def test_the_tightest_rank_counts() -> None:
    facts = VllmAdapter().parse_startup(
        [
            "(Worker_TP0 pid=1) Model loading took 10.5 GiB and 3.0 seconds",
            "(Worker_TP1 pid=2) Model loading took 11.0 GiB and 2.5 seconds",
            "(Worker_TP0 pid=1) Available KV cache memory: 50.10 GiB",
            "(Worker_TP1 pid=2) Available KV cache memory: 49.60 GiB",
        ]
    )
    assert (facts.weights_gib, facts.load_s, facts.kv_gib) == (11.0, 3.0, 49.6)


def test_tensorrt_llm_counts_the_final_pool_not_the_temporary_one() -> None:
    facts = TensorRtAdapter().parse_startup(lines_of("tensorrt_llm_1.1.0rc3.log"))
    assert facts.engine_version == "1.1.0rc3"
    assert facts.weights_gib == 63.32
    assert (facts.kv_gib, facts.kv_tokens) == (5.95, 86_720)
    assert (facts.kv_blocks, facts.block_tokens) == (2710, 32)
    assert facts.total_gib == 119.70
    assert facts.activation_gib == 2.96
    assert facts.non_torch_gib == 47.28
    assert facts.max_model_len == 131_073
    assert facts.load_s == 49.14


def test_tensorrt_llm_shrinks_a_context_without_an_error() -> None:
    facts = TensorRtAdapter().parse_startup(
        [
            "max_seq_len=131072, max_num_requests=8, max_num_tokens=8192, max_batch_size=8",
            "Adjusted max_seq_len to 86720",
        ]
    )
    assert facts.max_model_len == 86_720


@pytest.mark.parametrize(
    ("line", "says", "advises"),
    [
        (
            "ValueError: Free memory on device cuda:0 (11.14/79.15 GiB) on startup is less than desired GPU memory "
            "utilization (0.2, 15.83 GiB). Decrease GPU memory utilization",
            "Only 11.14 of 79.15 GiB",
            "gpu_memory_utilization",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (1048576), (24.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (9.97 GiB). Based on the available memory, the "
            "estimated maximum model length is 435296.",
            "435296",
            "max_model_len",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", "No memory was left", "precision"),
        ("OSError: [Errno 98] Address already in use", "port was taken", "another port"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "ran out of memory", "tp"),
        ("api_server.py: error: unrecognized arguments: --swap-space 4", "--swap-space 4", "version"),
        ("ValueError: LoRA rank 64 is greater than max_lora_rank 16", "rank 64", "max_lora_rank"),
    ],
)  # fmt: skip
def test_vllm_failures_are_explained(line: str, says: str, advises: str) -> None:
    umbrella = "RuntimeError: Engine core initialization failed. See root cause above."
    failure = VllmAdapter().explain_failure([line, "Traceback (most recent call last):", umbrella], 1)
    assert says in failure.reason
    assert advises in failure.remedy


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[TRT-LLM] [E] The following component could not be created: KV cache", "KV cache"),
        ("No GPU devices found on the node", "finds no GPU"),
        ("pydantic_core.ValidationError: autotuner_enabled: Extra inputs are not permitted", "does not know an option"),
        ("RuntimeError: Impossible to fit in any sequence in kvCache", "Not even one sequence"),
    ],
)
def test_tensorrt_failures_are_explained(line: str, says: str) -> None:
    assert says in TensorRtAdapter().explain_failure([line], 1).reason


def test_an_unknown_failure_quotes_the_last_error() -> None:
    failure = VllmAdapter().explain_failure(["INFO fine", "KeyError: 'rope_type'", "INFO bye"], 1)
    assert "exit code 1" in failure.reason
    assert "KeyError: 'rope_type'" in failure.reason


def test_a_killed_process_points_to_host_memory() -> None:
    failure = VllmAdapter().explain_failure(["INFO loading"], -9)
    assert "SIGKILL" in failure.reason
    assert "host memory" in failure.remedy


def test_emulated_failures_do_not_blame_the_real_engine() -> None:
    assert EmulatedAdapter("vllm").explain_failure(["odd"], 3).reason.startswith("The emulated engine")


def test_progress_bars_and_colours_become_plain_lines() -> None:
    assert clean_lines("\x1b[1;36m(EngineCore)\x1b[0m a\rb 50%\r\nc\n\n") == ["(EngineCore) a", "b 50%", "c"]


@pytest.mark.parametrize(
    ("name", "blocks", "block_tokens"),
    [("vllm_0.24.0_h200.prom", 50_898, 16), ("vllm_cpu_0.32.0.prom", 1024, 128)],
)
def test_cache_layout_is_read_from_metrics(name: str, blocks: int, block_tokens: int) -> None:
    info = read_cache_info((DATA / name).read_text(encoding="utf-8"))
    assert (info.blocks, info.block_tokens) == (blocks, block_tokens)


def test_counters_are_read_from_metrics() -> None:
    counters = read_counters((DATA / "vllm_cpu_0.32.0.prom").read_text(encoding="utf-8"), VLLM_METRICS)
    assert (counters.prefix_queries, counters.prefix_hits, counters.preemptions) == (6.0, 0.0, 0.0)
    assert (counters.prompt_tokens, counters.output_tokens) == (6.0, 108.0)


def test_a_missing_counter_is_no_zero() -> None:
    assert read_counters("vllm:prompt_tokens_total 5\n", VLLM_METRICS).prefix_hits is None

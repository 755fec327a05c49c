"""How NVIDIA measured its own rows (``aic_silicon:nvidia_gap_analysis``): what ai-dynamo/aiconfigurator publishes.

The project that publishes the rows holds the tool that makes such rows (Apache-2.0): it deploys an engine for a number
of clients and measures it. From 2025-08-22 on ``eval/benchmarks/genai_perf_runner.py`` sent equal prompts and equal
answers, ten requests a client after two of warm-up; ``benchmark/bench_run.sh.j2`` has sent twenty since 2026-02-11.
``cli/backends/trtllm.py``, later ``generator/rule_plugin/trtllm.rule``, give a step of an aggregated engine its batch,
one prompt and 1,500 tokens, and capture every batch up to the largest. That the largest batch is the number of clients
is how the tool chooses the two.

Rows of vLLM are left as they stand: the tool learnt to deploy it in December 2025, and their rows show neither its
rounds nor its steps.

Facts only.
"""

from __future__ import annotations

from typing import Any

SOURCE = "aic_silicon:nvidia_gap_analysis"
_ROUNDS_TWENTY_SINCE = "2026-02-11"
_SPARE_TOKENS = 1500


def settings(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    """What the tool adds to the request of a TensorRT-LLM ``row``: fields of the estimate contract."""
    clients = int(load.get("concurrency", 0))
    if row["engine"] != "tensorrt_llm" or row["serving_mode"] != "agg" or not clients:
        return {}
    rounds = 20 if row["date"] >= _ROUNDS_TWENTY_SINCE else 10
    return {
        "max_num_seqs": clients,
        "max_num_batched_tokens": clients + int(float(row["isl"])) + _SPARE_TOKENS,
        "max_cudagraph_capture_size": clients,
        "load": {**load, "requests": rounds * clients},
    }

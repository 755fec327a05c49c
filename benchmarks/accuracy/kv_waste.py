"""KV waste on the traces that ship: ``python -m benchmarks accuracy memory --waste``.

The pool is that of Llama-3.1-8B on one H100 under vLLM (476,016 tokens), or four times the longest request where that
is more; the contiguous reservation is the longest request rounded up to a power of two.
"""

from __future__ import annotations

from typing import Any

from planner.catalog import get_trace
from planner.fragmentation import kv_waste

POOL_TOKENS = 476_016
TRACES = (
    "azure_2023_code",
    "lengths_mlperf_llama2_70b_99",
    "lengths_mlperf_llama3_1_8b_datacenter",
    "lengths_arxiv_summarization",
    "lengths_mlperf_deepseek_r1",
    "mooncake_synthetic",
)


def table() -> list[dict[str, Any]]:
    """Print the table; return its rows."""
    rows = []
    print("\nKV pool without live tokens, and requests held at once, by way of giving out memory")
    print(f"{'trace':38} {'reserved':>9} {'contiguous':>12} {'paged':>12} {'output reserved':>16} {'gain':>5}")
    for name in TRACES:
        trace = get_trace(name)
        prompts, outputs = trace.input_tokens.clip(1), trace.output_tokens.clip(1)
        longest = int((prompts + outputs).max())
        pool = max(POOL_TOKENS, 4 << (longest - 1).bit_length())
        report = kv_waste(prompts, outputs, pool)
        cells = [f"{policy.waste:5.0%} {policy.concurrency:6.0f}" for policy in report.policies]
        print(
            f"{name:38} {report.max_model_len:9,} {cells[0]:>12} {cells[1]:>12} {cells[2]:>16} "
            f"{report.concurrency_gain:5.1f}"
        )
        rows.append(
            {
                "trace": name,
                "max_model_len": report.max_model_len,
                "pool_tokens": pool,
                "waste": {policy.policy: round(policy.waste, 4) for policy in report.policies},
                "concurrency": {policy.policy: round(policy.concurrency, 1) for policy in report.policies},
                "gain": round(report.concurrency_gain, 2),
                "sentence": report.sentence,
            }
        )
    for row in rows:
        print(f"  {row['trace']}: {row['sentence']}")
    return rows

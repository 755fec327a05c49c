"""The parts of an estimate's answer, as JSON-able data."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from planner.economics import unit_costs
from planner.evidence import Interval
from planner.memory import MemoryLedger
from planner.serving import Percentiles, Performance


def memory_answer(memory: MemoryLedger) -> dict[str, Any]:
    """One GPU's memory: sizes in GiB."""
    names = (
        "weights_gib", "activation_gib", "non_torch_gib", "graph_gib", "kv_gib", "kv_blocks", "block_tokens",
        "kv_tokens", "max_concurrency", "largest_model_len",
    )  # fmt: skip
    band = memory.kv_gib_80
    return {
        **{name: rounded(getattr(memory, name)) for name in names},
        "interval80": {"kv_gib": _interval(band)},
    }


def perf_answer(performance: Performance) -> dict[str, Any]:
    """Throughput of the whole deployment, times in ms, 80 % intervals."""
    return {
        "output_tok_per_s": rounded(performance.output_tok_per_s),
        "total_tok_per_s": rounded(performance.total_tok_per_s),
        "req_per_s": rounded(performance.req_per_s),
        "ttft_ms": _percentiles(performance.ttft_ms),
        "tpot_ms": _percentiles(performance.tpot_ms),
        "e2e_ms": _percentiles(performance.e2e_ms),
        "interval80": {
            "output_tok_per_s": _interval(performance.output_tok_per_s_80),
            "ttft_ms": _interval(performance.ttft_ms_80),
            "tpot_ms": _interval(performance.tpot_ms_80),
        },
        "preemptions": performance.preemptions,
        "kv_waste": rounded(performance.kv_waste),
        "prefix_hit": rounded(performance.prefix_hit),
        "load_region": performance.load_region,
        "residuals_of": performance.residuals_of,
    }


def _percentiles(value: Percentiles | None) -> dict[str, float] | None:
    if value is None:
        return None
    return {stat: rounded(getattr(value, stat)) for stat in ("mean", "p50", "p90", "p99")}


def _interval(value: Interval | None) -> list[float] | None:
    return None if value is None else [rounded(value.low), rounded(value.high)]


def rounded(value: Any) -> Any:
    """Floats to six significant digits: more would pretend, fewer would lose."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cost_answer(usd_per_hour: Decimal, performance: Performance) -> dict[str, Any]:
    """USD per million tokens of each kind: the whole cost over each."""
    output = performance.output_tok_per_s
    per_input, per_output, per_total = unit_costs(usd_per_hour, performance.total_tok_per_s - output, output)
    prices = {"usd_per_mtok_input": per_input, "usd_per_mtok_output": per_output, "usd_per_mtok_total": per_total}
    return {name: None if value is None else float(value) for name, value in prices.items()}

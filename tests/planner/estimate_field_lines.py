"""One line for each field of the estimate contract: its kind, values that are wrong beside those of its kind, and what
a right value does under each engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLOSED = {"kind": "closed", "concurrency": 64, "requests": 128}
OPEN = {"kind": "open", "rate_per_s": 12, "requests": 300}
ONOFF = {**OPEN, "rate_per_s": 5, "requests": 400, "arrival": "onoff"}
SESSIONS = {**CLOSED, "turns": 4}
BASE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "gpu": "H200", "load": CLOSED, "input_tokens": 1024, "output_tokens": 64,
    "usd_per_gpu_hour": 2.5,
}  # fmt: skip
MOE = {"model": "Qwen/Qwen3-30B-A3B"}
GPT_OSS = {"model": "openai/gpt-oss-20b"}
IMAGES = {"model": "Qwen/Qwen2.5-VL-7B-Instruct"}
OF_VLLM, OF_TRTLLM = "is a setting of vLLM", "is a setting of TensorRT-LLM"
POOL, TPOT, TTFT, RATE = "memory.kv_tokens", "perf.tpot_ms.p50", "perf.ttft_ms.p50", "perf.output_tok_per_s"
P99 = "perf.ttft_ms.p99"


@dataclass(frozen=True)
class Moves:
    """Stated as ``value``, the field moves ``figure`` of the answer ``up``, ``down`` or to something ``else``."""

    value: Any
    figure: str
    way: str
    base: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)  # stated with the value only


@dataclass(frozen=True)
class Says:
    """Stated as ``value``, no figure moves and a reason says ``words``."""

    value: Any
    words: str
    base: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refuses:
    """Stated as ``value``, the answer is ``unsupported`` for a reason with ``words``."""

    value: Any
    words: str
    base: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)


Effect = Moves | Says | Refuses


@dataclass(frozen=True)
class Line:
    """``kind`` word | whole | number | flag | length | object | any; ``wrong`` more values that are refused."""

    kind: str
    vllm: Effect
    tensorrt_llm: Effect
    wrong: tuple[Any, ...] = ()
    around: dict[str, Any] = field(default_factory=dict)  # stated beside wrong values


def both(kind: str, effect: Effect, *wrong: Any, around: dict[str, Any] | None = None) -> Line:
    """A line of a field that does the same under both engines."""
    return Line(kind, effect, effect, wrong, around or {})


def load(kind: str, effect: Effect, *wrong: Any, around: dict[str, Any] | None = None) -> Line:
    return both(kind, effect, *wrong, around=around or CLOSED)


LINES: dict[str, Line] = {
    "id": both("any", Moves("b", "id", "else"), {"a": float("inf")}, [float("nan")]),
    "model": both("word", Moves("Qwen/Qwen3-0.6B", "memory.weights_gib", "down"), "nobody/nothing"),
    "gpu": both("word", Moves("H100", POOL, "down"), "H2OO"),
    "engine": Line("word", Moves("tensorrt_llm", POOL, "else"), Moves("vllm", POOL, "else"), ("sglang", "VLLM")),
    "engine_version": Line("word", Moves("0.11.0", TPOT, "up"), Moves("0.16.0", "memory.activation_gib", "up"),
                           ("latest", "x1")),
    "precision": both("word", Moves("fp8", "memory.weights_gib", "down"), "FP8", "fp3"),
    "kv_cache_dtype": both("word", Moves("fp8", POOL, "up"), "int8"),
    "tp": both("whole", Moves(2, "memory.weights_gib", "down"), 0, 10**9),
    "pp": both("whole", Moves(2, "memory.weights_gib", "down"), 0, 10**9),
    "ep": both("whole", Moves(2, TPOT, "else", {**MOE, "tp": 2}), 0, 10**9),
    "dp": both("whole", Moves(2, TPOT, "down"), 0, 10**9),
    "max_model_len": both("whole", Moves(32_768, "memory.max_concurrency", "down"), 0),
    "gpu_memory_utilization": Line("number", Moves(0.5, POOL, "down"), Says(0.5, OF_VLLM), (0, 1.01)),
    "free_gpu_memory_fraction": Line("number", Says(0.5, OF_TRTLLM), Moves(0.5, POOL, "down"), (0, 1)),
    "max_num_seqs": both("whole", Moves(16, TPOT, "down"), 0, 10**9),
    "max_num_batched_tokens": both("whole", Moves(2048, "memory.activation_gib", "down"), 0),
    "gpu_memory_gib": both("number", Moves(80, POOL, "down"), 0, 1e9),
    "used_by_others_gib": Line("number", Says(5, "leaves the pool as it is"), Moves(5, POOL, "down"), (140, 1e6)),
    "network_gb_s": both("number", Moves(10, RATE, "down", {"tp": 2, "gpus_per_node": 1}), 0),
    "gpus_per_node": both("whole", Moves(1, RATE, "down", {"tp": 2}), 0),
    "enforce_eager": both("flag", Moves(True, TPOT, "up")),
    "async_scheduling": both("flag", Moves(False, TPOT, "up")),
    "enable_prefix_caching": both("flag", Moves(False, "perf.prefix_hit", "down", {"load": SESSIONS})),
    "block_tokens": both("whole", Moves(128, "memory.block_tokens", "up"), 0, 24),
    "kv_cache_max_tokens": both("whole", Moves(40_000, POOL, "down"), 0),
    "kv_cache_max_gpu_gib": Line("number", Says(5, OF_TRTLLM), Moves(5, POOL, "down"), (0,)),
    "max_loras": both("whole", Moves(4, POOL, "down"), 10**9),
    "max_lora_rank": both("whole", Moves(64, TPOT, "up", {"max_loras": 4}), 0),
    "speculative_tokens": both("whole", Moves(3, TPOT, "up"), 10**9),
    "acceptance_rate": both("number", Moves(0.8, TPOT, "down", {"speculative_tokens": 3}), 1.5,
                            around={"speculative_tokens": 3}),
    "mm_items_per_prompt": Line("whole", Moves(8, "memory.activation_gib", "up", IMAGES),
                                Says(8, "is not modelled", IMAGES), (10**9,)),
    "logprobs": both("whole", Says(20, "Log-probabilities take up to"), 10**6),
    "prompt_logprobs": both("flag", Says(True, "Log-probabilities take up to")),
    "max_cudagraph_capture_size": both("whole", Moves(32, "memory.graph_gib", "down"), 0),
    "moe_backend": Line("word", Moves("marlin", TPOT, "up", GPT_OSS),
                        Says("TRITON", "leaves the step times as they are", GPT_OSS), ("abacus",)),
    "even_expert_routing": both("flag", Moves(True, TPOT, "else", {**MOE, "tp": 2, "ep": 2})),
    "piecewise_cuda_graphs": Line("flag", Says(True, OF_TRTLLM),
                                  Moves(True, TTFT, "down", {"gpu": "B200", "engine_version": "1.1.0", "load": {
                                      "kind": "closed", "concurrency": 1, "requests": 10}, "input_tokens": 256})),
    "attention_dp_wait_iters": Line("whole", Says(10, OF_TRTLLM), Moves(
        20, TPOT, "down", {**MOE, "dp": 2, "load": {**OPEN, "rate_per_s": 30},
                           "input_tokens": {"low": 10, "high": 4000}})),
    "batch_wait_iters": Line("whole", Says(10, OF_TRTLLM, beside={"batch_wait_tokens_ratio": 0.9}), Moves(
        10, P99, "up", beside={"batch_wait_tokens_ratio": 0.9}), (10,)),
    "batch_wait_tokens_ratio": Line("number", Says(0.9, OF_TRTLLM, beside={"batch_wait_iters": 10}), Moves(
        0.9, P99, "up", beside={"batch_wait_iters": 10}), (1.5, 0.5)),
    "watermark": Line("number", Moves(0.2, "perf.preemptions", "down", {"gpu_memory_gib": 24}), Says(0.2, OF_VLLM),
                      (1, 1.5)),
    "capacity_policy": Line("word", Says("MAX_UTILIZATION", OF_TRTLLM), Moves(
        "MAX_UTILIZATION", "perf.preemptions", "up", {"kv_cache_max_tokens": 20_000}), ("evict",)),
    "trt_backend": Line("word", Says("tensorrt", OF_TRTLLM), Moves("tensorrt", "memory.activation_gib", "up"),
                        ("PyTorch",)),
    "load": both("object", Moves({**CLOSED, "concurrency": 8}, TPOT, "down"), {"kind": "closed"}, {"kind": "burst"}),
    "input_tokens": both("length", Moves(2048, "perf.e2e_ms.p50", "up")),
    "output_tokens": both("length", Moves(256, "perf.e2e_ms.p50", "up")),
    "prefix_hit": both("number", Moves(0.5, TTFT, "down"), 1.01),
    "seed": both("whole", Moves(7, P99, "else", {"load": OPEN})),
    "usd_per_gpu_hour": both("price", Moves(5, "cost.usd_per_mtok_output", "up"), "cheap", 10**6),
    "replicas": both("whole", Moves(2, TPOT, "down"), 0, 65),
    "router": both("word", Moves("least_loaded", TTFT, "else", {
        "replicas": 2, "load": OPEN, "input_tokens": {"low": 10, "high": 4000}}), "sticky"),
    "disagg": both("object", Moves({"prefill": {}, "decode": {}}, TPOT, "down"), {"prefill": {}},
                   {"prefill": {}, "decode": {}, "proxy": {}}),
}  # fmt: skip

LOAD_LINES: dict[str, Line] = {
    "kind": load("word", Moves(None, TTFT, "up"), "burst"),
    "concurrency": load("whole", Moves(128, TPOT, "up"), 0, 10**9),
    "requests": load("whole", Moves(64, RATE, "else"), 0, 10**9),
    "rate_per_s": load("number", Moves(24, "perf.req_per_s", "up", {"load": OPEN}), 0, 1e7, around=OPEN),
    "arrival": load("word", Moves("constant", P99, "down", {"load": OPEN}), "steady", around=OPEN),
    "cv": load("number", Moves(4, P99, "up", {"load": {**OPEN, "arrival": "gamma"}}), 0, 101,
               around={**OPEN, "arrival": "gamma"}),
    "on_share": load("number", Moves(0.05, TTFT, "up", {"load": ONOFF}), 0, 1.5, around=ONOFF),
    "period_s": load("number", Moves(10, RATE, "else", {"load": ONOFF}), 0, 1e7, around=ONOFF),
    "stream_interval": load("whole", Moves(10, TTFT, "else", {"load": {**CLOSED, "requests": 256}}), 0),
    "turns": load("length", Moves(4, "perf.prefix_hit", "up"), 10**7),
    "think_s": load("number", Moves(2, "perf.req_per_s", "down"), 1e7),
    "shared_tokens": load("whole", Moves(500, "perf.prefix_hit", "up", {"load": SESSIONS}), 10**9, around=SESSIONS),
}  # fmt: skip

ROLE_EFFECTS: dict[str, dict[str, Effect]] = {
    name: {"vllm": of_vllm, "tensorrt_llm": of_trtllm or of_vllm}
    for name, of_vllm, of_trtllm in (
        ("instances", Moves(2, "gpus", "up"), None),
        ("tp", Moves(2, "memory.weights_gib", "down"), None),
        ("pp", Refuses(2, "pipeline stages"), Moves(2, "memory.weights_gib", "down")),
        ("ep", Moves(2, "utilisation", "else", {**MOE, "tp": 2}), None),
        ("dp", Moves(2, "gpus", "up"), None),
        ("precision", Moves("fp8", "memory.weights_gib", "down", {"kv_cache_dtype": "bf16"}), None),
        ("max_model_len", Moves(32_768, "memory.max_concurrency", "down"), None),
        ("gpu_memory_utilization", Moves(0.5, POOL, "down"), Says(0.5, f"prefill: gpu_memory_utilization {OF_VLLM}")),
        ("free_gpu_memory_fraction", Says(0.5, f"prefill: free_gpu_memory_fraction {OF_TRTLLM}"),
         Moves(0.5, POOL, "down")),
        ("max_num_seqs", Moves(16, "memory.activation_gib", "down"), None),
        ("max_num_batched_tokens", Moves(2048, "memory.activation_gib", "down"), None),
        ("block_tokens", Refuses(128, "same block size"), Moves(128, "memory.block_tokens", "up")),
        ("capacity_policy", Says("MAX_UTILIZATION", f"prefill: capacity_policy {OF_TRTLLM}"),
         Refuses("STATIC_BATCH", "prefill: capacity_policy STATIC_BATCH")),
        ("enforce_eager", Moves(True, "memory.graph_gib", "down"), None),
        ("async_scheduling", Moves(False, "utilisation", "else"),
         Says(False, "prefill: async_scheduling changes nothing")),
        ("enable_prefix_caching", Moves(False, "utilisation", "up", {"load": SESSIONS}), None),
        ("max_cudagraph_capture_size", Moves(32, "memory.graph_gib", "down"), None),
        ("moe_backend", Moves("marlin", "utilisation", "up", GPT_OSS),
         Says("TRITON", "prefill: moe_backend TRITON leaves", GPT_OSS)),
    )
}  # fmt: skip
"""Of the prefill role; figures are of ``disagg.prefill`` in the answer."""

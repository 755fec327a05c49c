"""``python -m planner memory``: the memory of one GPU for a model, an engine and its settings."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from planner.jsonio import to_json
from planner.memory import MemoryLedger, MemoryReport

DESCRIPTION = """\
Account for one GPU's memory as the engine does: does it fit, what does the KV pool hold, what would fit instead.

examples:
  python -m planner memory Qwen/Qwen3-32B H100 --max-model-len 32768
  python -m planner memory meta-llama/Llama-3.1-70B-Instruct H100 --tp 2 --engine tensorrt_llm --json
  python -m planner memory Qwen/Qwen3-8B L40S --gpu-memory-gib 22 --used-by-others-gib 4 --input-tokens 2000 \\
      --output-tokens 300 --concurrency 64 --trace azure_2023_code

MODEL is a catalogue id, an alias or the path of a config.json. The exit status is 0 when it fits, 1 when it does not or
the engine cannot run it, 2 when the question is wrong.
"""

_WHOLE = (
    ("tp", 1), ("pp", 1), ("ep", 1), ("dp", 1), ("max-model-len", None), ("max-num-seqs", None),
    ("max-num-batched-tokens", None), ("block-tokens", None), ("kv-cache-max-tokens", None), ("max-loras", 0),
    ("max-lora-rank", 16), ("speculative-tokens", 0), ("mm-items-per-prompt", 0), ("logprobs", 0),
)  # fmt: skip
_SHARES = ("gpu-memory-utilization", "free-gpu-memory-fraction", "kv-cache-max-gpu-gib", "kv-cache-host-gib")
_TEXTS = (
    ("precision", "as-config"), ("kv-cache-dtype", "auto"), ("version", None), ("capacity-policy", None),
    ("trt-backend", "pytorch"),
)  # fmt: skip
_FLAGS = ("enforce-eager", "prompt-logprobs")
_PARTS = (
    ("weights_gib", "Weights"), ("activation_gib", "Activation"), ("non_torch_gib", "Outside torch"),
    ("graph_gib", "CUDA graphs"), ("lora_gib", "Adapters"), ("logprobs_gib", "Log-probabilities"),
    ("kv_gib", "KV cache"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the sub-command: settings under their planner names."""
    parser.add_argument("model")
    parser.add_argument("gpu")
    parser.add_argument("--engine", default="vllm", choices=("vllm", "tensorrt_llm"))
    for name, default in _WHOLE:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in _SHARES:
        parser.add_argument(f"--{name}", type=float)
    for name, text in _TEXTS:
        parser.add_argument(f"--{name}", default=text)
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--gpu-memory-gib", type=float, help="as the driver reports it: a MIG slice, a capped card")
    parser.add_argument("--used-by-others-gib", type=float, default=0.0, help="held by other processes at start")
    parser.add_argument("--input-tokens", type=int, help="of a typical request, for the preemption cliff")
    parser.add_argument("--output-tokens", type=int)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--trace", help="a shipped trace: how much of the pool holds live tokens")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Run the sub-command; returns the exit status."""
    from planner.catalog import get_gpu, get_model, get_trace
    from planner.engines import EngineName, EngineSettings
    from planner.fragmentation import waste_in_pool
    from planner.memory import memory_report

    names = [name for name, _ in (*_WHOLE, *_TEXTS)] + [*_SHARES, *_FLAGS]
    fields = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in names}
    settings = EngineSettings(EngineName(arguments.engine), **fields)
    report = memory_report(
        get_model(arguments.model),
        get_gpu(arguments.gpu),
        settings,
        total_gib=arguments.gpu_memory_gib,
        used_by_others_gib=arguments.used_by_others_gib,
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        concurrency=arguments.concurrency,
    )
    waste = None
    if arguments.trace and report.ledger is not None and report.resolved is not None and report.ledger.fits:
        trace = get_trace(arguments.trace)
        waste = waste_in_pool(report.ledger, report.resolved, trace.input_tokens, trace.output_tokens)
    if arguments.json:
        sys.stdout.write(json.dumps({**to_json(report), "kv_waste": to_json(waste)}, indent=1) + "\n")
    else:
        sys.stdout.write(as_text(report) + (_waste_text(waste) if waste is not None else ""))
    return 0 if report.status == "ok" else 1


def as_text(report: MemoryReport) -> str:
    """The report in words and a table."""
    lines = [report.ledger.sentence] if report.ledger is not None else ["Not supported. " + " ".join(report.reasons)]
    lines += [f"  {remedy.sentence}" for remedy in report.remedies]
    if report.ledger is not None:
        lines += ["", *_table(report.ledger)]
    if report.cliff is not None:
        lines += ["", report.cliff.sentence]
    lines += [f"note: {note}" for note in (*report.warnings, *(report.ledger.notes if report.ledger else ()))]
    if report.command_line:
        lines += ["", shlex.join(report.command_line)]
    for name, text in report.config_files.items():
        lines += ["", f"{name}:", text.rstrip()]
    return "\n".join(lines) + "\n"


def _table(memory: MemoryLedger) -> list[str]:
    rows = [(word, getattr(memory, name)) for name, word in _PARTS if getattr(memory, name)]
    lines = [f"  {word:20}{size:10.2f} GiB" for word, size in rows]
    lines.append(f"  {'Engine budget':20}{memory.budget_gib:10.2f} of {memory.total_gib:.2f} GiB")
    if memory.kv_gib_80 is not None:
        band = memory.kv_gib_80
        lines.append(f"  {'KV cache, 80 %':20}{band.low:10.2f} to {band.high:.2f} GiB ({memory.evidence.value})")
    lines.append(f"  {'KV tokens':20}{memory.kv_tokens:10,} in {memory.kv_blocks:,} blocks of {memory.block_tokens}")
    lines.append(f"  {'Full requests':20}{memory.max_concurrency:10.2f} at once")
    lines.append(f"  {'Longest request':20}{memory.largest_model_len:10,} tokens")
    return lines


def _waste_text(waste: Any) -> str:
    lines = ["", f"KV pool on {waste.requests:,} requests ({waste.refused_share:.1%} exceed the context):"]
    for policy in waste.report.policies:
        share = policy.waste
        lines.append(
            f"  {policy.policy:16}{policy.live_share:7.1%} live {share:7.1%} waste {policy.concurrency:9.1f} at once"
        )
    return "\n".join([*lines, "  " + waste.report.sentence]) + "\n"

"""``python -m planner COMMAND``: the planner without the web application.

A command is a function that adds its arguments to a sub-parser and one that runs it; ``COMMANDS`` registers them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner import cli_memory, cli_plan
from planner.errors import PlannerError


@dataclass(frozen=True)
class Command:
    """One sub-command. ``run`` returns the exit status."""

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


ESTIMATE_EXAMPLES = """\
One JSON object a line in, one a line out, in the same order; the exit status is 0 unless a line is not JSON.

example:
  echo '{"id": 1, "model": "Qwen/Qwen3-8B", "gpu": "H200", "engine": "vllm", "tp": 1,
         "load": {"kind": "closed", "concurrency": 32}, "input_tokens": 1024, "output_tokens": 256,
         "usd_per_gpu_hour": 2.5}' | tr -d '\\n' | python -m planner estimate

fields in:
  id, model (catalogue id, alias or path of a config.json), gpu (catalogue name or alias), engine (vllm | tensorrt_llm),
  engine_version, precision (bf16 | fp16 | fp8 | int8 | int4 | fp4 | mxfp4 | as-config), kv_cache_dtype, tp, pp, ep, dp,
  max_model_len, gpu_memory_utilization, free_gpu_memory_fraction, max_num_seqs, max_num_batched_tokens, gpu_memory_gib,
  used_by_others_gib, enforce_eager, block_tokens, kv_cache_max_tokens, kv_cache_max_gpu_gib, max_loras, max_lora_rank,
  speculative_tokens, acceptance_rate, network_gb_s, gpus_per_node, mm_items_per_prompt, logprobs, prompt_logprobs,
  piecewise_cuda_graphs, attention_dp_wait_iters, batch_wait_iters, batch_wait_tokens_ratio, watermark,
  capacity_policy, trt_backend,
  load {kind: closed, concurrency, requests} | {kind: open, rate_per_s, arrival: poisson | constant, requests}
       | {kind: offline, requests}   (left out: memory only),
  input_tokens, output_tokens (a number, {mean, sd} or {low, high}), prefix_hit, seed, usd_per_gpu_hour
"""


def _estimate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="?", type=Path, help="file of JSON lines (default: standard input)")


def _run_estimate(arguments: argparse.Namespace) -> int:
    from planner.estimate import estimate_lines

    source = arguments.input.open(encoding="utf-8") if arguments.input else sys.stdin
    try:
        for line in estimate_lines(source):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    finally:
        if arguments.input:
            source.close()
    return 0


def _commands() -> tuple[Command, ...]:
    return (
        Command(
            "estimate",
            "memory, speed and cost of deployments, one JSON object a line",
            ESTIMATE_EXAMPLES,
            _estimate_arguments,
            _run_estimate,
        ),
        Command(
            "plan",
            "place the workloads of a fleet, compare the engines, count the cost",
            cli_plan.DESCRIPTION,
            cli_plan.add_arguments,
            cli_plan.run,
        ),
        Command(
            "memory",
            "what one GPU holds: weights, activation, KV cache, context, and what would fit instead",
            cli_memory.DESCRIPTION,
            cli_memory.add_arguments,
            cli_memory.run,
        ),
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser with every registered command."""
    parser = argparse.ArgumentParser(
        prog="python -m planner", description="Capacity, speed and cost of LLM serving, computed on this machine alone."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _commands():
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors of the input go to standard error and give exit status 2."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except PlannerError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:
        return 1
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 2

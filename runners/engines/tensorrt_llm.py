"""TensorRT-LLM 1.x behind ``trtllm-serve``: command line, start-up log, failures, metric names.

Log texts were read in tensorrt_llm/_torch/pyexecutor/{_util,py_executor_creator,model_engine}.py, llmapi/llm_args.py,
cpp/tensorrt_llm/batch_manager and in a public start-up log of 1.1.0rc3. The KV pool is built twice: the first
``Allocated ... in paged KV cache`` is temporary, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.engines.types import DEFAULT_VERSION, EngineName
from planner.engines.versions import at_least
from runners.config import NodeConfig
from runners.contracts import EngineLaunch, StartupFacts
from runners.engines.base import Failure, MetricNames, Phase, ProcessPlan, check_launch
from runners.engines.commands import engine_command, require_program, write_files
from runners.engines.logs import FailurePattern, all_numbers, explain, last_number

NAMED_SINCE = "1.3.0rc7"

TENSORRT_METRICS = MetricNames(
    path="/prometheus/metrics",
    prompt_tokens="trtllm_prompt_tokens_total",
    output_tokens="trtllm_generation_tokens_total",
    prompt_cached="trtllm_prompt_cached_tokens_total",
    prefix_queries=None,
    prefix_hits=None,
    preemptions=None,
)

TENSORRT_PHASES = (
    Phase(re.compile(r"TensorRT-LLM version:"), "starting", 0.05),
    Phase(re.compile(r"Prefetching .* checkpoint files|Use [\d.]+ GB for model weights"), "loading weights", 0.1),
    Phase(re.compile(r"Loading weights:|Loading safetensors weights"), "loading weights", 0.2),
    Phase(re.compile(r"Model init total"), "weights are loaded", 0.45),
    Phase(re.compile(r"\[Autotuner\] Autotuning process starts"), "tuning kernels", 0.5),
    Phase(re.compile(r"\[Autotuner\] Autotuning process ends"), "kernels are tuned", 0.65),
    Phase(
        re.compile(r"Creating CUDA graph instances|Run generation.only CUDA graph warmup"), "capturing CUDA graphs", 0.7
    ),
    Phase(re.compile(r"Estimated max memory in KV cache"), "laying out the KV cache", 0.8),
    Phase(re.compile(r"Application startup complete|Uvicorn running"), "the server is up", 0.95),
)

_FAILURES = (
    FailurePattern(
        re.compile(r"The following component could not be created: (.+?)\.?$"),
        "The GPU ran out of memory creating: {0}.",
        "Lower max_batch_size, max_num_tokens or max_seq_len, use more GPUs (tp) or a smaller precision.",
    ),
    FailurePattern(
        re.compile(r"Executor creation failed due to insufficient GPU memory|CUDA out of memory"),
        "The GPU ran out of memory while TensorRT-LLM started.",
        "Use more GPUs (tp), a smaller precision, or lower max_num_tokens; check that nothing else holds memory there.",
    ),
    FailurePattern(
        re.compile(r"Impossible to fit in any sequence in kvCache"),
        "Not even one sequence fits in the KV cache.",
        "Lower max_seq_len, raise free_gpu_memory_fraction, or use more GPUs.",
    ),
    FailurePattern(
        re.compile(r"Executor creation failed with NCCL error"),
        "The GPUs could not talk to each other (NCCL).",
        "In a container give --ipc host and unlimited memlock; check the GPU links with nvidia-smi topo -m.",
    ),
    FailurePattern(
        re.compile(r"Failed to bind socket to (\S+)|[Aa]ddress already in use"),
        "The port {0} was taken while TensorRT-LLM started.",
        "Launch it again, which tries another port, or stop the other process.",
    ),
    FailurePattern(
        re.compile(r"No GPU devices found on the node"),
        "TensorRT-LLM finds no GPU on this node.",
        "Check the driver with nvidia-smi; TensorRT-LLM needs an NVIDIA GPU of compute capability 8.0 or more.",
    ),
    FailurePattern(
        re.compile(r"Pre SM 80 GPUs do not support bfloat16"),
        "This GPU has no bfloat16.",
        "Choose a GPU of compute capability 8.0 or more.",
    ),
    FailurePattern(
        re.compile(r"Extra inputs are not permitted|Failed to parse the arguments for the LLM constructor"),
        "TensorRT-LLM does not know an option in its configuration file.",
        "Keys change inside one release line: state the version that is installed on the node.",
    ),
    FailurePattern(
        re.compile(r"No such option: (\S+)"),
        "This trtllm-serve does not know the option {0}.",
        "Options change between releases: state the version that is installed on the node.",
    ),
    FailurePattern(
        re.compile(r"Hang detected after (\d+) seconds"),
        "TensorRT-LLM found itself hanging after {0} seconds.",
        "Look at the GPUs' health and the log of every rank; start again.",
    ),
    FailurePattern(
        re.compile(r"Executor worker died during initialization|Failed to initialize executor on rank (\d+)"),
        "A worker of TensorRT-LLM died while starting (rank {0}).",
        "Read that rank's lines in the log; most often the memory or the driver is the cause.",
    ),
    FailurePattern(
        re.compile(r"No space left on device"),
        "The node's disk is full.",
        "Free space on the node.",
    ),
)


def parse_tensorrt_startup(lines: Iterable[str]) -> StartupFacts:
    """StartupFacts from the log of trtllm-serve."""
    lines = list(lines)
    text = "\n".join(lines)
    version = re.search(r"TensorRT-LLM version: (\d[\w.+]*)", text)
    pool = re.findall(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)", text)
    blocks = re.findall(r"tokens per block=(\d+), primary blocks=(\d+)", text)
    block = last_number(r"(?:Number of tokens per block: |Change tokens_per_block to: )(\d+)", lines)
    lengths = all_numbers(r"max_seq_len=(\d+), max_num_requests", lines)
    lengths += all_numbers(r"Adjusted max_seq_len to (\d+)", lines)
    length = lengths[-1] if lengths else last_number(r"max_seq_len is not specified, using inferred value (\d+)", lines)
    tokens = int(pool[-1][1]) if pool else None
    block_tokens = int(blocks[-1][0]) if blocks else (int(block) if block else None)
    kv_blocks = int(blocks[-1][1]) if blocks else (tokens // block_tokens if tokens and block_tokens else None)
    outside = last_number(r"Memory used outside torch \(e\.g\., NCCL and CUDA graphs\).*?: (-?[\d.]+) GiB", lines)
    return StartupFacts(
        engine_version=version[1] if version else None,
        weights_gib=last_number(r"Use ([\d.]+) GB for model weights", lines),
        kv_gib=float(pool[-1][0]) if pool else None,
        kv_tokens=tokens,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        activation_gib=last_number(
            r"Memory dynamically allocated during inference \(inside torch\).*?: (-?[\d.]+) GiB", lines
        ),
        non_torch_gib=outside,
        total_gib=last_number(r"device total memory ([\d.]+) GiB", lines),
        max_model_len=int(length) if length else None,
        max_concurrency=tokens / length if tokens and length else None,
        load_s=last_number(r"Model init total -- ([\d.]+)s", lines),
    )


class TensorRtAdapter:
    """TensorRT-LLM's PyTorch back end behind trtllm-serve."""

    name = "tensorrt_llm"
    emulated = False
    uses_gpus = True
    metrics = TENSORRT_METRICS
    phases: Sequence[Phase] = TENSORRT_PHASES
    tokenize_path: str | None = None

    def plan(self, launch: EngineLaunch, folder: Path, config: NodeConfig) -> ProcessPlan:
        """See ``EngineAdapter.plan``."""
        check_launch(launch)
        program = require_program(config.trtllm_serve, "TensorRT-LLM", "TONNAGE_TRTLLM_SERVE")
        command = engine_command(launch, EngineName.TENSORRT_LLM, launch.model, config.bind_host, folder)
        write_files(command, folder)
        env = {**launch.env}
        if launch.gpu_indexes:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.gpu_indexes))
        return ProcessPlan((program, *command.arguments), env, tokenizer=launch.model)

    def listed_name(self, launch: EngineLaunch) -> str:
        """The served name since 1.3.0rc7; before, the model id, or the base name of its folder."""
        if at_least(launch.version or DEFAULT_VERSION[EngineName.TENSORRT_LLM], NAMED_SINCE):
            return launch.served_name
        return Path(launch.model).name if Path(launch.model).is_absolute() else launch.model

    def parse_startup(self, lines: Iterable[str]) -> StartupFacts:
        """See ``EngineAdapter.parse_startup``."""
        return parse_tensorrt_startup(lines)

    def explain_failure(self, lines: Sequence[str], returncode: int | None) -> Failure:
        """See ``EngineAdapter.explain_failure``."""
        return explain(lines, returncode, _FAILURES, "TensorRT-LLM")

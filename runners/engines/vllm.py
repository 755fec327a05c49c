"""vLLM 0.10 to 0.33: command line, start-up log, failures, metric names.

Log texts were read in the releases' sources: v1/worker/gpu_worker.py, v1/worker/gpu_model_runner.py,
v1/core/kv_cache_utils.py, compilation/monitor.py, v1/engine/core.py, config/*.py. Patterns match without an anchor,
because newer releases put tags before the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.engines.types import EngineName
from runners.config import NodeConfig
from runners.contracts import EngineLaunch, StartupFacts
from runners.engines.base import Failure, MetricNames, Phase, ProcessPlan, check_launch
from runners.engines.commands import engine_command, require_program, write_files
from runners.engines.logs import FailurePattern, all_numbers, explain, last_number

OUTER_MARGIN_S = 60.0
"""The engine gives up so much before the worker does: then it says itself what it was waiting for."""

VLLM_METRICS = MetricNames(
    path="/metrics",
    prompt_tokens="vllm:prompt_tokens_total",
    output_tokens="vllm:generation_tokens_total",
    prompt_cached="vllm:prompt_tokens_cached_total",
    prefix_queries="vllm:prefix_cache_queries_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    preemptions="vllm:num_preemptions_total",
    drafted="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
)

VLLM_PHASES = (
    Phase(re.compile(r"non-default args|Resolved architecture"), "reading the model's configuration", 0.05),
    Phase(re.compile(r"Initializing a V1 LLM engine"), "starting the engine process", 0.1),
    Phase(re.compile(r"Starting to load model|Loading model from scratch"), "loading weights", 0.2),
    Phase(re.compile(r"Using model weights format"), "fetching weights that are not on this node", 0.22),
    Phase(re.compile(r"Loading safetensors"), "reading weights", 0.3),
    Phase(re.compile(r"Model loading took"), "weights are loaded", 0.45),
    Phase(re.compile(r"Dynamo bytecode|Compiling a graph|Warming up model for the compilation"), "compiling", 0.5),
    Phase(re.compile(r"Available KV cache memory|KV cache size:"), "laying out the KV cache", 0.75),
    Phase(re.compile(r"DeepGEMM warmup"), "compiling DeepGEMM kernels", 0.76),
    Phase(re.compile(r"\[Autotuner\]: Autotuning process starts"), "tuning FlashInfer kernels", 0.78),
    Phase(re.compile(r"Capturing CUDA graphs"), "capturing CUDA graphs", 0.8),
    Phase(re.compile(r"init engine \("), "the engine is up", 0.9),
    Phase(re.compile(r"Application startup complete"), "the server is up", 0.95),
)

_FAILURES = (
    FailurePattern(
        re.compile(r"Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired"),
        "Only {0} of {1} GiB were free when vLLM started: another process holds memory on the GPU.",
        "Stop what else runs on the GPU, or lower gpu_memory_utilization below the free share.",
    ),
    FailurePattern(
        re.compile(
            r"To serve at least one request with the models?'?s? max seq len \((\d+)\), "
            r"\(?([\d.]+) GiB KV cache is needed.*?available KV cache memory \(([\d.]+) GiB\)"
            r"(?:.*?maximum model length is (\d+))?"
        ),
        "One request of {0} tokens needs {1} GiB of KV cache, {2} GiB are there; the largest length would be {3}.",
        "Lower max_model_len to that length, raise gpu_memory_utilization, or use more GPUs or an fp8 KV cache.",
    ),
    FailurePattern(
        re.compile(r"No available memory for the cache blocks"),
        "No memory was left for the KV cache after weights and activations.",
        "Raise gpu_memory_utilization, use more GPUs, a smaller precision, or fewer max_num_batched_tokens.",
    ),
    FailurePattern(
        re.compile(r"CUDA out of memory occurred when warming up sampler with (\d+) dummy requests"),
        "The GPU ran out of memory warming up the sampler for {0} requests.",
        "Lower max_num_seqs or gpu_memory_utilization.",
    ),
    FailurePattern(
        re.compile(r"Failed to load model - not enough GPU memory|OutOfMemoryError: (?:CUDA|HIP) out of memory"),
        "The GPU ran out of memory while loading the model.",
        "Use more GPUs (tp), a smaller precision or a smaller model; check that nothing else holds memory there.",
    ),
    FailurePattern(
        re.compile(r"Address already in use"),
        "The port was taken while vLLM started.",
        "Launch it again, which tries another port, or stop the other process.",
    ),
    FailurePattern(
        re.compile(r"The quantization method (\S+) is not supported for the current GPU. Minimum capability: (\d+)"),
        "This GPU cannot run the quantisation {0}: it needs compute capability {1}.",
        "Choose another precision or another GPU.",
    ),
    FailurePattern(
        re.compile(r"Bfloat16 is only supported on GPUs with compute capability of at least 8.0"),
        "This GPU has no bfloat16.",
        "Choose fp16, or a GPU of compute capability 8.0 or more.",
    ),
    FailurePattern(
        re.compile(r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)"),
        "{0} attention heads cannot be split over tp {1}.",
        "Choose a tp that divides the number of heads.",
    ),
    FailurePattern(
        re.compile(r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)"),
        "The deployment needs {0} GPUs, the node shows {1}.",
        "Give it GPUs that this node has, or lower tp x pp.",
    ),
    FailurePattern(
        re.compile(r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\S*?(\d+)"),
        "max_model_len {0} is more than the model's own {1}.",
        "Lower max_model_len.",
    ),
    FailurePattern(
        re.compile(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)"),
        "An adapter of rank {0} does not fit max_lora_rank {1}.",
        "Raise max_lora_rank.",
    ),
    FailurePattern(
        re.compile(r"(?:unrecognized arguments|No such option):? (.+)"),
        "This vLLM does not know the option {0}.",
        "Options change between releases: state the engine version that is installed on the node.",
    ),
    FailurePattern(
        re.compile(r"No module named '?vllm"),
        "vLLM is not installed in the environment that the worker uses.",
        "Install it there, or point TONNAGE_VLLM at a vllm program that works.",
    ),
    FailurePattern(
        re.compile(r"No space left on device"),
        "The node's disk is full.",
        "Free space on the node; compile caches and model downloads need it.",
    ),
    FailurePattern(
        re.compile(r"Timed out waiting for engine core processes to start"),
        "vLLM gave up waiting for its own engine process (VLLM_ENGINE_READY_TIMEOUT_S).",
        "Set VLLM_ENGINE_READY_TIMEOUT_S above the time the model takes to load, and the ready timeout above that.",
    ),
    FailurePattern(
        re.compile(r"RepositoryNotFound|is not a local folder and is not a valid model identifier|LocalEntryNotFound"),
        "The model is neither on this node nor could it be downloaded.",
        "Put the model's folder on the node and give its absolute path, or fill the node's Hugging Face cache.",
    ),
)


def parse_vllm_startup(lines: Iterable[str]) -> StartupFacts:
    """StartupFacts from vLLM's log; with several ranks the tightest counts."""
    lines = list(lines)
    text = "\n".join(lines)
    version = re.search(r"(?:Initializing a V1 LLM engine \(v|server version |\bversion )(\d[\w.+]*)", text)
    weights = all_numbers(r"Model loading took ([\d.]+) GiB(?: memory)? and", lines)
    kv_gib = all_numbers(r"Available KV cache memory: (-?[\d.]+) GiB", lines)
    kv_gib += all_numbers(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", lines)
    tokens = all_numbers(r"KV cache size: ([\d,]+) tokens", lines)
    usage = re.search(
        r"Actual usage is ([\d.]+) GiB for weight, ([\d.]+) GiB for peak activation, (-?[\d.]+) GiB for non-torch", text
    )
    length = last_number(r"Auto-fit max_model_len: reduced from \d+ to (\d+)", lines)
    length = length or last_number(r"Using max model len ([\d,]+)", lines)
    block = last_number(r"Setting kv cache block size to (\d+)", lines)
    block = last_number(r"Setting attention block size to (\d+) tokens", lines) or block
    return StartupFacts(
        engine_version=version[1].rstrip(".") if version else None,
        weights_gib=max(weights, default=None),
        kv_gib=min(kv_gib, default=None),
        kv_tokens=int(min(tokens)) if tokens else None,
        block_tokens=int(block) if block else None,
        graph_gib=max(
            all_numbers(r"Graph capturing finished in [\d.]+ secs, took (-?[\d.]+) GiB", lines), default=None
        ),
        activation_gib=float(usage[2]) if usage else None,
        non_torch_gib=float(usage[3]) if usage else None,
        total_gib=last_number(r"Free memory on device \(?-?[\d.]+/([\d.]+) GiB\)? on startup", lines),
        max_model_len=int(length) if length else None,
        max_concurrency=min(all_numbers(r"tokens per request: ([\d.]+)x", lines), default=None),
        load_s=max(all_numbers(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds", lines), default=None),
        compile_s=max(all_numbers(r"torch\.compile (?:takes|took) ([\d.]+) s in total", lines), default=None),
        graph_s=max(all_numbers(r"Graph capturing finished in ([\d.]+) secs", lines), default=None),
    )


class VllmAdapter:
    """vLLM on GPUs, in an environment of its own."""

    name = "vllm"
    emulated = False
    uses_gpus = True
    metrics = VLLM_METRICS
    phases: Sequence[Phase] = VLLM_PHASES
    tokenize_path: str | None = "/tokenize"

    def plan(self, launch: EngineLaunch, folder: Path, config: NodeConfig) -> ProcessPlan:
        """See ``EngineAdapter.plan``."""
        check_launch(launch)
        program = require_program(config.vllm, "vLLM", "TONNAGE_VLLM")
        command = engine_command(launch, EngineName.VLLM, launch.model, config.bind_host, folder)
        write_files(command, folder)
        env = {
            "VLLM_NO_USAGE_STATS": "1",
            "NO_COLOR": "1",
            "VLLM_ENGINE_READY_TIMEOUT_S": str(int(max(launch.ready_timeout_s - OUTER_MARGIN_S, 1.0))),
            **_visible_gpus(launch),
            **launch.env,
        }
        return ProcessPlan((program, *command.arguments), env, tokenizer=launch.model)

    def listed_name(self, launch: EngineLaunch) -> str:
        """See ``EngineAdapter.listed_name``."""
        return launch.served_name

    def parse_startup(self, lines: Iterable[str]) -> StartupFacts:
        """See ``EngineAdapter.parse_startup``."""
        return parse_vllm_startup(lines)

    def explain_failure(self, lines: Sequence[str], returncode: int | None) -> Failure:
        """See ``EngineAdapter.explain_failure``."""
        return explain(lines, returncode, _FAILURES, "vLLM")


def _visible_gpus(launch: EngineLaunch) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpu_indexes))} if launch.gpu_indexes else {}

"""Engine settings: as a user states them, and as the engine resolves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class EngineName(StrEnum):
    """The engines Tonnage plans for."""

    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt_llm"


DEFAULT_VERSION = {EngineName.VLLM: "0.24.0", EngineName.TENSORRT_LLM: "1.3.0rc20"}
"""The versions that the operator data were measured on; used when a user states none."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a user asks of an engine. None means: the engine's own default for that version, GPU and model.

    ``precision`` as-config | bf16 | fp16 | fp32 | fp8 | int8 | int4 | fp4 | mxfp4. ``kv_cache_dtype`` auto | bf16 |
    fp16 | fp8. ``gpu_memory_utilization`` is vLLM's share of TOTAL memory, ``free_gpu_memory_fraction`` TensorRT-LLM's
    share of what is free once weights and workspace are loaded. ``ep`` > 1 turns expert parallelism on. ``dp`` counts
    data-parallel ranks (attention DP for MoE models), each of tp x pp GPUs.
    """

    engine: EngineName
    version: str | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    precision: str = "as-config"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    free_gpu_memory_fraction: float | None = None
    kv_cache_max_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    block_tokens: int | None = None
    enforce_eager: bool = False
    max_loras: int = 0
    max_lora_rank: int = 16
    speculative_tokens: int = 0
    speculative_acceptance: float | None = None  # mean accepted tokens per step beyond the first, 0..speculative_tokens
    mm_items_per_prompt: int = 0
    capacity_policy: str | None = None  # TensorRT-LLM: GUARANTEED_NO_EVICT | MAX_UTILIZATION
    trt_backend: str = "pytorch"  # TensorRT-LLM: pytorch | tensorrt (engine build)
    sampler: str = "auto"  # vLLM: auto | flashinfer | native; which kernels sample, as far as memory is concerned
    kv_cache_max_gpu_gib: float | None = None  # TensorRT-LLM: max_gpu_total_bytes, the pool's upper limit per GPU
    kv_cache_host_gib: float | None = None  # TensorRT-LLM: host_cache_size, blocks kept for reuse in host memory
    logprobs: int = 0  # log-probabilities that clients may ask for with each output token
    prompt_logprobs: bool = False  # ... and for the prompt's tokens
    max_cudagraph_capture_size: int | None = None  # largest batch captured as a graph, sizes between are padded up to
    piecewise_cuda_graphs: bool = False  # TensorRT-LLM: steps that hold a prompt run from captured graphs too
    attention_dp_wait_iters: int = 0  # TensorRT-LLM: steps that a prompt waits at most for prompts on every rank
    batch_wait_iters: int = 0  # TensorRT-LLM: steps that prompts wait at most until a step has enough tokens, ...
    batch_wait_tokens_ratio: float = 0.0  # ... as a share of max_num_batched_tokens
    moe_backend: str | None = None  # kernel of the routed experts, in the engine's own word (marlin, TRTLLM, ...)
    even_expert_routing: bool = False  # tokens reach every expert alike, as with dummy weights; trained routers do not
    watermark: float = 0.0  # vLLM: share of the pool that must stay free when a request is admitted beside others
    async_scheduling: bool | None = None  # the next step is scheduled while one runs (TensorRT-LLM: overlap scheduler)

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings with every default filled in as the engine would, and where each came from.

    ``precision`` is the format that the big matrices are stored in (bf16, fp16, fp32, fp8, fp8_block, int8, int4, fp4,
    mxfp4); with ``weight_only`` the multiplication itself runs in 16 bits.
    ``origin`` maps a field name to "user" or to a sentence such as "vLLM 0.24.0 default for GPUs of 70 GiB or more".
    """

    engine: EngineName
    version: str
    tp: int
    pp: int
    ep: int
    dp: int
    precision: str
    weight_only: bool
    kv_cache_dtype: str  # bf16 | fp16 | fp32 | fp8 | fp4
    max_model_len: int
    gpu_memory_utilization: float | None
    free_gpu_memory_fraction: float | None
    kv_cache_max_tokens: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    block_tokens: int
    async_scheduling: bool
    enforce_eager: bool
    cuda_graph_sizes: tuple[int, ...]
    max_loras: int
    max_lora_rank: int
    speculative_tokens: int
    speculative_acceptance: float | None
    mm_items_per_prompt: int
    capacity_policy: str  # vLLM: PREEMPT_RECOMPUTE; TensorRT-LLM: GUARANTEED_NO_EVICT | MAX_UTILIZATION
    trt_backend: str
    sampler: str = "native"  # vLLM: flashinfer | native
    kv_cache_max_gpu_gib: float | None = None
    kv_cache_host_gib: float | None = None
    logprobs: int = 0
    prompt_logprobs: bool = False
    moe_backend: str | None = None
    even_expert_routing: bool = False
    piecewise_cuda_graphs: bool = False
    attention_dp_wait_iters: int = 0
    batch_wait_iters: int = 0
    batch_wait_tokens_ratio: float = 0.0
    watermark: float = 0.0
    origin: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class Support:
    """Whether an engine can run a model on a GPU with these settings; ``reasons`` say why not, ``warnings`` what
    changes.
    """

    ok: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

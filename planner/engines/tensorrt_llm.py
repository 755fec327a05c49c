"""How TensorRT-LLM fills in what a user leaves open, by version, GPU and model.

Read from ``llmapi/llm_args.py`` and ``commands/serve.py`` of the 1.x line.
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines.precision import changes_precision, kv_cache_precision, run_precision
from planner.engines.types import EngineSettings, ResolvedSettings
from planner.engines.versions import at_least
from planner.engines.vllm import USER, carried_over, pick_length
from planner.models.spec import ModelSpec

DEFAULT_MAX_BATCH_SIZE = 2048
DEFAULT_MAX_NUM_TOKENS = 8192
DEFAULT_FREE_FRACTION = 0.9
DEFAULT_GRAPH_MAX_BATCH = 128
FIRST_PYTORCH_VERSION = "0.17.0"
"""Before it every model was built into an engine and run by the C++ runtime (release notes)."""

BLOCK_FP8_EXPERTS_ON_BLACKWELL = "DEEPGEMM"


def expert_kernel(model: ModelSpec, gpu: GpuSpec, precision: str, version: str) -> str | None:
    """Kernel of the routed experts that has to be asked for since the default one, CUTLASS, does not run them.

    Block-scaled FP8 on data-centre Blackwell: "MoE Backend Support Matrix" of the deployment guide for DeepSeek R1.
    Left alone the executor ends with "fp8 blockscale gemm only support Hopper" (issue 5064).
    """
    needed = mt.is_moe(model) and precision == "fp8_block" and gt.is_sm100_family(gpu)
    return BLOCK_FP8_EXPERTS_ON_BLACKWELL if needed and at_least(version, "1.0.0") else None


def graph_sizes(max_batch: int, padded_to: int | None = None) -> tuple[int, ...]:
    """Decode batch sizes captured when ``cuda_graph_config`` is left alone: no padding, up to 128. With a stated
    largest size (``max_batch_size``, ``enable_padding``): multiples of 8 up to 128, then powers of two.
    """
    if padded_to is not None:
        ceiling = min(padded_to, max_batch)
        sizes = [*range(8, 129, 8), *(2**power for power in range(8, 16))]
        small = {1, 2, 4, ceiling, *sizes}
        return tuple(sorted(size for size in small if size <= ceiling))
    ceiling = min(DEFAULT_GRAPH_MAX_BATCH, max_batch)
    return tuple(size for size in (*range(1, 33), 64, 128) if size <= ceiling)


def resolve(
    settings: EngineSettings, model: ModelSpec, gpu: GpuSpec, version: str, expected_len: int | None
) -> ResolvedSettings:
    """Fill in TensorRT-LLM's defaults; see ``planner.engines.resolve``."""
    default = f"TensorRT-LLM {version} default"
    origin: dict[str, str] = {}

    def pick(name: str, fallback: object) -> object:
        given = getattr(settings, name)
        origin[name] = USER if given is not None else default
        return fallback if given is None else given

    max_model_len = pick_length(settings, model, expected_len, origin)
    max_batch = int(str(pick("max_num_seqs", DEFAULT_MAX_BATCH_SIZE)))
    max_tokens = int(str(pick("max_num_batched_tokens", DEFAULT_MAX_NUM_TOKENS)))
    fraction = float(str(pick("free_gpu_memory_fraction", DEFAULT_FREE_FRACTION)))
    if settings.block_tokens is not None:
        block, origin["block_tokens"] = settings.block_tokens, USER
    elif mt.is_mla(model) and gt.is_sm90(gpu):
        block, origin["block_tokens"] = 64, "FlashMLA on Hopper"
    else:
        block, origin["block_tokens"] = 32, default
    reuse = bool(pick("enable_prefix_caching", True))
    if settings.enable_prefix_caching is None and mt.is_recurrent(model) and not at_least(version, "1.3.0rc14"):
        reuse = False
        origin["enable_prefix_caching"] = f"off: the state cache of {version} refuses block reuse"
    precision, weight_only = run_precision(settings, model, gpu)
    origin["precision"] = USER if changes_precision(settings, model) else "checkpoint"
    kv_dtype, origin["kv_cache_dtype"] = kv_cache_precision(settings, model, gpu, version)
    carried = carried_over(settings)
    if not at_least(version, FIRST_PYTORCH_VERSION):
        carried["trt_backend"] = "tensorrt"
    origin["moe_backend"] = USER if settings.moe_backend else default
    asked_kernel = expert_kernel(model, gpu, precision, version)
    if settings.moe_backend is None and asked_kernel is not None:
        carried["moe_backend"] = asked_kernel
        origin["moe_backend"] = "block-scaled FP8 experts need it on this GPU"
    overlaps = carried["trt_backend"] == "pytorch"
    origin["async_scheduling"] = (
        f"{default}: overlap scheduler {'on' if overlaps else 'is in the PyTorch back end only'}"
    )
    if settings.async_scheduling is not None:
        overlaps = overlaps and settings.async_scheduling
        origin["async_scheduling"] = USER
    asked = settings.max_cudagraph_capture_size
    sizes = () if settings.enforce_eager else graph_sizes(max_batch, asked)
    origin["cuda_graph_sizes"] = (default if asked is None else USER) if sizes else "no CUDA graphs"
    return ResolvedSettings(
        version=version,
        precision=precision,
        weight_only=weight_only,
        kv_cache_dtype=kv_dtype,
        max_model_len=max_model_len,
        gpu_memory_utilization=None,
        free_gpu_memory_fraction=fraction,
        max_num_seqs=max_batch,
        max_num_batched_tokens=max_tokens,
        enable_chunked_prefill=bool(pick("enable_chunked_prefill", False)),
        enable_prefix_caching=reuse,
        block_tokens=block,
        async_scheduling=overlaps,
        cuda_graph_sizes=sizes,
        capacity_policy=str(pick("capacity_policy", "GUARANTEED_NO_EVICT")),
        origin=origin,
        **carried,
    )

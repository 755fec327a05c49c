"""Options that take only some values, by engine and version: which, and what becomes of those that are cut or ignored.

vLLM: ``config/kernel.py`` (``MoEBackend``), ``config/cache.py`` (``BlockSize``), ``platforms/cuda.py`` and
``get_supported_kernel_block_sizes`` of the attention back ends, read in 0.10.2 to 0.33.0. TensorRT-LLM:
``llmapi/llm_args.py`` (``MoeConfig``) of the 1.x line; its blocks are powers of two (docs/source/legacy/advanced/
kv-cache-reuse.md).
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines import tensorrt_llm, vllm
from planner.engines.types import EngineName, EngineSettings
from planner.engines.versions import at_least
from planner.errors import InputError
from planner.models.spec import ModelSpec
from planner.words import ENGINE_LABEL

MOE_BACKEND_FLAG_SINCE = "0.17.1"
"""First vLLM with ``--moe-backend``; before, ``VLLM_MXFP4_USE_MARLIN`` chose Marlin for MXFP4 experts, no more."""

_VLLM_EXPERTS = {
    "0.17.1": (
        "auto", "triton", "deep_gemm", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl",
        "marlin", "aiter",
    ),
    "0.20.2": ("deep_gemm_mega_moe", "emulation"),
    "0.22.1": ("flashinfer_b12x", "humming", "triton_unfused"),
    "0.24.0": ("flydsl",),
    "0.25.1": ("hpc",),
    "0.28.0": ("batched_triton",),
    "0.30.0": (
        "b12x", "flashinfer_moe_ep_mega_deep_gemm", "flashinfer_moe_ep_mega_cutedsl", "aiter_triton_mxfp4_bf16",
        "rdna3",
    ),
    "0.33.0": ("flashinfer_moe_ep_cutedsl", "aiter_mega_moe", "aiter_triton_mxfp4_mxfp4"),
}  # fmt: skip
"""What each release added to ``--moe-backend``."""

_TRTLLM_EXPERTS = {
    "0.0.0": ("CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "VANILLA"),
    "1.1.0": ("TRITON",),
    "1.2.0": ("AUTO",),
    "1.3.0rc20": ("DENSEGEMM", "MARLIN", "MEGAMOE_DEEPGEMM"),
    "1.4.0": ("MEGAMOE_CUTEDSL",),
}
_GONE = {"flashinfer_moe_ep_mega_cutedsl": "0.32.0", "WIDEEP": "1.4.0"}
"""First release without a name that earlier ones had; pull request 18626 of TensorRT-LLM for the last."""

_BLACKWELL_EXPERTS = ("TRTLLM", "DEEPGEMM", "CUTEDSL")
"""Experts' kernels of TensorRT-LLM for compute capability 10.0 and 10.3 alone (``_torch/modules/fused_moe``)."""

_KERNEL_BLOCK = 16
FREE_BLOCK_SIZE_SINCE = "0.18.0"
"""From here vLLM takes any block that an attention back end takes; before, powers of two."""


def moe_backends(engine: EngineName, version: str) -> tuple[str, ...]:
    """Names that ``moe_backend`` may have; empty where the engine has no such option."""
    table = _VLLM_EXPERTS if engine is EngineName.VLLM else _TRTLLM_EXPERTS
    added = (name for since, names in table.items() if at_least(version, since) for name in names)
    return tuple(name for name in added if name not in _GONE or not at_least(version, _GONE[name]))


def check_options(
    model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, version: str
) -> tuple[list[str], list[str]]:
    """(reasons against, warnings on what is cut or ignored) of options that take only some values.

    Raises InputError for a value that the engine of that version refuses.
    """
    reasons = _experts(gpu, settings, version)
    _block(model, gpu, settings, version)
    warnings = [*_graphs(model, gpu, settings, version), *_without_flag(settings, version)]
    if settings.kv_cache_max_tokens is not None and settings.engine is EngineName.VLLM:
        reasons += _blocks_of_one_kind(model)
    return reasons, warnings


def _experts(gpu: GpuSpec, settings: EngineSettings, version: str) -> list[str]:
    asked = settings.moe_backend
    if asked is None:
        return []
    vllm_asked = settings.engine is EngineName.VLLM
    known = moe_backends(settings.engine, version) or ("marlin",)
    # vLLM lowers the case and takes hyphens; TensorRT-LLM takes the word as it is
    name = asked.lower().replace("-", "_") if vllm_asked else asked
    if name not in known:
        raise InputError(
            f"{ENGINE_LABEL[settings.engine]} {version} has no such kernel for experts",
            field="moe_backend",
            value=asked,
            remedy=f"Use one of: {', '.join(known)}; or leave it out.",
        )
    if not vllm_asked and name in _BLACKWELL_EXPERTS and not gt.is_sm100_family(gpu):
        return [
            f"moe_backend {asked} of TensorRT-LLM runs on data-centre Blackwell only, not on {gpu.name}; use CUTLASS."
        ]
    return []


def _without_flag(settings: EngineSettings, version: str) -> list[str]:
    if settings.engine is not EngineName.VLLM or settings.moe_backend is None:
        return []
    if at_least(version, MOE_BACKEND_FLAG_SINCE):
        return []
    return [
        f"vLLM {version} has no --moe-backend: set VLLM_MXFP4_USE_MARLIN=1 where it starts, the command cannot say so."
    ]


def _block(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, version: str) -> None:
    block = settings.block_tokens
    if block is None:
        return
    allowed = ""
    if settings.engine is EngineName.TENSORRT_LLM:
        forced = 64 if mt.is_mla(model) and gt.is_sm90(gpu) else None
        if forced is not None and block != forced:
            allowed = f"FlashMLA on Hopper sets blocks of {forced} tokens whatever is asked for: leave it out."
        elif block & (block - 1):
            allowed = "Use a power of two; the default is 32."
    else:
        unit = _vllm_unit(model, gpu, version)
        sizes = _vllm_sizes(version)
        if (sizes and block not in sizes) or block % unit:
            usable = [str(size) for size in sizes if size % unit == 0]
            allowed = f"Use one of: {', '.join(usable)}." if usable else f"Use a multiple of {unit}."
    if allowed:
        label = ENGINE_LABEL[settings.engine]
        raise InputError(f"{label} {version} has no such block", field="block_tokens", value=block, remedy=allowed)


def _vllm_unit(model: ModelSpec, gpu: GpuSpec, version: str) -> int:
    """Tokens that a stated block must be a multiple of: what the attention back end's kernels read at a time.

    Up to 0.17 vLLM silently set latent attention's own block where a stated one did not fit it.
    """
    if mt.is_sparse_mla(model) or model.model_type.startswith("deepseek_v4"):
        return vllm.block_tokens(version, model, gpu)[0]
    if mt.is_mla(model) and gt.is_nvidia(gpu) and not at_least(version, FREE_BLOCK_SIZE_SINCE):
        return vllm.block_tokens(version, model, gpu)[0]
    return _KERNEL_BLOCK


def _vllm_sizes(version: str) -> tuple[int, ...]:
    """Block sizes that the command line takes; empty where any is taken."""
    if at_least(version, FREE_BLOCK_SIZE_SINCE):
        return ()
    return (1, 8, 16, 32, 64, 128, 256) if at_least(version, "0.12.0") else (1, 8, 16, 32, 64, 128)


def _graphs(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, version: str) -> list[str]:
    asked = settings.max_cudagraph_capture_size
    if asked is None:
        return []
    vllm_asked = settings.engine is EngineName.VLLM
    fill_in = vllm.resolve if vllm_asked else tensorrt_llm.resolve
    sizes = fill_in(settings, model, gpu, version, None).cuda_graph_sizes
    if not sizes:
        return ["max_cudagraph_capture_size changes nothing: no CUDA graphs are captured."]
    if sizes[-1] == asked:
        return []
    limit = "max_num_batched_tokens and the sizes captured" if vllm_asked else "max_num_seqs"
    return [f"max_cudagraph_capture_size {asked:,} is cut to {sizes[-1]:,} by {limit}."]


def _blocks_of_one_kind(model: ModelSpec) -> list[str]:
    """A block of vLLM's pool holds one group of layers: tokens mean blocks only where there is one group."""
    if mt.has_one_cache_kind(model):
        return []
    return [
        f"kv_cache_max_tokens cannot be said to vLLM for {model.model_id}: --num-gpu-blocks-override counts blocks, "
        "and a block holds one kind of layer of several; limit the pool by gpu_memory_utilization."
    ]

"""Limits of an engine on a device that appear or go with its version.

vLLM, read in the releases 0.19.1 to 0.32.0: ``v1/attention/backends/mla/flashinfer_mla_sparse.py`` and
``platforms/cuda.py`` (compute capability 12), ``platforms/cpu.py``, ``v1/attention/backends/cpu_attn.py`` and
``model_executor/kernels/linear/__init__.py`` (CPUs), ``v1/attention/backends/flashinfer.py`` (NVFP4 caches).
TensorRT-LLM: ``_torch/modules/linear.py`` (``get_quant_method``) and docs/source/features/quantization.md.
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines.precision import storage_precision
from planner.engines.tensorrt_llm import FIRST_PYTORCH_VERSION
from planner.engines.types import EngineName, EngineSettings
from planner.engines.versions import at_least
from planner.models.spec import ModelSpec

SPARSE_LATENT_FLOOR = 9.0
"""Lowest compute capability of an attention back end for sparse latent attention (``supports_compute_capability`` of
``v1/attention/backends/mla/*sparse*.py``, read in 0.32; on Ampere 0.13 to 0.20 end with "No valid attention backend
found", vllm-project/vllm issues 31480 and 41525)."""

SPARSE_LATENT_SM120_SINCE = "0.24.0"
"""First vLLM with a back end for it on compute capability 12 (pull request 43477); before, issues 31936 and 45317."""

CPU_FP8_BLOCKS_SINCE = "0.21.0"
"""First vLLM with a kernel for block-scaled FP8 weights on x86 CPUs (pull request 41186); it needs AMX."""

CPU_FP8_SINCE = "0.31.0"
"""First vLLM with one for FP8 weights of one scale a tensor. Before, the supported-hardware table says no."""

CPU_FP8_CACHE_SINCE = "0.21.0"
"""First vLLM that keeps an FP8 cache on x86 CPUs (pull request 39445); it needs AVX-512 or AMX."""

CPU_MXFP4_EXPERTS_SINCE = "0.22.1"
"""First release read whose MXFP4 experts run on CPUs (``fused_moe/oracle/mxfp4.py``)."""

NVFP4_CACHE_SINCE = "0.20.2"
"""First release read whose ``--kv-cache-dtype`` knows nvfp4."""


def device_limits(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, version: str) -> list[str]:
    """Why the engine of ``version`` cannot run ``model`` with these settings on ``gpu``; empty when nothing is against
    it.
    """
    if settings.engine is EngineName.TENSORRT_LLM:
        return [*_int8_of_tensorrt_llm(model, settings, version), *_nvfp4_cache(gpu, settings, version)]
    found = [*_sparse_latent(model, gpu, settings, version), *_nvfp4_cache(gpu, settings, version)]
    if gt.is_cpu(gpu):
        found += _cpu_weights(model, settings, version) + _cpu_cache(settings, version)
    return found


def cpu_warnings(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings) -> list[str]:
    """What the narrow formats need of a CPU, which the catalogue does not say."""
    if not gt.is_cpu(gpu):
        return []
    found = []
    if storage_precision(settings, model) in ("fp8", "fp8_block"):
        found.append("FP8 weights need a CPU with AMX (Sapphire Rapids or later); elsewhere vLLM finds no kernel.")
    if settings.kv_cache_dtype == "fp8":
        found.append("An FP8 KV cache needs a CPU with AVX-512 or AMX.")
    return found


def _sparse_latent(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, version: str) -> list[str]:
    cc = gt.effective_capability(gpu)
    if not mt.is_sparse_mla(model) or cc <= 0:
        return []
    if cc < SPARSE_LATENT_FLOOR:
        return [
            f"vLLM has sparse latent attention for compute capability {SPARSE_LATENT_FLOOR} (Hopper) or later; "
            f"{gpu.name} has {cc}."
        ]
    if cc < 12.0:
        return []
    if not at_least(version, SPARSE_LATENT_SM120_SINCE):
        return [
            f"vLLM {version} has no sparse latent attention for compute capability {cc} ({gpu.name}); it came with "
            f"{SPARSE_LATENT_SM120_SINCE}."
        ]
    if settings.kv_cache_dtype in ("bf16", "fp16"):
        return [
            f"On {gpu.name} vLLM keeps the cache of sparse latent attention in FP8 only, not in "
            f"{settings.kv_cache_dtype}; leave kv_cache_dtype out."
        ]
    return []


def _nvfp4_cache(gpu: GpuSpec, settings: EngineSettings, version: str) -> list[str]:
    if settings.kv_cache_dtype != "fp4":
        return []
    if not gt.is_sm100_family(gpu):
        return ["An NVFP4 KV cache needs data-centre Blackwell."]
    if settings.engine is EngineName.VLLM and not at_least(version, NVFP4_CACHE_SINCE):
        return [f"vLLM {version} has no NVFP4 KV cache; it came with {NVFP4_CACHE_SINCE}."]
    return []


def _int8_of_tensorrt_llm(model: ModelSpec, settings: EngineSettings, version: str) -> list[str]:
    """The PyTorch back end multiplies no INT8 activations: NVIDIA/TensorRT-LLM issue 6988 ends with "Unsupported
    quantization_config". Weight-only checkpoints (W8A16) load.
    """
    if settings.trt_backend != "pytorch" or not at_least(version, FIRST_PYTORCH_VERSION):
        return []
    if storage_precision(settings, model) != "int8":
        return []
    own = model.quantization.method != "none" and model.quantization.precision == "int8"
    if own and model.quantization.activation_bits >= 16:
        return []
    instead = "" if at_least(version, "1.3.0rc21") else ", or trt_backend tensorrt, which builds SmoothQuant engines"
    return [
        f"TensorRT-LLM {version} has no INT8 W8A8 in its PyTorch back end (its documentation lists FP8, FP4 and 4-bit "
        f"weights); use fp8 or int4{instead}."
    ]


def _cpu_weights(model: ModelSpec, settings: EngineSettings, version: str) -> list[str]:
    stored = storage_precision(settings, model)
    for precision, since, word in (
        ("fp8_block", CPU_FP8_BLOCKS_SINCE, "block-scaled FP8"),
        ("fp8", CPU_FP8_SINCE, "FP8"),
    ):
        if stored == precision and not at_least(version, since):
            return [f"vLLM {version} has no {word} weights on CPUs (since {since}); use bf16, int8 or int4."]
    if stored == "fp4":
        return ["vLLM has no NVFP4 weights on CPUs; use bf16, int8 or int4."]
    if stored == "mxfp4" and not (mt.is_moe(model) and at_least(version, CPU_MXFP4_EXPERTS_SINCE)):
        return [
            f"vLLM {version} has MXFP4 on CPUs for experts alone, since {CPU_MXFP4_EXPERTS_SINCE}; use bf16, int8 or"
            " int4."
        ]
    return []


def _cpu_cache(settings: EngineSettings, version: str) -> list[str]:
    if settings.kv_cache_dtype != "fp8" or at_least(version, CPU_FP8_CACHE_SINCE):
        return []
    return [f"vLLM {version} has no FP8 KV cache on CPUs; it came with {CPU_FP8_CACHE_SINCE}."]

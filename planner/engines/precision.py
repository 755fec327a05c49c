"""Which precision a GPU really runs: tensor cores where it has them, weight-only kernels where it has not.

Compute-capability floors are those of ``model_executor/layers/quantization`` (vLLM) and
``docs/source/features/quantization.md`` (TensorRT-LLM).
"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines.types import EngineName, EngineSettings, ResolvedSettings
from planner.engines.versions import at_least
from planner.errors import InputError
from planner.models.precision import PRECISIONS, with_precision
from planner.models.spec import ModelSpec

KV_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp4")
SIXTEEN_BIT = ("bf16", "fp16", "fp32")

NATIVE_FLOOR = {"fp8": 8.9, "fp8_block": 8.9, "int8": 7.5, "fp4": 10.0, "mxfp4": 10.0}
"""Compute capability from which activations are computed in the narrow format; below, weights only."""


def storage_precision(settings: EngineSettings, model: ModelSpec) -> str:
    """Format in which the weights of the big matrices lie in memory."""
    if settings.precision not in PRECISIONS:
        raise InputError(
            "unknown precision",
            field="precision",
            value=settings.precision,
            remedy=f"Use one of {', '.join(PRECISIONS)}.",
        )
    if settings.precision == "as-config":
        return model.dtype if model.quantization.method == "none" else model.quantization.precision
    if settings.precision == "fp8" and model.quantization.precision == "fp8_block":
        return "fp8_block"
    if settings.precision == "fp4" and model.quantization.precision == "mxfp4":
        return "mxfp4"  # the checkpoint's own four-bit floats
    return settings.precision


def changes_precision(settings: EngineSettings, model: ModelSpec) -> bool:
    """Whether the settings ask for another format than the checkpoint's own."""
    stored = model.dtype if model.quantization.method == "none" else model.quantization.precision
    return storage_precision(settings, model) != stored


def as_loaded(model: ModelSpec, resolved: ResolvedSettings) -> ModelSpec:
    """``model`` with its weights as the engine holds them under ``resolved``: cast or quantised where asked for."""
    stored = model.dtype if model.quantization.method == "none" else model.quantization.precision
    if resolved.precision in (stored, "fp8_block"):
        return model
    return with_precision(model, resolved.precision)


def run_precision(settings: EngineSettings, model: ModelSpec, gpu: GpuSpec) -> tuple[str, bool]:
    """(precision, weight_only) of the GEMMs on ``gpu``; see ``ResolvedSettings``.

    The precision is the format that the weights are stored in; ``weight_only`` says that the multiplication itself runs
    in 16 bits. bf16 falls back to fp16 where the GPU has no bf16 (compute capability below 8.0).
    """
    stored = storage_precision(settings, model)
    if stored in SIXTEEN_BIT:
        if stored == "bf16" and gt.is_nvidia(gpu) and gt.effective_capability(gpu) < 8.0:
            return "fp16", False
        return stored, False
    if stored == "int4":
        return stored, True
    quantization = model.quantization
    as_config = settings.precision == "as-config" or quantization.precision == stored
    if as_config and quantization.method != "none" and quantization.activation_bits >= 16 and stored != "mxfp4":
        return stored, True
    return stored, not computes_natively(stored, gpu)


def computes_natively(precision: str, gpu: GpuSpec) -> bool:
    """Whether ``gpu`` multiplies in ``precision`` rather than expanding the weights to 16 bits first."""
    if gt.is_nvidia(gpu):
        return gt.effective_capability(gpu) >= NATIVE_FLOOR.get(precision, 0.0)
    if gpu.vendor == "amd":
        generation = gpu.architecture.lower()
        if precision in ("fp4", "mxfp4"):
            return "cdna 4" in generation or "cdna4" in generation
        if precision in ("fp8", "fp8_block"):
            return any(word in generation for word in ("cdna 3", "cdna3", "cdna 4", "cdna4"))
        return True
    rates = {"fp8": gpu.fp8_tflops, "fp8_block": gpu.fp8_tflops, "int8": gpu.int8_tops, "fp4": gpu.fp4_tflops}
    return rates.get(precision) is not None


def _sparse_fp8(model: ModelSpec, gpu: GpuSpec, version: str) -> bool:
    """Whether vLLM keeps sparse latent attention's cache in FP8 unasked (``model_executor/models/config.py``).

    DeepSeek V3.2: 0.11.0 alone, as the model's own type since 0.11.1; GLM-5: since 0.33.0 on data-centre Blackwell;
    any of them on compute capability 12, whose one back end has a packed FP8 layout.
    """
    if not mt.is_sparse_mla(model) or not at_least(version, "0.11.0"):
        return False
    if model.model_type.startswith("deepseek_v4") or gt.effective_capability(gpu) >= 12.0:
        return True
    if model.architecture == "GlmMoeDsaForCausalLM" and gt.is_sm100_family(gpu) and at_least(version, "0.33.0"):
        return True
    return not at_least(version, "0.11.1")


def _export_takes_cache(settings: EngineSettings, model: ModelSpec, version: str) -> bool:
    """Whether an engine that is given NVIDIA's export of ``model`` keeps the cache in FP8, as the export asks.

    TensorRT-LLM does. vLLM since 0.14.0 (pull request 30785); it makes FP8 weights by itself, which leaves the cache as
    it is, but loads FP4 from an export only.
    """
    stored = storage_precision(settings, model)
    if settings.engine is EngineName.TENSORRT_LLM:
        return stored in ("fp8", "fp4") and at_least(version, "0.20.0")
    return stored == "fp4" and at_least(version, "0.14.0")


def kv_cache_precision(settings: EngineSettings, model: ModelSpec, gpu: GpuSpec, version: str) -> tuple[str, str]:
    """KV cache format (bf16, fp16, fp32, fp8 or fp4) and where it came from."""
    asked = settings.kv_cache_dtype
    if asked not in KV_DTYPES:
        raise InputError(
            "unknown KV cache type", field="kv_cache_dtype", value=asked, remedy=f"Use one of {', '.join(KV_DTYPES)}."
        )
    if asked != "auto":
        return asked, "user"
    if settings.engine is EngineName.VLLM and _sparse_fp8(model, gpu, version):
        return "fp8", f"vLLM {version} default for sparse latent attention"
    if model.quantization.kv_cache_dtype == "fp8":
        return "fp8", "asked for by the checkpoint"
    if changes_precision(settings, model) and _export_takes_cache(settings, model, version):
        return "fp8", "an assumed ModelOpt checkpoint: NVIDIA's exports quantise the KV cache too"
    activations = settings.precision if settings.precision in SIXTEEN_BIT else model.dtype
    if activations == "bf16" and gt.is_nvidia(gpu) and gt.effective_capability(gpu) < 8.0:
        activations = "fp16"
    if activations == "fp32" and settings.precision != "fp32":
        activations = "bf16" if gt.effective_capability(gpu) >= 8.0 or not gt.is_nvidia(gpu) else "fp16"
    return activations, "follows the model's type"

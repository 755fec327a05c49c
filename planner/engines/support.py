"""Can an engine run this model on this GPU with these settings, and what changes silently if it does?"""

from __future__ import annotations

from planner.catalog.types import GpuSpec
from planner.engines import gpu_traits as gt
from planner.engines import model_traits as mt
from planner.engines import tensorrt_llm_models as tm
from planner.engines.ignored import ignored
from planner.engines.limits import cpu_warnings, device_limits
from planner.engines.options import check_options
from planner.engines.precision import SIXTEEN_BIT, computes_natively, storage_precision
from planner.engines.types import DEFAULT_VERSION, EngineName, EngineSettings, Support
from planner.engines.versions import at_least, outside_verified_range
from planner.models.spec import ModelSpec
from planner.words import ENGINE_LABEL

VLLM_FLOOR = {"fp8": 7.5, "fp8_block": 7.5, "int8": 7.5, "int4": 6.0, "fp4": 7.5, "mxfp4": 8.0}
"""Lowest compute capability of each stored format in vLLM (``get_min_capability``)."""

TRTLLM_FLOOR = {"fp8": 8.9, "fp8_block": 9.0, "int8": 8.0, "int4": 8.0, "fp4": 10.0, "mxfp4": 9.0}
"""Lowest compute capability of each stored format in TensorRT-LLM; SM120 has no block-scaled FP8."""

NOT_IN_TENSORRT_LLM = frozenset({"auto-round", "bitsandbytes", "quark"})
"""Methods of checkpoints that its documentation (docs/source/features/quantization.md) names nowhere."""

WATERMARK_SINCE = "0.24.0"
"""First vLLM that takes ``--watermark`` (``config/scheduler.py``)."""

VLLM_MIN_CAPABILITY = 7.0
TRTLLM_MIN_CAPABILITY = 8.0
CAPACITY_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION")
"""Admission rules of TensorRT-LLM that are modelled. STATIC_BATCH, which admits into an empty engine alone, is not."""

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def support(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings) -> Support:
    """Check vendor, precision, parallel shape, model and features.

    Returns every reason against (empty when it runs) and warnings on what the engine would do differently from what the
    settings suggest. Raises InputError for settings that mean nothing (unknown precision, a version that is none).
    """
    version = settings.version or DEFAULT_VERSION[settings.engine]
    reasons: list[str] = []
    warnings: list[str] = []
    if outside_verified_range(settings.engine, version):
        warnings.append(
            f"{ENGINE_LABEL[settings.engine]} {version} lies outside the versions whose rules were verified; "
            "the nearest rules are used."
        )
    _check_device(gpu, settings, reasons)
    _check_shape(model, settings, reasons, warnings)
    _check_precision(model, gpu, settings, version, reasons, warnings)
    _check_model(model, gpu, settings, version, reasons, warnings)
    _check_features(model, gpu, settings, version, reasons, warnings)
    reasons += device_limits(model, gpu, settings, version)
    warnings += cpu_warnings(model, gpu, settings)
    against, changed = check_options(model, gpu, settings, version)
    reasons += against
    warnings += changed
    warnings += ignored(model, settings)
    return Support(ok=not reasons, reasons=tuple(reasons), warnings=tuple(warnings))


def _check_device(gpu: GpuSpec, settings: EngineSettings, reasons: list[str]) -> None:
    cc = gt.effective_capability(gpu)
    if settings.engine is EngineName.TENSORRT_LLM:
        if not gt.is_nvidia(gpu):
            reasons.append(f"TensorRT-LLM runs on NVIDIA GPUs only; {gpu.name} is {gpu.vendor}.")
        elif 0 < cc < TRTLLM_MIN_CAPABILITY:
            reasons.append(f"TensorRT-LLM needs compute capability 8.0 (Ampere) or later; {gpu.name} has {cc}.")
    elif gt.is_nvidia(gpu) and 0 < cc < VLLM_MIN_CAPABILITY:
        reasons.append(f"vLLM needs compute capability 7.0 or later; {gpu.name} has {cc}.")


def _check_shape(model: ModelSpec, settings: EngineSettings, reasons: list[str], warnings: list[str]) -> None:
    for name in ("tp", "pp", "ep", "dp"):
        if getattr(settings, name) < 1:
            reasons.append(f"{name} must be at least 1, not {getattr(settings, name)}.")
            return
    heads, kv_heads, tp = mt.query_heads(model), mt.kv_heads(model), settings.tp
    if heads and heads % tp:
        usable = [n for n in range(1, min(heads, 64) + 1) if heads % n == 0]
        reasons.append(
            f"Tensor parallelism of {tp} does not divide the {heads} attention heads; use one of "
            f"{', '.join(map(str, usable))}, or pipeline parallelism."
        )
    if not mt.is_mla(model) and kv_heads and tp > kv_heads:
        if tp % kv_heads:
            reasons.append(f"With {kv_heads} K/V heads a tensor parallelism of {tp} must be a multiple of {kv_heads}.")
        else:
            warnings.append(
                f"{kv_heads} K/V heads over {tp} ranks: each head is held by {tp // kv_heads} ranks, so the cache does "
                "not shrink further."
            )
    elif not mt.is_mla(model) and kv_heads and kv_heads % tp:
        reasons.append(f"Tensor parallelism of {tp} does not divide the {kv_heads} K/V heads.")
    if mt.is_mla(model) and tp > 1:
        warnings.append("The latent cache is held whole by every tensor-parallel rank; data parallelism saves memory.")
    if settings.pp > model.layers:
        reasons.append(f"{settings.pp} pipeline stages for {model.layers} layers.")
    _check_experts(model, settings, reasons)


def _check_experts(model: ModelSpec, settings: EngineSettings, reasons: list[str]) -> None:
    count = mt.experts(model)
    if settings.ep > 1 and count == 0:
        reasons.append(f"Expert parallelism of {settings.ep} for a model without experts.")
    elif settings.ep > 1:
        if settings.engine is EngineName.VLLM and settings.ep != settings.tp * settings.dp:
            reasons.append(f"vLLM's expert parallelism is tp x dp = {settings.tp * settings.dp}, not {settings.ep}.")
        if settings.engine is EngineName.TENSORRT_LLM and settings.tp * settings.dp % settings.ep:
            reasons.append(f"Expert parallelism of {settings.ep} must divide tp x dp = {settings.tp * settings.dp}.")
        if count % settings.ep and settings.engine is EngineName.TENSORRT_LLM:
            reasons.append(f"Expert parallelism of {settings.ep} does not divide {count} experts.")


def _check_precision(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: EngineSettings,
    version: str,
    reasons: list[str],
    warnings: list[str],
) -> None:
    stored = storage_precision(settings, model)
    cc = gt.effective_capability(gpu)
    label = ENGINE_LABEL[settings.engine]
    if settings.precision not in ("as-config", *SIXTEEN_BIT):
        if model.quantization.method == "none" and settings.precision in ("int4", "fp4", "mxfp4", "int8"):
            warnings.append(f"{settings.precision} needs a checkpoint quantised to it; the sizes assume there is one.")
        elif model.quantization.method != "none" and stored != model.quantization.precision:
            warnings.append(
                f"The checkpoint is quantised to {model.quantization.precision}, which {label} does not convert; the "
                f"sizes assume that there is one in {stored}."
            )
    if stored in SIXTEEN_BIT:
        if stored == "bf16" and gt.is_nvidia(gpu) and 0 < cc < 8.0:
            warnings.append(f"{gpu.name} has no bf16; the engine falls back to fp16.")
        return
    if gt.is_nvidia(gpu) and cc:
        floor = (VLLM_FLOOR if settings.engine is EngineName.VLLM else TRTLLM_FLOOR).get(stored, 0.0)
        if settings.engine is EngineName.TENSORRT_LLM and stored == "fp4" and at_least(version, "1.3.0rc20"):
            floor = 9.0
        if cc < floor:
            reasons.append(f"{label} {version} has no {stored} kernels for compute capability {cc} (needs {floor}).")
            return
        if settings.engine is EngineName.TENSORRT_LLM and stored == "fp8_block" and cc >= 12.0:
            reasons.append(f"TensorRT-LLM {version} has no block-scaled FP8 on compute capability {cc}.")
            return
    if stored == "int8" and gt.is_cpu(gpu):
        warnings.append(f"The catalogue states no INT8 rate of {gpu.name}: planned as if it multiplied in 16 bits.")
    elif stored != "int4" and not computes_natively(stored, gpu):
        warnings.append(
            f"{gpu.name} has no {stored} tensor cores: the weights stay {stored} (memory as planned), the "
            "multiplication runs in 16 bits (weight-only)."
        )


def _check_model(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: EngineSettings,
    version: str,
    reasons: list[str],
    warnings: list[str],
) -> None:
    if settings.engine is EngineName.TENSORRT_LLM:
        method = model.quantization.method
        if method in NOT_IN_TENSORRT_LLM and settings.precision in ("as-config", model.quantization.precision):
            reasons.append(
                f"TensorRT-LLM does not list {method} checkpoints; take ModelOpt's, or a GPTQ or AWQ export."
            )
        if model.task == "embed" and not at_least(version, "1.4.0"):
            reasons.append("TensorRT-LLM's server does not serve embedding models before 1.4.")
        elif model.task == "embed":
            warnings.append("Embedding models are new in TensorRT-LLM 1.4; memory is unverified.")
        else:
            against = tm.reason_against(model.architecture, version)
            if against is not None:
                reasons.append(against)
        if model.architecture in tm.BLACKWELL_ONLY and not gt.is_sm100_family(gpu):
            reasons.append(f"TensorRT-LLM serves {model.architecture} on data-centre Blackwell only.")
        if settings.trt_backend == "tensorrt" and at_least(version, "1.3.0rc21"):
            reasons.append(f"The engine-build back end was removed after 1.3.0rc20; {version} has only pytorch.")
    length = settings.max_model_len
    if length is not None:
        if length < 1:
            reasons.append(f"max_model_len must be positive, not {length}.")
        elif length > model.max_position:
            reasons.append(f"max_model_len {length} exceeds the {model.max_position} positions of the model.")


def _check_features(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: EngineSettings,
    version: str,
    reasons: list[str],
    warnings: list[str],
) -> None:
    vllm = settings.engine is EngineName.VLLM
    mbt, mns, length = settings.max_num_batched_tokens, settings.max_num_seqs, settings.max_model_len
    if vllm and mbt is not None and mns is not None and mbt < mns:
        reasons.append(f"max_num_batched_tokens ({mbt}) must be greater than or equal to max_num_seqs ({mns}).")
    if vllm and settings.enable_chunked_prefill is False and mbt is not None and length is not None and mbt < length:
        reasons.append(f"max_num_batched_tokens ({mbt}) is smaller than max_model_len ({length}) without chunking.")
    if settings.max_loras:
        ranks = (1, *LORA_RANKS) if at_least(version, "0.12.0") else LORA_RANKS
        if vllm and settings.max_lora_rank not in ranks:
            reasons.append(f"max_lora_rank {settings.max_lora_rank} is not one of {', '.join(map(str, ranks))}.")
        if not vllm and (settings.ep > 1 or settings.dp > 1):
            warnings.append("LoRA with expert parallelism or attention DP is untested in TensorRT-LLM.")
    share = settings.gpu_memory_utilization
    if vllm and share is not None and not 0 < share <= 1:
        reasons.append(f"gpu_memory_utilization must be above 0 and at most 1, not {share}.")
    fraction = settings.free_gpu_memory_fraction
    if not vllm and fraction is not None and not 0 < fraction < 1:
        reasons.append(f"free_gpu_memory_fraction must be above 0 and below 1, not {fraction}.")
    cc = gt.effective_capability(gpu)
    if settings.kv_cache_dtype == "fp8" and gt.is_nvidia(gpu) and 0 < cc < 8.9:
        warnings.append(f"An fp8 KV cache on {gpu.name} saves memory only: attention still computes in 16 bits.")
    if vllm and settings.watermark and not at_least(version, WATERMARK_SINCE):
        reasons.append(f"watermark is an option of vLLM since {WATERMARK_SINCE}, not of {version}.")
    if not vllm and settings.capacity_policy not in (None, *CAPACITY_POLICIES):
        reasons.append(
            f"capacity_policy {settings.capacity_policy} is not modelled; use one of {', '.join(CAPACITY_POLICIES)}."
        )
    if not vllm and not settings.enable_chunked_prefill:
        budget = mbt or 8192
        asked = length or model.max_position
        if asked > budget:
            warnings.append(
                f"Without chunked prefill, prompts above max_num_tokens ({budget}) are refused although the context "
                f"is {asked}."
            )

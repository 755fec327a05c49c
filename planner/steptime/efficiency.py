"""How much of a GPU's peak its kernels reach: the constants of the roofline, each with its source.

A roofline time is max(operations / (peak x share), bytes / (bandwidth x share)) + floor. Shares are keyed on causes:
the generation of the chip, the arithmetic, how the weights are stored. "Operators" as a source: the ratio of measured
operators (aiconfigurator-core 0.12) to the roofline on a GPU that has them, over token counts 1-8192 of Llama-3.1-8B,
Llama-3.1-70B at TP 4 and Qwen3-30B-A3B. "Runs": published end-to-end runs. Families without either take their nearest
relative's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.catalog.types import GpuSpec


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peak (0..1) and floors of one GPU family.

    ``gemm_flops`` by arithmetic. ``weight_bw`` of memory bandwidth at which a GEMM reads its weights when they are as
    wide as the arithmetic: 16-bit, and ``narrow_bw`` for FP8 and FP4; where a kernel widens them first ``dequant_bw``
    for 4-bit weights and ``dequant8_bw`` for 8-bit ones, of which it widens half as many in a byte (operators of
    a100_sxm; the other families in the same proportion).
    ``dequant_flops`` of the GEMM share that such a kernel reaches, ``dequant_us`` extra per GEMM of one. ``narrow_us``
    extra per GEMM to quantise its input.
    ``expert_flops`` of the GEMM share that grouped expert GEMMs reach; ``widened_experts`` where they widen weights and
    read them before they multiply: shares of peak and of bandwidth. Attention: ``prefill_flops`` at long context,
    halved at ``prefill_half`` keys; ``decode_bw``. ``launch_us`` an empty kernel, ``attention_us`` an attention kernel
    with its rotary and cache writes. ``link`` share of link bandwidth; ``link_us`` start of a collective inside a
    switched domain, ``peer_us`` per peer over PCIe or a network.
    """

    gemm_flops: dict[str, float]
    weight_bw: float
    narrow_bw: float
    dequant_bw: float
    dequant8_bw: float
    dequant_flops: float
    narrow_us: float
    expert_flops: float
    prefill_flops: float
    prefill_half: float
    decode_bw: float
    glue_bw: float
    launch_us: float
    attention_us: float
    link: float
    link_us: float
    peer_us: float
    source: str
    widened_experts: tuple[float, float] | None = None
    dequant_us: float = 0.0


_HOPPER = Efficiency(
    gemm_flops={"bf16": 0.75, "fp16": 0.75, "fp8": 0.66, "int8": 0.6, "fp4": 0.5, "fp32": 0.6},
    weight_bw=0.83,
    narrow_bw=0.77,
    dequant_bw=0.62,
    dequant8_bw=0.76,
    dequant_flops=1.0,
    narrow_us=4.0,
    expert_flops=0.60,
    prefill_flops=0.62,
    prefill_half=450.0,
    decode_bw=0.82,
    glue_bw=0.8,
    launch_us=3.0,
    attention_us=10.0,
    link=0.75,
    link_us=5.0,
    peer_us=3.5,
    source="operators of h100_sxm and h200_sxm",
)

_FAMILIES: dict[str, Efficiency] = {
    "hopper": _HOPPER,
    "blackwell": replace(
        _HOPPER,
        gemm_flops={"bf16": 0.70, "fp16": 0.70, "fp8": 0.58, "int8": 0.5, "fp4": 0.46, "fp32": 0.6},
        weight_bw=0.80,
        narrow_bw=0.62,
        expert_flops=0.60,
        prefill_flops=0.54,
        decode_bw=0.90,
        link=0.65,
        link_us=7.0,
        source="operators of b200_sxm",
    ),
    "blackwell_rtx": replace(
        _HOPPER,
        gemm_flops={"bf16": 0.84, "fp16": 0.84, "fp8": 0.80, "int8": 0.7, "fp4": 0.60, "fp32": 0.6},
        weight_bw=0.88,
        narrow_bw=0.84,
        expert_flops=0.66,
        prefill_flops=0.60,
        decode_bw=0.84,
        source="operators of rtx_pro_6000_server",
    ),
    "ada": replace(
        _HOPPER,
        gemm_flops={"bf16": 0.60, "fp16": 0.60, "fp8": 0.48, "int8": 0.5, "fp32": 0.6},
        weight_bw=0.80,
        narrow_bw=0.74,
        narrow_us=2.0,
        expert_flops=0.66,
        prefill_flops=0.52,
        decode_bw=0.80,
        source="operators of l40s",
    ),
    "ampere": replace(
        _HOPPER,
        gemm_flops={"bf16": 0.82, "fp16": 0.82, "int8": 0.6, "fp32": 0.6},
        weight_bw=0.78,
        dequant_bw=0.55,
        dequant8_bw=0.70,
        expert_flops=0.55,
        prefill_flops=0.60,
        decode_bw=0.76,
        source="operators of a100_sxm",
    ),
}
_FAMILIES["ampere_rtx"] = replace(
    _FAMILIES["ampere"],
    gemm_flops={"bf16": 0.70, "fp16": 0.70, "int8": 0.55, "fp32": 0.6},
    prefill_flops=0.52,
    source="as ada in arithmetic, as ampere in memory: GDDR cards of compute capability 8.6",
)
_FAMILIES["turing"] = replace(
    _FAMILIES["ampere_rtx"], prefill_flops=0.35, source="as ampere_rtx, older attention kernels"
)
_FAMILIES["volta"] = replace(_FAMILIES["turing"], source="as turing")
_FAMILIES["amd"] = replace(
    _HOPPER,
    gemm_flops={"bf16": 0.48, "fp16": 0.48, "fp8": 0.40, "int8": 0.35, "fp4": 0.3, "fp32": 0.4},
    weight_bw=0.60,
    narrow_bw=0.52,
    dequant_bw=0.40,
    dequant8_bw=0.48,
    expert_flops=0.60,
    prefill_flops=0.35,
    decode_bw=0.50,
    launch_us=5.0,
    attention_us=20.0,
    link=0.55,
    link_us=15.0,
    source="runs of 7B models on MI300X at batch 1 (ANL LLM-Inference-Bench, within 10 %); large batches assumed, since"
    " those runs are of kernels of 2024, two to four times slower",
)
_FAMILIES["intel"] = replace(_FAMILIES["amd"], source="as amd")
_FAMILIES["cpu"] = replace(
    _FAMILIES["amd"], gemm_flops={"bf16": 0.5, "fp16": 0.4, "fp32": 0.5, "int8": 0.4}, launch_us=10.0, source="as amd"
)

_PREFILL_BY_ENGINE = {"vllm": 1.0, "tensorrt_llm": 0.87}
"""Prefill attention of the engines against the constants above (operators: TensorRT-LLM takes 12-18 % longer on Hopper,
L40S and RTX PRO)."""

_DEQUANT_BY_ENGINE = {("vllm", "ampere"): 0.60}
"""Arithmetic rate of kernels that widen weights, over that of plain ones. Marlin on an A100: 141 TFLOPS from 64 rows on
where torch reaches 235 (vllm-project/vllm pull request 2497; the comment names no GPU, the figures are an A100's). A100
has four times the tensor throughput of its integer units that GDDR cards have, so widening shows there alone: on
compute capability 7.5 Marlin keeps up with torch at 2,048 rows (pull request 29901), on L40S its experts reach what
Triton's do (operators). Machete on Hopper and TensorRT-LLM's kernels on A100 reach the plain rate (GPUStack's study of
quantisation; operators of a100_sxm)."""

_DEQUANT_US_BY_ENGINE = {("vllm", "hopper"): 10.0}
"""Machete's time beside reading and multiplying: decode steps of Qwen3-8B in AWQ on one H200 last 1.6 ms more than its
144 GEMMs at one stream, 1.4 ms at 16 (vLLM 0.24.0, own runs)."""

_WIDENED_EXPERTS = {("vllm", "ampere"): (0.41, 0.83), ("vllm", "hopper"): (0.23, 0.75)}
"""Marlin's expert kernels, of peak and of bandwidth: fitted to the operators ``sglang_marlin_moe`` over 4-bit weights
of a100_sxm, h100_sxm and h200_sxm (sglang 0.5.10; the kernel is vLLM's), 64 experts or more, 32 to 16,384 tokens.
Reading and multiplying add up: the sum is off by 7 % on A100 and 9-13 % on Hopper on average, the larger of the two at
the plain kernels' shares by 22 and 31 %, and by half at 512 tokens. On L40S the larger of the two holds. Weights of 8
bits are taken to be read at the same share."""

_POWER_SIBLING_W = {"ampere": 400.0}
"""Sustained power at which the family's constants hold; a card of the same peak but less power computes at the root of
the ratio (A100 PCIe, 300 W: TensorRT-LLM 0.14 runs are 8-15 % below the SXM card's)."""


def efficiency(gpu: GpuSpec, engine: str) -> Efficiency:
    """Constants for ``gpu`` under ``engine``."""
    name = family(gpu)
    found = _FAMILIES.get(name, _HOPPER)
    compute = 1.0
    if name in _POWER_SIBLING_W and gpu.tdp_w and (gpu.bf16_tflops or 0.0) > 300.0:
        compute = min(1.0, (gpu.tdp_w / _POWER_SIBLING_W[name]) ** 0.5)
    return replace(
        found,
        gemm_flops={arithmetic: share * compute for arithmetic, share in found.gemm_flops.items()},
        dequant_flops=_DEQUANT_BY_ENGINE.get((engine, name), found.dequant_flops),
        widened_experts=_WIDENED_EXPERTS.get((engine, name)),
        dequant_us=_DEQUANT_US_BY_ENGINE.get((engine, name), found.dequant_us),
        prefill_flops=found.prefill_flops * compute * _PREFILL_BY_ENGINE.get(engine, 1.0),
    )


def family(gpu: GpuSpec) -> str:
    """The family whose constants apply: compute capability of NVIDIA chips, else the maker."""
    if gpu.vendor != "nvidia":
        return gpu.vendor
    capability = gpu.compute_capability
    if capability is not None:
        for floor, name in (
            (12.0, "blackwell_rtx"),
            (10.0, "blackwell"),
            (9.0, "hopper"),
            (8.9, "ada"),
            (8.6, "ampere_rtx"),
            (8.0, "ampere"),
            (7.5, "turing"),
            (7.0, "volta"),
        ):
            if capability >= floor:
                return name
    lowered = gpu.architecture.lower()
    return next(
        (name for name in ("blackwell", "hopper", "ada", "ampere", "turing", "volta") if name in lowered), "hopper"
    )

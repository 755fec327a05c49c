"""How much of a GPU's peak its kernels reach: the constants of the roofline, each with its source.

A roofline time is max(flops / (peak x share), bytes / (bandwidth x share)) + floor. Shares are keyed on causes: the
maker of the chip and its generation, the arithmetic, and how the weights are stored (dequantising kernels reach less).
Two kinds of source: the ratio of measured operators to the roofline on the GPUs that have them (median over the
measured grid), and published runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.catalog.types import GpuSpec


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peak (0..1) and floors of one (GPU family, engine).

    ``gemm_flops`` by arithmetic; ``weight_bw`` share of memory bandwidth that a GEMM reads 16-bit weights at;
    ``dequant_bw`` the same for weights stored narrower than the arithmetic; ``launch_us`` one kernel with no work;
    ``step_ms`` host time of a step that overlaps nothing; ``link`` share of link bandwidth; ``link_us`` one
    collective's start.
    """

    gemm_flops: dict[str, float]
    weight_bw: float
    dequant_bw: float
    attention_flops: float
    attention_bw: float
    glue_bw: float
    launch_us: float
    attention_us: float
    link: float
    link_us: float
    peer_us: float
    source: str


_OPERATORS = "median of measured operators over the roofline (aiconfigurator-core 0.12 tables)"

_HOPPER = Efficiency(
    gemm_flops={"bf16": 0.68, "fp16": 0.68, "fp8": 0.62, "int8": 0.6, "fp4": 0.55, "fp32": 0.6},
    weight_bw=0.82,
    dequant_bw=0.65,
    attention_flops=0.55,
    attention_bw=0.80,
    glue_bw=0.8,
    launch_us=3.0,
    attention_us=10.0,
    link=0.75,
    link_us=5.0,
    peer_us=3.5,
    source=f"{_OPERATORS}, h100_sxm and h200_sxm",
)

_BY_ARCHITECTURE: dict[str, Efficiency] = {
    "hopper": _HOPPER,
    "blackwell": replace(_HOPPER, source=f"{_OPERATORS}, b200_sxm and gb200"),
    "ampere": replace(_HOPPER, source=f"{_OPERATORS}, a100_sxm"),
    "ada": replace(_HOPPER, weight_bw=0.85, source=f"{_OPERATORS}, l40s"),
}


def efficiency(gpu: GpuSpec, engine: str) -> Efficiency:
    """Constants for ``gpu`` under ``engine``; families without data of their own take the nearest relative's."""
    return _BY_ARCHITECTURE.get(family(gpu), _HOPPER)


def family(gpu: GpuSpec) -> str:
    """The family whose constants apply: architecture of NVIDIA chips, else the maker."""
    name = gpu.architecture.lower()
    if gpu.vendor != "nvidia":
        return gpu.vendor
    for known in ("blackwell", "hopper", "ada", "ampere", "turing", "volta"):
        if known in name:
            return known
    return "hopper"

"""Records of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One accelerator as one engine rank sees it. Blank facts are None, never zero. Rates are dense (no sparsity)."""

    name: str
    vendor: Literal["nvidia", "amd", "intel", "cpu"]
    architecture: str
    form_factor: str
    memory_gb: float  # as marketed, decimal
    total_gib: float  # as driver and engines report it; from logs where known, else estimated (see total_gib_evidence)
    total_gib_evidence: Literal["measured", "estimated"]
    mem_bw_gb_s: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    fp4_tflops: float | None
    tdp_w: float | None
    allin_kw_per_gpu: float | None
    link: str  # "NVLink 4", "PCIe", "xGMI", ...
    link_gb_s: float | None  # scale-up bandwidth of one GPU, one direction
    scale_up_domain: int | None  # GPUs in one NVLink/xGMI domain
    compute_capability: float | None  # NVIDIA only
    pcie_gen: int | None
    aic_system: str | None  # operator database system, e.g. "h200_sxm"; None when it has none
    source: str
    notes: str = ""
    unified_memory: bool = False


@dataclass(frozen=True, slots=True)
class NodeType:
    """A server model: GPUs of one kind inside one or more NVLink domains."""

    name: str
    gpu: str
    gpus: int
    nvlink_domain: int  # GPUs per NVLink/xGMI domain; 1 when they only share PCIe
    cpu_cores: int | None
    memory_gib: float | None
    max_power_w: float | None
    rack_units: int | None
    network_gb_s: float  # per GPU, one direction, between nodes
    source: str


@dataclass(frozen=True, slots=True)
class PriceFact:
    """A published price. ``kind``: purchase (USD once), cloud_hour or tco_hour (USD per GPU-hour)."""

    item: str
    kind: Literal["purchase", "cloud_hour", "tco_hour"]
    usd: Decimal | None
    unit: str
    usd_low: Decimal | None
    usd_high: Decimal | None
    source: str
    date: str
    reliability: str
    notes: str


@dataclass(frozen=True, slots=True)
class MatmulFact:
    """The best matrix-product rate that anybody reached on a GPU, dense TFLOPS; ``share`` of the data sheet's rate."""

    gpu: str
    dtype: Literal["bf16", "fp8"]
    tflops: float
    share: float
    source: str

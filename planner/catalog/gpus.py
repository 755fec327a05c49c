"""GPUs and node types."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal, cast

from planner.catalog.mig import sliced, split_name
from planner.catalog.tables import nearest, number, read_csv, simplified, whole
from planner.catalog.types import GpuSpec, MatmulFact, NodeType
from planner.errors import InputError, UnknownGpuError

_PACKAGES = {"MI250": 2, "MI250X": 2}
"""Rows that describe a package which the engine sees as several devices."""

_AIC_SYSTEMS = {
    "A100-SXM4-40GB": "a100_sxm",
    "A100-SXM4-80GB": "a100_sxm",
    "H100-SXM5-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "B200-SXM": "b200_sxm",
    "B300-SXM": "b300_sxm",
    "GB200-NVL72": "gb200",
    "GB300-NVL72": "gb300",
    "L40S": "l40s",
    "RTX-PRO-6000-Blackwell-Server": "rtx_pro_6000_server",
    "Arc-Pro-B60": "b60",
}
"""System names of the operator database (aiconfigurator-core 0.12) that hold measurements."""

_BRANDS = ("nvidia", "amd", "intel", "geforce", "tesla", "instinct")
"""Words that a driver puts before the name of a card, in the order in which they stand."""

_NO_ECC_BY_DEFAULT = ("RTX-", "Arc-")
_NVIDIA_DRIVER_GIB = 0.39
_NVIDIA_DRIVER_SHARE = 0.0018


@cache
def _gpus() -> dict[str, GpuSpec]:
    rows = read_csv("gpus.csv") + read_csv("extra_gpus.csv")
    return {row["gpu"]: _gpu(row) for row in rows if row["memory_gb"].strip()}


@cache
def _lookup() -> dict[str, str]:
    """Simplified name or alias -> catalogue name."""
    names = {simplified(name): name for name in _gpus()}
    for row in read_csv("aliases.csv"):
        if row["kind"] == "gpu":
            if row["canonical"] not in _gpus():
                raise InputError("alias of an unknown GPU", field="aliases.csv", value=row["canonical"])
            names.setdefault(simplified(row["alias"]), row["canonical"])
    return names


def list_gpus() -> tuple[GpuSpec, ...]:
    """Every GPU of the catalogue, in the order of the file."""
    return tuple(_gpus().values())


def with_reported_memory(gpu: GpuSpec, total_gib: float | None) -> GpuSpec:
    """``gpu`` with the memory that its driver reports, where that is known; None leaves the catalogue's."""
    return gpu if total_gib is None else replace(gpu, total_gib=total_gib, total_gib_evidence="measured")


def get_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias, whatever its case and punctuation; UnknownGpuError gives the nearest names.

    The maker's and the line's word may stand in front, as drivers write them ("NVIDIA GeForce RTX 4090").
    "<GPU>-MIG-<profile>" is a MIG slice as a GPU of its own; raises InputError for a profile that the GPU lacks.
    """
    if isinstance(name, str) and (parts := split_name(name)) is not None:
        return sliced(get_gpu(parts[0]), parts[1])
    found = _lookup().get(_bare(name)) if isinstance(name, str) else None
    if found is None:
        raise UnknownGpuError("is not in the catalogue", field="gpu", value=name, remedy=nearest(str(name), _gpus()))
    return _gpus()[found]


def _bare(name: str) -> str:
    """``name`` simplified, without its maker's and its line's word."""
    bare = simplified(name)
    for word in _BRANDS:
        bare = bare.removeprefix(word)
    return bare


@cache
def _matmuls() -> dict[tuple[str, str], MatmulFact]:
    facts = {}
    for row in read_csv("gpu_matmul_measured.csv"):
        best, sheet = (
            number(row, "max_achieved_tflops", row["gpu"]),
            number(row, "theory_tflops_used_there", row["gpu"]),
        )
        if best is None or sheet is None or row["dtype"] not in ("bf16", "fp8"):
            raise InputError("must have both rates", field=f"gpu_matmul_measured.csv {row['gpu']}")
        for name in _gpus():
            if name == row["gpu"] or name.startswith(f"{row['gpu']}-"):
                dtype = cast(Literal["bf16", "fp8"], row["dtype"])
                facts[name, row["dtype"]] = MatmulFact(name, dtype, best, best / sheet, row["source"])
    return facts


def measured_matmul(gpu_name: str, dtype: str) -> MatmulFact | None:
    """The best matrix-product rate reached on a GPU (name or alias) in ``dtype`` (bf16, fp8); None: nobody measured."""
    return _matmuls().get((get_gpu(gpu_name).name, dtype))


@cache
def _node_types() -> dict[str, NodeType]:
    return {row["name"]: _node_type(row) for row in read_csv("node_types.csv")}


def list_node_types() -> tuple[NodeType, ...]:
    """Every node type of the catalogue."""
    return tuple(_node_types().values())


def get_node_type(name: str) -> NodeType:
    """The node type of that name; raises InputError with the nearest names."""
    for known, node_type in _node_types().items():
        if isinstance(name, str) and simplified(known) == simplified(name):
            return node_type
    raise InputError("is not in the catalogue", field="node_type", value=name, remedy=nearest(str(name), _node_types()))


def reported_total_gib(memory_gb: float, memory_type: str, vendor: str, name: str, smi_mib: float | None) -> float:
    """Estimate the total memory that an engine's framework reports, in GiB.

    "GB" on a data sheet means GiB for these parts. Of it, 15/16 remain on GDDR6 with ECC (a 48 GB L40S shows 46068
    MiB), 99.5 % on NVIDIA HBM (H100 81559, H200 143771, GB200 189471 MiB) and 99.9 % elsewhere (RTX 4090 24564 MiB).
    The CUDA driver keeps a further 0.39 GiB + 0.18 %, a line through nvidia-smi against engine logs on RTX 3090, RTX
    4090, H100 and GB300 (within 0.1 GiB). AMD reports the full size (MI300X: 191.98).
    """
    if vendor in ("cpu", "amd", "intel"):
        return memory_gb
    if smi_mib is not None:
        visible = smi_mib / 1024
    elif memory_type == "GDDR6" and not name.startswith(_NO_ECC_BY_DEFAULT):
        visible = memory_gb * 15 / 16
    elif memory_type.startswith("HBM"):
        visible = memory_gb * 0.995
    else:
        visible = memory_gb * 0.999
    return visible - _NVIDIA_DRIVER_GIB - _NVIDIA_DRIVER_SHARE * visible


def _gpu(row: dict[str, str]) -> GpuSpec:
    name = row["gpu"]
    share = 1 / _PACKAGES.get(name, 1)

    def value(column: str) -> float | None:
        found = number(row, column, name)
        return None if found is None else found * share

    vendor = row["vendor"].lower()
    if vendor not in ("nvidia", "amd", "intel", "cpu"):
        raise InputError("unknown vendor", field=f"gpus.csv {name}.vendor", value=row["vendor"])
    memory_gb = value("memory_gb")
    if memory_gb is None:
        raise InputError("is missing", field=f"gpus.csv {name}.memory_gb")
    logged = row["engine_logged_total_gib"].strip()
    if logged:
        bounds = [float(part) for part in logged.split("-")]
        total, evidence = sum(bounds) / len(bounds), "measured"
    else:
        smi = number(row, "usable_mib_nvidia_smi", name)
        total, evidence = reported_total_gib(memory_gb, row["memory_type"], vendor, name, smi), "estimated"
    notes = row["notes"]
    if share != 1:
        notes = f"One of {_PACKAGES[name]} devices of the package; figures are halved. {notes}"
    capability = number(row, "compute_capability", name)
    if capability is None and row["architecture"] == "Hopper":
        capability = 9.0
    return GpuSpec(
        name=name,
        vendor=cast(Literal["nvidia", "amd", "intel", "cpu"], vendor),
        architecture=row["architecture"],
        form_factor=row["form_factor"],
        memory_gb=memory_gb,
        total_gib=round(total, 2),
        total_gib_evidence=cast(Literal["measured", "estimated"], evidence),
        mem_bw_gb_s=value("mem_bw_gb_s"),
        bf16_tflops=value("bf16_dense_tflops"),
        fp16_tflops=value("fp16_dense_tflops"),
        fp8_tflops=value("fp8_dense_tflops"),
        int8_tops=value("int8_dense_tops"),
        fp4_tflops=value("fp4_dense_tflops"),
        tdp_w=value("tdp_w"),
        allin_kw_per_gpu=value("allin_kw_per_gpu"),
        link=row["intra_node_link"],
        link_gb_s=number(row, "link_gb_s_per_direction", name),
        scale_up_domain=whole(row, "gpus_per_scale_up_domain", name),
        compute_capability=capability,
        pcie_gen=whole(row, "pcie_gen", name),
        aic_system=_AIC_SYSTEMS.get(name),
        source=row["source"],
        notes=notes,
        unified_memory="unified" in row["memory_type"] or vendor == "cpu",
    )


def _node_type(row: dict[str, str]) -> NodeType:
    name = row["name"]
    gpus, domain = whole(row, "gpus", name), whole(row, "nvlink_domain", name)
    network = number(row, "network_gb_s", name)
    if gpus is None or domain is None or network is None:
        raise InputError("gpus, nvlink_domain and network_gb_s are required", field=f"node_types.csv {name}")
    if gpus % domain:
        raise InputError("must divide the number of GPUs", field=f"node_types.csv {name}.nvlink_domain", value=domain)
    return NodeType(
        name=name,
        gpu=get_gpu(row["gpu"]).name,
        gpus=gpus,
        nvlink_domain=domain,
        cpu_cores=whole(row, "cpu_cores", name),
        memory_gib=number(row, "memory_gib", name),
        max_power_w=number(row, "max_power_w", name),
        rack_units=whole(row, "rack_units", name),
        network_gb_s=network,
        source=row["source"],
    )

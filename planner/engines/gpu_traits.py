"""Properties of a GPU that the engines branch on."""

from __future__ import annotations

from planner.catalog.types import GpuSpec

SM100_FAMILY = (10.0, 10.9)
"""Compute capabilities of data-centre Blackwell: 10.0 (B200, GB200) and 10.3 (B300, GB300)."""


def is_cpu(gpu: GpuSpec) -> bool:
    """Whether the device is a host CPU."""
    return gpu.vendor == "cpu"


def is_nvidia(gpu: GpuSpec) -> bool:
    """Whether the device is an NVIDIA GPU."""
    return gpu.vendor == "nvidia"


def capability(gpu: GpuSpec) -> float:
    """CUDA compute capability; 0.0 for what is not an NVIDIA GPU or is unknown."""
    return gpu.compute_capability or 0.0


def is_sm90(gpu: GpuSpec) -> bool:
    """Whether the GPU is Hopper (H100, H200, GH200, H20)."""
    return capability(gpu) == 9.0 or (is_nvidia(gpu) and gpu.architecture.lower().startswith("hopper"))


def is_sm100_family(gpu: GpuSpec) -> bool:
    """Whether the GPU is data-centre Blackwell."""
    return SM100_FAMILY[0] <= capability(gpu) <= SM100_FAMILY[1]


def is_a100(gpu: GpuSpec) -> bool:
    """Whether the engine would see "A100" in the device name, which it treats as a small GPU."""
    return "a100" in gpu.name.lower()


def is_h100_or_h200(gpu: GpuSpec) -> bool:
    """Whether the device name says H100 or H200, which vLLM 0.8.0 to 0.8.4 looked for."""
    return any(word in gpu.name.lower() for word in ("h100", "h200"))


def has_nvlink(gpu: GpuSpec) -> bool:
    """Whether several GPUs of this kind talk over NVLink or NVSwitch rather than PCIe."""
    return "nvlink" in gpu.link.lower() and "bridge" not in gpu.link.lower() and (gpu.scale_up_domain or 2) > 1


def effective_capability(gpu: GpuSpec) -> float:
    """Compute capability, taken from the architecture's name where the catalogue has no number."""
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    by_architecture = {"turing": 7.5, "volta": 7.0, "ampere": 8.0, "ada": 8.9, "hopper": 9.0, "blackwell": 10.0}
    for word, value in by_architecture.items():
        if is_nvidia(gpu) and gpu.architecture.lower().startswith(word):
            return value
    return 0.0

"""MIG slices: what an instance of a profile has of its GPU, and that instance as a GPU of its own.

Profiles, shares of memory and SMs and the number of instances are those of NVIDIA's MIG User Guide; memory and SMs as
``nvidia-smi mig -lgip`` prints them where a public log was found. Memory bandwidth comes with the memory slices,
arithmetic with the SMs. Slices have no NVLink and no peer access: an engine takes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from planner.catalog.tables import number, read_csv, simplified, whole
from planner.catalog.types import GpuSpec
from planner.errors import InputError

MARK = "-MIG-"
_ESTIMATED_SHARE = (
    0.92  # memory of a slice / its share of the card where no log tells: the least of the logs (0.92 to 1.0)
)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One profile of one GPU. ``sms`` and ``memory_gib`` are None where no log was found."""

    gpu: str
    profile: str
    compute_slices: int
    of_slices: int
    memory_share: float
    sms: int | None
    gpu_sms: int | None
    memory_gib: float | None
    max_instances: int
    source: str

    @property
    def fraction(self) -> Fraction:
        """Compute slices over those of the whole GPU: what a slice costs of it."""
        return Fraction(self.compute_slices, self.of_slices)

    @property
    def compute_share(self) -> float:
        """Share of the GPU's SMs: counted where known, else compute slices."""
        if self.sms is not None and self.gpu_sms is not None:
            return self.sms / self.gpu_sms
        return float(self.fraction)


@cache
def _profiles() -> dict[str, dict[str, MigProfile]]:
    found: dict[str, dict[str, MigProfile]] = {}
    for row in read_csv("mig_profiles.csv"):
        name = f"mig_profiles.csv {row['gpu']} {row['profile']}"
        sizes = {key: whole(row, key, name) for key in ("compute_slices", "of_slices", "max_instances")}
        share = number(row, "memory_share", name)
        if None in sizes.values() or share is None:
            raise InputError("slices, memory_share and max_instances are required", field=name)
        made = MigProfile(
            gpu=row["gpu"],
            profile=row["profile"],
            compute_slices=sizes["compute_slices"] or 0,
            of_slices=sizes["of_slices"] or 0,
            memory_share=share,
            sms=whole(row, "sms", name),
            gpu_sms=whole(row, "gpu_sms", name),
            memory_gib=number(row, "memory_gib", name),
            max_instances=sizes["max_instances"] or 0,
            source=row["source"],
        )
        found.setdefault(row["gpu"], {})[row["profile"]] = made
    return found


def mig_profiles(gpu_name: str) -> tuple[MigProfile, ...]:
    """Profiles of a GPU (catalogue name), smallest first; () for one that cannot be partitioned."""
    return tuple(_profiles().get(gpu_name, {}).values())


def mig_profile(gpu_name: str, profile: str) -> MigProfile:
    """The profile of that name ("1g.10gb") on a GPU (catalogue name); raises InputError naming those there are."""
    known = _profiles().get(gpu_name, {})
    if profile not in known:
        remedy = f"Profiles: {', '.join(known)}." if known else "This GPU has no MIG profiles in the catalogue."
        raise InputError(f"{gpu_name} has no such MIG profile", field="profile", value=profile, remedy=remedy)
    return known[profile]


def check_partition(gpu_name: str, profiles: Iterable[str]) -> None:
    """Raise InputError unless instances of these profiles fit one GPU together: compute slices and memory."""
    made = [mig_profile(gpu_name, profile) for profile in profiles]
    compute = sum((item.fraction for item in made), Fraction(0))
    memory = sum(item.memory_share for item in made)
    if compute > 1 or memory > 1:
        what = "compute slices" if compute > 1 else "memory"
        raise InputError(
            f"the slices take more {what} than one {gpu_name} has",
            field="profile",
            value=", ".join(item.profile for item in made),
            remedy="Leave a slice out.",
        )


def slice_name(gpu_name: str, profile: str) -> str:
    """Catalogue name of a slice, as the device plugins label it: "H100-SXM5-80GB-MIG-1g.10gb"."""
    return f"{gpu_name}{MARK}{profile}"


def split_name(name: str) -> tuple[str, str] | None:
    """GPU and profile of a slice's name, whatever its case; None for the name of a whole GPU."""
    at = name.lower().rfind(MARK.lower())
    return None if at < 0 else (name[:at], name[at + len(MARK) :].lower())


def sliced(gpu: GpuSpec, profile: str) -> GpuSpec:
    """A slice of ``gpu`` as a GPU: its memory, bandwidth by memory slices, arithmetic by SMs.

    Nothing was measured on slices, so it has no operator data: step times come from the roofline. Power is unknown.
    Raises InputError for a profile that the GPU does not have.
    """
    found = mig_profile(gpu.name, profile)
    memory = found.memory_gib
    total = gpu.total_gib * found.memory_share * _ESTIMATED_SHARE if memory is None else memory

    def scaled(value: float | None, share: float) -> float | None:
        return None if value is None else value * share

    compute = found.compute_share
    return replace(
        gpu,
        name=slice_name(gpu.name, profile),
        form_factor=f"MIG {profile} of {gpu.form_factor}",
        memory_gb=gpu.memory_gb * found.memory_share,
        total_gib=round(total, 2),
        total_gib_evidence="estimated" if memory is None else "measured",
        mem_bw_gb_s=scaled(gpu.mem_bw_gb_s, found.memory_share),
        bf16_tflops=scaled(gpu.bf16_tflops, compute),
        fp16_tflops=scaled(gpu.fp16_tflops, compute),
        fp8_tflops=scaled(gpu.fp8_tflops, compute),
        int8_tops=scaled(gpu.int8_tops, compute),
        fp4_tflops=scaled(gpu.fp4_tflops, compute),
        tdp_w=None,
        allin_kw_per_gpu=None,
        link="PCIe",
        link_gb_s=None,
        scale_up_domain=None,
        aic_system=None,
        source=found.source,
        notes=f"{100 * found.compute_share:.0f} % of the SMs and {100 * found.memory_share:g} % of the memory.",
    )


def canonical_profile(gpu_name: str, text: str) -> str | None:
    """The profile of ``gpu_name`` that ``text`` names ("MIG 1g.10gb", "1g.10gb+me" too); None when there is none."""
    wanted = simplified(text.split("+")[0])
    return next((name for name in _profiles().get(gpu_name, {}) if simplified(name) in (wanted, wanted[3:])), None)

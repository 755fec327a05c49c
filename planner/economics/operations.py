"""What running an engine costs beside serving: builds, start-ups, adapter swaps, surge capacity during a roll-out.

Minutes are defaults with their source; a probe of the own fleet replaces them (``OperationsCosts``).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from planner.engines.types import EngineName

START_UP_MINUTES = {
    # launch to healthy, Qwen3-8B on an H200, vLLM 0.24.0: 94 s with a warm compile cache, 135-167 s cold; compile
    # 24-55 s and graph capture 7-10 s of it (own measurement, 2026-12-01). A new revision has another compile cache:
    # the cold middle.
    EngineName.VLLM: Decimal("2.5"),
    # PyTorch back end: autotuner and graphs are run twice; gpt-oss-120b on one GB10, 1.1.0rc3: about 118 s (public
    # log).
    EngineName.TENSORRT_LLM: Decimal("2.0"),
}
BUILD_MINUTES_TENSORRT = Decimal("17.5")  # engine build of the TensorRT back end, per topology and revision: 10-25 min
ADAPTER_SWAP_MINUTES = Decimal("0.005")
"""0.3 s: vLLM 0.24.0 loads adapters of Llama-3.1-8B from files at hand in 0.09 s at rank 16 and 0.29 s at rank 64
(own H200 runs, sixth series)."""


@dataclass(frozen=True, slots=True)
class OperationsCosts:
    """Prices and durations of engine operations. None durations mean the documented defaults of this module.

    ``people_hours_per_engine_month`` once for each engine in use, ``people_hours_per_model_month`` for each workload,
    ``people_hours_per_revision`` for each model revision; ``licence_usd_per_gpu_year`` per engine on top of the GPU
    price (for instance an enterprise licence).
    """

    people_usd_per_hour: Decimal = Decimal(0)
    people_hours_per_engine_month: Decimal = Decimal(0)
    people_hours_per_revision: Decimal = Decimal(0)
    people_hours_per_model_month: Decimal = Decimal(0)
    licence_usd_per_gpu_year: tuple[tuple[str, Decimal], ...] = ()  # engine, USD
    start_up_minutes: tuple[tuple[str, Decimal], ...] = ()  # engine, minutes: measured on the own fleet
    build_minutes: Decimal | None = None
    source: str = ""  # where the figures come from


@dataclass(frozen=True, slots=True)
class OperationsUse:
    """GPU-hours and people-hours a month of operations of one workload on one candidate, and how they come about."""

    build_gpu_hours: Decimal
    surge_gpu_hours: Decimal
    adapter_gpu_hours: Decimal
    people_hours: Decimal
    notes: tuple[str, ...]

    @property
    def gpu_hours(self) -> Decimal:
        """All GPU-hours of operations in a month."""
        return self.build_gpu_hours + self.surge_gpu_hours + self.adapter_gpu_hours


def start_up_minutes(engine: EngineName, costs: OperationsCosts) -> Decimal:
    """Minutes from launch to healthy: the fleet's own figure, else the documented default."""
    return dict(costs.start_up_minutes).get(engine.value, START_UP_MINUTES[engine])


def operations_use(
    engine: EngineName,
    trt_backend: str,
    *,
    replicas: int,
    gpus_per_replica: int,
    revisions_per_month: float,
    adapter_revisions_per_month: float = 0.0,
    costs: OperationsCosts,
) -> OperationsUse:
    """Operations of one workload in a month.

    A model revision is rolled out blue/green replica by replica: one surge instance runs while each of ``replicas``
    starts (start-up minutes x replicas x GPUs of one instance). The TensorRT back end first builds once per topology
    on the GPUs of one instance. An adapter revision is loaded at run time on every replica and holds no extra GPU.
    """
    revisions = Decimal(str(revisions_per_month))
    gpus, count = Decimal(gpus_per_replica), Decimal(replicas)
    start = start_up_minutes(engine, costs)
    surge = revisions * count * gpus * start / 60
    builds = engine is EngineName.TENSORRT_LLM and trt_backend == "tensorrt"
    build_minutes = costs.build_minutes or BUILD_MINUTES_TENSORRT
    build = revisions * gpus * build_minutes / 60 if builds else Decimal(0)
    swap = Decimal(str(adapter_revisions_per_month)) * count * gpus * ADAPTER_SWAP_MINUTES / 60
    notes = [f"{start} min from launch to healthy per replica and revision"]
    if builds:
        notes.append(f"{build_minutes} min engine build per topology and revision")
    people = costs.people_hours_per_engine_month + costs.people_hours_per_model_month
    people += revisions * costs.people_hours_per_revision
    return OperationsUse(build, surge, swap, people, tuple(notes))

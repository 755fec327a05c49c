"""What is simulated: one deployed instance of a model."""

from __future__ import annotations

from dataclasses import dataclass

from planner.engines.types import ResolvedSettings
from planner.memory.types import MemoryLedger
from planner.models.spec import ModelSpec
from planner.steptime.types import StepModel


@dataclass(frozen=True)
class Instance:
    """One deployed instance: model, settings, the memory of one GPU and step times. All that a simulation needs."""

    model: ModelSpec
    resolved: ResolvedSettings
    memory: MemoryLedger
    step: StepModel

"""Deployments that the step-time tests share."""

from __future__ import annotations

from planner.catalog import get_gpu, get_model
from planner.engines import resolve
from planner.engines.types import EngineName, EngineSettings, ResolvedSettings
from planner.steptime import StepModel, build

H200 = "H200-SXM-141GB"
H100 = "H100-SXM5-80GB"


def settings(model: str, gpu: str, engine: str = "vllm", **options: object) -> ResolvedSettings:
    """Resolved settings of one deployment."""
    stated = EngineSettings(engine=EngineName(engine), **options)  # type: ignore[arg-type]
    return resolve(stated, get_model(model), get_gpu(gpu))


def step(model: str, gpu: str, engine: str = "vllm", **options: object) -> StepModel:
    """Step model of one deployment with default settings."""
    return build(get_model(model), get_gpu(gpu), settings(model, gpu, engine, **options))


def kernels_ms(model: StepModel, batch: int, kv: float) -> float:
    """Decode step without host time."""
    return model.decode_ms(batch, kv) - model.tables.fixed_ms - 0.0012 * batch

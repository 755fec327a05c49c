"""Arrivals, the continuous-batching simulator, percentile metrics and the largest load within the SLO."""

from planner.serving.instance import Instance
from planner.serving.predict import performance, predict
from planner.serving.simulator import simulate
from planner.serving.sizing import largest_load, load_curve, load_sensitivity, replicas_for
from planner.serving.types import (
    CurvePoint,
    LargestLoad,
    Lengths,
    Load,
    Percentiles,
    Performance,
    SimResult,
    SloTarget,
    Timeline,
    UnitTimeline,
)

__all__ = [
    "CurvePoint",
    "Instance",
    "LargestLoad",
    "Lengths",
    "Load",
    "Percentiles",
    "Performance",
    "SimResult",
    "SloTarget",
    "Timeline",
    "UnitTimeline",
    "largest_load",
    "load_curve",
    "load_sensitivity",
    "performance",
    "predict",
    "replicas_for",
    "simulate",
]

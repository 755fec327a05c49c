"""Arrivals, the continuous-batching simulator, percentile metrics and the largest load within the SLO."""

from planner.serving.simulator import simulate

__all__ = ["simulate"]

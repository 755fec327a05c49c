"""The verdict on each workload: choice, runner-up, margin, flip points, reasons in words; rules of thumb; router."""

from planner.recommend.verdict import verdict

__all__ = ["verdict"]

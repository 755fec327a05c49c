"""Waste at two levels: tokens of a KV pool, and GPUs of a fleet that no workload can take."""

from planner.fragmentation.fleet import WorkloadShape, stranded
from planner.fragmentation.kv import KvWasteReport, PolicyWaste, kv_waste

__all__ = ["KvWasteReport", "PolicyWaste", "WorkloadShape", "kv_waste", "stranded"]

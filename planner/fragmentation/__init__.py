"""Waste at two levels: tokens of a KV pool, and GPUs of a fleet that no workload can take."""

from planner.fragmentation.fleet import WorkloadShape, stranded
from planner.fragmentation.kv import KvWasteReport, PolicyWaste, kv_waste
from planner.fragmentation.pool import PoolWaste, lengths, requests_to_load, waste_in_pool

__all__ = [
    "KvWasteReport",
    "PolicyWaste",
    "PoolWaste",
    "WorkloadShape",
    "kv_waste",
    "lengths",
    "requests_to_load",
    "stranded",
    "waste_in_pool",
]

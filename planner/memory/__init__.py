"""Memory: one ledger for fit, search, deploy gate and probe check."""

from planner.memory.advise import advise, fewer_sequences, largest_context
from planner.memory.cliff import PreemptionCliff, preemption_cliff
from planner.memory.intervals import MAY_BE_MISSING, residual
from planner.memory.kv_layout import KvGroup, KvLayout, kv_layout
from planner.memory.ledger import kv_tokens_from_gib, ledger
from planner.memory.remarks import remarks_of
from planner.memory.report import MemoryReport, memory_report
from planner.memory.types import MemoryLedger, Remedy

__all__ = [
    "MAY_BE_MISSING",
    "KvGroup",
    "KvLayout",
    "MemoryLedger",
    "MemoryReport",
    "PreemptionCliff",
    "Remedy",
    "advise",
    "fewer_sequences",
    "kv_layout",
    "kv_tokens_from_gib",
    "largest_context",
    "ledger",
    "memory_report",
    "preemption_cliff",
    "remarks_of",
    "residual",
]

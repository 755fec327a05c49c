"""Routed experts from measured kernels. The tables hold whole model shapes, so another shape needs a stated
substitute."""

from __future__ import annotations

from planner.steptime.database import NoOperatorDataError, OperatorDatabase
from planner.steptime.graph import MoeOp
from planner.steptime.sources import Timed


def moe_rows(database: OperatorDatabase, op: MoeOp, rows: tuple[float, ...]) -> Timed:
    """Time of one expert layer at ``rows`` tokens per attention rank."""
    raise NoOperatorDataError("expert tables are not read yet")

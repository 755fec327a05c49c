"""Operator times from measured kernels, composed for any architecture.

Nothing here asks the package for a model: each operator is timed on its own, so an architecture the package has no
name for is as well known as its operators. Where no row was measured a sounder neighbour takes its place and the
evidence says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import NoOperatorDataError, OperatorDatabase
from planner.steptime.graph import AllReduceOp, AttentionOp, GemmOp, Mixer, MlaOp, MoeOp, StateOp, TokenOp
from planner.steptime.roofline import RooflineSource
from planner.steptime.silicon_attention import decode_grid, prefill_grid
from planner.steptime.silicon_gemm import gemm_rows, row_ms
from planner.steptime.silicon_mla import mla_decode, mla_prefill
from planner.steptime.silicon_moe import moe_rows
from planner.steptime.silicon_state import state_decode, state_prefill
from planner.steptime.sources import F64, Timed, monotone

_SMALLEST_MESSAGE = 128  # elements in the all-reduce tables
_LARGE_MESSAGE_ROWS = 256
_SLOW_LINK = 1.6
_SLOW_EXPERTS = 3.0  # sound tables stay below 2.2 times the roofline (median over row counts)


class SiliconSource:
    """Measured operators of ``database``; what they lack comes from ``fallback`` with its own evidence."""

    def __init__(self, database: OperatorDatabase, fallback: RooflineSource) -> None:
        self.database = database
        self.fallback = fallback

    def rows(self, op: TokenOp, rows: F64) -> Timed:
        """See ``OperatorSource.rows``."""
        one = replace(op, count=1.0)
        if isinstance(one, AllReduceOp):
            one = replace(one, factor=1.0)
        try:
            if isinstance(one, GemmOp):
                timed = gemm_rows(self.database, one, tuple(rows.tolist()))
                timed = replace(timed, ms=np.maximum(timed.ms, self.fallback.fastest_weights_ms(one)))
            elif isinstance(one, AllReduceOp):
                timed = self._plausible_all_reduce(one, rows)
            elif isinstance(one, MoeOp):
                timed = self._plausible_experts(one, rows)
            else:
                return self.fallback.rows(op, rows)
        except NoOperatorDataError as error:
            return _fallen(self.fallback.rows(op, rows), one, error)
        return replace(timed, ms=timed.ms * op.count * (op.factor if isinstance(op, AllReduceOp) else 1.0))

    def _plausible_experts(self, op: MoeOp, rows: F64) -> Timed:
        timed = moe_rows(self.database, op, tuple(rows.tolist()))
        timed = replace(timed, ms=np.maximum(timed.ms, self.fallback.fastest_weights_ms(op)))
        analytic = self.fallback.rows(op, rows)
        if float(np.median(timed.ms / analytic.ms)) > _SLOW_EXPERTS:
            note = f"experts by roofline: the rows of {self.database.backend} are implausibly slow"
            return replace(analytic, notes=(*timed.notes, note))
        return timed

    def _plausible_all_reduce(self, op: AllReduceOp, rows: F64) -> Timed:
        """Measured rows, unless large messages were far slower than the link: then the data crossed the host's memory.

        Published runs on such PCIe servers are 2-6 times faster than the rows would allow.
        """
        if not self.fallback.inside_node(op.gpus):
            note = f"all-reduce over {op.gpus} GPUs by roofline: the rows were measured inside one node"
            return replace(self.fallback.rows(op, rows), notes=(note,))
        timed = _all_reduce(self.database, op, tuple(rows.tolist()))
        analytic = self.fallback.rows(op, rows)
        large = rows >= _LARGE_MESSAGE_ROWS
        if large.any() and float(np.median(timed.ms[large] / analytic.ms[large])) > _SLOW_LINK:
            note = f"all-reduce over {op.gpus} GPUs by roofline: the measured rows are far below the link's bandwidth"
            return replace(analytic, notes=(note,))
        return timed

    def prefill(self, op: Mixer, tokens: F64, context: F64) -> Timed:
        """See ``OperatorSource.prefill``."""
        one = replace(op, count=1.0)
        axes = (tuple(tokens.tolist()), tuple(context.tolist()))
        try:
            if isinstance(one, AttentionOp):
                timed = prefill_grid(self.database, one, *axes)
            elif isinstance(one, MlaOp):
                timed = mla_prefill(self.database, one, *axes)
            elif isinstance(one, StateOp):
                timed = state_prefill(self.database, one, *axes)
            else:
                return self.fallback.prefill(op, tokens, context)
        except NoOperatorDataError as error:
            return _fallen(self.fallback.prefill(op, tokens, context), one, error)
        return replace(timed, ms=timed.ms * op.count)

    def decode(self, op: Mixer, batch: F64, kv: F64) -> Timed:
        """See ``OperatorSource.decode``."""
        one = replace(op, count=1.0)
        axes = (tuple(batch.tolist()), tuple(kv.tolist()))
        try:
            if isinstance(one, AttentionOp):
                one = replace(one, decode_factor=1.0)
                timed = self._uncached(one, decode_grid(self.database, one, *axes), batch, kv)
            elif isinstance(one, MlaOp):
                timed = mla_decode(self.database, one, *axes)
            elif isinstance(one, StateOp):
                timed = state_decode(self.database, one, *axes)
            else:
                return self.fallback.decode(op, batch, kv)
        except NoOperatorDataError as error:
            return _fallen(self.fallback.decode(op, batch, kv), one, error)
        return replace(timed, ms=timed.ms * op.count * (op.decode_factor if isinstance(op, AttentionOp) else 1.0))

    def _uncached(self, op: AttentionOp, timed: Timed, batch: F64, kv: F64) -> Timed:
        """``timed``, not faster than memory: a benchmark that repeats one layer reads small caches from the L2 cache,
        a model's layers take turns and find theirs gone."""
        return replace(timed, ms=np.maximum(timed.ms, self.fallback.fastest_decode_ms(op, batch, kv)))


def _fallen(timed: Timed, op: object, error: NoOperatorDataError) -> Timed:
    what = type(op).__name__.removesuffix("Op").lower()
    return replace(timed, notes=(*timed.notes, f"{what} by roofline: {error}"))


@lru_cache(maxsize=4096)
def _all_reduce(database: OperatorDatabase, op: AllReduceOp, rows: tuple[float, ...]) -> Timed:
    from aiconfigurator_core.sdk import operations

    if op.gpus not in database.all_reduce_gpus():
        raise NoOperatorDataError(f"all-reduce over {op.gpus} GPUs was not measured on {database.system}")
    text = database.serialise(
        ("all_reduce", op.hidden, op.gpus), lambda: operations.CustomAllReduce("all_reduce", 1, op.hidden, op.gpus)
    )
    fewest = _SMALLEST_MESSAGE / op.hidden  # below it the package goes on to nothing, an all-reduce to its latency
    ms = np.array([row_ms(database, text, max(x, fewest)) for x in rows])
    return Timed(monotone(ms), Evidence.SILICON)

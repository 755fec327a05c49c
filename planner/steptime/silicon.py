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
from planner.steptime.database import NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import AllReduceOp, AttentionOp, GemmOp, Mixer, MlaOp, MoeOp, StateOp, TokenOp
from planner.steptime.roofline import RooflineSource
from planner.steptime.silicon_attention import decode_grid, prefill_grid
from planner.steptime.silicon_mla import mla_decode, mla_prefill
from planner.steptime.silicon_moe import moe_rows
from planner.steptime.silicon_state import state_decode, state_prefill
from planner.steptime.sources import F64, Timed, monotone

GEMM_MODES = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "fp4": "nvfp4",
    "int8": "sq",
}
"""Tables by stored precision where the arithmetic is as narrow as the weights."""
WEIGHT_ONLY_MODES = {"int8": "int8_wo", "int4": "int4_wo"}
"""Tables by stored precision where weights are widened to 16 bits; most systems have none."""

_SMALLEST_SIDE = 32  # n and k in the GEMM tables
_SMALLEST_MESSAGE = 128  # elements in the all-reduce tables
_LARGE_MESSAGE_ROWS = 256
_SLOW_LINK = 1.6
_SLOW_EXPERTS = 3.0  # sound tables stay below 2.2 times the roofline (median over row counts)

FP8_BLOCK_NOTE = "block-scaled FP8 GEMMs by TensorRT-LLM rows: those of vLLM hold host launch time at small batch"


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


@lru_cache(maxsize=65536)
def gemm_rows(database: OperatorDatabase, op: GemmOp, rows: tuple[float, ...]) -> Timed:
    """Time of one GEMM at each row count; raises NoOperatorDataError without a table for its format."""
    from aiconfigurator_core.sdk import common, operations

    widened = op.weight.stored not in ("bf16", "fp16") and op.weight.compute in ("bf16", "fp16")
    mode_name = (WEIGHT_ONLY_MODES if widened else GEMM_MODES).get(op.weight.stored)
    grid = database.gemm_grid()
    if mode_name is None or mode_name not in grid:
        raise NoOperatorDataError(f"no {op.weight.stored} GEMM rows for {database.backend} on {database.system}")
    mode = common.GEMMQuantMode[mode_name]
    n, k = max(op.n, _SMALLEST_SIDE), max(op.k, _SMALLEST_SIDE)  # smaller ones (expert gates) cost as much
    text = database.serialise(("gemm", n, k, mode_name), lambda: operations.GEMM("gemm", 1, n, k, mode))
    ms = np.array([_row_time(database, text, x) for x in rows])
    evidence = Evidence.SILICON
    notes: tuple[str, ...] = ()
    if mode_name == "fp8_block" and database.backend == "vllm":
        ms, evidence, notes = _sound_fp8_block(database, op, rows, ms)
    largest_m = grid[mode_name][0]
    if max(rows) > largest_m:
        ms = _extend_linearly(np.array(rows), ms, largest_m)
    return Timed(monotone(ms), evidence, notes)


def _row_time(database: OperatorDatabase, text: str, rows: float) -> float:
    whole = max(1, round(rows))
    return database.time_ms(text, context=False, batch=1, length=1, tokens=whole)


def _extend_linearly(rows: F64, ms: F64, largest: int) -> F64:
    """Beyond the largest measured row count a GEMM is compute-bound: time grows with the rows."""
    inside = rows <= largest
    if not inside.any():
        return ms
    edge = int(np.flatnonzero(inside)[-1])
    extended = ms.copy()
    extended[~inside] = ms[edge] * rows[~inside] / rows[edge]
    return extended


def _sound_fp8_block(
    database: OperatorDatabase, op: GemmOp, rows: tuple[float, ...], ms: F64
) -> tuple[F64, Evidence, tuple[str, ...]]:
    other = open_database(database.system, "tensorrt_llm")
    if other is None or "fp8_block" not in other.gemm_grid():
        return ms, Evidence.EXTRAPOLATED, ("block-scaled FP8 GEMM rows look launch-bound and no other rows exist",)
    sound = gemm_rows(other, op, rows).ms
    # A launch-bound row is slower by a constant; where both are compute-bound the engine's own row stands.
    suspicious = ms > 1.3 * sound
    if not suspicious.any():
        return ms, Evidence.SILICON, ()
    return np.where(suspicious, sound, ms), Evidence.EXTRAPOLATED, (FP8_BLOCK_NOTE,)


@lru_cache(maxsize=4096)
def _all_reduce(database: OperatorDatabase, op: AllReduceOp, rows: tuple[float, ...]) -> Timed:
    from aiconfigurator_core.sdk import operations

    if op.gpus not in database.all_reduce_gpus():
        raise NoOperatorDataError(f"all-reduce over {op.gpus} GPUs was not measured on {database.system}")
    text = database.serialise(
        ("all_reduce", op.hidden, op.gpus), lambda: operations.CustomAllReduce("all_reduce", 1, op.hidden, op.gpus)
    )
    fewest = _SMALLEST_MESSAGE / op.hidden  # below it the package goes on to nothing, an all-reduce to its latency
    ms = np.array([_row_time(database, text, max(x, fewest)) for x in rows])
    return Timed(monotone(ms), Evidence.SILICON)

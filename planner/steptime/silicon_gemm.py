"""Matrix products from measured kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import GemmOp
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
FP8_BLOCK_NOTE = "block-scaled FP8 GEMMs by TensorRT-LLM rows: those of vLLM hold host launch time at small batch"


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
    ms = np.array([row_ms(database, text, x) for x in rows])
    evidence = Evidence.SILICON
    notes: tuple[str, ...] = ()
    if mode_name == "fp8_block" and database.backend == "vllm":
        ms, evidence, notes = _sound_fp8_block(database, op, rows, ms)
    largest_m = grid[mode_name][0]
    if max(rows) > largest_m:
        ms = _extend_linearly(np.array(rows), ms, largest_m)
    return Timed(monotone(ms), evidence, notes)


def row_ms(database: OperatorDatabase, text: str, rows: float) -> float:
    """Time of an operator whose work is a number of tokens, at ``rows`` of them (at least one, whole)."""
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

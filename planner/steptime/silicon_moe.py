"""Routed experts from measured kernels. The tables hold whole model shapes, so another shape needs a stated
substitute."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import log

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import BACKENDS, MoeShape, NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import MoeOp
from planner.steptime.sources import F64, Timed, monotone

MODES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4"}
WEIGHT_ONLY_MODES = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}
MXFP8_MODE = "w4a8_mxfp4_mxfp8"

_DISTRIBUTIONS = ("power_law_1.2", "power_law_1.01", "balanced")
"""Routing skew of the rows, most like real traffic first."""
_LARGEST_TOKENS = 16384
_IMPLAUSIBLE = 1.8
"""A table whose times are this much above a comparable one's (median over the row counts) did not measure the
kernel."""
_FARTHEST = 1.2
"""Sum of log ratios over the shape's sizes beyond which another shape says nothing."""


@lru_cache(maxsize=4096)
def moe_rows(database: OperatorDatabase, op: MoeOp, rows: tuple[float, ...]) -> Timed:
    """Time of one expert layer at ``rows`` tokens per attention rank.

    Order: rows of this shape, unless a comparable table shows them to be far too slow; the nearest shape, scaled by
    work and weight bytes; the other engine's rows of this GPU. Everything but the first is EXTRAPOLATED.
    """
    mode = _mode(database, op)
    other = open_database(database.system, _other_engine(database))
    own = _exact(database, op, mode, rows)
    if own is None:
        own = _nearest(database, op, mode, rows)
    comparable = _comparable(database, other, op, mode, rows)
    if own is None and comparable is None:
        shape = f"{op.hidden}x{op.intermediate}, top {op.topk} of {op.experts}"
        raise NoOperatorDataError(f"no {mode} expert rows near {shape}")
    if own is None:
        assert comparable is not None
        return comparable
    if comparable is not None and float(np.median(own.ms / comparable.ms)) > _IMPLAUSIBLE:
        note = f"experts: the {mode} rows of {database.backend} are implausibly slow; {comparable.notes[-1]}"
        return replace(comparable, notes=(note,))
    return own


def _mode(database: OperatorDatabase, op: MoeOp) -> str:
    stored = op.weight.stored
    if stored == "mxfp4" and op.weight.compute == "fp8":
        shape = (op.hidden, op.intermediate, op.topk, op.experts)
        measured = shape in database.moe_grid().get(MXFP8_MODE, {})
        return MXFP8_MODE if measured else WEIGHT_ONLY_MODES[stored]
    widened = stored not in ("bf16", "fp16") and op.weight.compute in ("bf16", "fp16")
    table = WEIGHT_ONLY_MODES if widened else MODES
    if stored not in table:
        raise NoOperatorDataError(f"no expert tables for {stored} weights")
    return table[stored]


def _other_engine(database: OperatorDatabase) -> str:
    return next(engine for engine, backend in BACKENDS.items() if backend != database.backend)


def _comparable(
    database: OperatorDatabase, other: OperatorDatabase | None, op: MoeOp, mode: str, rows: tuple[float, ...]
) -> Timed | None:
    """The fastest of the tables that should be about as fast: FP8 by blocks of this engine, or the other engine's."""
    found: list[tuple[F64, str]] = []
    choices: list[tuple[OperatorDatabase, str]] = [(database, "fp8_block")] if mode == "fp8" else []
    if other is not None:
        choices.append((other, mode))
        if mode == "fp8":
            choices.append((other, "fp8_block"))
    for source, name in choices:
        timed = _exact(source, op, name, rows)
        if timed is not None:
            found.append((timed.ms, f"timed by {name} rows of {source.backend}"))
    if not found:
        return None
    ms, note = min(found, key=lambda pair: float(np.log(pair[0]).mean()))
    return Timed(ms, Evidence.EXTRAPOLATED, (note,))


def _exact(database: OperatorDatabase, op: MoeOp, mode: str, rows: tuple[float, ...]) -> Timed | None:
    shape = (op.hidden, op.intermediate, op.topk, op.experts)
    splits = database.moe_grid().get(mode, {}).get(shape)
    if splits is None or (op.tp, op.ep) not in splits:
        return None
    return Timed(_query(database, op, mode, rows), Evidence.SILICON)


def _query(database: OperatorDatabase, op: MoeOp, mode: str, rows: tuple[float, ...]) -> F64:
    from aiconfigurator_core.sdk import common, operations

    for distribution in _DISTRIBUTIONS:
        text = database.serialise(
            ("moe", replace(op, count=1.0), mode, distribution),
            lambda distribution=distribution: operations.MoE(
                "moe", 1, op.hidden, op.intermediate, op.topk, op.experts, op.tp, op.ep,
                common.MoEQuantMode[mode], distribution, op.dp, True, op.gated,
            ),
        )  # fmt: skip
        try:
            return monotone(np.array([_at(database, text, op, x) for x in rows]))
        except NoOperatorDataError as error:
            last = error
    raise last


def _at(database: OperatorDatabase, text: str, op: MoeOp, rows: float) -> float:
    largest = _LARGEST_TOKENS / op.dp
    inside = max(1, round(min(rows, largest)))
    return database.time_ms(text, context=False, batch=1, length=1, tokens=inside) * max(1.0, rows / largest)


def _nearest(database: OperatorDatabase, op: MoeOp, mode: str, rows: tuple[float, ...]) -> Timed | None:
    """The nearest measured shape and split, scaled by the roofline's ratio of the two."""
    best: tuple[float, MoeOp] | None = None
    for shape, splits in database.moe_grid().get(mode, {}).items():
        for tp, ep in splits:
            distance = _distance(op, shape, tp, ep)
            if best is None or distance < best[0]:
                best = (
                    distance,
                    replace(op, hidden=shape[0], intermediate=shape[1], topk=shape[2], experts=shape[3], tp=tp, ep=ep),
                )
    if best is None or best[0] > _FARTHEST:
        return None
    near = best[1]
    try:
        ms = _query(database, near, mode, rows)
    except NoOperatorDataError:
        return None
    tokens = np.array(rows)
    scale = work(op, tokens) / work(near, tokens)
    note = (
        f"experts {op.hidden}x{op.intermediate}, top {op.topk} of {op.experts} (TP {op.tp}, EP {op.ep}) scaled from "
        f"{near.hidden}x{near.intermediate}, top {near.topk} of {near.experts} (TP {near.tp}, EP {near.ep})"
    )
    return Timed(monotone(ms * scale), Evidence.EXTRAPOLATED, (note,))


def _distance(op: MoeOp, shape: MoeShape, tp: int, ep: int) -> float:
    hidden, intermediate, topk, experts = shape
    pairs = (
        (op.hidden, hidden),
        (op.intermediate / op.tp, intermediate / tp),
        (op.topk, topk),
        (op.experts / op.ep, experts / ep),
        (op.experts, experts),
    )
    weights = (0.5, 0.5, 1.0, 0.6, 0.3)
    return sum(weight * abs(log(a / b)) for weight, (a, b) in zip(weights, pairs, strict=True))


def work(op: MoeOp, tokens: F64) -> F64:
    """Relative cost of a step: weights that are touched plus arithmetic, in equivalent bytes (300 operations a
    byte)."""
    matrix = op.hidden * op.intermediate / op.tp
    total = tokens * op.dp
    active = op.experts / op.ep * (1.0 - (1.0 - op.topk / op.experts) ** total)
    return matrix * (active * op.weight.bits / 8 + 2.0 * total * op.topk / op.ep / 300.0)

"""Routed experts from measured kernels. The tables hold whole model shapes, so another shape needs a stated
substitute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil, log

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import BACKENDS, MoeShape, NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import MoeOp
from planner.steptime.sources import F64, Timed, monotone

MODES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4"}
WEIGHT_ONLY_MODES = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}
_KERNEL_WORDS = {("trtllm", "trtllm"): "min_latency"}
"""(package's engine, engine's word for the kernel): what the tables call it, where they call it otherwise."""
_DEFAULT_KERNELS = (("trtllm", "cutlass"),)
"""Named or not, it is what runs: the rows are held against other tables as without a name."""
_LENT_KERNELS = {("trtllm", "trtllm", "fp8_block"): ("nvfp4", 8.0 / 4.5)}
"""(package's engine, engine's word, mode) of a kernel that was measured in another mode only, and how much longer it
takes than there: by the bits of a weight, scales included, since few tokens read each expert's weights once.
"""
MXFP8_MODE = "w4a8_mxfp4_mxfp8"
_MARLIN_INNER, _MARLIN_HIDDEN = 128, 256

_DISTRIBUTIONS = ("power_law_1.2", "power_law_1.01", "balanced")
"""Routing skew of the rows, most like real traffic first."""
_DEALT_OUT = "balanced"
"""Rows whose tokens are dealt out to the experts in turn."""
_LARGEST_TOKENS = 16384
_IMPLAUSIBLE = 1.8
"""A table whose times are this much above a comparable one's (median over the row counts) did not measure the
kernel."""
_SLOW_ARITHMETIC, _MANY_TOKENS = 1.5, 1024.0
"""From so many tokens on experts are bound by arithmetic, and kernels of two engines on one GPU reach similar rates:
rows that much above the other engine's hold something else."""
_SEEN_IN_PROMPTS = (("trtllm", "fp8_block"),)
"""(package's engine, mode) whose own rows whole prompts were seen to take. DeepSeek-R1 on 8 H200 takes 516 ms for a
lone prompt of 8,192 tokens with its experts split by TP, 353 by EP (TensorRT-LLM 0.21.0rc2, NVIDIA/TensorRT-LLM issue
5929); these rows give 519 and 365, vLLM's would give 367 for the first."""
_FARTHEST = 1.2
"""Sum of log ratios over the shape's sizes beyond which another shape says nothing."""


@lru_cache(maxsize=4096)
def moe_rows(database: OperatorDatabase, op: MoeOp, rows: tuple[float, ...]) -> Timed:
    """Time of one expert layer at ``rows`` tokens per attention rank.

    Order: rows of this shape, unless a comparable table shows them to be far too slow; the nearest shape, scaled by
    work and weight bytes; the other engine's rows of this GPU. Everything but the first is EXTRAPOLATED. A kernel that
    is asked for by name and was measured with other shapes only lends its arithmetic rate.
    """
    mode = _mode(database, op)
    asked = _by_kernel(database, op, mode, rows)
    if asked is not None:
        return asked
    own = _exact(database, op, mode, rows)
    if own is not None and (database.backend, mode) in _SEEN_IN_PROMPTS:
        return own
    other = open_database(database.system, _other_engine(database))
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
    return own if comparable is None else _sound_arithmetic(database, own, comparable, mode, np.array(rows) * op.dp)


def _sound_arithmetic(database: OperatorDatabase, own: Timed, comparable: Timed, mode: str, tokens: F64) -> Timed:
    """``own`` with the comparable rows where many tokens take implausibly long."""
    slow = (tokens >= _MANY_TOKENS) & (own.ms > _SLOW_ARITHMETIC * comparable.ms)
    if not slow.any():
        return own
    note = f"experts: the {mode} rows of {database.backend} are implausibly slow at many tokens; {comparable.notes[-1]}"
    ms = monotone(np.where(slow, comparable.ms, own.ms))
    return Timed(ms, Evidence.EXTRAPOLATED, (*own.notes, note))


def _by_kernel(database: OperatorDatabase, op: MoeOp, mode: str, rows: tuple[float, ...]) -> Timed | None:
    """The kernel that ``op`` names; None when it names none, or none that was measured.

    Where only other shapes were measured with it: its arithmetic rate at as many tokens an expert, or the rows of this
    shape by another kernel where those are slower (any kernel reads the weights).
    """
    if not op.kernel or (database.backend, op.kernel) in _DEFAULT_KERNELS:
        return None
    if (database.backend, op.kernel, mode) in _LENT_KERNELS:
        return _by_lent_kernel(database, op, mode, rows)
    word = _KERNEL_WORDS.get((database.backend, op.kernel), op.kernel)
    kernels = {kernel: shapes for kernel, shapes in database.moe_kernels(mode).items() if word in kernel}
    shape = (op.hidden, op.intermediate, op.topk, op.experts)
    for kernel, shapes in kernels.items():
        if shape in shapes:
            return _rows_of_kernel(database, op, mode, kernel, rows)
    splits = database.moe_grid().get(mode, {})
    choices = [
        replace(op, hidden=hidden, intermediate=inter, topk=topk, experts=experts)
        for shapes in kernels.values()
        for hidden, inter, topk, experts in sorted(shapes)
        if (op.tp, op.ep) in splits[(hidden, inter, topk, experts)]
    ]
    own = _exact(database, op, mode, rows)
    if own is None or not choices:
        return None
    near = min(choices, key=lambda other: _distance(op, (other.hidden, other.intermediate, other.topk, other.experts),
                                                    other.tp, other.ep))  # fmt: skip
    as_full = near.experts / near.topk * op.topk / op.experts
    tokens = np.array(rows)
    ms = _query(database, near, mode, tuple((tokens * as_full).tolist()))
    slower = np.maximum(own.ms, ms * arithmetic(as_padded(op), tokens) / arithmetic(near, tokens * as_full))
    note = f"experts by {op.kernel}: its arithmetic rate with {near.hidden}x{near.intermediate}, top {near.topk}"
    return Timed(monotone(slower), Evidence.EXTRAPOLATED, (f"{note} of {near.experts}",))


def _by_lent_kernel(database: OperatorDatabase, op: MoeOp, mode: str, rows: tuple[float, ...]) -> Timed | None:
    """A kernel measured in another mode only: its rows by the weights' width for few tokens, this mode's own rows where
    arithmetic counts and kernels reach similar rates. None without either.
    """
    measured, wider = _LENT_KERNELS[(database.backend, op.kernel, mode)]
    lent, own = _by_kernel(database, op, measured, rows), _exact(database, op, mode, rows)
    if lent is None or own is None:
        return None
    ms = np.where(np.array(rows) * op.dp < _MANY_TOKENS, np.minimum(lent.ms * wider, own.ms), own.ms)
    note = f"experts by {op.kernel}: its {measured} rows, {wider:.2f} times as long, below {_MANY_TOKENS:.0f} tokens"
    return Timed(monotone(ms), Evidence.EXTRAPOLATED, (*lent.notes, note))


def as_padded(op: MoeOp) -> MoeOp:
    """``op`` with the widths that its kernel multiplies: Marlin pads MXFP4 experts (vLLM ``quantization/mxfp4.py``)."""
    if op.kernel != "marlin" or op.weight.stored != "mxfp4":
        return op
    inner = ceil(op.intermediate / op.tp / _MARLIN_INNER) * _MARLIN_INNER
    return replace(op, hidden=ceil(op.hidden / _MARLIN_HIDDEN) * _MARLIN_HIDDEN, intermediate=inner * op.tp)


def _rows_of_kernel(
    database: OperatorDatabase, op: MoeOp, mode: str, kernel: str, rows: tuple[float, ...]
) -> Timed | None:
    shape = (op.hidden, op.intermediate, op.topk, op.experts)

    def query(wanted: F64, distribution: str) -> F64:
        tokens, ms = database.moe_kernel_ms(mode, kernel, shape, (op.tp, op.ep), distribution)
        if not tokens:
            raise NoOperatorDataError(f"no {distribution} rows of {kernel}")
        return np.interp(wanted * op.dp, tokens, ms) * np.maximum(1.0, wanted * op.dp / tokens[-1])

    try:
        return Timed(_routed(op, rows, query), Evidence.SILICON)
    except NoOperatorDataError:
        return None


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

    def query(wanted: F64, distribution: str) -> F64:
        text = database.serialise(
            ("moe", replace(op, count=1.0), mode, distribution),
            lambda: operations.MoE(
                "moe", 1, op.hidden, op.intermediate, op.topk, op.experts, op.tp, op.ep,
                common.MoEQuantMode[mode], distribution, op.dp, True, op.gated,
            ),
        )  # fmt: skip
        return np.array([_at(database, text, op, x) for x in wanted.tolist()])

    return _routed(op, rows, query)


def _routed(op: MoeOp, rows: tuple[float, ...], query: Callable[[F64, str], F64]) -> F64:
    """``query`` (tokens of a rank, distribution) with the routing that ``op`` has, never falling with tokens.

    Few tokens take as long as the weights of the experts that they touch: E (1 - (1 - k/E)^n) of E experts where n
    tokens choose k each at random, the same as fewer tokens dealt out in turn. vLLM's Triton experts alone on an H200
    (``benchmarks/data/h200_series4``) take 0.9-1.02 of that from 4 to 512 tokens; the skewed rows are 18 % short at 16.
    Many tokens touch all, and dealt-out ones fill tiles as no traffic does: skewed rows hold there. Raises
    NoOperatorDataError without rows.
    """
    wanted = np.array(rows)
    for distribution in _DISTRIBUTIONS:
        try:
            usual = monotone(query(wanted, distribution))
            break
        except NoOperatorDataError as error:
            last = error
    else:
        raise last
    few = wanted * op.dp < _MANY_TOKENS
    if not op.even or not few.any():
        return usual
    tokens = wanted[few] * op.dp
    touched = op.experts * (1.0 - (1.0 - op.topk / op.experts) ** tokens)
    weights = touched / op.topk / op.dp  # tokens of a rank that touch as many when dealt out
    below = np.floor(weights)
    all_touched = np.array([op.experts / op.topk / op.dp])
    try:
        at_below, at_above = query(below, _DEALT_OUT), query(below + 1.0, _DEALT_OUT)
        more_tokens = np.maximum(0.0, query(wanted[few], _DEALT_OUT) - query(all_touched, _DEALT_OUT))
    except NoOperatorDataError:
        return usual
    ms = usual.copy()
    ms[few] = at_below + (weights - below) * (at_above - at_below)
    ms[few] += np.where(wanted[few] > all_touched, more_tokens, 0.0)
    return monotone(ms)


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


def arithmetic(op: MoeOp, tokens: F64) -> F64:
    """Relative number of operations of one rank: three (gated) or two matrices for each routed token."""
    return (3 if op.gated else 2) * op.hidden * op.intermediate / op.tp * tokens * op.dp * op.topk / op.ep


def work(op: MoeOp, tokens: F64) -> F64:
    """Relative cost of a step: weights that are touched plus arithmetic, in equivalent bytes (300 operations a
    byte)."""
    matrix = op.hidden * op.intermediate / op.tp
    total = tokens * op.dp
    active = op.experts / op.ep * (1.0 - (1.0 - op.topk / op.experts) ** total)
    return matrix * (active * op.weight.bits / 8 + 2.0 * total * op.topk / op.ep / 300.0)

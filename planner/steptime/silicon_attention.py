"""Softmax attention from measured kernels: direct rows, or a sound substitute where the geometry was not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import BF16, AttentionKey, NoOperatorDataError, OperatorDatabase
from planner.steptime.graph import AttentionOp
from planner.steptime.sources import F64, Timed, monotone, prefill_shape, windowed_context

_LONGEST_PROMPT = 16384  # tokens; prompts in the prefill tables


@dataclass(frozen=True)
class Geometry:
    """How an attention operator maps onto measured rows.

    ``fold`` heads-for-batch: (b, H, K) runs as (b x fold, H / fold, K / fold). ``scale`` of the bandwidth part when
    another head dimension stands in. ``window`` of the rows used; None with a window in the operator:
    window-for-length.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    fold: int
    scale: float
    kv_dtype: str
    fmha: str
    longest: Mapping[int, int]
    evidence: Evidence
    notes: tuple[str, ...]


def _kv_name(kv_dtype: str) -> str:
    return "fp8" if kv_dtype == "fp8" else BF16


@lru_cache(maxsize=4096)
def geometry(database: OperatorDatabase, op: AttentionOp, decode: bool) -> Geometry:
    """Pick the measured rows for ``op``; raises NoOperatorDataError when none are near."""
    grid = database.attention_grid(decode)
    if not grid:
        raise NoOperatorDataError(f"no attention rows for {database.backend} on {database.system}")
    kv = _kv_name(op.kv_dtype)
    fmha = "fp8" if kv == "fp8" and not decode and ("fp8", kv, op.head_dim, 0) in grid else BF16
    if (fmha, kv, op.head_dim, 0) not in grid and not any(key[:2] == (fmha, kv) for key in grid):
        kv, fmha = BF16, BF16
        return _with(
            geometry(database, _replace_kv(op), decode), Evidence.EXTRAPOLATED, "KV cache rows of bf16 stand in"
        )
    head_dim, scale = _head_dim(grid, fmha, kv, op.head_dim)
    window = op.window if op.window is not None and (fmha, kv, head_dim, op.window) in grid else 0
    by_heads = grid[(fmha, kv, head_dim, window)]
    fold = _fold(by_heads, op, decode)
    heads, kv_heads = op.heads // fold, op.kv_heads // fold
    notes: tuple[str, ...] = ()
    evidence = Evidence.SILICON
    if scale != 1.0:
        evidence = Evidence.EXTRAPOLATED
        notes = (f"attention with head size {op.head_dim} scaled from rows of head size {head_dim}",)
    if fold > 1:
        notes += (f"{op.heads}/{op.kv_heads} attention heads timed as {heads}/{kv_heads} at {fold} times the batch",)
    if op.window is not None and not window:
        notes += (f"attention window {op.window} timed as full attention over {op.window} tokens",)
    return Geometry(
        heads, kv_heads, head_dim, window, fold, scale, kv, fmha, _longest(by_heads, heads, kv_heads), evidence, notes
    )


def _replace_kv(op: AttentionOp) -> AttentionOp:
    return replace(op, kv_dtype="bf16")


def _with(found: Geometry, evidence: Evidence, note: str) -> Geometry:
    return replace(found, evidence=evidence, notes=(*found.notes, note))


def _head_dim(grid: Mapping[AttentionKey, object], fmha: str, kv: str, head_dim: int) -> tuple[int, float]:
    measured = sorted(key[2] for key in grid if key[0] == fmha and key[1] == kv and key[3] == 0)
    if head_dim in measured:
        return head_dim, 1.0
    larger = [d for d in measured if d > head_dim]
    nearest = larger[0] if larger else measured[-1]
    if not 0.45 <= head_dim / nearest <= 2.0:
        raise NoOperatorDataError(f"no attention rows near head size {head_dim}")
    return nearest, head_dim / nearest


def _fold(by_heads: Mapping[tuple[int, int], object], op: AttentionOp, decode: bool) -> int:
    measured = {kv_heads for _, kv_heads in by_heads}
    widest = {kv: max(h for h, k in by_heads if k == kv) for kv in measured}
    for fold in range(1, op.kv_heads + 1):
        if op.kv_heads % fold or op.heads % fold:
            continue
        kv_heads, heads = op.kv_heads // fold, op.heads // fold
        if kv_heads in measured and heads <= widest[kv_heads]:
            return fold
    raise NoOperatorDataError(f"no attention rows for {op.heads}/{op.kv_heads} heads")


def _longest(by_heads: Mapping[tuple[int, int], Mapping[int, int]], heads: int, kv_heads: int) -> Mapping[int, int]:
    wide = sorted(h for h, k in by_heads if k == kv_heads and h >= heads)
    return by_heads[(wide[0], kv_heads)]


@lru_cache(maxsize=2048)
def decode_grid(database: OperatorDatabase, op: AttentionOp, batch: tuple[float, ...], kv: tuple[float, ...]) -> Timed:
    """Decode attention of one layer on a (batch, KV) grid; ``in_range`` per batch row.

    Beyond the measured corner the kernel is bandwidth-bound, so time grows with the total KV read: the row of the
    largest batch that was measured at this length is scaled by the batch, and the longest length by the length.
    """
    found = geometry(database, op, True)
    text = _decode_json(database, found, op)
    window = op.window if op.window is not None and not found.window else None
    rows = sorted(found.longest.items())
    ms = np.empty((len(batch), len(kv)))
    memo: dict[tuple[int, int], float] = {}

    def measured(b: int, length: int) -> float:
        if (b, length) not in memo:
            memo[b, length] = database.time_ms(text, context=False, batch=b, length=length)
        return memo[b, length]

    for i, b in enumerate(batch):
        folded = max(1, round(b * found.fold))
        for j, length in enumerate(kv):
            seen = max(1, round(min(length, window) if window is not None else length))
            if found.window:
                seen = max(1, round(length))
            ms[i, j] = _decode_point(measured, rows, folded, seen)
    ms = _scale_head(ms, found.scale)
    ms = monotone(ms)
    limits = np.array([_limit(rows, round(b * found.fold)) for b in batch], dtype=np.float64)
    if op.window is not None:
        limits[limits >= op.window] = np.inf
    return Timed(ms, found.evidence, found.notes, limits)


def _decode_point(measured: Callable[[int, int], float], rows: list[tuple[int, int]], batch: int, length: int) -> float:
    limit = _limit(rows, batch)
    if length <= limit:
        return float(measured(batch, length))
    holding = [(b, longest) for b, longest in rows if longest >= length and b <= batch]
    if holding:
        widest = holding[-1][0]
        return float(measured(widest, length)) * batch / widest
    longest = max(value for _, value in rows)
    base = _decode_point(measured, rows, batch, longest)
    return base * length / longest


def _limit(rows: list[tuple[int, int]], batch: int) -> int:
    """Longest KV measured at ``batch``: the next measured batch at or above bounds it."""
    for b, longest in rows:
        if b >= batch:
            return longest
    return 0


def _scale_head(ms: F64, scale: float) -> F64:
    """Scale the part above the launch floor by the head size."""
    if scale == 1.0:
        return ms
    lowest = float(ms.min())
    return lowest + (ms - lowest) * scale


def _decode_json(database: OperatorDatabase, found: Geometry, op: AttentionOp) -> str:
    from aiconfigurator_core.sdk import common, operations

    kv_mode = common.KVCacheQuantMode["fp8" if found.kv_dtype == "fp8" else BF16]
    return database.serialise(
        ("decode", found.heads, found.kv_heads, found.head_dim, found.window, found.kv_dtype, op.qk_norm),
        lambda: operations.GenerationAttention(
            "generation_attention", 1, found.heads, found.kv_heads, kv_mode, window_size=found.window,
            head_size=found.head_dim, use_qk_norm=op.qk_norm,
        ),
    )  # fmt: skip


def _prefill_json(database: OperatorDatabase, found: Geometry, op: AttentionOp) -> str:
    from aiconfigurator_core.sdk import common, operations

    kv_mode = common.KVCacheQuantMode["fp8" if found.kv_dtype == "fp8" else BF16]
    fmha = common.FMHAQuantMode["fp8" if found.fmha == "fp8" else BF16]
    return database.serialise(
        ("prefill", found.heads, found.kv_heads, found.head_dim, found.window, found.kv_dtype, found.fmha, op.qk_norm),
        lambda: operations.ContextAttention(
            "context_attention", 1, found.heads, found.kv_heads, kv_mode, fmha, window_size=found.window,
            head_size=found.head_dim, use_qk_norm=op.qk_norm,
        ),
    )  # fmt: skip


@lru_cache(maxsize=2048)
def prefill_grid(
    database: OperatorDatabase, op: AttentionOp, tokens: tuple[float, ...], context: tuple[float, ...]
) -> Timed:
    """Prefill attention of one layer on a (new tokens, mean keys) grid.

    Longer than the tables: time grows with the keys seen, as the kernel is compute-bound there.
    """
    found = geometry(database, op, False)
    text = _prefill_json(database, found, op)
    ms = np.empty((len(tokens), len(context)))
    for i, new in enumerate(tokens):
        for j, keys in enumerate(context):
            seen = keys if found.window else windowed_context(new, keys, op.window)
            if not op.causal:
                seen = 2.0 * seen  # every token sees the whole prompt, not the half before it
            ms[i, j] = _prefill_point(database, text, new, seen, found.fold)
    ms = _scale_head(ms, found.scale)
    return Timed(monotone(ms), found.evidence, found.notes)


def _prefill_point(database: OperatorDatabase, text: str, new: float, keys: float, fold: int) -> float:
    prompts, each, past = prefill_shape(new, keys)
    factor = 1.0
    if each + past > _LONGEST_PROMPT and past > 0:
        allowed = max(0.0, _LONGEST_PROMPT - each)
        factor = keys / (allowed + (each + 1) / 2)
        past = allowed
    elif each > _LONGEST_PROMPT:
        factor = (each / _LONGEST_PROMPT) ** 2
        each = _LONGEST_PROMPT
    return database.prompts_ms(text, prompts * fold, each, past, factor)

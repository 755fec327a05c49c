"""Latent attention from measured modules, which hold its projections."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import BF16, NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import GemmOp, MlaOp
from planner.steptime.silicon_gemm import gemm_rows
from planner.steptime.sources import F64, Timed, monotone, prefill_shape

_LATENT = (512, 64)  # latent rank and rotary part of every measured row
_LONGEST_PROMPT = 32768
_LARGEST_KV = 131072
_GLM_NOPE = 192
_LAUNCH_BOUND = 1.3
"""Rows of a prompt that much above the decode rows of as many tokens hold host launches, not kernels."""


def _module_mode(op: MlaOp) -> str:
    """GEMM type of the measured attention module: blocks of FP8 stand for any narrow checkpoint."""
    return BF16 if op.weight.compute in ("bf16", "fp16") else "fp8_block"


def _check(op: MlaOp) -> None:
    if (op.kv_lora_rank, op.rope_dim) != _LATENT:
        raise NoOperatorDataError(f"latent attention of rank {op.kv_lora_rank} was not measured")


def _measured_projections(op: MlaOp) -> tuple[tuple[int, int], ...]:
    """(n, k) of the projections inside a measured module (DeepSeek-V3) with this many heads."""
    return ((2112, 7168), (op.heads * 192, 1536), (7168, op.heads * 128))


def _projection_difference(database: OperatorDatabase, op: MlaOp, rows: F64) -> tuple[F64, bool]:
    """What the model's own projections cost more than those inside the measured module, and whether they differ."""
    own = sorted((gemm.n, gemm.k) for gemm in op.projections)
    inside = sorted(_measured_projections(op))
    if own == inside or not op.projections:
        return np.zeros_like(rows), False
    points = tuple(rows.tolist())
    first = op.projections[0]
    cost = sum(gemm_rows(database, gemm, points).ms * gemm.count for gemm in op.projections)
    for n, k in inside:
        cost = cost - gemm_rows(database, _like(first, n, k), points).ms
    return np.asarray(cost), True


def _like(gemm: GemmOp, n: int, k: int) -> GemmOp:
    return replace(gemm, name="module", n=n, k=k, count=1.0)


def _text(database: OperatorDatabase, op: MlaOp, context: bool) -> str:
    from aiconfigurator_core.sdk import common, operations

    mode = common.GEMMQuantMode[_module_mode(op)]
    kv = common.KVCacheQuantMode["fp8" if op.kv_dtype == "fp8" else BF16]
    fmha = common.FMHAQuantMode[BF16]
    key = ("mla", context, op.heads, op.native_heads, mode.name, kv.name, op.topk, op.nope_dim)
    if op.topk is None:
        return database.serialise(
            key,
            lambda: operations.MLAModule(
                "attention", 1, context, op.heads, kv, fmha, mode, native_num_heads=op.native_heads
            ),
        )
    architecture = "GlmMoeDsaForCausalLM" if op.nope_dim == _GLM_NOPE else "DeepseekV32ForCausalLM"
    if context:
        return database.serialise(
            key,
            lambda: operations.ContextDSAModule("attention", 1, op.heads, kv, fmha, mode, architecture=architecture),
        )
    return database.serialise(
        key, lambda: operations.GenerationDSAModule("attention", 1, op.heads, kv, mode, architecture=architecture)
    )


def _evidence(op: MlaOp, differs: bool, stand_in: bool) -> tuple[Evidence, tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    if op.topk is None and differs:
        notes = ("latent attention from DeepSeek-V3 rows, its projections exchanged",)
    if stand_in:
        notes += ("latent attention over an FP8 cache timed by rows of a 16-bit cache",)
    return (Evidence.EXTRAPOLATED if notes else Evidence.SILICON), notes


def _with_rows(database: OperatorDatabase, op: MlaOp, context: bool) -> tuple[MlaOp, bool]:
    """``op``, or the same over a 16-bit cache when only that was measured, and whether it was exchanged."""
    try:
        database.time_ms(_text(database, op, context), context=context, batch=1, length=1024, tokens=1024)
    except NoOperatorDataError:
        if op.kv_dtype != "fp8":
            raise
        return replace(op, kv_dtype="bf16"), True
    return op, False


@lru_cache(maxsize=1024)
def mla_prefill(database: OperatorDatabase, op: MlaOp, tokens: tuple[float, ...], context: tuple[float, ...]) -> Timed:
    """Latent attention of one layer, projections included, on a (new tokens, mean keys) grid."""
    _check(op)
    op, stand_in = _with_rows(database, op, True)
    text = _text(database, op, True)
    point = _prefill_point if op.topk is None else _sparse_prefill_point
    ms = np.empty((len(tokens), len(context)))
    for i, new in enumerate(tokens):
        for j, keys in enumerate(context):
            ms[i, j] = point(database, text, new, keys)
    difference, differs = (np.zeros(len(tokens)), False)
    if op.topk is None:
        difference, differs = _projection_difference(database, op, np.array(tokens))
    ms = np.maximum(ms + difference[:, None], ms * 0.1)
    evidence, notes = _evidence(op, differs, stand_in)
    if op.topk is not None:
        ms, launched = _without_launches(database, op, tokens, context, ms)
        if launched:
            notes += ("sparse latent attention of few tokens by decode rows: those of prompts hold host launches",)
            evidence = Evidence.EXTRAPOLATED
    return Timed(monotone(ms), evidence, notes)


def _without_launches(
    database: OperatorDatabase, op: MlaOp, tokens: tuple[float, ...], context: tuple[float, ...], ms: F64
) -> tuple[F64, bool]:
    """Prompt rows, those bound by the host exchanged for decode rows of as many tokens, and whether any were.

    In the sparse module each token picks its own keys whatever prompt it belongs to, so a prompt of n tokens is the
    work of n decoding sequences. vLLM's prompt rows take 1.4-1.7 ms from one token to a thousand, whatever the heads
    and the GPU: their many kernels were launched one by one, and what a step waits for launches is counted apart. The
    decode rows ran from a graph.
    """
    widest = database.mla_grid(sparse=True)[-1][0]
    inside = [i for i, new in enumerate(tokens) if new <= widest]
    decoding = mla_decode(database, op, tuple(tokens[i] for i in inside), context).ms
    bound = ms[inside] > _LAUNCH_BOUND * decoding
    exchanged = ms.copy()
    exchanged[inside] = np.where(bound, decoding, ms[inside])
    return exchanged, bool(bound.any())


def _prefill_point(database: OperatorDatabase, text: str, new: float, keys: float) -> float:
    prompts, each, past = prefill_shape(new, keys)
    factor = 1.0
    if each + past > _LONGEST_PROMPT:
        allowed = max(0.0, _LONGEST_PROMPT - min(each, _LONGEST_PROMPT))
        shorter = min(each, _LONGEST_PROMPT)
        factor = each * keys / (shorter * (allowed + (shorter + 1) / 2))
        each, past = shorter, allowed
    return database.prompts_ms(text, prompts, each, past, factor)


def _sparse_prefill_point(database: OperatorDatabase, text: str, new: float, keys: float) -> float:
    """Sparse attention over past tokens from whole prompts: a token's work depends on its position alone.

    So new tokens after ``past`` take what a prompt of past and new takes more than one of ``past`` (the rows with a
    past hold one of 128 tokens at most, from which the package extrapolates).
    """
    _, each, past = prefill_shape(new, keys)
    if past <= 0.0:
        return _prefill_point(database, text, new, keys)
    longer = _whole_prompt_ms(database, text, past + each) - _whole_prompt_ms(database, text, past)
    return max(_whole_prompt_ms(database, text, each), longer)


def _whole_prompt_ms(database: OperatorDatabase, text: str, length: float) -> float:
    """One prompt; beyond the longest measured the parabola through it, its half and its quarter, for the indexer's
    work grows with the square."""
    if length <= _LONGEST_PROMPT:
        whole = max(1, round(length))
        return database.time_ms(text, context=True, batch=1, length=whole, tokens=whole)
    quarter, half, full = (_whole_prompt_ms(database, text, _LONGEST_PROMPT / part) for part in (4, 2, 1))
    beyond = length / _LONGEST_PROMPT - 1.0
    steepest = 2.0 * (full - half)
    curvature = max(0.0, (steepest - 4.0 * (half - quarter)) / 0.75)
    return full + (steepest + curvature * 0.5) * beyond + curvature * beyond**2


@lru_cache(maxsize=1024)
def mla_decode(database: OperatorDatabase, op: MlaOp, batch: tuple[float, ...], kv: tuple[float, ...]) -> Timed:
    """Latent attention of one layer, projections included, on a (batch, KV) grid; ``in_range`` per batch row."""
    _check(op)
    op, stand_in = _with_rows(database, op, False)
    text = _text(database, op, False)
    grid = database.mla_grid(sparse=op.topk is not None)
    limits = np.array([next((longest for b, longest in grid if b >= size), 0) for size in batch], dtype=np.float64)
    ms = np.empty((len(batch), len(kv)))
    for i, size in enumerate(batch):
        for j, length in enumerate(kv):
            ms[i, j] = _decode_point(database, text, grid, size, length)
    difference, differs = (np.zeros(len(batch)), False)
    if op.topk is None:
        difference, differs = _projection_difference(database, op, np.array(batch))
    ms = np.maximum(ms + difference[:, None], ms * 0.1)
    evidence, notes = _evidence(op, differs, stand_in)
    planning = _planning_ms(database, op)
    if planning > 0.0:
        ms = ms - planning
        notes += ("latent attention: planning that runs once a step was measured in every layer and is taken off",)
        evidence = Evidence.EXTRAPOLATED
    return Timed(monotone(ms), evidence, notes, limits)


def _planning_ms(database: OperatorDatabase, op: MlaOp) -> float:
    """What the rows of vLLM's FlashMLA module hold above TensorRT-LLM's at one short sequence.

    On Hopper 30-40 us, the same for 16 and 128 heads and for batch 1 and 128: the kernel's split planning, which the
    engine does once a step and the module's measurement in each layer. Real Kimi-K2.5 runs on H200 are as much faster.
    """
    if database.backend != "vllm" or op.topk is not None or not database.system.startswith("h"):
        return 0.0
    other = open_database(database.system, "tensorrt_llm")
    if other is None:
        return 0.0
    try:
        here, there = (
            source.time_ms(_text(source, op, False), context=False, batch=1, length=128) for source in (database, other)
        )
    except NoOperatorDataError:
        return 0.0
    return max(0.0, here - there)


def _decode_point(
    database: OperatorDatabase, text: str, grid: tuple[tuple[int, int], ...], batch: float, length: float
) -> float:
    """Inside the grid a row; beyond it the attention part grows with the total KV, from the widest batch measured."""
    limit = next((longest for b, longest in grid if b >= batch), 0)
    size, tokens = max(1, round(batch)), max(2, round(length))
    if length <= limit:
        return database.time_ms(text, context=False, batch=size, length=tokens)
    holding = [b for b, longest in grid if longest >= length and b <= batch]
    if not holding:
        longest = max(value for _, value in grid)
        near = _decode_point(database, text, grid, batch, min(length, longest) / 2)
        far = _decode_point(database, text, grid, batch, min(length, longest))
        return far + (far - near) * (length - longest) / (longest / 2) if length > longest else far
    widest = holding[-1]
    short = database.time_ms(text, context=False, batch=widest, length=2)
    full = database.time_ms(text, context=False, batch=widest, length=tokens)
    floor = database.time_ms(text, context=False, batch=size, length=2) if batch <= grid[-1][0] else short
    return floor + (full - short) * batch / widest

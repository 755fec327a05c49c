"""The numba kernel that turns step tables into a time. Called once an iteration by the simulator."""

from __future__ import annotations

import numpy as np

from planner.compiling import compiled, part


@part
def _bracket(axis: np.ndarray, x: float) -> int:
    """Index i with axis[i] <= x < axis[i + 1], kept inside so that both ends extrapolate from their last segment."""
    low = 0
    high = axis.size - 1
    while high - low > 1:
        mid = (low + high) >> 1
        if axis[mid] <= x:
            low = mid
        else:
            high = mid
    return low


@part
def interp1(axis: np.ndarray, values: np.ndarray, x: float) -> float:
    """Linear interpolation; linear extrapolation above, clamped below the first point."""
    if axis.size == 1:
        return values[0]
    if x <= axis[0]:
        return values[0]
    i = _bracket(axis, x)
    t = (x - axis[i]) / (axis[i + 1] - axis[i])
    return values[i] + t * (values[i + 1] - values[i])


@part
def interp2(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, r: float, c: float) -> float:
    """Bilinear interpolation; linear extrapolation above, clamped below the first row and column."""
    r = max(r, rows[0])
    c = max(c, cols[0])
    i = _bracket(rows, r)
    j = _bracket(cols, c)
    u = (r - rows[i]) / (rows[i + 1] - rows[i])
    v = (c - cols[j]) / (cols[j + 1] - cols[j])
    low = values[i, j] + v * (values[i, j + 1] - values[i, j])
    high = values[i + 1, j] + v * (values[i + 1, j + 1] - values[i + 1, j])
    return low + u * (high - low)


@part
def host_floor_ms(
    graph_sizes: np.ndarray,
    host_ms: float,
    host_ms_per_sequence: float,
    launch_ms: float,
    new_tokens: float,
    prompts: float,
    batch: float,
) -> float:
    """The host's own time for a step of ``prompts`` prompts and ``batch`` decodes, in ms (see ``StepTables``)."""
    host = host_ms + host_ms_per_sequence * (prompts + batch)
    if new_tokens > 0.0 and (graph_sizes.size == 0 or new_tokens + batch > graph_sizes[-1]):
        host = max(host, launch_ms)
    return host


@compiled
def step_ms(
    shared_tokens: np.ndarray,
    shared_ms: np.ndarray,
    head_seqs: np.ndarray,
    head_ms: np.ndarray,
    prefill_tokens: np.ndarray,
    prefill_context: np.ndarray,
    prefill_ms: np.ndarray,
    decode_batch: np.ndarray,
    decode_kv: np.ndarray,
    decode_ms: np.ndarray,
    fixed_ms: float,
    graph_sizes: np.ndarray,
    host_ms: float,
    host_ms_per_sequence: float,
    launch_ms: float,
    mixed_rows: float,
    new_tokens: float,
    prompts: float,
    pairs: float,
    batch: float,
    kv_total: float,
) -> float:
    """Time of one iteration in ms.

    ``new_tokens`` prefill tokens of ``prompts`` prompts, ``pairs`` the sum over them of keys attended to; ``batch``
    decoding sequences whose KV lengths add up to ``kv_total``. A pure-decode batch pads up to the next captured graph
    size. In a step with prompts a decode costs at least ``mixed_rows`` rows of prefill attention over its keys. The
    host's own time is a floor (see ``StepTables``).
    """
    if new_tokens <= 0.0 and batch <= 0.0:
        return 0.0
    padded = batch
    if new_tokens <= 0.0 and graph_sizes.size > 0 and batch <= graph_sizes[-1]:
        padded = graph_sizes[np.searchsorted(graph_sizes, batch)]
    total = fixed_ms + interp1(shared_tokens, shared_ms, new_tokens + padded)
    total += interp1(head_seqs, head_ms, prompts + padded)
    if new_tokens > 0.0:
        total += interp2(prefill_tokens, prefill_context, prefill_ms, new_tokens, pairs / new_tokens)
    if batch > 0.0:
        decode = interp2(decode_batch, decode_kv, decode_ms, batch, kv_total / batch)
        if new_tokens > 0.0 and mixed_rows > 0.0:
            tiles = interp2(prefill_tokens, prefill_context, prefill_ms, mixed_rows * batch, kv_total / batch)
            decode = max(decode, tiles)
        total += decode
    host = host_floor_ms(graph_sizes, host_ms, host_ms_per_sequence, launch_ms, new_tokens, prompts, batch)
    return max(total, host)

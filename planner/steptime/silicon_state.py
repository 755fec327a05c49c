"""Recurrent mixers (gated delta rule, Mamba-2) from measured kernels; their projections are ordinary GEMMs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.evidence import Evidence
from planner.steptime.database import BACKENDS, NoOperatorDataError, OperatorDatabase, open_database
from planner.steptime.graph import StateOp
from planner.steptime.sources import F64, Timed, monotone

_CONV_TAPS = 4
_LONGEST_PROMPT = 32768
_LARGEST_BATCH = 1024
_GDN = {True: ("causal_conv1d_fn", "chunk_gated_delta_rule")}
_GDN[False] = ("causal_conv1d_update", "fused_sigmoid_gating_delta_rule_update")
_MAMBA2 = {True: ("causal_conv1d_fn", "mamba_chunk_scan_combined")}
_MAMBA2[False] = ("causal_conv1d_update", "selective_state_update")
_CHUNK = 128  # tokens a Mamba-2 scan works on at once in every measured model but the generic ones


@lru_cache(maxsize=512)
def state_prefill(
    database: OperatorDatabase, op: StateOp, tokens: tuple[float, ...], context: tuple[float, ...]
) -> Timed:
    """Recurrent mixer of one layer on a (new tokens, mean keys) grid: linear in the tokens, whatever came before."""
    source, evidence, notes = _source(database, op, True)
    texts = _texts(source, op, True)
    column = np.empty(len(tokens))
    for i, new in enumerate(tokens):
        length = min(new, float(_LONGEST_PROMPT))
        column[i] = sum(_prefill_ms(source, text, length) for text in texts) * new / length
    return Timed(np.repeat(monotone(column)[:, None], len(context), axis=1), evidence, notes)


def _prefill_ms(source: OperatorDatabase, text: str, length: float) -> float:
    whole = max(1, round(length))
    return source.time_ms(text, context=True, batch=1, length=whole, tokens=whole)


@lru_cache(maxsize=512)
def state_decode(database: OperatorDatabase, op: StateOp, batch: tuple[float, ...], kv: tuple[float, ...]) -> Timed:
    """Recurrent mixer of one layer on a (batch, KV) grid: the state has one size, so the KV length does not matter."""
    source, evidence, notes = _source(database, op, False)
    texts = _texts(source, op, False)
    column: F64 = np.empty(len(batch))
    for i, size in enumerate(batch):
        inside = max(1, round(min(size, _LARGEST_BATCH)))
        column[i] = sum(source.time_ms(t, context=False, batch=inside, length=1, tokens=inside) for t in texts)
        column[i] *= size / inside
    return Timed(np.repeat(monotone(column)[:, None], len(kv), axis=1), evidence, notes, np.full(len(batch), np.inf))


def _source(
    database: OperatorDatabase, op: StateOp, context: bool
) -> tuple[OperatorDatabase, Evidence, tuple[str, ...]]:
    """This engine's rows, or else the other engine's; raises NoOperatorDataError when neither has the shape."""
    other = next(engine for engine, backend in BACKENDS.items() if backend != database.backend)
    first: NoOperatorDataError | None = None
    for candidate in (database, open_database(database.system, other)):
        if candidate is None:
            continue
        try:
            for text in _texts(candidate, op, context):
                candidate.time_ms(
                    text, context=context, batch=1, length=64 if context else 1, tokens=64 if context else 1
                )
        except NoOperatorDataError as error:
            first = first or error
            continue
        if candidate is database:
            return candidate, Evidence.SILICON, ()
        return candidate, Evidence.EXTRAPOLATED, (f"{op.kind} kernels timed by rows of {candidate.backend}",)
    raise first or NoOperatorDataError(f"no {op.kind} rows on {database.system}")


def _texts(database: OperatorDatabase, op: StateOp, context: bool) -> list[str]:
    from aiconfigurator_core.sdk import operations

    phase = "context" if context else "generation"
    width = op.heads * op.head_dim
    channels = op.conv_elements / (_CONV_TAPS - 1)
    if op.kind == "gdn":
        key_dim = round(op.state_elements / width)
        key_heads = max(1, round((channels - width) / (2 * key_dim)))
        return [
            database.serialise(
                ("gdn", op.hidden, key_heads, key_dim, op.heads, op.head_dim, name, phase),
                lambda name=name: operations.GDNKernel(
                    name, 1, name, phase, op.hidden, key_heads, key_dim, op.heads, op.head_dim, _CONV_TAPS
                ),
            )
            for name in _GDN[context]
        ]
    if op.kind == "mamba2":
        state = round(op.state_elements / width)
        groups = max(1, round((channels - width) / (2 * state)))
        return [
            database.serialise(
                ("mamba2", op.hidden, op.heads, op.head_dim, state, groups, name, phase),
                lambda name=name: operations.Mamba2Kernel(
                    name, 1, name, phase, op.hidden, op.heads, op.head_dim, state, _CONV_TAPS, groups, _CHUNK
                ),
            )
            for name in _MAMBA2[context]
        ]
    raise NoOperatorDataError(f"{op.kind} kernels were not measured on {database.system}")

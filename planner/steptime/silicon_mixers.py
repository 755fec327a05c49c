"""Latent attention and recurrent mixers from measured kernels."""

from __future__ import annotations

from planner.steptime.database import NoOperatorDataError, OperatorDatabase
from planner.steptime.graph import MlaOp, StateOp
from planner.steptime.sources import Timed


def mla_prefill(database: OperatorDatabase, op: MlaOp, tokens: tuple[float, ...], context: tuple[float, ...]) -> Timed:
    """Latent attention of one layer on a (new tokens, mean keys) grid."""
    raise NoOperatorDataError("latent attention tables are not read yet")


def mla_decode(database: OperatorDatabase, op: MlaOp, batch: tuple[float, ...], kv: tuple[float, ...]) -> Timed:
    """Latent attention of one layer on a (batch, KV) grid."""
    raise NoOperatorDataError("latent attention tables are not read yet")


def state_prefill(
    database: OperatorDatabase, op: StateOp, tokens: tuple[float, ...], context: tuple[float, ...]
) -> Timed:
    """Recurrent mixer of one layer on a (new tokens, mean keys) grid."""
    raise NoOperatorDataError("recurrent mixer tables are not read yet")


def state_decode(database: OperatorDatabase, op: StateOp, batch: tuple[float, ...], kv: tuple[float, ...]) -> Timed:
    """Recurrent mixer of one layer on a (batch, KV) grid."""
    raise NoOperatorDataError("recurrent mixer tables are not read yet")

"""The inside of a unit of prefill and decode pools over a run: what waits, runs, is transferred, and fills the cache.

Where a request is comes from the times at which it went from one pool to the next, so that none is in two places or in
none. How many of those in a pool are in its batch, and what they hold of the KV cache, is what each engine's own
samples say (``simulator.sampled``), one for every step or leap over equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.serving.engine import InstanceRun
from planner.serving.simulator import TIMELINE_ROWS, sampled
from planner.serving.types import F64, I64, Timeline, UnitTimeline

POINTS = 1024
"""Times at which a unit is looked at."""

ROWS_EACH = 8
"""Rows of an engine's timeline for each request, enough for most of what happens to it: a prompt shorter than
the time between two rows would seem to wait while it runs."""


def rows_for(requests: int) -> int:
    """Rows of the timeline of an engine that gets ``requests``."""
    return TIMELINE_ROWS + ROWS_EACH * requests


@dataclass(frozen=True, eq=False)
class PoolStay:
    """Requests in one pool: when each came and left (ms), who had it, and the engines that had any, ascending."""

    came: F64
    left: F64
    owner: I64
    engines: Sequence[InstanceRun]


def unit_timeline(prefill: PoolStay, decode: PoolStay) -> UnitTimeline:
    """Both pools at ``POINTS`` equal steps from the first request to the last token.

    A request comes to prefill when it is sent, leaves with its first token, comes to decode with the last byte of its
    cache and leaves with its last token; front ends and proxies count to where they stand. Occupancy is of the blocks
    that the scheduler gives out: what a transfer holds beside them is taken out of the pool.
    """
    at = np.linspace(float(prefill.came.min()), float(decode.left.max()), POINTS)
    between = _by_then(prefill.left, at) - _by_then(decode.came, at)
    return UnitTimeline(prefill=_pool(prefill, at), transferring=between, decode=_pool(decode, at))


def _by_then(times: F64, at: F64) -> I64:
    """How many of ``times`` have passed at each of ``at``."""
    return np.searchsorted(np.sort(times), at, side="right").astype(np.int64)


def _pool(stay: PoolStay, at: F64) -> Timeline:
    running, inside = np.zeros(at.size, dtype=np.int64), np.zeros(at.size, dtype=np.int64)
    used, live = np.zeros(at.size), np.zeros(at.size)
    for number, engine in zip(np.unique(stay.owner), stay.engines, strict=True):
        own = stay.owner == number
        here = _by_then(stay.came[own], at) - _by_then(stay.left[own], at)
        seen = sampled(engine)
        last = np.searchsorted(seen.t_s, at / 1000.0, side="right") - 1
        held = np.where(last >= 0, seen.running[last], 0)
        inside += here
        running += np.minimum(held, here)  # who left since the last sample runs no more
        # grows evenly over a leap, and starts from nothing after a pause
        used += np.where(held > 0, np.interp(at / 1000.0, seen.t_s, seen.kv_used), 0.0)
        live += np.where(held > 0, np.interp(at / 1000.0, seen.t_s, seen.live_kv), 0.0)
    count = len(stay.engines)  # equal engines: the pool's share is their mean
    return Timeline(
        t_s=at / 1000.0, running=running, waiting=inside - running, kv_used=used / count, live_kv=live / count
    )

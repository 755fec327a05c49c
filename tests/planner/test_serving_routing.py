"""How far replicas may run before the next turn of a session can arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.serving import routing

pause_class, shortest_ms = routing._pause_class.py_func, routing._shortest_ms.py_func


@given(st.floats(0.0, 1e9))
def test_classes_of_pauses_are_powers_of_two(pause_ms: float) -> None:
    found = pause_class(pause_ms)
    low = 0.0 if found == 0 else 2.0 ** (found - 1)
    assert low <= pause_ms < max(1.0, 2.0 * low)


@given(st.lists(st.floats(0.0, 1e8), min_size=1, max_size=50))
def test_the_bound_is_below_every_pause_and_above_half_of_the_shortest(pauses: list[float]) -> None:
    counts = np.zeros(routing.PAUSES, dtype=np.int64)
    for pause in pauses:
        counts[pause_class(pause)] += 1
    bound = shortest_ms(counts)
    assert bound <= min(pauses)
    assert bound > min(pauses) / 2.0 or min(pauses) < 1.0


def test_nobody_who_comes_back_bounds_nothing() -> None:
    assert shortest_ms(np.zeros(routing.PAUSES, dtype=np.int64)) == pytest.approx(np.inf)

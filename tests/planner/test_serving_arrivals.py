"""Lengths as drawn: the mean and the spread that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.serving.arrivals import draw_tokens
from planner.serving.types import Lengths


@pytest.mark.parametrize(("mean", "sd"), [(200.0, 200.0), (200.0, 20.0), (1850.0, 900.0)])
def test_drawn_lengths_keep_mean_and_spread(mean: float, sd: float) -> None:
    drawn = draw_tokens(Lengths("normal", mean=mean, sd=sd), 200_000, np.random.default_rng(3), None, "output_tokens")
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.std() == pytest.approx(sd, rel=0.02)


def test_a_spread_as_large_as_the_mean_is_exponential() -> None:
    drawn = draw_tokens(
        Lengths("normal", mean=200.0, sd=200.0), 200_000, np.random.default_rng(3), None, "output_tokens"
    )
    assert np.median(drawn) == pytest.approx(200.0 * np.log(2.0), rel=0.02)
    assert np.percentile(drawn, 99) == pytest.approx(200.0 * np.log(100.0), rel=0.02)


@given(st.floats(1.0, 1e4), st.floats(0.0, 2e4))
def test_lengths_are_never_below_one_token(mean: float, sd: float) -> None:
    drawn = draw_tokens(Lengths("normal", mean=mean, sd=sd), 50, np.random.default_rng(0), None, "output_tokens")
    assert drawn.min() >= 1
    if sd <= 1e-4 * mean:
        assert set(drawn.tolist()) == {round(mean)}

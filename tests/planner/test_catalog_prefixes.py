"""Prefix blocks of traces: their share against a count by hand, and the size of a block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.prefixes import BLOCK_SIZES, block_tokens_of, prefix_share


def test_a_block_counts_when_all_before_it_were_there() -> None:
    blocks = [[1, 2, 3], [1, 9, 3], [1, 2, 3]]
    assert prefix_share([30, 30, 25], blocks, 10) == pytest.approx((10 + 25) / 85)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12))
def test_share_equals_the_longest_common_beginning_where_ids_name_beginnings(texts: list[list[int]]) -> None:
    """With an id for each beginning, what is found is the longest beginning shared with any earlier prompt."""
    ids = [[tuple(text[: n + 1]) for n in range(len(text))] for text in texts]
    found = 0
    for i, text in enumerate(texts):
        shared = [0]
        for other in texts[:i]:
            same = 0
            while same < min(len(text), len(other)) and text[same] == other[same]:
                same += 1
            shared.append(same)
        found += max(shared)
    lengths = [16 * len(text) for text in texts]
    assert prefix_share(lengths, ids, 16) == pytest.approx(16 * found / sum(lengths))


@given(st.sampled_from(BLOCK_SIZES), st.lists(st.integers(2000, 100_000), min_size=3, max_size=30), st.booleans())
def test_the_size_of_a_block_is_found(size: int, lengths: list[int], begun: bool) -> None:
    inputs = np.array(lengths)
    counts = -(-inputs // size) if begun else inputs // size
    assert block_tokens_of(inputs, counts) == size
    assert block_tokens_of(inputs, inputs) is None

"""Prefix blocks of a trace: equal ids are equal tokens after an equal beginning (Mooncake's ``hash_ids``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens of a block that are looked for; 512 first, as in the traces of kvcache-ai/Mooncake."""


def prefix_share(input_tokens: Iterable[int], blocks: Iterable[Sequence[Hashable]], block_tokens: int) -> float:
    """Share of prompt tokens in leading blocks that an earlier request had already: what an unbounded prefix cache of
    one instance would hold. Requests in order of arrival.
    """
    seen: set[Hashable] = set()
    hit = total = 0
    for length, own in zip(input_tokens, blocks, strict=True):
        total += int(length)
        leading = 0
        for block in own:
            if block not in seen:
                break
            leading += 1
        hit += min(leading * block_tokens, int(length))
        seen.update(own)
    return hit / total if total else 0.0


def block_tokens_of(input_tokens: NDArray[np.int64], counts: NDArray[np.int64]) -> int | None:
    """Tokens of a block by how many blocks the prompts have, the last block whole or begun; None where no size fits."""
    for size in BLOCK_SIZES:
        if ((counts == input_tokens // size) | (counts == -(-input_tokens // size))).all():
            return size
    return None

"""What a pool of KV blocks looks like: the groups of layers, their pages, and how many blocks a request holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

CROSS_ATTENTION_TOKENS = 1500  # Whisper's encoder; used when the configuration names no length


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One block table of the engine: ``layers`` real layers in ``KvLayout.slots`` slots.

    ``kind`` full, sliding, chunked, cross or state; ``window`` in tokens; ``block_tokens`` tokens of one block;
    ``share`` bytes of its layers' pages over those of the first group, by which vLLM weighs it in its concurrency.
    """

    kind: str
    layers: int
    block_tokens: int
    window: int | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The pool of one rank.

    ``block_bytes`` of one pool block: ``slots`` layers x ``page_bytes``. ``state_blocks`` blocks that a recurrent group
    holds per sequence. ``in_flight_tokens`` how many new tokens may lie beyond a sliding window.
    ``padding_layers`` slots without a layer; ``padded_share`` bytes of the pool that padding wastes.
    """

    groups: tuple[KvGroup, ...]
    slots: int
    page_bytes: float
    block_bytes: float
    state_blocks: int
    state_bytes_per_seq: float
    in_flight_tokens: int
    padding_layers: int
    padded_share: float
    main_block_tokens: int = 0  # where the smallest block belongs to a state, the attention layers' one

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block, the unit in which vLLM prints its pool."""
        return self.main_block_tokens or min((group.block_tokens for group in self.groups), default=0)

    def blocks_for(self, length: int) -> int:
        """Pool blocks that one request of ``length`` tokens holds at most."""
        return sum(self._group_blocks(group, length) for group in self.groups)

    def counted_for(self, length: int) -> int:
        """Blocks that vLLM counts for a request of ``length`` tokens in its concurrency: groups weighed by bytes."""
        return math.ceil(sum(group.share * self._group_blocks(group, length) for group in self.groups) - 1e-9)

    def running_for(self, length: int) -> int:
        """Blocks that a request of ``length`` tokens holds once its prompt is done: of a window no more than it spans.

        ``blocks_for`` adds what one step may bring in before the rest is given back.
        """
        return sum(self._group_blocks(group, length, in_flight=1) for group in self.groups)

    def _group_blocks(self, group: KvGroup, length: int, in_flight: int | None = None) -> int:
        pending = self.in_flight_tokens if in_flight is None else min(in_flight, self.in_flight_tokens)
        size = group.block_tokens
        if group.kind == "state":
            return self.state_blocks
        if group.kind == "sliding" and group.window is not None:
            return math.ceil(min(group.window - 1 + pending, length) / size) + 1
        if group.kind == "chunked" and group.window is not None:
            return math.ceil(min(group.window + pending, length) / size)
        if group.kind == "cross":
            return math.ceil((group.window or CROSS_ATTENTION_TOKENS) / size)
        return math.ceil(length / size)

    def longest_for(self, blocks: int, limit: int) -> int:
        """Longest request, at most ``limit`` tokens, that ``blocks`` blocks hold; 0 when not even one token fits."""
        if not self.groups:
            return limit
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

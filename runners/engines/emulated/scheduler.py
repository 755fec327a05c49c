"""Continuous batching of one emulated engine: which sequences take part in the next step, and what it yields.

The rules are those of ``planner.serving``'s simulator: running sequences first in order of admission, then waiting ones
within the token budget, the sequence limit and the KV blocks. vLLM preempts the last admitted by recompute;
TensorRT-LLM reserves a request's whole output on admission (``Limits.reserve_output``). Nothing here knows of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from runners.engines.emulated.spec import Limits


@dataclass(eq=False, slots=True)
class Sequence:
    """One request. ``computed`` tokens have their KV; ``target`` of them must before the next token is sampled."""

    prompt_tokens: int
    max_tokens: int
    arrived: float
    on_token: Callable[[bool], None]
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    target: int = 0
    cached: int = 0
    admitted: bool = False
    first_scheduled: float | None = None
    first_token: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: ``chunks`` are (sequence, new prefill tokens), ``decodes`` sequences that yield one token each.

    ``pairs`` sums, over all new prefill tokens, the keys each attends to; ``kv_total`` the KV lengths of the decodes.
    """

    chunks: tuple[tuple[Sequence, int], ...]
    decodes: tuple[Sequence, ...]
    new_tokens: int
    pairs: float
    kv_total: int


@dataclass(eq=False, slots=True)
class Scheduler:
    """State of the engine's queues and KV pool. Counters only rise."""

    limits: Limits
    prefix_hit: float = 0.0
    pp: int = 1  # as many micro-batches are under way as there are pipeline stages: one turn of them is a step here
    waiting: deque[Sequence] = field(default_factory=deque)
    running: dict[Sequence, None] = field(default_factory=dict)  # in order of admission
    used_blocks: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds."""
        return self.limits.kv_blocks - self.used_blocks

    def fits(self, prompt_tokens: int, max_tokens: int) -> bool:
        """Whether such a request can run at all, with the pool for itself alone."""
        return self._blocks(prompt_tokens + max_tokens) <= self.limits.kv_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that has reached the engine."""
        sequence.target = sequence.prompt_tokens
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence whose client has gone."""
        if sequence in self.running:
            del self.running[sequence]
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self, horizon: float) -> Batch | None:
        """The next step over what had arrived by ``horizon``; None when there is nothing to do."""
        budget = self.limits.max_num_batched_tokens * self.pp
        chunks: list[tuple[Sequence, int]] = []
        decodes: list[Sequence] = []
        preempted_before = self.preemptions
        for sequence in list(self.running):
            if budget <= 0:
                break
            if sequence not in self.running:  # preempted to make room for one before it
                continue
            left = sequence.target - sequence.computed
            new = min(left, budget) if left > 0 else 1
            if not self._make_room(sequence, sequence.computed + new):
                break
            budget -= new
            if left > 0:
                chunks.append((sequence, new))
            else:
                decodes.append(sequence)
        if self.preemptions == preempted_before:
            self._admit(horizon, budget, chunks)
        chunks = [item for item in chunks if item[0] in self.running]
        decodes = [sequence for sequence in decodes if sequence in self.running]
        if not chunks and not decodes:
            return None
        return Batch(
            chunks=tuple(chunks),
            decodes=tuple(decodes),
            new_tokens=sum(new for _, new in chunks),
            pairs=sum(new * sequence.computed + new * (new + 1) / 2 for sequence, new in chunks),
            kv_total=sum(sequence.computed + 1 for sequence in decodes),
        )

    def apply(self, batch: Batch) -> list[tuple[Sequence, bool]]:
        """Do the step: returns the sequences that yield a token, each with whether it was the last."""
        yielded: list[Sequence] = []
        for sequence, new in batch.chunks:
            sequence.computed += new
            if sequence.computed >= sequence.target:
                yielded.append(sequence)
        for sequence in batch.decodes:
            sequence.computed += 1
            yielded.append(sequence)
        events = []
        for sequence in yielded:
            if sequence not in self.running:
                continue
            sequence.generated += 1
            sequence.target = sequence.computed
            finished = sequence.generated >= sequence.max_tokens
            if finished:
                del self.running[sequence]
                self._release(sequence)
            events.append((sequence, finished))
        return events

    def _admit(self, horizon: float, budget: int, chunks: list[tuple[Sequence, int]]) -> None:
        limits = self.limits
        most = limits.max_num_seqs * self.pp if limits.reserve_output else limits.max_num_seqs
        while self.waiting and budget > 0 and len(self.running) < most:
            sequence = self.waiting[0]
            if sequence.arrived > horizon:
                return
            total = sequence.prompt_tokens + sequence.generated
            cached = self._cached(total)
            new = total - cached
            if new > budget and not limits.chunked_prefill:
                return
            new = min(new, budget)
            reserve = sequence.prompt_tokens + sequence.max_tokens if limits.reserve_output else total
            if self._blocks(reserve) > self.free_blocks:
                return
            self.waiting.popleft()
            if not sequence.admitted:
                self.prefix_queries += sequence.prompt_tokens if limits.prefix_caching else 0
                self.prefix_hits += cached
            sequence.admitted, sequence.cached = True, cached
            sequence.computed, sequence.target = cached, total
            self._grow(sequence, reserve if limits.reserve_output else cached + new)
            self.running[sequence] = None
            chunks.append((sequence, new))
            budget -= new

    def _cached(self, total: int) -> int:
        if not self.limits.prefix_caching or self.prefix_hit <= 0.0:
            return 0
        block = self.limits.block_tokens
        return min(int(self.prefix_hit * total), total - 1) // block * block

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        need = max(self._blocks(tokens) - sequence.blocks, 0)
        sequence.blocks += need
        self.used_blocks += need

    def _release(self, sequence: Sequence) -> None:
        self.used_blocks -= sequence.blocks
        sequence.blocks = 0

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Get the blocks for ``tokens``, preempting the last admitted; False when the sequence itself had to go."""
        while self._blocks(tokens) - sequence.blocks > self.free_blocks:
            victim, _ = self.running.popitem()
            self._release(victim)
            self.preemptions += 1
            victim.computed = 0
            victim.target = victim.prompt_tokens + victim.generated
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        self._grow(sequence, tokens)
        return True

"""The emulated engine in real time: steps follow one another on an absolute clock, tokens go out when their step
ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from planner.serving.step import iteration_ms
from planner.steptime.types import kernel_args
from runners.engines.emulated.metrics import EngineMetrics
from runners.engines.emulated.scheduler import Batch, Scheduler, Sequence
from runners.engines.emulated.spec import EmulationSpec


class EmulatedEngine:
    """Scheduler, clock and counters of one engine. All methods run in one event loop."""

    def __init__(self, spec: EmulationSpec, metrics: EngineMetrics) -> None:
        self.spec = spec
        self.metrics = metrics
        self.scheduler = Scheduler(spec.limits, spec.prefix_hit, spec.tables.pp)
        self.iterations: deque[dict[str, Any]] = deque(maxlen=1000)
        self._tables = kernel_args(spec.tables)
        self._arrived = asyncio.Event()
        self._tokens_sent = 0
        self._steps = 0

    def warm_up(self) -> None:
        """Compile the step-time kernel before the first request."""
        self._step_ms(1.0, 1.0, 1.0, 1.0, 1.0)

    def submit(self, prompt_tokens: int, max_tokens: int, on_token: Callable[[bool], None]) -> Sequence:
        """Queue a request; ``on_token(last)`` is called for each of its tokens."""
        front = self.spec.front_end
        delay_ms = front.request_ms + front.request_ms_per_1k_tokens * prompt_tokens / 1000
        sequence = Sequence(prompt_tokens, max_tokens, time.perf_counter(), on_token)
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._enter, sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Forget a request."""
        self.scheduler.drop(sequence)
        self.metrics.forget(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self.metrics.entered(sequence, time.perf_counter())
        sequence.arrived = time.perf_counter()
        self.scheduler.add(sequence)
        self._arrived.set()

    def batch_ms(self, batch: Batch) -> float:
        """Time of one step in ms, by the planner's kernel."""
        prompts = float(len(batch.chunks))
        decodes = float(len(batch.decodes))
        time_ms = self._step_ms(float(batch.new_tokens), prompts, float(batch.pairs), decodes, float(batch.kv_total))
        return time_ms * self.spec.faults.slow_factor

    def _step_ms(self, *step: float) -> float:
        args: tuple = (self._tables, self.spec.tables.pp, self.spec.limits.max_num_batched_tokens, *step)
        return float(iteration_ms(*args))

    async def run(self) -> None:
        """Step for ever. A step may take what had arrived when the step before it was launched (async scheduling)."""
        ends = launched = time.perf_counter()
        while True:
            now = time.perf_counter()
            batch = self.scheduler.schedule(launched if self.spec.limits.async_scheduling else now)
            batch = batch or self.scheduler.schedule(now)
            if batch is None:
                self._show(None)
                self._arrived.clear()
                await self._arrived.wait()
                ends = launched = time.perf_counter()
                continue
            launched = max(ends, launched)
            self._first_scheduled(batch, launched)
            duration_s = self.batch_ms(batch) / 1000
            ends = launched + duration_s
            self._show(batch)
            await asyncio.sleep(max(ends - time.perf_counter(), 0.0))
            self._finish(batch, duration_s)
            # After a stall of the host the clock starts anew: late steps are not made up for.
            ends = max(ends, time.perf_counter() - 0.05)

    def _first_scheduled(self, batch: Batch, at: float) -> None:
        for sequence, _ in batch.chunks:
            if sequence.first_scheduled is None:
                sequence.first_scheduled = at

    def _finish(self, batch: Batch, duration_s: float) -> None:
        events = self.scheduler.apply(batch)
        self._steps += 1
        self._note(batch, duration_s)
        asyncio.get_running_loop().call_later(self.spec.front_end.response_ms / 1000, self._deliver, events)

    def _deliver(self, events: list[tuple[Sequence, bool]]) -> None:
        now = time.perf_counter()
        for sequence, last in events:
            self.metrics.token(sequence, now, last)
            sequence.on_token(last)
        self._tokens_sent += len(events)
        limit = self.spec.faults.die_after_tokens
        if limit and self._tokens_sent >= limit:
            print("[emulated] dying on purpose", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def _show(self, batch: Batch | None) -> None:
        used = self.scheduler.used_blocks / self.spec.limits.kv_blocks
        self.metrics.state(len(self.scheduler.running), len(self.scheduler.waiting), used)
        self.metrics.counters(self.scheduler)

    def _note(self, batch: Batch, duration_s: float) -> None:
        if self.spec.acts_as != "tensorrt_llm":
            return
        blocks = self.spec.limits.kv_blocks
        self.iterations.append(
            {
                "iter": self._steps,
                "iterLatencyMS": duration_s * 1000,
                "numActiveRequests": len(self.scheduler.running),
                "numQueuedRequests": len(self.scheduler.waiting),
                "kvCacheStats": {
                    "maxNumBlocks": blocks,
                    "usedNumBlocks": self.scheduler.used_blocks,
                    "freeNumBlocks": self.scheduler.free_blocks,
                    "tokensPerBlock": self.spec.limits.block_tokens,
                },
                "inflightBatchingStats": {
                    "numContextRequests": len(batch.chunks),
                    "numGenRequests": len(batch.decodes),
                    "numCtxTokens": batch.new_tokens,
                },
                "emulated": True,
            }
        )

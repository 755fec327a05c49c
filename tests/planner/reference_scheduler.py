"""A slow, plain scheduler that walks every request in every step: the oracle for the numba kernel.

Same rules as ``planner.serving.kernel``, but no aggregates, no heap, no leaps, and a pool that names every block. Only
for speculative gain 1 and pp 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.serving.arrivals import RequestSet
from planner.serving.engine import InstanceRules
from planner.steptime.kernel import step_ms
from planner.steptime.types import FrontEnd, StepModel, kernel_args


class BlockPool:
    """Every KV block, free or not, as vLLM's ``block_pool.py`` keeps them: freed at the tail, handed out at the head.

    ``kept`` says where the blocks of a request are that still hold what it computed, by request and position.
    """

    def __init__(self, blocks: int, partial_first: bool) -> None:
        self.partial_first = partial_first
        self.free: deque[int] = deque(range(blocks))
        self.content: dict[int, tuple[int, int]] = {}
        self.kept: dict[tuple[int, int], int] = {}

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks; what they held is lost."""
        taken = [self.free.popleft() for _ in range(count)]
        for block in taken:
            if block in self.content:
                del self.kept[self.content.pop(block)]
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        """Take blocks back, a request's last first; those that hold nothing whole at the head if so."""
        head = [block for block in blocks if self.partial_first and block not in self.content]
        self.free.extendleft(head)
        self.free.extend(block for block in reversed(blocks) if block not in head)

    def fill(self, request: int, blocks: Sequence[int], full: int) -> None:
        """The first ``full`` of ``blocks`` now hold the whole of what ``request`` has there."""
        for position, block in enumerate(blocks[:full]):
            self.content[block] = (request, position)
            self.kept[request, position] = block

    def resume(self, request: int, most: int) -> list[int]:
        """The leading blocks, at most ``most``, that still hold what ``request`` computed."""
        found: list[int] = []
        while len(found) < most and (request, len(found)) in self.kept:
            found.append(self.kept[request, len(found)])
        return found


@dataclass(eq=False)
class Request:
    """One request on its way."""

    index: int
    sent: float
    visible: float
    prompt: int
    output: int
    hit: int
    generated: int = 0  # tokens made before the current pass over the prompt
    computed: int = 0
    made: int = 0  # tokens made in this pass
    blocks: list[int] = field(default_factory=list)
    state: str = "waiting"  # waiting, prefill, decode, finishing, done
    first: float | None = None
    done_at: float | None = None
    preempted: int = 0

    @property
    def length(self) -> int:
        """Tokens that a prefill has to compute: the prompt and, after a preemption, what was generated."""
        return self.prompt + self.generated


@dataclass
class Step:
    """What one iteration runs."""

    ms: float = 0.0
    decodes: list[Request] = field(default_factory=list)
    firsts: list[Request] = field(default_factory=list)
    finishing: list[Request] = field(default_factory=list)
    prompts: int = 0
    empty: bool = True


class ReferenceScheduler:
    """Runs a request set to the end; ``finished`` holds the requests in order of completion."""

    def __init__(self, step: StepModel, rules: InstanceRules, requests: RequestSet) -> None:
        self.step, self.rules, self.policy = step, rules, rules.policy
        self.front: FrontEnd = step.front_end
        self.tables = kernel_args(step.tables)
        self.pool = BlockPool(rules.pool_blocks, rules.policy.partial_blocks_first)
        self.prefilled = 0.0
        self.running: list[Request] = []
        self.waiting: list[Request] = []  # preempted ones, front first
        self.closed = requests.closed
        self.finished: list[Request] = []
        self.preemptions = 0
        self.front_done = 0.0
        self.made: tuple[float, ...] = ()  # what the last planned step was timed as
        self.future: list[Request] = []
        todo = [
            Request(i, float(requests.sent_ms[i]), 0.0, int(requests.inputs[i]), int(requests.outputs[i]), int(h))
            for i, h in enumerate(requests.hits)
        ]
        self.later = todo[requests.first_issued :]
        at_once = requests.closed or float(requests.sent_ms.max()) == 0.0
        self.received = 0.0
        for request in todo[: requests.first_issued]:
            if at_once:
                self.received = self.front.request_serial_ms * requests.first_issued
            else:
                self.received = max(self.received, request.sent) + self.front.request_serial_ms
            self._queue(request)

    def _queue(self, request: Request) -> None:
        front = self.front
        request.visible = self.received + front.request_ms + front.request_ms_per_1k_tokens * request.prompt / 1000.0
        at = len(self.future)
        while at > 0 and self.future[at - 1].visible > request.visible:
            at -= 1
        self.future.insert(at, request)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.policy.block_tokens)

    def _grow(self, request: Request, blocks: int, computed: int) -> None:
        request.blocks += self.pool.take(blocks)
        if self.policy.prefix_caching:
            self.pool.fill(request.index, request.blocks, computed // self.policy.block_tokens)

    def _preempt(self, victim: Request) -> None:
        if victim.state == "decode":
            victim.generated += victim.made
        victim.made = victim.computed = 0
        self.pool.give(victim.blocks)
        victim.blocks = []
        victim.state = "waiting"
        victim.preempted += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self.preemptions += 1

    def plan(self, now: float, ghosts: list[Request]) -> Step:
        """Schedule one iteration at ``now``; ``ghosts`` finished in the step before and run once more."""
        policy = self.policy
        step = Step()
        preempted = False
        if not policy.reserve_output:
            short = True
            while short:
                short = False
                taken = 0
                for request in self.running:
                    if request.state != "decode":
                        continue
                    need = self._blocks(request.length + request.made) - len(request.blocks)
                    if taken + need > len(self.pool.free):
                        victims = [r for r in self.running if r.state in ("decode", "prefill")]
                        self._preempt(victims[-1])
                        preempted = short = True
                        break
                    taken += need
        kv_total = 0
        for request in self.running:
            if request.state == "decode":
                if not policy.reserve_output:
                    tokens = request.length + request.made
                    self._grow(request, self._blocks(tokens) - len(request.blocks), tokens)
                kv_total += request.length + request.made
                step.decodes.append(request)
        budget = policy.token_budget - len(step.decodes)
        new = pairs = 0.0

        def run_chunk(request: Request, start: int, chunk: int) -> None:
            nonlocal new, pairs
            end = start + chunk
            pairs += sum(range(start + 1, end + 1))
            new += chunk
            step.prompts += 1
            request.computed = end
            request.state = "prefill"
            if end == request.length:
                step.firsts.append(request)

        for request in [r for r in self.running if r.state == "prefill"]:
            chunk = min(request.length - request.computed, budget)
            if chunk < request.length - request.computed:
                chunk -= chunk % policy.chunk_multiple
            if chunk <= 0:
                continue
            need = 0 if policy.reserve_output else max(0, self._blocks(request.computed + chunk) - len(request.blocks))
            if need > len(self.pool.free):
                self._preempt(request)
                preempted = True
                continue
            self._grow(request, need, request.computed + chunk)
            budget -= chunk
            run_chunk(request, request.computed, chunk)
        partial = any(r.state == "prefill" and r not in step.firsts for r in self.running)
        while not preempted and not partial and budget > 0 and len(self.running) < policy.max_seqs:
            own: list[int] = []
            if self.waiting:
                request, hit = self.waiting[0], 0
                if policy.prefix_caching:
                    own = self.pool.resume(request.index, (request.length - 1) // policy.block_tokens)
                    hit = len(own) * policy.block_tokens
            elif self.future and self.future[0].visible <= now:
                request, hit = self.future[0], self.future[0].hit
            else:
                break
            left = request.length - hit
            if policy.chunked_prefill:
                chunk = min(left, budget)
                if chunk < left:
                    chunk -= chunk % policy.chunk_multiple
                counted = chunk
                if chunk == 0:
                    break
            else:
                chunk = left
                counted = request.length if policy.cached_tokens_use_budget else left
                if counted > budget:
                    break
            need = self._blocks(request.prompt + request.output) if policy.reserve_output else self._blocks(hit + chunk)
            asked = max(need, self._blocks(request.length)) if policy.reserve_full_prompt else need
            if self.running and not policy.reserve_output:
                asked += int(policy.watermark * self.rules.pool_blocks)
            if asked > len(self.pool.free):
                break
            (self.waiting if self.waiting else self.future).pop(0)
            for block in own:
                self.pool.free.remove(block)
            request.blocks = own
            self._grow(request, need - len(own), hit + chunk)
            budget -= counted
            self.running.append(request)
            run_chunk(request, hit, chunk)
            if request not in step.firsts:
                break
        # what each sequence has once this step is done
        for request in step.decodes:
            request.made += 1
            if request.generated + request.made == request.output:
                request.state = "finishing"
                step.finishing.append(request)
        for request in step.firsts:
            request.made = 1
            request.state = "decode"
            if request.generated + 1 == request.output:
                request.state = "finishing"
                step.finishing.append(request)
        batch = len(step.decodes) + len(ghosts)
        if batch or step.prompts:
            mean = kv_total / len(step.decodes) if step.decodes else 1.0
            step.empty = False
            self.prefilled += new
            self.made = (new, float(step.prompts), pairs, float(batch), kv_total + len(ghosts) * mean)
            step.ms = step_ms(*self.tables, *self.made)
        return step

    def deliver(self, step: Step, end: float) -> None:
        """Hand out the tokens of ``step``, which ends at ``end``; free what finished; issue what clients send next."""
        tokens = len(step.decodes) + len(step.firsts)
        sending = self.front.chunk_ms * tokens
        start = max(end, self.front_done) if tokens > self.front.merge_below else end
        self.front_done = start + sending
        token = end + (start - end + 0.5 * sending)
        for request in step.firsts:
            if request.first is None:
                request.first = token
        for request in step.finishing:
            request.done_at = token
            request.state = "done"
            self.pool.give(request.blocks)
            self.running.remove(request)
            self.finished.append(request)
        if self.closed and step.finishing:
            sent = token + self.front.response_ms + self.front.turnaround_ms
            batch = [self.later.pop(0) for _ in range(min(len(step.finishing), len(self.later)))]
            self.received = max(self.received, sent) + len(batch) * self.front.request_serial_ms
            for request in batch:
                request.sent = sent
                self._queue(request)

    def run(self, limit: int = 200_000) -> None:
        """Simulate to the end; raises RuntimeError when nothing moves."""
        now = 0.0
        current: Step | None = None
        for _ in range(limit):
            if current is None:
                if not self.running and not self.waiting:
                    if not self.future:
                        return
                    now = max(now, self.future[0].visible)
                current = self.plan(now, [])
                if current.empty:
                    raise RuntimeError("stuck")
            if self.policy.steps_ahead:
                following = self.plan(now, current.finishing if self.rules.extra_step else [])
                self.deliver(current, now + current.ms)
                now += current.ms
                current = None if following.empty else following
            else:
                self.deliver(current, now + current.ms)
                now += current.ms
                current = None
        raise RuntimeError("does not end")

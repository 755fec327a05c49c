"""About what an instance carries within its limits, by Little's law and step times alone: where a search begins.

A running batch of b sequences leaves at b / (answer's steps x step time); its users are those in the batch and those in
their pauses, rate x pause (J. D. C. Little, Operations Research 9, 1961). A step holds one token of each sequence and
its share of the prompts that join: what of them the prefix cache has room for, beside the batch, is not computed.
Queues are those of equal services (heavy traffic). Nothing of it is an answer: a simulation is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.serving.instance import Instance
from planner.serving.sessions import longest_prompt, mean_prompt
from planner.serving.simulator import instance_rules
from planner.serving.types import Lengths, Load, SloTarget

WAITS = {"mean": 0.5, "p50": 0.35, "p90": 1.15, "p95": 1.5, "p99": 2.3}
"""Waiting time of a queue of equal services, as a multiple of service x busy / (1 - busy): half of it in the mean,
-ln(1 - q) / 2 at the quantile q (heavy traffic)."""

TAIL = {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p95": 3.0, "p99": 4.0}
"""Tokens computed of a long prompt over those of the mean one, roughly, as far as the longest allows."""

SPREAD = {"mean": 1.0, "p50": 0.98, "p90": 1.15, "p95": 1.25, "p99": 1.45}
"""A percentile of TPOT or E2E over its mean, roughly: answers meet more and fewer prompts."""

_ROUNDS = 12  # of the fixed point between users and what the cache holds for them
_STEPS = 14  # of the bisection on the batch


@dataclass(frozen=True, slots=True)
class Expected:
    """A load: users (in a closed loop) and requests/s of one instance, and how long a request takes them, s."""

    users: float
    rate_per_s: float
    answer_s: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a batch of running sequences (of one data-parallel rank) means."""

    users: float
    rate_per_s: float
    step_ms: float
    running: int  # in each pipeline stage
    computed: float  # tokens of a mean prompt
    busy: float  # share of time that goes to prompts


class _Rank:
    """One data-parallel rank under a load."""

    def __init__(self, instance: Instance, load: Load, inputs: Lengths, outputs: Lengths) -> None:
        rules = instance_rules(instance.resolved, instance.memory)
        self.step, self.stages = instance.step, max(1, rules.pp)
        self.steps = max(1.0, outputs.expected / rules.tokens_per_step)
        self.prompt, self.answer = mean_prompt(load, inputs, outputs), outputs.expected
        self.kv = self.prompt + self.answer / 2
        self.own = max(1.0, self.prompt + self.answer - load.shared_tokens)  # all sessions begin with the same
        self.pause_s = load.think_s if load.kind == "closed" or load.turns is not None else 0.0
        self.pool = max(1, rules.pool_blocks * rules.policy.block_tokens)
        self.budget = rules.policy.token_budget
        self.sessions = load.turns is not None and rules.policy.prefix_caching
        self.longest = longest_prompt(load, inputs, outputs)
        self.new = inputs.expected if self.sessions else self.prompt * (1.0 - load.prefix_hit)
        self.seats = min(rules.policy.max_seqs, max(1, int((self.pool - load.shared_tokens) / self.own)))

    def at(self, batch: float) -> _Batch:
        """The load that keeps ``batch`` sequences running."""
        each = max(1, round(batch / self.stages))
        decode = self.step.decode_ms(each, self.kv)
        found = 1.0
        result = _Batch(batch, 0.0, decode, each, self.new, 0.0)
        for _ in range(_ROUNDS if self.sessions else 1):
            computed = self.new + (1.0 - found) * max(0.0, self.prompt - self.new)
            alone = max(0.0, self.prompt_ms(computed, each) - decode)
            step = decode + each * alone / self.steps
            rate = 1000.0 * batch / (self.steps * step)
            users = rate * self.pause_s + batch
            result = _Batch(users, rate, step, each, computed, min(0.99, each * alone / self.steps / step))
            room = max(0.0, self.pool - batch * self.own)
            held = min(1.0, room / max((users - batch) * self.own, 1.0))
            if abs(held - found) < 0.01:
                break
            found = 0.5 * (found + held)
        return result

    def prompt_ms(self, tokens: float, running: int) -> float:
        """Time of a prompt's steps, beside ``running`` decodes."""
        chunk = max(1.0, min(tokens, self.budget))
        return tokens / chunk * self.step.mixed_ms(round(chunk), running, self.kv)

    def answer_s(self, found: _Batch) -> float:
        """How long an answer takes."""
        return self.steps * found.step_ms / 1000.0

    def within(self, found: _Batch, slo: Sequence[SloTarget]) -> bool:
        """Whether such a batch should keep ``slo``."""
        wait = found.busy / (1.0 - found.busy)
        for target in slo:
            tokens = min(found.computed * TAIL[target.stat], self.longest)
            first = self.prompt_ms(tokens, found.running) * (1.0 + WAITS[target.stat] * wait)
            if target.metric == "ttft":
                reached = first
            elif target.metric == "e2e":
                reached = first + SPREAD[target.stat] * self.steps * found.step_ms
            elif target.metric == "itl":
                reached = found.step_ms if target.stat == "mean" else first
            else:
                reached = SPREAD[target.stat] * found.step_ms
            if reached > target.limit_ms:
                return False
        return True


def expected_load(
    instance: Instance, load: Load, inputs: Lengths, outputs: Lengths, slo: Sequence[SloTarget]
) -> Expected:
    """About the largest load of one instance within ``slo``; without limits that of a full batch."""
    rank = _Rank(instance, load, inputs, outputs)
    low, high = 1.0, float(rank.seats)
    if not rank.within(rank.at(low), slo):
        return Expected(1.0, 1.0 / (rank.pause_s + rank.answer_s(rank.at(low))), rank.answer_s(rank.at(low)))
    if not rank.within(rank.at(high), slo):
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            if high / low < 1.03:
                break
            if rank.within(rank.at(middle), slo):
                low = middle
            else:
                high = middle
    else:
        low = high
    found = rank.at(low)
    ranks = instance.resolved.dp
    return Expected(found.users * ranks, found.rate_per_s * ranks, rank.answer_s(found))

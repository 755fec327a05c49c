"""Prefill and decode on instances of their own: two pools behind a proxy, the KV cache carried from one to the other.

A request goes to a prefill instance for one token, its cache crosses the link, then a decode instance answers it with
the prompt's cache in place. vLLM's decode instance computes the last prompt token again to sample the first token, and
its worker stands still while it posts a transfer's descriptors; TensorRT-LLM hands the first token over with the
cache. Both pools are simulated by the kernel of ``simulate``, with the rules of their own settings; a proxy deals
requests out in turn, and keeps sessions where they are (``disaggregated_sessions``). Transfers of an instance follow
one another, and hold their blocks on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.engines.types import EngineName
from planner.errors import InfeasibleError, InputError
from planner.evidence import Evidence, weakest
from planner.serving import state as k
from planner.serving.arrivals import RequestSet, request_set
from planner.serving.disaggregated_pool import TICK_MS, holding, run_pool, with_stalls
from planner.serving.disaggregated_sessions import (
    chains,
    held_by_decode,
    prefill_with_cache,
    sent_after,
    sessions_of,
)
from planner.serving.disaggregated_timeline import PoolStay, unit_timeline
from planner.serving.engine import InstanceRun
from planner.serving.instance import Instance
from planner.serving.kv_transfer import KvShipment, Link, kv_shipment
from planner.serving.sessions import STREAMS, mean_prompt, session_set
from planner.serving.simulator import as_reached, instance_rules, summarise, within_context
from planner.serving.types import F64, I64, Lengths, Load, SimResult, SloTarget, UnitTimeline

PROXY_MS = 2.0
"""What a proxy on the same network adds for its two hops."""

HANDOVER_STEPS = {EngineName.VLLM: 1.5, EngineName.TENSORRT_LLM: 0.5}
"""Decode steps that a request waits on top: vLLM looks for new and for finished transfers between steps only."""

ONE_TOKEN = Lengths("fixed", value=1)
_SETTLED_MS = 1.0
MAX_RUNS = 20
"""Runs of a closed loop at most."""

SESSION_RUNS, SESSION_SETTLED_MS = 6, 50.0
"""Sessions: runs after the first at most, and the change of send times that changes nothing between turns."""

ALIKE = 0.005
"""Share of the prompts' tokens that may cross the link in one run and not in the next when both count as the same."""


@dataclass(frozen=True)
class Disaggregated:
    """A unit of ``prefill_count`` prefill and ``decode_count`` decode instances of one model, joined by ``link``."""

    prefill: Instance
    decode: Instance
    prefill_count: int
    decode_count: int
    link: Link

    @property
    def prefill_gpus(self) -> int:
        """GPUs of the prefill pool."""
        return self.prefill_count * self.prefill.resolved.gpus

    @property
    def decode_gpus(self) -> int:
        """GPUs of the decode pool."""
        return self.decode_count * self.decode.resolved.gpus

    @property
    def gpus(self) -> int:
        """GPUs of the unit."""
        return self.prefill_gpus + self.decode_gpus

    @property
    def evidence(self) -> Evidence:
        """The weaker of both roles'."""
        return weakest((self.prefill.step.evidence, self.decode.step.evidence))

    @cached_property
    def shipment(self) -> KvShipment:
        """What crosses the link for a prompt."""
        return kv_shipment(self.prefill.model, self.prefill.resolved, self.decode.resolved)

    @property
    def first_token_from_prefill(self) -> bool:
        """Whether the client's first token is the one that prefill computed."""
        return self.decode.resolved.engine is EngineName.TENSORRT_LLM


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What each pool did in a simulation: shares of time with a step running, the transfer in milliseconds, the prompt
    tokens that it moved of a request, and both pools over time when asked for."""

    prefill_utilisation: float
    decode_utilisation: float
    transfer_ms_mean: float
    link_utilisation: float
    moved_tokens_mean: float = 0.0
    timeline: UnitTimeline | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class _Run:
    """Requests as they went through both pools, in the order of the request set."""

    sent: F64
    ttft: F64
    e2e: F64
    prefill: list[InstanceRun]
    decode: list[InstanceRun]
    transfer: F64
    on_link: F64
    hits: I64  # prompt tokens that prefill found cached
    moved: I64  # prompt tokens that crossed the link
    prefilled: F64  # when prefill was done, as its client sees it


def check_roles(unit: Disaggregated) -> None:
    """Refuse a unit of which one role does not start, or whose roles cannot exchange their caches; names the role."""
    if unit.prefill_count < 1 or unit.decode_count < 1:
        raise InputError("each pool needs at least one instance", field="instances", value=0)
    for name, role in (("prefill", unit.prefill), ("decode", unit.decode)):
        if not role.memory.fits:
            reasons = "; ".join(role.memory.reasons) or "the model does not fit"
            raise InfeasibleError(f"the {name} instances would not start: {reasons}", field=f"disagg.{name}")
    first, second = unit.prefill.resolved, unit.decode.resolved
    for setting in ("engine", "version", "kv_cache_dtype"):
        if getattr(first, setting) != getattr(second, setting):
            raise InputError(
                f"both roles must have the same {setting} to exchange caches",
                field=f"disagg.decode.{setting}",
                value=f"{getattr(first, setting)} and {getattr(second, setting)}",
            )


def simulate_disaggregated(
    unit: Disaggregated,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
    timeline: bool = False,
) -> tuple[SimResult, PoolUse]:
    """Simulate ``load`` on ``unit``; throughput is that of the unit. ``timeline`` samples both pools: the ``PoolUse``
    holds them together, the result the decode pool.

    Raises InfeasibleError when a role does not fit or a request can never be served, InputError for a senseless load.
    """
    check_roles(unit)
    if load.turns is not None:
        pools = _Pools(unit, load, _sessions(unit, load, input_tokens, output_tokens, seed), output_tokens, timeline)
        return _summarise(_settled(pools, SESSION_RUNS, SESSION_SETTLED_MS), pools, slo)
    requests = request_set(
        load, input_tokens, output_tokens, seed=seed, block_tokens=unit.prefill.resolved.block_tokens
    )
    requests = within_context(requests, unit.decode.resolved, input_tokens, output_tokens)
    prompts = replace(requests, outputs=np.ones_like(requests.outputs))
    prompts = within_context(prompts, unit.prefill.resolved, input_tokens, ONE_TOKEN)
    requests = replace(requests, inputs=prompts.inputs, hits=prompts.hits)
    pools = _Pools(unit, load, requests, output_tokens, timeline)
    if not requests.closed:
        return _summarise(pools.run(requests.sent_ms), pools, slo)
    rounds = -(-requests.size // requests.first_issued)
    return _summarise(_settled(pools, min(rounds + 1, MAX_RUNS), _SETTLED_MS), pools, slo)


def _sessions(unit: Disaggregated, load: Load, inputs: Lengths, outputs: Lengths, seed: int) -> RequestSet:
    """Sessions that both roles have the context for."""
    token_ms = unit.decode.step.decode_ms(STREAMS, mean_prompt(load, inputs, outputs))
    return session_set(
        load, inputs, outputs, seed=seed, block_tokens=unit.prefill.resolved.block_tokens, token_s=token_ms / 1000.0,
        max_len=min(unit.prefill.resolved.max_model_len, unit.decode.resolved.max_model_len),
    )  # fmt: skip


class _Pools:
    """Rules, step times and the transfer of both pools for one request set."""

    def __init__(self, unit: Disaggregated, load: Load, requests: RequestSet, outputs: Lengths, timeline: bool) -> None:
        self.unit = unit
        self.requests = requests
        self.timeline = timeline
        ranks = (unit.prefill_count * unit.prefill.resolved.dp, unit.decode_count * unit.decode.resolved.dp)
        self.ranks = ranks
        self.turnaround = unit.decode.step.front_end.turnaround_ms
        self.shared_tokens = load.shared_tokens
        self.prefill_step = as_reached(unit.prefill.step, load, ONE_TOKEN, ranks[0])
        self.decode_alone = as_reached(unit.decode.step, load, outputs, ranks[1])
        self.prefill_rules = holding(instance_rules(unit.prefill.resolved, unit.prefill.memory), requests.inputs)
        rules = holding(instance_rules(unit.decode.resolved, unit.decode.memory), requests.inputs, requests.outputs)
        # the prompt is there already: a request joins with one token, whatever the budget says of prompts
        policy = replace(rules.policy, chunked_prefill=True, cached_tokens_use_budget=False)
        self.decode_rules = replace(rules, policy=policy)
        self.following = _clients(requests) if requests.following is None else requests.following
        chain, self.place = chains(self.following)
        dealt = np.arange(requests.size) if requests.following is None else chain
        self.owner_prefill = dealt % ranks[0]
        self.owner_decode = dealt % ranks[1]
        self.sends(requests.hits)  # what the decode instance has of its own prefix cache stays
        self.step_ms = self._step_ms()
        self.handover_ms = HANDOVER_STEPS[unit.decode.resolved.engine] * self.step_ms

    def sends(self, held: I64) -> None:
        """What crosses the link, and how long that takes, with ``held`` prompt tokens on the decode instance."""
        self.moved = self.requests.inputs - held
        self.wire = self.unit.shipment.wire_ms(self.moved, self.unit.link)
        self.post = self.unit.shipment.post_ms(self.moved, self.unit.link)
        stall = float(self.post.mean())
        self.decode_step = with_stalls(self.decode_alone, stall, float(self.requests.outputs.mean()))

    def run(self, sent: F64) -> _Run:
        """Both pools for requests sent at ``sent`` (any order)."""
        unit, requests = self.unit, self.requests
        ones, hits = np.ones(requests.size, dtype=np.int64), requests.hits
        if requests.prefixes is None:
            ttft, _, prefill = run_pool(
                self.prefill_step, self.prefill_rules, sent, requests.inputs, ones, hits, self.owner_prefill,
                timeline=self.timeline,
            )  # fmt: skip
        else:
            ttft, hits, prefill = prefill_with_cache(
                self.prefill_step, self.prefill_rules, sent, requests, self.owner_prefill, self.timeline
            )
        done = sent + ttft
        arrived = self._transferred(done + PROXY_MS + unit.shipment.delay_ms())
        handed = arrived + self.handover_ms
        early = unit.first_token_from_prefill
        outputs = np.maximum(requests.outputs - 1, 1) if early else requests.outputs
        inputs = requests.inputs + 1 if early else requests.inputs
        first, last, decode = run_pool(
            self.decode_step, self.decode_rules, handed, inputs, outputs, inputs - 1, self.owner_decode,
            timeline=self.timeline,
        )  # fmt: skip
        e2e = handed + last - sent
        if early:
            # the client gets prefill's token when the request joins: one gap before the first computed here
            gap = (last - first) / np.maximum(outputs - 1, 1)
            first = np.maximum(first - gap, 0.0)
            e2e = np.where(requests.outputs == 1, handed + first - sent, e2e)
        run = _Run(
            sent, handed + first - sent, e2e, prefill, decode, arrived - done - PROXY_MS, self.wire, hits, self.moved,
            done,
        )  # fmt: skip
        if requests.prefixes is not None:  # known from the times of this run, and so what the next one sends
            texts = sessions_of(requests.prefixes)
            self.sends(
                held_by_decode(
                    self.decode_rules, handed, sent + e2e, requests, texts, self.owner_decode, self.shared_tokens
                )
            )
        return run

    def follow(self, e2e: F64) -> F64:
        """When requests are sent whose answers take ``e2e``."""
        first = self.requests.sent_ms
        if self.requests.following is None:
            first = np.arange(e2e.size, dtype=np.float64) * TICK_MS
        return sent_after(first, e2e, self.turnaround + self.requests.think_ms, self.following, self.place)

    def _transferred(self, ready: F64) -> F64:
        """When the last byte is there: an instance sends, and receives, one cache after another."""
        sends = np.zeros(self.ranks[0])
        receives = np.zeros(self.ranks[1])
        arrived = np.empty_like(ready)
        for i in np.argsort(ready, kind="stable"):
            p, d = self.owner_prefill[i], self.owner_decode[i]
            start = max(ready[i], receives[d]) + self.post[i]
            end = max(start, sends[p]) + self.wire[i]
            sends[p] = receives[d] = arrived[i] = end
        return arrived

    def _step_ms(self) -> float:
        """A decode step at the batch that the load keeps up (Little's law)."""
        requests = self.requests
        kv = float(requests.inputs.mean() + requests.outputs.mean() / 2)
        if requests.closed:
            batch = requests.first_issued / self.ranks[1]
        else:
            span_s = float(requests.sent_ms.max() - requests.sent_ms.min()) / 1000.0
            if requests.offered_per_s > 0:  # of sessions only the first turns have a time yet
                span_s = requests.size / requests.offered_per_s
            rate = requests.size / span_s / self.ranks[1] if span_s > 0 else np.inf
            batch = 1.0
            for _ in range(8):
                seats = rate * float(requests.outputs.mean()) * self.decode_step.decode_ms(max(1, round(batch)), kv)
                batch = min(seats / 1000.0, float(self.decode_rules.policy.max_seqs))
        batch = min(max(1.0, batch), float(self.decode_rules.policy.max_seqs))
        return self.decode_step.decode_ms(round(batch), kv)


def _clients(requests: RequestSet) -> I64:
    """What each client of a closed loop sends after a request; -1 in an open one."""
    following = np.full(requests.size, -1, dtype=np.int64)
    if requests.closed:
        following[: requests.size - requests.first_issued] = np.arange(requests.first_issued, requests.size)
    return following


def _settled(pools: _Pools, runs: int, settled_ms: float) -> _Run:
    """Requests that follow others: each client's next one follows its last answer.

    Send times are those that the answers of the run before imply, until they agree within ``settled_ms`` in the mean,
    and so does what crosses the link.
    What was sent first is settled first: each run settles at least one more round of answers, and most settle many.
    """
    requests = pools.requests
    sent = pools.follow(np.full(requests.size, pools.step_ms * float(requests.outputs.mean())))
    run = pools.run(sent)
    for _ in range(runs):
        follows = pools.follow(run.e2e)
        sends_alike = float(np.abs(pools.moved - run.moved).mean()) <= ALIKE * float(requests.inputs.mean())
        if sends_alike and float(np.abs(follows - sent).mean()) < settled_ms:
            break
        sent = follows
        run = pools.run(sent)
    return run


def _summarise(run: _Run, pools: _Pools, slo: Sequence[SloTarget]) -> tuple[SimResult, PoolUse]:
    """As for instances; batch, KV pool and timeline are the decode pool's."""
    requests = pools.requests
    records = np.zeros((requests.size, k.R_COUNT))
    records[:, k.R_SEND], records[:, k.R_TTFT], records[:, k.R_E2E] = run.sent, run.ttft, run.e2e
    records[:, k.R_INPUT], records[:, k.R_OUTPUT] = requests.inputs, requests.outputs
    records[:, k.R_HIT] = run.hits
    result = summarise(run.decode, records, requests, slo)
    span_ms = max(float((run.sent + run.e2e).max()) - float(run.sent.min()), 1e-6)
    busy_ms = [sum(float(engine.floats[k.F_BUSY_MS]) for engine in pool) for pool in (run.prefill, run.decode)]
    use = PoolUse(
        prefill_utilisation=min(1.0, busy_ms[0] / (span_ms * len(run.prefill))),
        decode_utilisation=min(1.0, busy_ms[1] / (span_ms * len(run.decode))),
        transfer_ms_mean=float(run.transfer.mean()),
        link_utilisation=min(1.0, float(run.on_link.sum()) / (span_ms * len(run.decode))),
        moved_tokens_mean=float(run.moved.mean()),
        timeline=_timeline(run, pools) if pools.timeline else None,
    )
    engines = [*run.prefill, *run.decode]
    result = replace(
        result,
        utilisation=min(1.0, sum(busy_ms) / (span_ms * len(engines))),
        preemptions=int(sum(engine.ints[k.I_PREEMPTIONS] for engine in engines)),
        steps=int(sum(engine.ints[k.I_STEPS] for engine in engines)),
        timeline=None if use.timeline is None else use.timeline.decode,
    )
    return result, use


def _timeline(run: _Run, pools: _Pools) -> UnitTimeline:
    arrived = run.prefilled + PROXY_MS + run.transfer
    return unit_timeline(
        PoolStay(run.sent, run.prefilled, pools.owner_prefill, run.prefill),
        PoolStay(arrived, run.sent + run.e2e, pools.owner_decode, run.decode),
    )

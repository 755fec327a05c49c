"""Prefill and decode on instances of their own: two pools behind a proxy, the KV cache carried from one to the other.

A request goes to a prefill instance for one token, its cache crosses the link, then a decode instance answers it with
the prompt's cache in place. vLLM's decode instance computes the last prompt token again to sample the first token, and
its worker stands still while it posts a transfer's descriptors; TensorRT-LLM hands the first token over with the
cache. Both pools are simulated by the kernel of ``simulate``, with the rules of their own settings; a proxy deals
requests out in turn. Transfers of an instance follow one another, and hold their blocks on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.engines.types import EngineName
from planner.errors import InfeasibleError, InputError
from planner.evidence import Evidence, weakest
from planner.serving import state as k
from planner.serving.arrivals import RequestSet, request_set
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.instance import Instance
from planner.serving.kv_transfer import KvShipment, Link, kv_shipment
from planner.serving.metrics import (
    histogram_percentiles,
    meets_slo,
    percentiles,
    samples_of,
    tpot_ms,
)
from planner.serving.simulator import as_reached, instance_rules, is_saturated, within_context
from planner.serving.types import F64, I64, Lengths, Load, SimResult, SloTarget
from planner.steptime.types import StepModel

PROXY_MS = 2.0
"""What a proxy on the same network adds for its two hops."""

HANDOVER_STEPS = {EngineName.VLLM: 1.5, EngineName.TENSORRT_LLM: 0.5}
"""Decode steps that a request waits on top: vLLM looks for new and for finished transfers between steps only."""

ONE_TOKEN = Lengths("fixed", value=1)
_TICK_MS = 1e-6
_SETTLED_MS = 1.0
MAX_RUNS = 20
"""Runs of a closed loop at most."""


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
    """What each pool did in a simulation: shares of time with a step running, and the transfer in milliseconds."""

    prefill_utilisation: float
    decode_utilisation: float
    transfer_ms_mean: float
    link_utilisation: float


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


def check_roles(unit: Disaggregated) -> None:
    """Refuse a unit of which one role does not start, or whose roles cannot exchange their caches; names the role."""
    if unit.prefill_count < 1 or unit.decode_count < 1:
        raise InputError("each pool needs at least one instance", field="instances", value=0)
    for name, role in (("prefill", unit.prefill), ("decode", unit.decode)):
        if not role.memory.fits:
            reasons = "; ".join(role.memory.reasons) or "the model does not fit"
            raise InfeasibleError(f"the {name} instances would not start: {reasons}", field=f"disagg.{name}")
    first, second = unit.prefill.resolved, unit.decode.resolved
    for field in ("engine", "version", "kv_cache_dtype"):
        if getattr(first, field) != getattr(second, field):
            raise InputError(
                f"both roles must have the same {field} to exchange caches",
                field=f"disagg.decode.{field}",
                value=f"{getattr(first, field)} and {getattr(second, field)}",
            )


def simulate_disaggregated(
    unit: Disaggregated,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
) -> tuple[SimResult, PoolUse]:
    """Simulate ``load`` on ``unit``; throughput is that of the unit.

    Raises InfeasibleError when a role does not fit or a request can never be served, InputError for a senseless load.
    """
    check_roles(unit)
    requests = request_set(
        load, input_tokens, output_tokens, seed=seed, block_tokens=unit.prefill.resolved.block_tokens
    )
    requests = within_context(requests, unit.decode.resolved, input_tokens, output_tokens)
    prompts = replace(requests, outputs=np.ones_like(requests.outputs))
    prompts = within_context(prompts, unit.prefill.resolved, input_tokens, ONE_TOKEN)
    requests = replace(requests, inputs=prompts.inputs, hits=prompts.hits)
    pools = _Pools(unit, load, requests, output_tokens)
    run = _closed(pools) if requests.closed else pools.run(requests.sent_ms)
    return _summarise(run, requests, slo)


class _Pools:
    """Rules, step times and the transfer of both pools for one request set."""

    def __init__(self, unit: Disaggregated, load: Load, requests: RequestSet, outputs: Lengths) -> None:
        self.unit = unit
        self.requests = requests
        ranks = (unit.prefill_count * unit.prefill.resolved.dp, unit.decode_count * unit.decode.resolved.dp)
        self.ranks = ranks
        self.turnaround = unit.decode.step.front_end.turnaround_ms
        fresh = requests.inputs - requests.hits  # what the decode instance has of its own prefix cache stays
        self.wire = unit.shipment.wire_ms(fresh, unit.link)
        self.post = unit.shipment.post_ms(fresh, unit.link)
        self.prefill_step = as_reached(unit.prefill.step, load, ONE_TOKEN, ranks[0])
        decode = as_reached(unit.decode.step, load, outputs, ranks[1])
        self.decode_step = _with_stalls(decode, float(self.post.mean()), float(requests.outputs.mean()))
        self.prefill_rules = _holding(instance_rules(unit.prefill.resolved, unit.prefill.memory), requests.inputs)
        rules = _holding(instance_rules(unit.decode.resolved, unit.decode.memory), requests.inputs, requests.outputs)
        # the prompt is there already: a request joins with one token, whatever the budget says of prompts
        policy = replace(rules.policy, chunked_prefill=True, cached_tokens_use_budget=False)
        self.decode_rules = replace(rules, policy=policy)
        self.owner_prefill = np.arange(requests.size) % ranks[0]
        self.owner_decode = np.arange(requests.size) % ranks[1]
        self.step_ms = self._step_ms()
        self.handover_ms = HANDOVER_STEPS[unit.decode.resolved.engine] * self.step_ms

    def run(self, sent: F64) -> _Run:
        """Both pools for requests sent at ``sent`` (any order)."""
        unit, requests = self.unit, self.requests
        ones = np.ones(requests.size, dtype=np.int64)
        ttft, _, prefill = _stage(
            self.prefill_step, self.prefill_rules, sent, requests.inputs, ones, requests.hits, self.owner_prefill
        )
        done = sent + ttft
        arrived = self._transferred(done + PROXY_MS + unit.shipment.delay_ms())
        handed = arrived + self.handover_ms
        early = unit.first_token_from_prefill
        outputs = np.maximum(requests.outputs - 1, 1) if early else requests.outputs
        inputs = requests.inputs + 1 if early else requests.inputs
        first, last, decode = _stage(
            self.decode_step, self.decode_rules, handed, inputs, outputs, inputs - 1, self.owner_decode
        )
        e2e = handed + last - sent
        if early:
            # the client gets prefill's token when the request joins: one gap before the first computed here
            gap = (last - first) / np.maximum(outputs - 1, 1)
            first = np.maximum(first - gap, 0.0)
            e2e = np.where(requests.outputs == 1, handed + first - sent, e2e)
        return _Run(sent, handed + first - sent, e2e, prefill, decode, arrived - done - PROXY_MS, self.wire)

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
            rate = requests.size / span_s / self.ranks[1] if span_s > 0 else np.inf
            batch = 1.0
            for _ in range(8):
                seats = rate * float(requests.outputs.mean()) * self.decode_step.decode_ms(max(1, round(batch)), kv)
                batch = min(seats / 1000.0, float(self.decode_rules.policy.max_seqs))
        batch = min(max(1.0, batch), float(self.decode_rules.policy.max_seqs))
        return self.decode_step.decode_ms(round(batch), kv)


def _closed(pools: _Pools) -> _Run:
    """A closed loop: each client's next request follows its last answer.

    Send times are those that the answers of the run before imply, until they agree. What was sent first is settled
    first: each run settles at least one more round of answers, and most settle many.
    """
    requests, clients = pools.requests, pools.requests.first_issued
    pauses = pools.turnaround + requests.think_ms
    e2e = np.full(requests.size, pools.step_ms * float(requests.outputs.mean()))
    sent = _follow(e2e, pauses, clients)
    run = pools.run(sent)
    for _ in range(min(-(-requests.size // clients) + 1, MAX_RUNS)):
        follows = _follow(run.e2e, pauses, clients)
        if float(np.abs(follows - sent).mean()) < _SETTLED_MS:
            break
        sent = follows
        run = pools.run(sent)
    return run


def _follow(e2e: F64, pauses: F64, clients: int) -> F64:
    """When each request is sent: the i-th of a client after its answer before and a pause."""
    sent: F64 = np.arange(e2e.size, dtype=np.float64) * _TICK_MS
    for start in range(clients, e2e.size, clients):
        size = min(clients, e2e.size - start)
        last = slice(start - clients, start - clients + size)
        here = slice(start, start + size)
        sent[here] = sent[last] + e2e[last] + pauses[here]
    return sent


def _stage(
    step: StepModel, rules: InstanceRules, sent: F64, inputs: I64, outputs: I64, hits: I64, owner: I64
) -> tuple[F64, F64, list[InstanceRun]]:
    """One pool: TTFT and E2E of every request in its order, and the engines that ran."""
    ttft, e2e = np.empty(sent.size), np.empty(sent.size)
    engines = []
    for instance in range(int(owner.max()) + 1):
        own = np.flatnonzero(owner == instance)
        own = own[np.argsort(sent[own], kind="stable")]
        # strictly ascending, so that a record is found again by the time its request was sent
        times = np.maximum.accumulate(sent[own]) + np.arange(own.size) * _TICK_MS
        part = RequestSet(
            sent_ms=times,
            inputs=inputs[own],
            outputs=outputs[own],
            hits=hits[own],
            closed=False,
            first_issued=own.size,
            think_ms=np.zeros(own.size),
        )
        engine = InstanceRun(step, rules, record_rows=own.size)
        engine.give(part)
        engine.run()
        records = engine.drain()
        records = records[np.argsort(records[:, k.R_SEND], kind="stable")]
        ttft[own], e2e[own] = records[:, k.R_TTFT], records[:, k.R_E2E]
        engines.append(engine)
    return ttft, e2e, engines


def _with_stalls(step: StepModel, post_ms: float, outputs: float) -> StepModel:
    """``step`` of a worker that stands still for ``post_ms`` for each request that joins.

    With b sequences of ``outputs`` tokens, b / ``outputs`` of them join in a step.
    """
    t = step.tables
    stall = t.decode_batch[:, None] * (post_ms / max(outputs, 1.0))
    return replace(step, tables=replace(t, decode_ms=t.decode_ms + stall))


def _holding(rules: InstanceRules, inputs: I64, outputs: I64 | None = None) -> InstanceRules:
    """``rules`` with the blocks of one prompt under way taken out of the pool, as far as the longest request allows."""
    block = rules.policy.block_tokens
    longest = inputs + (1 if outputs is None else outputs)
    needed = -(-int(longest.max()) // block)
    left = rules.pool_blocks - -(-int(inputs.mean()) // block)
    return replace(rules, pool_blocks=max(left, min(needed, rules.pool_blocks)))


def _summarise(run: _Run, requests: RequestSet, slo: Sequence[SloTarget]) -> tuple[SimResult, PoolUse]:
    """Percentiles over all requests; batch and KV pool are the decode pool's."""
    records = np.zeros((requests.size, k.R_COUNT))
    records[:, k.R_SEND], records[:, k.R_TTFT], records[:, k.R_E2E] = run.sent, run.ttft, run.e2e
    records[:, k.R_INPUT], records[:, k.R_OUTPUT] = requests.inputs, requests.outputs
    start_ms, end_ms = float(run.sent.min()), float((run.sent + run.e2e).max())
    duration_s = max((end_ms - start_ms) / 1000.0, 1e-9)
    output = float(requests.outputs.sum())
    total = output + float(requests.inputs.sum())
    floats = np.array([engine.floats for engine in run.decode])
    busy_ms = float(floats[:, k.F_BUSY_MS].sum())
    prefill_ms = sum(float(engine.floats[k.F_BUSY_MS]) for engine in run.prefill)
    span_ms = duration_s * 1000.0
    pool = run.decode[0].rules.pool_blocks
    alloc = float(floats[:, k.F_ALLOC_MS].sum())
    live = float(floats[:, k.F_LIVE_MS].sum()) / run.decode[0].rules.policy.block_tokens
    engines = [*run.prefill, *run.decode]
    hist = np.sum([engine.itl_hist for engine in run.decode], axis=0)
    use = PoolUse(
        prefill_utilisation=min(1.0, prefill_ms / (span_ms * len(run.prefill))),
        decode_utilisation=min(1.0, busy_ms / (span_ms * len(run.decode))),
        transfer_ms_mean=float(run.transfer.mean()),
        link_utilisation=min(1.0, float(run.on_link.sum()) / (span_ms * len(run.decode))),
    )
    result = SimResult(
        requests=requests.size,
        completed=requests.size,
        duration_s=duration_s,
        output_tok_per_s=output / duration_s,
        total_tok_per_s=total / duration_s,
        req_per_s=requests.size / duration_s,
        ttft_ms=percentiles(records[:, k.R_TTFT]),
        tpot_ms=percentiles(tpot_ms(records)),
        itl_ms=histogram_percentiles(hist),
        e2e_ms=percentiles(records[:, k.R_E2E]),
        goodput_per_s=float(meets_slo(records, slo).sum()) / duration_s if slo else None,
        preemptions=int(sum(engine.ints[k.I_PREEMPTIONS] for engine in engines)),
        utilisation=min(1.0, (busy_ms + prefill_ms) / (span_ms * len(engines))),
        mean_batch=float(floats[:, k.F_BATCH_MS].sum()) / max(busy_ms, 1e-9),
        mean_kv_used=min(1.0, alloc / max(busy_ms, 1e-9) / max(pool, 1)),
        kv_waste=min(1.0, max(0.0, 1.0 - live / alloc)) if alloc > 0 else 0.0,
        steps=int(sum(engine.ints[k.I_STEPS] for engine in engines)),
        saturated=is_saturated(records, requests),
        prefix_hit=float(requests.hits.sum()) / float(requests.inputs.sum()),
        samples=samples_of(run.ttft, run.e2e, tpot_ms(records), hist),
    )
    return result, use

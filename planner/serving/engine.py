"""One simulated engine instance: the kernel's arrays, made from tables, scheduler policy and KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.engines.scheduler import SchedulerPolicy
from planner.errors import InfeasibleError, InputError
from planner.serving import state as k
from planner.serving.arrivals import Prefixes, RequestSet
from planner.serving.kernel import advance
from planner.serving.types import F64, I64
from planner.steptime.types import FrontEnd, StepModel, kernel_args


@dataclass(frozen=True)
class InstanceRules:
    """What the kernel needs to know of an instance besides its step times.

    ``pool_blocks`` KV blocks for requests; ``extra_step`` a finished request costs one more step (TensorRT-LLM's
    overlap scheduler); ``tokens_per_step`` mean tokens a decoding sequence gains per step (above 1 with speculative
    decoding) and ``draft_tokens`` verified beside it.
    """

    policy: SchedulerPolicy
    pool_blocks: int
    extra_step: bool
    pp: int = 1
    tokens_per_step: float = 1.0
    draft_tokens: int = 0


class InstanceRun:
    """State of one instance. ``run`` goes on where the last call stopped."""

    def __init__(self, step: StepModel, rules: InstanceRules, *, record_rows: int, timeline_rows: int = 0) -> None:
        policy = rules.policy
        gain = max(1.0, rules.tokens_per_step)
        self.rules = rules
        self.tables = kernel_args(step.tables)
        ints = np.zeros(k.P_COUNT, dtype=np.int64)
        ints[k.P_MAX_SEQS] = policy.max_seqs * rules.pp if policy.reserve_output else policy.max_seqs
        seats = int(ints[k.P_MAX_SEQS]) + 1
        ints[k.P_BUDGET] = policy.token_budget
        ints[k.P_BLOCK] = policy.block_tokens
        ints[k.P_POOL] = rules.pool_blocks
        ints[k.P_CHUNKED] = policy.chunked_prefill
        ints[k.P_RESERVE] = policy.reserve_output
        ints[k.P_FULL_SEQUENCE] = policy.reserve_full_prompt
        ints[k.P_WATERMARK] = int(policy.watermark * rules.pool_blocks)
        ints[k.P_ASYNC] = policy.steps_ahead > 0
        ints[k.P_GHOST] = rules.extra_step
        ints[k.P_PP] = rules.pp
        ints[k.P_SPEC] = rules.draft_tokens
        ints[k.P_PERIOD] = max(1, round(policy.block_tokens / gain))
        ints[k.P_CHUNK_MULTIPLE] = max(1, policy.chunk_multiple)
        ints[k.P_CACHED_IN_BUDGET] = policy.cached_tokens_use_budget
        ints[k.P_REUSE] = policy.prefix_caching
        ints[k.P_PARTIAL_FIRST] = policy.partial_blocks_first
        self.policy = ints
        front = step.front_end
        delays = np.zeros(k.Q_COUNT)
        delays[k.Q_TOKENS_PER_STEP] = gain
        delays[k.Q_TURNAROUND] = front.turnaround_ms
        delays[k.Q_RESPONSE] = front.response_ms
        delays[k.Q_REQUEST] = front.request_ms
        delays[k.Q_REQUEST_PER_1K] = front.request_ms_per_1k_tokens
        delays[k.Q_REQUEST_SERIAL] = front.request_serial_ms
        delays[k.Q_CHUNK] = front.chunk_ms
        delays[k.Q_MERGE_BELOW] = front.merge_below
        if front.loop is not None:
            set_loop(delays, front)
        self.delays = delays
        self.ints = np.zeros(k.I_COUNT, dtype=np.int64)
        self.ints[k.I_FREE] = rules.pool_blocks
        self.ints[k.I_PARTIAL] = -1
        self.ints[k.I_FREE_SLOTS] = seats
        self.floats = np.zeros(k.F_COUNT)
        self.floats[k.F_SAMPLE_MS] = 1.0
        self.slots = np.full((seats, k.S_COUNT), -1, dtype=np.int64)
        self.slots[:, k.S_STATE] = k.FREE
        self.times = np.zeros((seats, k.T_COUNT))
        self.lists = np.zeros((k.M_COUNT, seats), dtype=np.int64)
        self.lists[k.M_FREE] = np.arange(seats - 1, -1, -1)
        self.heap = np.zeros((4 * seats + 256, k.H_COUNT), dtype=np.int64)
        self.order = np.zeros((4 * seats + 64, 2), dtype=np.int64)
        self.residues = np.zeros(int(ints[k.P_PERIOD]), dtype=np.int64)
        self.records = np.zeros((record_rows + seats + 16, k.R_COUNT))
        self.itl_hist = np.zeros(k.ITL_BINS, dtype=np.int64)
        self.timeline = np.zeros((timeline_rows, k.L_COUNT))
        self.visible: F64 = np.zeros(0)
        self.sent: F64 = np.zeros(0)
        self.inputs: I64 = np.zeros(0, dtype=np.int64)
        self.outputs: I64 = np.zeros(0, dtype=np.int64)
        self.hits: I64 = np.zeros(0, dtype=np.int64)
        self.think: F64 = np.zeros(0)
        self.ids: I64 = np.zeros(0, dtype=np.int64)
        self.chain = np.zeros(0, dtype=np.int32)
        self.spans: I64 = np.zeros((0, 2), dtype=np.int64)
        self.cache = np.zeros((0, k.C_COUNT), dtype=np.int32)
        self.make_loop(0, 0)

    def visible_ms(self, sent_ms: F64, inputs: I64) -> F64:
        """When the scheduler sees open-loop requests sent at ``sent_ms`` (ascending).

        The serial part of the front end takes them one after the other, the rest goes on beside it.
        """
        serial = self.delays[k.Q_REQUEST_SERIAL] * np.arange(sent_ms.size)
        received = np.maximum.accumulate(sent_ms - serial) + serial + self.delays[k.Q_REQUEST_SERIAL]
        return received + self.delays[k.Q_REQUEST] + self.delays[k.Q_REQUEST_PER_1K] * inputs / 1000.0

    def make_loop(self, requests: int, clients: int) -> None:
        """Room in the API server's loop for so many requests, of which each client has one under way."""
        self.arrivals = np.zeros((requests, k.A_COUNT))
        self.arrivals[:, k.A_FIRST] = np.inf
        self.box = np.zeros((4 * clients + 8, k.O_COUNT))
        self.firsts = np.zeros(clients + 1, dtype=np.int64)
        self.lasts = np.zeros((clients + 1, 2), dtype=np.int64)

    def give(self, requests: RequestSet, *, alone: bool = True) -> None:
        """Hand over all requests of a run. Raises InfeasibleError when one of them can never be served.

        Those of a closed loop go through the API server's loop (``front_loop``), unless the instance is not ``alone``:
        one of several that step together.
        """
        check_fit(requests.inputs, requests.outputs, self.rules)
        looped = requests.closed and alone and self.delays[k.Q_LOOP_REQUEST] > 0.0
        if looped:
            visible = np.full(requests.size, np.inf)  # until the loop has taken them in
        elif requests.closed or float(requests.sent_ms.max()) == 0.0:
            # all at once: worked on together, they come out together
            received = self.delays[k.Q_REQUEST_SERIAL] * requests.first_issued
            self.floats[k.F_RECEIVED] = received
            fixed = received + self.delays[k.Q_REQUEST]
            visible = fixed + self.delays[k.Q_REQUEST_PER_1K] * requests.inputs / 1000.0
        else:
            visible = self.visible_ms(requests.sent_ms, requests.inputs)
        order = np.arange(requests.size)
        issued = requests.first_issued
        order[:issued] = np.argsort(visible[:issued], kind="stable")
        self.visible = np.ascontiguousarray(visible[order])
        self.sent = np.ascontiguousarray(requests.sent_ms[order], dtype=np.float64)
        self.inputs = np.ascontiguousarray(requests.inputs[order])
        self.outputs = np.ascontiguousarray(requests.outputs[order])
        self.hits = np.ascontiguousarray(requests.hits[order])
        self.think = requests.think_ms
        self.ints[k.I_ISSUED] = requests.first_issued
        self.policy[k.P_CLOSED] = requests.closed
        if looped:
            self.policy[k.P_LOOP] = 1
            self.make_loop(requests.size, issued)
        self.policy[k.P_REQUESTS] = requests.size

    def append(self, sent: F64, inputs: I64, outputs: I64, hits: I64) -> None:
        """Add open-loop requests behind those not yet admitted, which are all that is kept."""
        check_fit(inputs, outputs, self.rules)
        start = int(self.ints[k.I_NEXT])
        visible = np.concatenate([self.visible[start:], self.visible_ms(sent, inputs)])
        order = np.argsort(visible, kind="stable")
        self.visible = visible[order]
        self.sent = np.concatenate([self.sent[start:], sent])[order]
        self.inputs = np.concatenate([self.inputs[start:], inputs])[order]
        self.outputs = np.concatenate([self.outputs[start:], outputs])[order]
        self.hits = np.concatenate([self.hits[start:], hits])[order]
        self.ints[k.I_NEXT] = 0
        self.ints[k.I_ISSUED] = self.visible.size

    def kernel_state(self) -> k.KernelState:
        """The arrays as the kernel takes them."""
        return k.KernelState(
            self.policy,
            self.delays,
            self.visible,
            self.sent,
            self.inputs,
            self.outputs,
            self.hits,
            self.think,
            self.ids,
            self.ints,
            self.floats,
            self.slots,
            self.times,
            self.lists,
            self.heap,
            self.order,
            self.residues,
            self.records,
            self.itl_hist,
            self.timeline,
            self.chain,
            self.spans,
            self.cache,
            self.arrivals,
            self.box,
            self.firsts,
            self.lasts,
        )

    def widen(self, rows: int) -> None:
        """Room for ``rows`` requests in arrays of as many rows as those of other ranks; what is added is never sent."""
        more = rows - self.visible.size
        self.visible = np.concatenate([self.visible, np.full(more, np.inf)])
        self.sent = np.concatenate([self.sent, np.full(more, np.inf)])
        none = np.zeros(more, dtype=np.int64)
        self.inputs, self.outputs, self.hits = (
            np.concatenate([values, none]) for values in (self.inputs, self.outputs, self.hits)
        )
        self.think = np.concatenate([self.think, np.zeros(rows - self.think.size)])

    def make_queue(self, rows: int) -> None:
        """Room for ``rows`` waiting requests that a router gives one by one."""
        self.visible, self.sent, self.think = np.zeros(rows), np.zeros(rows), np.zeros(0)
        self.inputs, self.outputs, self.hits, self.ids = (np.zeros(rows, dtype=np.int64) for _ in range(4))

    def keep_prefixes(self, prefixes: Prefixes) -> None:
        """Keep what requests computed in the pool, as long as there is room. Raises InputError for units that are no
        whole blocks.
        """
        block = self.rules.policy.block_tokens
        if prefixes.unit_tokens % block:
            raise InputError(
                f"must be whole blocks of {block} tokens", field="prefixes.unit_tokens", value=prefixes.unit_tokens
            )
        self.policy[k.P_REUSE] = 0
        self.policy[k.P_UNIT] = prefixes.unit_tokens
        self.policy[k.P_UNIT_BLOCKS] = prefixes.unit_tokens // block
        self.chain, self.spans = prefixes.chain, prefixes.spans
        self.cache = np.full((prefixes.units + 1, k.C_COUNT), k.NOT_THERE, dtype=np.int32)
        self.cache[-1] = (0, prefixes.units, prefixes.units)

    def take_state(self, stack: k.KernelState, index: int) -> None:
        """Go on with the arrays of one of several stacked instances."""
        self.ints, self.floats, self.visible = stack.ints[index], stack.floats[index], stack.visible[index]
        self.itl_hist, self.timeline, self.cache = stack.itl_hist[index], stack.timeline[index], stack.cache[index]

    def run(self, until_ms: float = np.inf) -> int:
        """Simulate until ``until_ms`` or the end; the kernel's code, RECORDS_FULL when records must be drained."""
        code = advance(self.kernel_state(), self.tables, until_ms)
        if code == k.STUCK:
            raise stuck(self.rules)
        return int(code)

    def drain(self) -> F64:
        """Take the records of finished requests out (columns ``kernel.R_*``)."""
        done = int(self.ints[k.I_DONE])
        taken = self.records[:done].copy()
        self.ints[k.I_DONE] = 0
        return taken


def set_loop(delays: F64, front: FrontEnd) -> None:
    """Fill in the delays of the API server's loop. A lone request waits there as long as it does outside."""
    loop = front.loop
    assert loop is not None
    latency = front.request_ms + front.request_serial_ms - loop.request_ms - loop.step_ms
    delays[k.Q_LOOP_REQUEST] = loop.request_ms
    delays[k.Q_LOOP_REQUEST_PER_1K] = loop.request_ms_per_1k_tokens
    delays[k.Q_LOOP_LATENCY] = max(0.0, latency)
    delays[k.Q_LOOP_PARSING] = loop.parsing_share
    delays[k.Q_LOOP_TURNS] = loop.turns
    delays[k.Q_LOOP_END] = loop.end_ms
    delays[k.Q_LOOP_CHUNK] = loop.chunk_ms
    delays[k.Q_LOOP_LARGE_CHUNK] = loop.large_step_chunk_ms
    delays[k.Q_LOOP_STEP] = loop.step_ms
    delays[k.Q_TOKENISE_PER_1K] = loop.tokenise_ms_per_1k_tokens


_SHARED = ("chain", "spans")


def stacked(engines: Sequence[InstanceRun]) -> k.KernelState:
    """The arrays of ``engines``, equally long, one behind the other; prefix chains are shared."""
    states = [engine.kernel_state() for engine in engines]
    return k.KernelState(
        *(
            getattr(states[0], name) if name in _SHARED else np.stack([getattr(state, name) for state in states])
            for name in k.KernelState._fields
        )
    )


def stuck(rules: InstanceRules) -> InfeasibleError:
    """What to raise when nothing runs and the next request still does not fit."""
    return InfeasibleError(
        "the scheduler cannot admit the next request with nothing else running",
        field="kv_blocks",
        value=rules.pool_blocks,
        remedy="Enlarge the KV pool or shorten the requests.",
    )


def check_fit(inputs: I64, outputs: I64, rules: InstanceRules) -> None:
    """Raise InfeasibleError when a request is longer than the whole KV pool or than a step without chunking."""
    if inputs.size == 0:
        return
    block = rules.policy.block_tokens
    longest = int((inputs + outputs).max())
    if -(-longest // block) > rules.pool_blocks:
        raise InfeasibleError(
            f"a request of {longest} tokens does not fit the KV pool of {rules.pool_blocks * block} tokens",
            field="input_tokens + output_tokens",
            value=longest,
            remedy="Use more GPUs, a narrower KV cache or shorter requests.",
        )
    if not rules.policy.chunked_prefill and int(inputs.max()) > rules.policy.token_budget:
        raise InfeasibleError(
            f"a prompt of {int(inputs.max())} tokens exceeds one step's {rules.policy.token_budget} tokens and chunked"
            " prefill is off",
            field="max_num_batched_tokens",
            value=rules.policy.token_budget,
            remedy="Raise max_num_batched_tokens or enable chunked prefill.",
        )

"""``simulate``: a load on an instance (or replicas of it) to a SimResult. See ``kernel`` for the rules followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.engines.model_traits import is_moe
from planner.engines.scheduler import scheduler_policy
from planner.engines.types import EngineName, ResolvedSettings
from planner.errors import InfeasibleError, InputError
from planner.memory.types import MemoryLedger
from planner.serving import state as k
from planner.serving.arrivals import RequestSet, default_requests, mean_rate, request_chunks, request_set
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.instance import Instance
from planner.serving.lockstep import FREELY, PromptHold, run_ranks
from planner.serving.metrics import (
    histogram_percentiles,
    meets_slo,
    percentiles,
    samples_of,
    tpot_ms,
)
from planner.serving.router import Router, run_routed
from planner.serving.sessions import STREAMS, mean_prompt, session_set
from planner.serving.stream import CHUNK, LONG_RUN, run_stream
from planner.serving.types import F64, Lengths, Load, SimResult, SloTarget, Timeline
from planner.steptime.types import FrontEnd, StepModel

TIMELINE_ROWS = 2048
_SESSIONS_KEPT_UP = 0.85
"""Share of the offered requests that sessions send when their answers keep up, beyond noise."""
_FRONT_END_FULL = 0.75
"""Share of the front end's time that streaming fills at most: behind, it merges chunks."""


def instance_rules(resolved: ResolvedSettings, ledger: MemoryLedger) -> InstanceRules:
    """Scheduler rules and KV pool of one data-parallel rank.

    Pools of several layer groups are counted in token equivalents: tokens of the ledger over the block size, those of
    running requests where it tells them apart.
    """
    policy = scheduler_policy(resolved)
    blocks = max(ledger.kv_tokens, ledger.running_tokens) // policy.block_tokens
    acceptance = resolved.speculative_acceptance or 0.0
    drafts = resolved.speculative_tokens
    return InstanceRules(
        policy=policy,
        pool_blocks=max(0, blocks - policy.lost_blocks),
        extra_step=resolved.engine is EngineName.TENSORRT_LLM and resolved.async_scheduling,
        pp=resolved.pp,
        tokens_per_step=1.0 + (min(acceptance, float(drafts)) if drafts else 0.0),
        draft_tokens=drafts,
    )


def simulate(
    instance: Instance,
    load: Load,
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    slo: Sequence[SloTarget] = (),
    seed: int = 0,
    replicas: int = 1,
    router: Router = "round_robin",
    timeline: bool = False,
) -> SimResult:
    """Simulate ``load`` on ``replicas`` equal instances; throughput is of all of them.

    Data-parallel ranks are instances behind the same router. They step together (``lockstep``), except in runs too long
    to be drawn at once and where requests are dealt out one by one. ``timeline`` samples the first replica. Raises
    InfeasibleError when a request can never be served and InputError for a senseless load.
    """
    resolved, step = instance.resolved, instance.step
    if not instance.memory.fits:
        raise InfeasibleError("; ".join(instance.memory.reasons) or "the model does not fit", field="memory")
    rules = instance_rules(resolved, instance.memory)
    instances = replicas * resolved.dp
    plain = load.turns is None and not timeline and router == "round_robin"
    if load.kind == "open" and plain and default_requests(load) > LONG_RUN:
        chunks = request_chunks(
            load, input_tokens, output_tokens, seed=seed, block_tokens=rules.policy.block_tokens, chunk=CHUNK
        )
        within = (within_context(chunk, resolved, input_tokens, output_tokens) for chunk in chunks)
        reached = as_reached(step, load, output_tokens, instances)
        return run_stream(reached, rules, within, slo=slo, instances=instances)
    if load.turns is not None:
        requests = session_set(
            load, input_tokens, output_tokens,
            seed=seed, block_tokens=rules.policy.block_tokens, max_len=resolved.max_model_len,
            token_s=step.decode_ms(STREAMS, mean_prompt(load, input_tokens, output_tokens)) / 1000.0,
        )  # fmt: skip
    else:
        requests = request_set(load, input_tokens, output_tokens, seed=seed, block_tokens=rules.policy.block_tokens)
        requests = within_context(requests, resolved, input_tokens, output_tokens)
    return run_requests(
        as_reached(step, load, output_tokens, instances),
        rules,
        requests,
        slo=slo,
        instances=instances,
        router=router,
        timeline=timeline,
        ranks=ranks_in_step(instance),
        hold=prompt_hold(resolved),
    )


def run_requests(
    step: StepModel,
    rules: InstanceRules,
    requests: RequestSet,
    *,
    slo: Sequence[SloTarget] = (),
    instances: int = 1,
    router: Router = "round_robin",
    timeline: bool = False,
    ranks: int = 1,
    hold: PromptHold = FREELY,
) -> SimResult:
    """Run a drawn request set on ``instances`` instances and add them up.

    Each ``ranks`` of them step together, and prompts are held back as ``hold`` says, see ``lockstep``; not
    where requests are dealt out one by one.
    """
    if instances < 1 or instances % ranks:
        raise InputError(f"must be at least 1, in whole {ranks}s", field="replicas", value=instances)
    rows = TIMELINE_ROWS if timeline else 0
    one_by_one = requests.following is not None or requests.prefixes is not None
    if one_by_one or (router != "round_robin" and instances > 1 and not requests.closed):
        engines, records = run_routed(step, rules, requests, instances, router, timeline_rows=rows)
    elif ranks > 1 or hold.batch_steps > 0:
        engines, records = _run_in_step(step, rules, requests, instances // ranks, ranks, hold, rows)
    else:
        engines = []
        for index, part in enumerate(split_round_robin(requests, instances)):
            engine = InstanceRun(step, rules, record_rows=part.size, timeline_rows=rows if index == 0 else 0)
            engine.give(part)
            engine.run()
            engines.append(engine)
        records = np.concatenate([engine.drain() for engine in engines])
    return summarise(engines, records, requests, slo)


def _run_in_step(
    step: StepModel, rules: InstanceRules, requests: RequestSet, replicas: int, ranks: int, hold: PromptHold, rows: int
) -> tuple[list[InstanceRun], F64]:
    """``replicas`` of ``ranks`` that step together each; requests and clients go round over all ranks."""
    parts = split_round_robin(requests, replicas * ranks)
    engines, records = [], []
    for index in range(min(replicas, len(parts))):
        shown = rows if index == 0 else 0
        found, ended = run_ranks(step, rules, parts[index::replicas], hold=hold, timeline_rows=shown)
        engines += found
        records.append(ended)
    return engines, np.concatenate(records)


def prompt_hold(resolved: ResolvedSettings) -> PromptHold:
    """What ``resolved`` asks TensorRT-LLM to hold prompts back for."""
    tokens = resolved.batch_wait_tokens_ratio * resolved.max_num_batched_tokens
    return PromptHold(resolved.attention_dp_wait_iters, resolved.batch_wait_iters, tokens)


def ranks_in_step(instance: Instance) -> int:
    """How many data-parallel ranks step together: all of them where they share layers.

    TensorRT-LLM divides everything but attention over the ranks; in vLLM they share experts, and replicas of a dense
    model run on their own (``v1/engine/core.py``: ``DPEngineCoreProc`` keeps ranks of mixtures of experts in step).
    """
    resolved = instance.resolved
    shared = resolved.engine is EngineName.TENSORRT_LLM or is_moe(instance.model)
    return resolved.dp if shared else 1


def split_round_robin(requests: RequestSet, instances: int) -> list[RequestSet]:
    """The part of each instance, in turn. A closed loop's clients are divided likewise."""
    if instances == 1:
        return [requests]
    parts = []
    for i in range(instances):
        pick = slice(i, None, instances)
        part = replace(
            requests,
            sent_ms=requests.sent_ms[pick],
            inputs=requests.inputs[pick],
            outputs=requests.outputs[pick],
            hits=requests.hits[pick],
            think_ms=requests.think_ms[pick],
            first_issued=len(range(i, requests.first_issued, instances)),
        )
        if part.size and part.first_issued:
            parts.append(part)
    return parts


def summarise(
    engines: Sequence[InstanceRun], records: F64, requests: RequestSet, slo: Sequence[SloTarget]
) -> SimResult:
    """Percentiles over all instances; time-weighted means over the time until the last token.

    With ``measured_ms`` latencies are of the requests sent then, throughput is what ended then. With ``at_work``
    throughput is that of so many clients by Little's law, not what ended until the client of the longest sessions did.
    """
    start_ms = float(records[:, k.R_SEND].min())
    ends = records[:, k.R_SEND] + records[:, k.R_E2E]
    end_ms = float(ends.max())
    ended = records
    from_ms, to_ms = start_ms, end_ms
    if requests.measured_ms is not None:
        from_ms, to_ms = requests.measured_ms
        ended = records[(ends >= from_ms) & (ends < to_ms)]
        records = records[(records[:, k.R_SEND] >= from_ms) & (records[:, k.R_SEND] < to_ms)]
    duration_s = max((to_ms - from_ms) / 1000.0, 1e-9)
    if requests.at_work:
        cycles_ms = float(records[:, k.R_E2E].sum() + requests.think_ms.sum())
        duration_s = max(cycles_ms / requests.at_work / 1000.0, 1e-9)
        end_ms = start_ms + duration_s * 1000.0
    floats = np.array([engine.floats for engine in engines])
    busy_ms = float(floats[:, k.F_BUSY_MS].sum())
    span_ms = max((end_ms - start_ms) * len(engines), 1e-9)
    pool = engines[0].rules.pool_blocks
    alloc = float(floats[:, k.F_ALLOC_MS].sum())
    live = float(floats[:, k.F_LIVE_MS].sum()) / engines[0].rules.policy.block_tokens
    output = float(ended[:, k.R_OUTPUT].sum())
    prompts = float(ended[:, k.R_INPUT].sum())
    hist = np.sum([engine.itl_hist for engine in engines], axis=0)
    tpot = tpot_ms(records)
    return SimResult(
        requests=requests.size,
        completed=records.shape[0],
        duration_s=duration_s,
        output_tok_per_s=output / duration_s,
        total_tok_per_s=(output + prompts) / duration_s,
        req_per_s=ended.shape[0] / duration_s,
        ttft_ms=percentiles(records[:, k.R_TTFT]),
        tpot_ms=percentiles(tpot),
        itl_ms=histogram_percentiles(hist),
        e2e_ms=percentiles(records[:, k.R_E2E]),
        goodput_per_s=float(meets_slo(ended, slo).sum()) / duration_s if slo else None,
        preemptions=int(sum(engine.ints[k.I_PREEMPTIONS] for engine in engines)),
        utilisation=min(1.0, busy_ms / span_ms),
        mean_batch=float(floats[:, k.F_BATCH_MS].sum()) / max(busy_ms, 1e-9),
        mean_kv_used=min(1.0, alloc / max(busy_ms, 1e-9) / max(pool, 1)),
        kv_waste=min(1.0, max(0.0, 1.0 - live / alloc)) if alloc > 0 else 0.0,
        steps=int(sum(engine.ints[k.I_STEPS] for engine in engines)),
        saturated=is_saturated(records, requests),
        timeline=sampled(engines[0]) if engines[0].timeline.shape[0] else None,
        prefix_hit=float(ended[:, k.R_HIT].sum()) / prompts if prompts > 0 else 0.0,
        samples=samples_of(records[:, k.R_TTFT], records[:, k.R_E2E], tpot, hist),
    )


def is_saturated(records: F64, requests: RequestSet) -> bool:
    """Open loop: requests of the last fifth wait much longer than those of the second fifth, beyond noise.

    Sessions slow down with the answers that they wait for, so that fewer requests are sent than came with them.
    """
    if requests.closed or requests.size < 40 or float(requests.sent_ms.max()) <= 0.0:
        return False
    if requests.measured_ms is not None:
        from_ms, to_ms = requests.measured_ms
        if records.shape[0] < _SESSIONS_KEPT_UP * requests.offered_per_s * (to_ms - from_ms) / 1000.0:
            return True
    order = np.argsort(records[:, k.R_SEND], kind="stable")
    ttft = records[order, k.R_TTFT]
    fifth = ttft.size // 5
    early, late = float(np.median(ttft[fifth : 2 * fifth])), float(np.median(ttft[-fifth:]))
    span_ms = float(requests.sent_ms.max())
    return late > 2.0 * early and late - early > 0.05 * span_ms


def sampled(engine: InstanceRun) -> Timeline:
    """What an engine with timeline rows looked like over its run; what it preempted waits again."""
    rows = engine.timeline[: int(engine.ints[k.I_SAMPLES])]
    pool = max(engine.rules.pool_blocks, 1)
    times = rows[:, k.L_TIME]
    visible = np.sort(engine.visible[: int(engine.ints[k.I_ISSUED])])
    arrived = np.searchsorted(visible, times, side="right")
    return Timeline(
        t_s=times / 1000.0,
        running=rows[:, k.L_RUNNING].astype(np.int64),
        waiting=np.maximum(arrived - rows[:, k.L_ADMITTED].astype(np.int64), 0),
        kv_used=rows[:, k.L_USED] / pool,
        live_kv=rows[:, k.L_LIVE] / (pool * engine.rules.policy.block_tokens),
    )


def as_reached(step: StepModel, load: Load, outputs: Lengths, instances: int) -> StepModel:
    """The front end that ``load`` meets: none for an offline batch, which calls the engine's library; one message for
    every ``stream_interval`` tokens.

    With open arrivals the front end handles requests in what streaming leaves it of its time (processor sharing): what
    takes d ms alone takes d / (1 - u), u the share of time that the offered tokens' chunks fill. Measured with vLLM
    0.24.0 on an H200: Qwen3-0.6B at 25 requests/s of 256 tokens, u = 0.55, waits 24 ms more than its steps explain.
    """
    if load.kind == "offline":
        return replace(step, front_end=FrontEnd(0.0, 0.0, 0.0, 0.0))
    front = step.front_end
    if load.stream_interval > 1:
        tokens = load.stream_interval
        loop = front.loop
        if loop is not None:
            each, large = loop.chunk_ms / tokens, loop.large_step_chunk_ms / tokens
            loop = replace(loop, chunk_ms=each, large_step_chunk_ms=large)
        front = replace(front, chunk_ms=front.chunk_ms / tokens, loop=loop)
    if load.kind == "open":
        rate = load.rate_per_s
        if load.arrival == "trace":
            rate = mean_rate(load.times_s) if load.times_s[-1] > load.times_s[0] else 0.0
        filled = front.chunk_ms * outputs.expected * rate / instances / 1000.0
        longer = 1.0 / (1.0 - min(filled, _FRONT_END_FULL))
        front = replace(
            front,
            request_ms=front.request_ms * longer,
            request_ms_per_1k_tokens=front.request_ms_per_1k_tokens * longer,
            request_serial_ms=front.request_serial_ms * longer,
            response_ms=front.response_ms * longer,
        )
    return replace(step, front_end=front)


def within_context(requests: RequestSet, resolved: ResolvedSettings, inputs: Lengths, outputs: Lengths) -> RequestSet:
    """Raise InfeasibleError when a request exceeds the context; drawn tails are cut there instead."""
    longest = int((requests.inputs + requests.outputs).max())
    if longest <= resolved.max_model_len:
        return requests
    drawn = "normal" in (inputs.kind, outputs.kind)
    nominal = inputs.value + outputs.value if inputs.kind == outputs.kind == "fixed" else 0
    if not drawn and not 0 < nominal <= resolved.max_model_len:
        raise InfeasibleError(
            f"a request of {longest} tokens exceeds max_model_len {resolved.max_model_len}",
            field="max_model_len",
            value=resolved.max_model_len,
            remedy="Raise max_model_len or shorten the requests.",
        )
    return _clip(requests, resolved.max_model_len)


def _clip(requests: RequestSet, limit: int) -> RequestSet:
    """Cut the tail of drawn lengths at the context limit, as a client that knows the limit would."""
    outputs = np.minimum(requests.outputs, limit - 1)
    inputs = np.minimum(requests.inputs, limit - outputs)
    return replace(requests, inputs=inputs, outputs=outputs, hits=np.minimum(requests.hits, inputs - 1))

"""Sessions over prefill and decode pools: what each role's prefix cache holds of a turn, and what moves again.

A session stays with one instance of either pool, as behind a proxy that goes by prefixes. The prefill instance finds
what it computed itself: earlier prompts, not the answers that decode made since; it computes the last answer again with
the new tokens (llm-d issue 1307; vLLM moves answers back only when told, ``bidirectional_kv_xfer``, its pull request
32553: not modelled). The decode instance keeps the blocks of turns that ended as long as they are not needed, prompts
and answers, and pulls what it lacks: vLLM's scheduler counts its own cached blocks first and reads the blocks behind
them (``get_unhashed_block_ids``, pull requests 21074 and 50558), TensorRT-LLM's receiver states how many trailing
blocks it needs (``cacheFormatter.cpp: getBlockRangeForSending``).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from planner.serving import state as k
from planner.serving.arrivals import Prefixes, RequestSet
from planner.serving.disaggregated_timeline import rows_for
from planner.serving.engine import InstanceRules, InstanceRun
from planner.serving.router import run_routed
from planner.serving.types import F64, I64
from planner.steptime.types import StepModel


def chains(following: I64) -> tuple[I64, I64]:
    """For each request the number of its chain of requests that follow each other, and its place in that, from 0."""
    chain = np.zeros(following.size, dtype=np.int64)
    place = np.zeros(following.size, dtype=np.int64)
    follows = np.zeros(following.size, dtype=bool)
    follows[following[following >= 0]] = True
    here = np.flatnonzero(~follows)
    chain[here] = np.arange(here.size)
    depth = 0
    while here.size:
        place[here] = depth
        going = here[following[here] >= 0]
        chain[following[going]] = chain[going]
        here, depth = following[going], depth + 1
    return chain, place


def sent_after(first_ms: F64, e2e: F64, pauses: F64, following: I64, place: I64) -> F64:
    """When each request is sent: those at place 0 at ``first_ms``, the others a pause after the answer before."""
    sent = first_ms.astype(np.float64, copy=True)
    for depth in range(int(place.max())):
        here = np.flatnonzero((place == depth) & (following >= 0))
        after = following[here]
        sent[after] = sent[here] + e2e[here] + pauses[after]
    return sent


def prefill_with_cache(
    step: StepModel, rules: InstanceRules, sent: F64, requests: RequestSet, owner: I64, timeline: bool = False
) -> tuple[F64, I64, list[InstanceRun]]:
    """The prefill pool: TTFT and cached prompt tokens of every request in its order, and the engines that ran."""
    ttft, hits = np.empty(sent.size), np.zeros(sent.size, dtype=np.int64)
    engines = []
    for instance in range(int(owner.max()) + 1):
        own = np.flatnonzero(owner == instance)
        if own.size == 0:
            continue
        prefixes = requests.prefixes
        part = RequestSet(
            sent_ms=sent[own],
            inputs=requests.inputs[own],
            outputs=np.ones(own.size, dtype=np.int64),
            hits=np.zeros(own.size, dtype=np.int64),
            closed=False,
            first_issued=own.size,
            think_ms=np.zeros(own.size),
            prefixes=None if prefixes is None else replace(prefixes, spans=prefixes.spans[own]),
        )
        rows = rows_for(own.size) if timeline else 0
        ran, records = run_routed(step, rules, part, 1, "round_robin", timeline_rows=rows)
        at = own[records[:, k.R_ID].astype(np.int64)]
        ttft[at], hits[at] = records[:, k.R_TTFT], records[:, k.R_HIT].astype(np.int64)
        engines += ran
    return ttft, hits, engines


def held_by_decode(
    rules: InstanceRules, start: F64, end: F64, requests: RequestSet, session: I64, owner: I64, shared_tokens: int
) -> I64:
    """Prompt tokens of each request that its decode instance still holds when it comes, by the times of a run.

    Blocks of ended turns lie in the free pool, the longest untouched go first; running requests hold theirs, counted at
    full length. The shared beginning is touched by every session and stays once it is there. Zero without prefix
    caching.
    """
    held = np.zeros(start.size, dtype=np.int64)
    if not rules.policy.prefix_caching:
        return held
    block = rules.policy.block_tokens
    prompt, whole = (requests.inputs - 1) // block, -(-(requests.inputs + requests.outputs) // block)
    kept = (requests.inputs + requests.outputs - 1) // block
    for instance in range(int(owner.max()) + 1):
        own = np.flatnonzero(owner == instance)
        order = np.argsort(np.concatenate([start[own], end[own]]), kind="stable")
        free, cached = rules.pool_blocks, 0
        begun = 0  # blocks of the shared beginning that are there
        left: OrderedDict[int, int] = OrderedDict()
        for event in order.tolist():
            request = own[event % own.size]
            text = int(session[request])
            if event < own.size:
                found = left.pop(text, 0)
                cached -= found
                held[request] = min(max(found, begun), int(prompt[request])) * block
                free -= int(whole[request])
            else:
                free += int(whole[request])
                left[text] = int(kept[request])
                cached += int(kept[request])
                begun = shared_tokens // block
            while cached > max(free, 0) and left:
                oldest = next(iter(left))
                gone = min(left[oldest], cached - max(free, 0))
                left[oldest] -= gone
                cached -= gone
                if left[oldest] == 0:
                    del left[oldest]
    return held


def sessions_of(prefixes: Prefixes) -> I64:
    """The number of the session of each request: requests of one text start at the same place of the chain."""
    found: I64 = np.unique(prefixes.spans[:, 0], return_inverse=True)[1].astype(np.int64)
    return found

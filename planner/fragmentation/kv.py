"""Waste inside a KV pool: the share that holds live tokens under three ways of giving out memory, and how many run.

* **contiguous**: every request takes ``max_model_len`` tokens of adjacent memory for its whole life, as servers did
  before paging (Orca "Max" in Kwon et al., PagedAttention, SOSP 2023, which measured 20 to 38 % of the pool in use).
* **paged**: blocks are given out as tokens come; when none is free the youngest request is put back and computed again.
* **paged_reserved**: blocks for prompt and output are promised on admission (TensorRT-LLM's GUARANTEED_NO_EVICT).

The pool is kept under load: requests wait in order, each step gives every running request one token, prefill is
instant. So the figures are about memory alone, not about speed; they are means over the steps at which requests wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError

POLICIES = ("contiguous", "paged", "paged_reserved")
LITERATURE_WASTE = (0.60, 0.80)
LITERATURE_GAIN = (2.0, 4.0)
_SERIES_POINTS = 240
_CONTIGUOUS, _PAGED, _RESERVED = range(3)
_LIVE, _HELD, _RUNNING, _PROMISED = range(4)


@dataclass(frozen=True, slots=True)
class PolicyWaste:
    """One policy on one pool; shares are of the whole pool, averaged over the loaded steps.

    ``live_share`` + ``last_block_share`` + ``reserved_later_share`` + ``reserved_never_share`` + ``free_share`` = 1:
    tokens that exist; the unfilled rest of last blocks; room held for tokens still to come; room held for tokens that
    never come; room that nobody holds (too small for the next request, or left free). ``series_*`` run over the whole
    simulation, ``series_step`` gives the step of each point.
    """

    policy: str
    live_share: float
    last_block_share: float
    reserved_later_share: float
    reserved_never_share: float
    free_share: float
    concurrency: float
    peak_concurrency: int
    preemptions: int
    recomputed_tokens: int
    series_step: tuple[int, ...]
    series_live: tuple[float, ...]
    series_held: tuple[float, ...]
    series_concurrency: tuple[int, ...]

    @property
    def waste(self) -> float:
        """Share of the pool that holds no live token."""
        return 1.0 - self.live_share


@dataclass(frozen=True, slots=True)
class KvWasteReport:
    """The three policies on the same requests and pool, and what the paged pool gains over the contiguous one."""

    pool_tokens: int
    block_tokens: int
    max_model_len: int
    requests: int
    policies: tuple[PolicyWaste, ...]
    concurrency_gain: float
    sentence: str

    def policy(self, name: str) -> PolicyWaste:
        """The policy of that name; raises KeyError for one that is none."""
        return {policy.policy: policy for policy in self.policies}[name]


def kv_waste(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    pool_tokens: int,
    *,
    block_tokens: int = 16,
    max_model_len: int | None = None,
    output_limit: int | None = None,
    max_seqs: int = 1024,
) -> KvWasteReport:
    """Compare the three policies on requests of these lengths (equal-length arrays, in order of arrival).

    ``max_model_len`` (tokens) is what the contiguous policy reserves: by default the longest request rounded up to a
    power of two. ``output_limit`` is what clients allow as output (max_tokens) and so what paged_reserved promises; by
    default the output that really comes, the best case. Requests that exceed ``max_model_len`` are refused by an
    engine, so they are an InputError here, as is a pool that does not hold one request.
    """
    prompts = np.asarray(input_tokens, dtype=np.int64)
    outputs = np.asarray(output_tokens, dtype=np.int64)
    if prompts.ndim != 1 or prompts.shape != outputs.shape or prompts.size == 0:
        raise InputError("must be two equal, non-empty lists", field="input_tokens", value=prompts.shape)
    if prompts.min() < 1 or outputs.min() < 1:
        raise InputError("must be at least 1 token", field="input_tokens", value=int(min(prompts.min(), outputs.min())))
    if block_tokens < 1 or max_seqs < 1:
        raise InputError("must be at least 1", field="block_tokens", value=block_tokens)
    longest = int((prompts + outputs).max())
    length = max_model_len if max_model_len is not None else 1 << (longest - 1).bit_length()
    if longest > length:
        raise InputError(
            f"a request of {longest} tokens exceeds it", field="max_model_len", value=length, remedy="Raise it."
        )
    if pool_tokens < max(length, math.ceil(longest / block_tokens) * block_tokens):
        raise InputError("does not hold one request of max_model_len", field="pool_tokens", value=pool_tokens)
    promised = outputs if output_limit is None else np.maximum(outputs, min(output_limit, length))
    promised = np.minimum(promised, length - prompts)
    policies = tuple(
        _run(index, prompts, outputs, promised, pool_tokens, block_tokens, length, max_seqs) for index in range(3)
    )
    gain = policies[_PAGED].concurrency / policies[_CONTIGUOUS].concurrency
    sentence = _sentence(policies, gain, prompts + outputs, length, pool_tokens, max_seqs)
    return KvWasteReport(pool_tokens, block_tokens, length, int(prompts.size), policies, gain, sentence)


def _run(
    policy: int,
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
    promised: NDArray[np.int64],
    pool: int,
    block: int,
    length: int,
    max_seqs: int,
) -> PolicyWaste:
    unit = 1 if policy == _CONTIGUOUS else block
    steps, loaded, preemptions, recomputed = _simulate(
        policy, prompts, outputs, promised, pool // unit, unit, length, max_seqs
    )
    window = steps[:loaded] if loaded else steps
    mean = window.mean(axis=0)
    live, held, running, to_come = (float(mean[i]) for i in range(4))
    if policy == _PAGED:
        last_block, later, never = held - live, 0.0, 0.0
    else:
        last_block = 0.0
        later = to_come
        never = held - live - to_come
        if policy == _RESERVED:
            last_block = min(never, running * (block - 1) / 2)
            never -= last_block
    stride = max(1, len(steps) // _SERIES_POINTS)
    points = steps[::stride]
    return PolicyWaste(
        POLICIES[policy],
        live / pool,
        last_block / pool,
        later / pool,
        never / pool,
        1.0 - held / pool,
        running,
        int(steps[:, _RUNNING].max()),
        preemptions,
        recomputed,
        tuple(range(0, len(steps), stride)),
        tuple((points[:, _LIVE] / pool).tolist()),
        tuple((points[:, _HELD] / pool).tolist()),
        tuple(int(value) for value in points[:, _RUNNING]),
    )


def _sentence(
    policies: tuple[PolicyWaste, ...],
    gain: float,
    totals: NDArray[np.int64],
    length: int,
    pool: int,
    max_seqs: int,
) -> str:
    """Compare with the literature's 60 to 80 % waste and 2 to 4 times more concurrency, and say what departs."""
    waste = policies[_CONTIGUOUS].waste
    text = (
        f"Reserving {length:,} tokens a request leaves {waste:.0%} of the pool without live tokens, paging "
        f"{policies[_PAGED].waste:.0%}; paging runs {gain:.1f} times as many requests."
    )
    if policies[_PAGED].concurrency > 0.9 * max_seqs:
        text += f" With paging max_num_seqs ({max_seqs:,}) ends before the pool does, so the rest stays free."
    fill = float(totals.mean()) / length
    if waste > LITERATURE_WASTE[1] or gain > LITERATURE_GAIN[1]:
        return (
            f"{text} That is more than the literature's 60-80 % and 2-4 times: the mean request fills only {fill:.0%} "
            "of the reservation."
        )
    if waste < LITERATURE_WASTE[0] or gain < LITERATURE_GAIN[0]:
        why = f"the mean request fills {fill:.0%} of the reservation"
        if pool < 8 * length:
            why += f" and the pool holds only {pool // length} of them"
        return f"{text} That is less than the literature's 60-80 % and 2-4 times: {why}."
    return f"{text} That is what the literature reports (60-80 %, 2-4 times)."


@njit(cache=True)
def _need(policy, prompt, promised, made, unit, length):
    if policy == _CONTIGUOUS:
        return length
    if policy == _RESERVED:
        return (prompt + promised + unit - 1) // unit
    return (prompt + made + unit - 1) // unit


@njit(cache=True)
def _simulate(policy, prompts, outputs, promised, units, unit, length, max_seqs):
    """Run all requests; returns (steps x [live, held, running, still to come] in tokens, loaded steps, preemptions,
    recomputed tokens)."""
    count = len(prompts)
    made = np.zeros(count, np.int64)
    owned = np.zeros(count, np.int64)
    running = np.empty(max_seqs, np.int64)
    put_back = np.empty(max_seqs + 1, np.int64)
    active = 0
    waiting_again = 0
    following = 0
    free = units
    loaded = 0
    preemptions = 0
    recomputed = 0
    log = np.zeros((1024, 4), np.float64)
    step = 0
    while following < count or active > 0 or waiting_again > 0:
        # 1. every running request needs room for one more token
        position = 0
        while position < active:
            request = running[position]
            if policy == _PAGED and (prompts[request] + made[request]) % unit == 0:
                while free == 0 and active > position + 1:
                    active -= 1
                    victim = running[active]
                    free += owned[victim]
                    recomputed += prompts[victim] + made[victim]
                    owned[victim] = 0
                    put_back[waiting_again] = victim
                    waiting_again += 1
                    preemptions += 1
                if free == 0:
                    active -= 1
                    free += owned[request]
                    recomputed += prompts[request] + made[request]
                    owned[request] = 0
                    put_back[waiting_again] = request
                    waiting_again += 1
                    preemptions += 1
                    break
                owned[request] += 1
                free -= 1
            made[request] += 1
            position += 1
        # 2. the finished ones give their room back, order kept
        kept = 0
        for position in range(active):
            request = running[position]
            if made[request] >= outputs[request]:
                free += owned[request]
                owned[request] = 0
            else:
                running[kept] = request
                kept += 1
        active = kept
        # 3. admit in order, those put back first
        while active < max_seqs and (waiting_again > 0 or following < count):
            request = put_back[waiting_again - 1] if waiting_again > 0 else following
            need = _need(policy, prompts[request], promised[request], made[request], unit, length)
            if need > free:
                break
            if waiting_again > 0:
                waiting_again -= 1
            else:
                following += 1
            owned[request] = need
            free -= need
            running[active] = request
            active += 1
        # 4. account
        live = 0
        to_come = 0
        for position in range(active):
            request = running[position]
            live += prompts[request] + made[request]
            to_come += outputs[request] - made[request]
        if step == len(log):
            larger = np.zeros((2 * step, 4), np.float64)
            larger[:step] = log
            log = larger
        log[step, _LIVE] = live
        log[step, _HELD] = (units - free) * unit
        log[step, _RUNNING] = active
        log[step, _PROMISED] = to_come
        step += 1
        if following < count:
            loaded = step
    return log[:step], loaded, preemptions, recomputed

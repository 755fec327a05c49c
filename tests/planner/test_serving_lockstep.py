"""Ranks that step together against a plain loop over reference schedulers, and what they do to each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_samples import gpu, trtllm, vllm
from reference_scheduler import ReferenceScheduler, Step
from serving_samples import REAL_FRONT_END, fixed, step_model, trt_rules, uniform, vllm_rules

from planner.catalog import get_model
from planner.engines import EngineSettings, resolve
from planner.memory import ledger
from planner.serving import state as k
from planner.serving.arrivals import RequestSet, request_set
from planner.serving.engine import InstanceRules
from planner.serving.instance import Instance
from planner.serving.lockstep import PromptHold, run_ranks
from planner.serving.simulator import ranks_in_step, run_requests, split_round_robin
from planner.serving.types import Load
from planner.steptime.kernel import step_ms
from planner.steptime.types import StepModel, kernel_args


def with_experts(step: StepModel, share: float) -> StepModel:
    """``step`` with a share of what all tokens share made of experts."""
    return replace(step, tables=replace(step.tables, experts_ms=share * step.tables.shared_ms))


class Ranks:
    """The same by brute force: one reference scheduler a rank, one loop over steps, no leaps."""

    def __init__(self, step: StepModel, rules: InstanceRules, parts: list[RequestSet], hold: PromptHold) -> None:
        self.step, self.wait_steps, self.hold = step, hold.rank_steps, hold
        self.held = 0
        self.ranks = [ReferenceScheduler(step, rules, part) for part in parts]
        self.policy = rules.policy
        self.waited = 0

    def _prompts_everywhere(self, now: float) -> bool:
        for rank in self.ranks:
            if sum(r.state == "decode" for r in rank.running) >= self.policy.max_seqs:
                return False
            if rank.waiting or any(r.state == "prefill" for r in rank.running):
                continue
            if not rank.future or rank.future[0].visible > now or len(rank.running) >= self.policy.max_seqs:
                return False
            head = rank.future[0]
            if -(-(head.prompt + head.output) // self.policy.block_tokens) > len(rank.pool.free):
                return False
            decodes = sum(r.state == "decode" for r in rank.running)
            if decodes + (1 if self.policy.chunked_prefill else head.prompt) > self.policy.token_budget:
                return False
        return True

    def _enough(self, now: float) -> bool:
        """Whether one rank's prompts need not wait for more of them."""
        rank = self.ranks[0]
        decodes = sum(r.state == "decode" for r in rank.running)
        left, blocks = self.policy.token_budget - decodes, len(rank.pool.free)
        tokens = 0
        for request in [r for r in rank.future if r.visible <= now][: self.policy.max_seqs - len(rank.running)]:
            need = -(-(request.prompt + request.output) // self.policy.block_tokens)
            if need > blocks or request.prompt > left:
                break
            tokens, left, blocks = tokens + request.prompt, left - request.prompt, blocks - need
        if not tokens or not decodes:
            return True
        if self.held < self.hold.batch_steps and tokens + decodes < self.hold.batch_tokens:
            self.held += 1
            return False
        self.held = 0
        return True

    def _opens(self, now: float) -> bool:
        if self.hold.batch_steps and len(self.ranks) == 1:
            return self._enough(now)
        if self.wait_steps == 0 or self._prompts_everywhere(now):
            self.waited = 0
            return True
        self.waited += 1
        decoding = all(any(r.state == "decode" for r in rank.running) for rank in self.ranks)
        if self.waited >= self.wait_steps or not decoding:
            self.waited = 0
            return True
        return False

    def _ms(self, steps: list[Step | None], made: list[tuple[float, ...]]) -> float:
        real = [step for step in steps if step is not None and not step.empty]
        longest = max((step.ms for step in real), default=0.0)
        tables = self.step.tables
        if not any(step.prompts for step in real) or tables.experts_ms.size == 0:
            return longest
        bare = kernel_args(replace(tables, host_ms=0.0, host_ms_per_sequence=0.0, launch_ms=0.0))
        mean = sum(new + batch for new, _, _, batch, _ in made) / len(self.ranks)
        own = max(step_ms(*bare, *one) - _at(tables, one[0] + one[3]) for one in made)
        floors = []
        for new, prompts, _, batch, _ in made:
            floor = tables.host_ms + tables.host_ms_per_sequence * (prompts + batch)
            beyond = new > 0 and new + batch > tables.graph_sizes[-1]
            floors.append(max(floor, tables.launch_ms) if beyond else floor)
        return max(own + _at(tables, mean), *floors)

    def run(self) -> list[tuple[float, float, float]]:
        """(sent, first token, last token) of every request."""
        now = 0.0
        current: list[Step | None] = [None] * len(self.ranks)
        while True:
            under_way = any(step is not None for step in current)
            if not under_way and not any(rank.running or rank.waiting for rank in self.ranks):
                arrivals = [rank.future[0].visible for rank in self.ranks if rank.future]
                if not arrivals:
                    return [(r.sent, r.first, r.done_at) for rank in self.ranks for r in rank.finished]
                now = max(now, min(arrivals))
            opens = self._opens(now)
            planned: list[Step | None] = []
            made = []
            for rank, running in zip(self.ranks, current, strict=True):
                due = rank.future and rank.future[0].visible <= now
                if running is None and not rank.running and not rank.waiting and not due:
                    planned.append(None)
                    continue
                rank.policy = self.policy if opens else replace(self.policy, token_budget=0)
                ghosts = running.finishing if running is not None and rank.rules.extra_step else []
                step = rank.plan(now, ghosts)
                planned.append(None if step.empty else step)
                if not step.empty:
                    made.append(rank.made)
            ms = self._ms(planned, made)
            for step in planned:
                if step is not None:
                    step.ms = ms
            if not under_way:
                current = planned
                if self.policy.steps_ahead:
                    continue
                planned = [None] * len(self.ranks)
            ended = now
            for rank, running in zip(self.ranks, current, strict=True):
                if running is not None:
                    ended = now + running.ms
                    rank.deliver(running, ended)
            now = ended
            current = planned


def _at(tables, tokens: float) -> float:
    return float(np.interp(tokens, tables.shared_tokens, tables.experts_ms))


RULES = st.sampled_from(
    [
        trt_rules(seqs=4),
        trt_rules(seqs=16, budget=1200),
        trt_rules(60, seqs=16),
        replace(trt_rules(seqs=8, ahead=0), extra_step=False),
        vllm_rules(seqs=8, budget=256),
        vllm_rules(seqs=16, ahead=0),
        vllm_rules(60, seqs=16),
    ]
)
LOADS = st.builds(
    Load,
    kind=st.sampled_from(["closed", "open", "offline"]),
    concurrency=st.sampled_from([3, 8, 32]),
    rate_per_s=st.sampled_from([1.0, 40.0]),
    requests=st.sampled_from([4, 30, 60]),
)


@settings(max_examples=80, deadline=None)
@given(
    rules=RULES, load=LOADS, ranks=st.integers(2, 4), wait=st.sampled_from([0, 3, 60]), share=st.sampled_from([0, 0.5]),
    launch=st.sampled_from([0.0, 40.0]), seed=st.integers(0, 5),
)  # fmt: skip
def test_ranks_equal_a_plain_loop(rules, load, ranks, wait, share, launch, seed) -> None:
    if not rules.policy.reserve_output:
        wait = 0  # TensorRT-LLM's option
    step = step_model(REAL_FRONT_END)
    step = replace(step, tables=replace(step.tables, launch_ms=launch))
    step = with_experts(step, share) if share else step
    requests = request_set(load, uniform(20, 300), uniform(1, 60), seed=seed, block_tokens=rules.policy.block_tokens)
    parts = split_round_robin(requests, ranks)
    check(step, rules, parts, PromptHold(wait))


@settings(max_examples=40, deadline=None)
@given(
    seqs=st.sampled_from([4, 16]), load=LOADS, batch=st.sampled_from([2, 20]), tokens=st.sampled_from([150.0, 900.0]),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_prompts_that_wait_for_more_equal_a_plain_loop(seqs, load, batch, tokens, seed) -> None:
    rules = trt_rules(seqs=seqs, budget=1200)
    requests = request_set(load, uniform(20, 300), uniform(1, 60), seed=seed, block_tokens=32)
    check(step_model(REAL_FRONT_END), rules, [requests], PromptHold(0, batch, tokens))


def check(step: StepModel, rules: InstanceRules, parts: list[RequestSet], hold: PromptHold) -> None:
    """Every request's times equal those of the plain loop."""
    _, records = run_ranks(step, rules, parts, hold=hold)
    expected = np.array(sorted(Ranks(step, rules, parts, hold).run()))
    response = step.front_end.response_ms
    first = records[:, k.R_SEND] + records[:, k.R_TTFT] - response
    last = records[:, k.R_SEND] + records[:, k.R_E2E] - response
    found = np.array(sorted(zip(records[:, k.R_SEND], first, last, strict=True)))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-4)


def test_one_rank_in_step_is_an_instance_by_itself() -> None:
    load = Load("open", rate_per_s=20.0, requests=200)
    requests = request_set(load, uniform(50, 500), uniform(10, 200), seed=1, block_tokens=32)
    _, together = run_ranks(step_model(), trt_rules(), [requests])
    alone = run_requests(step_model(), trt_rules(), requests)
    assert together[:, k.R_TTFT].mean() == pytest.approx(alone.ttft_ms.mean)
    assert together[:, k.R_E2E].mean() == pytest.approx(alone.e2e_ms.mean)
    assert together.shape[0] == alone.completed


def test_a_prompt_on_one_rank_holds_up_the_others() -> None:
    """Eight clients that decode and, on the second rank alone, long prompts."""
    steady = request_set(Load("closed", concurrency=8, requests=8), fixed(64), fixed(400), seed=0, block_tokens=32)
    prompts = request_set(Load("closed", concurrency=4, requests=40), fixed(8000), fixed(8), seed=0, block_tokens=32)
    _, both = run_ranks(step_model(), trt_rules(), [steady, prompts])
    _, alone = run_ranks(step_model(), trt_rules(), [steady])
    held, free = (rows[rows[:, k.R_OUTPUT] > 300][:, k.R_E2E].mean() for rows in (both, alone))
    assert held > 2.0 * free


def test_prompts_wait_for_prompts_on_every_rank() -> None:
    """With few arrivals a prompt waits half of the limit on average: the gate opens every so many steps."""
    load = Load("closed", concurrency=32, requests=320)
    requests = request_set(load, uniform(400, 500), uniform(500, 1000), seed=3, block_tokens=32)
    parts = split_round_robin(requests, 8)
    waits = {}
    for limit in (0, 20, 40):
        _, records = run_ranks(step_model(), trt_rules(), parts, hold=PromptHold(limit))
        waits[limit] = np.median(records[:, k.R_TTFT])
    step = step_model().decode_ms(4, 800.0)
    assert waits[20] - waits[0] == pytest.approx(10 * step, rel=0.4)
    assert waits[40] - waits[0] == pytest.approx(20 * step, rel=0.4)


def instance(settings: EngineSettings, model: str) -> Instance:
    spec = get_model(model)
    resolved = resolve(settings, spec, gpu("H200"))
    return Instance(spec, resolved, ledger(spec, gpu("H200"), resolved), step_model())


@pytest.mark.parametrize(
    ("settings", "model", "ranks"),
    [
        (trtllm(dp=8, ep=8), "deepseek-ai/DeepSeek-R1", 8),
        (trtllm(dp=2), "meta-llama/Llama-3.1-8B-Instruct", 2),
        (vllm("0.24.0", dp=8, ep=8), "deepseek-ai/DeepSeek-R1", 8),
        (vllm("0.24.0", dp=4), "meta-llama/Llama-3.1-8B-Instruct", 1),
        (vllm("0.24.0", tp=8), "deepseek-ai/DeepSeek-R1", 1),
    ],
)
def test_which_ranks_step_together(settings: EngineSettings, model: str, ranks: int) -> None:
    assert ranks_in_step(instance(settings, model)) == ranks

"""Sessions, the prefix cache in the KV pool, and routers: against closed forms and an independent LRU cache."""

from __future__ import annotations

import csv
import gzip
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_samples import REAL_FRONT_END, fixed, policy, step_model, uniform

from planner import catalog
from planner.catalog import get_gpu, get_model
from planner.engines import EngineName, EngineSettings, resolve
from planner.errors import InfeasibleError, InputError
from planner.estimate import estimate
from planner.memory import ledger
from planner.serving import Instance, Lengths, Load, SloTarget, largest_load, load_curve, simulate
from planner.serving import state as k
from planner.serving.arrivals import Prefixes, RequestSet
from planner.serving.engine import InstanceRules
from planner.serving.router import run_routed
from planner.serving.sessions import longest_prompt, mean_prompt, session_set
from planner.serving.simulator import run_requests
from planner.serving.types import SimResult

MODEL, GPU = get_model("Qwen/Qwen3-8B"), get_gpu("H200")
RESOLVED = resolve(EngineSettings(EngineName.VLLM), MODEL, GPU, expected_len=32_768)
INSTANCE = Instance(MODEL, RESOLVED, ledger(MODEL, GPU, RESOLVED), step_model(REAL_FRONT_END))
CHAT = (uniform(50, 800), uniform(100, 500))


def caching(pool_blocks: int, block: int = 16, **changes: int) -> InstanceRules:
    """vLLM's scheduler with prefix caching."""
    return InstanceRules(replace(policy(block=block, **changes), prefix_caching=True), pool_blocks, extra_step=False)


def with_pool(share: float) -> Instance:
    """The instance with a share of its KV pool."""
    tokens = int(INSTANCE.memory.kv_tokens * share)
    return replace(INSTANCE, memory=replace(INSTANCE.memory, kv_tokens=tokens, kv_blocks=tokens // 16))


def drawn(load: Load, seed: int = 0, max_len: int = 32_768) -> RequestSet:
    """Sessions of chat-like turns."""
    return session_set(load, *CHAT, seed=seed, block_tokens=16, max_len=max_len)


def test_each_turn_sends_all_that_was_said_before() -> None:
    load = Load("closed", concurrency=1, requests=6, turns=fixed(6), shared_tokens=100)
    requests = session_set(load, fixed(50), fixed(30), seed=3, block_tokens=16, max_len=32_768)
    steps = np.diff(requests.inputs)
    assert set(steps[steps > 0]) == {80}  # its own tokens and the answer before
    assert requests.inputs.max() == 100 + 5 * 80 + 50
    assert longest_prompt(load, fixed(50), fixed(30)) == 100 + 5 * 80 + 50


@pytest.mark.parametrize("turns", [fixed(3), uniform(2, 14), fixed(40)])
def test_no_drawn_prompt_is_longer_than_the_longest_expected(turns: Lengths) -> None:
    load = Load("closed", concurrency=400, turns=turns, shared_tokens=300)
    longest = longest_prompt(load, *CHAT)
    for seed in range(3):
        drawn_prompts = drawn(load, seed, max_len=10**6).inputs
        assert 0.6 * longest < drawn_prompts.max() <= longest
    assert longest <= 300 + (turns.longest - 1) * 1300 + 800


def test_one_session_alone_finds_all_but_its_newest_tokens() -> None:
    load = Load("open", rate_per_s=0.01, requests=5, turns=fixed(5), shared_tokens=64, think_s=2.0)
    requests = session_set(load, fixed(200), fixed(100), seed=0, block_tokens=16, max_len=32_768)
    _, records = run_routed(step_model(REAL_FRONT_END), caching(10_000), requests, 1, "round_robin")
    records = records[np.argsort(records[:, k.R_SEND])]
    written = records[:, k.R_INPUT] + records[:, k.R_OUTPUT] - 1  # the last token is never put into the cache
    expected = np.concatenate([[0], written[:-1] // 16 * 16])
    assert records[:, k.R_HIT].tolist() == expected.tolist()


def test_sessions_share_their_first_tokens() -> None:
    load = Load("open", rate_per_s=0.05, requests=40, turns=fixed(1), shared_tokens=1600)
    requests = session_set(load, fixed(100), fixed(20), seed=0, block_tokens=16, max_len=32_768)
    _, records = run_routed(step_model(REAL_FRONT_END), caching(10_000), requests, 1, "round_robin")
    hits = records[np.argsort(records[:, k.R_SEND]), k.R_HIT]
    assert hits[0] == 0
    assert (hits[1:] == 1600).all()


@settings(max_examples=60, deadline=None)
@given(
    pool=st.integers(130, 700),
    seqs=st.integers(1, 12),
    budget=st.sampled_from([64, 512, 8192]),
    trt=st.booleans(),
    instances=st.integers(1, 3),
    router=st.sampled_from(["round_robin", "least_loaded", "prefix_aware"]),
    kind=st.sampled_from(["open", "closed"]),
    seed=st.integers(0, 1000),
)
def test_blocks_are_never_lost_or_used_twice(
    pool: int, seqs: int, budget: int, trt: bool, instances: int, router, kind, seed: int
) -> None:
    load = Load(kind, rate_per_s=20.0, concurrency=9, requests=120, turns=uniform(1, 6), shared_tokens=70, think_s=0.2)
    requests = session_set(load, uniform(10, 120), uniform(1, 90), seed=seed, block_tokens=16, max_len=2000)
    rules = caching(pool, seqs=seqs, budget=budget, reserve=trt)
    engines, records = run_routed(step_model(), rules, requests, instances, router)
    assert records.shape[0] == requests.size
    assert sorted(records[:, k.R_ID].astype(int)) == list(range(requests.size))
    assert (records[:, k.R_HIT] < records[:, k.R_INPUT]).all()
    assert (records[:, k.R_TTFT] > 0).all()
    assert (records[:, k.R_E2E] >= records[:, k.R_TTFT] - 1e-9).all()
    for engine in engines:
        assert engine.ints[k.I_FREE] == pool
        assert engine.ints[k.I_RUNNING] == 0
        assert 0 <= engine.ints[k.I_CACHED] <= pool
        users = engine.cache[:-1, k.C_USERS]
        assert set(np.unique(users)) <= {k.NOT_THERE, 0}
        assert (users == 0).sum() == engine.ints[k.I_CACHED]
    sent = np.zeros(requests.size)
    sent[records[:, k.R_ID].astype(int)] = records[:, k.R_SEND]
    done = np.zeros(requests.size)
    done[records[:, k.R_ID].astype(int)] = records[:, k.R_SEND] + records[:, k.R_E2E]
    assert requests.following is not None
    first = np.flatnonzero(requests.following >= 0)
    assert (sent[requests.following[first]] >= done[first] - 1e-6).all()


def test_without_prefix_caching_nothing_is_found() -> None:
    off = replace(INSTANCE, resolved=replace(RESOLVED, enable_prefix_caching=False))
    load = Load("open", rate_per_s=2, turns=fixed(6), think_s=5, requests=600)
    without, found = simulate(off, load, *CHAT), simulate(INSTANCE, load, *CHAT)
    assert without.prefix_hit == 0.0
    assert found.prefix_hit > 0.7
    assert found.ttft_ms is not None
    assert without.ttft_ms is not None
    assert found.ttft_ms.p50 < without.ttft_ms.p50


def test_a_smaller_pool_forgets_more() -> None:
    load = Load("open", rate_per_s=6, turns=uniform(2, 14), shared_tokens=1000, think_s=20)
    found = [simulate(with_pool(share), load, *CHAT).prefix_hit for share in (1.0, 0.3, 0.1)]
    assert found[0] > 0.85
    assert found[0] > found[1] > found[2] > 0.1  # the shared beginning stays


def test_the_prefix_aware_router_keeps_sessions_together() -> None:
    load = Load("open", rate_per_s=12, turns=uniform(2, 14), shared_tokens=1000, think_s=20)

    def through(router) -> SimResult:
        return simulate(INSTANCE, load, *CHAT, replicas=4, router=router)

    turn, least, aware = through("round_robin"), through("least_loaded"), through("prefix_aware")
    assert aware.prefix_hit > 0.8
    assert turn.prefix_hit < 0.75
    assert least.prefix_hit < 0.75
    assert aware.ttft_ms is not None
    assert turn.ttft_ms is not None
    assert aware.ttft_ms.p50 < turn.ttft_ms.p50
    again = through("prefix_aware")
    assert (again.ttft_ms, again.prefix_hit, again.steps) == (aware.ttft_ms, aware.prefix_hit, aware.steps)


def test_rate_counts_requests_and_the_steady_state_is_measured() -> None:
    load = Load("open", rate_per_s=5, turns=uniform(2, 10), think_s=10, shared_tokens=200)
    found = simulate(INSTANCE, load, *CHAT)
    assert not found.saturated
    assert found.req_per_s == pytest.approx(5.0, rel=0.08)
    prompts = (found.total_tok_per_s - found.output_tok_per_s) / found.req_per_s
    assert prompts == pytest.approx(mean_prompt(load, *CHAT), rel=0.06)
    crowded = simulate(with_pool(0.06), replace(load, rate_per_s=12), *CHAT)
    assert crowded.saturated


def test_clients_of_a_closed_loop_go_on_with_new_sessions() -> None:
    load = Load("closed", concurrency=8, turns=fixed(4), think_s=1.0)
    requests = drawn(load)
    assert requests.following is not None
    assert requests.first_issued == 8
    assert (requests.following < 0).sum() == 8  # only each client's last request is followed by none
    found = simulate(INSTANCE, load, *CHAT)
    assert found.completed == found.requests


def test_a_session_ends_where_the_context_does() -> None:
    load = Load("open", rate_per_s=2, turns=fixed(50), think_s=1, requests=500)
    requests = drawn(load, max_len=4096)
    assert int((requests.inputs + requests.outputs).max()) <= 4096
    with pytest.raises(InfeasibleError, match="first turn"):
        session_set(load, fixed(5000), fixed(10), seed=0, block_tokens=16, max_len=4096)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prefix_hit": 0.5}, "prefix_hit"),
        ({"arrival": "trace", "times_s": (0.0, 1.0)}, "arrival"),
        ({"shared_tokens": -1}, "shared_tokens"),
    ],
)
def test_senseless_sessions_are_refused_by_name(changes: dict, named: str) -> None:
    load = replace(Load("open", rate_per_s=1, turns=fixed(3)), **changes)
    with pytest.raises(InputError, match=named):
        simulate(INSTANCE, load, *CHAT)


def test_mean_prompt_of_uneven_sessions() -> None:
    load = Load("open", rate_per_s=1, turns=Lengths("samples", samples=(1, 3)), shared_tokens=10)
    # prompts 110 | 110, 220, 330: four requests of two sessions
    assert mean_prompt(load, fixed(100), fixed(10)) == pytest.approx((110 + 110 + 220 + 330) / 4)


def mooncake(count: int) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Lengths and prefix blocks (512 tokens) of the first requests of the trace."""
    path = Path(catalog.__file__).parent / "data" / "traces" / "mooncake_synthetic.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:count]
    blocks = [[int(block) for block in row["prefix_block_ids"].split()] for row in rows]
    inputs = np.array([int(row["input_tokens"]) for row in rows])
    return inputs, np.array([int(row["output_tokens"]) for row in rows]), blocks


def trace_prefixes(blocks: list[list[int]], unit_tokens: int, inputs: np.ndarray) -> Prefixes:
    """The units of a trace's prompts, as the numbers of its prefix blocks; answers are taken to be used by nobody."""
    numbers: dict[int, int] = {}
    whole = [row[: int(length) // unit_tokens] for row, length in zip(blocks, inputs, strict=True)]
    chain = np.array([numbers.setdefault(block, len(numbers)) for row in whole for block in row], dtype=np.int32)
    counts = np.array([len(row) for row in whole], dtype=np.int64)
    return Prefixes(unit_tokens, len(numbers), chain, np.column_stack([np.cumsum(counts) - counts, counts]))


def lru_hits(inputs: np.ndarray, outputs: np.ndarray, blocks: list[list[int]], pool: int, unit: int) -> int:
    """Tokens found by requests served one after the other, in an LRU cache of ``pool`` tokens that also holds them."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for prompt, answer, row in zip(inputs, outputs, blocks, strict=True):
        whole = row[: prompt // unit]
        leading = 0
        while leading < min(len(whole), (prompt - 1) // unit) and whole[leading] in cache:
            leading += 1
        found += leading * unit
        for block in whole:
            cache.pop(block, None)
        while len(cache) * unit > pool - (prompt + answer):
            cache.popitem(last=False)
        for block in reversed(whole):
            cache[block] = None
    return found


@pytest.mark.parametrize("pool_tokens", [200_000, 800_000, 3_000_000, 20_000_000])
def test_hit_share_of_a_published_trace_equals_an_lru_cache(pool_tokens: int) -> None:
    inputs, outputs, blocks = mooncake(1500)
    requests = RequestSet(
        sent_ms=np.arange(inputs.size) * 1e6,  # one after the other
        inputs=inputs,
        outputs=outputs,
        hits=np.zeros(inputs.size, dtype=np.int64),
        closed=False,
        first_issued=inputs.size,
        think_ms=np.zeros(inputs.size),
        prefixes=trace_prefixes(blocks, 512, inputs),
    )
    found = run_requests(step_model(), caching(pool_tokens // 16), requests)
    expected = lru_hits(inputs, outputs, blocks, pool_tokens, 512) / inputs.sum()
    assert found.prefix_hit == pytest.approx(expected, abs=0.003)


def test_an_unbounded_cache_finds_what_the_trace_repeats() -> None:
    inputs, outputs, blocks = mooncake(100_000)
    requests = RequestSet(
        sent_ms=np.arange(inputs.size) * 1e6,
        inputs=inputs,
        outputs=outputs,
        hits=np.zeros(inputs.size, dtype=np.int64),
        closed=False,
        first_issued=inputs.size,
        think_ms=np.zeros(inputs.size),
        prefixes=trace_prefixes(blocks, 512, inputs),
    )
    found = run_requests(step_model(), caching(10_000_000), requests)
    repeated = catalog.get_trace("mooncake_synthetic").prefix_hit
    assert found.prefix_hit == pytest.approx(repeated, abs=0.01)


@pytest.mark.parametrize(
    ("run", "clients", "requests"), [("q8b_sessions32", 32, 576), ("q8b_small_sessions16", 16, 288)]
)
def test_sessions_on_an_h200_are_predicted(run: str, clients: int, requests: int) -> None:
    """Real vLLM with a pool that holds all sessions, and with one that does not (benchmarks/data/h200_runs).

    Measured after the model was made.
    """
    data = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_runs" / "worker.csv"
    with data.open(encoding="utf-8", newline="") as source:
        row = next(row for row in csv.DictReader(source) if row["run"] == run)
    found = estimate(
        {
            "id": run,
            "model": row["model"],
            "gpu": "H200",
            "engine": "vllm",
            "engine_version": "0.24.0",
            "max_model_len": 8192,
            "gpu_memory_utilization": float(row["gpu_memory_utilization"]),
            "input_tokens": int(row["isl"]),
            "output_tokens": int(row["osl"]),
            "load": {"kind": "closed", "concurrency": clients, "requests": requests, "turns": int(row["turns"])},
        }
    )["perf"]
    assert found["tpot_ms"]["mean"] == pytest.approx(float(row["mean_tpot_ms"]), rel=0.05)
    assert found["output_tok_per_s"] == pytest.approx(float(row["output_tok_s"]), rel=0.08)
    assert found["ttft_ms"]["mean"] == pytest.approx(float(row["mean_ttft_ms"]), rel=0.16)
    if row["prefix_hit"]:
        assert found["prefix_hit"] == pytest.approx(float(row["prefix_hit"]), abs=0.03)


def test_a_benchmark_of_sessions_begins_with_first_turns() -> None:
    alone = Load("closed", concurrency=1, requests=6, turns=fixed(6))
    found = simulate(INSTANCE, alone, fixed(512), fixed(128))
    assert found.prefix_hit == pytest.approx(9520 / 12672)  # five turns find 640 k tokens each, less a block not full


def test_a_curve_of_sessions_reaches_past_its_knee() -> None:
    load = Load("open", rate_per_s=1, turns=uniform(2, 8), think_s=5, shared_tokens=500)
    largest = largest_load(INSTANCE, load, *CHAT, slo=(SloTarget("ttft", "p90", 500.0),))
    curve = load_curve(INSTANCE, load, *CHAT, points=6)
    assert largest.result is not None
    assert largest.result.prefix_hit > 0.3
    assert curve[0].rate_per_s < largest.rate_per_s < curve[-1].rate_per_s
    assert curve[-1].performance.saturated


@pytest.mark.parametrize("times", [0.2, 0.9, 1.0, 1.1, 5.0])
def test_where_a_search_for_sessions_begins_does_not_decide_where_it_ends(times: float) -> None:
    load = Load("open", rate_per_s=1, turns=uniform(2, 8), think_s=5, shared_tokens=500)
    slo = (SloTarget("ttft", "p90", 500.0), SloTarget("tpot", "mean", 40.0))
    anywhere = largest_load(INSTANCE, load, *CHAT, slo=slo)
    near = times * anywhere.rate_per_s
    found = largest_load(INSTANCE, load, *CHAT, slo=slo, near=near)
    assert found.rate_per_s == pytest.approx(anywhere.rate_per_s, rel=0.03)
    assert found.near_saturation == anywhere.near_saturation
    assert found.rate_per_s == largest_load(INSTANCE, load, *CHAT, slo=slo, near=near).rate_per_s
    if 0.9 <= times <= 1.1:
        assert found.simulations < anywhere.simulations


def test_turns_that_come_after_the_measured_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("open", rate_per_s=6.0, turns=uniform(2, 14), think_s=20.0, shared_tokens=200)
    cut, short = drawn(load), simulate(INSTANCE, load, *CHAT)
    monkeypatch.setattr("planner.serving.sessions._until", lambda requests, starts, end_ms: requests)
    whole, long = drawn(load), simulate(INSTANCE, load, *CHAT)
    assert 0.6 * whole.size < cut.size < 0.9 * whole.size
    assert short.completed == long.completed
    assert short.ttft_ms == long.ttft_ms  # whatever is sent in the measured time was simulated
    assert short.prefix_hit == pytest.approx(long.prefix_hit, rel=1e-9)
    assert short.e2e_ms.mean == pytest.approx(long.e2e_ms.mean, rel=1e-3)
    assert cut.following is not None
    sizes = np.bincount(np.cumsum(np.diff(cut.inputs, prepend=0) < 0))
    assert (cut.following[np.cumsum(sizes) - 1] == -1).all()


def test_users_of_a_service_bring_as_many_requests_each_whatever_their_number() -> None:
    """A run's last sessions once counted as time of all clients: 16 users seemed to bring no more than 8."""
    load = Load("closed", turns=uniform(2, 14), think_s=20.0, shared_tokens=400)
    for clients in (1, 8, 16, 64):
        result = simulate(INSTANCE, replace(load, concurrency=clients), *CHAT)
        assert result.e2e_ms is not None
        by_littles_law = clients / (result.e2e_ms.mean / 1000.0 + load.think_s)
        drawn_pauses = 3.5 / result.requests**0.5  # their mean varies so much
        assert result.req_per_s == pytest.approx(by_littles_law, rel=drawn_pauses)


def test_users_who_pause_are_sized_by_the_slo_and_not_by_the_end_of_a_run() -> None:
    load = Load("closed", concurrency=300, turns=uniform(2, 14), think_s=20.0, shared_tokens=400)
    slo = (SloTarget("tpot", "mean", 20.0),)
    found = largest_load(INSTANCE, load, *CHAT, slo=slo)
    assert found.result is not None
    assert found.result.tpot_ms is not None
    assert found.concurrency > 64
    assert 12.0 < found.result.tpot_ms.mean <= 20.0 or found.binding == "throughput"
    open_load = largest_load(INSTANCE, replace(load, kind="open", rate_per_s=1.0, concurrency=1), *CHAT, slo=slo)
    assert found.rate_per_s == pytest.approx(open_load.rate_per_s, rel=0.25)

"""Continuous batching of the emulated engine: invariants, and agreement with the planner's simulator."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import fields, replace

import numpy as np
import pytest
from emulation_samples import emulation
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import get_model
from planner.engines.types import EngineName
from planner.errors import InputError
from planner.evidence import Evidence
from planner.jsonio import from_json, to_json
from planner.memory.types import MemoryLedger
from planner.serving.instance import Instance
from planner.serving.simulator import simulate
from planner.serving.types import Lengths, Load
from planner.steptime.types import StepModel, StepTables
from runners.contracts import EngineLaunch
from runners.engines.commands import resolved_settings
from runners.engines.emulated.engine import EmulatedEngine
from runners.engines.emulated.metrics import EngineMetrics
from runners.engines.emulated.scheduler import Scheduler, Sequence
from runners.engines.emulated.spec import EmulationSpec, Limits, parse_spec

REQUESTS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=30)


def drain(scheduler: Scheduler, requests: list[tuple[int, int]]) -> dict[int, int]:
    """Run all requests to their end; returns tokens by request. Checks every step's limits on the way."""
    tokens: dict[int, int] = {}
    for number, (prompt, output) in enumerate(requests):
        tokens[number] = 0
        scheduler.add(Sequence(prompt, output, 0.0, lambda _last: None))
    numbers = {id(sequence): number for number, sequence in enumerate(scheduler.waiting)}
    limits = scheduler.limits
    for _ in range(200_000):
        batch = scheduler.schedule(0.0)
        if batch is None:
            break
        assert batch.new_tokens + len(batch.decodes) <= limits.max_num_batched_tokens
        assert len(scheduler.running) <= limits.max_num_seqs
        assert 0 <= scheduler.used_blocks <= limits.kv_blocks
        assert scheduler.used_blocks == sum(sequence.blocks for sequence in scheduler.running)
        for sequence, _ in scheduler.apply(batch):
            tokens[numbers[id(sequence)]] += 1
    assert not scheduler.running
    assert not scheduler.waiting
    return tokens


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(15, 60), st.integers(40, 400), st.integers(1, 16))
def test_every_request_gets_its_tokens_within_the_limits(
    requests: list[tuple[int, int]], blocks: int, budget: int, seqs: int
) -> None:
    limits = Limits(seqs, max(budget, seqs), 4096, 16, blocks)
    scheduler = Scheduler(limits)
    assert drain(scheduler, requests) == {number: output for number, (_, output) in enumerate(requests)}
    assert scheduler.used_blocks == 0


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(15, 60))
def test_reserving_output_never_preempts(requests: list[tuple[int, int]], blocks: int) -> None:
    scheduler = Scheduler(Limits(64, 512, 4096, 16, blocks, reserve_output=True, chunked_prefill=False))
    assert drain(scheduler, requests) == {number: output for number, (_, output) in enumerate(requests)}
    assert scheduler.preemptions == 0


def test_a_full_pool_preempts_the_last_admitted_and_recomputes_it() -> None:
    scheduler = Scheduler(Limits(8, 512, 4096, 16, 4))
    assert drain(scheduler, [(30, 20), (30, 20)]) == {0: 20, 1: 20}
    assert scheduler.preemptions >= 1


def test_cached_blocks_shorten_the_prefill_and_are_counted() -> None:
    scheduler = Scheduler(Limits(8, 512, 4096, 16, 100), prefix_hit=0.5)
    scheduler.add(Sequence(100, 1, 0.0, lambda _last: None))
    batch = scheduler.schedule(0.0)
    assert batch is not None
    assert batch.new_tokens == 100 - 48  # whole blocks of 16 below half the prompt
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (100, 48)


def test_what_comes_after_the_horizon_waits_for_the_next_step() -> None:
    scheduler = Scheduler(Limits(8, 512, 4096, 16, 100))
    scheduler.add(Sequence(10, 1, 5.0, lambda _last: None))
    assert scheduler.schedule(4.9) is None
    assert scheduler.schedule(5.0) is not None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("limits", "kv_blocks"), 0, "kv_blocks"),
        (("tables", "shared_ms"), [1.0], "shared_ms"),
        (("tables", "decode_batch"), [4.0, 1.0], "decode_batch"),
        (("tables", "fixed_ms"), -1.0, "fixed_ms"),
        (("tables", "prefill_ms"), [[0.0, 0.0], [-1.0, 0.0]], "prefill_ms"),
        (("prefix_hit",), 1.0, "prefix_hit"),
        (("acts_as",), "sglang", "acts_as"),
        (("tables", "fixed_ms"), float("nan"), "fixed_ms"),
        (("tables", "head_ms"), [0.1, float("nan")], "head_ms"),
        (("tables", "head_ms"), [0.1, "0.5"], "head_ms"),
        (("tables", "prefill_ms"), [[0.0, 0.0], [1.0]], "prefill_ms"),
        (("tables", "decode_ms"), 3.0, "decode_ms"),
    ],
)
def test_malformed_material_is_refused_by_name(path: tuple[str, ...], value: object, named: str) -> None:
    data = emulation()
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InputError, match=named):
        parse_spec(data)


def test_step_tables_cross_the_broker_whole() -> None:
    written = replace(parse_spec(emulation()).tables, host_ms=1.7, host_ms_per_sequence=0.037, launch_ms=9.0, pp=2)
    read = from_json(StepTables, json.loads(json.dumps(to_json(written))))
    for item in fields(StepTables):
        assert np.array_equal(getattr(read, item.name), getattr(written, item.name)), item.name
    assert read.decode_ms.dtype == np.float64


def test_steps_take_the_planners_time() -> None:
    spec = parse_spec(emulation())
    spec = replace(spec, limits=replace(spec.limits, async_scheduling=False))

    async def run() -> tuple[float, float]:
        engine = EmulatedEngine(spec, EngineMetrics("vllm", "m", spec.limits))
        engine.warm_up()
        loop = asyncio.get_running_loop()
        stepping = loop.create_task(engine.run())
        times: list[float] = []
        done = loop.create_future()

        def on_token(last: bool) -> None:
            times.append(time.perf_counter())
            if last:
                done.set_result(None)

        engine.submit(64, 60, on_token)
        await done
        stepping.cancel()
        expected_ms = engine._step_ms(0.0, 0.0, 0.0, 1.0, 94.0)  # one decode in the middle of the run
        return (times[-1] - times[0]) / (len(times) - 1) * 1000, expected_ms

    measured_ms, expected_ms = asyncio.run(run())
    assert 0.9 * expected_ms <= measured_ms <= 2.0 * expected_ms  # never early; late only as far as the host is busy


def test_a_closed_loop_behaves_as_the_planner_simulates_it() -> None:
    """Eight clients, 40 requests of 256 tokens in and 32 out: same batches, same times, but for the host's delays."""
    data = emulation()
    spec = parse_spec(data)
    limits = spec.limits
    flags = {
        "max_model_len": limits.max_model_len,
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_tokens": limits.block_tokens,
        "enable_prefix_caching": False,
    }
    resolved = resolved_settings(EngineLaunch("vllm", "0.24.0", "m", "m", 8100, (), flags=flags), EngineName.VLLM)
    step = StepModel(spec.tables, spec.front_end, Evidence.ROOFLINE)
    tokens = limits.kv_blocks * limits.block_tokens
    ledger = MemoryLedger(
        total_gib=80.0, budget_gib=72.0, weights_gib=15.0, activation_gib=1.0, non_torch_gib=0.5, graph_gib=1.0,
        lora_gib=0.0, kv_gib=50.0, kv_blocks=limits.kv_blocks, block_tokens=limits.block_tokens, kv_tokens=tokens,
        kv_bytes_per_token=147456.0, state_bytes_per_seq=0.0, max_concurrency=tokens / limits.max_model_len,
        largest_model_len=tokens, fits=True, reasons=(), binding="", margin_gib=40.0, evidence=Evidence.ROOFLINE,
    )  # fmt: skip
    load = Load(kind="closed", concurrency=8, requests=40)
    model = get_model("Qwen/Qwen3-8B")
    wanted = simulate(
        Instance(model, resolved, ledger, step), load, Lengths("fixed", value=256), Lengths("fixed", value=32), seed=1
    )
    assert wanted.ttft_ms is not None
    assert wanted.tpot_ms is not None
    ttft_ms, tpot_ms = asyncio.run(_closed_loop(spec, clients=8, requests=40, prompt=256, output=32))
    assert 0.8 * wanted.tpot_ms.mean <= tpot_ms <= 1.8 * wanted.tpot_ms.mean
    assert 0.7 * wanted.ttft_ms.mean <= ttft_ms <= 2.0 * wanted.ttft_ms.mean


async def _closed_loop(
    spec: EmulationSpec, *, clients: int, requests: int, prompt: int, output: int
) -> tuple[float, float]:
    """Mean TTFT and TPOT in ms of clients that ask again at once."""
    engine = EmulatedEngine(spec, EngineMetrics("vllm", "m", spec.limits))
    engine.warm_up()
    loop = asyncio.get_running_loop()
    stepping = loop.create_task(engine.run())
    first: list[float] = []
    each: list[float] = []

    async def client(count: int) -> None:
        for _ in range(count):
            times: list[float] = []
            done = loop.create_future()

            def on_token(last: bool, times: list[float] = times, done: asyncio.Future = done) -> None:
                times.append(time.perf_counter())
                if last:
                    done.set_result(None)

            began = time.perf_counter()
            engine.submit(prompt, output, on_token)
            await done
            first.append((times[0] - began) * 1000)
            each.append((times[-1] - times[0]) / (output - 1) * 1000)

    await asyncio.gather(*(client(requests // clients) for _ in range(clients)))
    stepping.cancel()
    return sum(first) / len(first), sum(each) / len(each)

"""What always holds of the memory ledger, whatever the model, the GPU and the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from memory_samples import account, attention_layers, latent_layers, state_layers, synthetic

from planner.catalog import get_gpu, get_model, list_gpus
from planner.engines import EngineName, EngineSettings, resolve
from planner.errors import PlannerError
from planner.memory import MemoryLedger, ledger, memory_report
from planner.memory.override import held_back
from planner.models.spec import ModelSpec

CATALOGUE = (
    "Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-27b-it",
    "openai/gpt-oss-20b", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-VL-7B-Instruct", "ibm-granite/granite-4.0-h-small",
)  # fmt: skip
SYNTHETIC = (
    synthetic(attention_layers(8)),
    synthetic(attention_layers(6), attention_layers(30, window=1024)),
    synthetic(attention_layers(4, kv_heads=1), attention_layers(4, window=512, kind="chunked")),
    synthetic(latent_layers(12)),
    synthetic(state_layers(24), attention_layers(8)),
)
VERSIONS = ("0.6.4", "0.8.5", "0.10.2", "0.11.0", "0.16.0", "0.19.0", "0.21.0", "0.24.0", "0.28.0", "0.33.0")
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

models = st.one_of(st.sampled_from(SYNTHETIC), st.sampled_from(CATALOGUE).map(get_model))
gpus = st.sampled_from([gpu.name for gpu in list_gpus()]).map(get_gpu)


@st.composite
def asked(draw: Any, engines: tuple[EngineName, ...] = tuple(EngineName)) -> EngineSettings:
    """Settings of either engine, also unreasonable ones."""
    engine = draw(st.sampled_from(engines))
    maybe = lambda values: st.one_of(st.none(), values)  # noqa: E731 - a name for a strategy
    return EngineSettings(
        engine,
        version=draw(st.sampled_from(VERSIONS)) if engine is EngineName.VLLM else None,
        tp=draw(st.sampled_from((1, 2, 4, 8))),
        pp=draw(st.sampled_from((1, 1, 2, 3))),
        precision=draw(st.sampled_from(("as-config", "bf16", "fp8", "int4"))),
        kv_cache_dtype=draw(st.sampled_from(("auto", "fp8", "bf16"))),
        max_model_len=draw(maybe(st.integers(1, 1 << 20))),
        gpu_memory_utilization=draw(maybe(st.floats(0.05, 1.0))) if engine is EngineName.VLLM else None,
        free_gpu_memory_fraction=draw(maybe(st.floats(0.05, 0.99))) if engine is not EngineName.VLLM else None,
        max_num_seqs=draw(maybe(st.integers(1, 4096))),
        max_num_batched_tokens=draw(maybe(st.integers(1, 65_536))),
        enforce_eager=draw(st.booleans()),
        max_loras=draw(st.sampled_from((0, 0, 4))),
        speculative_tokens=draw(st.sampled_from((0, 0, 3))),
        logprobs=draw(st.sampled_from((0, 5))),
        prompt_logprobs=draw(st.booleans()),
    )


def tried(model: ModelSpec, gpu: Any, wanted: EngineSettings, **options: float) -> MemoryLedger:
    """The ledger; a refusal in words skips the example."""
    try:
        return ledger(model, gpu, resolve(wanted, model, gpu), **options)
    except PlannerError:
        assume(False)
        raise


@QUICK
@given(models, gpus, asked(), st.floats(-10.0, 400.0), st.floats(-10.0, 400.0))
def test_nothing_but_a_planner_error_is_raised(
    model: ModelSpec, gpu: Any, wanted: EngineSettings, total: float, others: float
) -> None:
    problem: PlannerError | None = None
    memory = None
    try:
        memory = memory_report(model, gpu, wanted, total_gib=total, used_by_others_gib=others).ledger
    except PlannerError as error:
        problem = error
    assert problem is None or problem.field
    if memory is not None:
        assert memory.fits == (not memory.reasons)
        assert bool(memory.binding) == (not memory.fits)
        assert memory.sentence


@QUICK
@given(models, gpus, asked())
def test_the_pool_is_whole_blocks(model: ModelSpec, gpu: Any, wanted: EngineSettings) -> None:
    got = tried(model, gpu, wanted)
    assert got.kv_blocks >= 0
    assert got.kv_tokens >= 0
    if wanted.engine is EngineName.TENSORRT_LLM:
        assert got.kv_tokens == got.kv_blocks * got.block_tokens
    assert got.kv_gib_80 is None or got.kv_gib_80.low <= got.kv_gib <= got.kv_gib_80.high
    assert got.kv_gib_80 is None or got.kv_gib < 0 or got.kv_gib_80.low >= 0
    parts = (got.weights_gib, got.activation_gib, got.non_torch_gib, got.graph_gib, got.lora_gib, got.logprobs_gib)
    assert min(parts) >= 0.0


@QUICK
@given(st.sampled_from(SYNTHETIC[:1]), gpus, asked((EngineName.VLLM,)))
def test_printed_tokens_are_blocks_times_block_where_layers_are_alike(
    model: ModelSpec, gpu: Any, wanted: EngineSettings
) -> None:
    got = tried(model, gpu, replace(wanted, version="0.19.0"))
    assert got.kv_tokens == got.kv_blocks * got.block_tokens


@QUICK
@given(
    models,
    gpus,
    asked(),
    st.sampled_from(("max_num_seqs", "max_num_batched_tokens", "max_loras", "precision", "others")),
    st.integers(2, 8),
)
def test_the_pool_never_grows_when_something_else_does(
    model: ModelSpec, gpu: Any, wanted: EngineSettings, what: str, factor: int
) -> None:
    base = replace(
        wanted,
        max_num_seqs=wanted.max_num_seqs or 64,
        max_num_batched_tokens=wanted.max_num_batched_tokens or 2048,
        precision="int4" if what == "precision" else wanted.precision,
    )
    options: dict[str, float] = {}
    if what == "others":
        options = {"used_by_others_gib": gpu.total_gib * factor / 10}
        more = base
    elif what == "precision":
        more = replace(base, precision="bf16")
    elif what == "max_loras":
        more = replace(base, max_loras=(base.max_loras or 1) * factor)
    else:
        more = replace(base, **{what: getattr(base, what) * factor})
    small, large = tried(model, gpu, base), tried(model, gpu, more, **options)
    assert large.kv_tokens <= small.kv_tokens
    if base.pp == 1:  # of pipeline stages the one that holds least tokens is told, and it may be another then
        assert large.kv_gib <= small.kv_gib + 1e-9


@QUICK
@given(models, gpus, asked((EngineName.VLLM,)), st.integers(256, 100_000), st.integers(2, 8))
def test_a_longer_context_leaves_no_more_room(
    model: ModelSpec, gpu: Any, wanted: EngineSettings, length: int, factor: int
) -> None:
    # With the limits stated: the engine lowers an unstated token budget to sequences x length.
    stated = replace(wanted, max_num_seqs=64, max_num_batched_tokens=4096)
    short = tried(model, gpu, replace(stated, max_model_len=length))
    long = tried(model, gpu, replace(stated, max_model_len=length * factor))
    assert long.kv_gib <= short.kv_gib + 1e-9
    assert long.margin_gib <= short.margin_gib + 1e-9


@QUICK
@given(models, gpus, asked())
def test_more_ranks_hold_no_more_each(model: ModelSpec, gpu: Any, wanted: EngineSettings) -> None:
    one, two = tried(model, gpu, replace(wanted, tp=1)), tried(model, gpu, replace(wanted, tp=2))
    # Kernels pad the experts of an mxfp4 checkpoint to whole tiles: half a matrix may take more than half.
    slack = 1.02 if model.quantization.precision == "mxfp4" else 1.0 + 1e-9
    assert two.weights_gib <= one.weights_gib * slack


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(models, gpus, asked())
def test_the_largest_context_fits_and_one_block_more_does_not(
    model: ModelSpec, gpu: Any, wanted: EngineSettings
) -> None:
    stated = replace(
        wanted, max_num_seqs=wanted.max_num_seqs or 16, max_num_batched_tokens=wanted.max_num_batched_tokens or 2048
    )
    got = tried(model, gpu, stated)
    longest = got.largest_model_len
    assume(0 < longest < max(model.max_position, 1))
    kept = held_back(resolve(stated, model, gpu))  # the null block, which later versions of vLLM do not count
    at = tried(model, gpu, replace(stated, max_model_len=longest))
    assert at.kv_blocks - kept >= at.blocks_per_request
    beyond = tried(model, gpu, replace(stated, max_model_len=longest + got.block_tokens))
    if beyond.kv_blocks == got.kv_blocks:  # a recurrent layer's page may follow the length
        assert beyond.kv_blocks - kept < beyond.blocks_per_request
        assert not beyond.fits


@pytest.mark.parametrize(
    "name", ["A10", "A40", "L4", "L40S", "RTX-4090", "RTX-5090", "B200", "MI300X", "GB10-DGX-Spark"]
)
def test_every_kind_of_card_has_a_figure(name: str) -> None:
    got = account("Qwen/Qwen3-0.6B", get_gpu(name), EngineSettings(EngineName.VLLM, max_model_len=2048))
    assert got.fits
    assert got.kv_tokens > 2048
    assert got.kv_gib_80 is not None

"""Engine defaults by version, GPU and model, and where each value came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import gpu, h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import EngineName, EngineSettings, resolve, scheduler_policy
from planner.engines.versions import at_least, outside_verified_range, version_key
from planner.engines.vllm import graph_sizes, uses_v2_runner
from planner.errors import InputError

QWEN3 = "Qwen/Qwen3-8B"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("version", "name", "budget", "sequences"),
    [
        ("0.7.3", "H100", 8192, 256),
        ("0.8.0", "H100", 8192, 1024),
        ("0.8.3", "L40S", 2048, 1024),
        ("0.8.4", "L40S", 2048, 256),
        ("0.8.4", "MI300X", 2048, 256),
        ("0.8.5", "MI300X", 8192, 1024),
        ("0.8.5", "A100-80GB", 8192, 1024),
        ("0.9.0", "A100-80GB", 2048, 256),
        ("0.10.1", "T4", 8192, 256),
        ("0.10.2", "T4", 2048, 256),
        ("0.10.2", "H100", 8192, 1024),
        ("0.24.0", "H200", 8192, 1024),
        ("0.24.0", "B200", 8192, 1024),
        ("0.28.0", "B200", 16384, 1024),
        ("0.24.0", "A100", 2048, 256),
        ("0.24.0", "A100-40GB", 2048, 256),
        ("0.24.0", "L40S", 2048, 256),
        ("0.24.0", "MI300X", 8192, 1024),
        ("0.28.0", "GB10-DGX-Spark", 8192, 1024),
        ("0.33.0", "GB10-DGX-Spark", 2048, 256),
    ],
)
def test_vllm_batch_defaults(version: str, name: str, budget: int, sequences: int) -> None:
    resolved = resolve(vllm(version, max_model_len=8192), get_model(LLAMA), gpu(name))
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (budget, sequences)


@pytest.mark.parametrize(
    ("version", "length", "changes", "budget"),
    [
        ("0.6.4", 8192, {}, 8192),
        ("0.6.4", 40_000, {}, 512),
        ("0.6.5", 40_000, {}, 2048),
        ("0.7.3", 40_000, {"max_loras": 1}, 40_000),
        ("0.7.3", 1024, {}, 2048),
        ("0.7.3", 40_000, {"enable_chunked_prefill": False}, 40_000),
        ("0.8.0", 40_000, {"max_loras": 1}, 8192),
    ],
)
def test_the_first_generation_runs_whole_prompts_unless_they_are_long(
    version: str, length: int, changes: dict[str, int], budget: int
) -> None:
    resolved = resolve(vllm(version, max_model_len=length, **changes), get_model(LLAMA), h100())
    assert resolved.max_num_batched_tokens == budget
    assert resolved.enable_chunked_prefill is (budget < length)
    assert resolved.enable_prefix_caching is (version == "0.8.0")


@pytest.mark.parametrize(("version", "share"), [("0.10.2", 0.9), ("0.19.0", 0.9), ("0.20.2", 0.92), ("0.33.0", 0.92)])
def test_vllm_utilisation_default(version: str, share: float) -> None:
    assert resolve(vllm(version), get_model(LLAMA), h100()).gpu_memory_utilization == share


def test_vllm_clamps() -> None:
    model = get_model(LLAMA)
    short = resolve(vllm("0.24.0", max_num_seqs=4, max_model_len=512), model, h100())
    assert short.max_num_batched_tokens == 2048
    assert "lowered" in short.origin["max_num_batched_tokens"]
    few = resolve(vllm("0.24.0", max_num_batched_tokens=300), model, h100())
    assert few.max_num_seqs == 300
    whole = resolve(vllm("0.24.0", enable_chunked_prefill=False, max_model_len=32_768), model, h100())
    assert whole.max_num_batched_tokens == 32_768


def test_vllm_graph_sizes_are_those_of_a_real_log() -> None:
    sizes = graph_sizes("0.24.0", h100(), 8192, 1024, 0)
    assert len(sizes) == 51
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-3:] == (480, 496, 512)
    assert len(graph_sizes("0.10.2", h100(), 2048, 256, 0)) == 67
    assert graph_sizes("0.28.0", gpu("B200"), 16384, 1024, 0)[-1] == 1024
    assert graph_sizes("0.24.0", h100(), 8192, 32, 0)[-1] == 64
    assert resolve(vllm("0.24.0", enforce_eager=True), get_model(LLAMA), h100()).cuda_graph_sizes == ()


@pytest.mark.parametrize(("version", "on"), [("0.13.0", False), ("0.14.1", True), ("0.24.0", True)])
def test_vllm_asynchronous_scheduling(version: str, on: bool) -> None:
    assert resolve(vllm(version), get_model(LLAMA), h100()).async_scheduling is on
    told = resolve(vllm(version, async_scheduling=not on), get_model(LLAMA), h100())
    assert (told.async_scheduling, told.origin["async_scheduling"]) == (not on, "user")


def test_tensorrt_llm_overlap_scheduler_can_be_turned_off() -> None:
    assert resolve(trtllm(), get_model(LLAMA), h100()).async_scheduling
    assert not resolve(trtllm(async_scheduling=False), get_model(LLAMA), h100()).async_scheduling
    built = resolve(trtllm(version="0.14.0", async_scheduling=True), get_model(LLAMA), h100())
    assert not built.async_scheduling


@pytest.mark.parametrize(
    ("model", "name", "version", "tokens"),
    [
        (LLAMA, "H100", "0.24.0", 16),
        ("deepseek-ai/DeepSeek-V2-Lite", "H100", "0.19.0", 16),
        ("deepseek-ai/DeepSeek-V2-Lite", "H100", "0.11.0", 64),
        ("deepseek-ai/DeepSeek-V2-Lite", "A100", "0.24.0", 16),
        ("deepseek-ai/DeepSeek-V3", "B200", "0.11.0", 128),
        ("deepseek-ai/DeepSeek-V3.2", "H200", "0.24.0", 64),
    ],
)
def test_vllm_block_size_follows_the_attention_back_end(model: str, name: str, version: str, tokens: int) -> None:
    assert resolve(vllm(version), get_model(model), gpu(name)).block_tokens == tokens


@pytest.mark.parametrize(
    ("version", "model", "v2"),
    [
        ("0.19.0", QWEN3, False),
        ("0.22.1", QWEN3, True),
        ("0.22.1", LLAMA, False),
        ("0.23.0", LLAMA, True),
        ("0.24.0", "google/gemma-2-2b-it", False),
        ("0.25.1", "google/gemma-2-2b-it", True),
        ("0.28.0", "Qwen/Qwen3.5-27B", False),
        ("0.30.0", "Qwen/Qwen3.5-27B", True),
        ("0.33.0", "BAAI/bge-m3", False),
    ],
)
def test_vllm_model_runner(version: str, model: str, v2: bool) -> None:
    assert uses_v2_runner(version, get_model(model)) is v2


def test_tensorrt_llm_defaults() -> None:
    resolved = resolve(trtllm(), get_model(LLAMA), h100())
    assert resolved.version == "1.3.0rc20"
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (2048, 8192)
    assert not resolved.enable_chunked_prefill
    assert resolved.enable_prefix_caching
    assert resolved.free_gpu_memory_fraction == 0.9
    assert resolved.gpu_memory_utilization is None
    assert resolved.block_tokens == 32
    assert resolved.capacity_policy == "GUARANTEED_NO_EVICT"
    assert resolved.cuda_graph_sizes == (*range(1, 33), 64, 128)
    latent = get_model("deepseek-ai/DeepSeek-V3")
    assert resolve(trtllm(tp=8), latent, gpu("H200")).block_tokens == 64
    assert resolve(trtllm(tp=8), latent, gpu("B200")).block_tokens == 32


def test_kv_cache_type_follows_checkpoint_model_and_user() -> None:
    fp8_cache = get_model("nvidia/Llama-3.1-70B-Instruct-FP8")
    assert resolve(vllm("0.24.0", tp=2), fp8_cache, h100()).kv_cache_dtype == "fp8"
    plain = get_model(LLAMA)
    assert resolve(vllm("0.24.0"), plain, h100()).kv_cache_dtype == "bf16"
    assert resolve(vllm("0.24.0", kv_cache_dtype="fp8"), plain, h100()).origin["kv_cache_dtype"] == "user"
    assert resolve(vllm("0.24.0"), plain, gpu("T4")).kv_cache_dtype == "fp16"


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (vllm("0.14.0", precision="fp4"), "fp8"),
        (vllm("0.13.0", precision="fp4"), "bf16"),
        (vllm("0.24.0", precision="fp8"), "bf16"),  # made by vLLM itself
        (vllm("0.24.0", precision="fp4", kv_cache_dtype="bf16"), "bf16"),
        (trtllm(version="1.2.0", precision="fp8"), "fp8"),
        (trtllm(version="0.19.0", precision="fp4"), "bf16"),
    ],
)
def test_an_assumed_export_of_nvidia_asks_for_an_fp8_cache(settings: EngineSettings, kept: str) -> None:
    """Of 21 hf_quant_config.json of NVIDIA's NVFP4 exports 19 name FP8; those of DeepSeek-V4 name none."""
    assert resolve(settings, get_model(LLAMA), gpu("B200")).kv_cache_dtype == kept


@pytest.mark.parametrize(
    ("model", "version", "name", "kept"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "0.11.0", "H200", "fp8"),
        ("deepseek-ai/DeepSeek-V3.2", "0.11.1", "H200", "bf16"),
        ("deepseek-ai/DeepSeek-V3.2", "0.24.0", "B200", "bf16"),
        ("zai-org/GLM-5", "0.33.0", "B200", "fp8"),
        ("zai-org/GLM-5", "0.30.0", "B200", "bf16"),
        ("zai-org/GLM-5", "0.33.0", "H200", "bf16"),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.24.0", "H200", "fp8"),
    ],
)
def test_sparse_latent_attention_keeps_its_cache_as_the_version_does(
    model: str, version: str, name: str, kept: str
) -> None:
    assert resolve(vllm(version, tp=8), get_model(model), gpu(name)).kv_cache_dtype == kept


@pytest.mark.parametrize(
    ("model", "name", "precision", "weight_only"),
    [
        ("Qwen/Qwen3-32B-FP8", "H100", "fp8_block", False),
        ("Qwen/Qwen3-32B-FP8", "A100", "fp8_block", True),
        ("openai/gpt-oss-20b", "H100", "mxfp4", True),
        ("openai/gpt-oss-20b", "B200", "mxfp4", False),
        (LLAMA, "T4", "fp16", False),
        (LLAMA, "H100", "bf16", False),
    ],
)
def test_precision_that_is_really_run(model: str, name: str, precision: str, weight_only: bool) -> None:
    resolved = resolve(vllm("0.24.0"), get_model(model), gpu(name))
    assert (resolved.precision, resolved.weight_only) == (precision, weight_only)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"precision": "fp7"}, "precision"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
        ({"tp": 0}, "tp"),
        ({"max_model_len": -5}, "max_model_len"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"version": "latest"}, "version"),
    ],
)
def test_absurd_settings_name_their_field(changes: dict, field: str) -> None:
    options = {"version": "0.24.0", **changes}
    with pytest.raises(InputError) as caught:
        resolve(vllm(**options), get_model(LLAMA), h100())
    assert caught.value.field == field


def test_every_default_has_an_origin() -> None:
    for settings in (vllm("0.24.0"), trtllm()):
        resolved = resolve(settings, get_model(LLAMA), h100())
        share = "gpu_memory_utilization" if settings.engine is EngineName.VLLM else "free_gpu_memory_fraction"
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_tokens",
            "kv_cache_dtype",
            share,
        ):
            assert resolved.origin[name]


def test_scheduler_policy() -> None:
    model = get_model(LLAMA)
    ours = scheduler_policy(resolve(vllm("0.24.0"), model, h100()))
    assert (ours.reserve_output, ours.steps_ahead, ours.lost_blocks) == (False, 1, 1)
    assert ours.reserve_full_prompt
    assert not scheduler_policy(resolve(vllm("0.18.0"), model, h100())).reserve_full_prompt
    theirs = scheduler_policy(resolve(trtllm(), model, h100()))
    assert theirs.reserve_output
    assert theirs.cached_tokens_use_budget
    greedy = scheduler_policy(resolve(trtllm(capacity_policy="MAX_UTILIZATION"), model, h100()))
    assert not greedy.reserve_output


def test_versions_sort_like_releases() -> None:
    ordered = ["0.9.2", "0.10.1.1", "0.10.2", "0.19.0", "0.19.1", "0.20.2", "1.2.0", "1.3.0rc3", "1.3.0rc20", "1.3.0"]
    assert sorted(ordered, key=version_key) == ordered
    assert at_least("1.3.0rc20", "1.3.0rc7")
    assert not at_least("1.3.0rc3", "1.3.0rc7")
    assert at_least("0.20.2.dev0", "0.20.2")
    assert outside_verified_range(EngineName.VLLM, "0.8.5")
    assert not outside_verified_range(EngineName.VLLM, "0.33.0")


@given(st.integers(1, 4096), st.integers(1, 65_536), st.integers(0, 5))
def test_graph_sizes_invariants(sequences: int, budget: int, speculative: int) -> None:
    sizes = graph_sizes("0.24.0", h100(), budget, sequences, speculative)
    assert list(sizes) == sorted(set(sizes))
    assert all(1 <= size <= min(512, budget) for size in sizes)


@pytest.mark.parametrize(
    ("version", "largest"), [("0.10.2", 1024), ("0.11.0", 992), ("0.11.1", 1024), ("0.24.0", 1024)]
)
def test_vllm_captures_more_for_gpt_oss_unless_told(version: str, largest: int) -> None:
    model = get_model("openai/gpt-oss-120b")
    assert resolve(vllm(version), model, h100()).cuda_graph_sizes[-1] == largest
    told = resolve(vllm(version, max_cudagraph_capture_size=2048), model, h100())
    assert told.cuda_graph_sizes[-1] == 2048
    assert told.origin["cuda_graph_sizes"] == "user"
    assert resolve(vllm(version), get_model(LLAMA), h100()).cuda_graph_sizes[-1] == 512


@pytest.mark.parametrize(
    ("version", "name", "kernel"),
    [
        ("0.10.2", "H100", "marlin"),
        ("0.11.2", "H200", "marlin"),
        ("0.12.0", "H100", None),
        ("0.24.0", "A100", "marlin"),
        ("0.24.0", "L40S", "marlin"),
        ("0.10.2", "B200", None),
        ("0.24.0", "MI300X", None),
    ],
)
def test_vllm_runs_mxfp4_experts_in_marlin_where_triton_kernels_lack(
    version: str, name: str, kernel: str | None
) -> None:
    model = get_model("openai/gpt-oss-120b")
    assert resolve(vllm(version), model, gpu(name)).moe_backend == kernel
    told = resolve(vllm(version, moe_backend="triton"), model, gpu(name))
    assert (told.moe_backend, told.origin["moe_backend"]) == ("triton", "user")
    assert resolve(vllm(version), get_model("Qwen/Qwen3-30B-A3B"), gpu(name)).moe_backend is None


def test_tensorrt_llm_pads_graphs_to_a_stated_size() -> None:
    sizes = resolve(trtllm(version="1.2.0", max_cudagraph_capture_size=256), get_model(LLAMA), h100()).cuda_graph_sizes
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-2:] == (128, 256)
    assert resolve(
        trtllm(version="1.2.0", max_cudagraph_capture_size=3), get_model(LLAMA), h100()
    ).cuda_graph_sizes == (
        1,
        2,
        3,
    )

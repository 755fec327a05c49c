"""The catalogue: every file loads, every fact has a source, names are forgiving, nothing blank becomes zero."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal

import numpy as np
import pytest

from planner.catalog import (
    get_gpu,
    get_model,
    get_node_type,
    get_rate_profile,
    get_trace,
    list_gpus,
    list_models,
    list_node_types,
    list_rate_profiles,
    list_traces,
    measured_matmul,
    model_source,
    price_facts,
    published_params,
)
from planner.catalog.gpus import reported_total_gib
from planner.economics.published import default_price
from planner.errors import InputError, UnknownGpuError, UnknownModelError, UnsupportedError


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_plausible_and_sourced(gpu) -> None:
    assert gpu.source
    assert 0.85 * gpu.memory_gb <= gpu.total_gib <= 1.01 * gpu.memory_gb
    for field in dataclasses.fields(gpu):
        value = getattr(gpu, field.name)
        if isinstance(value, float):
            assert value > 0, field.name
    if gpu.fp8_tflops is not None and gpu.bf16_tflops is not None:
        assert gpu.fp8_tflops <= 2.05 * gpu.bf16_tflops  # dense figures: no sparsity slipped in
    if gpu.vendor == "nvidia":
        assert gpu.compute_capability is not None


def test_names_and_aliases() -> None:
    assert get_gpu("H100").name == get_gpu("h100-sxm5-80gb").name == get_gpu("H100 SXM5 80GB").name
    assert get_gpu("GB10 (DGX Spark)").unified_memory
    with pytest.raises(UnknownGpuError, match="H100-SXM5-80GB"):
        get_gpu("H100-SXM5")
    for absurd in ("", "nonesuch", None, 5):
        with pytest.raises(UnknownGpuError):
            get_gpu(absurd)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA B300 SXM6 AC", "B300-SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X OAM", "MI300X"),
    ],
)
def test_names_as_drivers_write_them(driver: str, name: str) -> None:
    assert get_gpu(driver).name == name


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.name)
def test_units_for_eight_bits_have_a_rate(gpu) -> None:
    """Without one FP8 would run at the 16-bit rate: a gap of the catalogue, not of the card."""
    if (gpu.compute_capability or 0.0) >= 8.9 and gpu.bf16_tflops is not None:
        assert gpu.fp8_tflops is not None


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H100-SXM5-80GB", 79.2), ("A100-SXM4-80GB", 79.15), ("RTX-4090", 23.55), ("MI300X", 191.98), ("L40S", 44.5)],
)
def test_total_memory(name: str, gib: float) -> None:
    assert get_gpu(name).total_gib == pytest.approx(gib, abs=0.1)


@pytest.mark.parametrize(
    ("memory_gb", "kind", "name", "smi_mib", "logged_gib"),
    [
        (24, "GDDR6X", "RTX-3090", 24576, 23.58),
        (24, "GDDR6X", "RTX-4090", 24564, 23.55),
        (80, "HBM3", "H100", 81559, 79.19),
        (288, "HBM3e", "GB300", 284208, 276.62),
        (96, "GDDR7", "RTX-PRO-6000", 97887, 94.97),
        (24, "GDDR6X", "RTX-4090", None, 23.55),
        (80, "HBM3", "H100", None, 79.19),
    ],
)
def test_memory_estimate_against_logs(
    memory_gb: float, kind: str, name: str, smi_mib: float | None, logged_gib: float
) -> None:
    assert reported_total_gib(memory_gb, kind, "nvidia", name, smi_mib) == pytest.approx(logged_gib, abs=0.15)


@pytest.mark.parametrize("name", ["RTX-5090", "RTX-PRO-6000-Blackwell-Workstation", "L40S", "H100"])
def test_a_card_with_fp8_units_multiplies_fp8_twice_as_fast(name: str) -> None:
    """A blank rate would make the card widen FP8 weights and compute at its 16-bit rate."""
    gpu = get_gpu(name)
    assert gpu.fp8_tflops is not None
    assert gpu.fp8_tflops == pytest.approx(2.0 * (gpu.bf16_tflops or 0.0), rel=0.03)


def test_packages_are_seen_as_the_engine_sees_them() -> None:
    assert get_gpu("MI250X").memory_gb == 64
    assert "halved" in get_gpu("MI250X").notes


def test_operator_database_systems() -> None:
    named = {gpu.name: gpu.aic_system for gpu in list_gpus() if gpu.aic_system}
    assert named["H200-SXM-141GB"] == "h200_sxm"
    assert len(named) == 11
    assert get_gpu("A100-PCIe-80GB").aic_system is None


def test_measured_matrix_products() -> None:
    fact = measured_matmul("H100", "bf16")
    assert fact is not None
    assert fact.share == pytest.approx(794.5 / 989)
    assert measured_matmul("A100-40GB", "bf16") is not None
    assert measured_matmul("L40S", "bf16") is None
    for gpu in list_gpus():
        for dtype in ("bf16", "fp8"):
            found = measured_matmul(gpu.name, dtype)
            assert found is None or 0.4 < found.share < 1


def test_cpu_host_says_that_it_is_an_assumption() -> None:
    host = get_gpu("CPU-host")
    assert host.vendor == "cpu"
    assert "calibrate" in host.notes
    assert get_node_type("local-cpu").gpu == host.name


def test_node_types() -> None:
    for node_type in list_node_types():
        assert node_type.source
        assert node_type.gpus % node_type.nvlink_domain == 0
        assert get_gpu(node_type.gpu).name == node_type.gpu
    assert get_node_type("8xh100 sxm").nvlink_domain == 8
    assert get_node_type("4xL40S").nvlink_domain == 1
    with pytest.raises(InputError, match="8xH100-SXM"):
        get_node_type("8xH100")


def test_prices() -> None:
    facts = price_facts("H100")
    assert len(facts) > 10
    assert all(fact.source for fact in facts)
    price = default_price("H100")
    assert price.usd_per_gpu_hour == Decimal("3.99")
    assert sum(part for _, part in price.parts) == price.usd_per_gpu_hour
    assert "SPOT" not in price.source
    assert default_price("MI300X").usd_per_gpu_hour == Decimal("4.5")
    assert price_facts("A40") == ()
    with pytest.raises(UnsupportedError, match="A40"):
        default_price("A40")


def test_models_have_sources_and_close_names() -> None:
    assert len(list_models()) == 239
    for name in list_models():
        assert model_source(name).kind
    assert get_model("Meta-Llama-3.1-8B").model_id == "meta-llama/Meta-Llama-3.1-8B"
    assert get_model("Meta-Llama-3.1-8B").notes == ()
    assert "has the shape of" in get_model("meta-llama/Meta-Llama-3-8B").notes[-1]
    assert get_model("meta-llama/Meta-Llama-3-8B").model_id == "meta-llama/Meta-Llama-3.1-8B"
    for wrong in ("meta-llama/Llama-3.1-9B", "", "a\0b", "/nonexistent/config.json", None, 5):
        with pytest.raises(UnknownModelError):
            get_model(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownModelError, match=r"Llama-3\.1"):
        model_source("meta-llama/Llama-3.1-9B")


def test_published_counts() -> None:
    published = published_params("meta-llama/Llama-3.1-8B-Instruct")
    assert published is not None
    assert published.total_b == 8.0
    assert published_params("nobody/nothing") is None


@pytest.mark.parametrize("name", list_traces())
def test_traces(name: str) -> None:
    trace = get_trace(name)
    assert len(trace.input_tokens) == len(trace.output_tokens) > 1000
    assert trace.input_tokens.min() > 0
    assert trace.output_tokens.min() > 0
    assert trace.licence
    assert not trace.input_tokens.flags.writeable
    if trace.times_s is not None:
        assert np.all(np.diff(trace.times_s) >= 0)


def test_trace_means_and_prefixes() -> None:
    azure, mooncake = get_trace("azure_2023_code"), get_trace("mooncake_synthetic")
    assert (len(azure.input_tokens), round(azure.input_tokens.mean())) == (8819, 2048)
    assert azure.prefix_hit is None
    assert mooncake.prefix_hit == pytest.approx(0.65, abs=0.01)
    with pytest.raises(InputError, match="azure_2023_code"):
        get_trace("azure_2023")


@pytest.mark.parametrize("name", list_rate_profiles())
def test_rate_profiles(name: str) -> None:
    profile = get_rate_profile(name)
    assert profile.window_s == 600
    assert np.allclose(np.diff(profile.start_s), 600)
    assert np.all(profile.rate_per_s >= 0)


def test_a_name_of_the_same_shape_keeps_its_own_context_and_precision() -> None:
    assert get_model("Qwen/Qwen3-235B-A22B").max_position == 40960
    assert get_model("Qwen/Qwen3-235B-A22B-Instruct-2507").max_position == 262_144
    assert get_model("meta-llama/Meta-Llama-3-8B-Instruct").max_position == 8192
    plain = get_model("google/gemma-4-31B-it")
    assert (plain.quantization.precision, plain.total_params) == (
        "bf16",
        get_model("nvidia/Gemma-4-31B-IT-NVFP4").total_params,
    )
    assert model_source("Llama-3.3-70B-Instruct") == model_source("meta-llama/Meta-Llama-3.1-70B")


@pytest.mark.parametrize(
    ("name", "shape", "precision", "activation_bits"),
    [
        ("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.6", "fp8", 8),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "Qwen/Qwen3-32B", "fp8", 8),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "meta-llama/Meta-Llama-3.1-70B", "int4", 16),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "meta-llama/Meta-Llama-3.1-70B", "int8", 8),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "Qwen/Qwen2.5-72B-Instruct", "int4", 16),
    ],
)
def test_quantised_checkpoints_have_the_shape_that_they_were_made_of(
    name: str, shape: str, precision: str, activation_bits: int
) -> None:
    model = get_model(name)
    assert model.model_id == shape
    assert (model.quantization.precision, model.quantization.activation_bits) == (precision, activation_bits)
    assert "has the shape of" in model.notes[-1]


@pytest.mark.parametrize(
    ("name", "precision", "activation_bits", "stored_bits"),
    [
        ("Qwen/Qwen3-8B-FP8", "fp8_block", 8, 8 + 32 / 128**2),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "fp8", 8, 8.0),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "int8", 16, 8.0),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "int4", 16, 4.125),
        ("someone/Qwen3-30B-A3B-Instruct-2507-AWQ-4bit", "int4", 16, 4.125),
        ("someone/gemma-3-27b-it-int4-awq", "int4", 16, 4.125),
        ("someone/Qwen3-8B-NVFP4A16", "fp4", 16, 4.5),
    ],
)
def test_the_end_of_a_name_states_how_weights_are_stored(
    name: str, precision: str, activation_bits: int, stored_bits: float
) -> None:
    quantization = get_model(name).quantization
    assert (quantization.precision, quantization.activation_bits) == (precision, activation_bits)
    assert quantization.weight_bits + quantization.scale_bits_per_weight == pytest.approx(stored_bits)


def test_exports_of_qwen_are_stored_as_those_whose_configuration_is_here() -> None:
    by_name, by_config = get_model("Qwen/Qwen3-14B-FP8").quantization, get_model("Qwen/Qwen3-32B-FP8").quantization
    for field in ("precision", "weight_bits", "scale_bits_per_weight", "activation_bits", "group_size"):
        assert getattr(by_name, field) == getattr(by_config, field), field


def test_only_exports_whose_cache_engines_take_unasked_state_one() -> None:
    assert get_model("nvidia/Llama-3.1-8B-Instruct-FP8").quantization.kv_cache_dtype == "fp8"
    assert get_model("amd/Llama-3.1-8B-Instruct-FP8-KV").quantization.kv_cache_dtype is None  # scales alone
    assert get_model("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic").quantization.kv_cache_dtype is None


def test_a_copy_kept_by_somebody_else_is_known_by_its_name() -> None:
    copy = get_model("unsloth/Meta-Llama-3.1-8B-Instruct")
    assert copy.total_params == get_model("meta-llama/Meta-Llama-3.1-8B-Instruct").total_params
    assert copy.notes[-1].startswith("unsloth/Meta-Llama-3.1-8B-Instruct has the shape of")
    assert get_model("NousResearch/Meta-Llama-3-8B-Instruct").max_position == 8192
    assert get_model("someone/gpt-oss-20b-BF16").quantization.method == "none"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unsloth/gpt-oss-20b-GGUF", "GGUF"),
        ("bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "GGUF"),
        ("mlx-community/Qwen3-8B-4bit", "MLX"),
        ("lmstudio-community/Qwen3-8B-MLX-4bit", "MLX"),
        ("mlx-community/gpt-oss-20b-MXFP4", "MLX"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "bitsandbytes"),
        ("turboderp/Llama-3.1-8B-Instruct-exl2", "ExLlama"),
        ("onnx-community/Llama-3.2-1B-Instruct-ONNX", "ONNX"),
        ("OpenVINO/Qwen3-8B-int4-ov", "OpenVINO"),
    ],
)
def test_formats_that_are_not_planned_are_named_with_a_remedy(name: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refused:
        get_model(name, allow_path=False)
    assert "safetensors repository" in refused.value.remedy
    assert refused.value.field == "model"


def test_a_folder_named_after_a_format_is_read_all_the_same(tmp_path) -> None:
    """The name refuses only what it alone tells of: a config.json tells more."""
    folder = tmp_path / "Qwen3-0.6B-GGUF"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(get_model("Qwen/Qwen3-0.6B").config))
    assert get_model(folder).total_params == get_model("Qwen/Qwen3-0.6B").total_params


def test_a_suffix_that_is_no_quantisation_is_no_name() -> None:
    for wrong in ("Qwen/Qwen3-32B-abliterated", "someone/nonesuch-FP8", "Qwen/Qwen3-32B-GPTQ-Int3"):
        with pytest.raises(UnknownModelError):
            get_model(wrong)


def test_a_name_of_another_shape_is_no_alias() -> None:
    """R1-Distill-Qwen-1.5B does not tie its head to its embeddings; Mistral 7B v0.1 alone has a window."""
    distilled, base = get_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"), get_model("Qwen/Qwen2.5-1.5B")
    assert distilled.total_params - base.total_params == 151_936 * 1536
    assert (distilled.tied_embeddings, base.tied_embeddings) == (False, True)
    first, second, third = (get_model(f"mistralai/Mistral-7B-v0.{version}") for version in (1, 2, 3))
    assert (first.vocab, second.vocab, third.vocab) == (32_000, 32_000, 32_768)
    assert first.total_params == second.total_params == 7_241_732_096
    assert [model.groups[0].mixer.window for model in (first, second, third)] == [4096, None, None]

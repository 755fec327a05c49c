"""What the catalogue's names answer as estimates: models that embed or rank, hybrids of TensorRT-LLM, refused names."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog import get_gpu
from planner.engines.types import EngineName, EngineSettings
from planner.estimate import ANSWERS_AT_ONCE, estimate
from planner.memory.report import memory_report
from planner.models import parse


def asked(model: str, **more: Any) -> dict[str, Any]:
    load = {"kind": "closed", "concurrency": 4, "requests": 40}
    answer = estimate(
        {"model": model, "gpu": "H200-SXM-141GB", "engine": "vllm", "load": load, "input_tokens": 256, **more}
    )
    return answer


@pytest.mark.parametrize("model", ["BAAI/bge-base-en-v1.5", "BAAI/bge-reranker-v2-m3", "Qwen/Qwen3-Embedding-4B"])
def test_one_pass_models_answer_without_output_tokens(model: str) -> None:
    answer = asked(model, usd_per_gpu_hour=2)
    assert (answer["status"], answer["power_w"]) == ("ok", None)
    assert ANSWERS_AT_ONCE in answer["reasons"]
    perf = answer["perf"]
    assert perf["output_tok_per_s"] == 0
    assert perf["tpot_ms"] is None
    assert perf["ttft_ms"] == perf["e2e_ms"]
    assert perf["total_tok_per_s"] == pytest.approx(256 * perf["req_per_s"], rel=1e-4)
    assert answer["cost"]["usd_per_mtok_output"] is None
    # clients of a closed loop: N = X * R (Little), the last round of requests apart
    assert pytest.approx(perf["req_per_s"] * perf["e2e_ms"]["mean"] / 1000, rel=0.05) == 4


def test_output_tokens_of_a_one_pass_model_change_nothing() -> None:
    assert asked("Qwen/Qwen3-Embedding-4B", output_tokens=500)["perf"] == asked("Qwen/Qwen3-Embedding-4B")["perf"]


def test_replicas_of_a_one_pass_model_share_the_load() -> None:
    load = {"kind": "open", "rate_per_s": 20, "requests": 400, "arrival": "constant"}
    one = asked("BAAI/bge-base-en-v1.5", load=load)["perf"]
    two = asked("BAAI/bge-base-en-v1.5", load={**load, "rate_per_s": 40, "requests": 800}, replicas=2)["perf"]
    assert two["e2e_ms"] == one["e2e_ms"]
    assert two["req_per_s"] == pytest.approx(2 * one["req_per_s"], rel=1e-4)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input_tokens": 600}, "input_tokens"),
        ({"load": {"kind": "closed", "concurrency": 1, "turns": 3}}, "load.turns"),
    ],
)
def test_what_a_one_pass_model_cannot_take_is_refused_by_field(more: dict[str, Any], field: str) -> None:
    answer = asked("BAAI/bge-base-en-v1.5", **more)
    assert answer["status"] == "error"
    assert answer["reasons"][0].startswith(field)


def test_generating_models_still_need_output_tokens() -> None:
    answer = asked("Qwen/Qwen3-8B")
    assert answer["status"] == "error"
    assert answer["reasons"] == [
        "output_tokens: is missing. Give a whole number between 1 and 50000000, {mean, sd} or {low, high}."
    ]


@pytest.mark.parametrize("model", ["nvidia/Nemotron-H-8B-Base-8K", "Qwen/Qwen3-Coder-Next"])
def test_a_hybrid_at_tensorrt_llms_2048_sequences_says_how_many_would_fit(model: str) -> None:
    tp = 2 if "Coder" in model else 1
    answer = asked(model, engine="tensorrt_llm", tp=tp, output_tokens=32)
    assert answer["status"] == "infeasible"
    assert "At most 512 running sequences would fit." in answer["reasons"]
    assert asked(model, engine="tensorrt_llm", tp=tp, output_tokens=32, max_num_seqs=512)["status"] == "ok"


def test_what_the_figures_rest_on_is_told_with_them() -> None:
    """A tower that is not counted, sizes taken from a class, an export known by its name alone."""
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "torch_dtype": "bfloat16",
        "text_config": {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "vocab_size": 151674,
            "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
        },
        "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "image_size": 448, "patch_size": 14},
    }  # fmt: skip
    model, gpu = parse(config, model_id="team/images"), get_gpu("H200-SXM-141GB")
    note = "The image tower of idefics3 is not counted: its layout is not known."
    asked = {"model": "team/images", "gpu": gpu.name, "engine": "vllm"}
    assert note in estimate(asked, find_model=lambda name: model)["reasons"]
    assert note in memory_report(model, gpu, EngineSettings(EngineName.VLLM)).warnings


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("casperhansen/llama-3.3-70b-instruct-awq", "in int4: all linears of the layers, not embedding and head."),
        ("google/gemma-3-4b-it", "Not in config.json, taken from the model library's defaults: num_attention_heads"),
        ("unsloth/Qwen3-8B", ""),
    ],
)
def test_names_say_what_was_assumed_of_them(model: str, words: str) -> None:
    reasons = estimate({"model": model, "gpu": "H200-SXM-141GB", "engine": "vllm"})["reasons"]
    assert any(words in reason for reason in reasons) if words else reasons == []

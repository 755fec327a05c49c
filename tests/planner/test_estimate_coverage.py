"""Every catalogue model on GPUs of every architecture: an answer with a true reason, and none that physics forbids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from planner.catalog import get_gpu, get_model
from planner.catalog.models import list_models
from planner.estimate import estimate
from planner.models.sharding import active_params
from planner.steptime.roofline import peak_flops_per_ms

GPUS = (
    "A10", "L4", "L40S", "RTX-4090", "RTX-5090", "RTX-PRO-6000-Blackwell-Server", "A100-SXM-40GB", "A100-SXM-80GB",
    "H100-SXM-80GB", "H100-PCIe-80GB", "H100-NVL-94GB", "H200-SXM-141GB", "H20-96GB", "B200-SXM", "B300-SXM", "GB200",
    "MI300X", "MI355X", "Gaudi3", "T4", "V100-SXM2-16GB",
)  # fmt: skip
PROMPT, ANSWER = 512, 32


def questions() -> list[dict[str, Any]]:
    """One question a model, its GPU, engine, precision and parallelism drawn by a fixed seed."""
    draw = random.Random(7)
    asked = []
    for model in sorted(list_models()):
        asked.append(
            {
                "model": model, "gpu": draw.choice(GPUS), "engine": draw.choice(("vllm", "tensorrt_llm")),
                "precision": draw.choice(("as-config", "as-config", "fp8", "int4")), "tp": draw.choice((1, 2, 4, 8)),
                "load": {"kind": "closed", "concurrency": 4, "requests": 8},
                "input_tokens": PROMPT - ANSWER, "output_tokens": ANSWER,
            }
        )  # fmt: skip
    return asked


@pytest.mark.parametrize("request_", questions(), ids=lambda q: f"{q['model']} {q['gpu']} {q['engine']}")
def test_every_model_gets_an_answer_that_physics_allows(request_: dict[str, Any]) -> None:
    answer = estimate(request_)
    assert answer["status"] in ("ok", "infeasible", "unsupported")
    if answer["status"] != "ok":
        assert answer["reasons"]
        assert answer["perf"] is None
        return
    model, gpu, tp = get_model(request_["model"]), get_gpu(request_["gpu"]), request_["tp"]
    if model.task != "generate":
        return
    assert gpu.mem_bw_gb_s is not None
    perf = answer["perf"]
    narrowest = 0.5  # bytes a weight of any format here
    assert perf["tpot_ms"]["mean"] > 0.8 * active_params(model) * narrowest / tp / (gpu.mem_bw_gb_s * 1e6)
    peak = max(rate for rate in (peak_flops_per_ms(gpu, kind) for kind in ("bf16", "fp8", "fp4")) if rate)
    assert perf["ttft_ms"]["p50"] > 0.8 * 2 * active_params(model) * (PROMPT - ANSWER) / tp / peak
    low, high = perf["interval80"]["output_tok_per_s"]
    assert low <= perf["output_tok_per_s"] <= high


@pytest.mark.parametrize(("slower", "faster"), [("H100-SXM-80GB", "H200-SXM-141GB"), ("H100-PCIe-80GB", "H100-NVL-94GB"), ("A100-SXM-40GB", "A100-SXM-80GB")])  # fmt: skip # noqa: E501
def test_more_bandwidth_on_the_same_chip_never_slows_decode(slower: str, faster: str) -> None:
    asked = {
        "model": "Qwen/Qwen3-8B", "engine": "vllm", "load": {"kind": "closed", "concurrency": 16, "requests": 32},
        "input_tokens": 512, "output_tokens": 128,
    }  # fmt: skip
    times = [estimate({**asked, "gpu": gpu})["perf"]["tpot_ms"]["mean"] for gpu in (slower, faster)]
    assert times[1] <= times[0] * 1.01


@pytest.mark.parametrize("gpu", ["H200-SXM-141GB", "Gaudi3", "RTX-4090"])
def test_power_is_known_only_where_it_was_measured(gpu: str) -> None:
    asked = {
        "model": "Qwen/Qwen3-8B", "gpu": gpu, "engine": "vllm", "load": {"kind": "closed", "concurrency": 4},
        "input_tokens": 512, "output_tokens": 64,
    }  # fmt: skip
    watts, limit = estimate(asked)["power_w"], get_gpu(gpu).tdp_w
    if gpu == "H200-SXM-141GB":
        assert limit is not None
        assert 75 < watts <= 1.05 * limit
    else:
        assert watts is None

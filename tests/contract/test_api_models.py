"""Models uploaded over the API, as a team without a hub does: right weights and KV bytes, or a reason why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from planner.catalog import get_model
from tests.contract.conftest import V1
from tests.contract.test_api_errors import problem

pytestmark = pytest.mark.django_db

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
ENDS = 2 * 128_256 * 8192  # parameters of the embedding and of the head, in 16 bits
LINEARS = 70_553_706_496 - ENDS - 161 * 8192  # published sum without them and the norms
EXPERTS = 24 * 32 * 3 * 2880 * 2880  # of gpt-oss-20b, in 4 bits with a byte of scale for 32
PADDED = (3072 / 2880) ** 2  # as Blackwell's kernel takes them
GROUPS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}


def quantised(**method: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": method}


def compressed(weights: Any, inputs: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return quantised(quant_method="compressed-tensors", config_groups={"group_0": group}, ignore=["lm_head"])


# (config.json, or the model whose own is sent; GPUs; bytes of weights; bytes of KV cache a token over all GPUs). By
# hand: parameters as published times the bytes of their format; layers that cache x 2 x heads x head size x 2 bytes, a
# latent once, None where windows or states make it depend on the length.
SENT: dict[str, tuple[Any, int, float, int | None]] = {
    "dense": ("Qwen/Qwen2.5-7B-Instruct", 1, 7_615_616_512 * 2, 28 * 2 * 4 * 128 * 2),
    "experts": ("mistralai/Mixtral-8x22B-v0.1", 2, 281.241e9, 56 * 2 * 8 * 128 * 2),  # total_size of its index
    "latent attention": ("deepseek-ai/DeepSeek-V2-Lite", 1, 15.706e9 * 2, 27 * (512 + 64) * 2),
    "hybrid of mamba": ("ibm-granite/granite-4.0-h-small", 1, 32.2e9 * 2, None),
    "image and text, windows": ("google/gemma-3-27b-it", 1, 54.865e9, None),  # total_size of its index
    "mxfp4": ("openai/gpt-oss-20b", 1, EXPERTS * PADDED * 4.25 / 8 + (20_914_757_184 - EXPERTS) * 2, None),
    "fp8 blocks": ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 1, 31.2e9, 48 * 2 * 4 * 128 * 2),
    "encoder": ("BAAI/bge-m3", 1, 567_754_752 * 2, None),
    "awq": (
        quantised(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm"),
        1, LINEARS * (4 + 20 / 128) / 8 + ENDS * 2, 80 * 2 * 8 * 128 * 2,
    ),
    "gptq": (
        quantised(quant_method="gptq", bits=4, group_size=128, sym=True, desc_act=False),
        1, LINEARS * (4 + 20 / 128) / 8 + ENDS * 2, 80 * 2 * 8 * 128 * 2,
    ),
    "compressed-tensors int4": (compressed(GROUPS, None), 1, LINEARS * (4 + 16 / 128) / 8 + ENDS * 2, 327_680),
    # size of RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic in a registry of deployments
    "compressed-tensors fp8": (compressed(FP8, {"num_bits": 8, "type": "float"}), 1, 72_669_954_704, 327_680),
    "bitsandbytes": (
        quantised(quant_method="bitsandbytes", load_in_4bit=True),
        1, LINEARS * 4.5 / 8 + ENDS * 2, 327_680,
    ),
}  # fmt: skip


def send(api: APIClient, config: Any, name: str = "team/model", **more: Any) -> Any:
    return api.post(f"{V1}/models/", {"model_id": name, "config": config, **more})


def asked(api: APIClient, **more: Any) -> dict[str, Any]:
    line = {"model": "team/model", "gpu": "B200-SXM", "engine": "vllm", "max_model_len": 4096, **more}
    return api.post(f"{V1}/estimate/", line).json()


@pytest.mark.parametrize("kind", list(SENT))
def test_configurations_of_every_kind_give_weights_and_kv(planner_api: APIClient, kind: str) -> None:
    config, gpus, weight_bytes, kv_bytes = SENT[kind]
    made = send(planner_api, get_model(config).config if isinstance(config, str) else config)
    assert made.status_code == 201, made.json()
    answer = asked(planner_api, tp=gpus)
    assert answer["status"] == "ok", answer["reasons"]
    memory = answer["memory"]
    assert memory["weights_gib"] * gpus * 2**30 == pytest.approx(weight_bytes, rel=0.02)
    if kv_bytes is not None:
        assert memory["kv_gib"] * gpus * 2**30 / memory["kv_tokens"] == pytest.approx(kv_bytes, rel=0.005)


def test_nvfp4_by_its_own_file_beside_the_configuration(planner_api: APIClient) -> None:
    side = {
        "producer": {"name": "modelopt", "version": "0.33.0"},
        "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"],
        },
    }  # fmt: skip
    assert send(planner_api, LLAMA, quant_config=side).status_code == 201
    memory = asked(planner_api)["memory"]
    assert memory["weights_gib"] * 2**30 == pytest.approx(LINEARS * 4.5 / 8 + ENDS * 2, rel=0.01)
    assert memory["kv_gib"] * 2**30 / memory["kv_tokens"] == pytest.approx(80 * 2 * 8 * 128, rel=0.005)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 4096}, "T5"),
        ({**LLAMA, "quantization": {"group_size": 64, "bits": 4}}, "MLX"),
        (quantised(quant_method="exl2", bits=4.0), "exl2"),
        (quantised(quant_method="compressed-tensors", sparsity_config={"format": "sparse-24-bitmask"}), "sparse"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}, "draft"),
        ({"architectures": ["MolmoForCausalLM"], "model_type": "molmo", "hidden_size": 3584}, "MolmoForCausalLM"),
        (
            {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
             "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 4096}},
            "text_config.",
        ),
    ],
)  # fmt: skip
def test_configurations_that_cannot_be_planned_say_why(planner_api: APIClient, config: Any, words: str) -> None:
    response = send(planner_api, config)
    problem(response, 400, "validation")
    assert words.lower() in json.dumps(response.json()).lower()


def test_the_index_of_the_files_is_compared(planner_api: APIClient) -> None:
    index = {"metadata": {"total_size": 141_107_412_992}, "weight_map": {"lm_head.weight": "model-30.safetensors"}}
    made = send(planner_api, LLAMA, weight_index=index).json()
    assert (made["weight_bytes"], "weight_index" in made) == (141_107_412_992, False)
    path = f"{V1}/models/{made['id']}/"
    assert planner_api.get(path).json()["weight_check"] == "141.11 GB of weights are stored, 141.11 GB are counted."
    noted = planner_api.patch(path, {"notes": "kept"}, HTTP_IF_MATCH="*").json()
    assert noted["weight_bytes"] == 141_107_412_992
    fp8 = planner_api.patch(path, {"weight_index": {"metadata": {"total_size": 72_669_954_704}}}, HTTP_IF_MATCH="*")
    assert "quantization_config is missing or wrong" in planner_api.get(path).json()["weight_check"], fp8.json()
    other = planner_api.patch(path, {"config": {**LLAMA, "num_hidden_layers": 40}}, HTTP_IF_MATCH="*").json()
    assert other["weight_bytes"] is None, "an index of other files says nothing"
    assert planner_api.get(path).json()["weight_check"] == ""


def test_an_index_comes_as_a_file_of_megabytes_and_a_wrong_one_is_refused(planner_api: APIClient) -> None:
    names = {
        f"model.layers.{i}.mlp.experts.{j}.down_proj.weight_scale_inv": "m" * 28 for i in range(61) for j in range(256)
    }
    body = json.dumps(
        {"metadata": {"total_size": 141_107_412_992}, "weight_map": {**names, **{f"{n}.b": n * 6 for n in names}}}
    )
    assert len(body) > 5 * 2**20
    files = {
        "model_id": "team/model", "config": SimpleUploadedFile("config.json", json.dumps(LLAMA).encode()),
        "weight_index": SimpleUploadedFile("model.safetensors.index.json", body.encode()),
    }  # fmt: skip
    made = planner_api.post(f"{V1}/models/", files, format="multipart")
    assert (made.status_code, made.json()["weight_bytes"]) == (201, 141_107_412_992)
    wrong = send(planner_api, LLAMA, "team/other", weight_index={"weight_map": {}})
    problem(wrong, 400, "validation")
    assert "metadata.total_size" in json.dumps(wrong.json())

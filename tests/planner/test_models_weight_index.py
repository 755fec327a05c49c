"""Weights counted from a configuration against the bytes that public index files state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.catalog import get_model
from planner.errors import InputError
from planner.models import parse
from planner.models.sharding import total_weights_bytes
from planner.models.weight_index import NAME, check_weights, stored_bytes

# metadata.total_size of the model.safetensors.index.json in public repositories that hold the files of a model of that
# shape: Ibtasam-98/medgemma-27b-it 351f31d, tbressers/WizardLM-2-8x22B c209267, fetchwiki/mistralai-Devstral-Small-2507
# 2074b22, fetchwiki/deepcogito-cogito-v1-preview-qwen-14B 3ebd2c0, PANDASANG1231/llama_3.2-3B-huggingface-shard0
# 76307d2, ananddhanabal/gemma 718cb18, YouriLalain/3PRYMMAL-PHI3-3B-SLERP cfe714a, jj8127/mimo_kor 1bdf82c,
# BrianYAU-NTEC/olmOCR e2b9540,
# YouriLalain/2PRYMMAL-Yi1.5-6B-SLERP 82cdc2e,
# ishaanamahajan/Self-Consistency-SemCoder-COMS6998 35de105,
# XS-Wu/digital_person_1 8b33d40,
# TejeshKumarGantyada/RiseUp-UBS-Hackathon c10354e
STORED: dict[str, int] = {
    "google/medgemma-27b-it": 54_864_813_280,
    "alpindale/WizardLM-2-8x22B": 281_241_268_224,
    "mistralai/Devstral-Small-2507": 47_144_806_400,
    "deepcogito/cogito-v1-preview-qwen-14B": 29_531_895_808,
    "meta-llama/Llama-3.2-3B-Instruct": 6_425_499_648,
    "google/gemma-2b": 5_012_344_832,
    "microsoft/Phi-3-mini-4k-instruct": 7_642_159_104,
    "XiaomiMiMo/MiMo-7B-RL": 15_666_819_072,
    "Qwen/Qwen2-VL-7B-Instruct": 16_582_751_232,
    "01-ai/Yi-1.5-6B-Chat": 12_122_071_040,
    "deepseek-ai/deepseek-coder-6.7b-base": 13_481_025_536,
    "Qwen/Qwen2.5-3B-Instruct": 6_171_877_376,
    "google/gemma-2-2b-it": 5_228_683_776,
}


@pytest.mark.parametrize("name", list(STORED))
def test_bytes_counted_are_the_bytes_stored(name: str) -> None:
    check = check_weights(get_model(name), STORED[name])
    assert check.agrees, check.sentence
    assert check.loaded + check.predicting == pytest.approx(STORED[name], rel=0.0002)


def test_a_hybrid_of_experts_counts_what_is_stored() -> None:
    """Qwen3.5 with 180 of its experts, half precision: bryce-hoehn/Qwen3.5-25B-REAP-A3B-Coding 2714ffd."""
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe_text", "dtype": "float16",
        "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
        "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1, "num_attention_heads": 16, "num_experts": 180,
        "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2, "tie_word_embeddings": False,
        "shared_expert_intermediate_size": 512, "vocab_size": 248320,
    }  # fmt: skip
    assert total_weights_bytes(parse(config, model_id="team/qwen")) == pytest.approx(50_182_743_296, rel=0.0002)


def test_what_files_hold_beside_what_is_loaded_is_named() -> None:
    tied = get_model("meta-llama/Llama-3.2-3B-Instruct")
    loaded = total_weights_bytes(tied)
    assert tied.lm_head is not None
    assert "tied" in check_weights(tied, int(loaded + 2 * tied.lm_head.params)).sentence
    assert "32 bits" in check_weights(tied, int(2 * loaded)).sentence
    doubt = check_weights(tied, int(loaded / 3.4))
    assert not doubt.agrees
    assert "quantization_config is missing" in doubt.sentence


def test_scales_of_scales_of_bitsandbytes() -> None:
    """Llama 2 13B in 4 bits: IrfanUruchi/Llama-2-13B-Computer-Engineering- 42888e5."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
        "max_position_embeddings": 4096, "torch_dtype": "float16", "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
    }  # fmt: skip
    check = check_weights(parse(config, model_id="team/llama"), 7_201_770_923)
    assert check.agrees
    assert "loaded in 32" in check.sentence


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "metadata.total_size"),
        ({"weight_map": {}}, "metadata.total_size"),
        ({"metadata": {"total_size": True}}, "metadata.total_size"),
        ({"metadata": {"total_size": -5}}, "metadata.total_size"),
        ({"metadata": {"total_size": "16 GB"}}, "metadata.total_size"),
        (b'{"metadata": {"total_size": 1e999}}', "metadata.total_size"),
        (b" " * (49 * 2**20), "larger than"),
    ],
)
def test_indices_that_say_nothing(index: Any, words: str) -> None:
    data = index if isinstance(index, bytes) else json.dumps(index).encode()
    with pytest.raises(InputError, match=words) as error:
        stored_bytes(data)
    assert (error.value.field or "").startswith(NAME)


def test_the_size_is_read_beside_the_map_of_tensors() -> None:
    held = {"metadata": {"total_size": 16_060_522_496}, "weight_map": {"lm_head.weight": "model-1.safetensors"}}
    assert stored_bytes(json.dumps(held).encode()) == 16_060_522_496

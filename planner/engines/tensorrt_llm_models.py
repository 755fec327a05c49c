"""Architectures that TensorRT-LLM's PyTorch back end lists, and since when.

Read from the tables of supported models in the documentation of 1.0.0, 1.3.0rc3, rc13, rc15, rc20, rc29 and 1.4.0rc1
(docs/source/models/supported-models.md): "since" is the first of these that has the architecture.
"""

from __future__ import annotations

from planner.engines.versions import at_least

_FIRST = "1.0.0"
_BY_RC3 = "1.2.0"
_BY_RC13 = "1.3.0rc4"
_BY_RC20 = "1.3.0rc16"
_BY_RC29 = "1.3.0rc21"

LISTED_SINCE: dict[str, str] = {
    "BertForSequenceClassification": _FIRST,
    "DeciLMForCausalLM": _FIRST,
    "DeepseekV3ForCausalLM": _FIRST,
    "Exaone4ForCausalLM": _FIRST,
    "Gemma3ForCausalLM": _FIRST,
    "Gemma3ForConditionalGeneration": _FIRST,
    "HCXVisionForCausalLM": _FIRST,
    "Llama4ForConditionalGeneration": _FIRST,
    "LlamaForCausalLM": _FIRST,
    "LlavaLlamaModel": _FIRST,
    "LlavaNextForConditionalGeneration": _FIRST,
    "Mistral3ForConditionalGeneration": _FIRST,
    "MistralForCausalLM": _FIRST,
    "MixtralForCausalLM": _FIRST,
    "MllamaForConditionalGeneration": _FIRST,
    "NemotronForCausalLM": _FIRST,
    "NemotronNASForCausalLM": _FIRST,
    "Phi4MMForCausalLM": _FIRST,
    "Qwen2ForCausalLM": _FIRST,
    "Qwen2ForProcessRewardModel": _FIRST,
    "Qwen2ForRewardModel": _FIRST,
    "Qwen2VLForConditionalGeneration": _FIRST,
    "Qwen2_5_VLForConditionalGeneration": _FIRST,
    "Qwen3ForCausalLM": _FIRST,
    "Qwen3MoeForCausalLM": _FIRST,
    "GptOssForCausalLM": _FIRST,
    "DeepseekV32ForCausalLM": _BY_RC3,
    "ExaoneMoEForCausalLM": _BY_RC3,
    "Glm4MoeForCausalLM": _BY_RC3,
    "MiniMaxM2ForCausalLM": _BY_RC3,
    "NemotronHForCausalLM": _BY_RC3,
    "Phi3ForCausalLM": _BY_RC3,
    "Qwen3NextForCausalLM": _BY_RC3,
    "Qwen3VLForConditionalGeneration": _BY_RC3,
    "Qwen3VLMoeForConditionalGeneration": _BY_RC3,
    "Cohere2ForCausalLM": _BY_RC13,
    "Gemma4ForConditionalGeneration": _BY_RC13,
    "GlmMoeDsaForCausalLM": _BY_RC13,
    "KimiK25ForConditionalGeneration": _BY_RC13,
    "AfmoeForCausalLM": _BY_RC20,
    "MiniMaxM3ForCausalLM": _BY_RC20,
    "MiniMaxM3SparseForConditionalGeneration": _BY_RC20,
    "Qwen3_5ForConditionalGeneration": _BY_RC20,
    "Qwen3_5MoeForCausalLM": _BY_RC20,
    "Qwen3_5MoeForConditionalGeneration": _BY_RC20,
    "DeepseekV4ForCausalLM": _BY_RC29,
    "Step3p7FlashForCausalLM": _BY_RC29,
    "Step3p7ForConditionalGeneration": _BY_RC29,
}

AUTODEPLOY_ONLY = frozenset(
    {
        "DeepSeekV2ForCausalLM",
        "DeepseekV2ForCausalLM",
        "ExaoneForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Glm4MoeLiteForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "InternLM3ForCausalLM",
        "Olmo3ForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
    }
)
"""Served through the experimental AutoDeploy back end alone, whose memory and speed are not modelled."""

BLACKWELL_ONLY = frozenset({"DeepseekV4ForCausalLM"})


def reason_against(architecture: str, version: str) -> str | None:
    """Why ``version`` does not serve ``architecture``; None when it does.

    Before 1.0 engines were built from many more architectures, for which no table was read: nothing is refused.
    """
    if not at_least(version, _FIRST):
        return None
    if architecture in AUTODEPLOY_ONLY:
        return f"TensorRT-LLM serves {architecture} through its AutoDeploy back end only, which is not modelled."
    since = LISTED_SINCE.get(architecture)
    if since is None:
        return f"{architecture} is not among the architectures that TensorRT-LLM {version} lists."
    if not at_least(version, since):
        return f"TensorRT-LLM {version} does not list {architecture} yet."
    return None

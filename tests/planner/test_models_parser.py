"""The parser: families' traits, errors that name the field, and hostile input."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import get_model, list_models
from planner.errors import InputError, PlannerError, UnknownModelError, UnsupportedError
from planner.models import load_config_file, parse, parse_config_text
from planner.models.spec import Attention, Mla, RecurrentState

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}


def _kinds(model_id: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in get_model(model_id).groups:
        mixer = group.mixer
        name = type(mixer).__name__ if mixer is None or isinstance(mixer, Mla) else mixer.kind
        counts[name] = counts.get(name, 0) + group.count
    return counts


@pytest.mark.parametrize(
    ("model_id", "kinds"),
    [
        ("google/gemma-3-27b-it", {"sliding": 52, "full": 10}),
        ("google/gemma-2-9b-it", {"sliding": 21, "full": 21}),
        ("google/gemma-4-26B-A4B", {"sliding": 25, "full": 5}),
        ("openai/gpt-oss-120b", {"sliding": 18, "full": 18}),
        ("LGAI-EXAONE/EXAONE-4.0-32B", {"sliding": 48, "full": 16}),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", {"chunked": 36, "full": 12}),
        ("meta-llama/Llama-3.2-90B-Vision-Instruct", {"full": 80, "cross": 20}),
        ("Qwen/Qwen3.5-27B", {"gdn": 48, "full": 16}),
        ("moonshotai/Kimi-K3", {"kda": 69, "Mla": 24}),
        ("ai21labs/AI21-Jamba-1.5-Mini", {"mamba1": 28, "full": 4}),
        ("ibm-granite/granite-4.0-h-small", {"mamba2": 36, "full": 4}),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"full": 49, "NoneType": 31}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"mamba2": 23, "full": 6, "NoneType": 23}),
        ("XiaomiMiMo/MiMo-V2-Flash", {"full": 9, "sliding": 39}),
        ("RWKV/rwkv-5-world-3b", {"rwkv": 32}),
        ("BAAI/bge-m3", {"encoder": 24}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {"full": 32}),
        ("microsoft/Phi-3-mini-128k-instruct", {"full": 32}),
    ],
)
def test_kinds_of_layers(model_id: str, kinds: dict[str, int]) -> None:
    assert _kinds(model_id) == kinds


def test_layer_order_follows_the_network() -> None:
    spec = get_model("google/gemma-3-27b-it")
    full = [index for index, group in enumerate(spec.layer_order) if spec.groups[group].mixer.kind == "full"]
    assert full == list(range(5, 62, 6))


def test_state_sizes_of_hybrid_models() -> None:
    state = next(g.mixer for g in get_model("Qwen/Qwen3.5-27B").groups if isinstance(g.mixer, RecurrentState))
    assert state.state_elements == 48 * 128 * 128
    assert state.conv_elements == (2 * 16 * 128 + 48 * 128) * 3
    nano = get_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    mamba = next(g.mixer for g in nano.groups if isinstance(g.mixer, RecurrentState))
    assert mamba.state_elements == 64 * 64 * 128
    assert mamba.conv_elements == (64 * 64 + 2 * 8 * 128) * 3


def test_latent_attention_and_its_indexer() -> None:
    mixer = get_model("deepseek-ai/DeepSeek-V3.2").groups[0].mixer
    assert isinstance(mixer, Mla)
    assert (mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.index_head_dim) == (512, 64, 128)
    shared = [g for g in get_model("zai-org/GLM-5.2").groups if g.mixer.index_head_dim is None]
    assert sum(group.count for group in shared) == 57


def test_prediction_layers_are_kept_apart() -> None:
    spec = get_model("deepseek-ai/DeepSeek-V3")
    assert spec.mtp_layers == 1
    assert spec.layers == 61
    mtp = sum(group.count * sum(linear.params for linear in group.linears) for group in spec.mtp_groups)
    assert mtp / 1e9 == pytest.approx(11.6, rel=0.02)


def test_nested_config_takes_language_dimensions_from_the_nested_part_alone() -> None:
    nested = copy.deepcopy(LLAMA)
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "hidden_size": 32,
        "num_attention_heads": 8,
        "text_config": nested,
    }
    spec = parse(config, model_id="nested")
    mixer = spec.groups[0].mixer
    assert isinstance(mixer, Attention)
    assert (spec.hidden, mixer.head_dim) == (64, 16)
    del nested["num_attention_heads"]
    with pytest.raises(InputError) as caught:
        parse(config, model_id="nested")
    assert caught.value.field == "text_config.num_attention_heads"


def _shape(kind: str, **config: Any) -> dict[str, Any]:
    return {"model_type": kind, **config}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (_shape("gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257), 124_439_808),
        (
            _shape(
                "opt",
                hidden_size=2048,
                num_hidden_layers=24,
                num_attention_heads=32,
                ffn_dim=8192,
                max_position_embeddings=2048,
                vocab_size=50272,
            ),
            1_315_758_080,
        ),
        (
            _shape(
                "gpt_neox",
                hidden_size=2048,
                num_hidden_layers=16,
                num_attention_heads=8,
                intermediate_size=8192,
                max_position_embeddings=2048,
                vocab_size=50304,
            ),
            1_011_781_632,
        ),
        (_shape("gptj", n_embd=4096, n_layer=28, n_head=16, n_positions=2048, vocab_size=50400), 6_050_882_784),
        (_shape("bloom", hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880), 559_214_592),
        (
            _shape("gpt_bigcode", n_embd=2048, n_layer=24, n_head=16, n_inner=8192, n_positions=8192, vocab_size=49152),
            1_137_207_296,
        ),
        (_shape("mpt", d_model=4096, n_layers=32, n_heads=32, max_seq_len=2048, vocab_size=50432), 6_649_286_656),
        (
            _shape("falcon", hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, vocab_size=65024),
            6_921_720_704,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_older_families_have_their_published_counts(config: dict[str, Any], total: int) -> None:
    assert parse(config, model_id="x").total_params == total


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "vocab_size",
    ],
)
def test_missing_field_is_named(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(InputError, match="missing") as caught:
        parse(config, model_id="x")
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"hidden_size": 66}, "num_attention_heads"),
        ({"num_hidden_layers": 1e30}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"vocab_size": [1]}, "vocab_size"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"text_config": 5}, "text_config"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            "quantization_config.weight_block_size",
        ),
    ],
)
def test_absurd_values_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse({**LLAMA, **change}, model_id="x")
    assert caught.value.field == field


def test_unknown_architecture_and_method_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="WhisperForConditionalGeneration"):
        parse({"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}, model_id="x")
    with pytest.raises(UnsupportedError, match="hqq"):
        parse({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, model_id="x")
    with pytest.raises(InputError, match="architectures"):
        parse({}, model_id="x")
    with pytest.raises(InputError, match="object"):
        parse([], model_id="x")  # type: ignore[arg-type]


def test_embedding_models_have_no_head() -> None:
    named = get_model("Qwen/Qwen3-Embedding-8B")
    assert (named.task, named.lm_head) == ("embed", None)
    assert named.total_params / 1e9 == pytest.approx(7.57, rel=0.01)
    encoder = get_model("BAAI/bge-m3")
    assert (encoder.task, encoder.lm_head, encoder.max_position) == ("embed", None, 8192)
    classifier = {**encoder.config, "architectures": ["XLMRobertaForSequenceClassification"]}
    assert parse(classifier, model_id="reranker").task == "classify"


def test_library_defaults_are_noted() -> None:
    assert any("library's defaults" in note for note in get_model("google/gemma-3-4b-it").notes)
    assert not any("library's defaults" in note for note in get_model("Qwen/Qwen3-8B").notes)


def _configs() -> list[dict[str, Any]]:
    chosen = {get_model(name).model_type: get_model(name).config for name in list_models()}
    return [copy.deepcopy(config) for config in chosen.values()]


_CONFIGS = _configs()
_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**12),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.lists(st.integers(-2, 70), max_size=70),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "mamba", "x"]), max_size=70),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def _paths(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    found = [(*prefix, key) for key in value]
    for key, item in value.items():
        found += _paths(item, (*prefix, key))
    return found


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(_CONFIGS), st.data())
def test_mutated_configs_raise_nothing_but_planner_errors(original: dict[str, Any], data: st.DataObject) -> None:
    config = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 3))):
        paths = _paths(config)
        if not paths:
            break
        *parents, last = data.draw(st.sampled_from(paths))
        holder = config
        for key in parents:
            holder = holder[key]
        if data.draw(st.booleans()):
            del holder[last]
        else:
            holder[last] = data.draw(_JUNK)
    try:
        spec = parse(config, model_id="mutant")
    except PlannerError as error:
        assert str(error)  # noqa: PT017 - any planner error is an accepted answer
        return
    assert spec.total_params > 0
    assert spec.layers > 0


@settings(deadline=None, max_examples=150)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.dictionaries(st.text(), s)))
def test_arbitrary_json_raises_nothing_but_planner_errors(value: Any) -> None:
    with pytest.raises(PlannerError):
        parse(value, model_id="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1', "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "one JSON object"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested deeper"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config_text(text)


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    assert parse_config_text(json.dumps({"a": '[{"' * 200})) == {"a": '[{"' * 200}


def test_infinity_is_kept_in_strict_json_form() -> None:
    config = parse_config_text('{"time_step_limit": [0.0, Infinity]}')
    assert json.loads(json.dumps(config, allow_nan=False)) == {"time_step_limit": [0.0, {"__float__": "Infinity"}]}


def test_files_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a file"):
        load_config_file(tmp_path)
    with pytest.raises(InputError, match="not a file"):
        load_config_file(tmp_path / "absent.json")
    with pytest.raises(InputError):
        load_config_file("a\0b")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(2**30)  # sparse: takes no disk
    with pytest.raises(InputError, match="larger than"):
        load_config_file(huge)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_config_file(binary)
    good = tmp_path / "config.json"
    good.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert parse(load_config_file(good), model_id="good").hidden == 64
    assert get_model(good).hidden == get_model(tmp_path).hidden == 64
    with pytest.raises(UnknownModelError):
        get_model(good, allow_path=False)
    good.write_text(json.dumps({**LLAMA, "vocab_size": 100_000}), encoding="utf-8")
    assert get_model(good).vocab == 100_000

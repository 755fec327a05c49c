"""The catalogue's files of models: every file has one row of facts that it bears out, every name leads somewhere."""

from __future__ import annotations

import json

import pytest

from planner.catalog import get_model, list_models
from planner.catalog.models import _SIDE
from planner.catalog.tables import DATA, read_csv, simplified
from planner.errors import UnknownModelError, UnsupportedError
from planner.models.parser import parse

SOURCES = read_csv("models", "sources.csv")
ALIASES = read_csv("aliases.csv")
KINDS = {"config.json", "config.json_trimmed", "preset", "literal_in_code", "partial", "hf_quant_config"}
FIELDS = {
    "model_type": ("model_type",),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_position": ("max_position_embeddings", "n_positions", "model_max_length", "seq_length", "context_length"),
}
"""Columns of sources.csv and where a configuration states them, nested parts included."""


def _config(name: str) -> dict:
    return json.loads((DATA / "models" / name).read_bytes())


def test_every_file_has_one_row_and_every_row_a_file() -> None:
    listed = [row["file"] for row in SOURCES]
    assert len(listed) == len(set(listed))
    assert set(listed) == {item.name for item in (DATA / "models").iterdir() if item.name.endswith(".json")}


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row["file"])
def test_a_row_names_its_source_and_what_its_file_holds(row: dict[str, str]) -> None:
    assert row["kind"] in KINDS
    assert row["repo"] or row["path"], "no source"
    assert row["file"] == row["model_id"].replace("/", "--") + (_SIDE if row["kind"] == "hf_quant_config" else ".json")
    if row["kind"] == "hf_quant_config":
        return
    config = _config(row["file"])
    assert row["architecture"] in (*config.get("architectures", []), "")
    parts = [config, *(config[key] for key in ("text_config", "language_config", "llm_config") if config.get(key))]
    for column, keys in FIELDS.items():
        stated = [part[key] for part in parts for key in keys if part.get(key) is not None]
        if row[column] and stated:
            assert row[column] in map(str, stated), column


@pytest.mark.parametrize("row", ALIASES, ids=lambda row: row["alias"])
def test_an_alias_has_a_kind_and_means_something(row: dict[str, str]) -> None:
    assert row["kind"] in ("gpu", "model", "unplanned")
    assert bool(row["canonical"]) == (row["kind"] != "unplanned")
    if row["kind"] == "model":
        assert row["canonical"] in list_models()
        assert row["alias"] not in list_models(), "a name with a file of its own needs no alias"
        spec = get_model(row["alias"], allow_path=False)
        assert spec.model_id == row["canonical"]
        if row["max_position"]:
            assert spec.max_position == int(row["max_position"])
        if row["precision"]:
            assert row["precision"] in (spec.dtype, spec.quantization.precision)
    elif row["kind"] == "unplanned":
        assert row["note"]
        with pytest.raises(UnsupportedError, match="not modelled"):
            get_model(row["alias"], allow_path=False)


def test_no_two_names_become_one_when_simplified() -> None:
    """Names are looked up without case and punctuation: two models must not share one."""
    meant: dict[str, str] = {}
    for name in list_models():
        assert meant.setdefault(simplified(name), name) == name
    for row in ALIASES:
        if row["kind"] == "model":
            assert meant.setdefault(simplified(row["alias"]), row["canonical"]) == row["canonical"], row["alias"]


def test_files_are_compact() -> None:
    """Configurations alone: a weight index or tokenizer does not belong here."""
    for item in (DATA / "models").iterdir():
        if item.name.endswith(".json") and not item.name.endswith(_SIDE):
            assert len(item.read_bytes()) < 100_000, item.name


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("Qwen/Qwen2.5-0.5B", 32_768),
        ("Qwen/Qwen2.5-7B", 131_072),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("Qwen/Qwen2.5-32B", 131_072),
        ("Qwen/Qwen2.5-32B-Instruct", 32_768),
        ("Qwen/Qwen2.5-72B", 131_072),
        ("Qwen/Qwen2.5-72B-Instruct", 32_768),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", 32_768),
        ("Qwen/Qwen2.5-Math-72B-Instruct", 4096),
        ("Qwen/QwQ-32B", 40_960),
        ("Qwen/QwQ-32B-Preview", 32_768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 131_072),
        ("meta-llama/Llama-2-13b-chat-hf", 4096),
        ("meta-llama/Llama-2-70b-chat-hf", 4096),
        ("nvidia/DeepSeek-R1-NVFP4", 163_840),
        ("meta-llama/Meta-Llama-3-70B-Instruct", 8192),
        ("mistralai/Mistral-7B-Instruct-v0.2", 32_768),
    ],
)
def test_contexts(name: str, positions: int) -> None:
    assert get_model(name, allow_path=False).max_position == positions


def test_what_nvidia_calls_fp4_and_nvfp4_is_one_checkpoint() -> None:
    """Exports of DeepSeek R1 leave the projections of queries and latents in 16 bits."""
    old, new = get_model("nvidia/DeepSeek-R1-FP4"), get_model("nvidia/DeepSeek-R1-NVFP4")
    assert old.quantization == new.quantization
    assert old.groups == new.groups
    assert not any(linear.quantised for group in old.groups for linear in group.linears if linear.role == "mla_q_b")


def test_an_unknown_name_is_told_of_the_way_by_config_json() -> None:
    with pytest.raises(UnknownModelError, match=r"config\.json\.$"):
        get_model("someone/none-such-at-all", allow_path=False)


@pytest.mark.parametrize("model_id", list_models())
def test_a_file_read_from_elsewhere_gives_the_catalogue_model(model_id: str) -> None:
    """What an air-gapped team uploads is read by the same rules, whatever the model is called."""
    row = next(row for row in SOURCES if row["model_id"] == model_id and row["kind"] != "hf_quant_config")
    side = DATA / "models" / row["file"].replace(".json", _SIDE)
    quantization = json.loads(side.read_bytes()) if side.is_file() else None
    name = "team/copy-Embedding" if "Embedding" in model_id else "team/copy"
    spec = parse(_config(row["file"]), model_id=name, quant_config=quantization)
    assert spec.total_params == get_model(model_id).total_params
    assert spec.quantization.precision == get_model(model_id).quantization.precision

"""Models of the catalogue: config.json files of public models, and any config.json by path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from planner.catalog.tables import DATA, nearest, number, read_csv, simplified, whole
from planner.errors import InputError, UnknownModelError
from planner.models import load_config_file, parse, parse_config_text
from planner.models.parser import precision_in_name
from planner.models.precision import with_precision
from planner.models.spec import ModelSpec

_SIDE = ".hf_quant_config.json"
_QUANTISED = re.compile(
    r"-(fp8|fp8-dynamic|fp8-kv|fp8-block|awq|awq-int4|gptq|gptq-int4|nvfp4|fp4|mxfp4|(quantized\.)?w4a16|quantized\.w8a8)$",
    re.IGNORECASE,
)
"""How checkpoints that quantise another one's weights end their names; the shape is that one's."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a catalogue configuration comes from. ``kind``: config.json, config.json_trimmed, preset, partial, ..."""

    model_id: str
    kind: str
    repository: str
    licence: str
    notes: str


@dataclass(frozen=True, slots=True)
class PublishedParams:
    """A published parameter count, in units of 10^9; rounded figures of their publishers."""

    model_id: str
    total_b: float
    active_b: float | None
    source: str
    notes: str


@cache
def _files() -> dict[str, str]:
    """Model id -> file name."""
    return {
        row["model_id"]: row["file"] for row in read_csv("models", "sources.csv") if row["kind"] != "hf_quant_config"
    }


@dataclass(frozen=True, slots=True)
class _Meant:
    """The catalogue model that a name means. ``max_position`` and ``precision`` where the name's checkpoint differs."""

    model_id: str
    max_position: int | None = None
    precision: str = ""


@cache
def _aliases() -> dict[str, _Meant]:
    """Simplified id or alias, with and without its organisation -> model."""
    names = {name: _Meant(name) for name in _files()}
    for row in read_csv("aliases.csv"):
        if row["kind"] == "model":
            if row["canonical"] not in _files():
                raise InputError("alias of an unknown model", field="aliases.csv", value=row["canonical"])
            meant = _Meant(row["canonical"], whole(row, "max_position", row["alias"]), row["precision"])
            names.setdefault(row["alias"], meant)
    found = {simplified(name): meant for name, meant in reversed(names.items())}
    for name, meant in names.items():
        found.setdefault(simplified(name.rsplit("/", 1)[-1]), meant)
    return found


def _known(text: str) -> _Meant | None:
    """What ``text`` names; a quantised checkpoint, whoever made it, has the shape of what stands before its suffix."""
    found = _aliases().get(simplified(text))
    if found is not None or not _QUANTISED.search(text):
        return found
    plain = _QUANTISED.sub("", text)
    return _aliases().get(simplified(plain)) or _aliases().get(simplified(plain.rsplit("/", 1)[-1]))


def list_models() -> tuple[str, ...]:
    """Ids of the catalogue, sorted."""
    return tuple(sorted(_files()))


def get_model(id_or_path: str | os.PathLike[str], *, allow_path: bool = True) -> ModelSpec:
    """The model of that catalogue id, alias, or path to a config.json (or to the directory that holds one).

    ``allow_path=False`` looks in the catalogue alone: for names that come over the network. Beside a config.json an
    hf_quant_config.json is read too. Raises UnknownModelError with the nearest ids, InputError
    and UnsupportedError as ``planner.models.parse``.
    """
    text = os.fspath(id_or_path) if isinstance(id_or_path, str | os.PathLike) else ""
    if not text or "\0" in text:
        raise UnknownModelError("must be a model id or a path", field="model", value=id_or_path)
    known = _known(text)
    if known is not None and not text.startswith((".", "/")):
        spec = _catalogue_model(known.model_id)
        return spec if simplified(known.model_id).endswith(simplified(text)) else _as_named(known, text)
    path = Path(text)
    try:
        if path.is_dir():
            path = path / "config.json"
        found = allow_path and path.is_file()
    except OSError:
        found = False
    if not found:
        raise UnknownModelError(
            "is neither in the catalogue nor a config.json", field="model", value=text, remedy=nearest(text, _files())
        )
    side = path.with_name("hf_quant_config.json")
    if path.name.endswith(".json") and not side.is_file():
        side = path.with_name(path.name.removesuffix(".json") + _SIDE)
    return _model_at(path, _stamp(path), side, _stamp(side))


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when the file does; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _named_by(path: Path) -> str:
    """Model id that a file's place states: ``org--name/config.json`` and ``org--name.json`` are ``org/name``."""
    name = path.absolute().parent.name if path.name == "config.json" else path.name.removesuffix(".json")
    return name.replace("--", "/", 1) or str(path)


@lru_cache(maxsize=64)
def _model_at(
    path: Path, _config_stamp: tuple[int, int] | None, side: Path, side_stamp: tuple[int, int] | None
) -> ModelSpec:
    """Parse a file once for each of its versions."""
    quantization = load_config_file(side) if side_stamp is not None else None
    return parse(load_config_file(path), model_id=_named_by(path), quant_config=quantization)


@cache
def _catalogue_model(model_id: str, max_position: int | None = None) -> ModelSpec:
    folder = DATA / "models"
    name = _files()[model_id]
    side = folder / (name.removesuffix(".json") + _SIDE)
    quantization = parse_config_text(side.read_bytes(), side.name) if side.is_file() else None
    config = parse_config_text((folder / name).read_bytes(), name)
    if max_position is not None:
        config.get("text_config", config)["max_position_embeddings"] = max_position
    return parse(config, model_id=model_id, quant_config=quantization)


@cache
def _as_named(meant: _Meant, alias: str) -> ModelSpec:
    """The model as ``alias`` stores it: the same shape; its name may state a quantisation."""
    spec = _catalogue_model(meant.model_id, meant.max_position)
    precision = meant.precision or precision_in_name(alias)
    note = f"{alias} has the shape of {spec.model_id}, whose configuration is used."
    quantised = with_precision(spec, precision) if precision else spec
    if alias.startswith("nvidia/") and precision in ("fp8", "fp4"):
        # NVIDIA's ModelOpt exports of these shapes quantise the KV cache too ("kv_cache_quant_algo": "FP8").
        quantised = replace(quantised, quantization=replace(quantised.quantization, kv_cache_dtype="fp8"))
    return replace(quantised, notes=(*quantised.notes, note))


@cache
def _sources() -> dict[str, ModelSource]:
    result = {}
    for row in read_csv("models", "sources.csv"):
        if row["kind"] != "hf_quant_config":
            where = " ".join(filter(None, (row["repo"], row["path"], row["commit"])))
            result[row["model_id"]] = ModelSource(
                row["model_id"], row["kind"], where, row["repo_licence"], row["notes"]
            )
    return result


def model_source(model_id: str) -> ModelSource:
    """Where the catalogue's configuration of ``model_id`` (id or alias) comes from; raises UnknownModelError."""
    known = _known(model_id)
    if known is None:
        raise UnknownModelError(
            "is not in the catalogue", field="model", value=model_id, remedy=nearest(model_id, _files())
        )
    return _sources()[known.model_id]


@cache
def _published() -> dict[str, PublishedParams]:
    result: dict[str, PublishedParams] = {}
    for row in read_csv("models", "param_counts.csv"):
        total = number(row, "total_params_b", row["model_id"])
        if total is None:
            continue
        active = number(row, "active_params_b", row["model_id"])
        result.setdefault(row["model_id"], PublishedParams(row["model_id"], total, active, row["source"], row["notes"]))
    return result


def published_params(model_id: str) -> PublishedParams | None:
    """The published parameter count of exactly that id, or of the model that it is an alias of; None when unknown."""
    if model_id in _published():
        return _published()[model_id]
    known = _known(model_id)
    if known is None:
        return None
    if known.model_id in _published():
        return _published()[known.model_id]
    for row in read_csv("aliases.csv"):
        if row["kind"] == "model" and row["canonical"] == known.model_id and row["alias"] in _published():
            return _published()[row["alias"]]
    return None

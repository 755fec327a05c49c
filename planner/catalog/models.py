"""Models of the catalogue: config.json files of public models, and any config.json by path."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from planner.catalog.names import Stated, foreign_format, refuse_format, stated_quantisation
from planner.catalog.tables import DATA, nearest, number, read_csv, simplified, whole
from planner.errors import InputError, UnknownModelError, UnsupportedError
from planner.models import load_config_file, parse, parse_config_text
from planner.models.precision import with_precision
from planner.models.quantization import STORED_BITS
from planner.models.spec import SAME_SHAPE, ModelSpec, Quantization

_SIDE = ".hf_quant_config.json"


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
    """The catalogue model that a name means. ``max_position`` and ``precision`` where the name's checkpoint differs;
    ``stated`` where the name's end states its quantisation.
    """

    model_id: str
    max_position: int | None = None
    precision: str = ""
    stated: Stated | None = None


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
    """What ``text`` names: a model, its quantised checkpoint (the shape of what stands before its suffix), or a copy of
    either, whoever keeps it, under the same name.
    """
    found = _aliases().get(simplified(text))
    if found is not None or foreign_format(text):
        return found
    for name in (text, text.rsplit("/", 1)[-1]):
        found = _aliases().get(simplified(name)) if name != text else None
        stated = stated_quantisation(name)
        if found is None and stated is not None:
            found = _aliases().get(simplified(stated.plain))
            found = found and replace(found, stated=stated, precision="")
        if found is not None:
            return found
    return None


@cache
def _unplanned() -> dict[str, str]:
    """Simplified name, with and without its organisation -> why a known public model is not planned."""
    rows = [row for row in read_csv("aliases.csv") if row["kind"] == "unplanned"]
    return {simplified(name): row["note"] for row in rows for name in (row["alias"], row["alias"].rsplit("/", 1)[-1])}


def _refuse_unplanned(text: str) -> None:
    """Raise UnsupportedError when ``text`` names a public model whose layout or work is not modelled."""
    stated = stated_quantisation(text)
    for name in (text, *(part.rsplit("/", 1)[-1] for part in (text, stated.plain if stated else text))):
        why = _unplanned().get(simplified(name))
        if why is not None:
            raise UnsupportedError(why, field="model", value=text, remedy="Plan a model whose layout is known.")


def list_models() -> tuple[str, ...]:
    """Ids of the catalogue, sorted."""
    return tuple(sorted(_files()))


def get_model(id_or_path: str | os.PathLike[str], *, allow_path: bool = True) -> ModelSpec:
    """The model of that catalogue id, alias, or path to a config.json (or to the directory that holds one).

    ``allow_path=False`` looks in the catalogue alone: for names that come over the network. Beside a config.json an
    hf_quant_config.json is read too. Raises UnknownModelError with the nearest ids, InputError
    and UnsupportedError as ``planner.models.parse``; UnsupportedError for a name of a file format that is not planned.
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
        refuse_format(text)
        _refuse_unplanned(text)
        remedy = f"{nearest(text, _files())} Or give the model's own config.json."
        raise UnknownModelError(
            "is neither in the catalogue nor a config.json", field="model", value=text, remedy=remedy
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


def model_name(id_or_path: str) -> str:
    """The id by which an engine serves what a plan names by ``id_or_path``: of a file, the id that its place states."""
    return _named_by(Path(id_or_path)) if id_or_path.endswith(".json") else id_or_path


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
    stated = meant.stated or stated_quantisation(alias)
    precision = meant.precision or (stated.precision if stated else "")
    quantised = with_precision(spec, precision) if precision else spec
    owner = alias.split("/")[0].lower()
    if quantised is not spec:
        quantised = replace(quantised, quantization=_exported(quantised.quantization, owner, stated), notes=spec.notes)
    note = f"{alias} has the shape of {spec.model_id}, {SAME_SHAPE}"
    if quantised is not spec:
        covered = "" if precision in ("bf16", "fp16") else ": all linears of the layers, not embedding and head"
        note = f"{note.removesuffix('.')}, in {precision}{covered}."
    return replace(quantised, notes=(*quantised.notes, note))


def _exported(quantization: Quantization, owner: str, stated: Stated | None) -> Quantization:
    """``quantization`` as the owner's exports have it, where that is known.

    NVIDIA's ModelOpt exports quantise the KV cache too ("kv_cache_quant_algo": "FP8"); Qwen's FP8 checkpoints have a
    scale for each 128 x 128 weights, as all of them here show.
    """
    if owner == "nvidia" and quantization.precision in ("fp8", "fp4"):
        quantization = replace(quantization, kv_cache_dtype="fp8")
    if owner == "qwen" and quantization.precision == "fp8":
        scale = STORED_BITS["fp8_block"] - STORED_BITS["fp8"]
        quantization = replace(
            quantization, method="fp8", precision="fp8_block", scale_bits_per_weight=scale, group_size=128
        )
    if stated is not None and stated.activation_bits is not None:
        quantization = replace(quantization, activation_bits=stated.activation_bits)
    return quantization


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

"""Acts on workloads, traces and uploaded models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.text import slugify

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.core.services import delete_record, save_record
from controlplane.core.undo import Kept, put_back
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload
from controlplane.workloads.tracefile import parse_trace
from planner import catalog
from planner.demand import mean_share
from planner.errors import InputError, PlannerError, UnknownModelError
from planner.jsonio import from_json
from planner.models.loading import parse_config_text
from planner.models.parser import parse
from planner.models.spec import ModelSpec
from planner.models.weight_index import WeightCheck, check_weights, stored_bytes
from planner.serving.types import Lengths

MAX_SAMPLES = 4000
"""Requests of a trace that go into one plan request; taken evenly, or the busiest stretch when arrivals count."""

_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


def save_workload(
    *,
    actor: Actor,
    workload: Workload,
    slo: list[SloTarget] | None = None,
    expected_version: int | None = None,
) -> Workload:
    """Create or change a workload and, when ``slo`` is given, replace its objectives; takes a planner.

    Raises PermissionDenied, ValidationError (also for an unknown model), StaleVersionError.
    """
    access.require(actor, Role.PLANNER, workload.site if workload.site_id else None)
    with transaction.atomic():
        stored = Workload.objects.select_related("site").filter(pk=workload.pk).first()
        if stored is not None and stored.site_id != workload.site_id:
            access.require(actor, Role.PLANNER, stored.site)  # a workload leaves a site only by its planners
        if not workload.slug:
            workload.slug = slugify(workload.name)[:60]
        try:
            model_spec(workload.model_ref)
        except PlannerError as error:
            raise ValidationError({"model_ref": str(error)}) from error
        save_record(workload, actor=actor, expected_version=expected_version)
        if slo is not None:
            _replace_slo(workload, slo, actor)
    return workload


def delete_workload(*, actor: Actor, workload: Workload) -> None:
    """Delete a workload; plans keep their snapshot of it."""
    access.require(actor, Role.PLANNER, workload.site if workload.site_id else None)
    delete_record(workload, actor=actor)


def restore_workload(*, actor: Actor, kept: Kept) -> Workload:
    """Put a deleted workload back with its objectives, scenarios and plans; ``kept`` is of ``undo.keep``.

    Raises PermissionDenied, and ValidationError when its name was taken or its site or trace is gone.
    """
    with transaction.atomic():
        workload = cast(Workload, put_back(kept, actor=actor))
        access.require(actor, Role.PLANNER, workload.site if workload.site_id else None)
    return workload


def upload_model(
    *,
    actor: Actor,
    model_id: str,
    config: bytes,
    quant_config: bytes | None = None,
    weight_index: bytes | None = None,
    source: str = "",
    notes: str = "",
) -> LlmModel:
    """Store a model from its config.json (and hf_quant_config.json); the same id again replaces it.

    ``weight_index`` is its model.safetensors.index.json: ``weight_check`` then says whether the files hold what is
    counted. Without it the same configuration keeps the bytes of an index given before.

    Raises ValidationError naming the field of the configuration that is missing, absurd or unknown.
    """
    access.require(actor, Role.PLANNER)
    if not _MODEL_ID.fullmatch(model_id):
        raise ValidationError({"model_id": "Write it like organisation/name, with letters, digits, dots and hyphens."})
    if model_id in catalog.list_models():
        raise ValidationError({"model_id": f"{model_id} is in the catalogue; choose another id for your own version."})
    try:
        data = parse_config_text(config, "config.json")
        side = parse_config_text(quant_config, "hf_quant_config.json") if quant_config else None
        spec = parse(data, model_id=model_id, quant_config=side)
    except PlannerError as error:
        raise ValidationError({"config": str(error)}) from error
    row = LlmModel.objects.filter(model_id=model_id).first() or LlmModel(model_id=model_id)
    if weight_index is not None:
        try:
            row.weight_bytes = stored_bytes(weight_index)
        except PlannerError as error:
            raise ValidationError({"weight_index": str(error)}) from error
    elif (row.config, row.quant_config) != (data, side):
        row.weight_bytes = None
    row.config, row.quant_config = data, side
    row.architecture, row.parameters = spec.architecture[:100], spec.total_params
    row.source, row.notes = source, notes
    return save_record(row, actor=actor)


def weight_check(row: LlmModel) -> WeightCheck | None:
    """Bytes in the files of an uploaded model against those counted; None without an index, or when unreadable now."""
    if row.weight_bytes is None:
        return None
    try:
        return check_weights(model_spec(row.model_id), row.weight_bytes)
    except PlannerError:
        return None


def delete_model(*, actor: Actor, model: LlmModel) -> None:
    """Delete an uploaded model that no workload uses."""
    access.require(actor, Role.PLANNER)
    users = list(Workload.objects.filter(model_ref=model.model_id).values_list("name", flat=True)[:5])
    if users:
        raise ValidationError(f"{model} is used by {', '.join(users)}; change those first.")
    delete_record(model, actor=actor)


def upload_trace(
    *, actor: Actor, name: str, filename: str, content: bytes, source: str = "", licence: str = ""
) -> Trace:
    """Store a request trace from CSV or JSON lines (.gz allowed); raises TableError naming row, field and value.

    Raises ValidationError when the name is taken.
    """
    access.require(actor, Role.PLANNER)
    parsed = parse_trace(filename, content)
    row = Trace(name=name, slug=slugify(name)[:60], source=source, licence=licence)
    row.pack(
        parsed.times_s, parsed.input_tokens, parsed.output_tokens,
        blocks=parsed.blocks, block_tokens=parsed.block_tokens,
    )  # fmt: skip
    return save_record(row, actor=actor)


def install_trace(*, actor: Actor, catalogue_name: str) -> Trace:
    """The row of a trace of the catalogue, made when it is not there yet."""
    held = Trace.objects.filter(catalogue_name=catalogue_name).first()
    if held is not None:
        return held
    data = catalog.get_trace(catalogue_name)
    row = Trace(
        name=data.description[:100],
        slug=slugify(catalogue_name)[:60],
        catalogue_name=catalogue_name,
        source=data.source[:300],
        licence=data.licence[:100],
        prefix_hit=data.prefix_hit,
    )
    row.pack(data.times_s, data.input_tokens, data.output_tokens)
    return save_record(row, actor=actor)


def save_trace(*, actor: Actor, trace: Trace, expected_version: int | None = None) -> Trace:
    """Change what a trace is called and said to be; its requests stay as they were uploaded. Takes a planner."""
    access.require(actor, Role.PLANNER)
    return save_record(trace, actor=actor, expected_version=expected_version)


def delete_trace(*, actor: Actor, trace: Trace) -> None:
    """Delete a trace that no workload uses."""
    access.require(actor, Role.PLANNER)
    delete_record(trace, actor=actor)


def model_choices() -> list[str]:
    """Every model id that a workload may name: uploaded ones first."""
    return [*LlmModel.objects.values_list("model_id", flat=True), *catalog.list_models()]


def model_spec(model_ref: str) -> ModelSpec:
    """The specification of a catalogue or uploaded model; raises PlannerError. Never reads a path."""
    return catalog.get_model(planner_model(model_ref))


def planner_model(model_ref: str) -> str:
    """What the planner is told: a catalogue id, or the path to which an uploaded configuration is written."""
    row = LlmModel.objects.filter(model_id=model_ref).first()
    if row is not None:
        return str(_written(row))
    if not _MODEL_ID.fullmatch(model_ref):
        raise UnknownModelError("is no model id", field="model", value=model_ref, remedy="Choose one of the list.")
    catalog.get_model(model_ref, allow_path=False)  # so that the planner will not take the name for a relative path
    return model_ref


def trace_window(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At most 4,000 requests of a workload's trace: the busiest stretch when its arrivals count, else taken evenly.

    Times (s; empty for lengths alone), input tokens, output tokens. Requests longer than the context are left out, as
    an engine refuses them. Raises InputError when there is no trace, or none of its requests fits.
    """
    if workload.trace is None:
        raise InputError("needs a trace", field=f"{workload.name}.trace", remedy="Choose a trace.")
    times_s, tokens_in, tokens_out = workload.trace.arrays()
    limit = context_limit(workload)
    fits = tokens_in + tokens_out <= limit
    if not fits.all():
        times_s = times_s[fits] if len(times_s) else times_s
        tokens_in, tokens_out = tokens_in[fits], tokens_out[fits]
    count = len(tokens_in)
    if count == 0:
        raise InputError(
            "every request of the trace is longer than the context",
            field=f"{workload.name}.trace",
            value=limit,
            remedy="Choose a model with a longer context, or another trace.",
        )
    arrivals = workload.arrival == Workload.Arrival.TRACE
    if count <= MAX_SAMPLES:
        return times_s, tokens_in, tokens_out
    if arrivals:
        spans = times_s[MAX_SAMPLES - 1 :] - times_s[: count - MAX_SAMPLES + 1]
        start = int(np.argmin(spans))
        part: Any = slice(start, start + MAX_SAMPLES)
    else:
        part = np.linspace(0, count - 1, MAX_SAMPLES).astype(np.int64)
    return (times_s[part] if len(times_s) else times_s), tokens_in[part], tokens_out[part]


def lengths_of(workload: Workload, side: str) -> Lengths:
    """Planner lengths of one side ("input" or "output"); raises InputError."""
    value = getattr(workload, f"{side}_tokens")
    if isinstance(value, dict) and value.get("kind") == "trace":
        _, tokens_in, tokens_out = trace_window(workload)
        return Lengths(kind="samples", samples=tuple((tokens_in if side == "input" else tokens_out).tolist()))
    return from_json(Lengths, value, f"{workload.name}.{side}_tokens")


def context_limit(workload: Workload) -> int:
    """The longest request (prompt and answer, tokens) that can be served: what is stated, else the model's own."""
    if workload.max_model_len:
        return workload.max_model_len
    return model_spec(workload.model_ref).max_position


def left_out(workload: Workload) -> int:
    """Requests of the trace that are longer than the context."""
    if workload.trace is None:
        return 0
    _, tokens_in, tokens_out = workload.trace.arrays()
    return int((tokens_in + tokens_out > context_limit(workload)).sum())


def describe_workload(workload: Workload) -> dict[str, Any]:
    """What a page shows of a workload: model facts, load in words, lengths and their percentiles."""
    facts: dict[str, Any] = {"model": None, "model_error": "", "input": None, "output": None}
    try:
        spec = model_spec(workload.model_ref)
        facts["model"] = {
            "architecture": spec.architecture,
            "task": spec.task,
            "parameters": spec.total_params,
            "layers": spec.layers,
            "max_position": spec.max_position,
            "precision": spec.quantization.precision,
        }
    except PlannerError as error:
        facts["model_error"] = str(error)
    if facts["model"] and workload.trace is not None:
        facts["left_out"] = left_out(workload)
    for side in ("input", "output"):
        try:
            lengths = lengths_of(workload, side)
        except PlannerError as error:
            facts["model_error"] = facts["model_error"] or str(error)
            continue
        facts[side] = {"expected": lengths.expected, **_percentiles(lengths)}
    facts["load"] = load_in_words(workload)
    facts["mean_share"] = (
        mean_share(tuple(workload.hour_profile)) if workload.hour_profile else workload.mean_load_share
    )
    return facts


def load_in_words(workload: Workload) -> str:
    """The load in one phrase, as "12 requests/s, Poisson"."""
    if workload.has_sessions:
        turns = f"{workload.turns_low}" if workload.turns_low == workload.turns_high else ""
        turns = turns or f"{workload.turns_low} to {workload.turns_high}"
        who = f"{workload.concurrency:,} users" if workload.load_kind == "closed" else ""
        who = who or f"{workload.rate_per_s:g} requests/s" * (workload.load_kind == "open")
        return f"{who or 'All at once'}, in sessions of {turns} turns, {workload.think_s:g} s between them"
    if workload.load_kind == "closed":
        return f"{workload.concurrency:,} users, each sends its next request when the last is answered"
    if workload.load_kind == "offline":
        return f"{workload.requests or 0:,} requests, all at once"
    return f"{workload.rate_per_s:g} requests/s, {workload.get_arrival_display().lower()} arrivals"


def _percentiles(lengths: Lengths) -> dict[str, float]:
    if lengths.kind != "samples":
        return {}
    values = np.percentile(np.asarray(lengths.samples), [5, 50, 95, 99])
    return dict(zip(("p5", "p50", "p95", "p99"), map(float, values), strict=True))


def _replace_slo(workload: Workload, targets: list[SloTarget], actor: Actor) -> None:
    wanted = {(item.metric, item.stat): item for item in targets}
    for held in workload.slo_targets.all():
        item = wanted.pop((held.metric, held.stat), None)
        if item is None:
            delete_record(held, actor=actor)
        elif item.limit_ms != held.limit_ms:
            held.limit_ms = item.limit_ms
            save_record(held, actor=actor)
    for item in wanted.values():
        item.workload = workload
        save_record(item, actor=actor)


def _written(row: LlmModel) -> Path:
    """The configuration on disk, where the planner and a local engine can read it."""
    # The last folder names the model to the planner (planner.catalog.get_model).
    folder = Path(settings.DATA_DIR) / "models" / f"{row.pk}-v{row.version}" / row.model_id.replace("/", "--")
    path = folder / "config.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if row.quant_config is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(row.quant_config))
        part = folder / "config.json.part"
        part.write_text(json.dumps(row.config))
        part.replace(path)
    return path

"""Uploaded models of a plan: what starts is the configuration that was planned, or nothing."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError

from controlplane.planning.models import Plan
from controlplane.workloads.models import LlmModel
from planner.catalog.models import model_name
from planner.plan_types import PlanRequest

_VERSION = re.compile(r"-v(\d+)$")  # of the folder that a version of an upload is written to


def digest(config: Any, quant_config: Any | None) -> str:
    """SHA-256 of a configuration, whatever the order of its keys; what else is recorded of a model does not matter."""
    text = json.dumps([config, quant_config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digests(request: PlanRequest) -> dict[str, str]:
    """By model id: digest of each uploaded model that ``request`` names by its file, as the planner reads it now."""
    paths = {workload.model for workload in request.workloads if workload.model.endswith(".json")}
    found = {model_name(path): _digest_of_file(Path(path)) for path in sorted(paths)}
    return {name: value for name, value in found.items() if value}


def check_as_planned(plan: Plan, model: str = "") -> None:
    """Refuse what is no longer as planned: an uploaded model that was uploaded anew with another content, or deleted.

    Of ``model`` (its id) alone, else of all. Raises ValidationError with model and remedy.
    """
    asked = {str(item.get("model", "")) for item in (plan.request or {}).get("workloads", ())}
    paths = {path for path in asked if path.endswith(".json") and model in ("", model_name(path))}
    rows = {row.model_id: row for row in LlmModel.objects.filter(model_id__in=map(model_name, paths))}
    for path in sorted(paths):
        name = model_name(path)
        row = rows.get(name)
        if row is None:
            raise ValidationError(
                f"{name} was deleted since plan {plan} was computed with it. Upload its config.json again, or plan "
                "another model."
            )
        if not _same(row, Path(path), plan.model_digests.get(name, "")):
            raise ValidationError(
                f"{name} was uploaded anew, with another content, since plan {plan} was computed with it. Compute the "
                "plan again, or upload the planned config.json again."
            )


def _same(row: LlmModel, path: Path, planned: str) -> bool:
    """Plans of older versions hold no digest: then the file that was planned tells, else the version in its path."""
    planned = planned or _digest_of_file(path)
    if planned:
        return digest(row.config, row.quant_config) == planned
    version = _VERSION.search(path.parent.parent.name)
    return version is None or int(version[1]) == row.version


def _digest_of_file(path: Path) -> str:
    """Of a config.json and the hf_quant_config.json beside it; empty where it cannot be read."""
    side = path.with_name("hf_quant_config.json")
    try:
        return digest(json.loads(path.read_bytes()), json.loads(side.read_bytes()) if side.is_file() else None)
    except (OSError, ValueError):
        return ""

"""A plan as files: what starts it on a target, and its bill."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.text import slugify

from controlplane.planning import report
from controlplane.planning.models import Plan
from planner.errors import InputError
from planner.export import TARGETS, deployment_files
from planner.jsonio import from_json, to_json
from planner.plan_types import PlanRequest, PlanResult
from planner.recommend.bill import billed

REPORTS = {
    "csv": ("text/csv; charset=utf-8", report.as_csv),
    "xlsx": ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", report.as_xlsx),
}
"""Form of a report: its media type and what writes it."""
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal plans give equal archives


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file to hand out."""

    name: str
    media_type: str
    content: bytes


def export_deployment(plan: Plan, target: str, *, namespace: str = "default", model_root: str = "") -> ExportFile:
    """The files that start ``plan`` on ``target`` (one of ``TARGETS``) as a ZIP archive.

    ``namespace`` of Kubernetes; ``model_root`` the directory of the checkpoints as <root>/<model id>.

    Raises ValidationError for a plan without result, InputError for another target or an empty plan, UnsupportedError
    for a replica that the target cannot start.
    """
    if target not in TARGETS:
        raise InputError("unknown target", field="target", value=target, remedy=f"Use one of: {', '.join(TARGETS)}.")
    files = deployment_files(*answer_of(plan), target, model_root=model_root, namespace=namespace)
    if not any(files.values()):
        raise InputError("nothing is placed", field="plan", remedy="Export a plan that places at least one replica.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in sorted(files.items()):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = (0o755 if path.endswith((".sh", ".sbatch")) else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return ExportFile(f"{_stem(plan)}-{target}.zip", "application/zip", buffer.getvalue())


def export_report(plan: Plan, form: str) -> ExportFile:
    """The bill of ``plan`` as "csv" or "xlsx". Raises ValidationError without result, InputError for another form."""
    if form not in REPORTS:
        raise InputError("unknown format", field="format", value=form, remedy=f"Use one of: {', '.join(REPORTS)}.")
    media_type, write = REPORTS[form]
    return ExportFile(f"{_stem(plan)}-bill.{form}", media_type, write(str(plan), *answer_of(plan)))


def answer_of(plan: Plan, *, placed_only: bool = False) -> tuple[PlanRequest, PlanResult]:
    """Question and answer as the planner knows them, from what is stored; ``placed_only`` leaves out the candidates
    that nothing runs on, which a bill does not need and most of the reading is.
    """
    if plan.request is None or plan.result is None:
        raise ValidationError(f"Plan {plan} is {plan.get_state_display().lower()} and has no result to export yet.")
    stored = plan.result
    if placed_only:
        placed = {placement["candidate_id"] for placement in stored["placements"]}
        stored = {**stored, "candidates": [item for item in stored["candidates"] if item["id"] in placed]}
    return from_json(PlanRequest, plan.request), from_json(PlanResult, stored)


def answer_billed(plan: Plan) -> dict[str, Any]:
    """The stored answer with the bill of the plan and of each workload; {} without answer.

    Answers hold it since they are stored with it, and older ones since a migration; where that could not read one, it
    is computed here.
    """
    if not plan.result or not plan.request:
        return {}
    if plan.result.get("bills"):
        return dict(plan.result)
    return {**plan.result, **bill_kept(*answer_of(plan, placed_only=True))}


def bill_kept(request: PlanRequest, result: PlanResult) -> dict[str, Any]:
    """What a stored answer holds of its bill, as JSON."""
    whole = billed(request, result)
    kept = {name: getattr(whole, name) for name in ("usd_per_month", "usd_per_mtok_output", "bills")}
    found: dict[str, Any] = to_json(kept)
    return found


def output_price(answer: Mapping[str, Any]) -> Decimal | None:
    """Money per million output tokens by the bill of ``answer_billed``, of the workloads that give output; None
    without any.
    """
    kept = answer.get("usd_per_mtok_output")
    return None if kept is None else Decimal(kept)


def _stem(plan: Plan) -> str:
    return f"{slugify(plan.scenario.name)[:40] or 'plan'}-{plan.number}"

"""``python -m planner plan fleet.yaml``: a plan as JSON, or as tables to read."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from planner.economics.currency import symbol
from planner.economics.types import PriceSheet
from planner.jsonio import to_json
from planner.mix_types import Mix
from planner.plan_types import Candidate, PlanRequest, PlanResult
from planner.serving.types import Performance
from planner.words import ENGINE_LABEL, whole

DESCRIPTION = """\
Size every workload on every GPU type, compare the engines, and place the replicas on the nodes.

examples:
  python -m planner plan docs/examples/fleet.yaml
  python -m planner plan fleet.yaml --json > plan.json
  python -m planner plan fleet.yaml --export kubernetes --out manifests

The file's format is in docs/planner.md. Progress goes to standard error. The exit status is 0 for a plan (also one that
leaves something out), 1 when nothing can be placed, 2 when the file is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the sub-command."""
    parser.add_argument("file", help="fleet.yaml")
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON")
    parser.add_argument(
        "--export",
        metavar="TARGET",
        help="write deployment files: owners, commands, compose, kubernetes, slurm, systemd or router",
    )
    parser.add_argument(
        "--out", metavar="DIR", default="deployment", help="where --export writes (default: deployment)"
    )
    parser.add_argument("--model-root", default="", help="directory of the checkpoints, as <root>/<model id>")
    parser.add_argument("--namespace", default="default", help="of Kubernetes (default: default)")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def run(arguments: argparse.Namespace) -> int:
    """Run the sub-command; returns the exit status."""
    from planner.fleet_file import load_fleet_file
    from planner.plan import make_plan

    request = load_fleet_file(arguments.file)
    result = make_plan(request, None if arguments.quiet else _progress)
    if arguments.export:
        _export(request, result, arguments)
    if arguments.json:
        sys.stdout.write(json.dumps(to_json(result), indent=1) + "\n")
    else:
        sys.stdout.write(as_text(request, result))
    return 1 if result.status == "infeasible" else 0


def _export(request: PlanRequest, result: PlanResult, arguments: argparse.Namespace) -> None:
    from planner.export import deployment_files

    files = deployment_files(
        request, result, arguments.export, model_root=arguments.model_root, namespace=arguments.namespace
    )
    for name, text in files.items():
        path = Path(arguments.out) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.stderr.write(f"{len(files)} files written to {arguments.out}\n")


def _progress(share: float, text: str) -> None:
    sys.stderr.write(f"{share:4.0%}  {text}\n")


def as_text(request: PlanRequest, result: PlanResult) -> str:
    """The plan in words and tables."""
    by_id = {candidate.id: candidate for candidate in result.candidates}
    sign = symbol(request.currency)
    blocks = [
        f"Plan {result.request_name}: {result.status}, {sign}{result.usd_per_hour:,.2f} an hour for GPUs placed, "
        f"{sign}{result.idle_usd_per_hour:,.2f} idle; objective {sign}{result.objective_usd_per_hour:,.2f}, "
        f"bound {sign}{result.bound_usd_per_hour:,.2f} (gap {result.gap:.2%}), {result.moves} moves.",
        _placed_table(result, by_id, sign.strip()),
        "\n".join(f"{verdict.workload}: {verdict.sentence}" for verdict in result.verdicts),
    ]
    if result.unplaced:
        lines = [f"{u.workload}: {u.reason}. {u.relaxation}" for u in result.unplaced]
        blocks.append("Left out\n" + "\n".join(lines))
    if result.purchased_nodes:
        kinds = Counter((node.pool, node.gpu, node.gpus) for node in result.purchased_nodes)
        lines = [f"{count} x {pool} ({gpus} x {gpu})" for (pool, gpu, gpus), count in kinds.items()]
        blocks.append("To buy\n" + "\n".join(lines))
    after = result.stranded_after
    blocks.append(
        f"Free GPUs {after.free_gpus} (before {result.stranded_before.free_gpus}), of them stranded "
        f"{after.stranded_gpus:.1f} (before {result.stranded_before.stranded_gpus:.1f})."
    )
    if result.baselines:
        rows = [
            (b.name, f"{b.usd_per_hour:,.2f}", f"{b.served_share:.0%}", str(b.unplaced_replicas))
            for b in result.baselines
        ]
        blocks.append(table(("Simpler rules", f"{sign.strip()}/hour", "served", "replicas left out"), rows))
    if result.engine_plans:
        blocks.append(_engines_table(result, sign))
    blocks += [_mix_table(mix, sign) for mix in result.mixes if mix.placed]
    hybrids = [f"{mix.workload}: {mix.sentence}" for mix in result.mixes if not mix.placed]
    if hybrids:
        blocks.append("Both engines behind one router\n" + "\n".join(hybrids))
    if request.rates:
        used = [f"1 {rate.currency} = {rate.usd_per_unit} USD of {rate.date} ({rate.source})" for rate in request.rates]
        blocks.append("Exchange rates\n" + "\n".join(used))
    blocks += [_price_table(sheet, sign) for sheet in request.price_sheets]
    if result.runways:
        blocks.append("Months ahead\n" + "\n".join(runway.sentence for runway in result.runways))
    rules = [(rule.claim, rule.verdict.replace("_", " "), rule.sentence) for rule in result.rules]
    blocks.append("Rules of thumb\n" + "\n".join(f"- {claim} {verdict}: {text}" for claim, verdict, text in rules))
    blocks += [f"Note: {note}" for note in result.notes]
    return "\n\n".join(blocks) + "\n"


def _placed_table(result: PlanResult, by_id: dict[str, Candidate], sign: str) -> str:
    replicas: Counter[str] = Counter()
    nodes: dict[str, set[str]] = {}
    for placement in result.placements:
        nodes.setdefault(placement.candidate_id, set()).add(placement.node)
    for key in {(p.candidate_id, p.replica) for p in result.placements}:
        replicas[key[0]] += 1
    rows = []
    for candidate_id in sorted(replicas):
        candidate = by_id[candidate_id]
        performance, cost = candidate.performance, candidate.cost
        ttft = f"{performance.ttft_ms.p50:,.0f}" if performance and performance.ttft_ms else "-"
        tpot = f"{performance.tpot_ms.mean:.1f}" if performance and performance.tpot_ms else "-"
        unit = None
        if cost is not None:
            unit = cost.usd_per_mtok_output if cost.usd_per_mtok_output is not None else cost.usd_per_mtok_input
        rows.append(
            (
                candidate.workload,
                candidate_id.removeprefix(candidate.workload + "/"),
                str(replicas[candidate_id]),
                str(replicas[candidate_id] * candidate.gpus_per_replica),
                f"{candidate.replica_rate_per_s:.3g}",
                ttft,
                tpot,
                "-" if unit is None else f"{unit:.3f}",
                candidate.evidence.value,
                ", ".join(sorted(nodes[candidate_id])[:3]) + (" ..." if len(nodes[candidate_id]) > 3 else ""),
            )
        )
    heads = (
        "Workload", "Candidate", "Replicas", "GPUs", "req/s each", "TTFT p50 ms", "TPOT ms", f"{sign}/M tok",
        "Evidence", "Nodes",
    )  # fmt: skip
    return table(heads, rows)


def _engines_table(result: PlanResult, sign: str) -> str:
    """The plan as chosen and with each engine alone."""
    rows = []
    for plan in result.engine_plans:
        saved = "-"
        if plan.saving is not None:
            low, high = (whole(100 * end) for end in (plan.saving.low, plan.saving.high))
            saved = f"{whole(100 * plan.saving.value)} % ({low} to {high})"
        name = f"{ENGINE_LABEL[plan.engine]} alone" if plan.engine else "As chosen"
        left_out = ", ".join(item.workload for item in plan.unplaced) or "-"
        rows.append((name, f"{plan.usd_per_month:,.0f}", saved, str(plan.gpus), f"{plan.served_share:.0%}", left_out))
    return table(("Plan", f"{sign.strip()}/month", "chosen saves", "GPUs", "served", "left out"), rows)


def _mix_table(mix: Mix, sign: str) -> str:
    """A workload on several configurations: the whole, its parts, each engine alone."""

    def cells(performance: Performance | None) -> tuple[str, str, str, str]:
        if performance is None:
            return ("-",) * 4
        ttft, tpot = performance.ttft_ms, performance.tpot_ms
        return (
            f"{ttft.p50:,.0f}" if ttft else "-",
            f"{ttft.p99:,.0f}" if ttft else "-",
            f"{tpot.p50:.1f}" if tpot else "-",
            f"{performance.output_tok_per_s:,.0f}",
        )

    def unit(usd: Decimal | None) -> str:
        return "-" if usd is None else f"{usd:.3f}"

    rows = [
        ("as one service", "100 %", "-", *cells(mix.performance), unit(mix.usd_per_mtok_output), f"{mix.usd_per_month}")
    ]
    for part in mix.parts:
        name = f"{part.replicas} x {part.candidate_id.removeprefix(mix.workload + '/')}"
        share, weight = f"{100 * part.share:.1f} %", str(part.endpoint_weight)
        rows.append((name, share, weight, *cells(part.performance), "-", f"{part.usd_per_month}"))
    for rival in mix.rivals:
        month = "-" if rival.usd_per_month is None else f"{rival.usd_per_month}"
        name = f"{ENGINE_LABEL[rival.engine]} alone"
        rows.append((name, "-", "-", *cells(rival.performance), unit(rival.usd_per_mtok_output), month))
    coin = sign.strip()
    heads = (
        mix.workload, "requests", "weight", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tok/s", f"{coin}/M tok",
        f"{coin}/month",
    )  # fmt: skip
    return f"Served as one: {mix.sentence}\n" + table(heads, rows)


def _price_table(sheet: PriceSheet, sign: str) -> str:
    rows = [(t.label, f"{t.usd_per_gpu_hour}", t.formula, t.source) for t in sheet.terms]
    rows.append(("total", f"{sheet.usd_per_gpu_hour}", "", sheet.source))
    title = f"Price of {sheet.pool} ({sheet.gpu}), {sheet.basis}"
    return f"{title}\n" + table(("Part", f"{sign.strip()}/GPU-hour", "How", "Source"), rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table; columns of numbers are right-aligned."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    numeric = [bool(rows) and all(row[i][:1].isdigit() or row[i] == "-" for row in rows) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        parts = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(heads), line(["-" * width for width in widths]), *(line(row) for row in rows)])

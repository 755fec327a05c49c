"""Residuals of the scored rows as ``planner.serving.bands`` reads them, and how many rows bands made of them hold."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.scoring import Scored
from planner.evidence import Evidence
from planner.serving import bands

RESIDUALS = Path(__file__).resolve().parents[2] / "planner" / "serving" / "data" / "residuals.json"
READ_WITH_SETTINGS = "serving"
"""Kind of the public serving rows with the settings that their source publishes (``serving_stated`` as they stand)."""

FITTED_ON = ("h200", "h200_front", "h200_adapters")
"""Own runs that say nothing of errors: the first series, an overloaded front end and adapters, on which we fitted."""


def groups_of(s: Scored) -> tuple[str, ...]:
    """Whose residuals a row adds to. Rows read with settings count for requests that state settings only, our own runs
    for requests like them and where nothing else is known; a row is never counted twice in one group.
    """
    own = s.residuals_of
    # pools have residuals of their own, a row that contradicts itself says nothing of errors
    if s.row.kind in ("disagg", "contradictory", *FITTED_ON):
        return ()
    if s.row.kind == READ_WITH_SETTINGS:
        return (own,) if "," in own else ()
    return own, "any"


def entries(scored: Iterable[Scored]) -> list[dict[str, Any]]:
    """Quantiles of measured / predicted by group, evidence, metric and load region."""
    found: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for s in scored:
        for metric, ratio in s.ratio.items():
            for who in groups_of(s):
                for where in (s.region, "any"):
                    found[(who, s.evidence, metric, where)].append(1.0 / ratio)
    result = []
    for (who, evidence, metric, region), values in sorted(found.items()):
        by = bands.quantiles(values)
        result.append(
            {
                "engine": who,
                "evidence": evidence,
                "metric": metric,
                "region": region,
                "rows": len(values),
                "q10": round(by.low, 4),
                "q50": round(statistics.median(values), 4),
                "q90": round(by.high, 4),
            }
        )
    return result


def write(scored: Sequence[Scored]) -> None:
    """Store the residuals. Raises SystemExit when an evidence has no rows for a metric."""
    table = entries(scored)
    known = {(e["evidence"], e["metric"]) for e in table if e["engine"] == e["region"] == "any"}
    for evidence in ("silicon", "extrapolated", "roofline"):
        for metric in bands.METRICS:
            if (evidence, metric) not in known:
                raise SystemExit(f"no rows of {evidence} evidence for {metric}: residuals not written")
    kinds: dict[str, int] = defaultdict(int)
    for s in scored:
        kinds[s.row.kind] += bool(s.ratio)
    text = {
        "source": "python -m benchmarks accuracy latency --write-residuals; rows: benchmarks/data",
        "rows": dict(sorted(kinds.items())),
        "entries": table,
    }
    RESIDUALS.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {len(table)} entries to {RESIDUALS}")


def cross_validated(scored: Sequence[Scored]) -> dict[str, dict[str, float]]:
    """Share of rows inside bands made of the other deployments' residuals, by kind and metric; printed.

    A deployment is an engine, GPU and model: what is kept back is so too.
    """
    by_deployment: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for s in scored:
        if s.ratio:
            by_deployment[tuple(str(s.row.request[k]) for k in ("engine", "gpu", "model"))].append(s)
    inside: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for key, held_out in by_deployment.items():
        rest = [s for other, rows in by_deployment.items() if other != key for s in rows]
        table = bands.as_table(entries(rest))
        for s in held_out:
            for metric, ratio in s.ratio.items():
                if any(("any", level, metric, "any") not in table for level in ("silicon", "extrapolated", "roofline")):
                    continue
                by = bands.factors(Evidence(s.evidence), metric, s.region, engine=s.residuals_of, table=table)
                inside[(s.row.kind, metric)].append(min(by.low, 1.0) <= 1.0 / ratio <= max(by.high, 1.0))
    print("-- 80 % intervals of the other deployments' residuals hold (leave one engine, GPU and model out)")
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for (kind, metric), flags in sorted(inside.items()):
        result[kind][metric] = statistics.fmean(flags)
        print(f"{kind:16s} {metric:18s} {len(flags):5d} rows {100 * statistics.fmean(flags):5.0f} %")
    return dict(result)

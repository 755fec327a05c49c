"""The chosen candidate and the runner-up side by side."""

from __future__ import annotations

from typing import Any

from controlplane.dashboard import fmt, planrow
from controlplane.dashboard.planrow import Json


def side_by_side(row: planrow.WorkloadRow) -> list[dict[str, Any]]:
    """The chosen candidate and the runner-up, line by line; a cell is an engine, a text or an interval.

    ``key`` names the arithmetic that a cell opens to (see dashboard.arithmetic).
    """
    pair = (row.chosen, row.other)

    def text(function: Any, key: str = "") -> list[dict[str, Any]]:
        return [{"text": function(c) if c else "–", "key": key, "candidate": c} for c in pair]

    def interval(function: Any, key: str, kind: str = "") -> list[dict[str, Any]]:
        found = [function(c) if c else None for c in pair]
        return [
            {"text": None, "interval": i, "kind": kind, "key": key if i else "", "candidate": c}
            for c, i in zip(pair, found, strict=True)
        ]

    def of(candidate: Json, key: str) -> Any:
        return (candidate.get("performance") or {}).get(key)

    return [
        {
            "word": "Engine",
            "cells": [{"engine": planrow.engine_of(c)} if c else {"text": "none can serve it"} for c in pair],
        },
        {"word": "GPUs", "cells": text(lambda c: f"{c['replicas']} × {c['gpus_per_replica']} {c['gpu']}", "replicas")},
        {"word": "Parallelism", "cells": text(fmt.shape)},
        {"word": "Precision", "cells": text(lambda c: (c.get("settings") or {}).get("precision", "–"))},
        {
            "word": "KV cache",
            "unit": "GiB a GPU",
            "cells": text(lambda c: fmt.sig((c.get("memory") or {}).get("kv_gib")), "memory"),
        },
        {"word": "Carries", "unit": "req/s a replica", "cells": interval(lambda c: c.get("replica_rate_80"), "rate")},
        {"word": "TTFT p50", "unit": "ms", "cells": interval(lambda c: of(c, "ttft_ms_80"), "ttft")},
        {"word": "TPOT p50", "unit": "ms", "cells": interval(lambda c: of(c, "tpot_ms_80"), "tpot")},
        *_objectives(row),
        {"word": "Output", "unit": "tok/s", "cells": interval(lambda c: of(c, "output_tok_per_s_80"), "output")},
        {"word": "Cost, as sized", "unit": fmt.per("M tok"), "cells": interval(planrow.usd_per_mtok, "cost", "usd")},
        {
            "word": "Month, as sized",
            "unit": fmt.sign(),
            "cells": text(_month, "month"),
        },
    ]


def _month(candidate: Json) -> str:
    return fmt.money((candidate.get("cost") or {}).get("usd_per_month"))


def _objectives(row: planrow.WorkloadRow) -> list[dict[str, Any]]:
    """Each objective with what both candidates are predicted to reach."""
    lines = []
    for target in sorted(row.workload.get("slo", ()), key=lambda slo: slo["metric"], reverse=True):
        values = [
            ((c or {}).get("performance") or {}).get(f"{target['metric']}_ms", None) for c in (row.chosen, row.other)
        ]
        cells = [{"text": f"{fmt.sig(v[target['stat']])} ms" if v else "–"} for v in values]
        lines.append({"word": f"SLO: {planrow.slo_word(target)}", "cells": cells})
    return lines

"""The chosen candidate and the runner-up side by side."""

from __future__ import annotations

from typing import Any

from controlplane.dashboard import fmt, planrow
from controlplane.dashboard.planrow import Json


def side_by_side(row: planrow.WorkloadRow) -> list[dict[str, Any]]:
    """The chosen candidate and the runner-up, line by line; a cell is an engine, a text or an interval."""
    pair = (row.chosen, row.other)

    def text(function: Any) -> list[dict[str, Any]]:
        return [{"text": function(c) if c else "–"} for c in pair]

    def interval(function: Any, kind: str = "") -> list[dict[str, Any]]:
        return [{"text": None, "interval": function(c) if c else None, "kind": kind} for c in pair]

    def of(candidate: Json, key: str) -> Any:
        return (candidate.get("performance") or {}).get(key)

    return [
        {
            "word": "Engine",
            "cells": [{"engine": planrow.engine_of(c)} if c else {"text": "none can serve it"} for c in pair],
        },
        {"word": "GPUs", "cells": text(lambda c: f"{c['replicas']} × {c['gpus_per_replica']} {c['gpu']}")},
        {"word": "Parallelism", "cells": text(fmt.shape)},
        {"word": "Precision", "cells": text(lambda c: (c.get("settings") or {}).get("precision", "–"))},
        {"word": "Carries", "unit": "req/s a replica", "cells": interval(lambda c: c.get("replica_rate_80"))},
        {"word": "TTFT p50", "unit": "ms", "cells": interval(lambda c: of(c, "ttft_ms_80"))},
        {"word": "TPOT p50", "unit": "ms", "cells": interval(lambda c: of(c, "tpot_ms_80"))},
        *_objectives(row),
        {"word": "Output", "unit": "tok/s", "cells": interval(lambda c: of(c, "output_tok_per_s_80"))},
        {"word": "Cost", "unit": "$ / M tok", "cells": interval(planrow.usd_per_mtok, "usd")},
        {"word": "Month", "unit": "$", "cells": text(lambda c: fmt.money((c.get("cost") or {}).get("usd_per_month")))},
    ]


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

"""Figures of a KV pool under the three ways of giving out its memory, over time and on the mean."""

from __future__ import annotations

from controlplane.dashboard import palette
from controlplane.dashboard.chart import Chart, Column, axis, make, scatter
from planner.fragmentation import KvWasteReport

POLICY_WORDS = {
    "contiguous": "Longest request reserved",
    "paged": "Blocks as tokens come",
    "paged_reserved": "Blocks, output reserved",
}
_COLOURS = {
    "contiguous": palette.CATEGORIES[5],
    "paged": palette.CATEGORIES[2],
    "paged_reserved": palette.CATEGORIES[0],
}


def live_over_time(report: KvWasteReport, *, ident: str = "kv-live") -> Chart:
    """Share of the pool that holds live tokens, step by step, for each policy; the table adds what is held and runs."""
    traces = []
    rows = []
    for policy in report.policies:
        word = POLICY_WORDS[policy.policy]
        traces.append(
            scatter(
                x=list(policy.series_step), y=[100 * share for share in policy.series_live], mode="lines", name=word,
                line={"color": _COLOURS[policy.policy], "width": 1.5},
                hovertemplate=f"step %{{x:,}}<br>{word}: %{{y:.3g}} % live<extra></extra>",
            )
        )  # fmt: skip
        series = zip(policy.series_step, policy.series_live, policy.series_held, policy.series_concurrency, strict=True)
        rows += [(word, step, 100 * live, 100 * held, running) for step, live, held, running in series]
    columns = (
        Column("Way", numeric=False), Column("Step"), Column("Live", "%"), Column("Held", "%"), Column("Running"),
    )  # fmt: skip
    figure_layout = {
        "showlegend": True,
        "xaxis": axis("Steps of the engine"),
        "yaxis": axis("Pool with live tokens", "%", range=[0, 100]),
    }
    return make(ident, "KV pool over time", traces, figure_layout, columns, rows, note=report.sentence)

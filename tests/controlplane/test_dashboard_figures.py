"""Figures as data: what is drawn, what the table holds, and that both say the same."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.dashboard import (
    arithmetic,
    chart,
    curves,
    figures,
    figures_load,
    figures_verdict,
    fmt,
    gpumap,
    palette,
    planrow,
    planview,
)
from controlplane.planning import exporting
from planner.jsonio import to_json
from planner.recommend.bill import bill
from tests.controlplane import plan_answer, plan_fixture

REQUEST, RESULT = to_json(plan_fixture.plan_request()), to_json(plan_answer.plan_result())
ROWS = planview.workload_rows(REQUEST, RESULT)


def row(name: str) -> planrow.WorkloadRow:
    return next(row for row in ROWS if row.name == name)


def test_pareto_draws_every_feasible_candidate_and_rings_the_choice() -> None:
    code = row("code-completion")
    made = figures.pareto(code.candidates, code.verdict["chosen"], "/plans/1/candidate/?id=")
    feasible = [c for c in code.candidates if c["status"] == "ok"]
    assert len(made.rows) == len(feasible) == 5
    markers = [trace for trace in made.figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in markers) == 5
    assert sum(list(trace.marker.size).count(14) for trace in markers) == 1
    assert {trace.name for trace in markers} == {"vLLM", "TensorRT-LLM"}


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=40))
def test_frontier_is_not_beaten_and_beats_the_rest(points: list[tuple[float, float]]) -> None:
    front = figures.frontier(points)
    assert front
    for x, y in points:
        assert any(fx >= x and fy >= y for fx, fy in front)
    for x, y in front:
        assert not any((a > x and b >= y) or (a >= x and b > y) for a, b in points)


def test_memory_parts_add_up_to_the_card() -> None:
    for item in ROWS:
        assert item.chosen is not None
        parts = figures.memory_segments(item.chosen["memory"])
        assert sum(size for _, _, size, _ in parts) == pytest.approx(item.chosen["memory"]["total_gib"])
    made = planview.memory_chart(ROWS)
    assert len(made.rows) == 6
    stacked = [sum(trace.x[0] for trace in made.figure.data)]
    assert stacked[0] == pytest.approx(made.rows[0][-1])


def test_negative_kv_leaves_no_negative_bar() -> None:
    parts = figures.memory_segments({"total_gib": 22.1, "weights_gib": 30.0, "kv_gib": -9.4})
    assert [key for key, *_ in parts] == ["weights"]


def test_cost_parts_add_up_to_the_bill() -> None:
    answer = plan_fixture.plan_request(), plan_answer.plan_result()
    found = bill(*answer)
    parts = planview.monthly_parts(exporting.bill_kept(*answer))
    made = figures.cost_split(parts)
    assert made.rows[-1] == ("Bill", sum((Decimal(v) for _, v in parts), Decimal(0)))
    assert made.rows[-1][1] == found.usd_per_month > 0


def test_scatter_keeps_emulated_apart_and_leaves_out_rows_without_prediction() -> None:
    rows = [
        {"label": "a", "engine": "vllm", "predicted": 20.0, "low": 18.0, "high": 22.0, "measured": 21.0},
        {
            "label": "b",
            "engine": "vllm",
            "predicted": 20.0,
            "low": 18.0,
            "high": 22.0,
            "measured": 9.0,
            "emulated": True,
        },
        {"label": "c", "engine": "vllm", "predicted": None, "measured": 9.0},
    ]
    made = figures.predicted_measured(rows, metric="TPOT", unit="ms")
    assert [r[0] for r in made.rows] == ["a", "b"]
    points = [trace for trace in made.figure.data if trace.mode == "markers"]
    assert [trace.marker.symbol for trace in points] == ["circle", "circle-x-open"]
    assert list(points[0].error_x.array) == [2.0]


def test_length_distribution_counts_every_request() -> None:
    samples = np.random.default_rng(0).lognormal(7, 1, 3000).astype(int).tolist()
    made = figures_load.length_distribution(samples, ident="x", title="Input length")
    assert sum(r[1] for r in made.rows) == 3000
    assert made.figure.layout.xaxis.type == "log"
    assert "Median" in made.note
    assert figures_load.length_distribution([512] * 10, ident="x", title="x").rows


def test_arrivals_mark_their_mean() -> None:
    made = figures_load.arrivals([float(t) for t in range(601)])
    assert made.rows[0][2] == pytest.approx(1.0, rel=0.2)


def point(rate: float, ttft: float, tokens: float, *, meets: bool = True) -> dict[str, Any]:
    spread = {"mean": ttft, "p50": ttft, "p90": 2 * ttft, "p95": 2.2 * ttft, "p99": 3 * ttft}
    return {
        "rate_per_s": rate, "concurrency": 0, "meets_slo": meets,
        "performance": {
            "output_tok_per_s": tokens, "total_tok_per_s": 3 * tokens,
            "output_tok_per_s_80": {"value": tokens, "low": 0.8 * tokens, "high": 1.25 * tokens},
            "ttft_ms": spread, "ttft_ms_80": {"value": ttft, "low": 0.9 * ttft, "high": 1.5 * ttft},
            "tpot_ms": None, "tpot_ms_80": None, "e2e_ms": spread,
        },
    }  # fmt: skip


def load_curves(**more: Any) -> curves.Curve:
    points = [point(1.0, 100.0, 200.0), point(2.0, 150.0, 400.0), point(3.0, 400.0, 450.0, meets=False)]
    kept = {"axis": "rate", "knee": 2.0, "points": points, "usd_per_hour": "3.6000", "timeline": None, **more}
    return curves.Curve("Chosen: vLLM", {"id": "w/vllm/A10/x", "settings": {"engine": "vllm"}}, kept)


def test_load_curves_show_knee_limit_band_and_cost() -> None:
    workload = {"slo": [{"metric": "ttft", "stat": "p90", "limit_ms": 500.0}]}
    ttft, tokens, cost = curves.charts([load_curves()], workload)
    assert ttft.title == "TTFT p90 against load"
    assert [note.text for note in ttft.figure.layout.annotations] == ["knee 2", "SLO 500 ms"]
    assert ttft.figure.data[0].fill == "toself"
    assert [row[1:] for row in ttft.rows] == [
        (1.0, 200.0, 180.0, 300.0, "yes"), (2.0, 300.0, 270.0, 450.0, "yes"), (3.0, 800.0, 720.0, 1200.0, "no"),
    ]  # fmt: skip
    assert ttft.figure.data[1].marker.color[2] != ttft.figure.data[1].marker.color[0], "hollow past the SLO"
    assert [row[2] for row in tokens.rows] == [600.0, 1200.0, 1350.0], "a one-pass model has no output tokens"
    for (_, _, rate, *_), (_, _, usd, low, high, _) in zip(tokens.rows, cost.rows, strict=True):
        assert usd == pytest.approx(3.6 / (rate * 3600) * 1e6)
        assert low < usd < high
    assert curves.timelines(load_curves()) == []


LINE = {"t_s": [0.0, 50.0], "running": [1, 2], "waiting": [0, 3], "kv_used": [0.1, 0.2], "live_kv": [0.1, 0.2]}


def test_a_burst_has_its_timeline() -> None:
    (made,) = curves.timelines(load_curves(timeline=LINE, burst_per_s=4.0))
    assert "4 requests/s, twice the knee" in made.note
    assert made.ident == "timeline"
    assert [(shape.x0, shape.x1) for shape in made.figure.layout.shapes] == [(0.0, 20.0), (40.0, 50.0)]
    (named,) = curves.timelines(load_curves(timeline=LINE, burst_per_s=4.0), "Chosen: vLLM")
    assert named.note.startswith("Chosen: vLLM: 4 requests/s")


def test_a_burst_in_a_unit_is_drawn_in_both_pools_on_one_axis() -> None:
    pools = {"prefill": {"instances": 2}, "decode": {"instances": 1}}
    unit = {"prefill": {**LINE, "running": [2, 0]}, "transferring": [0, 5], "decode": LINE}
    made = load_curves(unit_timeline=unit, burst_per_s=4.0)
    made.candidate["disagg"] = pools
    prefill, decode = curves.timelines(made)
    assert (prefill.ident, decode.ident) == ("timeline-prefill", "timeline-decode")
    assert prefill.rows == ((0.0, 2, 0, 10.0), (50.0, 0, 3, 20.0))
    assert decode.rows == ((0.0, 1, 0, 0, 10.0), (50.0, 2, 3, 5, 20.0))
    assert [trace.name for trace in decode.figure.data] == ["Running", "Waiting", "In transfer", "KV cache in use"]
    assert prefill.figure.layout.xaxis.range == decode.figure.layout.xaxis.range == (0, 50.0)
    assert "2 instances, added up" in prefill.note
    assert "instances" not in decode.note
    assert "In transfer 0 to 5 requests" in decode.alternative
    assert "KV cache in use 10 to 20 %" in decode.alternative
    assert curves.no_timeline(made) == ""


def test_a_flip_chart_marks_now_and_the_flip() -> None:
    costs = [(1.0, 2.0, 3.0), (10.0, 4.0, 4.5), (100.0, 12.0, None)]
    curve = [{"value": v, "vllm_usd_per_hour": a, "tensorrt_llm_usd_per_hour": b} for v, a, b in costs]
    made = figures_verdict.flip(
        {"parameter": "request rate", "unit": "req/s", "current": 10.0, "value": 40.0, "searched": [1, 100],
         "sentence": "It flips.", "curve": curve}, "flip-0",
    )  # fmt: skip
    assert (made.title, made.note) == ("Request rate", "It flips.")
    assert [note.text for note in made.figure.layout.annotations] == ["now 10", "flips 40"]
    assert made.figure.layout.xaxis.type == "log"
    assert made.figure.layout.annotations[0].x == pytest.approx(1.0), "in decades, as Plotly wants it"
    assert made.rows == tuple(costs)


def test_a_logarithmic_axis_is_short_and_keeps_its_currency() -> None:
    made = chart.log_axis(20, 2000)
    assert made["ticktext"] == ["10", "20", "50", "100", "200", "500", "1k", "2k", "5k", "10k", "20k", "50k"]
    assert chart.log_axis(0.5, 1e6, "$")["ticktext"][:4] == ["$0.10", "$1", "$10", "$100"]
    assert chart.log_axis(0.5, 1e6)["ticktext"][-1] == "1M"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (Decimal("3.5"), "$ / GPU-h", "$3.50 / GPU-h"), (12935, "$", "$12,935"),
        (4918.43, "$ / month", "$4,918.43 / month"),
        (0.4137, "$ / M tok", "$0.4137 / M tok"), (11816.25, "tokens", "11,816.25 tokens"), ("no", "", "no"),
    ],
)  # fmt: skip
def test_a_term_writes_amounts_as_amounts(value: object, unit: str, text: str) -> None:
    assert arithmetic.Term("x", value, unit).text == text


def test_a_tornado_starts_at_the_planned_cost() -> None:
    rows = [{"parameter": "load", "unit": "req/s", "low": 8.0, "high": 12.0, "usd_per_hour_low": 7.0,
             "usd_per_hour_high": 14.0, "usd_per_hour": 10.5}]  # fmt: skip
    low, high = figures_verdict.tornado(rows).figure.data
    assert (low.base[0], low.x[0], high.x[0]) == (10.5, -3.5, 3.5)


def test_a_runway_marks_when_it_is_full_and_when_to_order() -> None:
    months = [
        {"month": m, "gpus_needed": {"A10": 2 * m}, "gpus_at_hand": {"A10": 6}, "usd_per_month": "10.00"}
        for m in range(6)
    ]
    found = {"gpu": "A10", "full_in_months": 4, "order_in_months": 1.0, "gpus_short": 4, "sentence": "A10 is full."}
    made = figures_verdict.runway(months, found)
    assert [note.text for note in made.figure.layout.annotations] == ["full in month 4", "order by month 1"]
    assert made.rows[5] == (5, 10, 6)
    assert figures_verdict.months_cost(months).rows[0] == (0, 10.0)


def test_kv_and_timeline_figures_hold_their_data() -> None:
    reports = [
        ("Contiguous", {"live_share": 0.31, "reserved_never_share": 0.69}),
        ("Paged", {"live_share": 0.96, "last_block_share": 0.04}),
    ]
    waste = figures_load.kv_fragmentation(reports)
    assert waste.rows[0][1:4] == (31.0, 0.0, 69.0)
    line = {"t_s": [0.0, 1.0], "running": [1, 2], "waiting": [0, 3], "kv_used": [0.1, 0.2]}
    assert figures_load.burst_timeline(line).rows[1] == (1.0, 2, 3, 20.0)


def test_every_colour_of_a_figure_is_known_to_the_dark_theme() -> None:
    """Text, axes and surfaces must all have a dark partner, else they vanish on the dark surface."""
    made = planview.cost_chart(ROWS)
    layout = json.loads(made.figure.to_json())["layout"]
    used = {layout["template"]["layout"]["font"]["color"], layout["template"]["layout"]["yaxis"]["gridcolor"]}
    assert used <= set(palette.DARK)
    payload = json.loads(made.payload)
    assert payload["dark"][palette.TEXT_2]
    assert "<" not in made.payload


def test_a_point_of_the_pareto_chart_leads_to_its_candidate() -> None:
    code = row("code-completion")
    made = figures.pareto(code.candidates, code.verdict["chosen"], "/c/?id=")
    pages = [page for trace in made.traces for page in trace.get("customdata") or ()]
    assert len(pages) == len(made.rows)
    assert all(page.startswith("/c/?id=code-completion/") for page in pages)


def test_a_quiet_burst_is_no_flat_line_and_holds_until_the_next_sample() -> None:
    made = figures_load.burst_timeline({"t_s": [0, 9], "running": [2, 0], "waiting": [0, 0], "kv_used": [0.004, 0]})
    assert made.layout["yaxis2"]["range"] == [0, 1.0]
    assert {trace["line"]["shape"] for trace in made.traces} == {"hv"}
    assert made.note == "At most 2 run, 0 wait, 0.40 % of the KV cache is in use."


def test_a_share_too_small_to_matter_is_none() -> None:
    assert [fmt.percent(share) for share in (-9.7e-6, 0.0, 0.00023, 0.143)] == ["0 %", "0 %", "0.023 %", "14 %"]


def test_a_figure_is_sent_as_plotly_would_write_it() -> None:
    made = chart.make(
        "x", "X", [chart.bar(x=(Decimal("1.5"), None, float("nan")), y=[np.float64(2), 3, True], name="a")],
        {"xaxis": chart.axis("Time", "s", range=(0, 2))}, [chart.Column("A")], [],
    )  # fmt: skip
    sent, own = json.loads(made.payload)["figure"], json.loads(made.figure.to_json())
    assert sent["data"] == [{**own["data"][0], "x": [1.5, None, None]}]
    assert sent["layout"]["xaxis"] == own["layout"]["xaxis"] == {"title": {"text": "Time (s)"}, "range": [0, 2]}
    assert sent["layout"]["template"] == own["layout"]["template"]
    wrong = chart.make("x", "X", [chart.bar(lenght=3)], {}, [], [])
    with pytest.raises(ValueError, match="lenght"):
        wrong.figure  # noqa: B018 - reading it is the check


def test_table_cells_follow_the_columns() -> None:
    made = chart.make(
        "x", "X", [], {}, [chart.Column("A", numeric=False), chart.Column("B", "ms")], [("a", 12.3456), ("b", None)]
    )
    assert made.cells == [[(False, "a", "a"), (True, "12.35", "12.3456")], [(False, "b", "b"), (True, "–", "")]]


@pytest.mark.parametrize(
    ("value", "text"),
    [(5355.2, "5,360"), (18.84, "18.8"), (0.4137, "0.414"), (0, "0"), (38.0, "38"), (2.997, "3.00"), (-4.2, "−4.20"),
     (None, "–"), (float("nan"), "–"), (999.9, "1,000"), (1e7, "10,000,000")],
)  # fmt: skip
def test_three_significant_figures(value: float | None, text: str) -> None:
    assert fmt.sig(value) == text


@given(st.floats(1e-6, 1e12))
def test_rounding_stays_within_half_a_percent(value: float) -> None:
    assert float(fmt.sig(value).replace(",", "")) == pytest.approx(value, rel=0.00502)


def test_words_for_money_share_and_time() -> None:
    assert fmt.money(Decimal("61.38")) == "$61.38"
    assert fmt.money(-1230.4) == "−$1,230"
    assert fmt.percent(0.143) == "14 %"
    assert fmt.signed_percent(0.07) == "+7 %"
    assert [fmt.duration(s) for s in (0.85, 12.3, 250, 12000, 190000)] == [
        "850 ms", "12.3 s", "4 min 10 s", "3 h 20 min", "2 d 4 h",
    ]  # fmt: skip


def test_workload_rows_join_verdict_candidates_and_nodes() -> None:
    code, chat, embed = row("code-completion"), row("support-chat"), row("embed-search")
    assert (code.engine, code.other_engine) == ("tensorrt_llm", "vllm")
    assert sum(gpus for _, gpus in code.nodes) == code.gpus == 6
    assert chat.look == "close"
    assert chat.state[0] == "attention"
    assert embed.other is None
    assert embed.other_reason == "TensorRT-LLM does not serve embedding models."
    assert embed.usd_unit == "/ M tok, all"
    assert code.lengths == "1,850 → 28 tokens"
    assert code.slo_words == "TTFT p90 ≤ 400 ms, TPOT p90 ≤ 25 ms"


def test_margin_bar_holds_zero_and_the_band() -> None:
    for item in ROWS:
        if item.margin:
            assert 0 <= item.margin.low <= item.margin.value <= item.margin.high <= 100
            assert 0 <= item.margin.zero <= 100


def test_a_workload_without_candidates_is_a_state() -> None:
    request = {"workloads": [REQUEST["workloads"][0]], "nodes": []}
    verdict = {"workload": "code-completion", "chosen": None, "runner_up": None, "engine": None, "margin": None,
               "too_close": False, "sentence": "Fits nowhere: weights take 61 GiB.", "reasons": []}  # fmt: skip
    only = planview.workload_rows(request, {"verdicts": [verdict]})[0]
    assert only.look == "none"
    assert only.state == ("infeasible", "Fits nowhere")
    assert only.usd_chosen is None


def test_map_colours_each_gpu_once_and_outlines_the_stranded() -> None:
    made = planview.placement_map(REQUEST, RESULT, "/plans/1/nodes/")
    counts = {entry.word: entry.gpus for entry in made.legend}
    assert sum(counts.values()) == made.gpus == 132
    assert counts["free, but stranded"] == 3
    assert counts["planned"] == 16
    assert counts["agent-tools"] == 8


def test_map_of_1200_nodes_stays_small() -> None:
    nodes = [
        gpumap.MapNode(f"n{i}", f"node-{i:04d}", "Site", "A100", 8 if i % 3 else 2, 8 if i % 3 else 1, "active",
                       tuple("w0" if (i + g) % 5 else "f" for g in range(8 if i % 3 else 2)), "", f"/fleet/nodes/n{i}/")
        for i in range(1200)
    ]  # fmt: skip
    made = gpumap.build(nodes, [("w0", "one", 1)])
    size = sum(len(kind.markup) for site in made.sites for kind in site.kinds)
    assert made.dense
    assert size < 900_000
    assert (
        made.sites[0].kinds[0].markup.count('tabindex="0"') + made.sites[0].kinds[1].markup.count('tabindex="0"') == 1
    )


def test_map_escapes_names() -> None:
    node = gpumap.MapNode("n", "<b>&", "S", "A10", 1, 1, "active", ("f",), "", "/n/")
    markup = gpumap.build([node], []).sites[0].kinds[0].markup
    assert "<b>" not in markup
    assert "&lt;b&gt;&amp;" in markup


def test_bands_are_said_plainly() -> None:
    assert fmt.band(0.12, 0.33, "share") == "12–33 %"
    assert fmt.band(-0.06, 0.08, "share") == "−6 to 8 %"
    assert fmt.band(17.9, 20.06) == "17.9–20.1"


def test_flip_points_lie_between_the_ends_of_what_was_searched() -> None:
    code = row("code-completion")
    assert [flip["parameter"] for flip in code.flips] == ["rate_per_s", "revisions_per_month"]
    rate = code.flips[0]
    assert 0 < rate["flip_at"] < rate["now_at"] < 100
    agents = row("agent-tools")
    assert not agents.flips
    assert [point["parameter"] for point in agents.steady] == ["adapters"]
    assert agents.flip_words == "0 of 1 searched parameter would flip it"


def test_replicas_of_both_engines_are_told_apart() -> None:
    other = json.loads(json.dumps(RESULT))
    mine = [p for p in other["placements"] if p["workload"] == "support-chat"]
    mine[0]["candidate_id"] = row("support-chat").verdict["runner_up"]
    chat = next(r for r in planview.workload_rows(REQUEST, other) if r.name == "support-chat")
    assert chat.hybrid
    assert sorted((part.engine, part.replicas) for part in chat.serving) == [("tensorrt_llm", 1), ("vllm", 2)]
    assert chat.gpus == 6
    assert not row("support-chat").hybrid


def test_left_out_candidates_are_grouped_by_reason() -> None:
    code = row("code-completion")
    found = {(group["engine"], group["status"]): group for group in planview.left_out(code)}
    assert found["tensorrt_llm", "unsupported"]["where"] == ["MI300X"]
    assert "this node has 2" in found["vllm", "infeasible"]["reason"]
    shown = [entry["candidate"]["id"] for entry in planview.ranked(code, limit=1)]
    assert {code.verdict["chosen"], code.verdict["runner_up"]} <= set(shown)


def test_a_chart_says_in_words_what_its_picture_shows() -> None:
    chart = figures.cost_split([("GPUs", Decimal(100)), ("electricity", Decimal(13))])
    assert (
        chart.alternative == "Where the money goes: 3 lines; Cost 13 to 113 USD a month. The table holds the same data."
    )
    assert figures.pareto([]).alternative == "Throughput against interactivity: 0 lines. The table holds the same data."

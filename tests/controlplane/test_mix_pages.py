"""A workload on two configurations, and the plan beside each engine alone, as the pages show them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from controlplane.dashboard import mixview, planview
from controlplane.planning.comparing import _served
from planner.jsonio import to_json
from planner.plan_types import Placement, PlanResult
from planner.recommend.bill import bill
from tests.controlplane import fleet_fixture
from tests.controlplane.plan_answer import plan_result
from tests.controlplane.plan_fixture import plan_request


def placed() -> PlanResult:
    """The sample plan with the hybrid of its first workload placed."""
    result = plan_result()
    (mix,) = result.mixes
    others = tuple(p for p in result.placements if p.workload != mix.workload)
    own = tuple(
        Placement(mix.workload, part.candidate_id, replica, "fra-h100-01", (2 * replica, 2 * replica + 1))
        for part in mix.parts
        for replica in range(part.replicas)
    )
    return replace(result, placements=(*own, *others), mixes=(replace(mix, placed=True),))


def row_of(result: PlanResult) -> Any:
    rows = planview.workload_rows(to_json(plan_request()), to_json(result))
    return next(row for row in rows if row.name == "code-completion")


def test_a_mix_that_is_placed_gives_the_figures_of_the_workload() -> None:
    row = row_of(placed())
    assert row.hybrid
    assert row.mixed["workload"] == "code-completion"
    assert row.usd_chosen == {"value": "1.40", "low": "1.20", "high": "1.70"}
    assert row.bill["usd_per_month"] == "5840.00"
    alone = row_of(plan_result())
    assert alone.mixed is None
    assert alone.bill == alone.chosen["cost"]


def test_the_card_has_the_whole_its_parts_and_each_engine_alone() -> None:
    card = mixview.mix_card(row_of(placed()))
    assert [line.kind for line in card.lines] == ["whole", "part", "part", "alone", "alone"]
    assert sum(line.share for line in card.lines if line.kind == "part") == pytest.approx(1.0)
    assert card.lines[0].engine == "hybrid"
    assert card.lines[1].what.startswith("2 × 2 H100-SXM5-80GB, TP 2")
    assert card.lines[3].performance is not None
    assert card.lines[4].note == "TensorRT-LLM alone carries 80 % of it here."
    assert [css for css, _, _ in card.segments] == ["tensorrt_llm", "vllm"]
    whole = dict(card.lines[0].arithmetic)
    assert whole["56 %"].startswith("TensorRT-LLM, 2 × 2 H100")
    assert "never means of percentiles" in whole["Percentiles"]
    assert "of the demand within the SLO" in dict(card.lines[1].arithmetic)["Carries"]
    assert card.lines[4].arithmetic == ()
    assert "41 % instead of 44 %" in card.split_words
    assert "still carries 90 % of the demand" in card.loss_words
    assert [engine for engine, _ in card.flips] == ["vllm"]
    assert mixview.mix_card(replace(row_of(plan_result()), mix=None)) is None


def test_two_parts_of_one_engine_are_told_apart() -> None:
    result = placed()
    (mix,) = result.mixes
    parts = tuple(replace(part, engine="vllm") for part in mix.parts)
    card = mixview.mix_card(row_of(replace(result, mixes=(replace(mix, parts=parts, split="capacity"),))))
    assert [css for css, _, _ in card.segments] == ["vllm", "vllm again"]
    assert card.lines[0].engine == "vllm"
    assert "in proportion to what each part carries" in card.split_words


def test_each_engine_alone_stands_beside_the_chosen_plan() -> None:
    result = to_json(placed())
    lines = mixview.engine_lines(result)
    assert [line.engine for line in lines] == [None, "vllm", "tensorrt_llm"]
    assert {css for css, _, _ in lines[0].segments} == {"vllm", "tensorrt_llm"}
    whole = float(lines[0].plan["usd_per_month"])
    assert sum(value for _, value, _ in lines[0].segments) == pytest.approx(whole)
    assert mixview.most_usd(lines) == pytest.approx(float(lines[1].plan["usd_per_month"]))
    assert mixview.engine_lines({**result, "engine_plans": ()}) == []


def test_the_bill_divides_tokens_as_the_mix_divides_requests() -> None:
    found = [row for row in bill(plan_request(), placed()).rows if row.workload.name == "code-completion"]
    (mix,) = placed().mixes
    assert [row.carried for row in found] == [part.share for part in mix.parts]
    assert [row.performance for row in found] == [part.performance for part in mix.parts]
    alone = [row for row in bill(plan_request(), plan_result()).rows if row.workload.name == "code-completion"]
    assert [row.performance for row in alone] == [None]


def test_plans_side_by_side_show_the_whole_of_a_mix() -> None:
    mixed, single = to_json(placed()), to_json(plan_result())
    mixed["mixes"][0]["performance"]["ttft_ms_80"] = {"value": 99.0, "low": 90.0, "high": 110.0}
    request = to_json(plan_request())
    whole, part = (_served(request, result, Decimal(1))["code-completion"] for result in (mixed, single))
    assert whole.ttft_ms["value"] == 99.0
    assert whole.usd_per_mtok_output == Decimal("1.40")
    assert set(whole.engines) == {"vllm", "tensorrt_llm"}
    chosen = next(c for c in single["candidates"] if c["id"] == part.candidate)
    assert part.ttft_ms == chosen["performance"]["ttft_ms_80"]
    assert str(part.usd_per_mtok_output) == chosen["cost"]["usd_per_mtok_output"]


@pytest.mark.django_db
def test_pages_show_both(client: Client) -> None:
    sample = fleet_fixture.make_everything()
    client.force_login(sample["user"], backend="django.contrib.auth.backends.ModelBackend")
    plan = sample["plan"]
    page = client.get(f"/plans/{plan.pk}/").content.decode()
    assert "With one engine alone" in page
    assert "does not serve the same" in page
    assert "too close to call" in page
    body = client.get(f"/plans/{plan.pk}/workloads/code-completion/").content.decode()
    assert "Both engines behind one router" in body
    assert "weights for every endpoint" not in body
    plan.result = to_json(placed())
    plan.save(update_fields=["result"])
    body = client.get(f"/plans/{plan.pk}/workloads/code-completion/").content.decode()
    assert "Served as one" in body
    assert "weights for every endpoint" in body
    assert "weight 7,857" in body
    assert "as one service" in client.get(f"/plans/{plan.pk}/").content.decode()
    plan.result = {key: value for key, value in plan.result.items() if key not in ("mixes", "engine_plans")}
    plan.save(update_fields=["result"])
    older = client.get(f"/plans/{plan.pk}/").content.decode()
    assert "With one engine alone" not in older
    assert client.get(f"/plans/{plan.pk}/workloads/code-completion/").status_code == 200

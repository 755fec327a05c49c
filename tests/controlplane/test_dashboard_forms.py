"""Forms of the pages: scenario, workload and what-if, stored, refused with the reason, drawn while typing."""

from __future__ import annotations

from decimal import Decimal
from html import unescape
from typing import Any

import pytest
from django.test import Client

from controlplane.planning.models import Plan, Scenario
from controlplane.workloads.models import Workload

pytestmark = pytest.mark.django_db


def test_scenario_form_stores_and_computes(sample: dict[str, Any], admin_page: Client, sent: list[Any]) -> None:
    workloads = [row.pk for row in sample["workloads"][:2]]
    answer = admin_page.post(
        "/plans/new/", {"name": "Two only", "mode": "owned", "workloads": workloads, "time_limit_s": "20", "notes": ""}
    )
    scenario = Scenario.objects.get(name="Two only")
    plan = scenario.plans.get()
    assert answer.headers["Location"] == f"/plans/{plan.pk}/"
    assert plan.state == Plan.State.COMPUTING
    assert scenario.workloads.count() == 2
    page = admin_page.get(f"/plans/{plan.pk}/").content.decode()
    assert f"/jobs/{plan.job_id}/progress/" in page
    assert "every 1s" in page
    bought = {
        "mode": "owned_plus_purchase",
        "objective": "total_cost",
        "budget_usd_per_hour": "40.5",
        "share_gpus": "on",
    }
    admin_page.post("/plans/new/", {"name": "Bought", "time_limit_s": "20", "notes": "", **bought})
    row = Scenario.objects.get(name="Bought")
    assert (row.objective, row.budget_usd_per_hour, row.share_gpus) == ("total_cost", Decimal("40.5"), True)
    assert (row.max_power_kw, row.horizon_months) == (None, 36)
    wrong = admin_page.post("/plans/new/", {"name": "", "mode": "owned", "time_limit_s": "-1"})
    assert wrong.status_code == 422


WORKLOAD = {
    "name": "Night summaries", "kind": "summarise", "model_ref": "Qwen/Qwen3-32B", "trace": "", "load_kind": "open",
    "rate_per_s": "2.5", "concurrency": "", "requests": "", "arrival": "poisson", "arrival_cv": "", "prefix_hit": "",
    "priority": "", "tenant": "", "site": "", "adapters": "", "adapter_rank": "", "revisions_per_month": "",
    "allowed_engines": ["vllm"], "allowed_precisions": ["as-config"], "max_model_len": "", "hours_per_month": "",
    "mean_load_share": "", "notes": "", "input_kind": "uniform", "input_a": "2000", "input_b": "8000",
    "output_kind": "normal", "output_a": "300", "output_b": "80", "slo-TOTAL_FORMS": "2", "slo-INITIAL_FORMS": "0",
    "slo-MIN_NUM_FORMS": "0", "slo-MAX_NUM_FORMS": "12", "slo-0-metric": "ttft", "slo-0-stat": "p90",
    "slo-0-limit_ms": "900", "slo-1-metric": "", "slo-1-stat": "p90", "slo-1-limit_ms": "",
}  # fmt: skip


def test_workload_form_round_trip(sample: dict[str, Any], admin_page: Client) -> None:
    answer = admin_page.post("/workloads/new/", WORKLOAD)
    assert answer.status_code == 302
    row = Workload.objects.get(name="Night summaries")
    assert row.input_tokens == {"kind": "uniform", "low": 2000, "high": 8000}
    assert row.output_tokens == {"kind": "normal", "mean": 300.0, "sd": 80.0}
    assert [(t.metric, t.limit_ms) for t in row.slo_targets.all()] == [("ttft", 900.0)]
    assert (row.priority, row.hours_per_month) == (100, 730.0)
    target = row.slo_targets.get()
    changed = {
        **WORKLOAD, "rate_per_s": "3", "slo-INITIAL_FORMS": "1", "slo-0-id": target.pk, "slo-0-limit_ms": "700",
    }  # fmt: skip
    assert admin_page.post(f"/workloads/{row.slug}/edit/", changed).status_code == 302
    row.refresh_from_db()
    assert row.rate_per_s == 3.0
    assert [t.limit_ms for t in row.slo_targets.all()] == [700.0]


@pytest.mark.parametrize("profile", ["rate_servegen_m_mid", " ".join(["1"] * 8 + ["4.5"] * 16)])
def test_sessions_and_the_hours_of_a_week_are_stated_and_drawn(
    sample: dict[str, Any], admin_page: Client, profile: str
) -> None:
    stated = {"turns_low": "2", "turns_high": "8", "think_s": "15", "shared_tokens": "900", "growth_per_month": "5"}
    answer = admin_page.post("/workloads/new/", {**WORKLOAD, **stated, "hour_profile": profile, "plan_for_month": "3"})
    assert answer.status_code == 302
    row = Workload.objects.get(name="Night summaries")
    assert (row.turns_low, row.turns_high, row.think_s, row.shared_tokens) == (2, 8, 15.0, 900)
    assert (len(row.hour_profile), row.growth_per_month, row.plan_for_month) == (168, 0.05, 3)
    page = admin_page.get(f"/workloads/{row.slug}/").content.decode()
    assert "Hours of the week" in page
    assert "in sessions of 2 to 8 turns" in page
    again = admin_page.get(f"/workloads/{row.slug}/edit/").content.decode()
    assert f"{row.hour_profile[0]:g} {row.hour_profile[1]:g}" in again
    assert 'name="growth_per_month" value="5"' in again


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hour_profile": "1 2 3"}, "needs 168 values"),
        ({"hour_profile": "busy"}, "Write numbers"),
        ({"turns_low": "5", "turns_high": "2"}, "least number of turns"),
        ({"turns_high": "5", "prefix_hit": "50"}, "Leave it at 0 for sessions"),
        ({"growth_per_month": "500"}, "less than or equal to 100"),
        ({"model_ref": "no/such-model"}, "no/such-model"),
        ({"input_a": "9000", "input_b": "10"}, "below low"),
        ({"output_a": "0", "output_kind": "fixed"}, "Lengths must lie between"),
        ({"rate_per_s": "0"}, "rate above 0"),
        ({"input_kind": "trace"}, "need a trace"),
    ],
)
def test_workload_form_says_what_is_wrong(sample: dict[str, Any], admin_page: Client, change: dict, words: str) -> None:
    answer = admin_page.post("/workloads/new/", {**WORKLOAD, **change})
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not Workload.objects.filter(name="Night summaries").exists()


def test_lengths_are_drawn_while_typing(sample: dict[str, Any], admin_page: Client) -> None:
    body = admin_page.post("/workloads/draw/", WORKLOAD, headers={"HX-Request": "true"}).content.decode()
    assert "figure-input-lengths" in body
    assert "figure-output-lengths" in body
    half = admin_page.post("/workloads/draw/", {"input_kind": "normal", "input_a": "x"}, headers={"HX-Request": "true"})
    assert half.status_code == 200


def test_a_what_if_form_makes_plans_beside_the_base(sample: dict[str, Any], admin_page: Client) -> None:
    plan = sample["plan"]
    plan.request["workloads"] = [{**w, "model": "Qwen/Qwen3-8B"} for w in plan.request["workloads"]]
    plan.save()
    path = f"/plans/{plan.pk}/what-if/"
    assert admin_page.get(path).status_code == 200
    empty = admin_page.post(path, {})
    assert empty.status_code == 422
    assert "Nothing is changed; fill in at least one line." in empty.content.decode()
    fields = {"demand": "50", "demand_of": "support-chat", "gpu_price": "-20", "lost": "node:fra-h100-01", "each": "on"}
    answer = admin_page.post(path, fields)
    made = list(plan.variants.order_by("number"))
    assert [row.title for row in made] == ["support-chat: demand +50 %", "GPU prices −20 %", "Without fra-h100-01"]
    assert answer.headers["Location"] == f"/plans/compare/?ids={plan.pk},{','.join(str(row.pk) for row in made)}"
    waiting = admin_page.get(answer.headers["Location"]).content.decode()
    assert waiting.count("every 1s") == 3
    both = admin_page.post(path, {"growth": "5", "electricity": "0.3", "slo": "-50", "slo_metric": "ttft"})
    assert both.status_code == 302
    assert plan.variants.count() == 4
    assert "Growth of 5 % a month; TTFT limits −50 %; Electricity" in plan.variants.latest("pk").title
    body = admin_page.get(f"/plans/{plan.pk}/").content.decode()
    assert "support-chat: demand +50 %" in body
    for fields, words in (
        ({"buy": "B200-SXM"}, "Say what a GPU-hour of it costs."),
        ({"model": "no/such", "model_of": "support-chat"}, "no/such"),
        ({"demand": "1", "growth": "1", "slo": "5", "gpu_price": "2", "each": "on"}, "at most 3"),
    ):  # fmt: skip
        refused = admin_page.post(path, fields)
        assert refused.status_code == 422
        assert words in unescape(refused.content.decode())

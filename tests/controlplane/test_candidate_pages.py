"""Candidates on their pages: the state of each engine before any figure, all of them, and those that were refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from controlplane.dashboard import curves, planview
from controlplane.planning.models import Plan
from tests.controlplane import fleet_fixture

pytestmark = pytest.mark.django_db


@pytest.fixture
def plan() -> Plan:
    """The plan in force of the sample fleet."""
    return fleet_fixture.make_everything()["plan"]


@pytest.fixture
def page(plan: Plan, client: Client) -> Client:
    """Signed in."""
    client.force_login(plan.created_by)  # type: ignore[arg-type]
    return client


def first_row(plan: Plan, **changes: Any) -> Any:
    """The row of the first workload, with every candidate changed."""
    result = dict(plan.result or {})
    name = (plan.request or {})["workloads"][0]["name"]
    result["candidates"] = [
        {**c, **(changes if c["workload"] == name else {})} for c in (plan.result or {})["candidates"]
    ]
    return next(row for row in planview.workload_rows(plan.request or {}, result) if row.name == name)


def test_an_engine_is_unsupported_with_its_reason_before_any_figure(plan: Plan) -> None:
    states = {item.engine: item for item in planview.engine_states(first_row(plan))}
    assert set(states) == {"vllm", "tensorrt_llm"}
    for item in states.values():
        assert item.gpus or item.refused
    gone = first_row(plan, status="unsupported", reasons=["No kernels."])
    for item in planview.engine_states(gone):
        if item.refused and item.refused[0][0]:
            assert (item.state, item.word, item.gpus) == ("unsupported", "Unsupported", ())
            assert {reason for _, reason in item.refused} == {"No kernels."}
    slow = first_row(plan, status="infeasible", reasons=["Too slow."])
    assert {item.state for item in planview.engine_states(slow)} <= {"infeasible", "unsupported", "no_data"}
    slow.workload["allowed_engines"] = ["vllm"]
    barred = planview.engine_states(slow)[1]
    assert (barred.word, barred.refused) == ("Not allowed", (("", "The workload does not allow it."),))


def test_the_states_stand_first_on_the_page(plan: Plan, page: Client) -> None:
    name = (plan.request or {})["workloads"][0]["name"]
    text = page.get(f"/plans/{plan.pk}/workloads/{quote(name)}/").content.decode()
    assert text.index("Which engine can serve it") < text.index("Side by side") < text.index("Candidates")


def test_every_candidate_can_be_reached(plan: Plan, page: Client) -> None:
    for workload in (plan.request or {})["workloads"]:
        path = f"/plans/{plan.pk}/workloads/{quote(workload['name'])}/"
        text = page.get(f"{path}?candidates=all").content.decode()
        own = [c for c in (plan.result or {})["candidates"] if c["workload"] == workload["name"]]
        for candidate in (c for c in own if c["status"] == "ok"):
            assert quote(candidate["id"], safe="") in text or quote(candidate["id"]) in text
        for candidate in own:
            assert page.get(f"/plans/{plan.pk}/candidate/?id={quote(candidate['id'])}").status_code == 200


def test_an_unsupported_candidate_shows_its_reason_and_no_figure(plan: Plan, page: Client) -> None:
    result = dict(plan.result or {})
    first = result["candidates"][0]
    bare = {**first, "status": "unsupported", "reasons": ["No fp8 kernels."], "settings": None, "memory": None}
    result["candidates"] = [bare, *result["candidates"][1:]]
    Plan.objects.filter(pk=plan.pk).update(result=result)
    text = page.get(f"/plans/{plan.pk}/candidate/?id={quote(first['id'])}").content.decode()
    assert "Unsupported:" in text
    assert "No fp8 kernels." in text
    assert "GPU-h" not in text
    assert "Draw the curves" not in text


def test_one_that_breaks_the_slo_can_be_drawn(plan: Plan, page: Client) -> None:
    result = dict(plan.result or {})
    at = next(i for i, c in enumerate(result["candidates"]) if c["status"] == "ok")
    slow = {**result["candidates"][at], "status": "infeasible", "reasons": ["TPOT p90 is 80 ms even alone."]}
    result["candidates"] = [*result["candidates"][:at], slow, *result["candidates"][at + 1 :]]
    Plan.objects.filter(pk=plan.pk).update(result=result)
    plan.curves.all().delete()
    text = page.get(f"/plans/{plan.pk}/candidate/?id={quote(slow['id'])}").content.decode()
    assert "no load is within the SLO" in text
    assert "Draw the curves" in text


def test_no_timeline_says_why() -> None:
    pools = curves.Curve("", {"disagg": {"prefill": {}}}, {"timeline": None})
    assert "before prefill and decode pools had one" in curves.no_timeline(pools)
    assert curves.no_timeline(curves.Curve("", {"disagg": {}}, {"unit_timeline": {"transferring": [0]}})) == ""
    assert "one pass" in curves.no_timeline(curves.Curve("", {}, {"timeline": None}))
    assert curves.no_timeline(curves.Curve("", {}, {"timeline": {"t_s": [0]}})) == ""

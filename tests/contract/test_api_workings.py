"""The arithmetic behind the figures of a plan, over the API."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.planning.models import Plan
from tests.contract.conftest import V1
from tests.contract.test_api_errors import problem


@pytest.fixture
def path(whole_fleet: dict[str, Any]) -> str:
    return f"{V1}/plans/{whole_fleet['plan'].pk}/workings/"


def candidate_of(plan: Plan, status: str) -> str:
    return str(next(item["id"] for item in (plan.result or {})["candidates"] if item["status"] == status))


def test_totals_come_with_their_lines(path: str, viewer_api: APIClient) -> None:
    found = {entry["key"]: entry for entry in viewer_api.get(path).json()}
    assert set(found) == {"usd_per_hour", "idle_usd_per_hour", "stranded", "gap"}
    total = found["usd_per_hour"]
    assert total["unit"] == "$ / h"
    assert total["terms"]
    assert all(term["source"] for term in total["terms"])
    assert total["holds"] is True
    assert total["again"] == pytest.approx(float(total["value"]), abs=0.011)


def test_a_candidate_shows_every_figure_it_has(path: str, whole_fleet: dict[str, Any], viewer_api: APIClient) -> None:
    chosen = candidate_of(whole_fleet["plan"], "ok")
    found = {entry["key"]: entry for entry in viewer_api.get(path, {"candidate": chosen}).json()}
    assert {"memory", "rate", "ttft", "tpot", "price", "month", "cost"} <= set(found)
    for key in ("rate", "ttft", "tpot", "cost"):
        low, high = found[key]["band"]
        assert low <= float(found[key]["value"]) <= high
        assert found[key]["evidence"] in ("calibrated", "silicon", "extrapolated", "roofline")
    alone = viewer_api.get(path, {"candidate": chosen, "figure": "month"}).json()
    assert alone == [found["month"]]


def test_the_margin_of_a_verdict(path: str, whole_fleet: dict[str, Any], viewer_api: APIClient) -> None:
    verdict = next(item for item in whole_fleet["plan"].result["verdicts"] if item["margin"])
    (margin,) = viewer_api.get(path, {"workload": verdict["workload"]}).json()
    assert margin["key"] == "margin"
    assert margin["value"] == pytest.approx(100 * verdict["margin"]["value"])
    assert margin["band"] == pytest.approx([100 * verdict["margin"][end] for end in ("low", "high")])


def test_amounts_are_in_the_currency_of_the_plan(
    path: str, whole_fleet: dict[str, Any], viewer_api: APIClient, db: None
) -> None:
    plan = whole_fleet["plan"]
    Plan.objects.filter(pk=plan.pk).update(request={**plan.request, "currency": "EUR"})
    (total,) = viewer_api.get(path, {"figure": "usd_per_hour"}).json()
    assert total["unit"] == "€ / h"
    Plan.objects.filter(pk=plan.pk).update(request=plan.request)
    (total,) = viewer_api.get(path, {"figure": "usd_per_hour"}).json()
    assert total["unit"] == "$ / h"


def test_what_is_not_there_is_named(path: str, whole_fleet: dict[str, Any], viewer_api: APIClient, db: None) -> None:
    assert "no candidate 'none'" in problem(viewer_api.get(path, {"candidate": "none"}), 404, "not-found")["detail"]
    assert "no workload 'none'" in problem(viewer_api.get(path, {"workload": "none"}), 404, "not-found")["detail"]
    assert "no figure 'none'" in problem(viewer_api.get(path, {"figure": "none"}), 404, "not-found")["detail"]
    problem(viewer_api.get(path, {"candidate": "a", "workload": "b"}), 400, "validation")
    waiting = whole_fleet["other"]
    Plan.objects.filter(pk=waiting.pk).update(state=Plan.State.COMPUTING, result=None)
    problem(viewer_api.get(f"{V1}/plans/{waiting.pk}/workings/"), 409, "conflict")


@pytest.mark.parametrize(
    ("part", "query"),
    [
        ("workings", "figur=cost"), ("candidates", "limit=1"), ("verdicts", "workloads=x"), ("placements", "gpu=H100"),
        ("request", "x=1"), ("router-config", "x=1"), ("export", "format=csv&namespce=x"), ("curves", "candidat=x"),
        ("", "field=id"),
    ],
)  # fmt: skip
def test_parts_of_a_plan_refuse_unknown_parameters(path: str, viewer_api: APIClient, part: str, query: str) -> None:
    where = path.replace("workings/", f"{part}/" if part else "")
    name = query.split("&")[-1].partition("=")[0]
    answer = problem(viewer_api.get(f"{where}?{query}"), 400, "validation")
    assert [fault["field"] for fault in answer["errors"]] == [name]


def test_the_catalogue_refuses_unknown_parameters(viewer_api: APIClient) -> None:
    answer = problem(viewer_api.get(f"{V1}/catalogue/prices/?gpus=H100"), 400, "validation")
    assert [fault["field"] for fault in answer["errors"]] == ["gpus"]
    assert "gpu, search" in answer["errors"][0]["message"]

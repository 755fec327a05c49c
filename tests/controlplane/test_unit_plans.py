"""Plans with units of prefill and decode pools: their pages, and what approving them does."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from django.test import Client

from controlplane.dashboard import arithmetic
from controlplane.deployments.models import Deployment
from controlplane.planning import curves as drawing
from controlplane.planning.models import CandidateCurves, Plan
from planner.jsonio import to_json
from planner.serving import Timeline, UnitTimeline
from tests.controlplane import fleet_fixture
from tests.controlplane.test_dashboard_figures import point as load_point

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    made = fleet_fixture.make_everything()
    for plan in (made["plan"], made["other"]):
        turn_into_units(plan, "code-completion")
    return made


def turn_into_units(plan: Plan, workload: str) -> None:
    """Every candidate that serves ``workload`` becomes a unit of as many GPUs."""
    result = plan.result
    for candidate in result["candidates"]:
        if candidate["workload"] != workload or candidate["status"] != "ok":
            continue
        role = {
            "settings": candidate["settings"],
            "memory": candidate["memory"],
            "instances": 1,
            "utilisation": 0.61,
            "usd_per_month": "1200.00",
            "usd_per_mtok": "0.131",
        }
        candidate["disagg"] = {
            "prefill": {**role, "instances": 2},
            "decode": role,
            "link": "nvlink",
            "link_gb_s": 450.0,
            "transfer_ms": 31.0,
        }
    plan.result = result
    plan.save()


@pytest.fixture
def page(sample: dict[str, Any], client: Client) -> Client:
    client.force_login(sample["user"], backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_pages_name_both_pools(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"].pk
    for path in (f"/plans/{plan}/", f"/plans/{plan}/workloads/code-completion/"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert "prefill 2 × TP 2, decode 1 × TP 2" in answer.content.decode()
    compared = page.get(f"/plans/compare/?ids={plan},{sample['other'].pk}")
    assert "prefill 2 × TP 2" in compared.content.decode()


def store_curves(plan: Plan, workload: str, **more: Any) -> str:
    """Keep curves of the chosen unit with its plan, its burst as the planner writes it; the candidate."""
    chosen: str = next(v["chosen"] for v in plan.result["verdicts"] if v["workload"] == workload)
    t_s, waiting = np.array([0.0, 10.0, 25.0, 40.0]), np.array([0, 6, 2, 0])
    pool = Timeline(t_s, np.array([1, 4, 3, 0]), waiting, np.array([0.1, 0.4, 0.2, 0.0]), np.zeros(4))
    points = [load_point(1.0, 100.0, 200.0), load_point(2.0, 150.0, 400.0)]
    kept = {
        "axis": "rate", "knee": 2.0, "points": points, "usd_per_hour": "3.6", "timeline": None, "burst_per_s": 4.0,
        "unit_timeline": to_json(UnitTimeline(pool, np.array([0, 2, 1, 0]), pool)), **more,
    }  # fmt: skip
    drawing.store(plan, [drawing.Drawn(workload, chosen, kept)])
    return chosen


def test_a_burst_shows_both_pools(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"]
    chosen = store_curves(plan, "code-completion")
    for path in (f"/plans/{plan.pk}/workloads/code-completion/", f"/plans/{plan.pk}/candidate/?id={quote(chosen)}"):
        body = page.get(path).content.decode()
        assert "The inside of both pools in a burst" in body
        for pool in ("prefill", "decode"):
            assert f'id="figure-timeline-{pool}"' in body
            assert f'id="table-timeline-{pool}"' in body
        assert "A burst in the decode pool: 4 lines; Time 0 to 40 s; Running 0 to 4 requests" in body
        assert "In transfer 0 to 2 requests" in body
        assert "No timeline" not in body


def test_curves_from_before_units_had_a_timeline_still_show(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"]
    chosen = store_curves(plan, "code-completion", unit_timeline=None)
    row = CandidateCurves.objects.get(plan=plan, candidate_id=chosen)
    del row.points["unit_timeline"]
    row.save()
    body = page.get(f"/plans/{plan.pk}/candidate/?id={quote(chosen)}").content.decode()
    assert "TTFT p90 against load" in body
    assert "figure-timeline" not in body
    assert "drawn before prefill and decode pools had one" in body


def test_memory_is_drawn_of_both_roles(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"]
    chosen = next(v["chosen"] for v in plan.result["verdicts"] if v["workload"] == "code-completion")
    body = page.get(f"/plans/{plan.pk}/candidate/?id={quote(chosen)}").content.decode()
    table = body[body.index('id="table-memory"') :]
    assert 'data-value="Prefill"' in table
    assert 'data-value="Decode"' in table


def test_arithmetic_says_which_role_and_names_the_transfer(sample: dict[str, Any], page: Client) -> None:
    plan = sample["plan"]
    chosen = next(v["chosen"] for v in plan.result["verdicts"] if v["workload"] == "code-completion")
    candidate = next(c for c in plan.result["candidates"] if c["id"] == chosen)
    made = {working.key: working for working in arithmetic.of_candidate(plan.request, candidate)}
    assert made["memory"].title == "KV cache of one decode GPU"
    assert "transfer" in made["ttft"].formula
    assert "31 ms" in [term.text for term in made["ttft"].terms if term.word == "Transfer, mean"]
    whole = arithmetic.of_candidate(plan.request, {**candidate, "disagg": None})
    assert not any("transfer" in working.formula or "decode" in working.title for working in whole)


def test_units_get_no_deployment(sample: dict[str, Any], page: Client) -> None:
    page.post(f"/plans/{sample['other'].pk}/approve/", {"next": "/plans/"})
    made = Deployment.objects.filter(plan=sample["other"])
    assert made.exists()
    assert not [row for row in made if row.workload and row.workload.name == "code-completion"]

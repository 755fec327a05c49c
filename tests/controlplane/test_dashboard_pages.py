"""Every page for each role, the acts behind the buttons, and how many queries the lists take."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from controlplane.core.models import Role, User
from controlplane.dashboard import arithmetic
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Gpu, Node, NodeType, Site
from controlplane.jobs.models import Job
from controlplane.planning import curves as drawing
from controlplane.planning.models import CandidateCurves, Plan
from controlplane.workloads.models import Workload
from tests.controlplane import fleet_fixture
from tests.controlplane.test_dashboard_figures import point as load_point

pytestmark = pytest.mark.django_db


def paths(sample: dict[str, Any]) -> list[str]:
    plan, job = sample["plan"].pk, sample["job"].pk
    return [
        "/", "/help/", "/rules/", "/fleet/", "/fleet/?by=engine", "/fleet/?by=use", "/fleet/?by=nonsense",
        "/fleet/nodes/",
        "/fleet/nodes/?site=oslo&gpu=MI300X&state=active", "/fleet/nodes/osl-h200-01/", "/fleet/prices/",
        "/fleet/discovered/", "/workloads/", "/workloads/?q=qwen&kind=agent", "/workloads/new/",
        "/workloads/agent-tools/",
        "/workloads/agent-tools/edit/", "/workloads/models/Qwen/Qwen3-32B/", "/workloads/models/add/", "/memory/",
        "/memory/?model=Qwen/Qwen3-32B&gpu=A10&engine=tensorrt_llm", "/plans/", "/plans/?state=ready", "/plans/new/",
        "/plans/compare/", f"/plans/compare/?ids={plan},{sample['other'].pk}", f"/plans/{plan}/",
        f"/plans/{plan}/workloads/code-completion/", f"/plans/{plan}/workloads/embed-search/",
        f"/plans/{plan}/nodes/fra-h100-01/", "/deployments/", "/deployments/?state=ready", "/deployments/new/",
        *[f"/deployments/{row.pk}/" for row in sample["deployments"]], "/validation/", "/validation/?emulated=no",
        "/jobs/", "/jobs/?state=failed", f"/jobs/{job}/", f"/jobs/{job}/progress/",
    ]  # fmt: skip


def test_every_page_opens_and_obeys_the_policy(sample: dict[str, Any], admin_page: Client) -> None:
    for path in paths(sample):
        answer = admin_page.get(path)
        assert answer.status_code == 200, path
        body = answer.content.decode()
        outside = re.sub(r"<script.*?</script>", "", body, flags=re.S)
        assert " style=" not in outside, path
        assert not re.search(r"\son\w+=", outside), path
        assert "Oops" not in body
        assert "successfully" not in body
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe-inline" not in policy
        assert "unsafe-eval" not in policy
        for text in re.findall(r'<script type="application/json" id="figure-[^"]*">(.*?)</script>', body, flags=re.S):
            go.Figure(json.loads(text)["figure"])  # raises for an attribute that Plotly does not know


def test_a_field_is_tied_to_its_help_and_to_its_error(admin_page: Client) -> None:
    for answer in (admin_page.get("/plans/new/"), admin_page.post("/plans/new/", {"name": "", "time_limit_s": "x"})):
        body = answer.content.decode()
        pointed = {name for names in re.findall(r'aria-describedby="([^"]+)"', body) for name in names.split()}
        assert "id_currency_helptext" in pointed
        assert pointed <= set(re.findall(r'id="([^"]+)"', body))
    assert "id_time_limit_s_error" in pointed


def test_pages_need_a_sign_in(client: Client) -> None:
    for path in ("/", "/fleet/", "/plans/", "/jobs/"):
        answer = client.get(path)
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith("/login/?next=")


def test_sign_in_and_out(client: Client) -> None:
    fleet_fixture.make_user("eve", Role.VIEWER)
    wrong = client.post("/login/", {"username": "eve", "password": "no"})
    assert "do not match an account" in wrong.content.decode()
    right = client.post(
        "/login/?next=/fleet/", {"username": "eve", "password": fleet_fixture.PASSWORD, "next": "/fleet/"}
    )
    assert right.headers["Location"] == "/fleet/"
    assert client.post("/logout/").headers["Location"] == "/login/"


def test_pages_of_an_empty_installation_say_what_to_do_next(sign_in: Callable[[User], Client]) -> None:
    page = sign_in(fleet_fixture.make_user())
    for path, words in (
        ("/", "Add a site, a node type and nodes to begin."), ("/fleet/", "No nodes yet"),
        ("/fleet/nodes/", "No nodes yet"), ("/workloads/", "Describe a workload"),
        ("/plans/", "New scenario"), ("/deployments/", "No deployments yet"), ("/validation/", "Nothing measured yet"),
        ("/jobs/", "No jobs yet"), ("/rules/", "No plan has checked them yet"), ("/fleet/prices/", "No GPU models yet"),
    ):  # fmt: skip
        answer = page.get(path)
        assert answer.status_code == 200
        assert words in answer.content.decode(), path


def test_a_viewer_sees_everything_and_changes_nothing(
    sample: dict[str, Any], sign_in: Callable[[User], Client], sent: list[Any]
) -> None:
    page = sign_in(fleet_fixture.make_user("eve", Role.VIEWER))
    plan, row = sample["plan"].pk, sample["deployments"][0]
    for path in paths(sample):
        expected = 403 if re.search(r"/(new|edit|add)/$", path) else 200
        assert page.get(path).status_code == expected, path
    assert "Your role is viewer" in page.get("/plans/new/").content.decode()
    body = page.get(f"/deployments/{row.pk}/").content.decode()
    assert "/stop/" not in body
    for path in (f"/plans/{plan}/approve/", f"/deployments/{row.pk}/stop/", "/workloads/agent-tools/delete/"):
        page.post(path, {"next": "/plans/"})
    assert Deployment.objects.get(pk=row.pk).state == "ready"
    assert Workload.objects.filter(slug="agent-tools").exists()
    assert not sent


def test_acts_are_posts_and_return_to_local_paths_only(sample: dict[str, Any], admin_page: Client) -> None:
    path = reverse("dashboard:job_cancel", args=[sample["job"].pk])
    assert admin_page.get(path).status_code == 405
    assert admin_page.post(path, {"next": "https://elsewhere.example/"}).headers["Location"] == "/"
    assert admin_page.post(path, {"next": "//elsewhere.example/"}).headers["Location"] == "/"
    assert admin_page.post(path, {"next": "/jobs/"}).headers["Location"] == "/jobs/"


def test_home_tells_use_cost_and_needs(sample: dict[str, Any], admin_page: Client) -> None:
    body = admin_page.get("/").content.decode()
    assert "Both sites, December #1 is in force" in body
    assert re.search(r'32<span class="u">of 116</span>', body)
    assert "CUDA out of memory while capturing graphs" in body
    assert "H200 only #1 is computed and waits for approval." in body
    assert "emulated-mark" in body


def test_emulated_is_marked_wherever_it_counts(sample: dict[str, Any], admin_page: Client) -> None:
    emulated = next(row for row in sample["deployments"] if row.emulated)
    for path in ("/", "/deployments/", f"/deployments/{emulated.pk}/", "/validation/"):
        assert "emulated-mark" in admin_page.get(path).content.decode(), path
    real = next(row for row in sample["deployments"] if not row.emulated)
    assert "emulated-mark" not in admin_page.get(f"/deployments/{real.pk}/").content.decode()
    body = admin_page.get("/validation/").content.decode()
    assert "2 of 3 measured figures lie in their predicted 80 % band" in body
    assert "3 emulated comparisons are shown and not counted" in body


def test_plan_page_shows_all_that_a_workload_needs(sample: dict[str, Any], admin_page: Client) -> None:
    body = admin_page.get(f"/plans/{sample['plan'].pk}/").content.decode()
    for words in (
        "TensorRT-LLM is 24 % cheaper here (12–33 %)", "3 × 2 H100-SXM5-80GB", "TP 2, fp8", "fra-h100-01",
        "cannot serve it",
        "Probe to settle", "1 replica without a place.", "Best fit", "free, but stranded",
    ):  # fmt: skip
        assert words in body, words


def test_progress_reloads_the_page_when_the_job_is_over(sample: dict[str, Any], admin_page: Client) -> None:
    done = admin_page.get(f"/jobs/{sample['job'].pk}/progress/", headers={"HX-Request": "true"})
    assert done.headers["HX-Refresh"] == "true"
    running = Job.objects.get(state="running")
    live = admin_page.get(f"/jobs/{running.pk}/progress/", headers={"HX-Request": "true"})
    assert "HX-Refresh" not in live.headers
    assert "Sizing support-chat" in live.content.decode()
    assert "expected" in live.content.decode()


def test_approving_makes_deployments(sample: dict[str, Any], admin_page: Client) -> None:
    answer = admin_page.post(f"/plans/{sample['other'].pk}/approve/", {"next": "/plans/"})
    assert answer.headers["Location"].startswith("/deployments/")
    assert Plan.objects.get(pk=sample["other"].pk).state == Plan.State.APPROVED
    assert Deployment.objects.filter(plan=sample["other"]).count() == 16


def test_node_panel_is_a_fragment(sample: dict[str, Any], admin_page: Client) -> None:
    part = admin_page.get("/fleet/nodes/fra-h100-01/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert 'data-pins="n-fra-h100-01"' in part
    assert "agent-tools" in part
    assert admin_page.get("/fleet/nodes/none/").status_code == 404


def test_probe_button_measures_the_stated_load(sample: dict[str, Any], admin_page: Client, sent: list[Any]) -> None:
    row = sample["deployments"][0]
    load = {"rate_per_s": "", "concurrency": "4", "input_tokens": "128", "output_tokens": "32", "requests": "20"}
    answer = admin_page.post(f"/deployments/{row.pk}/probe/", {**load, "next": "/deployments/"})
    assert answer.headers["Location"] == f"/deployments/{row.pk}/"
    probes = ProbeRun.objects.filter(deployment=row).order_by("-created_at")
    assert probes.count() == 2
    assert probes[0].load["concurrency"] == 4


@pytest.mark.parametrize(
    ("field", "typed", "error"),
    [("requests", "x", "Enter a whole number."), ("shared_tokens", "-4", "greater than or equal to 0")],
)
def test_a_refused_probe_keeps_what_was_typed(
    sample: dict[str, Any], admin_page: Client, field: str, typed: str, error: str
) -> None:
    row = sample["deployments"][0]
    load = {"rate_per_s": "", "concurrency": "4", "input_tokens": "131", "output_tokens": "37", "requests": "20"}
    before = ProbeRun.objects.filter(deployment=row).count()
    answer = admin_page.post(f"/deployments/{row.pk}/probe/", {**load, "mix": "900 90 100", "seed": "77", field: typed})
    assert answer.status_code == 422
    assert ProbeRun.objects.filter(deployment=row).count() == before
    body = answer.content.decode()
    for name, value in {**load, "seed": "77", field: typed}.items():
        shown = re.search(f'<input[^>]*name="{name}"[^>]*>', body)
        assert shown is not None
        assert value == "" or f'value="{value}"' in shown.group()
    assert "900 90 100" in body
    beside = f'<span class="errors" id="id_{field}_error" role="alert">'
    assert re.search(f'name="{field}".*?{beside}[^<]*{error}', body, re.DOTALL)
    assert '<details class="wide more" open>' in body
    assert f'name="next" value="/deployments/{row.pk}/"' in body


def test_a_probe_beside_another_keeps_what_was_typed(
    sample: dict[str, Any], admin_page: Client, sent: list[Any]
) -> None:
    row = sample["deployments"][0]
    load = {"concurrency": "4", "input_tokens": "131", "output_tokens": "37", "requests": "20"}
    assert admin_page.post(f"/deployments/{row.pk}/probe/", load).status_code == 302
    answer = admin_page.post(f"/deployments/{row.pk}/probe/", {**load, "input_tokens": "139"})
    assert answer.status_code == 422
    body = answer.content.decode()
    assert 'value="139"' in body
    assert re.search(r'role="alert">.*is being probed already', body)
    assert '<details class="wide more" open>' in body


def test_probe_to_settle_fills_the_form(sample: dict[str, Any], admin_page: Client) -> None:
    body = admin_page.get("/validation/").content.decode()
    links = re.findall(r'href="(/deployments/new/\?[^"]+)"', body)
    assert len(links) == 2
    form = admin_page.get(links[0].replace("&amp;", "&")).content.decode()
    assert 'value="meta-llama/Llama-3.3-70B-Instruct"' in form
    assert re.search(r'<option value="fp8" selected>', form)
    assert re.search(r"<option[^>]* selected>osl-h200-01</option>", form)
    assert re.search(r"<option[^>]* selected>support-chat</option>", form)


def test_discovery_is_compared_with_the_record(sample: dict[str, Any], admin_page: Client) -> None:

    node = Node.objects.get(slug="fra-a10-01")
    Gpu.objects.filter(node=node, index=0).update(
        discovered_name="NVIDIA A10", discovered_memory_mib=23028, driver_version="570.86", discovered_at=timezone.now()
    )
    Gpu.objects.filter(node=node, index=1).update(state=Gpu.State.MISSING)
    body = admin_page.get("/fleet/discovered/").content.decode()
    assert "1 × NVIDIA A10" in body
    assert "fra-a10-01: 1 of 2 GPUs not found." in admin_page.get("/").content.decode()


QUERIES = {
    "/": 14,
    "/fleet/": 9,
    "/fleet/nodes/": 8,
    "/fleet/discovered/": 9,
    "/workloads/": 7,
    "/plans/": 5,
    "/deployments/": 6,
    "/validation/": 10,
    "/jobs/": 5,
}


@pytest.mark.parametrize("path", QUERIES)
def test_lists_take_a_fixed_number_of_queries(
    sample: dict[str, Any], admin_page: Client, django_assert_max_num_queries: Any, path: str
) -> None:
    kind, site = NodeType.objects.first(), Site.objects.first()
    assert kind is not None
    for number in range(30):
        Node.objects.create(site=site, node_type=kind, name=f"more-{number}", slug=f"more-{number}")
        fleet_fixture.make_job(sample["user"], "plan.compute", "succeeded")
    for number in range(12):
        first = sample["workloads"][0]
        Workload.objects.create(name=f"w{number}", slug=f"w{number}", model_ref=first.model_ref, rate_per_s=1)
        Deployment.objects.create(
            name=f"d{number}",
            node=sample["nodes"][number],
            model_ref=first.model_ref,
            engine="vllm",
            planned_engine="vllm",
        )
        Plan.objects.create(scenario=sample["plan"].scenario, number=100 + number)
    with django_assert_max_num_queries(QUERIES[path]):
        assert admin_page.get(path).status_code == 200


def test_unknown_paths_get_our_own_page(admin_page: Client) -> None:
    answer = admin_page.get("/nothing/here/")
    assert answer.status_code == 404
    assert "There is nothing at this address." in answer.content.decode()


def test_load_curves_are_drawn_by_a_job_and_kept_with_the_plan(
    sample: dict[str, Any], admin_page: Client, sent: list[Any]
) -> None:
    plan = sample["plan"]
    chosen = next(v["chosen"] for v in plan.result["verdicts"] if v["workload"] == "code-completion")
    path = f"/plans/{plan.pk}/workloads/code-completion/"
    assert "Draw the curves" in admin_page.get(path).content.decode()
    answer = admin_page.post(f"/plans/{plan.pk}/curves/", {"candidate": chosen, "next": path})
    assert answer.headers["Location"] == path
    row = CandidateCurves.objects.get()
    assert row.job is not None
    assert row.job.kind == "plan.curves"
    assert f"/jobs/{row.job_id}/progress/" in admin_page.get(path).content.decode()
    admin_page.post(f"/plans/{plan.pk}/curves/", {"candidate": chosen, "next": path})
    assert CandidateCurves.objects.get().job == row.job, "asked twice, drawn once"
    drawing.store(plan, [drawing.Drawn("code-completion", chosen, None, "no step times for this GPU")])
    body = admin_page.get(path).content.decode()
    assert "No curve for this candidate" in body
    assert "no step times for this GPU" in body
    points = [load_point(1.0, 100.0, 200.0), load_point(2.0, 150.0, 400.0)]
    line = {"t_s": [0.0, 1.0], "running": [1, 2], "waiting": [0, 3], "kv_used": [0.1, 0.2]}
    kept = {"axis": "rate", "knee": 2.0, "points": points, "usd_per_hour": "3.6", "timeline": line, "burst_per_s": 4.0}
    drawing.store(plan, [drawing.Drawn("code-completion", chosen, kept)])
    for page in (path, f"/plans/{plan.pk}/candidate/?id={quote(chosen)}"):
        body = admin_page.get(page).content.decode()
        assert "TTFT p90 against load" in body
        assert "SLO 400 ms" in body
        assert "figure-timeline" in body
    assert admin_page.get(f"/plans/{plan.pk}/candidate/?id=none").status_code == 404
    refused = admin_page.post(f"/plans/{plan.pk}/curves/", {"candidate": "none", "next": path}, follow=True)
    assert "has no candidate" in refused.content.decode()


def test_figures_open_to_arithmetic_that_gives_them(sample: dict[str, Any], admin_page: Client) -> None:
    plan = sample["plan"]
    chosen = [c for c in plan.result["candidates"] if c["status"] == "ok"]
    for candidate in chosen:
        keys = {working.key for working in arithmetic.of_candidate(plan.request, candidate)}
        assert keys >= {"memory", "rate", "month", "cost", "price"}, candidate["id"]
        for working in arithmetic.of_candidate(plan.request, candidate):
            if working.key in ("month", "cost", "price"):
                assert working.holds is not False, (candidate["id"], working)
    for working in arithmetic.of_plan(plan.request, plan.result):
        path = f"/plans/{plan.pk}/how/?figure={working.key}"
        assert working.formula in unescape(admin_page.get(path, headers={"HX-Request": "true"}).content.decode())
    path = f"/plans/{plan.pk}/how/?figure=cost&candidate={quote(chosen[0]['id'])}"
    assert "bill of a month / million output tokens" in admin_page.get(path).content.decode()
    assert "These lines give it" in admin_page.get(path.replace("=cost", "=month")).content.decode()
    margin = admin_page.get(f"/plans/{plan.pk}/how/?figure=margin&workload=code-completion").content.decode()
    assert "cost of runner-up" in margin
    assert admin_page.get(f"/plans/{plan.pk}/how/?figure=nonsense").status_code == 404
    page = admin_page.get(f"/plans/{plan.pk}/").content.decode()
    assert page.count('class="how"') > 10


def test_the_runway_says_what_to_order_when(sample: dict[str, Any], admin_page: Client) -> None:
    plan = sample["plan"]
    path = f"/plans/{plan.pk}/runway/"
    assert "No demand grows in this plan" in admin_page.get(path).content.decode()
    plan.result["months"] = [
        {"month": m, "gpus_needed": {"L40S": 4 * m}, "gpus_at_hand": {"L40S": 16}, "usd_per_month": "10.00"}
        for m in range(7)
    ]
    plan.result["runways"] = [
        {"gpu": "L40S", "full_in_months": 5, "order_in_months": 0.0, "gpus_short": 8, "sentence": "L40S: order."}
    ]
    plan.save()
    body = admin_page.get(path).content.decode()
    assert "The first pool, L40S, is full in month 5." in body
    assert "Now" in body
    assert "figure-runway-L40S" in body


def test_side_by_side_shows_what_differs_and_hands_out_a_table(sample: dict[str, Any], admin_page: Client) -> None:
    plan, other = sample["plan"], sample["other"]
    other.result["usd_per_hour"] = "99.0000"
    other.title = "Twice the load"
    other.save()
    path = f"/plans/compare/?ids={plan.pk}&ids={other.pk}&ids="
    body = admin_page.get(path).content.decode()
    assert "Held against Both sites, December #1" in body
    assert "Twice the load" in body
    assert re.search(r'class="num now"><span class="n" title="99">\$99</span>', body)
    table = admin_page.get(f"{path}&format=csv")
    assert table.headers["Content-Type"].startswith("text/csv")
    assert "H200 only #1: Twice the load" in table.content.decode("utf-8-sig").splitlines()[0]
    for ids in ("", "?ids=%C2%B2", "?ids=99999999999999999999,x", "?ids=-1"):
        assert "Choose two plans" in admin_page.get(f"/plans/compare/{ids}").content.decode()


def test_a_job_longer_than_usual_expects_nothing(sample: dict[str, Any], admin_page: Client) -> None:
    user, now = sample["user"], timezone.now()
    fleet_fixture.make_job(user, "trace.parse", Job.State.SUCCEEDED)  # took 17 s
    job = fleet_fixture.make_job(user, "trace.parse", Job.State.RUNNING)
    for seconds, words in ((10, "17 s expected"), (60, "")):
        Job.objects.filter(pk=job.pk).update(started_at=now - dt.timedelta(seconds=seconds))
        body = admin_page.get(f"/jobs/{job.pk}/progress/").content.decode()
        assert ("expected" in body) is bool(words)
        assert words in body

"""Every page for each role, the acts behind the buttons, and how many queries the lists take."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from controlplane.core.models import Role, User
from controlplane.dashboard import arithmetic
from controlplane.deployments.models import Calibration, Deployment, ProbeRun
from controlplane.inventory.models import Gpu, Node, NodeType, Site
from controlplane.jobs.models import Job
from controlplane.planning import curves as drawing
from controlplane.planning.models import CandidateCurves, Plan, Scenario
from controlplane.workloads.models import Workload
from tests.controlplane import fleet_fixture
from tests.controlplane.test_dashboard_figures import point as load_point

pytestmark = pytest.mark.django_db


@pytest.fixture
def sample(db: None) -> dict[str, Any]:
    return fleet_fixture.make_everything()


@pytest.fixture
def sign_in(client: Client) -> Callable[[User], Client]:
    def inner(user: User) -> Client:
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return inner


@pytest.fixture
def admin_page(sample: dict[str, Any], sign_in: Callable[[User], Client]) -> Client:
    return sign_in(sample["user"])


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
        ("/workloads/", "Describe a workload"),
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


def test_memory_page_answers_and_explains(admin_page: Client) -> None:
    fits = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=H200-SXM-141GB&engine=vllm").content.decode()
    assert "Fits with" in fits
    assert "--max-num-seqs" in fits
    too_big = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=A10&engine=vllm").content.decode()
    assert "Does not fit." in too_big
    unknown = admin_page.get("/memory/?model=no/such&gpu=A10&engine=vllm")
    assert unknown.status_code == 200
    assert "no/such" in unknown.content.decode()
    part = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=A10", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part


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
    wrong = admin_page.post(
        f"/deployments/{row.pk}/probe/", {**load, "requests": "x", "next": f"/deployments/{row.pk}/"}
    )
    assert wrong.headers["Location"] == f"/deployments/{row.pk}/"


def test_probe_to_settle_fills_the_form(sample: dict[str, Any], admin_page: Client) -> None:
    body = admin_page.get("/validation/").content.decode()
    links = re.findall(r'href="(/deployments/new/\?[^"]+)"', body)
    assert len(links) == 2
    form = admin_page.get(links[0].replace("&amp;", "&")).content.decode()
    assert 'value="meta-llama/Llama-3.3-70B-Instruct"' in form
    assert re.search(r'<option value="fp8" selected>', form)
    assert re.search(r"<option[^>]* selected>osl-h200-01</option>", form)
    assert re.search(r"<option[^>]* selected>support-chat</option>", form)


def test_calibration_is_set_aside_and_used_again(sample: dict[str, Any], admin_page: Client) -> None:
    row = Calibration.objects.get()
    for active in ("0", "1"):
        answer = admin_page.post(f"/validation/calibrations/{row.pk}/", {"active": active, "next": "/validation/"})
        assert answer.headers["Location"] == "/validation/"
        row.refresh_from_db()
        assert row.active is (active == "1")
    assert "Probes that would settle a verdict" in admin_page.get("/validation/").content.decode()


def test_workload_is_deleted_by_its_button(sample: dict[str, Any], admin_page: Client) -> None:
    assert "/workloads/embed-search/delete/" in admin_page.get("/workloads/embed-search/edit/").content.decode()
    answer = admin_page.post("/workloads/embed-search/delete/", {"next": "/workloads/"})
    assert answer.headers["Location"] == "/workloads/"
    assert not Workload.objects.filter(slug="embed-search").exists()
    assert admin_page.get(f"/plans/{sample['plan'].pk}/").status_code == 200


def undo_path(body: str) -> str:
    found = re.search(r'action="(/undo/[0-9a-f]+/)"', body)
    assert found
    return found.group(1)


def test_a_deleted_workload_comes_back_whole(sample: dict[str, Any], admin_page: Client) -> None:
    record = Workload.objects.get(slug="agent-tools")
    scenario = Scenario.objects.first()
    assert scenario is not None
    scenario.workloads.add(record)
    before = {
        "slo": sorted(record.slo_targets.values_list("pk", "metric", "stat", "limit_ms")),
        "placements": record.placements.count(),
        "deployments": record.deployments.count(),
        "values": Workload.objects.filter(pk=record.pk).values().get(),
    }
    assert before["slo"]
    assert before["placements"]
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    assert not Workload.objects.filter(pk=record.pk).exists()
    answer = admin_page.post(path, follow=True)
    assert "agent-tools is back." in answer.content.decode()
    back = Workload.objects.get(pk=record.pk)
    values = Workload.objects.filter(pk=record.pk).values().get()
    changed = {name for name in values if values[name] != before["values"][name]}
    assert changed <= {"updated_at", "created_at"}
    assert abs(values["created_at"] - before["values"]["created_at"]) <= dt.timedelta(milliseconds=1)
    assert sorted(back.slo_targets.values_list("pk", "metric", "stat", "limit_ms")) == before["slo"]
    assert (back.placements.count(), back.deployments.count()) == (before["placements"], before["deployments"])
    assert scenario.workloads.filter(pk=record.pk).exists()
    again = admin_page.post(path, {"next": "/workloads/"}, follow=True).content.decode()
    assert "can no longer be undone" in again


def test_undo_says_why_it_cannot(sample: dict[str, Any], admin_page: Client) -> None:
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    other = Workload.objects.get(slug="embed-search")
    Workload.objects.filter(pk=other.pk).update(name="agent-tools")
    body = admin_page.post(path, {"next": "/workloads/"}, follow=True).content.decode()
    assert "agent-tools cannot be put back" in body
    assert not Workload.objects.filter(slug="agent-tools").exists()
    Workload.objects.filter(pk=other.pk).update(name="embed-search")
    assert "agent-tools is back." in admin_page.post(path, follow=True).content.decode()


def test_only_the_session_that_deleted_may_undo(sample: dict[str, Any], admin_page: Client) -> None:
    path = undo_path(admin_page.post("/workloads/agent-tools/delete/", follow=True).content.decode())
    stranger = Client()
    stranger.force_login(
        fleet_fixture.make_user("mallory", Role.ADMIN), backend="django.contrib.auth.backends.ModelBackend"
    )
    assert admin_page.get(path).status_code == 405
    stranger.post(path)
    assert not Workload.objects.filter(slug="agent-tools").exists()


def test_setting_a_calibration_aside_is_taken_back(sample: dict[str, Any], admin_page: Client) -> None:
    row = Calibration.objects.get()
    Calibration.objects.update(active=True)
    url = f"/validation/calibrations/{row.pk}/"
    path = undo_path(admin_page.post(url, {"active": "0", "next": "/validation/"}, follow=True).content.decode())
    assert not Calibration.objects.get().active
    admin_page.post(path)
    assert Calibration.objects.get().active


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
    "/deployments/": 5,
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


def test_memory_page_offers_what_would_fit_as_links(admin_page: Client) -> None:
    body = admin_page.get("/memory/?model=meta-llama/Llama-3.1-70B-Instruct&gpu=H100&engine=vllm&tp=2").content.decode()
    assert "Does not fit." in body
    links = [unescape(link) for link in re.findall(r'href="(\?[^"]*max_model_len=\d+[^"]*)"', body)]
    assert links
    assert "Fits with" in admin_page.get(f"/memory/{links[0]}").content.decode()


def test_memory_page_takes_the_device_and_the_requests(admin_page: Client) -> None:
    asked = {
        "model": "Qwen/Qwen3-8B", "gpu": "L40S", "engine": "vllm", "gpu_memory_gib": "40", "used_by_others_gib": "3",
        "share": "0.85", "max_model_len": "8192", "input_tokens": "2000", "output_tokens": "300", "concurrency": "64",
        "demand": "lengths", "spread": "0.5",
    }  # fmt: skip
    body = admin_page.get("/memory/", asked).content.decode()
    assert "Preemption cliff" in body
    assert "figure-kv-live" in body
    assert "Held, never used" in body
    assert "vllm serve Qwen/Qwen3-8B" in body
    busy = admin_page.get("/memory/", {**asked, "used_by_others_gib": "20"}).content.decode()
    assert "20.00 of 40.00 GiB are free at start" in busy
    trace = admin_page.get("/memory/", {**asked, "demand": "lengths_mlperf_llama3_1_8b_datacenter"}).content.decode()
    assert "times as many requests" in trace


def test_memory_page_shows_tensorrt_llm_as_it_is_configured(admin_page: Client) -> None:
    asked = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "engine": "tensorrt_llm", "max_model_len": "8192",
        "kv_cache_max_gpu_gib": "10", "kv_cache_host_gib": "4", "capacity_policy": "MAX_UTILIZATION",
    }  # fmt: skip
    body = admin_page.get("/memory/", asked).content.decode()
    assert "llm-api.yaml" in body
    assert "max_gpu_total_bytes: 10737418240" in body
    assert "capacity_scheduler_policy: MAX_UTILIZATION" in body
    assert "more in host memory, for reuse" in body


def test_memory_page_names_the_field_that_is_wrong(admin_page: Client) -> None:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "engine": "vllm", "max_model_len": "2048"}
    body = admin_page.get("/memory/", {**asked, "input_tokens": "2000", "output_tokens": "300"}).content.decode()
    assert "max_model_len: input and output exceed the context (got 2048)" in body
    without = admin_page.get("/memory/", {**asked, "demand": "lengths"}).content.decode()
    assert "input_tokens: is missing" in without
    version = admin_page.get("/memory/", {**asked, "version": "new"}).content.decode()
    assert "version: not an engine version" in version
    absurd = admin_page.get("/memory/", {**asked, "gpu_memory_gib": "-4"}).content.decode()
    assert "greater than or equal to 0.1" in absurd


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


def test_deleted_plans_and_scenarios_come_back_by_their_toast(sample: dict[str, Any], admin_page: Client) -> None:
    other = sample["other"]
    answer = admin_page.post(f"/plans/{other.pk}/delete/", {"next": "/"}, follow=True)
    body = answer.content.decode()
    assert "H200 only #1 is deleted." in body
    assert admin_page.get(f"/plans/{other.pk}/").status_code == 404
    token = re.search(r"/undo/(\w+)/", body)
    assert token is not None
    back = admin_page.post(f"/undo/{token.group(1)}/", {"next": "/"}, follow=True)
    assert "H200 only #1 is back." in back.content.decode()
    answer = admin_page.post(f"/plans/scenarios/{other.scenario.slug}/delete/", {"next": "/"}, follow=True)
    assert not Scenario.objects.filter(pk=other.scenario_id).exists()
    token = re.search(r"/undo/(\w+)/", answer.content.decode())
    assert token is not None
    admin_page.post(f"/undo/{token.group(1)}/", {"next": "/"})
    assert Scenario.objects.filter(pk=other.scenario_id).exists()
    force = sample["plan"]
    refused = admin_page.post(f"/plans/{force.pk}/delete/", {"next": "/plans/"}, follow=True)
    assert "is in force" in refused.content.decode()


def test_a_job_longer_than_usual_expects_nothing(sample: dict[str, Any], admin_page: Client) -> None:
    user, now = sample["user"], timezone.now()
    fleet_fixture.make_job(user, "trace.parse", Job.State.SUCCEEDED)  # took 17 s
    job = fleet_fixture.make_job(user, "trace.parse", Job.State.RUNNING)
    for seconds, words in ((10, "17 s expected"), (60, "")):
        Job.objects.filter(pk=job.pk).update(started_at=now - dt.timedelta(seconds=seconds))
        body = admin_page.get(f"/jobs/{job.pk}/progress/").content.decode()
        assert ("expected" in body) is bool(words)
        assert words in body

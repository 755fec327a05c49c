"""The admin console: every page of every model loads, changes are checked and logged, roles hold."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from controlplane.core.models import ApiToken, ChangeLog, IdempotencyKey, SiteRole, User
from controlplane.core.tokens import create_token
from controlplane.deployments.models import Deployment, Endpoint
from controlplane.inventory.models import Gpu, GpuModel, Node, NodeType, Site
from controlplane.jobs.models import Job
from controlplane.planning.models import Plan
from controlplane.workloads.models import LlmModel
from tests.controlplane import fleet_fixture
from tests.controlplane.test_workloads import TINY

pytestmark = pytest.mark.django_db

OURS = [model for model in admin.site._registry if model.__module__.startswith("controlplane.")]
INSIDE_OTHERS = {"SiteRole", "SloTarget", "PlacementRow", "VerdictRow", "Validation"}
NOT_LISTED = {*INSIDE_OTHERS, "IdempotencyKey", "JobLog", "JobMessage", "CandidateCurves"}


@pytest.fixture
def console(administrator: User, client: Client) -> Client:
    """Signed in as an administrator, with something of every kind in the database."""
    fleet_fixture.make_everything()
    LlmModel.objects.create(model_id="me/tiny", config=TINY)
    create_token(actor=None, user=administrator, name="t")
    Endpoint.objects.create(deployment=Deployment.objects.first(), url="http://127.0.0.1:1", served_name="m")
    client.force_login(administrator)
    return client


def page(model: Any, name: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=args)


def test_every_model_is_in_the_console_or_left_out_on_purpose() -> None:
    from django.apps import apps

    shown = {model.__name__ for model in OURS}
    ours = {model.__name__ for model in apps.get_models() if model.__module__.startswith("controlplane.")}
    assert ours - shown == NOT_LISTED


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_every_page_loads(console: Client, model: Any) -> None:
    listing = console.get(page(model, "changelist"))
    assert listing.status_code == 200
    assert console.get(page(model, "changelist"), {"q": "a"}).status_code == 200
    add = console.get(page(model, "add"))
    assert add.status_code == (200 if admin.site._registry[model].has_add_permission(listing.wsgi_request) else 403)
    record = model.objects.first()
    assert record is not None, f"the fixture makes no {model.__name__}"
    assert console.get(page(model, "change", record.pk)).status_code == 200


def test_lists_take_a_fixed_number_of_queries(console: Client, django_assert_max_num_queries: Any) -> None:
    for model, limit in ((Node, 16), (Gpu, 14), (Site, 12), (Job, 12), (Plan, 14)):
        with django_assert_max_num_queries(limit):
            console.get(page(model, "changelist"))


def test_node_page_shows_gpus_price_and_what_is_placed(console: Client) -> None:
    plan = Plan.objects.exclude(result=None).first()
    assert plan is not None
    row = plan.placements.exclude(node=None).first()
    assert row is not None
    assert row.node is not None
    Plan.objects.filter(pk=plan.pk).update(state="approved", approved_at="2026-12-01T00:00:00Z")
    text = console.get(page(Node, "change", row.node.pk)).content.decode()
    assert f"{row.workload_name}, replica {row.replica + 1}" in text
    assert "(catalogue)" in text
    assert text.count('name="gpus-') > row.node.node_type.gpus


def test_a_change_is_checked_and_logged(console: Client, administrator: User) -> None:
    site = Site.objects.first()
    assert site is not None
    data = {"name": site.name, "slug": site.slug, "currency": "USD", "usd_per_kwh": "0.33", "pue": "1.2", "notes": "",
            "demand_usd_per_kw_month": "0", "tariff_bands": "[]"}  # fmt: skip
    empty = {"nodes-TOTAL_FORMS": "0", "nodes-INITIAL_FORMS": "0"}
    assert console.post(page(Site, "change", site.pk), {**data, **empty}).status_code == 302
    entry = ChangeLog.objects.filter(model="inventory.Site", action="update").latest("id")
    assert (entry.actor, entry.after["usd_per_kwh"]) == (administrator, "0.33")
    refused = console.post(page(Site, "change", site.pk), {**data, **empty, "pue": "0.5"})
    assert refused.status_code == 200
    assert b"greater than or equal to 1" in refused.content
    site.refresh_from_db()
    assert str(site.pue) == "1.20"


@pytest.mark.parametrize("key", ["abc", "9" * 40, "1e400", "\x01", "-1", "{}", "0", ""])
def test_a_related_record_that_is_none_is_an_error_of_its_field(console: Client, key: str) -> None:
    before = Node.objects.count()
    answer = console.post(page(Node, "add"), {"name": "typed name", "slug": "n-x", "site": key, "node_type": key})
    assert answer.status_code == 200
    errors = answer.context["adminform"].form.errors
    assert {"site", "node_type"} <= set(errors)
    assert b'value="typed name"' in answer.content
    assert Node.objects.count() == before


@pytest.mark.parametrize("typed", ["", "null", "-1", "[1, 2]", "NaN", "{}", '[""]', '["1g.10gb"]'])
def test_slices_of_a_gpu_may_be_emptied_and_wrong_ones_are_named(console: Client, typed: str) -> None:
    gpu = Gpu.objects.filter(mig_enabled=False).first()
    assert gpu is not None
    answer = console.post(
        page(Gpu, "change", gpu.pk),
        {"node": gpu.node_id, "index": gpu.index, "state": "reserved", "mig_slices": typed, "serial": "typed"},
    )
    before = gpu.state
    gpu.refresh_from_db()
    if typed in ("", "null", "{}"):
        assert answer.status_code == 302
        assert (gpu.mig_slices, gpu.state) == ([], "reserved")
    elif typed != '["1g.10gb"]':
        assert answer.status_code == 200
        assert "mig_slices" in answer.context["adminform"].form.errors
        assert b'value="typed"' in answer.content
        assert gpu.state == before


@pytest.mark.parametrize(
    ("model", "field"), [(GpuModel, "memory_gib"), (NodeType, "network_gb_s"), (NodeType, "max_power_w")]
)
def test_a_number_that_no_device_has_is_refused(console: Client, model: Any, field: str) -> None:
    record = model.objects.first()
    setattr(record, field, 1e40)
    with pytest.raises(ValidationError, match="which no device has"):
        record.full_clean()


def test_select_all_of_an_export_works_under_the_policy(console: Client) -> None:
    answer = console.get(page(Site, "export"))
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert b"dashboard/js/admin_export.js" in answer.content


def test_groups_which_no_role_knows_are_not_offered(console: Client) -> None:
    assert b"/admin/auth/group/" not in console.get(reverse("admin:index")).content


def test_a_file_with_a_wrong_row_is_refused_whole(console: Client) -> None:
    before = Site.objects.count()
    file = SimpleUploadedFile("sites.csv", b"name,slug,pue\nGood,good,1.2\nBad,bad,0.2\n")
    answer = console.post(page(Site, "import"), {"import_file": file, "format": "0", "resource": "0"})
    assert answer.status_code == 200
    assert b"greater than or equal to 1" in answer.content
    assert Site.objects.count() == before


def test_export(console: Client) -> None:
    answer = console.post(page(Site, "export"), {"format": "0", "resource": "0", "siteresource_slug": "on"})
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/csv"


def test_roles(client: Client, planner: User, operator: User, viewer: User, site: Site) -> None:
    for user, add, change in ((viewer, 403, 200), (planner, 403, 200), (operator, 200, 200)):
        client.force_login(user)
        assert client.get(page(Site, "add")).status_code == add
        assert client.get(page(Site, "change", site.pk)).status_code == change
        assert client.get(page(User, "changelist")).status_code == 403
    User.objects.filter(pk=operator.pk).update(is_staff=False)
    assert client.get(page(Site, "changelist")).status_code == 302


def test_tokens_are_revoked_not_shown(console: Client) -> None:
    token = ApiToken.objects.get(name="t")
    assert token.digest not in console.get(page(ApiToken, "change", token.pk)).content.decode()
    console.post(page(ApiToken, "changelist"), {"action": "revoke", "_selected_action": token.pk})
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_discover_asks_the_nodes(console: Client, sent: list) -> None:
    node = Node.objects.first()
    assert node is not None
    console.post(page(Node, "changelist"), {"action": "discover", "_selected_action": node.pk})
    assert Job.objects.filter(kind="node.discover", queue=f"node.{node.slug}").exists()


def test_jobs_are_cancelled_and_repeated(console: Client) -> None:
    node = Node.objects.first()
    assert node is not None
    job = Job.objects.create(kind="node.discover", payload={"node": node.slug}, queue="node.x")
    console.post(page(Job, "changelist"), {"action": "cancel", "_selected_action": str(job.pk)})
    job.refresh_from_db()
    assert job.state == "cancelled"
    console.post(page(Job, "changelist"), {"action": "again", "_selected_action": str(job.pk)})
    assert Job.objects.filter(kind="node.discover", state="queued", queue="node.x").exists()


def test_a_user_gets_a_role_at_a_site(console: Client, viewer: User, site: Site) -> None:
    roles = {"site_roles-TOTAL_FORMS": "1", "site_roles-INITIAL_FORMS": "0", "site_roles-0-site": site.pk}
    data = {"username": "viewer", "role": "viewer", "is_active": "on", "site_roles-0-role": "operator", **roles}
    data |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    assert console.post(page(User, "change", viewer.pk), data).status_code == 302
    assert SiteRole.objects.get(user=viewer).role == "operator"
    assert not IdempotencyKey.objects.exists()

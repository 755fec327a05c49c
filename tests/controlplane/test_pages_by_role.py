"""What pages offer and refuse: to a viewer, and to somebody whose role holds at one site only."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from controlplane.core.models import Role, SiteRole, User
from controlplane.deployments.models import Deployment, ProbeRun
from controlplane.inventory.models import Site
from controlplane.workloads.models import Workload
from tests.controlplane import fleet_fixture
from tests.controlplane.test_dashboard_forms import WORKLOAD

pytestmark = pytest.mark.django_db
LOAD = {"concurrency": "4", "input_tokens": "131", "output_tokens": "37", "requests": "20"}


@pytest.fixture
def ready(sample: dict[str, Any]) -> Deployment:
    """A deployment that can be probed."""
    return Deployment.objects.filter(state="ready").select_related("node__site").first() or pytest.fail("none is ready")


@pytest.mark.parametrize("typed", [LOAD, {**LOAD, "requests": "many"}, {}])
def test_a_viewer_is_told_of_the_role_whatever_the_probe_says(
    ready: Deployment, sign_in: Callable[[User], Client], typed: dict[str, str]
) -> None:
    page = sign_in(fleet_fixture.make_user("eve", Role.VIEWER))
    before = ProbeRun.objects.count()
    here = f"/deployments/{ready.pk}/"
    answer = page.post(f"{here}probe/", {**typed, "next": here}, follow=True)
    assert answer.redirect_chain == [(here, 302)]
    body = answer.content.decode()
    assert "takes the role operator. Ask an administrator for it." in body
    assert 'name="requests"' not in body
    assert ProbeRun.objects.count() == before


def test_the_way_from_an_approved_plan_leads_to_its_own_deployments(sample: dict[str, Any], admin_page: Client) -> None:
    plan = sample["plan"]
    own = set(plan.deployments.values_list("pk", flat=True))
    other = Deployment.objects.filter(pk__in=own).first()
    assert other is not None
    other.pk, other.plan, other.name, other.port, other._state.adding = uuid.uuid4(), None, "By hand", None, True
    other.save()
    listed = admin_page.get(f"/deployments/?plan={plan.pk}")
    body = listed.content.decode()
    assert {row.pk for row in listed.context["page"]} == own
    assert f'<option value="{plan.pk}" selected>' in body
    for odd in ("x", "9" * 30, "-1"):
        assert not list(admin_page.get(f"/deployments/?plan={odd}").context["page"])


def test_an_operator_of_one_site_is_offered_its_acts(ready: Deployment, sign_in: Callable[[User], Client]) -> None:
    user = fleet_fixture.make_user("ola", Role.VIEWER)
    SiteRole.objects.create(user=user, site=ready.node.site, role=Role.OPERATOR)
    page = sign_in(user)
    here = f"/deployments/{ready.pk}/"
    body = page.get(here).content.decode()
    assert f'action="{here}probe/"' in body
    assert "/stop/" in body
    assert page.get("/deployments/new/").status_code == 200
    assert "/deployments/new/" in page.get("/deployments/").content.decode()
    assert "/discover/" in page.get(f"/fleet/nodes/{ready.node.slug}/").content.decode()
    assert page.post(f"{here}probe/", {**LOAD, "requests": "many"}).status_code == 422
    assert not ready.probes.filter(state="pending").exists()
    assert page.post(f"{here}probe/", LOAD).status_code == 302
    assert ready.probes.filter(state="pending").count() == 1
    other = Deployment.objects.exclude(node__site=ready.node.site).first()
    if other is not None:
        assert "/probe/" not in page.get(f"/deployments/{other.pk}/").content.decode()


def test_a_planner_of_one_site_describes_its_workloads(
    sample: dict[str, Any], sign_in: Callable[[User], Client]
) -> None:
    user, site = fleet_fixture.make_user("pia", Role.VIEWER), Site.objects.order_by("pk")[0]
    SiteRole.objects.create(user=user, site=site, role=Role.PLANNER)
    page = sign_in(user)
    refused = page.post("/workloads/new/", WORKLOAD)
    assert refused.status_code == 422
    assert "takes the role planner" in refused.content.decode()
    assert "Night summaries" in refused.content.decode()
    assert page.post("/workloads/new/", {**WORKLOAD, "site": site.pk}).status_code == 302
    row = Workload.objects.get(name="Night summaries")
    assert f"/workloads/{row.slug}/edit/" in page.get(f"/workloads/{row.slug}/").content.decode()
    assert page.get(f"/workloads/{row.slug}/edit/").status_code == 200
    assert page.get("/workloads/agent-tools/edit/").status_code == 403


def test_a_change_made_meanwhile_is_not_overwritten_unseen(sample: dict[str, Any], admin_page: Client) -> None:
    admin_page.post("/workloads/new/", WORKLOAD)
    row = Workload.objects.get(name="Night summaries")
    path = f"/workloads/{row.slug}/edit/"
    seen = row.version
    assert f'name="version" value="{seen}"' in admin_page.get(path).content.decode()
    mine = {**WORKLOAD, "slo-INITIAL_FORMS": "1", "slo-0-id": row.slo_targets.get().pk, "rate_per_s": "9"}
    row.notes = "theirs"
    row.save()
    refused = admin_page.post(path, {**mine, "version": seen})
    assert refused.status_code == 422
    body = refused.content.decode()
    assert "Somebody changed this workload since you opened it" in body
    assert 'value="9"' in body
    row.refresh_from_db()
    assert (row.rate_per_s, row.notes) == (2.5, "theirs")
    assert f'name="version" value="{row.version}"' in body
    assert admin_page.post(path, {**mine, "version": row.version}).status_code == 302
    row.refresh_from_db()
    assert row.rate_per_s == 9.0

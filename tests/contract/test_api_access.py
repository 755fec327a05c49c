"""Who may: tokens, sessions, roles, roles at sites."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.api.urls import router
from controlplane.core.models import ApiToken, ChangeLog, Role, User
from controlplane.inventory.models import Node, NodeType, Site
from controlplane.workloads.models import Workload
from tests.contract.conftest import V1
from tests.contract.test_api_errors import faults, problem

pytestmark = pytest.mark.django_db
PASSWORD = "long-enough-9"


def test_a_token_is_shown_once_and_stored_hashed(viewer_api: APIClient, viewer: User) -> None:
    made = viewer_api.post(f"{V1}/tokens/", {"name": "ci", "read_only": True})
    assert made.status_code == 201
    token = made.json()["token"]
    assert made["Cache-Control"] == "no-store"
    row = ApiToken.objects.get(name="ci")
    assert token not in (row.digest, row.prefix)
    assert "token" not in viewer_api.get(made["Location"]).json()
    assert "digest" not in str(viewer_api.get(f"{V1}/tokens/").json())
    assert token not in str(list(ChangeLog.objects.values_list("after", flat=True)))
    fresh = APIClient()
    fresh.credentials(HTTP_AUTHORIZATION=f"Token {token}")
    assert fresh.get(f"{V1}/me/").json()["token"] == "ci"
    assert viewer_api.delete(made["Location"]).status_code == 204
    problem(fresh.get(f"{V1}/me/"), 401, "not-authenticated")


def test_a_replayed_answer_holds_no_token(viewer_api: APIClient) -> None:
    first = viewer_api.post(f"{V1}/tokens/", {"name": "ci"}, HTTP_IDEMPOTENCY_KEY="t")
    again = viewer_api.post(f"{V1}/tokens/", {"name": "ci"}, HTTP_IDEMPOTENCY_KEY="t")
    assert first.json()["token"]
    assert again.json() == {**first.json(), "token": None}


def test_a_first_token_for_name_and_password(client: Any, viewer: User) -> None:
    def ask(**values: Any) -> Any:
        body = {"username": viewer.username, "password": PASSWORD, "name": "laptop", **values}
        return client.post(f"{V1}/tokens/provision/", body, content_type="application/json")

    assert ask(networks=["127.0.0.0/8"]).status_code == 201
    assert "already exists" in problem(ask(), 400, "validation")["detail"]
    body = problem(ask(password="guessed-wrong", name="b"), 401, "not-authenticated")
    assert "guessed-wrong" not in str(body)
    problem(ask(networks=["everywhere"], name="c"), 400, "validation")
    problem(ask(expires_at="2001-01-01T00:00:00Z", name="d"), 400, "validation")


def test_guessing_passwords_locks_the_account(client: Any, viewer: User, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3
    body = {"username": viewer.username, "name": "x"}
    for password in ("a", "b", "c"):
        client.post(f"{V1}/tokens/provision/", {**body, "password": password}, content_type="application/json")
    locked = client.post(f"{V1}/tokens/provision/", {**body, "password": PASSWORD}, content_type="application/json")
    assert "locked" in problem(locked, 429, "throttled")["detail"]
    assert locked["Retry-After"] == "900"


def test_a_read_only_token_reads_and_asks_the_planner(operator: User, client_of: Callable[..., APIClient]) -> None:
    api = client_of(operator, read_only=True)
    assert api.get(f"{V1}/sites/").status_code == 200
    assert api.post(f"{V1}/estimate/", {"id": 1}).status_code == 200
    assert "read-only" in problem(api.post(f"{V1}/sites/", {"name": "x"}), 403, "permission-denied")["detail"]
    problem(api.post(f"{V1}/tokens/", {"name": "wider"}), 403, "permission-denied")


def test_a_token_ends_when_it_should(viewer: User, client_of: Callable[..., APIClient]) -> None:
    api = client_of(viewer, expires_at=timezone.now() + dt.timedelta(hours=1))
    assert api.get(f"{V1}/me/").status_code == 200
    ApiToken.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    assert "expired" in problem(api.get(f"{V1}/me/"), 401, "not-authenticated")["detail"]
    ApiToken.objects.update(expires_at=None)
    viewer.is_active = False
    viewer.save()
    problem(api.get(f"{V1}/me/"), 401, "not-authenticated")


def test_a_token_is_tied_to_its_networks(viewer: User, client_of: Callable[..., APIClient]) -> None:
    api = client_of(viewer, networks=("10.0.0.0/8",))
    problem(api.get(f"{V1}/me/"), 401, "not-authenticated")
    problem(api.get(f"{V1}/me/", HTTP_X_FORWARDED_FOR="10.1.2.3"), 401, "not-authenticated")
    assert api.get(f"{V1}/me/", REMOTE_ADDR="10.1.2.3").status_code == 200


def test_a_limited_token_makes_only_tokens_as_limited(viewer: User, client_of: Callable[..., APIClient]) -> None:
    ends = timezone.now() + dt.timedelta(hours=1)
    api = client_of(viewer, expires_at=ends, networks=("127.0.0.0/8",))
    found = faults(problem(api.post(f"{V1}/tokens/", {"name": "a"}), 400, "validation"))
    assert "expires_at" in found
    wide = {"name": "a", "expires_at": ends.isoformat(), "networks": ["0.0.0.0/0"]}
    assert "networks" in faults(problem(api.post(f"{V1}/tokens/", wide), 400, "validation"))
    narrow = {**wide, "networks": ["127.0.0.1"]}
    assert api.post(f"{V1}/tokens/", narrow).status_code == 201


def test_tokens_of_others_are_for_administrators(viewer_api: APIClient, admin_api: APIClient, viewer: User) -> None:
    mine = ApiToken.objects.get(user=viewer)
    theirs = ApiToken.objects.exclude(user=viewer).get()
    assert viewer_api.get(f"{V1}/tokens/").json()["count"] == 1
    problem(viewer_api.get(f"{V1}/tokens/{theirs.pk}/"), 404, "not-found")
    problem(viewer_api.delete(f"{V1}/tokens/{theirs.pk}/"), 404, "not-found")
    problem(viewer_api.post(f"{V1}/tokens/", {"name": "x", "user": "root"}), 403, "permission-denied")
    assert admin_api.get(f"{V1}/tokens/").json()["count"] == 2
    assert admin_api.delete(f"{V1}/tokens/{mine.pk}/").status_code == 204


def test_a_browser_session_needs_the_csrf_token(operator: User) -> None:
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    assert browser.get(f"{V1}/sites/").status_code == 200
    problem(browser.post(f"{V1}/sites/", {"name": "x"}), 403, "permission-denied")
    secret = "a" * 32
    browser.cookies["csrftoken"] = secret
    assert browser.post(f"{V1}/sites/", {"name": "x"}, HTTP_X_CSRFTOKEN=secret).status_code == 201


@pytest.mark.parametrize(
    ("path", "body", "least"),
    [
        ("sites/", {"name": "Oslo"}, Role.OPERATOR),
        ("sites/bulk/", [{"name": "Oslo"}], Role.OPERATOR),
        ("gpu-models/", {"name": "B300"}, Role.OPERATOR),
        ("workloads/", {"name": "W", "model_ref": "Qwen/Qwen3-8B", "rate_per_s": 1}, Role.PLANNER),
        ("scenarios/", {"name": "S"}, Role.PLANNER),
        ("traces/", {"catalogue_name": "azure_2023_code"}, Role.PLANNER),
        ("users/", {"username": "eve"}, Role.ADMIN),
    ],
)
def test_each_act_takes_its_role(
    make_user: Callable[..., User], client_of: Callable[..., APIClient], path: str, body: Any, least: str
) -> None:
    ranks = [Role.VIEWER, Role.PLANNER, Role.OPERATOR, Role.ADMIN]
    for role in ranks:
        allowed = ranks.index(role) >= ranks.index(Role(least))
        response = client_of(make_user(role)).post(f"{V1}/{path}", body, format="json")
        assert response.status_code == (201 if allowed else 403), (role, response.content)
        if allowed:
            break


def test_an_operator_of_one_site_acts_there_alone(
    site_operator: User, client_of: Callable[..., APIClient], make_node: Any, node_type: NodeType
) -> None:
    api = client_of(site_operator)
    elsewhere = Site.objects.create(name="Elsewhere", slug="elsewhere")
    here, there = make_node("here"), make_node("there", site=elsewhere)
    made = api.post(f"{V1}/nodes/", {"name": "new", "site": "test-site", "node_type": "8xh100"})
    assert made.status_code == 201
    problem(
        api.post(f"{V1}/nodes/", {"name": "n", "site": "elsewhere", "node_type": "8xh100"}), 403, "permission-denied"
    )
    assert api.patch(f"{V1}/nodes/{here.pk}/", {"notes": "x", "version": 1}).status_code == 200
    problem(api.patch(f"{V1}/nodes/{there.pk}/", {"notes": "x", "version": 1}), 403, "permission-denied")
    stolen = api.patch(f"{V1}/nodes/{there.pk}/", {"site": "test-site", "version": 1})
    problem(stolen, 403, "permission-denied")
    sent_away = api.patch(f"{V1}/nodes/{here.pk}/", {"site": "elsewhere", "version": 2})
    problem(sent_away, 403, "permission-denied")
    mixed = [{"id": here.pk, "version": 2, "notes": "y"}, {"id": there.pk, "version": 1, "notes": "y"}]
    problem(api.patch(f"{V1}/nodes/bulk/", mixed), 403, "permission-denied")
    assert Node.objects.get(pk=here.pk).notes == "x"
    problem(api.delete(f"{V1}/nodes/{there.pk}/", HTTP_IF_MATCH="*"), 403, "permission-denied")
    problem(api.post(f"{V1}/gpu-models/", {"name": "B300"}), 403, "permission-denied")
    table = b"name,site,node_type\nx,elsewhere,8xh100\n"
    refused = api.generic("POST", f"{V1}/nodes/import/", table, content_type="text/csv")
    problem(refused, 403, "permission-denied")


def test_a_planner_of_one_site_keeps_to_it(
    make_user: Callable[..., User], client_of: Callable[..., APIClient], site: Site, workload: Workload
) -> None:
    user = make_user(Role.VIEWER, "local-planner")
    user.site_roles.create(site=site, role=Role.PLANNER)
    api = client_of(user)
    body = {"name": "Mine", "model_ref": "Qwen/Qwen3-8B", "rate_per_s": 1, "site": site.slug}
    made = api.post(f"{V1}/workloads/", body)
    assert made.status_code == 201
    taken = api.patch(f"{V1}/workloads/{workload.pk}/", {"site": site.slug, "version": 1})
    problem(taken, 403, "permission-denied")


def test_users_are_for_administrators(admin_api: APIClient, viewer_api: APIClient, viewer: User) -> None:
    problem(viewer_api.get(f"{V1}/users/"), 403, "permission-denied")
    problem(viewer_api.get(f"{V1}/site-roles/"), 403, "permission-denied")
    weak = admin_api.post(f"{V1}/users/", {"username": "eve", "password": "12345"})
    assert "password" in faults(problem(weak, 400, "validation"))
    made = admin_api.post(f"{V1}/users/", {"username": "eve", "password": "a-very-long-one-7", "role": "planner"})
    assert made.status_code == 201
    assert "password" not in made.json()
    assert User.objects.get(username="eve").check_password("a-very-long-one-7")
    changed = admin_api.patch(made["Location"], {"role": "operator"})
    assert changed.json()["role"] == "operator"
    given = admin_api.post(f"{V1}/site-roles/", {"user": "eve", "site": "nowhere", "role": "admin"})
    problem(given, 400, "validation")
    assert admin_api.delete(made["Location"]).status_code == 204
    assert "password" not in str(list(ChangeLog.objects.values_list("after", flat=True)))


def test_the_last_administrator_stays(make_user: Callable[..., User], client_of: Callable[..., APIClient]) -> None:
    chief = make_user(Role.ADMIN, "chief")
    api = client_of(chief)
    problem(api.patch(f"{V1}/users/{chief.pk}/", {"role": "viewer"}), 400, "validation")
    problem(api.patch(f"{V1}/users/{chief.pk}/", {"is_active": False}), 400, "validation")
    problem(api.delete(f"{V1}/users/{chief.pk}/"), 409, "conflict")
    assert api.get(f"{V1}/me/").json()["role"] == "admin"


def test_changes_of_accounts_are_shown_to_administrators(
    admin_api: APIClient, operator_api: APIClient, site: Site
) -> None:
    operator_api.patch(f"{V1}/sites/{site.pk}/", {"notes": "x", "version": 1}, HTTP_X_REQUEST_ID="trace-me")
    seen = operator_api.get(f"{V1}/changes/").json()["results"]
    assert [(row["model"], row["actor"], row["before"], row["after"]) for row in seen] == [
        ("inventory.Site", "operator", {"notes": ""}, {"notes": "x"})
    ]
    assert operator_api.get(f"{V1}/changes/?request_id=trace-me").json()["count"] == 1
    assert {row["model"] for row in admin_api.get(f"{V1}/changes/").json()["results"]} >= {"core.ApiToken"}


def test_a_token_from_the_command_line(viewer: User, capsys: pytest.CaptureFixture) -> None:
    call_command("token", viewer.username, "--name", "cron", "--read-only", "--days", "7", "--network", "127.0.0.1")
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {capsys.readouterr().out.strip()}")
    assert client.get(f"{V1}/me/").json()["read_only"] is True
    for arguments in (
        ("nobody", "--name", "x"),
        (viewer.username, "--name", "cron"),
        (viewer.username, "--name", "y", "--days", "0"),
    ):
        with pytest.raises(CommandError):
            call_command("token", *arguments)


def test_every_path_says_what_it_takes(admin_api: APIClient) -> None:
    for prefix, _, _ in router.registry:
        for path in (f"{V1}/{prefix}/", f"{V1}/{prefix}/1/"):
            response = admin_api.options(path)
            assert response.status_code in (200, 404), (path, response.content)

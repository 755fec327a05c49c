"""Settings from the environment, tokens, roles, the host lease, the scheduler, headers."""

from __future__ import annotations

import datetime as dt
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from controlplane import env
from controlplane.core import access, hostlease, scheduling, tokens
from controlplane.core.models import ApiToken, ChangeLog, IdempotencyKey, Role, SiteRole, User
from controlplane.inventory.models import Site


def test_defaults_are_embedded(tmp_path: Path) -> None:
    found = env.load({"TONNAGE_DATA_DIR": str(tmp_path)})
    assert (found.port, found.debug, found.embedded_database, found.embedded_broker) == (8000, False, True, True)
    assert env.database(found)["NAME"] == str(tmp_path / "tonnage.sqlite3")
    assert env.database(found)["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_database_url() -> None:
    found = env.load(
        {"TONNAGE_DATABASE_URL": "postgresql://ada:p%40ss@db:5433/tons", "TONNAGE_BROKER_URL": "redis://r"}
    )
    database = env.database(found)
    assert (database["USER"], database["PASSWORD"], database["HOST"], database["PORT"], database["NAME"]) == (
        "ada", "p@ss", "db", "5433", "tons",
    )  # fmt: skip
    assert not found.embedded_database
    assert not found.embedded_broker


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"TONNAGE_PORT": "0"}, "TONNAGE_PORT"),
        ({"TONNAGE_PORT": "http"}, "TONNAGE_PORT"),
        ({"TONNAGE_DEBUG": "maybe"}, "TONNAGE_DEBUG"),
        ({"TONNAGE_ENGINE_PORTS": "80-90"}, "TONNAGE_ENGINE_PORTS"),
    ],
)
def test_a_wrong_variable_is_named(values: dict, words: str) -> None:
    with pytest.raises(env.EnvError, match=words):
        env.load(values)


def test_unknown_database_scheme() -> None:
    with pytest.raises(env.EnvError, match="mysql"):
        env.database(env.load({"TONNAGE_DATABASE_URL": "mysql://x/y"}))


def test_secret_key_is_made_once_and_private(tmp_path: Path) -> None:
    found = env.load({"TONNAGE_DATA_DIR": str(tmp_path / "new")})
    first = env.secret_key(found)
    assert len(first) > 60
    assert env.secret_key(found) == first
    assert stat.S_IMODE((tmp_path / "new" / "secret_key").stat().st_mode) == 0o600
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["secret_key"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(env.EnvError, match="cannot be used"):
        env.secret_key(env.load({"TONNAGE_DATA_DIR": str(tmp_path / "file")}))


@pytest.mark.django_db
class TestTokens:
    """API tokens."""

    def test_shown_once_and_stored_as_a_digest(self, operator: User) -> None:
        row, token = tokens.create_token(actor=operator, user=operator, name="ci")
        assert token.startswith(f"tng_{row.prefix}_")
        assert token not in json.dumps(list(ApiToken.objects.values()), default=str)
        assert tokens.check_token(token, address="10.0.0.1") == row
        row.refresh_from_db()
        assert row.last_used_at is not None
        assert "digest" not in json.dumps(list(ChangeLog.objects.values("after")))

    @pytest.mark.parametrize("token", ["", "x", "tng_a", "tng_ab_cd", "tng_" + "0" * 8 + "_" + "x" * 40, "é" * 50])
    def test_strangers(self, db: None, token: str) -> None:
        with pytest.raises(tokens.TokenError, match="unknown"):
            tokens.check_token(token, address=None)

    def test_expired_revoked_disabled_elsewhere(self, operator: User) -> None:
        row, token = tokens.create_token(
            actor=operator, user=operator, name="a", networks=("10.0.0.0/8",),
            expires_at=timezone.now() + dt.timedelta(days=1),
        )  # fmt: skip
        for address in ("192.168.0.1", None, "nonsense", "::1"):
            with pytest.raises(tokens.TokenError, match="may not be used from"):
                tokens.check_token(token, address=address)
        assert tokens.check_token(token, address="10.9.9.9").pk == row.pk
        ApiToken.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
        with pytest.raises(tokens.TokenError, match="expired"):
            tokens.check_token(token, address="10.9.9.9")
        ApiToken.objects.update(expires_at=None)
        User.objects.filter(pk=operator.pk).update(is_active=False)
        with pytest.raises(tokens.TokenError, match="disabled"):
            tokens.check_token(token, address="10.9.9.9")
        User.objects.filter(pk=operator.pk).update(is_active=True)
        tokens.revoke_token(actor=operator, token=row)
        with pytest.raises(tokens.TokenError, match="revoked"):
            tokens.check_token(token, address="10.9.9.9")

    def test_rules(self, operator: User, viewer: User, administrator: User) -> None:
        past = timezone.now() - dt.timedelta(days=1)
        with pytest.raises(ValidationError, match="past"):
            tokens.create_token(actor=operator, user=operator, name="a", expires_at=past)
        with pytest.raises(ValidationError, match="not a network"):
            tokens.create_token(actor=operator, user=operator, name="a", networks=("10.0.0.0/99",))
        with pytest.raises(PermissionDenied):
            tokens.create_token(actor=operator, user=viewer, name="a")
        row, _ = tokens.create_token(actor=administrator, user=viewer, name="a")
        with pytest.raises(ValidationError, match="already exists"):
            tokens.create_token(actor=viewer, user=viewer, name="a")
        with pytest.raises(PermissionDenied, match="owner"):
            tokens.revoke_token(actor=operator, token=row)


@pytest.mark.django_db
def test_roles(viewer: User, operator: User, administrator: User, site: Site) -> None:
    assert access.role_at(None) == Role.ADMIN, "the system itself"
    assert access.has_role(operator, Role.PLANNER)
    assert not access.has_role(viewer, Role.PLANNER)
    assert access.has_role(administrator, Role.ADMIN)
    SiteRole.objects.create(user=viewer, site=site, role=Role.OPERATOR)
    assert access.has_role(viewer, Role.OPERATOR, site)
    assert not access.has_role(viewer, Role.OPERATOR)
    SiteRole.objects.create(user=operator, site=site, role=Role.VIEWER)
    assert access.has_role(operator, Role.OPERATOR, site), "a site role only ever raises"
    with pytest.raises(PermissionDenied, match=r"Your role is viewer; to change workloads.*takes the role planner"):
        access.require(viewer, Role.PLANNER)
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=viewer.pk).update(role="king")


def test_another_host_is_refused_while_its_lease_is_fresh(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Embedded:
        embedded_database = True

    from django.conf import settings

    monkeypatch.setattr(settings, "ENV", Embedded)
    hostlease.renew()
    hostlease.check()
    path = data_dir / "host.json"
    path.write_text(json.dumps({"host": "other/00", "at": time.time()}))
    with pytest.raises(hostlease.HostError, match="in use by the host other, and SQLite cannot be shared"):
        hostlease.renew()
    path.write_text(json.dumps({"host": "other/00", "at": time.time() - 60}))
    hostlease.renew()
    path.write_text("{broken")
    hostlease.check()
    Embedded.embedded_database = False
    path.write_text(json.dumps({"host": "other/00", "at": time.time()}))
    hostlease.check()


@pytest.mark.django_db(transaction=True)
def test_tick_sweeps_and_tidies(operator: User) -> None:
    old = IdempotencyKey.objects.create(user=operator, key="a", method="POST", path="/", request_digest="d")
    IdempotencyKey.objects.create(user=operator, key="b", method="POST", path="/", request_digest="d")
    IdempotencyKey.objects.filter(pk=old.pk).update(created_at=timezone.now() - dt.timedelta(days=2))
    scheduling.tick()
    assert IdempotencyKey.objects.count() == 2
    scheduling.tick(tidy=True)
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["b"]


@pytest.mark.django_db
def test_headers(client: Client, settings: Any) -> None:
    answer = client.get("/healthz", headers={"X-Request-ID": "abc-1"})
    assert (answer.status_code, answer["X-Request-ID"]) == (200, "abc-1")
    policy = answer["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'self'" in policy
    assert answer["X-Frame-Options"] == "DENY"
    assert client.get("/healthz", headers={"X-Request-ID": "a b\r\nX: y"})["X-Request-ID"] != "a b\r\nX: y"


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_static_files_come_from_the_wheels() -> None:
    from django.contrib.staticfiles import finders

    assert finders.find("plotly/plotly.min.js")
    assert finders.find("django_htmx/htmx-2.min.js")

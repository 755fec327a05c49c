"""Clients with real tokens; users, fleet and recorded messages as in the tests of the control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from rest_framework.test import APIClient

from controlplane.core.models import Role, SiteRole, User
from controlplane.core.tokens import create_token
from controlplane.inventory.models import Site
from tests.controlplane import fleet_fixture
from tests.controlplane.conftest import (  # noqa: F401 - fixtures
    _quick_passwords,
    administrator,
    h100,
    local_node,
    make_node,
    make_user,
    node,
    node_type,
    operator,
    planner,
    sent,
    site,
    viewer,
    workload,
)

V1 = "/api/v1"


@pytest.fixture(scope="module")
def whole_fleet(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """The sample fleet with plans, deployments, probes, jobs, once for a module; tests undo what they change."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield fleet_fixture.make_everything()
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _no_throttle_memory() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def client_of() -> Callable[..., APIClient]:
    """A client that sends a fresh token of a user."""

    def make(user: User, **token: Any) -> APIClient:
        name = f"test {user.api_tokens.count()}"
        _, secret = create_token(actor=user, user=user, name=name, **token)
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
        return client

    return make


@pytest.fixture
def admin_api(administrator: User, client_of: Callable[..., APIClient]) -> APIClient:  # noqa: F811
    """An administrator's client."""
    return client_of(administrator)


@pytest.fixture
def operator_api(operator: User, client_of: Callable[..., APIClient]) -> APIClient:  # noqa: F811
    """An operator's client."""
    return client_of(operator)


@pytest.fixture
def planner_api(planner: User, client_of: Callable[..., APIClient]) -> APIClient:  # noqa: F811
    """A planner's client."""
    return client_of(planner)


@pytest.fixture
def viewer_api(viewer: User, client_of: Callable[..., APIClient]) -> APIClient:  # noqa: F811
    """A viewer's client."""
    return client_of(viewer)


@pytest.fixture
def site_operator(make_user: Callable[..., User], site: Site) -> User:  # noqa: F811
    """A viewer who is operator at the test site alone."""
    user = make_user(Role.VIEWER, "local-operator")
    SiteRole.objects.create(user=user, site=site, role=Role.OPERATOR)
    return user

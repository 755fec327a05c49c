"""Every model has its endpoint, filter and admin; lists take few queries; answers are as the OpenAPI document says."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.apps import apps
from django.conf import settings as django_settings
from django.contrib import admin
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from controlplane.api.serializers.catalogue import EstimateRequestSerializer, LoadSerializer
from controlplane.api.urls import router
from controlplane.api.views.base import ReadViewSet
from planner import estimate_request
from tests.contract.conftest import V1

DOCUMENT = Path(django_settings.BASE_DIR) / "docs" / "openapi.yaml"
INTERNAL = {
    "core.IdempotencyKey": "answers kept for repeated requests",
    "jobs.JobMessage": "which messages of workers were applied",
    "planning.CandidateCurves": "part of a plan's snapshot, at /plans/{id}/curves/",
    "jobs.JobLog": "lines of a job, at /jobs/{id}/log/ and on the job's admin page",
}
"""Models without an endpoint of their own, and why."""


def models() -> list[Any]:
    """Every model of our apps."""
    configs = [config for config in apps.get_app_configs() if config.name.startswith("controlplane.")]
    return [model for config in configs for model in config.get_models() if model._meta.label not in INTERNAL]


@pytest.mark.parametrize("model", models(), ids=lambda model: model._meta.label)
def test_a_model_has_endpoint_filter_and_admin(model: Any) -> None:
    viewsets = [viewset for _, viewset, _ in router.registry if viewset.queryset.model is model]
    assert viewsets, f"{model._meta.label} has no endpoint: add a view set, or say in INTERNAL why not"
    viewset = viewsets[0]
    assert issubclass(viewset, ReadViewSet)
    assert len(viewset.filterset_class.base_filters) > 1
    assert viewset.search_fields
    assert viewset.ordering_fields
    assert len(viewset.serializer_class.Meta.brief_fields) > 1
    assert set(viewset.serializer_class.Meta.brief_fields) <= set(viewset.serializer_class.Meta.fields)
    inlined = {inline.model for site_admin in admin.site._registry.values() for inline in site_admin.inlines}
    assert admin.site.is_registered(model) or model in inlined, f"{model._meta.label} has no admin"


@pytest.mark.parametrize("model", models(), ids=lambda model: model._meta.label)
def test_an_endpoint_shows_every_column(model: Any) -> None:
    """A column that is added must be shown, or left out here on purpose."""
    left_out = {
        "core.User": {"password", "is_superuser"},
        "core.ApiToken": {"digest"},
        "workloads.Trace": {"packed"},
        "planning.Plan": {"request", "result", "model_digests", "discarded_at"},  # the snapshot and its seal
        "planning.Scenario": {"discarded_at"},
        "jobs.Job": {"sent_at", "observed_sequence", "log_lines"},
        "workloads.SloTarget": set(),
    }
    viewset = next(viewset for _, viewset, _ in router.registry if viewset.queryset.model is model)
    columns = {field.name for field in model._meta.get_fields() if field.concrete and not field.many_to_many}
    missing = columns - set(viewset.serializer_class.Meta.fields) - left_out.get(model._meta.label, set())
    assert not missing


@pytest.fixture
def api(whole_fleet: dict[str, Any], db: None, client_of: Callable[..., APIClient]) -> APIClient:
    """Its administrator."""
    return client_of(whole_fleet["user"])


@cache
def document() -> dict[str, Any]:
    """The committed OpenAPI document."""
    return yaml.load(DOCUMENT.read_text(), Loader=yaml.CSafeLoader)


def as_json_schema(node: Any) -> Any:
    """OpenAPI 3.0 as JSON Schema: ``nullable`` becomes a type."""
    if isinstance(node, list):
        return [as_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: as_json_schema(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [inner, {"type": "null"}]} if node.get("nullable") is True else inner


MOST_QUERIES = 8
"""Of any list: token, user, count, rows, and a few for related rows."""


@pytest.mark.parametrize("prefix", [prefix for prefix, _, _ in router.registry])
def test_a_list_takes_few_queries_and_is_as_documented(api: APIClient, prefix: str) -> None:
    def read(query: str) -> tuple[int, dict[str, Any]]:
        with CaptureQueriesContext(connection) as seen:
            response = api.get(f"{V1}/{prefix}/?{query}")
        assert response.status_code == 200, response.content
        return len(seen), response.json()

    few, _ = read("limit=1")
    many, body = read("limit=500")
    assert many <= few <= MOST_QUERIES, f"{few} queries for one row, {many} for {len(body['results'])}"
    check(body, f"{V1}/{prefix}/")
    if body["results"]:
        detail = api.get(f"{V1}/{prefix}/{body['results'][0]['id']}/").json()
        check(detail, f"{V1}/{prefix}/{{id}}/")
        assert set(router_fields(prefix)) == set(detail)


def check(body: Any, path: str) -> None:
    """Hold an answer against the document."""
    described = document()
    content = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    schema = as_json_schema({**content["schema"], "components": described["components"]})
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(body)


def router_fields(prefix: str) -> list[str]:
    """Fields that a record shows."""
    viewset = next(viewset for known, viewset, _ in router.registry if known == prefix)
    fields = viewset.serializer_class().fields
    return [name for name in viewset.serializer_class.Meta.fields if not fields[name].write_only]


@pytest.mark.embedded  # integer bounds follow the database, the committed document those of SQLite
def test_the_committed_document_is_current() -> None:
    fresh = io.StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=fresh)
    assert fresh.getvalue() == DOCUMENT.read_text(), "docs/openapi.yaml is out of date: run make schema and commit it"


def test_the_document_names_every_field_of_an_estimate() -> None:
    assert set(EstimateRequestSerializer().fields) == set(estimate_request.KNOWN_FIELDS)
    assert set(LoadSerializer().fields) == set(estimate_request.LOAD_FIELDS)


def test_the_document_is_served_to_anybody(client: Any, db: None) -> None:
    response = client.get(f"{V1}/schema/")
    assert response.status_code == 200
    assert b"openapi: 3" in response.content


def test_every_operation_says_what_may_go_wrong() -> None:
    described = document()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert "default" in operation["responses"], (method, path)
            assert operation.get("description"), (method, path)


def test_the_root_lists_what_answers(viewer_api: APIClient) -> None:
    for name, path in viewer_api.get(f"{V1}/").json().items():
        expected = {"tokens/provision": 405, "estimate": 405, "memory": 405, "users": 403, "site-roles": 403}
        assert viewer_api.get(path).status_code == expected.get(name, 200), name

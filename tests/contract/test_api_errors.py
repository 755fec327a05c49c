"""Every kind of refusal: one form, the right status, field, value and remedy."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError
from rest_framework.test import APIClient

from controlplane.core.models import User
from controlplane.inventory.models import Node, Site
from tests.contract.conftest import V1

pytestmark = pytest.mark.django_db
KEYS = {"type", "title", "status", "detail", "instance", "request_id", "errors"}


def problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    """The problem of a response, checked for its form."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert set(body) == KEYS
    assert body["status"] == status
    assert body["type"] == f"urn:tonnage:problem:{kind}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response["X-Request-ID"]
    for fault in body["errors"]:
        assert {"field", "value", "message", "remedy"} <= set(fault)
        assert fault["message"]
        assert fault["remedy"]
    return body


def faults(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Faults by field."""
    return {fault["field"]: fault for fault in body["errors"]}


def test_unknown_caller_is_asked_for_a_token(client: Any) -> None:
    response = client.get(f"{V1}/sites/")
    problem(response, 401, "not-authenticated")
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "header",
    ["Bearer nonsense", "Bearer tng_00000000_x", "Bearer", "Bearer a b", "Token \xff", "Bearer tng_ab_" + "x" * 5000],
)
def test_a_bad_token_is_refused(client: Any, header: str) -> None:
    problem(client.get(f"{V1}/sites/", HTTP_AUTHORIZATION=header), 401, "not-authenticated")


def test_every_fault_of_a_body_is_named(operator_api: APIClient, site: Site) -> None:
    body = problem(
        operator_api.post(
            f"{V1}/sites/", {"name": site.name, "usd_per_kwh": "-1", "pue": "often", "colour": "red", "slug": ""}
        ),
        400,
        "validation",
    )
    found = faults(body)
    assert set(found) == {"name", "slug", "usd_per_kwh", "pue", "colour"}
    assert found["usd_per_kwh"]["value"] == "-1"
    assert "known: name" in found["colour"]["message"]


def test_an_unknown_record_and_an_unknown_choice_name_what_exists(operator_api: APIClient, node: Node) -> None:
    body = problem(
        operator_api.post(f"{V1}/nodes/", {"name": "n2", "site": "nowhere", "node_type": "8xh100", "state": "melted"}),
        400,
        "validation",
    )
    found = faults(body)
    assert "known: test-site" in found["site"]["message"]
    assert "active, planned, maintenance, retired" in found["state"]["message"]


def test_a_rule_over_several_fields_comes_from_the_model(operator_api: APIClient, h100: Any) -> None:
    body = problem(
        operator_api.post(
            f"{V1}/node-types/", {"name": "odd", "gpu_model": "H100-SXM5-80GB", "gpus": 8, "nvlink_domain": 3}
        ),
        400,
        "validation",
    )
    assert faults(body)["nvlink_domain"]["value"] == 3


@pytest.mark.parametrize("path", ["/api/v1/nothing/", "/api/v2/", "/api/v1/sites/12345/", "/api/v1/sites/x/y/z"])
def test_what_is_not_there(viewer_api: APIClient, path: str) -> None:
    problem(viewer_api.get(path), 404, "not-found")


def test_a_method_that_does_not_apply(operator_api: APIClient) -> None:
    response = operator_api.delete(f"{V1}/validations/")
    problem(response, 405, "method-not-allowed")
    assert "GET" in response["Allow"]


def test_a_role_that_does_not_suffice(viewer_api: APIClient) -> None:
    body = problem(viewer_api.post(f"{V1}/sites/", {"name": "Oslo"}), 403, "permission-denied")
    assert "operator" in body["detail"]


def test_a_record_in_use_is_a_conflict(operator_api: APIClient, node: Node) -> None:
    body = problem(operator_api.delete(f"{V1}/sites/{node.site_id}/", HTTP_IF_MATCH="*"), 409, "conflict")
    assert "node n1" in body["detail"]


def test_a_version_is_needed_and_must_be_the_current_one(operator_api: APIClient, site: Site) -> None:
    path = f"{V1}/sites/{site.pk}/"
    body = problem(operator_api.patch(path, {"notes": "x"}), 428, "precondition-required")
    assert "If-Match" in body["detail"]
    response = operator_api.patch(path, {"notes": "x"}, HTTP_IF_MATCH='"7"')
    assert faults(problem(response, 412, "stale-version"))["version"]["value"] == 7
    problem(operator_api.delete(path), 428, "precondition-required")
    problem(operator_api.put(path, {"name": "x", "version": 7}), 412, "stale-version")
    problem(operator_api.patch(path, {}, HTTP_IF_MATCH="three"), 400, "malformed")
    problem(operator_api.patch(path, {"version": "1"}), 400, "malformed")
    site.refresh_from_db()
    assert (site.version, site.notes) == (1, "")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\xff\xfe",
        b'{"name": NaN}',
        b'{"name": Infinity}',
        b'{"usd_per_kwh": 1e999}',
        b'{"usd_per_kwh": ' + b"9" * 5000 + b"}",
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        b'{"name": "a", "name": "b"}',
        b"[" * 100_000,
        b"[" * 40 + b"]" * 40,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
@pytest.mark.parametrize("path", ["sites/", "estimate/", "workloads/bulk/"])
def test_hostile_json_is_malformed(operator_api: APIClient, body: bytes, path: str) -> None:
    response = operator_api.generic("POST", f"{V1}/{path}", body, content_type="application/json")
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("body", [[], "text", 5, None, True, [1]])
def test_a_body_of_the_wrong_kind(operator_api: APIClient, body: Any) -> None:
    for path in (
        "sites/",
        "nodes/bulk/",
        "workloads/",
        "plans/",
        "probes/",
        "memory/",
        "tokens/",
        "models/",
        "traces/",
    ):
        problem(operator_api.post(f"{V1}/{path}", body, format="json"), 400, "validation")


def test_a_body_that_is_too_large(operator_api: APIClient, settings: Any) -> None:
    large = b'{"name": "' + b"x" * (5 * 2**20) + b'"}'
    problem(operator_api.generic("POST", f"{V1}/sites/", large, content_type="application/json"), 413, "too-large")
    lied = operator_api.generic(
        "POST", f"{V1}/sites/", b"{}", content_type="application/json", CONTENT_LENGTH=str(2**30)
    )
    problem(lied, 413, "too-large")


def test_a_content_type_that_is_not_read_here(operator_api: APIClient) -> None:
    response = operator_api.generic("POST", f"{V1}/sites/", b"name=x", content_type="application/x-www-form-urlencoded")
    problem(response, 415, "unsupported-media-type")


def test_broken_multipart(operator_api: APIClient) -> None:
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        response = operator_api.generic("POST", f"{V1}/traces/", b"--x\r\nnonsense", content_type=content_type)
        assert response.status_code == 400
        assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("sit=1", "sit"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("offset=-1", "offset"),
        ("ordering=digest", "ordering"),
        ("fields=secret", "fields"),
        ("brief=perhaps", "brief"),
        ("state=melted", "state"),
        ("site=nowhere", "site"),
        ("format=pdf", "format"),
        ("created_at__gte=yesterday", "created_at__gte"),
    ],
)
def test_a_wrong_query_is_refused_not_ignored(viewer_api: APIClient, node: Node, query: str, field: str) -> None:
    assert field in faults(problem(viewer_api.get(f"{V1}/nodes/?{query}"), 400, "validation"))


@pytest.mark.parametrize(
    "path", ["", "me/", "catalogue/gpus/H100/", "catalogue/models/Qwen/Qwen3-8B/", "catalogue/traces/", "jobs/"]
)
def test_no_read_ignores_what_it_does_not_know(viewer_api: APIClient, path: str) -> None:
    assert viewer_api.get(f"{V1}/{path}").status_code == 200
    fault = faults(problem(viewer_api.get(f"{V1}/{path}?fied=id"), 400, "validation"))["fied"]
    assert (fault["value"], "no such parameter" in fault["message"]) == ("id", True)


def test_no_change_ignores_a_misspelt_parameter(operator_api: APIClient, site: Site) -> None:
    rows = "name,slug,currency\nElsewhere,elsewhere,USD\n"
    for query in ("dryrun=true", "dry-run=true&dry_run=true"):
        response = operator_api.generic("POST", f"{V1}/sites/import/?{query}", rows, content_type="text/csv")
        fault = faults(problem(response, 400, "validation"))[query.partition("=")[0]]
        assert (fault["value"], "dry_run" in fault["message"]) == ("true", True)
    problem(operator_api.post(f"{V1}/sites/?brief=1", {"name": "Elsewhere", "slug": "elsewhere"}), 400, "validation")
    problem(operator_api.delete(f"{V1}/sites/{site.pk}/?force=1", HTTP_IF_MATCH="*"), 400, "validation")
    assert list(Site.objects.values_list("pk", flat=True)) == [site.pk]


def test_a_key_on_a_method_that_does_not_apply(operator_api: APIClient) -> None:
    for path in ("me/", "catalogue/gpus/", "endpoints/"):
        problem(operator_api.post(f"{V1}/{path}?x=1", {}, HTTP_IDEMPOTENCY_KEY="k"), 405, "method-not-allowed")


def test_a_value_stands_as_it_was_written(planner_api: APIClient) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {"a": True, "b": None}}
    body = problem(planner_api.post(f"{V1}/models/", {"model_id": "us/odd", "config": config}), 400, "validation")
    assert faults(body)["config"]["value"].startswith('{"architectures": ["LlamaForCausalLM"], "model_type"')
    assert 'hidden_size: must be an integer (got {"a": true, "b": null})' in body["detail"]
    body = problem(planner_api.post(f"{V1}/models/", {"model_id": ["é", None], "config": config}), 400, "validation")
    assert faults(body)["model_id"]["value"] == '["é", null]'


@pytest.mark.parametrize("query", ["id=" + "9" * 30, "search=%00", "name=%00", "name=%ff", "usd_per_kwh__gte=1e40"])
def test_absurd_queries_do_not_break(viewer_api: APIClient, query: str) -> None:
    assert viewer_api.get(f"{V1}/sites/?{query}").status_code in (200, 400)


def test_a_file_with_faults_names_each_row(operator_api: APIClient, site: Site) -> None:
    text = "name,usd_per_kwh\nOslo,0.1\nBergen,cheap\n,0.2\n"
    body = problem(
        operator_api.generic("POST", f"{V1}/sites/import/", text.encode(), content_type="text/csv"), 400, "validation"
    )
    assert {fault["row"] for fault in body["errors"]} == {3, 4}
    assert Site.objects.count() == 1
    broken = io.BytesIO(b"PK\x03\x04 not a workbook")
    broken.name = "sites.xlsx"
    problem(operator_api.post(f"{V1}/sites/import/", {"file": broken}, format="multipart"), 400, "validation")


def test_too_many_requests(viewer: User, client_of: Callable[..., APIClient], monkeypatch: pytest.MonkeyPatch) -> None:
    from rest_framework.throttling import SimpleRateThrottle

    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"user": "2/min", "anon": "2/min", "planner": "2/min"})
    api = client_of(viewer)
    assert [api.get(f"{V1}/me/").status_code for _ in range(2)] == [200, 200]
    response = api.get(f"{V1}/me/")
    problem(response, 429, "throttled")
    assert int(response["Retry-After"]) > 0


def test_a_defect_is_logged_and_says_nothing_of_itself(
    viewer_api: APIClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from controlplane.api.views.core import MeView

    monkeypatch.setattr(MeView, "get", lambda self, request: 1 / 0)
    body = problem(viewer_api.get(f"{V1}/me/"), 500, "internal")
    assert "division" not in str(body)


def test_a_busy_database_asks_to_come_again(viewer_api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.api.views.core import MeView

    def busy(self: Any, request: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(MeView, "get", busy)
    response = viewer_api.get(f"{V1}/me/")
    problem(response, 503, "unavailable")
    assert response["Retry-After"]


def test_a_planner_refusal_names_field_value_and_remedy(viewer_api: APIClient) -> None:
    body = problem(
        viewer_api.post(f"{V1}/memory/", {"model": "Qwen/Qwen3-8B", "gpu": "H1000", "engine": "vllm"}),
        400,
        "validation",
    )
    fault = body["errors"][0]
    assert fault["value"] == "H1000"
    assert "H100" in fault["remedy"]

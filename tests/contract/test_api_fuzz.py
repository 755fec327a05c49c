"""Whatever JSON comes, the API answers with a success or a problem; never with a defect of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from controlplane.api.urls import router
from controlplane.inventory.models import Gpu
from tests.contract.conftest import V1
from tests.contract.test_api_changes import TINY

pytestmark = pytest.mark.django_db

HOSTILE: tuple[Any, ...] = (
    None, True, "", " ", "x" * 300, "\u202e", "💥", "../../etc/passwd", "1; DROP TABLE x", 0, -1, 2**31, 2**63, 10**30,
    0.5, -1e308, [], {}, [None], {"kind": "fixed"}, {"kind": "samples", "samples": [1e9]}, "2026-13-01", "NaN", "1e999",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
)
GOOD: dict[str, dict[str, Any]] = {
    "sites/": {
        "name": "Fuzz", "usd_per_kwh": "0.1", "pue": "1.2",
        "tariff_bands": [{"days": ["mon"], "from_hour": 0, "to_hour": 6, "usd_per_kwh": "0.1"}],
    },
    "gpu-models/": {"name": "Fuzz", "memory_gib": 80.0},
    "node-types/": {"name": "Fuzz", "gpu_model": "A10", "gpus": 2, "nvlink_domain": 1, "network_gb_s": 10},
    "nodes/": {"name": "Fuzz", "site": "frankfurt", "node_type": "8-h100-sxm5-80gb", "allowed_engines": ["vllm"]},
    "gpus/": {"node": "fra-a10-01", "index": 1, "uuid": "GPU-1"},
    "prices/": {
        "gpu_model": "A10", "basis": "tco", "usd_per_gpu_hour": "1", "source": "x", "valid_from": "2026-01-01",
        "tco_inputs": {"purchase_usd": 1, "gpus": 1},
    },
    "exchange-rates/": {"currency": "SEK", "date": "2026-01-02", "usd_per_unit": "0.1", "source": "x"},
    "workloads/": {
        "name": "Fuzz", "model_ref": "Qwen/Qwen3-8B", "rate_per_s": 1, "input_tokens": {"kind": "fixed", "value": 9},
        "slo_targets": [{"metric": "ttft", "limit_ms": 9}], "trace": "agent-tool-calls", "arrival": "trace",
    },
    "scenarios/": {
        "name": "Fuzz", "sites": ["frankfurt"], "workloads": ["support-chat"], "time_limit_s": 5,
        "operations": {"people_usd_per_hour": "95"},
        "price_classes": [{"name": "x", "factor": "2", "workloads": ["support-chat"]}],
        "api_prices": [{"workload": "support-chat", "usd_per_mtok_input": "1", "usd_per_mtok_output": "1"}],
    },
    "plans/": {"scenario": "both-sites-december"},
    "models/": {"model_id": "acme/fuzz", "config": TINY},
    "traces/": {"name": "Fuzz", "catalogue_name": "azure_2023_code"},
    "deployments/": {"node": "fra-a10-01", "model_ref": "Qwen/Qwen3-0.6B", "engine": "vllm", "settings": {"tp": 1}},
    "probes/": {
        "deployment": "READY", "load": {"input_tokens": 9, "output_tokens": 9, "concurrency": 1, "requests": 2},
    },
    "tokens/": {"name": "Fuzz", "networks": ["10.0.0.0/8"], "expires_at": "2030-01-01T00:00:00Z"},
    "users/": {"username": "fuzz", "role": "viewer", "password": "a-very-long-one-7"},
    "site-roles/": {"user": "ada", "site": "frankfurt", "role": "viewer"},
    "memory/": {"model": "Qwen/Qwen3-8B", "gpu": "H100", "engine": "vllm", "settings": {"max_model_len": 4096}},
    "estimate/": {
        "model": "Qwen/Qwen3-8B", "gpu": "H100", "engine": "vllm", "tp": 1, "input_tokens": 9, "output_tokens": 9,
        "load": {"kind": "closed", "concurrency": 1, "requests": 2},
    },
}  # fmt: skip


@pytest.fixture
def api(
    whole_fleet: dict[str, Any], db: None, client_of: Callable[..., APIClient], monkeypatch: pytest.MonkeyPatch
) -> APIClient:
    """An administrator of the sample fleet, who is never throttled."""
    from rest_framework.throttling import SimpleRateThrottle

    monkeypatch.setattr(SimpleRateThrottle, "allow_request", lambda self, request, view: True)
    Gpu.objects.filter(node__slug="fra-a10-01", index=1).delete()
    GOOD["probes/"]["deployment"] = str(whole_fleet["deployments"][0].pk)
    return client_of(whole_fleet["user"])


@st.composite
def spoilt(draw: st.DrawFn, good: dict[str, Any]) -> Any:
    """A good body with some of its values, at any depth, replaced; or something else entirely."""
    if draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    body = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        place = body
        key = draw(st.sampled_from([*body, "surplus"]))
        while isinstance(place.get(key), dict) and place[key] and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from(list(place)))
        place[key] = draw(VALUES)
    return body


@pytest.mark.parametrize("path", GOOD)
def test_no_body_breaks_the_api(api: APIClient, path: str) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(spoilt(GOOD[path]))
    def post(body: Any) -> None:
        with transaction.atomic():  # each body meets the same fleet
            refused_well(api.generic("POST", f"{V1}/{path}", json.dumps(body), content_type="application/json"), body)
            transaction.set_rollback(True)

    with transaction.atomic():
        accepted = api.post(f"{V1}/{path}", GOOD[path])
        transaction.set_rollback(True)
    assert accepted.status_code in (200, 201, 202), accepted.content  # else little of the path would be tried
    post()


def refused_well(response: Any, sent: Any) -> None:
    """A success, or a problem that is the sender's."""
    assert response.status_code < 500, (sent, response.content)
    if response.status_code >= 400:
        assert response["Content-Type"] == "application/problem+json"
        body = response.json()
        assert body["detail"]
        assert all(fault["remedy"] for fault in body["errors"])


TEXTS = ("", "0", "-1", "9" * 25, "1e400", "nan", "true", "x", "%'", "2026-13-01", "\x00", "a,b", "é" * 50)


@pytest.mark.parametrize("prefix", [prefix for prefix, _, _ in router.registry])
def test_no_query_breaks_a_list(api: APIClient, prefix: str) -> None:
    viewset = next(viewset for known, viewset, _ in router.registry if known == prefix)
    names = (*viewset.filterset_class.base_filters, "search", "ordering", "fields", "limit", "offset", "format")
    for at, name in enumerate(names):
        for step in (0, 4, 8):
            text = TEXTS[(at + step) % len(TEXTS)]
            refused_well(api.get(f"{V1}/{prefix}/", {name: text}), (name, text))


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    body=st.binary(max_size=200),
    kind=st.sampled_from(["application/json", "text/csv", "multipart/form-data; boundary=b"]),
)
def test_no_bytes_break_the_parsers(administrator: Any, client_of: Any, data_dir: Path, body: bytes, kind: str) -> None:
    client = client_of(administrator)
    refused_well(client.generic("POST", f"{V1}/sites/import/?dry_run=1", body, content_type=kind), (kind, body))
